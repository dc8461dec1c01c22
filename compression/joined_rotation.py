"""All tensors of a model as one vector, scaled tensor by tensor and turned by one common rotation.

With F the diagonal matrix of the tensors' scales and R the rotation (``secagg.compression.rotation``), an update x
becomes R F^-1 x, and y is turned back into F R^-1 y. Noise that is alike in all turned coordinates is least in total if
the scale of a tensor is the square root of the size of its values: then the noise of n values of size a is proportional
to (sum n a)^2, and to P sum n a^2 with one scale for all, which is never less.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters

from .checks import LARGEST, finite, require_floats
from .public_stream import PublicStream
from .rotation import padded_size, require_block_size, transform

Floats = npt.NDArray[np.float32]
Update = npt.NDArray[np.floating[Any]]
BLOCK_SIZE: Final = 1024
_PIECE: Final = 1 << 15
_LEAST_SHARE: Final = 1e-3
"""Least share of the mean over the tensors: no tensor is taken to be smaller."""


@dataclass(frozen=True, slots=True)
class Gains:
    """Factors of turned values once they are turned back, where whole numbers are still exact."""

    gain: float = 1.0
    last: int = 0
    """Number of values at the end that have another one."""
    last_gain: float = 1.0

    def times(self, factor: float) -> Gains:
        """Return the gains of values that are multiplied."""
        return Gains(self.gain * factor, self.last, self.last_gain * factor)


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinedRotation:
    """A vector of all values of a model, scaled and turned; everything in it is public.

    Arithmetic is in float32, and products of matrices may be rounded in another way on another machine.
    """

    stream: PublicStream
    """Gives the signs; its shape is the number of values."""
    sizes: tuple[int, ...] = ()
    """Number of values of each tensor, in their order; empty for one tensor."""
    scales: tuple[float, ...] = ()
    """Divisors of the values of each tensor; empty for ones."""
    block_size: int = BLOCK_SIZE

    def __post_init__(self) -> None:
        if len(self.stream.shape) != 1:
            raise InvalidParameters(f"the values of a model are one vector; got the shape {self.stream.shape}")
        sizes = self.sizes or (self.stream.size,)
        scales = self.scales or (1.0,) * len(sizes)
        if any(type(size) is not int or size < 1 for size in sizes) or sum(sizes) != self.stream.size:
            raise InvalidParameters(f"sizes are integers of at least 1 that add up to {self.stream.size}; got {sizes}")
        if len(scales) != len(sizes) or any(not 2.0**-60 <= scale <= 2.0**60 for scale in scales):
            raise InvalidParameters(f"scales are {len(sizes)} numbers in 2^-60..2^60, one a tensor; got {scales}")
        rounded = tuple(float(np.float32(scale)) for scale in scales)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "scales", rounded)
        require_block_size(self.block_size)

    @cached_property
    def _factors(self) -> Floats:
        """The sign over the scale, for every value; made with the first update: a stranger may have named the size."""
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
        """Number of values of an update."""
        return self.stream.size

    @property
    def padded(self) -> int:
        """Number of values of a turned update."""
        return padded_size(self.size, self.block_size)

    def encode(self) -> bytes:
        """Return the canonical encoding, which schemes put into their versions."""
        count = len(self.sizes)
        numbers = struct.pack(f">II{count}Q{count}f", self.block_size, count, *self.sizes, *self.scales)
        return self.stream.encode() + numbers

    def turned(self, update: Update, count: int | None = None) -> Floats:
        """Return the scaled and turned update, with zeros behind it up to so many values.

        Raises:
            Misuse: it is not a vector of floats of this size.
        """
        self.require_form(update)
        turned = np.empty(self.padded if count is None else count, np.float32)
        if not self._scaled(update, turned):
            self._scaled(finite(update), turned)
            turned[: self.size] = finite(turned[: self.size], LARGEST)
        turned[self.size :] = 0
        transform(turned[: self.padded].reshape(self.block_size, -1))
        return turned

    def _scaled(self, update: Update, out: Floats) -> bool:
        """Write the scaled update, and return whether all of it is finite and within limits.

        By pieces, which are still in the cache when they are looked at.
        """
        is_within = True
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, self.size, _PIECE):
                piece = out[first : min(first + _PIECE, self.size)]
                within = slice(first, first + len(piece))
                np.multiply(update[within], self._factors[within], out=piece, casting="same_kind")
                is_within = is_within and bool(piece.max() <= LARGEST and piece.min() >= -LARGEST)
        return is_within

    def turned_with_norm(self, update: Update) -> tuple[Floats, float]:
        """Return the scaled and turned update, and its length.

        Raises:
            Misuse: it is not a vector of floats of this size.
        """
        turned = self.turned(update)
        return turned, math.sqrt(energy(turned))

    def turned_back(self, turned: Floats, gains: Gains = Gains()) -> Floats:
        """Return the update whose turned values these are, times their gains; the argument is used up."""
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
        # The signs are their own inverses, so dividing by both takes both back.
        update /= self._factors
        return update

    def norm(self, update: Update) -> float:
        """Return the length of the scaled update, which is that of the turned one.

        Raises:
            Misuse: it is not a vector of floats of this size.
        """
        return math.sqrt(sum((norm / scale) ** 2 for norm, scale in zip(self.norms(update), self.scales, strict=True)))

    def norms(self, update: Update) -> tuple[float, ...]:
        """Return the length of each tensor, not scaled; it raises what ``norm`` does."""
        self.require_form(update)
        edges, within = [0, *np.cumsum(self.sizes).tolist()], finite(update, LARGEST)
        return tuple(math.sqrt(energy(within[start:end])) for start, end in pairwise(edges))

    def require_form(self, update: Update) -> None:
        """Require a vector of floats of this size.

        Raises:
            Misuse: it is not.
        """
        require_floats(update, (self.size,))


def square_root_scales(sizes: tuple[int, ...], norms: tuple[float, ...]) -> tuple[float, ...]:
    """Return the scales for tensors of these sizes whose updates have these lengths: roots of the root mean squares.

    Args:
        norms: public ones, such as means over the clients of an earlier round.
    """
    typical = [norm / math.sqrt(size) for norm, size in zip(norms, sizes, strict=True)]
    least = _LEAST_SHARE * sum(typical) / len(typical)
    if not least > 0:
        return (1.0,) * len(sizes)
    return tuple(math.sqrt(max(value, least)) for value in typical)


def energy(values: Update) -> float:
    """Return the sum of the squares, which neither overflow nor vanish in float64."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(values), _PIECE):
            wide = values[first : first + _PIECE].astype(np.float64)
            total += float(wide @ wide)
    return total
