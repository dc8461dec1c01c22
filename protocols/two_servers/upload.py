"""Upload of a client: one signed header that both servers hold, and one envelope that only its server can open.

Only the header is in the clear. Every ciphertext, key and proof of the upload is bound to its digest, and the client
signs it together with both envelopes' keys. Servers with the same upload id therefore hold halves of one upload.

HPKE seals a seed for each server, and AES-256-GCM seals its half under a key derived from the seed. Server 0's masks of
ring segments are expanded from the seed too, and server 1 receives the difference, so a half of any size costs one
encapsulation. Ring values are not checked: a client can move their sum arbitrarily.

For each index segment in order:

    body for server 0        its seed, and where clients are checked its proof
    body for server 1        its seed, or at depth 0 its share; and its proof
    public part, to server 1 the correction words of a tree

Server 1 relays the public part in its proposal; server 0 compares it with the digest in the signed header before it
evaluates anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract.layout import IndexSegment, Payload, RingSegment
from secagg.crypto.aead import AEAD_KEY_BYTES, TAG_BYTES
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.secret import Confined, Secret
from secagg.declared import SERVER, At, Field, MessageIn, borrowed, fixed, listed, nested, sized, unsigned
from secagg.errors import UNDECIDED, MalformedMessage, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.session.certificates import SIGNATURE_BYTES, Certificate, SigningKey, verify_signature
from secagg.wire import MessageKind, Reader

from .configuration import IndexingConfiguration
from .point_functions.generation import ServerShare, generate_shares
from .point_functions.one_hot_proof import UploadContext, prove
from .point_functions.shape import NONCE_BYTES
from .point_functions.shares import ExplicitShare, TreeShare

DIGEST_BYTES: Final = 32
ROUND_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Public part of one index segment's point functions."""

    nonce: Annotated[bytes, fixed(NONCE_BYTES)]
    correction_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of the correction words; 32 zeros if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """Header of an upload: its round, its sender and its public values."""

    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    certificate: Annotated[Certificate, nested(Certificate)]
    segments: Annotated[
        tuple[SegmentHeader, ...],
        listed(
            nested(SegmentHeader),
            lambda at: at.place.configuration.index_segments,
            f"for each index segment: nonce {NONCE_BYTES}, digest {DIGEST_BYTES}",
        ),
    ]

    @property
    def client(self) -> ClientId:
        return self.certificate.client

    def digest(self, configuration: IndexingConfiguration) -> bytes:
        """Return the digest of all of it and of the configuration."""
        parts = (
            configuration.context.digest,
            self.round_number.to_bytes(ROUND_BYTES, "big"),
            self.client.encode(),
            self.certificate.public_key,
            *(part for segment in self.segments for part in (segment.nonce, segment.correction_digest)),
        )
        return hashlib.sha256(bind(Label.INDEXING_UPLOAD_HEADER, *parts)).digest()


def _read_own(reader: Reader, at: At) -> ServerId:
    """Read a half's server, which determines the half's length; stop at a half for the other server."""
    server: ServerId = SERVER.read(reader, at)
    if server != at.place.server:
        raise MalformedMessage(f"the half is not for {at.place.server}", reason=Reason.NOT_CANONICAL)
    return server


class HalfForm(NamedTuple):
    """Configuration for decoding a half, and the lengths of its last parts."""

    configuration: IndexingConfiguration
    server: ServerId
    body_bytes: int
    """Length of this server's body before sealing."""
    public_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload(MessageIn[HalfForm]):
    """One server's half of an upload."""

    kind: ClassVar = MessageKind.INDEXING_UPLOAD
    server: Annotated[ServerId, Field(SERVER.write, _read_own, SERVER.row)]
    header: Annotated[UploadHeader, nested(UploadHeader)]
    sealed_seeds: Annotated[
        tuple[bytes, bytes],
        listed(
            sized(lambda suite: UPLOAD_SEED_BYTES + sealing_sizes(suite)[1], "a sealed seed"),
            lambda at: [at.place.configuration.suite] * 2,
            "for each server: 80 classic, 1168 hybrid",
        ),
    ]
    """Seeds for server 0 and for server 1; both servers hold both, because the signature is on both."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = bytes(SIGNATURE_BYTES)
    body: Annotated[
        bytes | memoryview, borrowed(lambda half: half.body_bytes + TAG_BYTES, f"the body, sealed; tag {TAG_BYTES}")
    ] = field(repr=False)
    public_part: Annotated[
        bytes | memoryview, borrowed(lambda half: half.public_bytes, "server 1: the correction words")
    ] = field(default=b"", repr=False)
    """Correction words of all segments, which server 1 receives and relays to server 0."""

    def upload_id(self, configuration: IndexingConfiguration) -> bytes:
        return hashlib.sha256(bind(Label.INDEXING_UPLOAD, *self._signed_parts(configuration))).digest()

    def _signed_parts(self, configuration: IndexingConfiguration) -> tuple[bytes, ...]:
        return (self.header.digest(configuration), *self.sealed_seeds)

    def signature_by(self, signing_key: SigningKey, configuration: IndexingConfiguration) -> bytes:
        return signing_key.sign(Label.INDEXING_SIGNED_UPLOAD, *self._signed_parts(configuration))

    def verify(self, configuration: IndexingConfiguration) -> None:
        """Verify the client's signature under the key in its certificate."""
        verify_signature(
            self.header.certificate.public_key,
            self.signature,
            Label.INDEXING_SIGNED_UPLOAD,
            *self._signed_parts(configuration),
            culprits=UNDECIDED,
        )


