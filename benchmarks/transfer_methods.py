"""Methods of other papers at a given number of bytes, as means of clients' updates, without secure aggregation.

Each takes the updates of a round as rows of a matrix. Sizes are counted in favour of the method: values of 16 bits,
indices of minimum width, and free seeds. ``is_insecure`` marks those that the server decodes client by client, which no
secure sum can do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from secagg.compression.rotation import padded_size, transform

Matrix = npt.NDArray[np.float32]
_VALUE_BITS: Final = 16
_BLOCK: Final = 1024
_ROWS: Final = 3


class Method(Protocol):
    """Computes the mean of a round's updates from clients' messages."""

    is_insecure: bool

    @property
    def bytes_up(self) -> float:
        """Bytes that a client sends in a round."""
        ...

    def mean(self, updates: Matrix, clients: tuple[int, ...], number: int) -> Matrix:
        """Return the server's mean of a round."""
        ...


@dataclass(slots=True)
class TopK:
    """The largest values with their positions; each client keeps the unsent rest for its next round [SCJ18]."""

    size: float
    values: int
    is_insecure: bool = True
    _left: dict[int, Matrix] = field(default_factory=dict[int, Matrix])

    @property
    def kept(self) -> int:
        """Number of values that are sent."""
        bits = _VALUE_BITS + max(1, (self.values - 1).bit_length())
        return max(1, min(self.values, int(8 * self.size // bits)))

    @property
    def bytes_up(self) -> float:
        """Bytes that a client sends in a round."""
        return self.kept * (_VALUE_BITS + max(1, (self.values - 1).bit_length())) / 8

    def mean(self, updates: Matrix, clients: tuple[int, ...], number: int) -> Matrix:  # noqa: ARG002
        """Return the server's mean of a round."""
        total = np.zeros(self.values, np.float32)
        for client, update in zip(clients, updates, strict=True):
            whole = update + self._left.get(client, np.float32(0))
            at = np.argpartition(np.abs(whole), -self.kept)[-self.kept :]
            total[at] += whole[at]
            whole[at] = 0
            self._left[client] = whole
        return total / np.float32(len(updates))


@dataclass(slots=True)
class CountSketched:
    """FetchSGD [RPU+20]: a sum of count sketches, with momentum and errors in the sketch at the server."""

    size: float
    values: int
    momentum: float = 0.9
    is_insecure: bool = False
    _moved: Any = None
    _error: Any = None
    _hashes: Any = None

    @property
    def columns(self) -> int:
        """Cells of a row."""
        return max(1, int(8 * self.size // _VALUE_BITS) // _ROWS)

    @property
    def bytes_up(self) -> float:
        """Bytes that a client sends in a round."""
        return self.columns * _ROWS * _VALUE_BITS / 8

    def mean(self, updates: Matrix, clients: tuple[int, ...], number: int) -> Matrix:  # noqa: ARG002
        """Return the server's mean of a round."""
        if self._hashes is None:
            coins = np.random.default_rng(7)
            places = coins.integers(self.columns, size=(_ROWS, self.values))
            signs = coins.choice(np.array([-1, 1], dtype=np.float32), (_ROWS, self.values))
            self._hashes = places, signs
            self._moved, self._error = (np.zeros((_ROWS, self.columns)) for _ in range(2))
        self._moved = self.momentum * self._moved + self._sketch(updates.mean(0))
        self._error = self._error + self._moved
        places, signs = self._hashes
        told = np.median([signs[row] * self._error[row][places[row]] for row in range(_ROWS)], axis=0)
        kept = max(1, self.columns * _ROWS // 4)
        at = np.argpartition(np.abs(told), -kept)[-kept:] if kept < self.values else np.arange(self.values)
        step = np.zeros(self.values, np.float32)
        step[at] = told[at]
        self._error = self._error - self._sketch(step)
        # Momentum is cleared in the cells of extracted coordinates, as in the paper.
        for row in range(_ROWS):
            self._moved[row][places[row][at]] = 0
        return step

    def _sketch(self, vector: Matrix) -> Any:  # noqa: ANN401 -- a matrix of float64
        places, signs = self._hashes
        return np.stack([np.bincount(places[r], signs[r] * vector, self.columns) for r in range(_ROWS)])


@dataclass(slots=True)
class RotatedSigns:
    """EDEN of one bit, subsampled [VBP+22]: signs of each client's own rotation, decoded client by client."""

    size: float
    values: int
    is_insecure: bool = True

    @property
    def kept(self) -> int:
        """Number of values whose sign is sent."""
        return max(1, min(padded_size(self.values, _BLOCK), int(8 * (self.size - 4))))

    @property
    def bytes_up(self) -> float:
        """Bytes that a client sends in a round."""
        return self.kept / 8 + 4

    def mean(self, updates: Matrix, clients: tuple[int, ...], number: int) -> Matrix:
        """Return the server's mean of a round."""
        padded, total = padded_size(self.values, _BLOCK), np.zeros(self.values, np.float32)
        for client, update in zip(clients, updates, strict=True):
            coins = np.random.default_rng([number, client])
            signs = (coins.integers(0, 2, padded, dtype=np.int8) * 2 - 1).astype(np.float32)
            turned = np.zeros(padded, np.float32)
            turned[: self.values] = update
            turned *= signs
            transform(turned.reshape(_BLOCK, -1))
            norm = float(np.linalg.norm(turned))
            at = coins.choice(padded, self.kept, replace=False) if self.kept < padded else np.arange(padded)
            sent = np.zeros(padded, np.float32)
            # Unbiased, scaled as in EDEN: the squared length over the sum of magnitudes, for the sent share.
            scale = norm**2 / max(float(np.abs(turned[at]).sum()) * padded / self.kept, 1e-30)
            sent[at] = np.sign(turned[at]) * np.float32(scale * padded / self.kept)
            transform(sent.reshape(_BLOCK, -1))
            total += (sent * signs)[: self.values]
        return total / np.float32(len(updates))


@dataclass(slots=True)
class PlainSigns:
    """Signs of the values themselves, times a client's mean magnitude in each tensor, of public places of the round."""

    size: float
    values: int
    sizes: tuple[int, ...] = ()
    is_insecure: bool = False

    @property
    def kept(self) -> int:
        """Number of values whose sign is sent."""
        return max(1, min(self.values, int(8 * (self.size - 2 * len(self.sizes)))))

    @property
    def bytes_up(self) -> float:
        """Bytes that a client sends in a round."""
        return self.kept / 8 + 2 * len(self.sizes)

    def mean(self, updates: Matrix, clients: tuple[int, ...], number: int) -> Matrix:  # noqa: ARG002
        """Return the server's mean of a round."""
        signs, edges = np.sign(updates), np.cumsum([0, *self.sizes])
        for first, last in pairwise(edges.tolist()):
            signs[:, first:last] *= np.abs(updates[:, first:last]).mean(1, keepdims=True)
        mean: Matrix = signs.mean(0)
        if self.kept < self.values:
            coins = np.random.default_rng(number)
            sent = np.zeros(self.values, np.float32)
            at = coins.choice(self.values, self.kept, replace=False)
            sent[at] = mean[at]
            return sent
        return mean


def methods(size: float, values: int, sizes: tuple[int, ...]) -> dict[str, Method]:
    """Return the methods at a number of bytes, by name."""
    return {
        "top-k with error feedback": TopK(size, values),
        "FetchSGD": CountSketched(size, values),
        "EDEN, 1 bit, subsampled": RotatedSigns(size, values),
        "signs with scales": PlainSigns(size, values, sizes),
    }


def cohort_bits_of(size: float, values: int, cohort: int) -> float:
    """Return the bits of a peak code of about this number of bytes."""
    return math.ldexp(size, 3) * cohort / values
