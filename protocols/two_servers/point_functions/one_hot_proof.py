"""Statement that a client proves to the two servers, the values that it binds, and the challenges derived from it.

The servers' shares of an upload add up, in every block, to a vector that is 1 at one place and 0 elsewhere. The servers
later multiply it by a weight that is public and bound, as are the attempt, round, client, layout, shape, correction
words and nonce of the upload. A proof for any other of these proves nothing here.

The blocks form M rows of G columns, row by row. If B is not a multiple of G, the padding blocks of the last row are
public: the first unit vector, as server 0's share, and zero as server 1's.

    part_b = H(statement, b, digest of the share of server b; seed_b)      blinded by the seed
    joint  = H(statement, part_0, part_1)                                  fixes everything that a client chose
    shares of the masks f_i(0) and of the polynomial                       expanded from seed_b under joint
    r[k], rho[M], sigma[G], eta[G] in F                                    expanded from joint
    tau in F and not in F_q                                                expanded from joint under the round's key

The client gives a mask for each row and one polynomial. Row i has the polynomial f_i of degree G with f_i(0) a random
mask and f_i(g) = <r, y_ig>, which for a unit vector e_a is r_a. The client shares p(X) = sum_i rho_i f_i(X)^2, given by
its values at 0, ..., 2G. If every block's vector is a unit vector, or zero, the value at g is sum_i rho_i <r^2, y_ig>,
which is linear in the shares.

Not constant time: challenges are looked up by assignment, so the memory that is read depends on the assignments.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isqrt
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, abandoned_on_error, require_secret
from secagg.declared import SERVER, Field, MessageIn, fixed
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, Reason
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.parameters import require_integer
from secagg.wire import HEADER_BYTES, MessageKind

from .lanes import (
    STREAM_KEY_BYTES,
    Elements,
    EvaluationPoints,
    ExtensionField,
    LaneField,
    LaneStream,
    centre,
    exact_product,
    settle,
)

DIGEST_BYTES: Final = 32
NONCE_BYTES: Final = 16
SEED_BYTES: Final = 32
MAXIMUM_CODEWORDS: Final = 1 << 12
MAXIMUM_BLOCKS: Final = 1 << 26
"""Rows and sums over them stay within the bounds of exact products, also with one column."""
MAXIMUM_COLUMNS: Final = 512
POLYNOMIAL_BYTES: Final = 1600
"""Bytes that a planned shape spends on the polynomial; the messages around it take about 200 bytes more."""


@dataclass(frozen=True)
class CheckShape:
    """Field and arrangement of the blocks of one segment; make one with ``plan``."""

    modulus: int
    codewords: int
    blocks: int
    columns: int

    def __post_init__(self) -> None:
        base = LaneField(self.modulus)
        most_columns = min(MAXIMUM_COLUMNS, (base.modulus - 2) // 2, self.blocks)
        require_integer("codewords", self.codewords, 2, MAXIMUM_CODEWORDS)
        require_integer("blocks", self.blocks, 1, MAXIMUM_BLOCKS)
        require_integer("columns", self.columns, 1, most_columns)

    @classmethod
    def plan(cls, *, largest_count: int, codewords: int, blocks: int) -> CheckShape:
        """Choose the smallest field for a largest count, and columns that balance the client's bytes and the servers'.

        A client sends 2G + 1 elements and the servers exchange M = B / G for each client, so G is the square root of B
        unless that takes more than ``POLYNOMIAL_BYTES``.
        """
        base = LaneField.for_count(largest_count)
        require_integer("blocks", blocks, 1, MAXIMUM_BLOCKS)
        affordable = (POLYNOMIAL_BYTES * 8 // (ExtensionField.over(base).degree * base.bits) - 1) // 2
        return cls(base.modulus, codewords, blocks, min(affordable, (base.modulus - 2) // 2, isqrt(blocks - 1) + 1))

    @cached_property
    def field(self) -> ExtensionField:
        return ExtensionField.over(LaneField(self.modulus))

    @property
    def base(self) -> LaneField:
        return self.field.base

    @property
    def rows(self) -> int:
        return -(-self.blocks // self.columns)

    @property
    def proof_points(self) -> int:
        """Number of values of the client's polynomial, whose degree is 2G."""
        return 2 * self.columns + 1

    @property
    def row_points(self) -> EvaluationPoints:
        """Points of a row's polynomial: its mask (0) and its blocks (1 to G)."""
        return _points(self.field, self.columns + 1)

    @property
    def polynomial_points(self) -> EvaluationPoints:
        return _points(self.field, self.proof_points)

    def encode(self) -> tuple[bytes, ...]:
        """Return (q, k, B, G, M) as statements are bound to them."""
        return (
            self.modulus.to_bytes(4, "big"),
            self.codewords.to_bytes(4, "big"),
            self.blocks.to_bytes(8, "big"),
            self.columns.to_bytes(4, "big"),
            self.rows.to_bytes(8, "big"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadContext:
    """All public values to which one upload of one segment is bound."""

    attempt: AttemptContext
    round_number: int
    client: ClientId
    """The client in the certificate; never the name in the upload itself."""
    layout_digest: bytes
    segment: int
    """Number of the segment in the layout; two segments may have the same shape."""
    shape: CheckShape
    correction_digest: bytes
    """Digest of the correction words that both servers hold; of no bytes if there are none."""
    nonce: bytes

    def __post_init__(self) -> None:
        if (type(self.attempt), type(self.client), type(self.shape)) != (AttemptContext, ClientId, CheckShape):
            raise Misuse("an upload must be bound to an AttemptContext, a ClientId and a CheckShape")
        require_integer("round_number", self.round_number, 0, (1 << 64) - 1)
        require_integer("segment", self.segment, 0, (1 << 32) - 1)
        for name, data, size in (
            ("layout_digest", self.layout_digest, DIGEST_BYTES),
            ("correction_digest", self.correction_digest, DIGEST_BYTES),
            ("nonce", self.nonce, NONCE_BYTES),
        ):
            if type(data) is not bytes or len(data) != size:
                raise InvalidParameters(f"{name} must be {size} bytes")

    @property
    def statement(self) -> bytes:
        """Digest of all these values, which enters every key, part and challenge."""
        parts = (
            self.attempt.digest,
            self.round_number.to_bytes(8, "big"),
            self.client.encode(),
            self.layout_digest,
            self.segment.to_bytes(4, "big"),
            *self.shape.encode(),
            self.correction_digest,
            self.nonce,
        )
        return hashlib.sha256(bind(Label.ONE_HOT_STATEMENT, *parts)).digest()

    def part(self, server: ServerId, share_digest: bytes, seed: Secret) -> bytes:
        """Return a hiding commitment to one server's share and seed.

        At depth 0, the bare digest of server 1's share would let server 0 test guesses of the assignments; the seed,
        which comes last, prevents this.
        """
        require_seed(seed)
        if len(share_digest) != DIGEST_BYTES:
            raise InvalidParameters(f"the digest of a share must be {DIGEST_BYTES} bytes")
        digest = hashlib.sha256(bind(Label.ONE_HOT_PART, self.statement, bytes([server.index]), share_digest))
        digest.update(seed.expose())
        return digest.digest()

    def joint(self, part_0: bytes, part_1: bytes) -> bytes:
        return hashlib.sha256(bind(Label.ONE_HOT_JOINT, self.statement, part_0, part_1)).digest()

    def masks(self, server: ServerId, seed: Secret, joint: bytes) -> Elements:
        """Return one server's shares of the masks f_i(0), one for each row."""
        return self._expanded("one-hot mask key", Label.ONE_HOT_MASKS, server, seed, joint, self.shape.rows)

    def polynomial_mask(self, server: ServerId, seed: Secret, joint: bytes) -> Elements:
        """Return the contribution of one server's seed to its share of the client's polynomial."""
        count = self.shape.proof_points
        return self._expanded("one-hot polynomial key", Label.ONE_HOT_POLYNOMIAL, server, seed, joint, count)

    def _expanded(  # noqa: PLR0913, PLR0917 -- the parts of one derivation
        self, kind: str, label: Label, server: ServerId, seed: Secret, joint: bytes, count: int
    ) -> Elements:
        """Expand a seed under the joint value, and therefore under everything.

        A server that is tricked into computing anything else, for an invented client or with a part that the other
        server changed, masks it with other random values, and opens values that match no input. This is the only reason
        why server 1 has a mask for the polynomial in addition to its share.
        """
        with derived_stream(kind, seed, label, bytes([server.index]), joint) as stream_key:
            return self.shape.field.sample(LaneStream(self.shape.base, stream_key), 0, count)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Challenges:
    """Random coefficients of the check, derived from everything that the client chose."""

    codeword: Elements
    """r: one for each codeword."""
    row: Elements
    """rho: one for each row."""
    square: Elements
    """sigma: one for each column, for the test that entries are 0 or 1."""
    total: Elements
    """eta: one for each column, for the test that a block's entries add up to 1."""

    @classmethod
    def of(cls, shape: CheckShape, joint: bytes) -> Challenges:
        key = hashlib.sha256(bind(Label.ONE_HOT_CHALLENGE, joint)).digest()
        ends = [shape.codewords, shape.codewords + shape.rows, shape.codewords + shape.rows + shape.columns]
        with Secret("one-hot challenge key", key) as stream_key:
            made = shape.field.sample(LaneStream(shape.base, stream_key), 0, ends[2] + shape.columns)
        return cls(made[: ends[0]], made[ends[0] : ends[1]], made[ends[1] : ends[2]], made[ends[2] :])


def require_seed(seed: Secret) -> None:
    """Require a secret of 32 bytes."""
    require_secret(seed)
    if len(seed) != SEED_BYTES:
        raise InvalidParameters(f"a seed must be {SEED_BYTES} bytes; got {seed!r}")


def derived_stream(kind: str, source: Secret, label: Label, *parts: bytes) -> Secret:
    """Derive the key and IV of a stream from its whole context, so that no two streams are equal."""
    require_seed(source)
    return expand(kind, STREAM_KEY_BYTES, source, label, *parts)


@lru_cache(maxsize=32)
def _points(field: ExtensionField, count: int) -> EvaluationPoints:
    return EvaluationPoints(field, count)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneHotProof:
    """Proof that a client sends to one server with its share, sealed to that server.

    Security: ``encode`` returns the seed in the clear. A party with both servers' messages and shares knows the input.
    """

    server: ServerId
    seed: Secret
    """Seed of the server's shares of the masks and of the polynomial."""
    other_part: bytes
    """Commitment to the other server's share and seed."""
    polynomial: Elements = field(repr=False)
    """Summand of server 1's share: the polynomial less the expansions of both seeds. No values for server 0."""

    def __post_init__(self) -> None:
        require_seed(self.seed)
        if type(self.server) is not ServerId or type(self.other_part) is not bytes:
            raise Misuse("a proof needs a ServerId and the other server's part as bytes")
        if len(self.other_part) != DIGEST_BYTES:
            raise InvalidParameters(f"the other server's part must be {DIGEST_BYTES} bytes")

    def packed_polynomial(self, shape: CheckShape) -> bytes:
        due = (_polynomial_values(shape, self.server), shape.field.degree)
        if self.polynomial.shape != due:
            raise Misuse(f"a proof for {self.server} has {due} coefficients; got {self.polynomial.shape}")
        return shape.field.pack(self.polynomial)

    @staticmethod
    def encoded_bytes(shape: CheckShape, server: ServerId) -> int:
        packed = shape.field.packed_bytes(_polynomial_values(shape, server))
        return HEADER_BYTES + 1 + SEED_BYTES + DIGEST_BYTES + packed

    def encode(self, shape: CheckShape) -> bytes:
        return _Proof(self.server, bytes(self.seed.expose()), self.other_part, self.packed_polynomial(shape)).encode()

    @classmethod
    def decode(cls, message: bytes, shape: CheckShape) -> OneHotProof:
        read = _Proof.decode(message, shape)
        polynomial = shape.field.unpack(memoryview(read.packed), _polynomial_values(shape, read.server))
        seed = Secret("one-hot seed", read.seed)
        return cls(server=read.server, seed=seed, other_part=read.other_part, polynomial=polynomial)


def _polynomial_values(shape: CheckShape, server: ServerId) -> int:
    return shape.proof_points if server.index else 0


@dataclass(frozen=True, slots=True, eq=False)
class _Proof(MessageIn[CheckShape]):
    kind: ClassVar = MessageKind.ONE_HOT_PROOF
    server: Annotated[ServerId, SERVER]
    seed: Annotated[bytes, fixed(SEED_BYTES)] = field(repr=False)
    other_part: Annotated[bytes, fixed(DIGEST_BYTES)]
    packed: Annotated[
        bytes,
        Field(
            lambda writer, packed: writer.borrowed(packed),
            lambda reader, at: reader.fixed(
                at.place.field.packed_bytes(_polynomial_values(at.place, at.before["server"]))
            ),
            "the polynomial, for server 1",
        ),
    ] = field(repr=False)


# --- Proof ------------------------------------------------------------------------------------------------------------

_CHUNK_VALUES = 1 << 16
"""Lanes of row polynomials that are computed at a time, so that they stay in the second-level cache."""

Assignments = npt.NDArray[np.integer[Any]]


def prove(
    context: UploadContext, assignments: Assignments, share_digests: tuple[bytes, bytes], coins: Coins
) -> tuple[OneHotProof, OneHotProof]:
    """Prove that the shares with these digests add up to the assignments' unit vectors.

    Args:
        assignments: one index per block.
        share_digests: digests of server 0's and server 1's shares.
    Security: one proof for each client, round and segment. Seal each message to its server; both together reveal the
        input.
    """
    shape = context.shape
    placed = _placed(shape, assignments)
    zero, one = ServerId(0), ServerId(1)
    seeds = [Secret.random("one-hot seed", SEED_BYTES, coins) for _ in range(2)]
    with abandoned_on_error(*seeds):
        parts = [context.part(server, share_digests[server.index], seeds[server.index]) for server in (zero, one)]
        joint = context.joint(*parts)
        challenges = Challenges.of(shape, joint)
        masks = shape.field.add(context.masks(zero, seeds[0], joint), context.masks(one, seeds[1], joint))
        polynomial = row_square_sum(shape, challenges, masks, placed)
        for server in (zero, one):
            seeded = context.polynomial_mask(server, seeds[server.index], joint)
            polynomial = shape.field.subtract(polynomial, seeded)
        nothing = shape.field.zeros(0)
        return (
            OneHotProof(server=zero, seed=seeds[0], other_part=parts[1], polynomial=nothing),
            OneHotProof(server=one, seed=seeds[1], other_part=parts[0], polynomial=polynomial),
        )


def row_square_sum(shape: CheckShape, challenges: Challenges, masks: Elements, placed: Assignments) -> Elements:
    """Return the values at 0, ..., 2G of sum_i rho_i f_i(X)^2, for assignments in rows and columns."""
    field, q, bits = shape.field, shape.modulus, shape.base.bits
    codeword, row = (centre(part, bits).astype(np.float64) for part in (challenges.codeword, challenges.row))
    square = centre(field.multiply(challenges.codeword, challenges.codeword), bits).astype(np.float64)
    mask = centre(masks, bits).astype(np.float64)
    further = centre(shape.row_points.extrapolation(shape.columns), bits).astype(np.float64)
    # Outer products of lane vectors, entry (a, b) of x^(a + b): at the columns, and at 0 and beyond the columns.
    inside = np.zeros((shape.columns, field.degree, field.degree), dtype=np.int64)
    outside = np.zeros((shape.columns + 1, field.degree, field.degree), dtype=np.int64)
    rows_at_a_time = max(1, _CHUNK_VALUES // ((shape.columns + 1) * field.degree))
    for first in range(0, shape.rows, rows_at_a_time):
        part = slice(first, first + rows_at_a_time)
        # At a column f_i is r_a, so its square is looked up and rho_i joins in the sum over rows.
        inside += exact_product(row[part].T, square[placed[part].T], (q - 1) ** 2 // 4)
        known = np.concatenate([mask[part, np.newaxis], codeword[placed[part]]], axis=1)
        # |sums| <= (G + 1) q^2 / 4 <= 2^42, so they are exact and ``settle`` may take them.
        beyond = settle(np.matmul(further, known), q)
        values = np.concatenate([known[:, :1], beyond], axis=1)
        # |sums| <= s q^2 / 2 <= 2^38; both factors of the outer products are then at most q in magnitude.
        scaled = settle(np.matmul(values, centre(field.matrices(challenges.row[part]), bits).astype(np.float64)), q)
        outside += exact_product(scaled.transpose(1, 2, 0), values.transpose(1, 0, 2), q**2)
    at_columns, elsewhere = field.contract(inside), field.contract(outside)
    return np.concatenate([elsewhere[:1], at_columns, elsewhere[1:]])


def _placed(shape: CheckShape, assignments: Assignments) -> Assignments:
    """Return the assignments in rows and columns; the first unit vector pads the last row, as at the servers."""
    if type(assignments) is not np.ndarray or assignments.dtype.kind not in "iu" or assignments.ndim != 1:
        raise Misuse("assignments must be a vector of integers, one per block")
    if assignments.size != shape.blocks:
        raise Misuse(f"expected {shape.blocks} assignments; got {assignments.size}")
    if int(assignments.min()) < 0 or int(assignments.max()) >= shape.codewords:
        raise CapacityExceeded("an assignment is not below the number of codewords", reason=Reason.INPUT_OUT_OF_RANGE)
    placed = np.zeros(shape.rows * shape.columns, dtype=np.intp)
    placed[: shape.blocks] = assignments
    return placed.reshape(shape.rows, shape.columns)
