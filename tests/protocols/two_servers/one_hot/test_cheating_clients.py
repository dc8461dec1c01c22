"""Clients that claim something else than one unit vector for each block, or something that is not theirs to claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.errors import PeerMisbehaved
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.point_functions import one_hot_check
from secagg.protocols.two_servers.point_functions.one_hot_proof import Challenges, CheckShape

Matrix = npt.NDArray[np.int64]
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        CheckShape(127, 8, 20, 4),
        CheckShape(127, 5, 11, 3),
        CheckShape(127, 3, 7, 7),
        CheckShape(8191, 6, 13, 5),
        CheckShape(131071, 4, 10, 3),
    ],
    ids=lambda shape: f"q={shape.modulus},k={shape.codewords},B={shape.blocks},G={shape.columns}",
)
FILLED = [CheckShape(127, 5, 11, 3), CheckShape(8191, 6, 13, 5), CheckShape(131071, 4, 10, 3)]


# --- Matrices ---------------------------------------------------------------------------------------------------------


def in_one_block(change: Callable[[Matrix, int], Matrix]) -> Forgery:
    """Change one block, from its unit vector and the modulus."""

    def forge(matrix: Matrix, block: int, q: int) -> None:
        matrix[block] = change(matrix[block], q)

    return forge


def compensation_across_blocks(matrix: Matrix, block: int, _: int) -> None:
    matrix[block] = 0
    matrix[(block + 1) % len(matrix)] *= 2


def compensation_within_a_column(matrix: Matrix, block: int, _: int) -> None:
    at = int(matrix[block].argmax())
    matrix[block, (at + 1) % matrix.shape[1]] += 1
    matrix[(block + 1) % len(matrix), at] -= 1


def filled(value: int, step: int = 1) -> Forgery:
    """Fill every block, or each second one."""

    def forge(matrix: Matrix, _: int, __: int) -> None:
        matrix[::step] = value

    return forge


Forgery = Callable[[Matrix, int, int], None]
FORGERIES: dict[str, Forgery] = {
    "two hot": in_one_block(lambda unit, _: unit + np.roll(unit, 1)),
    "weight 2": in_one_block(lambda unit, _: 2 * unit),
    "empty row": in_one_block(lambda unit, _: 0 * unit),
    "minus 1": in_one_block(lambda unit, _: -unit),
    "2 and minus 1": in_one_block(lambda unit, _: 2 * unit - np.roll(unit, 1)),
    "all ones": in_one_block(lambda unit, _: 0 * unit + 1),
    "halves": in_one_block(lambda unit, q: (q + 1) // 2 * (unit + np.roll(unit, 1))),
    "compensation across blocks": compensation_across_blocks,
    "compensation within a column": compensation_within_a_column,
    "half of the blocks": filled(0, step=2),
    "nothing at all": filled(0),
    "everything": filled(1),
}


@SHAPES
@pytest.mark.parametrize("forgery", FORGERIES)
@pytest.mark.parametrize("block", [0, 4, -1], ids=["first block", "a block inside", "last block"])
def test_a_forged_matrix_is_rejected(plain: ModuleType, shape: CheckShape, forgery: str, block: int) -> None:
    matrix = plain.unit_matrix(shape)
    FORGERIES[forgery](matrix, block, shape.modulus)
    assert not plain.is_accepted(plain.upload(plain.a_context(shape), matrix))


@pytest.mark.parametrize("ones", [128, 129, 254, 255])
def test_many_ones_whose_sum_wraps_to_one_are_rejected(plain: ModuleType, ones: int) -> None:
    shape = CheckShape(127, 256, 6, 3)
    matrix = plain.unit_matrix(shape)
    matrix[2] = np.arange(256) < ones
    assert (ones % 127 == 1) == (ones in {128, 255})
    assert not plain.is_accepted(plain.upload(plain.a_context(shape), matrix))


@pytest.mark.parametrize("shape", FILLED, ids=lambda shape: shape.modulus)
def test_a_client_cannot_choose_the_blocks_that_fill_the_last_row(plain: ModuleType, shape: CheckShape) -> None:
    assert shape.rows * shape.columns > shape.blocks
    context, matrix = plain.a_context(shape), plain.unit_matrix(shape)
    assert plain.is_accepted(plain.upload(context, matrix))
    assert not plain.is_accepted(plain.upload(context, matrix, padding=1))


# --- Messages that do not belong together -----------------------------------------------------------------------------

TAMPERED = CheckShape(127, 5, 11, 3)


def changed_share(plain: ModuleType, upload: Any, server: int) -> Any:
    lanes = upload.shares[server].matrix.copy()
    lanes[3, 1] = (lanes[3, 1] + 1) % 127
    shares = list(upload.shares)
    shares[server] = plain.MatrixShare(lanes)
    return replace(upload, shares=tuple(shares))


def changed_proof(upload: Any, server: int, **change: Any) -> Any:
    proofs = list(upload.proofs)
    proofs[server] = replace(proofs[server], **change)
    return replace(upload, proofs=tuple(proofs))


@pytest.mark.parametrize("server", [0, 1])
def test_a_share_that_was_changed_is_rejected(plain: ModuleType, server: int) -> None:
    upload = plain.upload(plain.a_context(TAMPERED), plain.unit_matrix(TAMPERED))
    assert not plain.is_accepted(changed_share(plain, upload, server))


@pytest.mark.parametrize("position", range(7))
def test_a_value_of_the_polynomial_that_was_changed_is_rejected(plain: ModuleType, position: int) -> None:
    upload = plain.upload(plain.a_context(TAMPERED), plain.unit_matrix(TAMPERED))
    values = upload.proofs[1].polynomial.copy()
    values[position, 5] = (values[position, 5] + 1) % 127
    assert not plain.is_accepted(changed_proof(upload, 1, polynomial=values))


@pytest.mark.parametrize("server", [0, 1])
def test_shares_are_fixed_before_challenges_are_known(plain: ModuleType, server: int) -> None:
    """A client that could change a share afterwards would put an error where the challenges cancel it."""
    shape = CheckShape(127, 5, 11, 3)
    upload = plain.upload(plain.a_context(shape), plain.unit_matrix(shape))
    context, share, seed = upload.context, upload.shares[server], upload.proofs[server].seed
    changed = changed_share(plain, upload, server).shares[server]
    index = ServerId(server)
    assert context.part(index, share.digest, seed) != context.part(index, changed.digest, seed)


def test_two_proofs_for_one_server_are_rejected(plain: ModuleType) -> None:
    upload = plain.upload(plain.a_context(TAMPERED), plain.unit_matrix(TAMPERED))
    doubled = replace(upload, proofs=(upload.proofs[0], upload.proofs[0]))
    with pytest.raises(PeerMisbehaved, match="another server"):
        plain.judge(*plain.verifiers(doubled))


# --- The bound --------------------------------------------------------------------------------------------------------


def linear_value(shape: CheckShape, challenges: Challenges, matrix: Matrix) -> int:
    """Return v over the base field itself, for a client whose polynomial is computed as told."""
    q = shape.modulus
    r, rho, sigma, eta = (
        part[:, 0] for part in (challenges.codeword, challenges.row, challenges.square, challenges.total)
    )
    squares = (matrix @ r) ** 2 - matrix @ r**2
    weights = np.outer(rho, sigma), np.outer(rho, eta)
    by_block = [weight.reshape(-1) % q for weight in weights]
    return int((by_block[0] * (squares % q) + by_block[1] * (matrix.sum(axis=1) - 1)).sum() % q)


def test_grinding_over_a_small_field_stays_within_the_bound_and_succeeds(plain: ModuleType, field_of_127: int) -> None:
    tries, shape = 5_000, CheckShape(127, 5, 12, 3)
    matrix = plain.unit_matrix(shape)
    FORGERIES["two hot"](matrix, 7, 127)
    context, lucky = plain.a_context(shape), list[bytes]()
    for trial in range(tries):
        joint = context.joint(trial.to_bytes(32, "big"), bytes(32))
        if linear_value(shape, Challenges.of(shape, joint), matrix) == 0:
            lucky.append(joint)
    # 4 Q / |F|, of which about half is reached: rho_i = 0, or the two terms cancel.
    assert tries // (2 * field_of_127) < len(lucky) < 4 * tries / field_of_127

    accepted = 0
    for trial in range(600):
        nonce = trial.to_bytes(16, "big")
        ground = plain.a_context(shape, nonce=nonce)
        claimed = plain.upload(ground, matrix)
        joint = joint_of(claimed)
        if linear_value(shape, Challenges.of(shape, joint), matrix) == 0:
            assert plain.is_accepted(claimed)
            accepted += 1
        elif trial < 20:
            assert not plain.is_accepted(claimed)
    assert accepted, "about 9 of 600; this is why the field has at least 2^120 elements"


def joint_of(upload: Any) -> bytes:
    zero, one = upload.proofs
    joint: bytes = upload.context.joint(one.other_part, zero.other_part)
    return joint


@pytest.mark.usefixtures("quadratic_field")
def test_a_forged_polynomial_passes_at_its_2g_roots_and_nowhere_else(
    plain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reach the second term of the bound, 2 G / (|F| - q), as a client that must guess tau."""
    shape = CheckShape(127, 4, 6, 3)
    field = shape.field
    matrix = plain.unit_matrix(shape)
    FORGERIES["two hot"](matrix, 4, 127)
    upload = plain.upload(plain.a_context(shape), matrix)
    roots = [np.array([3 * step + 1, step + 1]) for step in range(6)]

    def vanishing(point: Any) -> Any:
        product = field.scalar(1)
        for root in roots:
            product = field.multiply(product, field.subtract(point, root))
        return product

    def opened_at(claimed: Any, point: Any) -> Any:
        def chosen(*_: object) -> Any:
            return point

        monkeypatch.setattr(one_hot_check, "query_point", chosen)
        return plain.verifiers(claimed)

    zero, one = (plain.opening_of(verifier) for verifier in opened_at(upload, roots[0]))
    missing = field.add(zero.linear, one.linear)
    assert missing.any()
    by_point = np.array([vanishing(field.scalar(at)) for at in range(shape.proof_points)])
    sigma = Challenges.of(shape, joint_of(upload)).square
    reached = field.inner_product(sigma, by_point[1 : shape.columns + 1])
    factor = field.multiply(field.subtract(field.zeros(), missing), plain.inverse(field, reached))
    forged = field.add(upload.proofs[1].polynomial, field.multiply(by_point, factor))
    claimed = replace(upload, proofs=(upload.proofs[0], replace(upload.proofs[1], polynomial=forged)))

    others = [np.array([a, b]) for a in range(0, 127, 9) for b in range(1, 127, 9)]
    for point in [*roots, *others]:
        passes = True
        try:
            plain.judge(*opened_at(claimed, point))
        except PeerMisbehaved:
            passes = False
        assert passes == any(np.array_equal(point, root) for root in roots)
