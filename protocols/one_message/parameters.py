"""Parameters of an epoch that all parties share: the lattice, the packing of values, and the thresholds of the holders.

Derived values are computed and never sent, so equal bytes mean equal masks, lengths and rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Final, NamedTuple

from secagg.declared import Field, listed, nested, optional, repeated, unsigned
from secagg.errors import InvalidParameters
from secagg.parameters import require_integer

from .lattice import NORM_FACTOR, SIGMA, security_bits

MAXIMUM_COEFFICIENTS: Final = 1 << 31
"""With these and ``DEVIATIONS``, the guard bits of any coefficient overflow with probability below 2^-40."""
PIECE_COEFFICIENTS: Final = 1 << 16
"""Number of coefficients of one piece of an upload (whole polynomials); each piece has separate planes."""
LEAST_FINE_BITS: Final = 7
"""The noise of one coefficient, at most 64, is then at most half a step, as the contract's head-room allows."""
_CHECK_BITS: Final = 64
"""Minimum total bits of a segment's check words; a wrong secret passes with probability 2^-64."""
_PLANES: Final = (16, 8, 4, 2, 1)
_SIGN: Final = 1 << 63
_BOUND = Field(
    lambda writer, bound: writer.integer(bound + _SIGN, 8), lambda reader, _: reader.integer(8) - _SIGN, "8, plus 2^63"
)
_BOUNDS = optional(listed(_BOUND, lambda _: range(2), _BOUND.row), row="1: 0 none, 1 two of 8, plus 2^63")


@dataclass(frozen=True, slots=True)
class Values:
    """One segment of a layout: a run of ring elements, with the range of an element if it is bounded.

    Several values with bounds share a coefficient. A value without bounds may wrap, so it has a separate coefficient:
    otherwise a carry would reach its neighbour and reveal how often the sum wrapped.

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
                f"a segment must have 1 to 2^31 values of 1 to 64 bits; got {self.length} of {self.ring_bits} bits"
            )
        if self.bounds is not None:
            low, high = self.bounds
            if not -(1 << (self.ring_bits - 1)) <= low <= high < 1 << (self.ring_bits - 1) or low == high:
                raise InvalidParameters(
                    f"the bounds {low}..{high} must be two increasing integers of {self.ring_bits} bits"
                )
        if self.fine_bits and (self.bounds is not None or not LEAST_FINE_BITS <= self.fine_bits < self.ring_bits):
            raise InvalidParameters(
                f"rounded values need at least {LEAST_FINE_BITS} fine bits, so that the noise of lattice masks "
                f"stays below half a step, and no bounds; got {self.fine_bits} fine bits and bounds {self.bounds}"
            )

    def field_bits(self, capacity: int) -> int:
        """Return the number of bits that the sum of one value needs in a coefficient."""
        if self.bounds is None:
            return self.ring_bits
        low, high = self.bounds
        return (capacity * (high - low)).bit_length()

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
    """Number of sent bits above the dropped ones; higher bits do not matter modulo 2^(dropped + sent)."""

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
    """Split a vector into pieces."""
    view = memoryview(vector)
    return [view[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


# --- Parameters -------------------------------------------------------------------------------------------------------

FIELD: Final = 65521
"""Shares are integers modulo this prime, the largest below 2^16."""
DEGREES: Final = (1024, 2048, 4096)
MAXIMUM_MODULUS_BITS: Final = 108
MAXIMUM_DROPPED_BITS: Final = 4
MAXIMUM_HOLDERS: Final = 256
MAXIMUM_SEGMENTS: Final = 1 << 16
DEVIATIONS: Final = 10
"""Standard deviations of noise that the guard bits and the bound on a sum of secrets allow."""
LEAST_SECURITY: Final = 128
UNNOTICED_BITS: Final = 64
"""A wrong sum of secrets passes with probability at most 2^-64 over the public polynomials."""
MOST_NOISE_ENERGY: Final = 2.1
"""Maximum energy of an opened sum's noise, as a multiple of its mean; sets the number of zeros after the values."""
SEED_BYTES: Final = 32
WORD_BYTES: Final = 2
CHECK_WORDS: Final = 8
"""The masking polynomial of a dealer has coefficients in the eighth power of the field: a false one passes with
probability 65521^-8."""


@dataclass(frozen=True, slots=True)
class Committee:
    """Number of holders and their thresholds."""

    holders: int
    corrupted: int
    threshold: int
    packing: int
    quorum: int

    @property
    def stands(self) -> int:
        """Number of holders that a sum can lose, before or while it runs."""
        return self.holders - max(self.threshold, self.quorum)

    def require(self) -> None:
        """Refuse thresholds with which a server could combine answers for several lists."""
        least = least_threshold(self.corrupted, self.packing)
        if not least <= self.threshold <= self.holders:
            raise InvalidParameters(
                f"{self.holders} holders, {self.corrupted} of them corrupted, with {self.packing} coefficients per "
                f"polynomial, need a threshold of {least} to {self.holders}; got {self.threshold}"
            )
        quorum = least_quorum(self.holders, self.corrupted)
        if not quorum <= self.quorum <= self.holders:
            raise InvalidParameters(f"a list needs a quorum of {quorum} to {self.holders}; got {self.quorum}")


