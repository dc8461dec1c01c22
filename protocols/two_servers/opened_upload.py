"""An upload at one server: opened, checked together with the other server, and added to the sum.

    server 1  propose   ->  server 0  answer  ->  server 1  conclude  ->  server 0  settle

Each step raises if the upload must be rejected; a repeated input gets the same output. Server 1 accepts the upload when
it concludes, and server 0 when it settles; only then is anything added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.blame import between_servers, signed_by
from secagg.contract.layout import IndexSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_pair
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined, Secret, overwrite
from secagg.errors import UNDECIDED, AuthenticationFailed, MalformedMessage, Misuse, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import require_integer
from secagg.session.certificates import Authority

from .configuration import IndexingConfiguration
from .offers import Entry
from .point_functions.generation import ServerShare, over_threads
from .point_functions.lanes import Lanes
from .point_functions.one_hot_check import OneHotCommitment, OneHotOpening, OneHotVerifier, RoundChallenges
from .point_functions.one_hot_proof import OneHotProof
from .point_functions.shape import SEED_BYTES, KeyBinding, PointFunctionShape
from .point_functions.shares import CorrectionWords, ExplicitShare, LaneGrid, SeedShare, TreeShare
from .upload import (
    BODY_NONCE,
    NO_CORRECTION,
    UPLOAD_SEED_BYTES,
    HalfForm,
    SegmentHeader,
    Upload,
    UploadHeader,
    body_key,
    check_context,
    ring_mask_key,
    sealing_info,
    segment_context,
)


class HistogramShare(Confined):
    """One server's share of the histogram: the sum of accepted shares, in O(blocks x codewords) memory.

    Security: with the other server's share, a share of one client, or of two sets of clients that differ in one,
        reveals that client's input. The protocol decides which sums leave the server.
    """

    def __init__(self, shape: PointFunctionShape, blocks: int, server_index: int) -> None:
        """Start at zero."""
        self.shape = shape
        self.blocks = blocks
        self.server_index = server_index
        self._total = LaneGrid.zeros(shape, blocks)
        self._given_up = False

    def add(self, share: ServerShare, *, threads: int = 1) -> None:
        """Evaluate a client's share and add it, without ever holding all of a client's lanes.

        Raises:
            Misuse: the share has a different shape, number of blocks or server, or this sum was wiped. Nothing was
                added.
            MalformedMessage: the client's key is refused because it has too few lanes.

        If adding fails, the sum is overwritten and discarded, because it holds part of a share. A key without enough
        lanes does not occur by chance, and no client can find one.
        """
        self._require_ours(share)
        total = self._usable()
        require_integer("threads", threads, 1)
        try:
            over_threads(
                self.shape, self.blocks, threads, lambda first, stop: share.accumulate(total.part(first, stop))
            )
        except BaseException:
            total.wipe()
            self._given_up = True
            raise

    def rows(self) -> Lanes:
        """Return this share as one row of codewords per block."""
        return self._usable().rows()

    def wipe(self) -> None:
        """Overwrite and discard the sum."""
        self._total.wipe()
        self._given_up = True

    def _usable(self) -> LaneGrid:
        if self._given_up:
            raise Misuse("the sum was wiped or contains part of a share; start a new one", reason=Reason.ALREADY_SPENT)
        return self._total

    def _require_ours(self, share: ServerShare) -> None:
        if (share.shape, share.blocks, share.server_index) != (self.shape, self.blocks, self.server_index):
            raise Misuse("the share's shape, number of blocks or server differs from the histogram's")


# --- Opened upload ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Half:
    """One server's part of one segment."""

    number: int
    segment: IndexSegment
    place: SegmentHeader
    seed: Secret | None
    proof: OneHotProof | None
    share: ServerShare | None


