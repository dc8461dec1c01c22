"""Scalar quantization: encodes a tensor as codes of few bits, with scales and zero points that all clients share.

A code of b bits is an integer q in [-2^(b-1), 2^(b-1) - 1] and represents s (q - z): s is a float32, z is a code, and
both are public and common to all clients. The ring holds the codes, so the sum is S = sum q over N clients, and the
decoded sum is

    s (S - z N) = sum s (q - z),

which is exact in integers before the single multiplication.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite, prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.contract.decoder import capacity, capacity_between
from secagg.crypto.entropy import Coins
from secagg.crypto.mask_expansion import MEASURED_BYTES, expand, fastest
from secagg.crypto.ring import Ring, reduce_into
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer

from .common import encoded, finite, float32_capacity, require_floats, require_shape, require_sum

Tensor = npt.NDArray[np.floating[Any]]
LEAST_BITS: Final = 2
"""With one bit the codes are -1 and 0, and no value of a symmetric tensor keeps its sign."""
MAXIMUM_BITS: Final = 16
LEAST_SCALE: Final = 2.0**-23
"""Default minimum scale of calibration: the difference between 1 and the next float32."""
_SMALLEST_NORMAL: Final = 2.0**-126
_FLOAT_TYPES: Final = (2, 4, 8)
_NARROW: Final = np.dtype(np.float32)
_GREATEST_FLOAT32: Final = float(np.finfo(np.float32).max)
_WIDE: Final = np.dtype(np.float64)
_FLOAT32_DIGITS: Final = 24
_FLOAT64_DIGITS: Final = 53
_BLOCK: Final = 1 << 16
"""Elements processed at a time: the quotients and codes of a block fit the second-level cache."""
_HELD: Final = 1 << 18
"""Coins that are expanded at once: a segment of the stream."""
_COIN_BYTES: Final = 32
_COINS: Final = Ring(_FLOAT32_DIGITS)
"""Coins have as many fraction bits as a float32, so comparing them is exact."""

_Block = tuple[slice, slice]
_Floats = npt.NDArray[Any]


class Rounding(Enum):
    """Rounding of a value between two codes."""

    NEAREST_EVEN = 1
    """The nearest code, ties to even; draws no coins."""
    STOCHASTIC = 2
    """Up or down at random: the mean over the coins is the value, up to 2^-24 of it and of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarQuantization:
    """Encodes a tensor of floats as codes of ``bits`` bits in a ring of ``modulus_bits`` bits.

    Implements: [PGC+22] §4.2.1, with signed codes.
    Deviation: the sum is decoded as s (S - z W); neither of the two printed forms equals the sum of the
        decoded updates unless z is 0. Codes are clamped to ``bits`` bits, whatever the shared scale is.

    A value whose code is not clamped comes back with an error of at most half a step (a step with stochastic rounding)
    and, from dividing and multiplying in float32, 2^-22 of the value. A sum has at most the sum of these errors.
    """

    shape: tuple[int, ...]
    bits: int
    modulus_bits: int
    scales: tuple[float, ...]
    """One for the tensor, or one for each index of axis 0; rounded to float32, as they are sent."""
    zero_points: tuple[int, ...] = ()
    """Code of 0.0 for each scale; an empty tuple means 0 for all, which is symmetric quantization."""
    rounding: Rounding = Rounding.NEAREST_EVEN
    wrapping_weight: int | None = None
    """Number of uploads that are decoded even beyond the margin, where coordinates may overflow the ring and be wrong
    by a multiple of 2^modulus_bits steps. None: sums beyond the margin are refused."""
    layout: Layout = field(init=False, repr=False, compare=False)
    """One ring segment; the version covers every parameter."""
    largest: float = field(init=False, repr=False, compare=False)
    """Maximum magnitude of one client's decoded value, or slightly more."""

    def __post_init__(self) -> None:
        require_shape(self.shape)
        require_integer("bits", self.bits, LEAST_BITS, MAXIMUM_BITS)
        capacity(self.bits, self.modulus_bits)
        if type(self.rounding) is not Rounding:
            raise Misuse(f"rounding must be a Rounding; got {self.rounding!r}")
        weight = self.wrapping_weight
        if weight is not None and (type(weight) is not int or not 1 <= weight <= 1 << (_FLOAT64_DIGITS - self.bits)):
            limit = f"2^{_FLOAT64_DIGITS - self.bits}"
            raise InvalidParameters(f"wrapping_weight must be None or an integer in 1..{limit}; got {weight!r}")
        if type(self.scales) is not tuple or len(self.scales) not in {1, *self.shape[:1]}:
            raise InvalidParameters(
                f"scales must be a tuple of one scale, or one for each index of axis 0 in the shape {self.shape}"
            )
        object.__setattr__(self, "scales", tuple(map(_as_float32, self.scales)))
        zero_points = self.zero_points or (0,) * len(self.scales)
        if type(zero_points) is not tuple or len(zero_points) != len(self.scales):
            raise InvalidParameters(f"zero_points must be a tuple of {len(self.scales)} codes, one for each scale")
        if any(type(code) is not int or not self.least <= code <= self.greatest for code in zero_points):
            raise InvalidParameters(f"a zero point must be a {self.bits}-bit code: {self.least}..{self.greatest}")
        object.__setattr__(self, "zero_points", zero_points)
        reaches = (scale * (abs(code) - self.least) for scale, code in zip(self.scales, zero_points, strict=True))
        object.__setattr__(self, "largest", max(reaches))
        if not float32_capacity(self.largest):
            raise InvalidParameters(
                f"a scale of {max(self.scales)} decodes the outermost code of {self.bits} bits beyond float32; train "
                "smaller values, or use fewer bits"
            )
        object.__setattr__(self, "layout", self._layout())

    @property
    def least(self) -> int:
        return -(1 << (self.bits - 1))

    @property
    def greatest(self) -> int:
        return (1 << (self.bits - 1)) - 1

    def _layout(self) -> Layout:
        dimensions, scales = len(self.shape), len(self.scales)
        encoded = struct.pack(
            f">I{dimensions}QIIBQI{scales}f{scales}i",
            *(dimensions, *self.shape, self.bits, self.modulus_bits, self.rounding.value, self.wrapping_weight or 0),
            *(scales, *self.scales, *self.zero_points),
        )
        version = public_parameters_digest("scalar_quantization", encoded)
        return Layout((RingSegment(self.modulus_bits, prod(self.shape)),), version)

    @property
    def is_symmetric(self) -> bool:
        return not any(self.zero_points)

    @property
    def margin(self) -> int:
        """Maximum number of uploads whose sum cannot overflow the ring and is exact before the multiplication."""
        return 1 << (min(self.modulus_bits, _FLOAT64_DIGITS) - self.bits)

    @property
    def capacity(self) -> int:
        """Maximum number of uploads that are decoded: the larger of the margin and ``wrapping_weight``.

        No sum within it overflows float32.
        """
        return min(max(self.margin, self.wrapping_weight or 0), float32_capacity(self.largest))

    def encode(self, update: Tensor, coins: Coins) -> Payload:
        """Divide by the scale, clamp, round and add the zero point; stochastic rounding draws 32 bytes of coins.

        Claim CO-3: every quotient that is a float32 other than NaN becomes a code in range.
        """
        values = self._rows(update)
        scales, zero_points = self._columns(_NARROW)
        is_symmetric = self.is_symmetric
        ring = Ring(self.modulus_bits)
        words = ring.zeros(values.size).reshape(values.shape)
        signed = words.view(_signed(ring))
        # Allocated once: an allocator may return temporaries of this size to the system after each block.
        room = min(_BLOCK, values.size)
        quotients = np.empty(room, _NARROW)
        # A quotient that overflows becomes infinite and is clamped like any other.
        with np.errstate(over="ignore", invalid="ignore"), self._rounding(coins) as round_in_place:
            for rows, columns in _blocks(*values.shape):
                block = finite(values[rows, columns])
                codes = np.divide(block, scales[rows], out=quotients[: block.size].reshape(block.shape))
                round_in_place(codes, rows.start * values.shape[1] + columns.start)
                if not is_symmetric:
                    codes += zero_points[rows]
                np.clip(codes, self.least, self.greatest, out=codes)
                # The same as Ring.from_integers, without its temporaries: a code's two's complement, reduced. No code
                # is refused, because a clamped one always fits the ring.
                np.copyto(signed[rows, columns], codes, casting="unsafe")
                reduce_into(words[rows, columns], self.modulus_bits)
        return Payload(self.layout, (words.reshape(-1),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        """Return the sum of the contributors' quantized updates.

        Claim CO-1: the zero point is subtracted once for each upload.
        """
        require_sum(aggregate, self.layout, self.capacity)
        # Both S and z W are below half of this in size, so their difference is exact in the narrower float as well.
        reach = max(1 << self.modulus_bits, aggregate.contributors << self.bits)
        work = _NARROW if reach <= 1 << _FLOAT32_DIGITS else _WIDE
        scales, zero_points = self._columns(work)
        ring, is_symmetric = Ring(self.modulus_bits), self.is_symmetric
        sums = aggregate.values[0].reshape(self._matrix_shape)
        total = np.empty(sums.shape, dtype=np.float32)
        lifted, differences, half = np.empty(_BLOCK, ring.word), np.empty(_BLOCK, work), 1 << (self.modulus_bits - 1)
        for rows, columns in _blocks(*sums.shape):
            block = total[rows, columns]
            # The same as Ring.lift, without its temporaries; the aggregate was checked to be reduced.
            words = lifted[: block.size].reshape(block.shape)
            np.bitwise_xor(sums[rows, columns], half, out=words)
            words -= half
            exact = differences[: block.size].reshape(block.shape)
            exact[...] = words.view(_signed(ring))
            if not is_symmetric:
                exact -= zero_points[rows] * aggregate.contributors
            np.multiply(exact, scales[rows], out=block, casting="same_kind")
        return total.reshape(self.shape)

    @property
    def _matrix_shape(self) -> tuple[int, int]:
        return len(self.scales), prod(self.shape) // len(self.scales)

    def _rows(self, update: Tensor) -> _Floats:
        dtype = getattr(update, "dtype", np.dtype(bool))
        if dtype.kind != "f" or dtype.itemsize not in _FLOAT_TYPES or update.shape != self.shape:
            raise Misuse(f"an update must be an array of float16, float32 or float64 of shape {self.shape}; convert it")
        return update.reshape(self._matrix_shape)

    def _columns(self, dtype: np.dtype[Any]) -> tuple[_Floats, _Floats]:
        return np.array(self.scales, dtype)[:, None], np.array(self.zero_points, dtype)[:, None]

    @contextmanager
    def _rounding(self, coins: Coins) -> Generator[Callable[[_Floats, int], None]]:
        """Yield a function that rounds a block, given its position in the tensor, in place."""
        if self.rounding is Rounding.NEAREST_EVEN:
            yield _round_to_nearest
            return
        with Secret.random("rounding_key", _COIN_BYTES, coins) as key:
            drawn = _Drawn(key, prod(self.shape))
            below, thresholds = np.empty(_BLOCK, _NARROW), np.empty(_BLOCK, _NARROW)

            def round_at_random(quotients: _Floats, position: int) -> None:
                shape, size = quotients.shape, quotients.size
                whole = np.floor(quotients, out=below[:size].reshape(shape))
                quotients -= whole
                quotients *= 1 << _FLOAT32_DIGITS
                thresholds[:size] = drawn.between(position, position + size)
                np.add(whole, thresholds[:size].reshape(shape) < quotients, out=quotients)

            yield round_at_random


class _Drawn:
    """The coins of a tensor, drawn in parts: together they would be as long as the tensor."""

    def __init__(self, key: Secret, length: int) -> None:
        self._key, self._length = key, length
        self._generator = fastest(_COIN_BYTES) if length * _COINS.word_bytes >= MEASURED_BYTES else None
        self._first, self._held = 0, _COINS.zeros(0)

    def between(self, start: int, stop: int) -> npt.NDArray[Any]:
        if not self._first <= start <= stop <= self._first + self._held.size:
            self._first = start - start % _HELD
            wanted = max(stop - self._first, _HELD)
            count = min(wanted, self._length - self._first)
            self._held = expand(self._key, _COINS, count, start=self._first, generator=self._generator)
        return self._held[start - self._first : stop - self._first]


def calibrate(  # noqa: PLR0913 -- the parameters of what it makes
    sample: Tensor,
    *,
    bits: int,
    modulus_bits: int,
    affine: bool = False,
    per_channel: bool = False,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    wrapping_weight: int | None = None,
    least_scale: float = LEAST_SCALE,
) -> ScalarQuantization:
    """Return the quantizer whose codes cover a sample, from its minimum to its maximum.

    Implements: the ranges of [PGC+22] §3.2.1, as its simulator computes them. Symmetric: s = max|x| / ((2^b - 1) / 2),
        z = 0. Affine: s = (max - min) / (2^b - 1) over a range that holds 0, and z = least - round(min / s).
    Args:
        sample: an array of the tensor's shape that may be public, from a public batch or the previous aggregate.
        per_channel: whether each index of axis 0 gets its own scale.
        least_scale: minimum scale, used for a sample of zeros, for instance. Updates far beyond it saturate; choose a
        fraction of the typical values.

    Security: the scales are broadcast. Scales from a client's own update reveal its largest value.
    """
    if getattr(sample, "dtype", np.dtype(bool)).kind != "f" or (per_channel and not sample.ndim):
        raise Misuse("a sample must be an array of floats; channels are axis 0")
    if not sample.size or not np.isfinite(sample).all():
        raise InvalidParameters("a sample must have at least one value, and no NaN or infinity; calibrate on another")
    rows = sample.reshape(len(sample) if per_channel else 1, -1).astype(np.float64)
    steps = (1 << bits) - 1
    if not affine:
        scales = _scales(np.abs(rows).max(axis=1) / (steps / 2), least_scale)
        zero_points = (0,) * len(scales)
    else:
        lowest, highest = np.minimum(rows.min(axis=1), 0), np.maximum(rows.max(axis=1), 0)
        scales = _scales(highest / steps - lowest / steps, least_scale)
        least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        codes = np.clip(least - np.rint(lowest / np.array(scales)), least, greatest)
        zero_points = tuple(int(code) for code in codes)
    return ScalarQuantization(
        shape=sample.shape,
        bits=bits,
        modulus_bits=modulus_bits,
        scales=scales,
        zero_points=zero_points,
        rounding=rounding,
        wrapping_weight=wrapping_weight,
    )


def modulus_bits_for(bits: int, uploads: int) -> int:
    """Return the width of the narrowest ring that no sum of codes overflows: bits + ceil(log2(uploads))."""
    require_integer("a number of uploads", uploads, 1)
    return bits + (uploads - 1).bit_length()


def overflowed(true_sums: npt.NDArray[np.integer[Any]], modulus_bits: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the coordinates whose true integer sums are outside [-2^(p-1), 2^(p-1) - 1].

    Only final sums count, with their signs: a partial sum may overflow and come back. Only simulations know the true
    sums; under secure aggregation nobody does.
    """
    if getattr(true_sums, "dtype", np.dtype(bool)).kind not in "iu":
        raise Misuse("true sums must be an array of integers; sum the codes in int64")
    ring = Ring(modulus_bits)
    return (true_sums < ring.least) | (true_sums > ring.greatest)


def _as_float32(scale: float) -> float:
    if type(scale) is not float or not _SMALLEST_NORMAL <= scale <= _GREATEST_FLOAT32:
        raise InvalidParameters(f"a scale must be a positive float in the range of normal float32; got {scale!r}")
    return float(np.float32(scale))


def _signed(ring: Ring) -> np.dtype[np.signedinteger[Any]]:
    return np.dtype(f"<i{ring.word_bytes}")


def _scales(found: npt.NDArray[np.float64], least_scale: float) -> tuple[float, ...]:
    return tuple(_as_float32(float(scale)) for scale in np.maximum(found, least_scale))


def _blocks(height: int, width: int) -> Iterator[_Block]:
    """Cut a matrix into contiguous parts: of whole rows, or within one row."""
    rows_at_once = max(1, _BLOCK // width)
    for first in range(0, height, rows_at_once):
        for start in range(0, width, _BLOCK):
            yield slice(first, first + rows_at_once), slice(start, start + _BLOCK)


def _round_to_nearest(quotients: _Floats, _: int) -> None:
    np.rint(quotients, out=quotients)


# --- Dithered quantization --------------------------------------------------------------------------------------------

DEFAULT_FINE_BITS: Final = 8
MOST_FINE_BITS: Final = 24
_FLOAT_BITS: Final = 53
"""Every integer of this many bits is a float64, so decoding is exact."""
_LEAST_DITHERED_SCALE: Final = 2.0**-100


@dataclass(frozen=True, slots=True, kw_only=True)
class DitheredQuantization:
    """Encodes a tensor of floats in steps of ``scale``, clamped to 2^(bits - 1) steps on both sides of zero.

    A step has 2^f fine steps. The protocol adds a uniform mask to fine steps, rounds to whole steps and sends only
    these. This is a subtractive dither: its error is uniform between -1/2 and 1/2 step for every value. The capacity
    leaves room for the half step that each client may add, and sums are float32.
    """

    shape: tuple[int, ...]
    bits: int
    modulus_bits: int
    scale: float
    fine_bits: int = DEFAULT_FINE_BITS
    layout: Layout = field(init=False, repr=False, compare=False)
    """One ring segment with fine bits; the version covers every parameter."""

    def __post_init__(self) -> None:
        require_shape(self.shape)
        require_integer("bits", self.bits, 1, MAXIMUM_BITS)
        require_integer("fine_bits", self.fine_bits, 1, MOST_FINE_BITS)
        require_integer("modulus_bits", self.modulus_bits, 2, _FLOAT_BITS - MOST_FINE_BITS)
        if type(self.scale) is not float or not isfinite(self.scale) or not self.scale >= _LEAST_DITHERED_SCALE:
            raise InvalidParameters(f"scale must be a float of at least 2^-100; got {self.scale!r}")
        segment = RingSegment(self.modulus_bits, prod(self.shape), self.fine_bits)
        if not (self.bound + segment.head_room) * (self.scale / (1 << self.fine_bits)) <= _GREATEST_FLOAT32:
            raise InvalidParameters(
                f"a scale of {self.scale} decodes values of {self.bits} bits beyond float32; train smaller values, or "
                "use fewer bits"
            )
        if self.bound + segment.head_room > segment.ring.greatest:
            raise InvalidParameters(
                f"{self.bits} bits and room for rounding exceed a ring of {self.modulus_bits} bits; use a ring of "
                f"at least {dithered_ring(self.bits, 1, self.fine_bits)} bits"
            )
        parameters = struct.pack(
            f">I{len(self.shape)}QBBBd",
            *(len(self.shape), *self.shape, self.bits, self.modulus_bits, self.fine_bits, self.scale),
        )
        version = public_parameters_digest("dithered_quantization", parameters)
        object.__setattr__(self, "layout", Layout((segment,), version))

    @property
    def bound(self) -> int:
        """Maximum number of fine steps of an encoded value."""
        return 1 << (self.bits - 1 + self.fine_bits)

    @property
    def capacity(self) -> int:
        """Maximum number of uploads whose sum stays in the ring, with all values and roundings at their extremes."""
        reach = self._reach
        return min(capacity_between(-reach, reach, self._segment.ring.modulus_bits), float32_capacity(self.largest))

    @property
    def largest(self) -> float:
        """Maximum magnitude of one client's decoded value."""
        return self._reach * (self.scale / (1 << self.fine_bits))

    @property
    def _reach(self) -> int:
        return self.bound + self._segment.head_room

    @property
    def _segment(self) -> RingSegment:
        (segment,) = self.layout.require_rings()
        return segment

    def encode(self, update: Tensor, coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's; the mask dithers
        require_floats(update, self.shape)

        def steps(piece: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
            # A value that overflows becomes infinite here, and is clamped like any other.
            with np.errstate(over="ignore"):
                fine = piece.astype(np.float64)
                fine /= self.scale
                fine *= 1 << self.fine_bits
            return np.rint(np.clip(fine, -self.bound, self.bound, out=fine), out=fine)

        return Payload(self.layout, (encoded(update.reshape(-1), self._segment.ring, steps),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        require_sum(aggregate, self.layout, self.capacity)
        sums = self._segment.ring.lift(aggregate.values[0]).astype(np.float64)
        sums *= self.scale / (1 << self.fine_bits)
        return sums.astype(np.float32).reshape(self.shape)


def dithered_ring(bits: int, uploads: int, fine_bits: int = DEFAULT_FINE_BITS) -> int:
    """Return the width of the narrowest ring that holds a sum of ``uploads`` with its rounding."""
    require_integer("a number of uploads", uploads, 1)
    reach = uploads * ((1 << (bits - 1 + fine_bits)) + RingSegment(1, 1, fine_bits).head_room)
    return max(2, reach.bit_length() + 1 - fine_bits)


def calibrate_dithered(
    sample: Tensor, *, bits: int, modulus_bits: int, fine_bits: int = DEFAULT_FINE_BITS
) -> DitheredQuantization:
    """Return the scheme whose range ends at the largest value of a sample."""
    largest = float(np.abs(sample).max(initial=0))
    if not 0 < largest < np.inf:
        raise InvalidParameters("calibrating a scale needs finite values that are not all zero; give another sample")
    scale = float(np.float32(largest / (1 << (bits - 1))))
    return DitheredQuantization(
        shape=sample.shape,
        bits=bits,
        modulus_bits=modulus_bits,
        scale=max(scale, _LEAST_DITHERED_SCALE),
        fine_bits=fine_bits,
    )