@dataclass(frozen=True)
class Parameters:
    """Lattice, values and holders of an epoch; every signature covers them.

    Raises:
        InvalidParameters: the sum of ``capacity`` uploads would not be exact, or a threshold breaks its premise. Each
            party's policy checks the lattice's security.
    """

    degree: Annotated[int, unsigned(2)]
    """n: coefficients of a polynomial."""
    modulus_bits: Annotated[int, unsigned(1)]
    """w: coefficients are integers modulo 2^w."""
    guard_bits: Annotated[int, unsigned(1)]
    """g: the lowest bits of a coefficient, which hold the noise of the sum."""
    dropped_bits: Annotated[int, unsigned(1)]
    """d: the lowest bits of a coefficient, which are rounded away before it is sent."""
    segments: Annotated[tuple[Values, ...], repeated(nested(Values), MAXIMUM_SEGMENTS)]
    capacity: Annotated[int, unsigned(4)]
    """N: maximum number of uploads in one sum."""
    holders: Annotated[int, unsigned(2)]
    """C."""
    corrupted: Annotated[int, unsigned(2)]
    """c: maximum number of holders that collude with the server."""
    threshold: Annotated[int, unsigned(2)]
    """T: number of answers that a sum needs."""
    packing: Annotated[int, unsigned(2)]
    """rho: coefficients of the secret in one polynomial."""
    quorum: Annotated[int, unsigned(2)]
    """Q: number of signatures that certify a list."""

    def __post_init__(self) -> None:
        self._require_ranges()
        self.committee.require()
        self._require_exact()

    # --- Derived values ---------------------------------------------------------------------------------------------

    @property
    def committee(self) -> Committee:
        return Committee(self.holders, self.corrupted, self.threshold, self.packing, self.quorum)

    @cached_property
    def per_coefficient(self) -> tuple[int, ...]:
        """k, for each segment."""
        room = self.modulus_bits - self.guard_bits
        return tuple(
            1 if segment.bounds is None else room // segment.field_bits(self.capacity) for segment in self.segments
        )

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First coefficient of each segment, and the end of the last: a coefficient never mixes segments."""
        counts = (-(-segment.length // k) for segment, k in zip(self.segments, self.per_coefficient, strict=True))
        return tuple(accumulate(counts, initial=0))

    @property
    def coefficients(self) -> int:
        """Number of coefficients that are sent, without the padding of the last polynomial."""
        return self.starts[-1]

    @cached_property
    def whole_runs(self) -> tuple[Run, ...]:
        runs = list[Run]()
        for segment, first, end in zip(self.segments, self.starts, self.starts[1:], strict=False):
            dropped = segment.fine_bits or self.dropped_bits
            sent = segment.sent_bits if segment.fine_bits else self.sent_bits
            joins = bool(runs) and (runs[-1].dropped, runs[-1].sent) == (dropped, sent)
            runs.append(Run(runs.pop().first if joins else first, end, dropped, sent))
        return tuple(runs)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        return tuple(part for run in self.whole_runs for part in run.cut())

    @cached_property
    def piece_bytes(self) -> tuple[int, ...]:
        lengths = [0] * -(-self.coefficients // PIECE_COEFFICIENTS)
        for run in self.runs:
            lengths[run.piece] += run.sent_bytes
        return tuple(lengths)

    @cached_property
    def checked(self) -> tuple[tuple[int, int], ...]:
        """Each rounded segment, and the segment of its check words; these come last, in the same order."""
        fine = [index for index, segment in enumerate(self.segments) if segment.fine_bits]
        return tuple(zip(fine, range(len(self.segments) - len(fine), len(self.segments)), strict=True))

    @cached_property
    def witnesses(self) -> int:
        """Number of zeros after the values that make every wrong sum of secrets fail; at least one.

        A liar among exactly T holders can add any value to the sum of secrets. Its choice has as many bits as a secret
        within the norm bound; all bits below the values, and all known bits, must look like honest noise.
        """
        zeros, spread = self.inputs - 1, math.sqrt(self.capacity)
        noise_bits = _bits_of_entry(spread * math.sqrt(MOST_NOISE_ENERGY * self.noise_variance))
        missing = UNNOTICED_BITS + self.degree * _bits_of_entry(spread * math.sqrt(NORM_FACTOR) * SIGMA)
        for index, (segment, k) in enumerate(zip(self.segments, self.per_coefficient, strict=True)):
            if index != zeros and not segment.fine_bits:
                lowest = self.modulus_bits - segment.ring_bits if segment.bounds is None else self.guard_bits
                missing -= -(-segment.length // k) * (lowest - noise_bits)
        return max(1, math.ceil(missing / (self.modulus_bits - noise_bits)))

    @property
    def inputs(self) -> int:
        """Number of segments with values of a client: all except check words."""
        return len(self.segments) - len(self.checked)

    @property
    def polynomials(self) -> int:
        """L."""
        return -(-self.coefficients // self.degree)

    @property
    def sent_bits(self) -> int:
        return self.modulus_bits - self.dropped_bits

    @property
    def upload_bytes(self) -> int:
        return sum(self.piece_bytes)

    @property
    def noise_variance(self) -> float:
        """Variance of a coefficient's noise in an upload; rounding is uniform, because the mask is."""
        return float(SIGMA**2 + (4**self.dropped_bits - 1) / 12)

    @property
    def secret_columns(self) -> int:
        """K: number of polynomials that share a secret."""
        return self.degree // self.packing

    @property
    def seeds(self) -> int:
        """Number of holders that get a seed for their share: the first ones."""
        return self.threshold - self.packing

    def share_bytes(self, position: int) -> int:
        if not 0 <= position < self.holders:
            raise InvalidParameters(f"{position} is not a position among {self.holders} holders; positions start at 0")
        return SEED_BYTES if position < self.seeds else (self.secret_columns + CHECK_WORDS) * WORD_BYTES

    @property
    def polynomial_bytes(self) -> int:
        return self.threshold * CHECK_WORDS * WORD_BYTES

    @property
    def security_bits(self) -> float:
        return security_bits(self.degree, self.modulus_bits)

    # --- Checks ------------------------------------------------------------------------------------------------------

    def _require_ranges(self) -> None:
        ranges = {
            "modulus_bits": (2, MAXIMUM_MODULUS_BITS),
            "dropped_bits": (0, MAXIMUM_DROPPED_BITS),
            "guard_bits": (1, self.modulus_bits - 1),
            "capacity": (1, greatest_capacity()),
            "holders": (1, MAXIMUM_HOLDERS),
            "corrupted": (0, self.holders - 1),
            "packing": (1, self.threshold),
        }
        if self.degree not in DEGREES:
            raise InvalidParameters(f"the degree must be one of {DEGREES}; got {self.degree!r}")
        for name, (least, greatest) in ranges.items():
            require_integer(name, getattr(self, name), least, greatest)
        if self.degree % self.packing:
            raise InvalidParameters(f"packing must divide the degree; {self.packing} does not divide {self.degree}")
        if not 1 <= len(self.segments) <= MAXIMUM_SEGMENTS:
            raise InvalidParameters(f"the number of segments must be 1 to {MAXIMUM_SEGMENTS}; got {len(self.segments)}")

    def _require_exact(self) -> None:
        due = least_guard_bits(self.capacity, self.dropped_bits)
        if self.guard_bits < due:
            raise InvalidParameters(
                f"{self.capacity} uploads with {self.dropped_bits} dropped bits need {due} guard bits; got "
                f"{self.guard_bits}; add guard bits or lower the capacity"
            )
        room = self.modulus_bits - self.guard_bits
        for position, segment in enumerate(self.segments):
            bits = segment.field_bits(self.capacity)
            if bits > segment.ring_bits:
                raise InvalidParameters(
                    f"a sum of segment {position} needs {bits} bits, but its ring has {segment.ring_bits}; widen "
                    "the ring or lower the capacity"
                )
            if bits > (self.modulus_bits if segment.fine_bits else room):
                raise InvalidParameters(
                    f"segment {position} needs {bits} bits above the guard bits, but has {room}; use a modulus of "
                    f"{bits + self.guard_bits} bits"
                )
        if any(self.segments[check] != self.segments[fine].check_words for fine, check in self.checked):
            raise InvalidParameters("the last segments must be the check words of those with fine bits")
        if self.coefficients > MAXIMUM_COEFFICIENTS:
            raise InvalidParameters(
                f"{self.coefficients} coefficients exceed {MAXIMUM_COEFFICIENTS}; divide the layout"
            )