class PointFunctionExchange(Confined):
    """One server's side of the check of one upload."""

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
        """Decode the half that this server received.

        Raises:
            MalformedMessage, PeerMisbehaved: no honest client sends this; ``culprits`` names the client if only it can
                have sealed the part, and is ``UNDECIDED`` for the public part.
        """
        self._configuration = configuration
        self._server, self._peer = server, ServerId(1 - server.index)
        self._header = header
        self._challenges = challenges
        self._threads = threads
        self._verifiers: list[OneHotVerifier] | None = None
        self._public_part = bytes(public_part)
        with blaming(*signed_by(header.client)):
            self._halves = list(self._read(body))
        if server.index == 1:
            self._correct(self._public_part)

    def _read(self, body: bytearray | memoryview) -> Iterator[_Half]:
        configuration = self._configuration
        sizes = [body_sizes(configuration, segment, self._server) for _, segment in configuration.index_segments]
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
                if place.correction_digest != NO_CORRECTION:
                    raise MalformedMessage("expected no correction words", reason=Reason.NOT_CANONICAL)
                if seed is not None:
                    share = SeedShare(shape, segment.blocks, binding, seed)
                else:
                    share = ExplicitShare.decode(sent, shape, segment.blocks, binding)
            yield _Half(number, segment, place, seed, proof, share)

    def _correct(self, public_part: bytes | memoryview) -> None:
        """Accept the correction words if the client signed them; called before anything is evaluated."""
        pieces = cut(public_part, public_sizes(self._configuration))
        for half, piece in zip(self._halves, pieces, strict=True):
            shape = self._configuration.shape(half.segment)
            if not shape.depth:
                continue
            correction = CorrectionWords.decode(piece, shape, half.segment.blocks)
            if correction.digest != half.place.correction_digest:
                raise PeerMisbehaved(
                    "the correction words do not match the client's signature",
                    reason=Reason.COMMITMENT_MISMATCH,
                    culprits=UNDECIDED,
                )
            if half.seed is None:
                raise Misuse("a tree's share needs a seed")
            binding = self._binding(half.number, half.place)
            half.share = TreeShare(self._server.index, binding, half.seed, correction)

    def propose(self) -> bytes:
        """Relay the correction words, and commit to what will be opened."""
        return self._public_part + b"".join(verifier.commit() for verifier in self._verified())

    def answer(self, proposal: bytes) -> bytes:
        """Open against server 1's commitments."""
        commitments = self._take(proposal)
        verifiers = self._verified()
        openings = [verifier.open(bytes(committed)) for verifier, committed in zip(verifiers, commitments, strict=True)]
        return b"".join([*(verifier.commit() for verifier in verifiers), *openings])

    def conclude(self, answer: bytes) -> bytes:
        """Decide with server 0's openings, and open."""
        verifiers, count = self._verified(), len(self._halves) * self._configuration.is_checked
        with blaming(*between_servers()):
            pieces = [bytes(piece) for piece in cut(answer, [*self._commitment_sizes(), *self._opening_sizes()])]
        openings = [verifier.open(piece) for verifier, piece in zip(verifiers, pieces[:count], strict=True)]
        for verifier, piece in zip(verifiers, pieces[count:], strict=True):
            verifier.decide(piece)
        return b"".join(openings)

    def settle(self, conclusion: bytes) -> None:
        """Decide with server 1's openings."""
        with blaming(*between_servers()):
            pieces = list(cut(conclusion, self._opening_sizes()))
        for verifier, piece in zip(self._verified(), pieces, strict=True):
            verifier.decide(bytes(piece))

    def add_to(self, totals: RoundTotals) -> None:
        totals.add_shares({half.number: self._share_of(half) for half in self._halves})

    def wipe(self) -> None:
        for half in self._halves:
            if half.seed is not None:
                half.seed.wipe()
            if half.proof is not None:
                half.proof.seed.wipe()

    def _take(self, proposal: bytes) -> list[memoryview]:
        """Split a proposal, accept the correction words, and return the commitments."""
        public = public_bytes(self._configuration)
        with blaming(*between_servers()):
            part, *commitments = cut(proposal, [public, *self._commitment_sizes()])
            if any(half.share is None for half in self._halves):
                self._correct(part)
        return commitments

    def _verified(self) -> list[OneHotVerifier]:
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
            raise Misuse("server 0 must accept the correction words of a proposal first")
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


