"""A client of the one-hot check in plain integers, which can claim any matrix, and two servers to judge it.

Field elements are lists of coefficients. What a client must take over to be listened to (keys, parts, challenges) comes
from the package; the mathematics of its polynomial is written anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.secret import Secret
from secagg.errors import PeerMisbehaved
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.protocols.two_servers.point_functions.lanes import Elements, ExtensionField, LaneStream
from secagg.protocols.two_servers.point_functions.one_hot_check import (
    OneHotCommitment,
    OneHotOpening,
    OneHotVerifier,
    RoundChallenges,
)
from secagg.protocols.two_servers.point_functions.one_hot_proof import (
    Challenges,
    CheckShape,
    OneHotProof,
    UploadContext,
)

SERVERS = (ServerId(0), ServerId(1))
PAIR_KEY = bytes(range(32))
ATTEMPT = AttemptContext(hashlib.sha256(b"attempt").digest())
Element = list[int]
Matrix = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlainField:
    """F_q[x] / (x^s - c)."""

    q: int
    s: int
    c: int

    @classmethod
    def of(cls, shape: CheckShape) -> PlainField:
        return cls(shape.modulus, shape.field.degree, shape.field.constant)

    def add(self, left: Element, right: Element) -> Element:
        return [(a + b) % self.q for a, b in zip(left, right, strict=True)]

    def times(self, left: Element, factor: int) -> Element:
        return [a * factor % self.q for a in left]

    def multiply(self, left: Element, right: Element) -> Element:
        product = [0] * self.s
        for i, a in enumerate(left):
            for j, b in enumerate(right):
                power, factor = (i + j, 1) if i + j < self.s else (i + j - self.s, self.c)
                product[power] = (product[power] + factor * a * b) % self.q
        return product

    def sum(self, elements: Sequence[Element]) -> Element:
        return [sum(column) % self.q for column in zip(*elements, strict=True)] if elements else [0] * self.s

    def value_at(self, values: Sequence[Element], point: int) -> Element:
        """Return the value at a point of F_q of the polynomial with these values at 0, 1, 2, ..."""
        weighted = list[Element]()
        for j, value in enumerate(values):
            weight = 1
            for m in range(len(values)):
                if m != j:
                    weight = weight * (point - m) * pow(j - m, -1, self.q) % self.q
            weighted.append(self.times(value, weight))
        return self.sum(weighted)


def inverse(field: ExtensionField, element: Elements) -> Elements:
    """Return an element's inverse, its power |F| - 2."""
    result = field.scalar(1)
    for bit in f"{field.base.modulus**field.degree - 2:b}":
        result = field.multiply(result, result)
        result = field.multiply(result, element) if bit == "1" else result
    return result


class MatrixShare:
    """A share whose lanes are all at hand."""

    def __init__(self, lanes: npt.NDArray[Any]) -> None:
        self.matrix = lanes
        self.digest = hashlib.sha256(lanes.tobytes()).digest()

    def lanes(self, first: int, count: int) -> npt.NDArray[Any]:
        return self.matrix[first : first + count]


@dataclass(frozen=True)
class Upload:
    """What a client sends: to each server its share and its proof."""

    context: UploadContext
    shares: tuple[MatrixShare, MatrixShare]
    proofs: tuple[OneHotProof, OneHotProof]


def a_context(shape: CheckShape, **changes: Any) -> UploadContext:
    context = UploadContext(
        attempt=ATTEMPT,
        round_number=3,
        client=ClientId(7),
        layout_digest=hashlib.sha256(b"layout").digest(),
        segment=0,
        shape=shape,
        correction_digest=hashlib.sha256(b"").digest(),
        nonce=bytes(16),
    )
    return replace(context, **changes)


def unit_matrix(shape: CheckShape, seed: bytes = b"") -> Matrix:
    """Return an honest client's matrix, with assignments that follow from the seed."""
    digest = hashlib.shake_256(b"assignments" + seed).digest(2 * shape.blocks)
    matrix = np.zeros((shape.blocks, shape.codewords), dtype=np.int64)
    matrix[np.arange(shape.blocks), np.frombuffer(digest, dtype="<u2") % shape.codewords] = 1
    return matrix


def shares_of(shape: CheckShape, matrix: Matrix, seed: bytes = b"") -> tuple[MatrixShare, MatrixShare]:
    with Secret("share key", hashlib.sha256(b"share" + seed).digest()) as key:
        lanes = LaneStream(shape.base, key).lanes(0, matrix.size)
    zero = lanes.reshape(matrix.shape)
    one = ((matrix - zero.astype(np.int64)) % shape.modulus).astype(shape.base.word)
    return MatrixShare(zero), MatrixShare(one)