def segment_context(configuration: IndexingConfiguration, round_number: int, number: int) -> bytes:
    """Return the digest of task, round, layout and segment."""
    parts = (
        configuration.context.digest,
        round_number.to_bytes(ROUND_BYTES, "big"),
        configuration.layout.digest,
        number.to_bytes(4, "big"),
    )
    return hashlib.sha256(bind(Label.INDEXING_SEGMENT, *parts)).digest()


def check_context(
    configuration: IndexingConfiguration, header: UploadHeader, number: int, segment: IndexSegment, place: SegmentHeader
) -> UploadContext:
    """Return the context of the proof of one segment."""
    return UploadContext(
        attempt=configuration.context,
        round_number=header.round_number,
        client=header.client,
        layout_digest=configuration.layout.digest,
        segment=number,
        shape=configuration.check_shape(segment),
        correction_digest=place.correction_digest,
        nonce=place.nonce,
    )


UPLOAD_SEED_BYTES: Final = 32
BODY_NONCE: Final = bytes(12)


def sealing_info(server: ServerId, header_digest: bytes) -> bytes:
    """Return the context of a sealed seed."""
    return bind(Label.INDEXING_SEALING, bytes([server.index]), header_digest)


def seal_body(seed: Secret, server: ServerId, header_digest: bytes, body: bytes | bytearray) -> memoryview:
    """Encrypt one server's body under a key derived from its seed.

    Implements: [SP 800-38D] §7.1.
    """
    sealed = np.empty(len(body) + TAG_BYTES, dtype=np.uint8).data
    with body_key(seed, server, header_digest) as key:
        # Safe because: the nonce is fixed, and the key is derived from the seed and the header of one upload.
        AESGCM(key.expose()).encrypt_into(BODY_NONCE, body, header_digest, sealed)
    return sealed


def ring_mask_key(seed: Secret, suite: Suite, header_digest: bytes) -> Secret:
    """Return the key that expands into server 0's share of all ring segments."""
    return expand("ring_mask_key", suite.mask_key_bytes, seed, Label.INDEXING_RING_MASK, header_digest)


def body_key(seed: Secret, server: ServerId, header_digest: bytes) -> Secret:
    """Return the key of one server's body."""
    return expand("body_key", AEAD_KEY_BYTES, seed, Label.INDEXING_BODY_KEY, bytes([server.index]), header_digest)


def masked_rings(
    configuration: IndexingConfiguration, payload: Payload, key: Secret, *, threads: int = 1
) -> Sequence[bytes | memoryview]:
    """Return server 1's packed ring share: each value minus server 0's expansion of the key.

    Security: use a key once, for one upload.
    """
    packed, first_segment = list[bytes | memoryview](), 0
    for segment, values in zip(configuration.layout.segments, payload.values, strict=True):
        if not isinstance(segment, RingSegment):
            continue
        vector = segment.ring.zeros(segment.length)
        vector[:] = values
        accumulate(vector, segment.ring, add=[], subtract=[key], first_segment=first_segment, threads=threads)
        first_segment += segment_count(segment.ring, segment.length)
        packed.append(segment.ring.pack_view(vector))
    return packed


NO_CORRECTION = bytes(DIGEST_BYTES)


# --- The client's side ------------------------------------------------------------------------------------------------


class SharedIndices(Confined):
    """The point functions of one upload, before they are sealed."""

    def __init__(  # noqa: PLR0913 -- what shares are made from
        self,
        configuration: IndexingConfiguration,
        round_number: int,
        client: ClientId,
        payload: Payload,
        coins: Coins,
        *,
        threads: int = 1,
    ) -> None:
        self._configuration = configuration
        self._coins = coins
        self.segments = list[tuple[int, IndexSegment, Payload, tuple[ServerShare, ServerShare]]]()
        for number, segment in configuration.index_segments:
            shares = generate_shares(
                configuration.shape(segment),
                payload.values[number],
                context=segment_context(configuration, round_number, number),
                client=client,
                coins=coins,
                threads=threads,
            )
            self.segments.append((number, segment, payload, shares))

    @property
    def headers(self) -> tuple[SegmentHeader, ...]:
        return tuple(
            SegmentHeader(zero.binding.nonce, _correction_digest(zero)) for _, _, _, (zero, _) in self.segments
        )

    def bodies(self, header: UploadHeader) -> tuple[bytearray, bytearray]:
        """Return each server's body before sealing; the caller overwrites both."""
        bodies = (bytearray(), bytearray())
        for (number, segment, payload, shares), place in zip(self.segments, header.segments, strict=True):
            for body, share in zip(bodies, shares, strict=True):
                body.extend(share.encode() if isinstance(share, ExplicitShare) else share.seed.expose())
            if self._configuration.is_checked:
                context = check_context(self._configuration, header, number, segment, place)
                digests = (shares[0].digest, shares[1].digest)
                for body, proof in zip(
                    bodies, prove(context, payload.values[number], digests, self._coins), strict=True
                ):
                    with proof.seed:
                        body.extend(proof.encode(context.shape))
        return bodies

    @property
    def public_part(self) -> bytes:
        return b"".join(zero.correction.encode() for _, _, _, (zero, _) in self.segments if isinstance(zero, TreeShare))

    def wipe(self) -> None:
        for _, _, _, shares in self.segments:
            for share in shares:
                if not isinstance(share, ExplicitShare):
                    share.seed.wipe()


def _correction_digest(share: ServerShare) -> bytes:
    return share.correction.digest if isinstance(share, TreeShare) else NO_CORRECTION
