"""The servers' side of the one-hot check: each server computes from its own share, opens, and decides.

From its shares y of the blocks, m of the masks and p of the polynomial a server computes shares of

    f_i(tau) = L_0(tau) m_i + sum_g L_g(tau) <r, y_ig>          for each row i
    p(tau)
    v = sum_g sigma_g (p(g) - sum_j r_j^2 u_gj) + sum_g eta_g (sum_j u_gj - sum_i rho_i),   u_gj = sum_i rho_i y_igj

An upload is accepted if v = 0 and p(tau) = sum_i rho_i f_i(tau)^2. With two honest servers a client whose vectors are
not all unit vectors passes with probability at most 4 Q / |F| + 2 G / (|F| - q) if it computes Q hashes. A client that
colludes with a server always passes; such a server could add any error to the result anyway.

The values opened for an honest client are uniform subject to the two equations, which hold for every input, so they
reveal nothing about the input. This holds only *once*: a second query point would open f_i at a second point under one
mask, and so reveal the row. ``RoundChallenges`` therefore derives the point from the upload, and refuses a second
upload.

Both large sums are matrix products over the share Y, M rows of G k lanes: the openings of the rows, Y (r (x) L(tau)),
and the sums over the rows, rho^T Y. Each chunk of rows is converted to floating point once, and used for both products
while it is in the cache. Threads divide the rows. Every product is exact, so chunks and threads do not affect the
result.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, ClassVar, Final, Protocol

import numpy as np

from secagg.blame import Evidence, answered_twice, between_servers, culprits, signed_by
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret
from secagg.declared import SERVER, Message, MessageIn, borrowed, fixed, listed
from secagg.errors import InternalError, Misuse, PeerError, PeerMisbehaved, Reason, blaming
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.parameters import require_integer
from secagg.wire import HEADER_BYTES, MessageKind, owned_bytes

from .lanes import (
    ATTEMPTS,
    FLOAT32_LIMIT,
    Elements,
    Floats,
    Integers,
    Lanes,
    LaneStream,
    centre,
    exact_product,
    reduce,
    reduce_signed,
)
from .one_hot_proof import (
    DIGEST_BYTES,
    SEED_BYTES,
    Challenges,
    CheckShape,
    OneHotProof,
    UploadContext,
    derived_stream,
    require_seed,
)
from .shape import RUN_BLOCKS

_WORTHWHILE_TERMS: Final = 256
"""Below this number of terms, many short products in single precision are slower than double precision."""


class OneHotShare(Protocol):
    """One server's share of an upload: a matrix of lanes, blocks by codewords."""

    @property
    def digest(self) -> bytes:
        """Digest of all inputs of the share: equal digests mean equal shares."""
        ...

    def lanes(self, first: int, count: int) -> Lanes:
        """Return the lanes of blocks [first, first + count) as an array of count rows; the caller only reads it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHotCommitment(Message):
    """A server's commitment, sent before it sees any of the other server's values."""

    kind: ClassVar = MessageKind.ONE_HOT_COMMITMENT
    server: Annotated[ServerId, SERVER]
    statement: Annotated[bytes, fixed(DIGEST_BYTES)]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    @classmethod
    def to(cls, server: ServerId, statement: bytes, opening: bytes) -> OneHotCommitment:
        """Commit to an opening, which needs no nonce to hide it: its random masks are unknown to the other server."""
        statement_and_server = (statement, bytes([server.index]))
        digest = hashlib.sha256(bind(Label.ONE_HOT_COMMITMENT, *statement_and_server, opening)).digest()
        return cls(server=server, statement=statement, digest=digest)

    @staticmethod
    def encoded_bytes() -> int:
        return HEADER_BYTES + 1 + 2 * DIGEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneHotOpening:
    """One server's shares of all values that are opened for an upload."""

    server: ServerId
    statement: bytes
    joint: bytes
    rows: Elements = field(repr=False)
    """Shares of f_i(tau), one for each row."""
    polynomial: Elements = field(repr=False)
    """The share of p(tau)."""
    linear: Elements = field(repr=False)
    """The share of v, which is zero for an honest client."""

    @staticmethod
    def encoded_bytes(shape: CheckShape) -> int:
        return HEADER_BYTES + 1 + 2 * DIGEST_BYTES + _opened_bytes(shape)

    def encode(self, shape: CheckShape) -> bytes:
        packed = tuple(shape.field.pack(part) for part in (self.rows, self.polynomial, self.linear))
        return _Opening(self.server, self.statement, self.joint, packed).encode()

    @classmethod
    def decode(cls, message: bytes, shape: CheckShape) -> OneHotOpening:
        read = _Opening.decode(message, shape)
        counts = shape.rows, 1, 1
        rows, polynomial, linear = (
            shape.field.unpack(memoryview(part), count) for part, count in zip(read.packed, counts, strict=True)
        )
        return cls(
            server=read.server,
            statement=read.statement,
            joint=read.joint,
            rows=rows,
            polynomial=polynomial[0],
            linear=linear[0],
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Opening(MessageIn[CheckShape]):
    kind: ClassVar = MessageKind.ONE_HOT_OPENING
    server: Annotated[ServerId, SERVER]
    statement: Annotated[bytes, fixed(DIGEST_BYTES)]
    joint: Annotated[bytes, fixed(DIGEST_BYTES)]
    packed: Annotated[
        tuple[bytes | memoryview, ...],
        listed(
            borrowed(lambda size: size, "elements"),
            lambda at: map(at.place.field.packed_bytes, (at.place.rows, 1, 1)),
            "rows, polynomial and linear part",
        ),
    ]


_CHUNK_LANES = 1 << 17
"""Number of lanes that are converted to floating point at a time; with their products they fit a second-level cache."""
_WINDOW_LANES = 1 << 22
"""With more lanes than this in a run, windows are parts of runs, so that they take at most 16 MiB."""


def sketch(  # noqa: PLR0913 -- each is named where it is passed
    shape: CheckShape,
    server: ServerId,
    share: OneHotShare,
    challenges: Challenges,
    *,
    masks: Elements,
    polynomial: Elements,
    point: Elements,
    threads: int = 1,
) -> tuple[Elements, Elements, Elements]:
    """Return one server's shares of f_i(tau) for every row, of p(tau) and of v.

    Args:
        masks: this server's shares of f_i(0).
        polynomial: this server's share of the values of p.
        point: the query point tau.
    """
    base = shape.field
    weights = shape.row_points.weights_at(point)
    polynomial_weights = shape.polynomial_points.weights_at(point)
    sums = _Sums(shape, server, share, challenges, weights)
    per_row, over_rows = sums.compute(threads)
    opened = base.add(per_row, base.scale(masks, weights[0]))
    by_column = over_rows.reshape(shape.columns, shape.codewords, base.degree)
    squares = base.multiply(challenges.codeword, challenges.codeword)
    not_boolean = base.subtract(polynomial[1 : shape.columns + 1], base.inner_product(by_column, squares))
    totals = reduce(by_column.sum(axis=1), shape.base.bits, shape.codewords * shape.modulus)
    if server.index == 0:
        row_sum = reduce(challenges.row.sum(axis=0), shape.base.bits, shape.rows * shape.modulus)
        totals = base.subtract(totals, row_sum)
    linear = base.add(base.inner_product(challenges.square, not_boolean), base.inner_product(challenges.total, totals))
    return opened, base.inner_product(polynomial_weights, polynomial), linear


class _Sums:
    """The two matrix products over a share."""

    def __init__(
        self, shape: CheckShape, server: ServerId, share: OneHotShare, challenges: Challenges, weights: Elements
    ) -> None:
        self.shape, self.server, self.share = shape, server, share
        # Lanes in [0, q) meet centred coefficients, so products are at most (q - 1)^2 / 2 in magnitude.
        self.greatest = (shape.modulus - 1) ** 2 // 2
        self.float = float_type(self.greatest)
        field = shape.field
        by_lane = field.multiply(weights[1:, np.newaxis], challenges.codeword).reshape(-1, field.degree)
        self.by_lane: Floats = centre(by_lane, shape.base.bits).astype(self.float)
        self.by_row: Floats = centre(challenges.row, shape.base.bits).astype(self.float)

    def compute(self, threads: int) -> tuple[Elements, Elements]:
        """Return sum_g L_g(tau) <r, y_ig> for every row, and sum_i rho_i y_igj for every column and codeword."""
        require_integer("threads", threads, 1)
        shape, bits = self.shape, self.shape.base.bits
        per_row = np.empty((shape.rows, shape.field.degree), dtype=np.int64)
        edges = [shape.rows * index // threads for index in range(threads + 1)]
        parts = [slice(low, high) for low, high in pairwise(edges) if low < high]
        if len(parts) == 1:
            over_rows = self._over(parts[0], per_row)
        else:
            with ThreadPoolExecutor(len(parts)) as pool:
                jobs = [pool.submit(self._over, part, per_row) for part in parts]
                over_rows = sum((job.result() for job in jobs[1:]), start=jobs[0].result())
        lanes = shape.columns * shape.codewords
        return (
            reduce_signed(per_row, bits, lanes * self.greatest),
            reduce_signed(over_rows, bits, shape.rows * self.greatest),
        )

    def _over(self, part: slice, per_row: Integers) -> Integers:
        """Write the values of some rows, and return their sums."""
        width = self.shape.columns * self.shape.codewords
        step = max(1, _CHUNK_LANES // width)
        buffer = np.empty((min(step, part.stop - part.start), width), dtype=self.float)
        windows = _Windows(self.shape, self.share)
        total = np.zeros((width, self.shape.field.degree), dtype=np.int64)
        for first in range(part.start, part.stop, step):
            last = min(first + step, part.stop)
            rows = buffer[: last - first]
            self._fill(rows, first, last, windows)
            per_row[first:last] = exact_product(rows, self.by_lane, self.greatest)
            total += exact_product(rows.T, self.by_row[first:last], self.greatest)
        buffer.fill(0)
        return total

    def _fill(self, rows: Floats, first: int, last: int, windows: _Windows) -> None:
        """Write the lanes of some rows, and the servers' public constants in the padding of the last row."""
        by_block = rows.reshape(-1, self.shape.codewords)
        start, stop = first * self.shape.columns, min(last * self.shape.columns, self.shape.blocks)
        windows.copy_into(by_block[: stop - start], start)
        by_block[stop - start :] = 0
        by_block[stop - start :, 0] = 1 - self.server.index


class _Windows:
    """The share in windows that begin at multiples of a power of two; the last one is kept."""

    def __init__(self, shape: CheckShape, share: OneHotShare) -> None:
        self.shape, self.share = shape, share
        self.size = min(RUN_BLOCKS, 1 << (_WINDOW_LANES // shape.codewords).bit_length() - 1)
        self._first, self._lanes = -1, shape.base.zeros(0)

    def copy_into(self, target: Floats, start: int) -> None:
        position, stop = start, start + len(target)
        while position < stop:
            first = position // self.size * self.size
            end = min(stop, first + self.size)
            target[position - start : end - start] = self._window(first)[position - first : end - first]
            position = end

    def _window(self, first: int) -> Lanes:
        if first != self._first:
            count = min(self.size, self.shape.blocks - first)
            lanes = self.shape.base.require_lanes(self.share.lanes(first, count))
            if lanes.shape != (count, self.shape.codewords):
                raise Misuse(f"a share gives {count} blocks of {self.shape.codewords} lanes; got {lanes.shape}")
            self._first, self._lanes = first, lanes
        return self._lanes


REJECTED: Final = Reason.ONE_HOT_REFUTED
"""The openings of an upload contradict each other."""


class RoundChallenges(Confined):
    """Query points of one round, which both servers but no client can compute.

    A client has one upload for each segment; a second one is refused, whatever its nonce.
    Security: its memory is not stored; a restarted server opens nothing that was uploaded before.
    """

    def __init__(self, pair_key: Secret, attempt: AttemptContext, round_number: int) -> None:
        """Derive the key of one round; the caller keeps the pair key and wipes it."""
        require_seed(pair_key)
        self.attempt = attempt
        self.round_number = round_number
        parts = (attempt.digest, round_number.to_bytes(8, "big"))
        self._key = expand("one-hot round key", SEED_BYTES, pair_key, Label.ONE_HOT_ROUND_KEY, *parts)
        self._answered: dict[tuple[ClientId, bytes, int], bytes] = {}

    def point(self, context: UploadContext, joint: bytes, polynomial: bytes) -> Elements:
        """Return the query point of an upload, once.

        Raises:
            Misuse: the upload belongs to another round, or was queried before.
            PeerMisbehaved: the client sent a different upload before.
        """
        if (context.attempt, context.round_number) != (self.attempt, self.round_number):
            raise Misuse("an upload of another round is never queried with the key of this one")
        upload = hashlib.sha256(bind(Label.ONE_HOT_UPLOAD, context.statement, joint, polynomial)).digest()
        place = (context.client, context.layout_digest, context.segment)
        # One atomic step, so that of two threads with two uploads of one client only one passes.
        known = self._answered.setdefault(place, upload)
        if known is not upload:
            if known == upload:
                raise Misuse("an upload is queried only once; use its verifier", reason=Reason.ALREADY_SPENT)
            raise PeerMisbehaved(
                f"{context.client} uploaded twice in one round and segment",
                reason=Reason.ALREADY_ANSWERED,
                culprits=answered_twice(context.client, is_signed=True),
            )
        return query_point(context.shape, self._key, context.statement, joint)

    def wipe(self) -> None:
        """Overwrite the round's key."""
        self._key.wipe()


class OneHotVerifier(Confined):
    """One server's check of one upload: commit, then open, then decide; each happens once.

    A repeated call with the same bytes gives the same bytes. A different commitment after the opening was sent, or a
    different opening after the decision, is refused, so that nothing is ever opened in two ways.
    """

    def __init__(
        self,
        context: UploadContext,
        share: OneHotShare,
        proof: OneHotProof,
        challenges: RoundChallenges,
        *,
        threads: int = 1,
    ) -> None:
        """Compute this server's opening; the proof names the server.

        Raises:
            PeerMisbehaved: the client uploaded something else before.
            MalformedMessage: a seed of the client's gives no lanes; ``culprits`` names the client.
        """
        shape, self.context = context.shape, context
        self.server, self.peer = proof.server, ServerId(1 - proof.server.index)
        own_part = context.part(self.server, share.digest, proof.seed)
        parts = (own_part, proof.other_part) if self.server.index == 0 else (proof.other_part, own_part)
        self._joint = context.joint(*parts)
        point = challenges.point(context, self._joint, proof.packed_polynomial(shape))
        with blaming(*signed_by(context.client)):
            masks = context.masks(self.server, proof.seed, self._joint)
            polynomial = context.polynomial_mask(self.server, proof.seed, self._joint)
        if self.server.index == 1:
            polynomial = shape.field.add(polynomial, proof.polynomial)
        self._challenges = Challenges.of(shape, self._joint)
        rows, opened, linear = sketch(
            shape,
            self.server,
            share,
            self._challenges,
            masks=masks,
            polynomial=polynomial,
            point=point,
            threads=threads,
        )
        self._own = OneHotOpening(
            server=self.server,
            statement=context.statement,
            joint=self._joint,
            rows=rows,
            polynomial=opened,
            linear=linear,
        )
        self._opening = self._own.encode(shape)
        self._peer_commitment: OneHotCommitment | None = None
        self._decided: tuple[bytes, PeerError | None] | None = None

    def commit(self) -> bytes:
        return OneHotCommitment.to(self.server, self.context.statement, self._opening).encode()

    def open(self, commitment: bytes) -> bytes:
        """Return this server's opening, given the other server's commitment; another commitment is refused."""
        with blaming(*between_servers()):
            received = OneHotCommitment.decode(commitment)
        self._require_from_peer(received)
        if self._peer_commitment not in (None, received):
            raise Misuse("a verifier opens against only one commitment", reason=Reason.ALREADY_SPENT)
        self._peer_commitment = received
        return self._opening

    def decide(self, opening: bytes) -> None:
        """Accept the upload if both openings show that its shares add up to unit vectors.

        Raises:
            PeerMisbehaved: the opening differs from the commitment (the other server's fault), or the openings
                contradict each other (the fault of the client or of the other server).
        """
        opening = owned_bytes(opening)
        if self._peer_commitment is None:
            raise Misuse("a verifier needs the other server's commitment before it decides")
        if self._decided is not None and self._decided[0] != opening:
            raise Misuse("a verifier decides only once", reason=Reason.ALREADY_SPENT)
        if self._decided is None:
            self._decided = (opening, self._fault_in(opening, self._peer_commitment))
        if (fault := self._decided[1]) is not None:
            # A copy, so that stored values reference no frame of a caller.
            raise copy(fault)

    def _fault_in(self, opening: bytes, commitment: OneHotCommitment) -> PeerError | None:
        try:
            self._check(opening, commitment)
        except PeerError as fault:
            return fault.with_traceback(None)
        return None

    def _check(self, opening: bytes, commitment: OneHotCommitment) -> None:
        if OneHotCommitment.to(self.peer, self.context.statement, opening) != commitment:
            raise _wrong("an opening differs from its commitment", Reason.COMMITMENT_MISMATCH)
        with blaming(*between_servers()):
            received = OneHotOpening.decode(opening, self.context.shape)
        self._require_from_peer(received)
        # Each server recomputed its own part, so servers with different parts were given different uploads.
        if received.joint != self._joint or not self._is_one_hot(received):
            raise PeerMisbehaved(
                "the openings of an upload contradict each other",
                reason=REJECTED,
                culprits=culprits(Evidence.REFUSED_HALF, sender=self.context.client),
            )

    def _is_one_hot(self, peer: OneHotOpening) -> bool:
        """Decide from both servers' openings.

        Claim DP-3: other rows pass for at most 4 / |F| + 2 G / (|F| - q) of the challenges and query points.
        """
        field = self.context.shape.field
        rows = field.add(self._own.rows, peer.rows)
        squares = field.inner_product(self._challenges.row, field.multiply(rows, rows))
        polynomial = field.add(self._own.polynomial, peer.polynomial)
        linear = field.add(self._own.linear, peer.linear)
        return not linear.any() and not field.subtract(polynomial, squares).any()

    def _require_from_peer(self, message: OneHotCommitment | OneHotOpening) -> None:
        if message.server != self.peer or message.statement != self.context.statement:
            raise _wrong("a message belongs to another server or upload", Reason.WRONG_SESSION)


def _wrong(message: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(message, reason=reason, culprits=between_servers())


def _opened_bytes(shape: CheckShape) -> int:
    return shape.field.packed_bytes(shape.rows) + 2 * shape.field.packed_bytes(1)


def query_point(shape: CheckShape, round_key: Secret, statement: bytes, joint: bytes) -> Elements:
    """Return tau, where the servers compare the polynomials; no client can know it.

    A point in F_q would be an evaluation point of some row, or give the mask weight zero, so it is drawn again.
    """
    with derived_stream("one-hot query key", round_key, Label.ONE_HOT_QUERY_POINT, statement, joint) as stream_key:
        stream = LaneStream(shape.base, stream_key)
        for position in range(ATTEMPTS):
            point: Elements = shape.field.sample(stream, position, 1)[0]
            if not shape.field.is_in_base_field(point):
                return point
    raise InternalError(f"{ATTEMPTS} random elements lay in the base field")


def float_type(greatest: int) -> type[np.float32 | np.float64]:
    """Return the narrowest float type in which adding products of at most ``greatest`` pays off."""
    return np.float32 if FLOAT32_LIMIT // greatest >= _WORTHWHILE_TERMS else np.float64
