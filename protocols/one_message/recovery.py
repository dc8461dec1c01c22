"""The sum of secrets from the holders' answers, and whose answers do not belong to it.

Implements: decoding of Reed-Solomon codes by [BW86], column by column: a liar's answer may be right in some columns, so
a column that does not fit names some of them, their answers are set aside, and the rest is looked at again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.errors import PeerMisbehaved, Reason, ThresholdNotMet

from .lattice.masks import SumOfSecrets
from .parameters import Parameters
from .sharing_field import FIELD, decode_words, holder_point, multiply, power_matrix, slot_points, transfer_matrix

MOST_SUBSETS: Final = 256
"""So many sets of answers are tried when they contradict each other."""
_Columns = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """A sum of secrets, and the holders whose answers lie off its polynomials."""

    sum_secret: SumOfSecrets
    suspects: frozenset[int]
    """To be named only where T + c of the rest agree, or after the sum has opened the uploads."""


def set_aside(positions: Iterable[int], most: int) -> Iterator[frozenset[int]]:
    """Return which answers to leave out, fewest first, where they contradict each other; so many sets are enough."""
    ordered = sorted(positions)
    sets = (frozenset(without) for count in range(most + 1) for without in combinations(ordered, count))
    return islice(sets, MOST_SUBSETS)


def require_answer(parameters: Parameters, answer: bytes) -> None:
    """Refuse an answer that is not one word below 65521 for each polynomial.

    Raises:
        MalformedMessage: it is not.
    """
    decode_words(answer, parameters.secret_columns)


def recover(parameters: Parameters, answers: Mapping[int, bytes]) -> Recovered:
    """Interpolate the sum of secrets from answers by position; up to (answers - T) / 2 wrong ones are set aside.

    Raises:
        ThresholdNotMet: fewer answers than the threshold.
        MalformedMessage: an answer is no sequence of field elements; check each with ``require_answer`` first.
        PeerMisbehaved: more answers are wrong than can be told from right ones; nobody is named.
    """
    threshold = parameters.threshold
    if len(answers) < threshold:
        raise ThresholdNotMet(needed=threshold, present=len(answers), what="answers of holders")
    present = sorted(answers)
    words = np.array([decode_words(answers[position], parameters.secret_columns) for position in present], np.int64)
    correctable = (len(present) - threshold) // 2
    wrong = frozenset[int]()
    while True:
        kept = [index for index in range(len(present)) if index not in wrong]
        points = tuple(holder_point(present[index]) for index in kept)
        column = _first_inconsistent(points, words[kept], threshold)
        if column is None:
            break
        all_points = [holder_point(position) for position in present]
        found = _wrong_positions(all_points, words[:, column].tolist(), threshold, correctable) - wrong
        if not found or len(wrong | found) > correctable:
            raise PeerMisbehaved(
                f"{len(present)} answers do not agree, and at most {correctable} wrong ones can be told from the rest; "
                "ask more holders",
                reason=Reason.SHARES_IRRECONCILABLE,
            )
        wrong |= found
    to_secrets = transfer_matrix(points[:threshold], slot_points(parameters.packing))
    elements = multiply(to_secrets, words[kept[:threshold]]).reshape(-1)
    centred = np.where(elements > FIELD // 2, elements - FIELD, elements).astype(np.int32)
    suspects = frozenset(present[index] for index in wrong)
    return Recovered(centred, suspects)


def _first_inconsistent(points: tuple[int, ...], words: _Columns, threshold: int) -> int | None:
    """Return the first column whose answers lie on no polynomial of degree below the threshold."""
    due = multiply(transfer_matrix(points[:threshold], points[threshold:]), words[:threshold])
    off = (due != words[threshold:]).any(axis=0)
    return int(off.argmax()) if off.any() else None


def _wrong_positions(points: Sequence[int], values: Sequence[int], threshold: int, most: int) -> frozenset[int]:
    """Return which values lie off the one polynomial that all but ``most`` lie on; empty where there is none.

    A polynomial E of degree ``most`` that vanishes at the wrong points, and Q = E f, solve Q(x) = y E(x) everywhere.
    """
    powers = power_matrix(tuple(points), threshold + most).astype(np.int64)
    y = np.array(values, np.int64)[:, None]
    located = -y * powers[:, : most + 1] % FIELD
    solution = _kernel_vector(np.concatenate([powers, located], axis=1))
    quotient = multiply(powers.astype(np.float64), solution[: threshold + most, None])[:, 0]
    locator = multiply(powers[:, : most + 1].astype(np.float64), solution[threshold + most :, None])[:, 0]
    right = [index for index in range(len(points)) if locator[index]]
    if len(right) < threshold:
        return frozenset()
    scaled = [int(quotient[index]) * pow(int(locator[index]), -1, FIELD) % FIELD for index in right[:threshold]]
    base = tuple(points[index] for index in right[:threshold])
    due = multiply(transfer_matrix(base, tuple(points)), np.array(scaled)[:, None])[:, 0]
    off = frozenset(np.flatnonzero(due != y[:, 0]).tolist())
    return off if len(off) <= most else frozenset()


def _kernel_vector(matrix: _Columns) -> npt.NDArray[np.int64]:
    """Return a vector that a matrix takes to zero, by elimination: not the zero vector, if there is another."""
    reduced = matrix % FIELD
    pivots = list[int]()
    for column in range(reduced.shape[1]):
        row = len(pivots)
        candidates = np.flatnonzero(reduced[row:, column])
        if not candidates.size:
            break
        reduced[[row, row + candidates[0]]] = reduced[[row + candidates[0], row]]
        reduced[row] = reduced[row] * pow(int(reduced[row, column]), -1, FIELD) % FIELD
        others = reduced[:, column].copy()
        others[row] = 0
        reduced = (reduced - others[:, None] * reduced[row]) % FIELD
        pivots.append(column)
    free = len(pivots)
    vector = np.zeros(reduced.shape[1], np.int64)
    if free == vector.size:
        return vector
    vector[free] = 1
    vector[:free] = -reduced[:free, free] % FIELD
    return vector
