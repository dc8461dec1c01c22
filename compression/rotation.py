"""Random rotations: of one tensor before an inner scheme, and of all tensors of a model as one vector.

The rotation is R = H D / sqrt(B), block by block: D flips signs chosen by a public seed, and H is the Walsh-Hadamard
matrix of B rows, a power of two. R is orthonormal and the same for all clients, so the sum of rotated updates is the
rotated sum, which the server rotates back once.

The update, in row-major order, is padded with zeros to a multiple of B and read as a matrix of B rows; each column is a
block. The sign of element i of that matrix, in row-major order, is negative where bit i of the stream of the tensor
(``secagg.compression.common``, label ROTATION_SIGNS) is set, the lowest bit of each byte first.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import (
    Aggregate,
    Layout,
    LinearDecoder,
    Payload,
    RingSegment,
    encode_update,
    public_parameters_digest,
)
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.ring import reduce_into
from secagg.errors import InvalidParameters
from secagg.parameters import require_integer
from secagg.privacy.rounding import bound_for_ring, rounded, unrounded_norm

from .common import LARGEST, PublicStream, finite, float32_capacity, inner_decoded, require_floats, require_sum
from .random_pruning import pruning_mask

Tensor = npt.NDArray[np.floating[Any]]
MAXIMUM_BLOCK_SIZE: Final = 1 << 16
_FACTOR_BITS: Final = 5
_ELEMENTS: Final = 1 << 16
"""Number of elements transformed together: with their copy they fit the second-level cache."""
Floats = npt.NDArray[np.float32]
Update = npt.NDArray[np.floating[Any]]
BLOCK_SIZE: Final = 1024
_PIECE: Final = 1 << 15
_LEAST_SHARE: Final = 1e-3
"""Lower bound on a tensor's length, as a share of the mean over the tensors."""


