"""The client's side of the one-hot check: masks for the rows and one polynomial.

Row i has the polynomial f_i of degree G with f_i(0) a random mask and f_i(g) = <r, y_ig>, which for a unit vector e_a
is r_a. The client shares p(X) = sum_i rho_i f_i(X)^2, given by its values at 0, ..., 2G. If every block's vector is a
unit vector, or zero, the value at g is sum_i rho_i <r^2, y_ig>, which is linear in the shares.

Not constant time: challenges are looked up by assignment, so the memory that is read depends on the assignments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret, abandoned_on_error
from secagg.errors import CapacityExceeded, Misuse, Reason
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.lanes.extension_field import Elements, exact_product, settle
from secagg.protocols.two_servers.lanes.fields import centre

from .statement import SEED_BYTES, Challenges, CheckShape, OneHotProof, UploadContext

_CHUNK_VALUES = 1 << 16
"""Lanes of row polynomials that are computed at a time, so that they stay in the second-level cache."""

Assignments = npt.NDArray[np.integer[Any]]


def prove(
    context: UploadContext, assignments: Assignments, share_digests: tuple[bytes, bytes], coins: Coins
) -> tuple[OneHotProof, OneHotProof]:
    """Prove that the shares with these digests add up to the unit vectors of the assignments.

    Args:
        assignments: one index for each block.
        share_digests: of server 0's and of server 1's share.
    Security: one proof for each client, round and segment. Each message is sealed to its own server; both together give
        the input away.
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
    """Return the assignments in rows and columns; the first unit vector fills the last row, as the servers have it."""
    if type(assignments) is not np.ndarray or assignments.dtype.kind not in "iu" or assignments.ndim != 1:
        raise Misuse("assignments are a vector of integers, one for each block")
    if assignments.size != shape.blocks:
        raise Misuse(f"expected {shape.blocks} assignments; got {assignments.size}")
    if int(assignments.min()) < 0 or int(assignments.max()) >= shape.codewords:
        raise CapacityExceeded("an assignment is not below the number of codewords", reason=Reason.INPUT_OUT_OF_RANGE)
    placed = np.zeros(shape.rows * shape.columns, dtype=np.intp)
    placed[: shape.blocks] = assignments
    return placed.reshape(shape.rows, shape.columns)