def seeds_of(seed: bytes) -> tuple[Secret, Secret]:
    zero, one = (Secret("one-hot seed", hashlib.sha256(name + seed).digest()) for name in (b"seed 0", b"seed 1"))
    return zero, one


def upload(context: UploadContext, matrix: Matrix, seed: bytes = b"", *, padding: int = 0) -> Upload:
    """Claim any matrix and follow the protocol otherwise; ``padding`` is what the last row is filled with."""
    shape = context.shape
    shares, seeds = shares_of(shape, matrix, seed), seeds_of(seed)
    parts = [context.part(server, shares[server.index].digest, seeds[server.index]) for server in SERVERS]
    joint = context.joint(*parts)
    challenges = Challenges.of(shape, joint)
    masks = (context.masks(SERVERS[0], seeds[0], joint) + context.masks(SERVERS[1], seeds[1], joint)) % shape.modulus
    values = np.array(row_square_sum(shape, challenges, masks.tolist(), matrix, padding), dtype=np.int64)
    for server in SERVERS:
        values = (values - context.polynomial_mask(server, seeds[server.index], joint)) % shape.modulus
    proofs = (
        OneHotProof(server=SERVERS[0], seed=seeds[0], other_part=parts[1], polynomial=shape.field.zeros(0)),
        OneHotProof(server=SERVERS[1], seed=seeds[1], other_part=parts[0], polynomial=values),
    )
    return Upload(context, shares, proofs)


def row_square_sum(
    shape: CheckShape, challenges: Challenges, masks: list[Element], matrix: Matrix, padding: int = 0
) -> list[Element]:
    """Return sum_i rho_i f_i(X)^2 at 0, ..., 2G by the definition."""
    field = PlainField.of(shape)
    filled = np.zeros((shape.rows * shape.columns, shape.codewords), dtype=np.int64)
    filled[shape.blocks :, padding] = 1
    filled[: shape.blocks] = matrix
    r: list[Element] = challenges.codeword.tolist()
    rho: list[Element] = challenges.row.tolist()
    total = [[0] * field.s for _ in range(2 * shape.columns + 1)]
    for row in range(shape.rows):
        known = [masks[row]]
        blocks: list[list[int]] = filled[row * shape.columns : (row + 1) * shape.columns].tolist()
        known += [field.sum([field.times(r[j], entry) for j, entry in enumerate(block) if entry]) for block in blocks]
        for point in range(2 * shape.columns + 1):
            value = known[point] if point < len(known) else field.value_at(known, point)
            square = field.multiply(value, value)
            total[point] = field.add(total[point], field.multiply(rho[row], square))
    return total


def verifiers(
    judged: Upload, contexts: tuple[UploadContext, UploadContext] | None = None
) -> tuple[OneHotVerifier, OneHotVerifier]:
    """Return both servers' verifiers, each with a fresh memory; contexts are what each server takes it for."""
    believed = contexts or (judged.context, judged.context)
    zero, one = (
        OneHotVerifier(context, share, proof, round_challenges(context))
        for context, share, proof in zip(believed, judged.shares, judged.proofs, strict=True)
    )
    return zero, one


def round_challenges(context: UploadContext, pair_key: bytes = PAIR_KEY) -> RoundChallenges:
    with Secret("pair key", pair_key) as key:
        return RoundChallenges(key, context.attempt, context.round_number)


def opening_of(verifier: OneHotVerifier) -> OneHotOpening:
    """Return what a verifier opens, to nobody in particular; it is of no use afterwards."""
    context, peer = verifier.context, SERVERS[1 - verifier.server.index]
    return OneHotOpening.decode(
        verifier.open(OneHotCommitment.to(peer, context.statement, b"").encode()), context.shape
    )


def judge(zero: OneHotVerifier, one: OneHotVerifier) -> None:
    """Let two honest servers exchange their messages."""
    commitments = zero.commit(), one.commit()
    openings = zero.open(commitments[1]), one.open(commitments[0])
    zero.decide(openings[1])
    one.decide(openings[0])


def is_accepted(judged: Upload, contexts: tuple[UploadContext, UploadContext] | None = None) -> bool:
    """Whether both servers accept; they never disagree."""
    zero, one = verifiers(judged, contexts)
    opinions = list[bool]()
    commitments = zero.commit(), one.commit()
    openings = zero.open(commitments[1]), one.open(commitments[0])
    for server, opening in ((zero, openings[1]), (one, openings[0])):
        try:
            server.decide(opening)
        except PeerMisbehaved:
            opinions.append(False)
        else:
            opinions.append(True)
    assert opinions[0] is opinions[1], "the servers disagree"
    return opinions[0]
