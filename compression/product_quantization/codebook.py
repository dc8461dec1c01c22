"""Codebooks: what the server broadcasts, with values on a grid that makes every sum of them exact."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from secagg.contract import Histogram
from secagg.contract.layout import LEAST_CODEWORDS, MAXIMUM_CODEWORDS
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason, require_length

GRID_BITS: Final = 24
"""The largest value of a codebook is less than 2^24 steps of its grid, as any float32 is of its own."""
EXACT_WEIGHT: Final = 1 << (53 - GRID_BITS)
"""Up to this total weight, a weighted sum of codewords is a float64 integer of steps, in whatever order it is added."""
FLOAT_BYTES: Final = 4
_HEADER = struct.Struct(">II")
_HISTOGRAM_ROWS: Final = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class Codebook:
    """Codewords of one length, one in each row.

    Values are rounded to float32 and then to multiples of one step, a 2^-24th of the power of two above the largest of
    them, so that none moves by more than rounding the largest to float32 may move that one.
    """

    values: npt.NDArray[np.floating[Any]]

    def __post_init__(self) -> None:
        given = self.values
        if getattr(given, "dtype", np.dtype(bool)).kind != "f" or given.ndim != 2:  # noqa: PLR2004 -- a matrix
            raise Misuse("a codebook is made from an array of floats in two dimensions, one codeword in each row")
        if not LEAST_CODEWORDS <= len(given) <= MAXIMUM_CODEWORDS or given.shape[1] < 1:
            raise InvalidParameters(
                f"a codebook has {LEAST_CODEWORDS} to {MAXIMUM_CODEWORDS} codewords of at least one value; got "
                f"{given.shape[0]} of {given.shape[1]}"
            )
        with np.errstate(over="ignore"):
            narrow = given.astype(np.float32)
        if not np.isfinite(narrow).all():
            raise InvalidParameters("a codebook holds NaN, infinity or what a float32 cannot hold; learn it anew")
        # The array is this object's own, so that its version cannot be changed under it.
        values = _rounded_to_grid(narrow)
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    @property
    def codewords(self) -> int:
        """How many codewords there are."""
        return len(self.values)

    @property
    def block_size(self) -> int:
        """How many values a codeword has."""
        return int(self.values.shape[1])

    @property
    def downlink_bytes(self) -> int:
        """How many bytes the values have in a broadcast: four for each."""
        return self.values.size * FLOAT_BYTES

    @property
    def step_exponent(self) -> int:
        """The exponent of the grid: every value is an integer times two to this power."""
        return _step_exponent(self.values)

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """The values as integers of steps, below 2^24 in magnitude."""
        return np.ldexp(self.values.astype(np.float64), -self.step_exponent).astype(np.int64)

    def from_steps(self, sums: npt.NDArray[np.signedinteger[Any]]) -> npt.NDArray[np.float64]:
        """Return sums of codewords that were added up in steps; it is exact up to 2^53 steps."""
        return np.ldexp(sums.astype(np.float64), self.step_exponent)

    def sum_of_codewords(self, histogram: Histogram) -> npt.NDArray[np.float64]:
        """Return, for each block, the sum of its codewords, each as often as the histogram says; it is exact."""
        wide = self.values.astype(np.float64)
        sums = np.empty((len(histogram), self.block_size))
        for start in range(0, len(histogram), _HISTOGRAM_ROWS):
            rows = slice(start, start + _HISTOGRAM_ROWS)
            np.matmul(histogram[rows].astype(np.float64), wide, out=sums[rows])
        return sums

    def encode(self) -> bytes:
        """Return the canonical encoding: both dimensions as 4 bytes, then float32 values row by row, big-endian."""
        return _HEADER.pack(*self.values.shape) + self.values.astype(">f4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written; its reason says what.
        """
        if len(data) < _HEADER.size:
            raise MalformedMessage("the codebook ends before its dimensions do", reason=Reason.TRUNCATED)
        codewords, block_size = _HEADER.unpack_from(data)
        due = _HEADER.size + codewords * block_size * FLOAT_BYTES
        require_length(f"a codebook of {codewords} codewords of {block_size} values", len(data), due)
        values = np.frombuffer(data, dtype=">f4", offset=_HEADER.size).reshape(codewords, block_size)
        try:
            codebook = cls(values)
        except InvalidParameters as error:
            raise MalformedMessage(f"the codebook is invalid: {error}", reason=Reason.NOT_CANONICAL) from None
        if codebook.encode() != data:
            raise MalformedMessage("the codebook's values are not on its grid", reason=Reason.NOT_CANONICAL)
        return codebook


def _step_exponent(values: npt.NDArray[np.floating[Any]]) -> int:
    """Return the exponent of a 2^-24th of the power of two above the largest value; rounding to it changes it not."""
    return int(np.frexp(np.abs(values).max())[1]) - GRID_BITS


def _rounded_to_grid(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to multiples of the step of the largest value, which stays as it is; minus zero becomes zero."""
    exponent = _step_exponent(values)
    steps = np.rint(np.ldexp(values.astype(np.float64), -exponent)) + 0.0
    return np.ldexp(steps, exponent).astype(np.float32)