class RoundTotals(Confined):
    """Sums of one round at one server; memory for a few models, whatever the number of clients."""

    def __init__(self, configuration: IndexingConfiguration, server: ServerId, *, threads: int = 1) -> None:
        self.configuration = configuration
        self.server = server
        self._threads = threads
        self._histograms = {
            number: HistogramShare(configuration.shape(segment), segment.blocks, server.index)
            for number, segment in configuration.index_segments
        }
        self._vectors = [segment.ring.zeros(segment.length) for segment in configuration.ring_segments]

    def add_shares(self, shares: Mapping[int, ServerShare]) -> None:
        for number, share in shares.items():
            self._histograms[number].add(share, threads=self._threads)

    def add_vectors(self, vectors: Sequence[RingVector]) -> None:
        for segment, total, vector in zip(self.configuration.ring_segments, self._vectors, vectors, strict=True):
            reduce_into(add_into(total, vector), segment.modulus_bits)

    def add_masks(self, key: Secret) -> None:
        """Add a client's ring segments, as server 0 expands them."""
        first_segment = 0
        for segment, total in zip(self.configuration.ring_segments, self._vectors, strict=True):
            accumulate(total, segment.ring, add=[key], subtract=[], first_segment=first_segment, threads=self._threads)
            first_segment += segment_count(segment.ring, segment.length)

    def sums(self) -> tuple[Lanes | RingVector, ...]:
        """Return a copy of the sums, segment by segment."""
        vectors = iter(self._vectors)
        return tuple(
            self._histograms[number].rows().reshape(-1) if isinstance(segment, IndexSegment) else next(vectors).copy()
            for number, segment in enumerate(self.configuration.layout.segments)
        )

    def wipe(self) -> None:
        for vector in self._vectors:
            vector[:] = 0
        for histogram in self._histograms.values():
            histogram.wipe()

    def __repr__(self) -> str:
        return f"<RoundTotals of {self.server}>"


@dataclass(slots=True, eq=False)
class OpenedUpload:
    """An upload that is neither accepted nor rejected yet."""

    entry: Entry
    exchange: PointFunctionExchange
    mask_key: Secret | None = field(repr=False)
    """Seed that server 0 expands into its share of the ring segments."""
    vectors: list[RingVector] = field(repr=False)
    """Server 1's share of the ring segments."""
    asked: bytes | None = field(default=None, repr=False)
    """Digest of the other server's first message about it."""

    def add_to(self, totals: RoundTotals) -> None:
        """Add this server's share to the sums; nothing else adds to them."""
        self.exchange.add_to(totals)
        if self.mask_key is None:
            totals.add_vectors(self.vectors)
        else:
            totals.add_masks(self.mask_key)

    def wipe(self) -> None:
        self.exchange.wipe()
        if self.mask_key is not None:
            self.mask_key.wipe()


class HalfOpener(Confined):
    """Decoder and opener of one server's halves in one round; stores no halves."""

    def __init__(  # noqa: PLR0913 -- the round, and its keys
        self,
        configuration: IndexingConfiguration,
        server: ServerId,
        round_number: int,
        root: Secret,
        challenges: RoundChallenges,
        *,
        threads: int = 1,
    ) -> None:
        """Derive the key pair of the round; the caller keeps the root and wipes it."""
        self._configuration = configuration
        self._server = server
        self._round_number = round_number
        self._pair = sealing_pair(configuration.suite, root, configuration.context)
        self.sealing_key = self._pair.public_key.encoded
        self._challenges = challenges
        self._threads = threads

    def read(self, message: bytes, sender: ClientId | None = None) -> Upload:
        """Decode a half, and verify its sender and its purpose; nothing is opened yet.

        Args:
            sender: the sender that the transport authenticated; None if the other server relays it.
        Security: until the signature is verified, anyone may have written the header, so errors name no culprit.
        """
        configuration, is_one = self._configuration, self._server.index == 1
        body = index_body_bytes(configuration, self._server) + (ring_bytes(configuration) if is_one else 0)
        form = HalfForm(configuration, self._server, body, public_bytes(configuration) if is_one else 0)
        upload = Upload.decode(message, form)
        header = upload.header
        if sender not in (None, header.client):
            raise PeerMisbehaved(
                f"{sender} sent an upload in the name of {header.client}",
                reason=Reason.NOT_ELIGIBLE,
                culprits=UNDECIDED,
            )
        Authority(configuration.authority).verify(header.certificate, culprits=UNDECIDED)
        configuration.standing.require_valid(header.certificate)
        upload.verify(configuration)
        if header.round_number != self._round_number:
            raise PeerMisbehaved(
                f"an upload is for round {header.round_number}, but this is round {self._round_number}",
                reason=Reason.WRONG_SESSION,
                culprits=UNDECIDED,
            )
        return upload

    def open(self, upload: Upload) -> OpenedUpload:
        configuration, server, header = self._configuration, self._server, upload.header
        digest = header.digest(configuration)
        entry = Entry(header.client, upload.upload_id(configuration))
        sealed, info = upload.sealed_seeds[server.index], sealing_info(server, digest)
        with self._pair.open("upload seed", sealed, UPLOAD_SEED_BYTES, info, culprits=UNDECIDED) as seed:
            body = open_body(seed, server, digest, upload.body)
            try:
                mask_key = None if server.index else ring_mask_key(seed, configuration.suite, digest)
                index_bytes = index_body_bytes(configuration, server)
                exchange = self._exchange(upload, entry, memoryview(body)[:index_bytes])
                with blaming(*signed_by(header.client)):
                    vectors = unpack_rings(configuration, memoryview(body)[index_bytes:]) if server.index else []
            finally:
                overwrite(body)
        return OpenedUpload(entry, exchange, mask_key, vectors)

    def _exchange(self, upload: Upload, entry: Entry, body: memoryview) -> PointFunctionExchange:  # noqa: ARG002 -- see the model
        """Return this server's side of the upload; the model checker replaces it with an ideal check."""
        return PointFunctionExchange(
            self._configuration,
            self._server,
            upload.header,
            body,
            upload.public_part,
            self._challenges,
            threads=self._threads,
        )

    def wipe(self) -> None:
        self._challenges.wipe()
        self._pair.wipe()


