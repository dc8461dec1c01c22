"""What a dealer sends each server: for many clients at once, shares of random indices and of votes for them.

For every client and block there is a random index m, of which each server expands its share m_b from the seed that is
sealed to it, and a point function that is 1 at m, of which server 0 expands its share from a seed and server 1 is sent
its own. All clients' blocks of one segment are one batch of point functions, client after client, and one proof says
that every one of them is a vote for one codeword:

    body for server 0        for each segment: the seed of its shares, and its proof
    body for server 1        for each segment: its shares of the votes, and its proof

The dealer signs the list of clients together with both sealed seeds. A correlation therefore is for a round, a client,
a segment and a range of blocks, all by its place in the batch. The proof and all keys are bound to that list as well.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from secagg.contract.layout import IndexSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.envelope import SEED_BYTES
from secagg.protocols.two_servers.lanes.fields import STREAM_KEY_BYTES
from secagg.protocols.two_servers.one_hot.messages import OneHotProof
from secagg.protocols.two_servers.one_hot.statement import CheckShape, UploadContext
from secagg.protocols.two_servers.point_functions.explicit_share import ExplicitShare
from secagg.protocols.two_servers.point_functions.seeds import SEED_BYTES as SHARE_SEED_BYTES
from secagg.protocols.two_servers.point_functions.shape import MAXIMUM_BLOCKS
from secagg.protocols.two_servers.point_functions.tree_hash import NONCE_BYTES, KeyBinding
from secagg.protocols.two_servers.upload import DIGEST_BYTES, ROUND_BYTES
from secagg.session.certificates import SIGNATURE_BYTES, SigningKey, verify_signature
from secagg.wire import MessageKind, Reader, Writer

DEALER: Final = ClientId((1 << 64) - 1)
"""In whose name dealt votes are shared and proven, where a client's name stands in the other modes.