def _bits_of_entry(radius: float) -> float:
    """Return the entropy in bits of one entry of a vector whose root mean square is below a radius.

    Fewer than (sqrt(2 pi e) (r + 1/2))^m integers lie in the ball of m dimensions and radius r sqrt(m).
    """
    return math.log2(math.sqrt(2 * math.pi * math.e) * (radius + 0.5))


def least_guard_bits(capacity: int, dropped_bits: int) -> int:
    """Return g: the noise of a full sum, with half a unit of rounding, stays within +-2^(g-1).

    A discrete Gaussian and uniform dropped bits are sub-Gaussian with their variance as proxy, so one coefficient
    exceeds ten deviations with probability below 2 exp(-50), and any of 2^31 with probability below 2^-40.
    """
    deviation = math.sqrt(capacity * (SIGMA**2 + (4**dropped_bits - 1) / 12))
    return math.ceil(math.log2(2 * DEVIATIONS * deviation + 1))


def greatest_capacity() -> int:
    """Return the maximum number of uploads whose sum of secrets the shares' field can represent."""
    return int((((FIELD - 1) // 2) / (DEVIATIONS * SIGMA)) ** 2)


def least_threshold(corrupted: int, packing: int) -> int:
    """Return the minimum T, c + rho.

    Claim OM-4: with T >= c + rho, each certified list gives one sum.
    """
    return corrupted + packing


def least_quorum(holders: int, corrupted: int) -> int:
    """Return the minimum Q with 2 Q > C + c: two quorums share an honest holder."""
    return (holders + corrupted) // 2 + 1