# --- Lengths and pieces -----------------------------------------------------------------------------------------------


def key_binding(
    configuration: IndexingConfiguration, round_number: int, number: int, client: ClientId, nonce: bytes
) -> KeyBinding:
    """Return the context of the point functions of one segment."""
    return KeyBinding(context=segment_context(configuration, round_number, number), client=client, nonce=nonce)


def index_body_bytes(configuration: IndexingConfiguration, server: ServerId) -> int:
    """Return the length of the index segments' part of a server's body."""
    return sum(sum(body_sizes(configuration, segment, server)) for _, segment in configuration.index_segments)


def ring_bytes(configuration: IndexingConfiguration) -> int:
    """Return the number of ring bytes that server 1 receives."""
    return sum(segment.payload_bytes for segment in configuration.ring_segments)


def public_bytes(configuration: IndexingConfiguration) -> int:
    """Return the length of the public part that server 1 receives."""
    return sum(public_sizes(configuration))


def body_sizes(configuration: IndexingConfiguration, segment: IndexSegment, server: ServerId) -> tuple[int, int]:
    """Return the lengths of a segment's seed or share and of its proof."""
    shape = configuration.shape(segment)
    is_explicit = not shape.depth and server.index == 1
    sent = ExplicitShare.encoded_bytes(shape, segment.blocks) if is_explicit else SEED_BYTES
    if not configuration.is_checked:
        return sent, 0
    return sent, OneHotProof.encoded_bytes(configuration.check_shape(segment), server)


def public_sizes(configuration: IndexingConfiguration) -> list[int]:
    """Return the length of each segment's correction words; 0 at depth 0."""
    sizes = list[int]()
    for _, segment in configuration.index_segments:
        shape = configuration.shape(segment)
        sizes.append(CorrectionWords.encoded_bytes(shape, segment.blocks) if shape.depth else 0)
    return sizes


def unpack_rings(configuration: IndexingConfiguration, packed: bytes | bytearray | memoryview) -> list[RingVector]:
    """Unpack server 1's ring share."""
    segments = configuration.ring_segments
    pieces = cut(packed, [segment.payload_bytes for segment in segments])
    return [segment.ring.unpack(piece, segment.length) for segment, piece in zip(segments, pieces, strict=True)]


def cut(blob: bytes | bytearray | memoryview, sizes: Iterable[int]) -> Iterator[memoryview]:
    """Split bytes into pieces of these sizes, without copies.

    Raises:
        MalformedMessage: the number of bytes is wrong.
    """
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    if len(blob) != edges[-1]:
        raise MalformedMessage(
            f"expected {edges[-1]} bytes; got {len(blob)}",
            reason=Reason.TRUNCATED if len(blob) < edges[-1] else Reason.TRAILING_BYTES,
        )
    view = memoryview(blob)
    return (view[first:stop] for first, stop in pairwise(edges))


def open_body(seed: Secret, server: ServerId, header_digest: bytes, sealed: bytes | memoryview) -> bytearray:
    """Decrypt a body that ``seal_body`` made; the caller overwrites it.

    Implements: [SP 800-38D] §7.2.
    Raises:
        AuthenticationFailed: it was altered, or belongs to another upload or server.
    """
    opened = bytearray(len(sealed) - TAG_BYTES)
    try:
        with body_key(seed, server, header_digest) as key:
            AESGCM(key.expose()).decrypt_into(BODY_NONCE, sealed, header_digest, opened)
    except InvalidTag:
        overwrite(opened)
        raise AuthenticationFailed(culprits=UNDECIDED) from None
    return opened
