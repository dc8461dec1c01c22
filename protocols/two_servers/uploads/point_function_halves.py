"""Index segments as point functions: what a client puts into the two halves, and how the servers take them.

For each index segment, one after the other:

    body for server 0        its seed, and where clients are checked its proof
    body for server 1        its seed, or at depth 0 its share; and its proof
    public part, to server 1 the correction words of a tree

The bodies are sealed. The public part is relayed by server 1 in its proposal; server 0 compares it with the digest in
the header, which the client has signed and both envelopes are bound to, before it evaluates anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secagg.contract import Payload
from secagg.contract.layout import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.exchange import cut
from secagg.protocols.two_servers.one_hot.check import OneHotVerifier, RoundChallenges
from secagg.protocols.two_servers.one_hot.messages import OneHotCommitment, OneHotOpening, OneHotProof
from secagg.protocols.two_servers.one_hot.proof import prove
from secagg.protocols.two_servers.point_functions.correction_words import CorrectionWords
from secagg.protocols.two_servers.point_functions.explicit_share import ExplicitShare, SeedShare
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.protocols.two_servers.point_functions.seeds import SEED_BYTES
from secagg.protocols.two_servers.point_functions.tree_hash import KeyBinding
from secagg.protocols.two_servers.point_functions.tree_share import TreeShare

from .class_totals import ClassTotals
from .upload import DIGEST_BYTES, SegmentHeader, UploadHeader, check_context, key_binding, segment_context

_NO_CORRECTION = bytes(DIGEST_BYTES)
_ROUND = "upload"


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
        """Share every index segment of a payload."""
        self._configuration = configuration
        self._coins = coins
        self._segments = list[tuple[int, IndexSegment, Payload, tuple[ServerShare, ServerShare]]]()
        for number, segment in configuration.index_segments:
            shares = generate_shares(
                configuration.shape(segment),
                payload.values[number],
                context=segment_context(configuration, round_number, number),
                client=client,
                coins=coins,
                threads=threads,
            )
            self._segments.append((number, segment, payload, shares))

    @property
    def headers(self) -> tuple[SegmentHeader, ...]:
        """What is public of each."""
        return tuple(
            SegmentHeader(zero.binding.nonce, _correction_digest(zero)) for _, _, _, (zero, _) in self._segments
        )

    def bodies(self, header: UploadHeader) -> tuple[bytearray, bytearray]:
        """Return what each server is sent, before it is sealed; the caller overwrites both."""
        bodies = (bytearray(), bytearray())
        for (number, segment, payload, shares), place in zip(self._segments, header.segments, strict=True):
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
        """Return the correction words of all segments that have some."""
        return b"".join(
            zero.correction.encode() for _, _, _, (zero, _) in self._segments if isinstance(zero, TreeShare)
        )

    def wipe(self) -> None:
        """Overwrite the seeds."""
        for _, _, _, shares in self._segments:
            for share in shares:
                if not isinstance(share, ExplicitShare):
                    share.seed.wipe()


# --- The servers' side ------------------------------------------------------------------------------------------------


def index_body_bytes(configuration: IndexingConfiguration, server: ServerId) -> int:
    """Return how long the index segments' part of a server's body is."""
    return sum(sum(_body_sizes(configuration, segment, server)) for _, segment in configuration.index_segments)


def public_bytes(configuration: IndexingConfiguration) -> int:
    """Return how long the public part is, as server 1 is sent it."""
    return sum(_public_sizes(configuration))


@dataclass(slots=True, eq=False)
class _Half:
    """What one server was sent of one segment."""

    number: int
    segment: IndexSegment
    place: SegmentHeader
    seed: Secret | None
    proof: OneHotProof | None
    share: ServerShare | None


class PointFunctionExchange(Confined):
    """One server's side of one upload of point functions."""

    def __init__(  # noqa: PLR0913, PLR0917 -- what an upload is made of
        self,
        configuration: IndexingConfiguration,
        server: ServerId,
        header: UploadHeader,
        body: bytearray | memoryview,
        public_part: bytes | memoryview,
        challenges: RoundChallenges,
        *,
        threads: int = 1,
    ) -> None:
        """Read what this server was sent.

        Raises:
            MalformedMessage, PeerMisbehaved: it is nothing that an honest client sends; ``culprits`` names the client.
        """
        self._configuration = configuration
        self._server, self._peer = server, ServerId(1 - server.index)
        self._header = header
        self._challenges = challenges
        self._threads = threads
        self._verifiers: list[OneHotVerifier] | None = None
        self._public_part = bytes(public_part)
        with blaming(header.client):
            self._halves = list(self._read(body))
            if server.index == 1:
                self._correct(self._public_part, header.client)

    def _read(self, body: bytearray | memoryview) -> Iterator[_Half]:
        configuration = self._configuration
        sizes = [_body_sizes(configuration, segment, self._server) for _, segment in configuration.index_segments]
        pieces = cut(body, [size for pair in sizes for size in pair])
        for (number, segment), place, (_, proof_bytes) in zip(
            configuration.index_segments, self._header.segments, sizes, strict=True
        ):
            sent, proven = next(pieces), next(pieces)
            proof = OneHotProof.decode(bytes(proven), configuration.check_shape(segment)) if proof_bytes else None
            if proof is not None and proof.server != self._server:
                raise MalformedMessage("a proof is for the other server", reason=Reason.NOT_CANONICAL)
            shape = configuration.shape(segment)
            seed: Secret | None = None
            share: ServerShare | None = None
            if shape.depth or self._server.index == 0:
                seed = Secret("point function seed", sent)
            binding = self._binding(number, place)
            if not shape.depth:
                if place.correction_digest != _NO_CORRECTION:
                    raise MalformedMessage("no correction words are due", reason=Reason.NOT_CANONICAL)
                if seed is not None:
                    share = SeedShare(shape, segment.blocks, binding, seed)
                else:
                    share = ExplicitShare.decode(sent, shape, segment.blocks, binding)
            yield _Half(number, segment, place, seed, proof, share)

    def _correct(self, public_part: bytes | memoryview, culprit: ClientId | ServerId) -> None:
        """Take the correction words, if they are those that the client signed; before anything is evaluated."""
        pieces = cut(public_part, _public_sizes(self._configuration))
        for half, piece in zip(self._halves, pieces, strict=True):
            shape = self._configuration.shape(half.segment)
            if not shape.depth:
                continue
            correction = CorrectionWords.decode(piece, shape, half.segment.blocks)
            if correction.digest != half.place.correction_digest:
                raise PeerMisbehaved(
                    "correction words are not those that the client signed",
                    reason=Reason.COMMITMENT_MISMATCH,
                    culprits=[culprit],
                    round_name=_ROUND,
                )
            if half.seed is None:
                raise Misuse("a tree's share has a seed")
            binding = self._binding(half.number, half.place)
            half.share = TreeShare(self._server.index, binding, half.seed, correction)

    def propose(self) -> bytes:
        """Relay the correction words, and commit to what will be opened."""
        return self._public_part + b"".join(verifier.commit() for verifier in self._verified())

    def learn(self, proposal: bytes) -> None:
        """Take the correction words that server 1 relays.

        Raises:
            PeerMisbehaved, MalformedMessage: they are not the client's; ``culprits`` names server 1.
        """
        self._take(proposal)

    def answer(self, proposal: bytes) -> bytes:
        """Open against server 1's commitments."""
        commitments = self._take(proposal)
        verifiers = self._verified()
        openings = [verifier.open(bytes(committed)) for verifier, committed in zip(verifiers, commitments, strict=True)]
        return b"".join([*(verifier.commit() for verifier in verifiers), *openings])

    def conclude(self, answer: bytes) -> bytes:
        """Decide upon server 0's openings, and open."""
        verifiers, count = self._verified(), len(self._halves) * self._configuration.is_checked
        with blaming(self._peer):
            pieces = [bytes(piece) for piece in cut(answer, [*self._commitment_sizes(), *self._opening_sizes()])]
        openings = [verifier.open(piece) for verifier, piece in zip(verifiers, pieces[:count], strict=True)]
        for verifier, piece in zip(verifiers, pieces[count:], strict=True):
            verifier.decide(piece)
        return b"".join(openings)

    def settle(self, conclusion: bytes) -> None:
        """Decide upon server 1's openings."""
        with blaming(self._peer):
            pieces = list(cut(conclusion, self._opening_sizes()))
        for verifier, piece in zip(self._verified(), pieces, strict=True):
            verifier.decide(bytes(piece))

    def add_to(self, totals: ClassTotals) -> None:
        """Add this server's shares, in the class of the upload's weight."""
        totals.add_shares(self._header.weight, {half.number: self._share_of(half) for half in self._halves})

    def wipe(self) -> None:
        """Overwrite the seeds."""
        for half in self._halves:
            if half.seed is not None:
                half.seed.wipe()
            if half.proof is not None:
                half.proof.seed.wipe()

    def _take(self, proposal: bytes) -> list[memoryview]:
        """Split a proposal, take the correction words, and return the commitments."""
        public = public_bytes(self._configuration)
        with blaming(self._peer):
            part, *commitments = cut(proposal, [public, *self._commitment_sizes()])
            if any(half.share is None for half in self._halves):
                self._correct(part, self._peer)
        return commitments

    def _verified(self) -> list[OneHotVerifier]:
        """Return the verifiers, which are made once."""
        if self._verifiers is None:
            self._verifiers = [
                OneHotVerifier(
                    check_context(self._configuration, self._header, half.number, half.segment, half.place),
                    self._share_of(half),
                    half.proof,
                    self._challenges,
                    threads=self._threads,
                )
                for half in self._halves
                if half.proof is not None
            ]
        return self._verifiers

    def _share_of(self, half: _Half) -> ServerShare:
        if half.share is None:
            raise Misuse("server 0 takes the correction words of a proposal first")
        return half.share

    def _binding(self, number: int, place: SegmentHeader) -> KeyBinding:
        return key_binding(self._configuration, self._header.round_number, number, self._header.client, place.nonce)

    def _commitment_sizes(self) -> list[int]:
        return [OneHotCommitment.encoded_bytes()] * len(self._halves) * self._configuration.is_checked

    def _opening_sizes(self) -> list[int]:
        if not self._configuration.is_checked:
            return []
        return [OneHotOpening.encoded_bytes(self._configuration.check_shape(half.segment)) for half in self._halves]

    def __repr__(self) -> str:
        return f"<PointFunctionExchange of {self._header.client} at {self._server}>"


def _body_sizes(configuration: IndexingConfiguration, segment: IndexSegment, server: ServerId) -> tuple[int, int]:
    """Return how many bytes a segment's seed or share has, and its proof."""
    shape = configuration.shape(segment)
    is_explicit = not shape.depth and server.index == 1
    sent = ExplicitShare.encoded_bytes(shape, segment.blocks) if is_explicit else SEED_BYTES
    if not configuration.is_checked:
        return sent, 0
    return sent, OneHotProof.encoded_bytes(configuration.check_shape(segment), server)


def _public_sizes(configuration: IndexingConfiguration) -> list[int]:
    """Return how many bytes each segment's correction words have, none at depth 0."""
    sizes = list[int]()
    for _, segment in configuration.index_segments:
        shape = configuration.shape(segment)
        sizes.append(CorrectionWords.encoded_bytes(shape, segment.blocks) if shape.depth else 0)
    return sizes


def _correction_digest(share: ServerShare) -> bytes:
    return share.correction.digest if isinstance(share, TreeShare) else _NO_CORRECTION