Nothing that is made for a batch meets what a client of this name could make, because all of it is bound to the list of
the batch, and in index sharing clients prove nothing."""
MAXIMUM_DEALT_CLIENTS: Final = 1 << 16
MAXIMUM_BODY_BYTES: Final = (1 << 31) - 1 - TAG_BYTES
"""What the backend encrypts in one call."""


@dataclass(frozen=True, slots=True)
class DealtHeader:
    """For which round and whom a batch is dealt."""

    round_number: int
    clients: tuple[ClientId, ...]
    """In ascending order; the place of a client here is the place of its correlations in every segment's batch."""
    nonces: tuple[bytes, ...] = ()
    """One for each index segment's point functions."""

    def place_digest(self, configuration: IndexingConfiguration) -> bytes:
        """Return the digest of the task, the round and the list of clients: what every place in the batch is part of.

        It stands where the digest of the layout stands in what a client proves; the task's digest covers the layout.
        """
        round_number = self.round_number.to_bytes(ROUND_BYTES, "big")
        clients = (client.encode() for client in self.clients)
        bound = bind(Label.INDEXING_DEALT_CLIENTS, configuration.context.digest, round_number, *clients)
        return hashlib.sha256(bound).digest()

    def digest(self, configuration: IndexingConfiguration) -> bytes:
        """Return the digest of all of it; envelopes and the signature are bound to it."""
        bound = bind(Label.INDEXING_DEALT_HEADER, self.place_digest(configuration), *self.nonces)
        return hashlib.sha256(bound).digest()

    def key_binding(self, configuration: IndexingConfiguration, number: int, nonce: bytes) -> KeyBinding:
        """Return what the point functions of one segment are bound to."""
        return KeyBinding(context=self.segment_context(configuration, number), client=DEALER, nonce=nonce)

    def segment_context(self, configuration: IndexingConfiguration, number: int) -> bytes:
        """Return the digest of the batch's place and a segment."""
        parts = (self.place_digest(configuration), number.to_bytes(4, "big"))
        return hashlib.sha256(bind(Label.INDEXING_DEALT_SEGMENT, *parts)).digest()

    def mask_key(self, configuration: IndexingConfiguration, server: ServerId, number: int, seed: Secret) -> Secret:
        """Return the key that expands into one server's shares of the random indices of one segment."""
        parts = (self.place_digest(configuration), bytes([server.index]), number.to_bytes(4, "big"))
        return expand("dealt mask key", STREAM_KEY_BYTES, seed, Label.INDEXING_DEALT_MASK, *parts)

    def check_context(
        self, configuration: IndexingConfiguration, number: int, segment: IndexSegment, nonce: bytes
    ) -> UploadContext:
        """Return what the proof of one segment is bound to."""
        return UploadContext(
            attempt=configuration.context,
            round_number=self.round_number,
            client=DEALER,
            layout_digest=self.place_digest(configuration),
            segment=number,
            shape=check_shape(configuration, segment, len(self.clients)),
            weight=1,
            correction_digest=bytes(DIGEST_BYTES),
            nonce=nonce,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DealtCorrelations:
    """One server's half of a batch."""

    header: DealtHeader
    server: ServerId
    sealed_seeds: tuple[bytes, bytes]
    """For server 0 and for server 1; both servers hold both, because the signature is on both."""
    signature: bytes
    body: bytes | memoryview = field(repr=False)
    """What this server is sent, under AES-256-GCM."""

    def batch_id(self, configuration: IndexingConfiguration) -> bytes:
        """Return what both servers know this batch by."""
        parts = (self.header.digest(configuration), *self.sealed_seeds)
        return hashlib.sha256(bind(Label.INDEXING_DEALT_BATCH, *parts)).digest()

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        header = self.header
        writer = Writer(MessageKind.DEALT_CORRELATIONS).integer(self.server.index, 1)
        writer.integer(header.round_number, ROUND_BYTES).integer(len(header.clients), 4)
        for client in header.clients:
            writer.fixed(client.encode(), CLIENT_ID_BYTES)
        for nonce in header.nonces:
            writer.fixed(nonce, NONCE_BYTES)
        for sealed in self.sealed_seeds:
            writer.fixed(sealed, len(sealed))
        return writer.fixed(self.signature, SIGNATURE_BYTES).borrowed(self.body).finish()

    @classmethod
    def decode(
        cls, message: bytes, configuration: IndexingConfiguration, server: ServerId, round_number: int
    ) -> DealtCorrelations:
        """Read one server's half back, and check that the dealer signed it for this round.

        Raises:
            AuthenticationFailed: the dealer that the configuration names did not sign it.
            PeerMisbehaved: it is for another round.
            MalformedMessage: anything that ``encode`` would not have written for this server and configuration.
        """
        reader = Reader(message, MessageKind.DEALT_CORRELATIONS)
        if reader.integer(1) != server.index:
            raise MalformedMessage(f"these correlations are not for {server}", reason=Reason.NOT_CANONICAL)
        dealt_round, count = reader.integer(ROUND_BYTES), reader.integer(4)
        segments = configuration.index_segments
        if not 1 <= count <= most_clients(configuration):
            raise MalformedMessage(
                f"a batch declares {count} clients, and {most_clients(configuration)} is the limit",
                reason=Reason.LENGTH_OVER_LIMIT,
            )
        listed = reader.view(count * CLIENT_ID_BYTES)
        clients = tuple(
            ClientId(int.from_bytes(listed[start : start + CLIENT_ID_BYTES], "big"))
            for start in range(0, len(listed), CLIENT_ID_BYTES)
        )
        nonces = tuple(reader.fixed(NONCE_BYTES) for _ in segments)
        sealed_bytes = SEED_BYTES + sealing_sizes(configuration.suite)[1]
        sealed_seeds = (reader.fixed(sealed_bytes), reader.fixed(sealed_bytes))
        signature = reader.fixed(SIGNATURE_BYTES)
        body = reader.view(sum(sum(sizes) for sizes in body_sizes(configuration, server, count)) + TAG_BYTES)
        reader.finish()
        if any(one >= other for one, other in pairwise(clients)):
            raise MalformedMessage("the clients of a batch are in ascending order", reason=Reason.NOT_CANONICAL)
        header = DealtHeader(dealt_round, clients, nonces)
        parts = (header.digest(configuration), *sealed_seeds)
        verify_signature(configuration.dealer_key, signature, Label.INDEXING_SIGNED_DEALING, *parts)
        if dealt_round != round_number:
            raise PeerMisbehaved(
                f"correlations are for round {dealt_round}, and this is round {round_number}",
                reason=Reason.WRONG_SESSION,
                round_name="deal",
            )
        return cls(header=header, server=server, sealed_seeds=sealed_seeds, signature=signature, body=body)


def signed_dealing(
    header: DealtHeader,
    configuration: IndexingConfiguration,
    sealed_seeds: tuple[bytes, bytes],
    bodies: tuple[memoryview, memoryview],
    signing_key: SigningKey,
) -> tuple[DealtCorrelations, DealtCorrelations]:
    """Sign a batch once, and return both halves."""
    signature = signing_key.sign(Label.INDEXING_SIGNED_DEALING, header.digest(configuration), *sealed_seeds)
    zero, one = (
        DealtCorrelations(
            header=header, server=ServerId(index), sealed_seeds=sealed_seeds, signature=signature, body=body
        )
        for index, body in enumerate(bodies)
    )
    return zero, one


def body_sizes(configuration: IndexingConfiguration, server: ServerId, clients: int) -> list[tuple[int, int]]:
    """Return how many bytes a server's shares have for each index segment, and its proof."""
    sizes = list[tuple[int, int]]()
    for _, segment in configuration.index_segments:
        proof = OneHotProof.encoded_bytes(check_shape(configuration, segment, clients), server)
        shares = SHARE_SEED_BYTES
        if server.index:
            shares = ExplicitShare.encoded_bytes(configuration.shape(segment), clients * segment.blocks)
        sizes.append((shares, proof))
    return sizes


def check_shape(configuration: IndexingConfiguration, segment: IndexSegment, clients: int) -> CheckShape:
    """Return the shape of the check of all these clients' blocks together."""
    return CheckShape.plan(
        total_weight=configuration.maximum_total_weight, codewords=segment.codewords, blocks=clients * segment.blocks
    )


def most_clients(configuration: IndexingConfiguration) -> int:
    """Return how many clients one batch can be for: what can be shared, proven and encrypted as one.

    Raises:
        InvalidParameters: not even one.
    """
    most = MAXIMUM_DEALT_CLIENTS
    for _, segment in configuration.index_segments:
        most = min(most, MAXIMUM_BLOCKS // segment.blocks)
    one = ServerId(1)
    while most and sum(sum(sizes) for sizes in body_sizes(configuration, one, most)) > MAXIMUM_BODY_BYTES:
        most //= 2
    if not most:
        raise InvalidParameters("a model of this size cannot be dealt for in one message; count it in smaller layouts")
    return most
