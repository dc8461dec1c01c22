"""Runs of values as an upload holds them: exact or rounded, with the bits of coefficients that are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Annotated, Final, NamedTuple

from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.fields import Field, unsigned
from secagg.wire import Reader, Writer

MAXIMUM_COEFFICIENTS: Final = 1 << 31
"""With these and ``DEVIATIONS``, a guard bit of any coefficient fails with a chance below 2^-40."""
PIECE_COEFFICIENTS: Final = 1 << 16
"""An upload is cut into pieces of so many coefficients, whole polynomials; each piece has planes of its own."""
LEAST_FINE_BITS: Final = 7
"""The noise of one coefficient, at most 64, is then at most half a step, as the contract's head-room allows."""
_CHECK_BITS: Final = 64
"""The check words of a segment are at least so long together; a wrong secret goes unnoticed with 2^-64."""
_PLANES: Final = (16, 8, 4, 2, 1)
_SIGN: Final = 1 << 63


def _write_bounds(writer: Writer, bounds: tuple[int, int] | None) -> None:
    writer.integer(bounds is not None, 1)
    for bound in bounds or ():
        writer.integer(bound + _SIGN, 8)


def _read_bounds(reader: Reader, _: object) -> tuple[int, int] | None:
    if (tag := reader.integer(1)) > 1:
        raise MalformedMessage("a segment has bounds or has none", reason=Reason.NOT_CANONICAL)
    return (reader.integer(8) - _SIGN, reader.integer(8) - _SIGN) if tag else None


_BOUNDS = Field(_write_bounds, _read_bounds, "1: 0 none, 1 two of 8, plus 2^63")


@dataclass(frozen=True, slots=True)
class Values:
    """One segment of a layout: a run of ring elements, and the range of an unweighted one where it has one.

    Values with bounds share a coefficient, several to each. Values without bounds may wrap, and have a coefficient to
    themselves: a carry out of one would otherwise reach its neighbour and tell how often the sum wrapped.

    Values with fine bits are rounded to whole steps under the mask, have no guard bits, and so need check words.
    """

    length: Annotated[int, unsigned(8)]
    ring_bits: Annotated[int, unsigned(1)]
    """Bits of an element, fine bits included."""
    bounds: Annotated[tuple[int, int] | None, _BOUNDS] = None
    fine_bits: Annotated[int, unsigned(1)] = 0

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAXIMUM_COEFFICIENTS or not 1 <= self.ring_bits <= 64:  # noqa: PLR2004 -- a word
            raise InvalidParameters(
                f"a segment has 1 to 2^31 values of 1 to 64 bits; got {self.length} of {self.ring_bits} bits"
            )
        if self.bounds is not None:
            low, high = self.bounds
            if not -(1 << (self.ring_bits - 1)) <= low <= high < 1 << (self.ring_bits - 1) or low == high:
                raise InvalidParameters(
                    f"the bounds {low}..{high} are not two integers of {self.ring_bits} bits in order; correct them"
                )
        if self.fine_bits and (self.bounds is not None or not LEAST_FINE_BITS <= self.fine_bits < self.ring_bits):
            raise InvalidParameters(
                f"values that are rounded have at least {LEAST_FINE_BITS} fine bits, so that noise of lattice masks "
                f"stays below half a step, and no bounds; got {self.fine_bits} fine bits and bounds {self.bounds}"
            )

    def field_bits(self, capacity_weight: int) -> int:
        """Return how many bits of a coefficient the sum of one value needs."""
        if self.bounds is None:
            return self.ring_bits
        low, high = self.bounds
        return (capacity_weight * (high - low)).bit_length()

    @property
    def sent_bits(self) -> int:
        return self.ring_bits - self.fine_bits

    @property
    def check_words(self) -> Values:
        """Exact check words appended to rounded values, over their ring."""
        return Values(length=-(-_CHECK_BITS // self.sent_bits), ring_bits=self.ring_bits)


class Run(NamedTuple):
    """Consecutive coefficients with the same number of sent bits, in planes."""

    first: int
    end: int
    dropped: int
    """Number of lowest bits that are rounded away."""
    sent: int
    """Number of sent bits above them; those above are of no use modulo 2^(dropped + sent)."""

    @property
    def size(self) -> int:
        return self.end - self.first

    @property
    def plane_bits(self) -> tuple[int, ...]:
        """Division of a coefficient's bits into planes, lowest first: 52 = 32 + 16 + 4."""
        return (32,) * (self.sent // 32) + tuple(bits for bits in _PLANES if self.sent & bits)

    @property
    def sent_bytes(self) -> int:
        return sum(-(-self.size * bits // 8) for bits in self.plane_bits)

    @property
    def piece(self) -> int:
        return self.first // PIECE_COEFFICIENTS

    def cut(self) -> tuple[Run, ...]:
        edges = [self.first, *range((self.piece + 1) * PIECE_COEFFICIENTS, self.end, PIECE_COEFFICIENTS), self.end]
        return tuple(self._replace(first=first, end=end) for first, end in pairwise(edges))


def pieces_of(vector: bytes | memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Cut a vector."""
    view = memoryview(vector)
    return [view[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
