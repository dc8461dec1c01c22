"""Recover the sum of secrets from the holders' answers and identify wrong answers.

Implements: decoding of interleaved Reed-Solomon codes. One combination of all columns over the eighth power of the
field, drawn after the answers, is wrong where an answer is wrong in any column, except with probability 2^-120; [BW86]
finds up to (answers - T) / 2 such places in it. Beyond that, liars can choose errors that defeat every decoder, but a
sum of secrets is short: the server omits sets of answers until the rest give a short sum that opens the uploads.

At most c holders lie, so T + c answers on one polynomial include T honest ones: the polynomial is correct, and an
answer off it is a lie. Up to T - 1 + c answers may agree with a false word, so fewer than T + c prove nothing about the
others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb, prod
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import draw_exactly
from secagg.errors import ThresholdNotMet

from .parameters import FIELD, Parameters
from .sharing import (
    CHALLENGE_BYTES,
    challenge_weights,
    decode_words,
    holder_point,
    multiply,
    power_matrix,
    reduced,
    slot_points,
    transfer_matrix,
)

SumOfSecrets = npt.NDArray[np.int32]
MOST_SUBSETS: Final = 1 << 20
"""Maximum number of sets of answers to examine if answers contradict each other."""
MOST_OPENED: Final = 256
"""Maximum number of sets to open, shortest sum first: opening one costs as much as a whole sum."""
_SUBSETS_AT_ONCE: Final = 1 << 14
_COLUMNS_AT_ONCE: Final = 16
_Columns = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """A sum of secrets on which answers agree, and the holders whose answers are off its polynomials."""

    sum_secret: SumOfSecrets
    suspects: frozenset[int]
    is_proven: bool
    """Whether T + c answers agree, so that the suspects lied."""


def recovered(
    parameters: Parameters, answers: Mapping[int, bytes], largest: float, coins: Coins
) -> Iterator[Recovered]:
    """Yield candidate sums of secrets, the likeliest first; the caller tries each until one opens.

    The right one is among them if at most (answers - T) / 2 of the answers are wrong, or if there are at most
    ``MOST_SUBSETS`` ways to omit that many answers. A proven candidate is the last.

    Args:
        answers: field elements by position, checked by ``Tally.read``.
        largest: bound on every entry of the right sum.
        coins: used after the answers are fixed, if they contradict each other.
    """
    threshold = parameters.threshold
    if len(answers) < threshold:
        raise ThresholdNotMet(needed=threshold, present=len(answers), what="answers of holders")
    received = _Answers(parameters, answers)
    contested = received.contested
    wrong = received.located(bytes(draw_exactly(CHALLENGE_BYTES, coins))) if contested.size else frozenset[int]()
    if wrong is not None:
        first, agree = received.sum_of([index for index in range(len(answers)) if index not in wrong])
        yield first
        if first.is_proven or not contested.size:
            return
    else:
        agree = np.zeros(len(answers), np.bool_)
    kept = received.short_sets(contested, largest)
    for _ in range(MOST_OPENED):
        # A subset of the same answers gives the same sum.
        kept = kept[(kept & ~agree).any(axis=1)]
        if not len(kept):
            return
        found, agree = received.sum_of(np.flatnonzero(kept[0]).tolist())
        yield found
        if found.is_proven:
            return


class _Answers:
    """The words of all answers, one row per answer."""

    def __init__(self, parameters: Parameters, answers: Mapping[int, bytes]) -> None:
        self._parameters, self._positions = parameters, sorted(answers)
        self._points = tuple(map(holder_point, self._positions))
        words = [decode_words(answers[position], parameters.secret_columns) for position in self._positions]
        self._words: _Columns = np.array(words, np.int64)

    @property
    def contested(self) -> npt.NDArray[np.intp]:
        due = self._polynomials(range(self._parameters.threshold))
        return np.flatnonzero((due != self._words).any(axis=0))

    def located(self, challenge: bytes) -> frozenset[int] | None:
        """Return the wrong answers, if there are at most (answers - T) / 2."""
        threshold, most = self._parameters.threshold, (len(self._points) - self._parameters.threshold) // 2
        combined = multiply(self._words.astype(np.float64), challenge_weights(self._parameters, challenge))
        wrong = frozenset[int]()
        for column in combined.T:
            due = multiply(transfer_matrix(self._points[:threshold], self._points), column[:threshold, None])[:, 0]
            if np.array_equal(due, column):
                continue
            found = _wrong_positions(self._points, column.tolist(), threshold, most)
            wrong |= found
            if not found or len(wrong) > most:
                return None
        return wrong

    def sum_of(self, kept: Sequence[int]) -> tuple[Recovered, npt.NDArray[np.bool_]]:
        """Return the sum that these answers give, and flags for all answers on the same polynomials."""
        base = kept[: self._parameters.threshold]
        sources = tuple(self._points[index] for index in base)
        slots = transfer_matrix(sources, slot_points(self._parameters.packing))
        secret = _centred(multiply(slots, self._words[base]).reshape(-1)).astype(np.int32)
        agree = (self._polynomials(base) == self._words).all(axis=1)
        suspects = frozenset(self._positions[index] for index in np.flatnonzero(~agree))
        least = self._parameters.threshold + self._parameters.corrupted
        return Recovered(secret, suspects, int(agree.sum()) >= least), agree

    def _polynomials(self, base: Sequence[int]) -> _Columns:
        """Return the answers that all holders must give if these holders are honest."""
        sources = tuple(self._points[index] for index in base)
        return multiply(transfer_matrix(sources, self._points), self._words[list(base)])

    def short_sets(self, contested: npt.NDArray[np.intp], largest: float) -> npt.NDArray[np.bool_]:
        """Return the sets of answers, as rows of flags, that give a short sum in the contested columns.

        Each omits as many answers as may be lies, or as the work limit allows; the shortest sum comes first.
        """
        count = len(self._points)
        most = min(self._parameters.corrupted, count - self._parameters.threshold)
        left_out = max(size for size in range(most + 1) if comb(count, size) <= MOST_SUBSETS)
        kept, norms = list[npt.NDArray[np.bool_]](), list[npt.NDArray[np.float64]]()
        sets = combinations(range(count), left_out)
        while batch := list(islice(sets, _SUBSETS_AT_ONCE)):
            without = np.array(batch, np.intp).reshape(len(batch), left_out)
            flags, weights = np.ones((len(batch), count), np.bool_), self._weights(without)
            np.put_along_axis(flags, without, values=False, axis=1)
            norm = np.zeros(len(batch))
            for first in range(0, contested.size, _COLUMNS_AT_ONCE):
                words = self._words[:, contested[first : first + _COLUMNS_AT_ONCE]]
                is_short = np.ones(len(flags), np.bool_)
                if count - left_out > self._parameters.threshold:
                    is_short &= ~multiply(weights[0], words).any(axis=1)
                for slot in weights[1:]:
                    entries = np.abs(_centred(multiply(slot, words)))
                    is_short &= (entries <= largest).all(axis=1)
                    norm += np.square(entries, dtype=np.float64).sum(axis=1)
                flags, norm, weights = flags[is_short], norm[is_short], weights[:, is_short]
            kept.append(flags)
            norms.append(norm)
        order = np.argsort(np.concatenate(norms), kind="stable")
        return np.concatenate(kept)[order]

    def _weights(self, without: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
        """Return the weights of sets of answers: for the highest coefficient of their polynomial, then for the slots.

        That coefficient is zero if more answers than the threshold are on one polynomial. The Lagrange weights of a set
        are those of all answers times x - y for each omitted point y, and so zero at y itself.
        """
        points = np.array(self._points, np.int64)
        differences = (points[:, None] - points) % FIELD
        every = [_inverse(_product(row[row != 0])) for row in differences]
        highest = np.broadcast_to(np.array(every, np.int64), (len(without), len(points)))
        for column in without.T:
            highest = highest * differences[:, column].T % FIELD
        found = [highest]
        for slot in slot_points(self._parameters.packing):
            away = (slot - points) % FIELD
            inverses = np.array([_inverse(int(distance)) for distance in away], np.int64)
            scale = np.full(len(without), _product(away), np.int64)
            for column in without.T:
                scale = scale * inverses[column] % FIELD
            found.append(highest * inverses % FIELD * scale[:, None] % FIELD)
        return np.array(found, np.float64)


def _centred(elements: _Columns) -> _Columns:
    return np.where(elements > FIELD // 2, elements - FIELD, elements)


def _product(elements: npt.NDArray[np.int64]) -> int:
    return int(prod(elements.tolist())) % FIELD


def _inverse(element: int) -> int:
    return pow(element, -1, FIELD)


def _wrong_positions(points: Sequence[int], values: Sequence[int], threshold: int, most: int) -> frozenset[int]:
    """Return the values off the one polynomial that fits all but ``most``; empty if no polynomial does.

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
    """Return a vector in the kernel of a matrix; nonzero, if there is one."""
    rows, free = reduced(matrix)
    vector = np.zeros(matrix.shape[1], np.int64)
    if free < vector.size:
        vector[free] = 1
        vector[:free] = -rows[:free, free] % FIELD
    return vector