@dataclass(frozen=True, kw_only=True)
class RandomRotation:
    """Rotates a tensor by a common randomized Hadamard transform; an inner scheme encodes the result as a vector.

    Implements: [SYK+17] §3, in blocks.

    The rotation spreads each value over the ``block_size`` coordinates of its block, which divides a single large value
    by sqrt(block_size). The error of a decoded sum has the norm of the inner scheme's error.
    """

    stream: PublicStream
    """Source of the signs: public seed, round, and the tensor's name and shape."""
    block_size: int
    """A power of two; the tensor is padded with zeros to a multiple of it."""
    inner: LinearDecoder[Any]
    """Encodes a vector of ``padded_size(stream.size, block_size)`` floats."""

    def __post_init__(self) -> None:
        require_block_size(self.block_size)

    @property
    def padded(self) -> int:
        return padded_size(self.stream.size, self.block_size)

    @cached_property
    def negative(self) -> npt.NDArray[np.bool_]:
        """Coordinates with flipped signs, as the matrix of the blocks; drawn with the first update."""
        drawn = np.frombuffer(self.stream.read(Label.ROTATION_SIGNS, -(-self.padded // 8)), dtype=np.uint8)
        bits = np.unpackbits(drawn, count=self.padded, bitorder="little")
        return bits.view(np.bool_).reshape(self.block_size, -1)

    @property
    def layout(self) -> Layout:
        """The inner segments; the version covers the stream, the size of the blocks and the inner version."""
        encoded = self.stream.encode() + struct.pack(">I", self.block_size) + self.inner.layout.version
        return Layout(self.inner.layout.segments, public_parameters_digest("rotation", encoded))

    @property
    def capacity(self) -> int:
        """Inner capacity, if sums still fit float32 after rotating back, which may gather a block in one value."""
        largest = getattr(self.inner, "largest", None)
        most = self.inner.capacity
        return most if largest is None else min(most, float32_capacity(largest * math.sqrt(self.block_size)))

    def encode(self, update: Tensor, coins: Coins) -> Payload:
        """Rotate the update, in float64 if it has more than 32 bits and in float32 otherwise, and encode the result."""
        return Payload(self.layout, encode_update(self.inner, self.rotate(update), coins).values)

    def decode(self, aggregate: Aggregate) -> Tensor:
        return self.rotate_back(inner_decoded(aggregate, self.layout, self.inner, self.padded))

    def rotate(self, update: Tensor) -> Tensor:
        """Return the rotated update as a vector; scales are calibrated on a rotated sample."""
        require_floats(update, self.stream.shape)
        blocks = np.zeros(self.negative.shape, np.promote_types(update.dtype, np.float32))
        blocks.reshape(-1)[: update.size] = finite(update, LARGEST).reshape(-1)
        self._flip(blocks)
        transform(blocks)
        return blocks.reshape(-1)

    def rotate_back(self, rotated: Tensor) -> Tensor:
        """Return the tensor whose rotation is this vector, without its padding."""
        blocks = rotated.reshape(self.negative.shape).copy()
        transform(blocks)
        self._flip(blocks)
        return blocks.reshape(-1)[: self.stream.size].reshape(self.stream.shape)

    def _flip(self, blocks: Tensor) -> None:
        np.negative(blocks, out=blocks, where=self.negative)


def padded_size(size: int, block_size: int) -> int:
    """Return the size of a rotated tensor: its size rounded up to whole blocks."""
    require_block_size(block_size)
    return -(-size // block_size) * block_size


def require_block_size(block_size: int) -> None:
    """Require a valid block size of a rotation."""
    if type(block_size) is not int or block_size.bit_count() != 1 or not 1 < block_size <= MAXIMUM_BLOCK_SIZE:
        raise InvalidParameters(f"block_size must be a power of two in 2..2^16; got {block_size!r}")


def transform(blocks: Tensor) -> None:
    """Multiply each column by H / sqrt(B) in place, where B is the number of rows, a power of two.

    A matrix of 1,024 rows is the Kronecker product of two of 32: two products of matrices that stay in the cache
    replace ten passes of butterflies.

    H is symmetric, so applying it twice gives the input up to rounding. A value that is not finite, or that overflows,
    makes its column NaN or infinity.
    """
    size, width = blocks.shape
    factors = _factors(size, blocks.dtype)
    step = min(width, max(1, _ELEMENTS // size))
    buffers = np.empty((2, size * step), blocks.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, width, step):
            columns = blocks[:, first : first + step]
            source, target = (buffer[: columns.size] for buffer in buffers)
            source.reshape(columns.shape)[...] = columns
            before = 1
            for factor in factors:
                shape = (before, len(factor), columns.size // (before * len(factor)))
                np.matmul(factor, source.reshape(shape), out=target.reshape(shape))
                source, target, before = target, source, before * len(factor)
            columns[...] = source.reshape(columns.shape)


@lru_cache(maxsize=64)
def _factors(size: int, dtype: np.dtype[Any]) -> tuple[Tensor, ...]:
    """Return small Hadamard matrices whose Kronecker product has ``size`` rows; the first has 1 / sqrt(size)."""
    bits = size.bit_length() - 1
    count = max(1, -(-bits // _FACTOR_BITS))
    sizes = [1 << ((bits + number) // count) for number in range(count)]
    matrices = [_hadamard(some).astype(dtype) for some in sizes]
    matrices[0] = np.asarray(matrices[0] / math.sqrt(size), dtype=dtype)
    for matrix in matrices:
        matrix.flags.writeable = False
    return tuple(matrices)


def _hadamard(size: int) -> npt.NDArray[np.float64]:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


# --- All tensors as one vector ----------------------------------------------------------------------------------------
#
# With F the diagonal matrix of the tensors' scales and R the rotation, an update x becomes R F^-1 x, and y is rotated
# back to F R^-1 y. If noise is equal in all rotated coordinates, the total is smallest when a tensor's scale is the
# square root of the size of its values: for n values of size a it is proportional to (sum n a)^2. With one scale for
# all it is proportional to P sum n a^2, which is never less.


@dataclass(frozen=True, slots=True)
class Gains:
    """Factors of rotated values, applied after the inverse transform, where integers are still exact."""

    gain: float = 1.0
    last: int = 0
    """Number of values at the end that have another factor."""
    last_gain: float = 1.0

    def times(self, factor: float) -> Gains:
        return Gains(self.gain * factor, self.last, self.last_gain * factor)


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinedRotation:
    """Scales and rotates the vector of all values of a model; all its parameters are public.

    Arithmetic is in float32, and matrix products may be rounded differently on another machine.
    """

    stream: PublicStream
    """Source of the signs; its shape is the number of values."""
    sizes: tuple[int, ...] = ()
    """Number of values of each tensor, in order; empty for one tensor."""
    scales: tuple[float, ...] = ()
    """Divisor of each tensor's values; empty if all are 1."""
    block_size: int = BLOCK_SIZE

    def __post_init__(self) -> None:
        if len(self.stream.shape) != 1:
            raise InvalidParameters(f"the values of a model must be one vector; got the shape {self.stream.shape}")
        sizes = self.sizes or (self.stream.size,)
        scales = self.scales or (1.0,) * len(sizes)
        if any(type(size) is not int or size < 1 for size in sizes) or sum(sizes) != self.stream.size:
            raise InvalidParameters(f"sizes must be positive integers with the sum {self.stream.size}; got {sizes}")
        if len(scales) != len(sizes) or any(not 2.0**-60 <= scale <= 2.0**60 for scale in scales):
            raise InvalidParameters(f"scales must be {len(sizes)} numbers in 2^-60..2^60, one per tensor; got {scales}")
        rounded = tuple(float(np.float32(scale)) for scale in scales)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "scales", rounded)
        require_block_size(self.block_size)

    @cached_property
    def _factors(self) -> Floats:
        """The sign over the scale of every value; lazy, because an untrusted party may have chosen the size."""
        drawn = np.frombuffer(self.stream.read(Label.ROTATION_SIGNS, -(-self.padded // 8)), dtype=np.uint8)
        factors = np.unpackbits(drawn, count=self.size, bitorder="little").astype(np.float32)
        factors *= -2
        factors += 1
        for size, scale, end in zip(self.sizes, self.scales, np.cumsum(self.sizes).tolist(), strict=True):
            if scale != 1:
                factors[end - size : end] /= np.float32(scale)
        factors.flags.writeable = False
        return factors

    @property
    def size(self) -> int:
        return self.stream.size

    @property
    def padded(self) -> int:
        """Number of values of a rotated update."""
        return padded_size(self.size, self.block_size)

    def encode(self) -> bytes:
        """Return the canonical encoding, which schemes put into their versions."""
        count = len(self.sizes)
        numbers = struct.pack(f">II{count}Q{count}f", self.block_size, count, *self.sizes, *self.scales)
        return self.stream.encode() + numbers

    def turned(self, update: Update, count: int | None = None) -> Floats:
        """Return the scaled and rotated update, padded with zeros to ``count`` values."""
        require_floats(update, (self.size,))
        turned = np.empty(self.padded if count is None else count, np.float32)
        if not self._scaled(update, turned):
            self._scaled(finite(update), turned)
            turned[: self.size] = finite(turned[: self.size], LARGEST)
        turned[self.size :] = 0
        transform(turned[: self.padded].reshape(self.block_size, -1))
        return turned

    def _scaled(self, update: Update, out: Floats) -> bool:
        """Write the scaled update in pieces; return whether all values are finite and within limits."""
        is_within = True
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, self.size, _PIECE):
                piece = out[first : min(first + _PIECE, self.size)]
                within = slice(first, first + len(piece))
                np.multiply(update[within], self._factors[within], out=piece, casting="same_kind")
                is_within = is_within and bool(piece.max() <= LARGEST and piece.min() >= -LARGEST)
        return is_within

    def turned_with_norm(self, update: Update) -> tuple[Floats, float]:
        turned = self.turned(update)
        return turned, math.sqrt(energy(turned))

    def turned_back(self, turned: Floats, gains: Gains = Gains()) -> Floats:
        """Return the update of these rotated values, times their gains; overwrites the argument."""
        whole, last = turned.reshape(self.block_size, -1), gains.last
        few = whole[:, whole.shape[1] - min(last, whole.shape[1]) :]
        apart = np.zeros(few.shape, np.float32)
        if last:
            apart.reshape(-1)[-last:] = turned[-last:]
            turned[-last:] = 0
            transform(apart)
            apart *= np.float32(gains.last_gain)
        transform(whole)
        if gains.gain != 1:
            turned *= np.float32(gains.gain)
        few += apart
        update = turned[: self.size]
        # The signs are their own inverses, so dividing by sign over scale undoes both.
        update /= self._factors
        return update

    def norm(self, update: Update) -> float:
        """Return the length of the scaled update, which equals that of the rotated one."""
        return math.sqrt(sum((norm / scale) ** 2 for norm, scale in zip(self.norms(update), self.scales, strict=True)))

    def norms(self, update: Update) -> tuple[float, ...]:
        require_floats(update, (self.size,))
        edges, within = [0, *np.cumsum(self.sizes).tolist()], finite(update, LARGEST)
        return tuple(math.sqrt(energy(within[start:end])) for start, end in pairwise(edges))


def square_root_scales(sizes: tuple[int, ...], norms: tuple[float, ...]) -> tuple[float, ...]:
    """Return the scales for tensors with these sizes and lengths: the square roots of their root mean squares.

    Args:
        norms: public lengths, such as means over the clients of an earlier round.
    """
    typical = [norm / math.sqrt(size) for norm, size in zip(norms, sizes, strict=True)]
    least = _LEAST_SHARE * sum(typical) / len(typical)
    if not least > 0:
        return (1.0,) * len(sizes)
    return tuple(math.sqrt(max(value, least)) for value in typical)


def energy(values: Update) -> float:
    """Return the sum of squares in float64, where they neither overflow nor underflow."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(values), _PIECE):
            wide = values[first : first + _PIECE].astype(np.float64)
            total += float(wide @ wide)
    return total


# --- Rounded for noise ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundedRotation:
    """Rounds the rotation of all values of a model to whole steps with a bounded norm, for noise added by clients.

    Noise has to hide one client's influence on a sum. So a client scales its update down to a public length, rotates
    it, and rounds each coordinate up or down at random until the norm in steps is within the public bound. The ring is
    narrow: it fits four standard deviations of the largest sum with its noise (``secagg.privacy.rounding``). A sum that
    wraps costs accuracy but no privacy.
    """

    rotation: JoinedRotation
    clip: float
    """Maximum length of a scaled update; longer ones are shortened to it."""
    l2_bound: int
    """Maximum norm of an upload, in steps; noise is proportional to it."""
    modulus_bits: int
    clients: int
    """Number of clients that the ring is planned for."""
    layout: Layout = field(init=False, repr=False)

    @classmethod
    def planned(
        cls, rotation: JoinedRotation, *, clip: float, modulus_bits: int, clients: int, noise_share: float
    ) -> RoundedRotation:
        """Return the code with the finest steps whose noisy sums fit a ring.

        Args:
            noise_share: the maximum variance of the sum's noise over the square of the bound.
        """
        bound = bound_for_ring(modulus_bits, rotation.padded, clients, noise_share)
        return cls(rotation=rotation, clip=clip, l2_bound=bound, modulus_bits=modulus_bits, clients=clients)

    def __post_init__(self) -> None:
        if type(self.clip) is not float or not 2.0**-100 <= self.clip <= 2.0**100:
            raise InvalidParameters(f"clip must be a float in 2^-100..2^100; got {self.clip!r}")
        require_integer("clients", self.clients, 1)
        unrounded_norm(self.l2_bound, self.rotation.padded)
        encoded = self.rotation.encode()
        encoded += struct.pack(">dQBQ", self.clip, self.l2_bound, self.modulus_bits, self.clients)
        version = public_parameters_digest("rounded_rotation", encoded)
        object.__setattr__(self, "layout", Layout((RingSegment(self.modulus_bits, self.rotation.padded),), version))

    @property
    def length(self) -> int:
        return self.rotation.size

    @property
    def capacity(self) -> int:
        return min(self.clients, float32_capacity(self.largest_norm))

    @property
    def step(self) -> float:
        return self.clip / unrounded_norm(self.l2_bound, self.rotation.padded)

    @property
    def largest_norm(self) -> float:
        """Maximum length of a decoded update if its client rounds correctly; this module does not enforce it."""
        return max(self.rotation.scales) * self.l2_bound * self.step

    def encode(self, update: Update, coins: Coins) -> Payload:
        turned, norm = self.rotation.turned_with_norm(update)
        steps = turned.astype(np.float64)
        steps *= min(1.0, self.clip / norm if norm else 1.0) / self.step
        ring = self.layout.segments[0].ring
        vector = rounded(steps, self.l2_bound, coins).astype(ring.word)
        reduce_into(vector, ring.modulus_bits)
        return Payload(self.layout, (vector,))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        (segment,) = self.layout.require_rings()
        return self.rotation.turned_back(segment.ring.lift(aggregate.values[0]).astype(np.float32), self.gains)

    @property
    def gains(self) -> Gains:
        """Length of a step."""
        return Gains(self.step)


# --- A sketch of the rotated update -----------------------------------------------------------------------------------

MOST_BITS: Final = 8
_MOST_RING_BITS: Final = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Sketch:
    """Encodes a few coordinates of the rotation of all values of a model as codes in a narrow ring.

    All clients send the same coordinates, which any protocol with masks can sum. A client first divides by its own
    length, so values are nearly standard normal and one public step fits all clients.

    A code c of q bits represents the value (2c - 2^q + 1) s / 2 for the step s. Sums of codes are never negative, so a
    ring of p bits holds (2^p - 1) / (2^q - 1) clients: 31 clients of 1 bit in 5 bits. Dividing by the share that
    rounding keeps of normal values (2 / pi for 1 bit) and by the share of sent coordinates makes the sum of directions
    unbiased over the rotations, for updates with many nonzero values.
    """

    rotation: JoinedRotation
    kept: int
    """Number of sent coordinates of the rotated update."""
    bits: int
    modulus_bits: int
    unit: float = 1.0
    """Length with which each client's scaled update is decoded, such as the previous round's mean."""
    layout: Layout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        padded = self.rotation.padded
        require_integer("kept", self.kept, 1, padded)
        require_integer("bits", self.bits, 1, MOST_BITS)
        require_integer("modulus_bits", self.modulus_bits, self.bits, _MOST_RING_BITS)
        if type(self.unit) is not float or not 2.0**-100 <= self.unit <= 2.0**100:
            raise InvalidParameters(f"unit must be a float in 2^-100..2^100; got {self.unit!r}")
        encoded = self.rotation.encode() + struct.pack(">QBBd", self.kept, self.bits, self.modulus_bits, self.unit)
        version = public_parameters_digest("sketch", encoded)
        object.__setattr__(self, "layout", Layout((RingSegment(self.modulus_bits, self.kept),), version))

    @cached_property
    def _positions(self) -> npt.NDArray[np.int64]:
        padded = self.rotation.padded
        turned = replace(self.rotation.stream, shape=(padded,))
        return np.flatnonzero(pruning_mask(turned, Fraction(padded - self.kept, padded)))

    @property
    def length(self) -> int:
        return self.rotation.size

    @property
    def capacity(self) -> int:
        return min(((1 << self.modulus_bits) - 1) // self._greatest, float32_capacity(self.largest_norm))

    @property
    def largest_norm(self) -> float:
        """Maximum length of a decoded update whose codes are in range; masks do not enforce the range."""
        return max(self.rotation.scales) * self._gain * self._greatest * math.sqrt(self.kept)

    def encode(self, update: Update, coins: Coins) -> Payload:
        """Divide by the update's length, rotate and round; an update of zeros draws its codes from the coins."""
        turned, norm = self.rotation.turned_with_norm(update)
        sent = turned[self._positions].astype(np.float64)
        if norm:
            sent *= math.sqrt(self.rotation.padded) / (norm * normal_step(self.bits)[0])
        codes = np.clip(np.floor(sent) + (1 << (self.bits - 1)), 0, self._greatest)
        zeros = np.flatnonzero(sent == 0)
        if len(zeros):
            # Rounding zeros up would add a direction shared by all clients whose values did not change.
            codes[zeros] -= np.frombuffer(coins.draw(len(zeros)), dtype=np.uint8) & 1
        return Payload(self.layout, (codes.astype(self.layout.segments[0].ring.word),))

    def decode(self, aggregate: Aggregate) -> Floats:
        require_sum(aggregate, self.layout, self.capacity)
        sums = 2 * aggregate.values[0].astype(np.int64) - aggregate.contributors * self._greatest
        turned = np.zeros(self.rotation.padded, np.float32)
        turned[self._positions] = sums * self._gain
        return self.rotation.turned_back(turned)

    @property
    def _greatest(self) -> int:
        return (1 << self.bits) - 1

    @property
    def _gain(self) -> float:
        """Return half a step over the share that rounding and omission keep, for an update of length ``unit``."""
        step, keeps = normal_step(self.bits)
        padded = self.rotation.padded
        return self.unit / math.sqrt(padded) * step / 2 / keeps * padded / self.kept


def sketch_ring(bits: int, uploads: int) -> int:
    """Return the width of the narrowest ring that no sum of codes overflows."""
    most = ((1 << _MOST_RING_BITS) - 1) // ((1 << bits) - 1)
    if type(uploads) is not int or not 1 <= uploads <= most:
        raise InvalidParameters(f"the number of summed codes of {bits} bits must be in 1..{most}; got {uploads!r}")
    return (uploads * ((1 << bits) - 1)).bit_length()


@lru_cache(maxsize=16)
def normal_step(bits: int) -> tuple[float, float]:
    """Return the step whose unbiased estimate of normal values has the least noise, and the kept share."""
    if bits == 1:
        # Signs have no step; this one decodes them to the mean magnitude.
        return 2 * math.sqrt(2 / math.pi), 2 / math.pi
    return min((_noise(bits, step), step, keeps) for step, keeps in _steps(bits))[1:]


def rounding_noise(bits: int) -> float:
    """Return the noise energy of the unbiased estimate of a normal value: 0.57 for 1 bit."""
    step, keeps = normal_step(bits)
    return _noise(bits, step) if bits > 1 else step**2 / 4 / keeps**2 - 1


def _steps(bits: int) -> list[tuple[float, float]]:
    steps = np.linspace(0.5, 8.0, 301) / (1 << bits)
    return [(float(step), _moments(bits, float(step))[0]) for step in steps]


def _noise(bits: int, step: float) -> float:
    keeps, energy = _moments(bits, step)
    return energy / keeps**2 - 1


def _moments(bits: int, step: float) -> tuple[float, float]:
    """Return E[x c] and E[c^2] of a normal value x and its code c, by sums over the cells."""
    half = 1 << (bits - 1)
    values: npt.NDArray[Any] = (np.arange(half) + 0.5) * step
    edges = np.append(np.arange(half) * step, np.inf)
    density = np.exp(-np.square(edges) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erf(edge / math.sqrt(2)) / 2 for edge in edges.tolist()])
    return 2 * float(values @ (density[:-1] - density[1:])), 2 * float(np.square(values) @ (below[1:] - below[:-1]))
