"""Shared by all schemes: public randomness, and checks of updates and sums.

The public stream of a tensor is SHAKE256 [FIPS 202] of

    label || attempt || seed || round || name || dimensions,

where ``secagg.crypto.labels.bind`` prefixes each part with its length in 4 bytes. The attempt takes 4 bytes, the seed
32, the round 8, the name is in UTF-8 and each dimension takes 8 bytes; all integers are big-endian.
"""

from __future__ import annotations

import hashlib
import logging
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, LinearDecoder
from secagg.contract.layout import MAXIMUM_LENGTH
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring, RingVector, reduce_into, require_capacity
from secagg.errors import ContractViolation, InvalidParameters, Misuse
from secagg.parameters import require_integer

SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicStream:
    """Source of one round's public randomness for one tensor; another round, name or shape gives a different stream.

    Security: the seed is public. It must not be, or be derived from, a key of the aggregation protocol.
    """

    seed: bytes
    round_number: int
    tensor_name: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        require_seed(self.seed)
        require_integer("round_number", self.round_number, 0, (1 << 64) - 1)
        require_text(self.tensor_name)
        require_shape(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def encode(self) -> bytes:
        """Return the canonical, self-delimiting encoding, which schemes put into their versions."""
        seed, round_number, name, dimensions = self._parts()
        return seed + round_number + struct.pack(">II", len(name), len(self.shape)) + name + dimensions

    def read(self, label: Label, count: int, attempt: int = 0) -> bytes:
        """Return the first ``count`` bytes of the stream for one use; each attempt has a separate stream."""
        return hashlib.shake_256(bind(label, attempt.to_bytes(4, "big"), *self._parts())).digest(count)

    def _parts(self) -> tuple[bytes, ...]:
        dimensions = b"".join(dimension.to_bytes(8, "big") for dimension in self.shape)
        return self.seed, self.round_number.to_bytes(8, "big"), self.tensor_name.encode(), dimensions


def require_text(name: str) -> None:
    """Require that a tensor's name can be encoded."""
    if type(name) is not str:
        raise Misuse(f"a tensor's name must be a str; got {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidParameters("a tensor's name must be valid UTF-8; rename the tensor") from None


def require_seed(seed: bytes) -> None:
    """Require a public seed of 32 bytes."""
    if type(seed) is not bytes or len(seed) != SEED_BYTES:
        raise InvalidParameters(f"a public seed must be {SEED_BYTES} bytes; draw one per session or training run")


def require_shape(shape: tuple[int, ...]) -> None:
    """Require the shape of a tensor with at least one element."""
    if type(shape) is not tuple or any(type(dimension) is not int or dimension < 1 for dimension in shape):
        raise InvalidParameters(f"a shape must be a tuple of integers of at least 1; got {shape!r}")
    if prod(shape) > MAXIMUM_LENGTH:
        raise InvalidParameters(f"a tensor can have at most 2^40 elements; a shape of {shape} has {prod(shape)}")


# --- Checks -----------------------------------------------------------------------------------------------------------

LARGEST: Final = 2.0**100
"""Maximum magnitude before rotation; sums of many such values still fit float32."""
_PIECE: Final = 1 << 15
"""Number of values encoded at a time, so that intermediates stay in the processor's cache."""
LOG: Final = logging.getLogger("secagg.compression")


def require_floats(update: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Require an array of floats of a shape; raise ``Misuse`` otherwise."""
    if getattr(update, "dtype", np.dtype(bool)).kind != "f" or update.shape != shape:
        raise Misuse(f"an update must be an array of floats of shape {shape}; convert or reshape it")


def finite(values: npt.NDArray[Any], limit: float = math.inf) -> npt.NDArray[Any]:
    """Return floats clamped to a limit, with NaN as 0; log how many values were changed.

    Never raises: whether a client answers would reveal something about its values to the server.
    """
    most = min(limit, float(np.finfo(values.dtype).max))
    if not values.size or (values.max() <= most and values.min() >= -most):
        return values
    within: npt.NDArray[Any] = np.nan_to_num(np.clip(values, -most, most), copy=False, nan=0.0)
    changed = int(np.count_nonzero(within != values))
    LOG.warning("%d values are NaN, infinite or too large for their scheme; they are set to 0 or clamped", changed)
    return within


def encoded(
    values: npt.NDArray[Any], ring: Ring, steps: Callable[[npt.NDArray[Any]], npt.NDArray[np.float64]]
) -> RingVector:
    """Return a vector of floats as ring elements; ``steps`` turns a block of them into integers within the ring."""
    codes = ring.zeros(len(values))
    signed = codes.view(f"<i{ring.word_bytes}")
    for start in range(0, len(values), _PIECE):
        # The same as Ring.from_integers, without its temporaries.
        np.copyto(signed[start : start + _PIECE], steps(finite(values[start : start + _PIECE])), casting="unsafe")
        reduce_into(codes[start : start + _PIECE], ring.modulus_bits)
    return codes


def require_sum(aggregate: Aggregate, layout: Layout, capacity: int | None = None) -> None:
    """Refuse a sum in a different layout (``Misuse``) or with more contributors than the rings hold."""
    if aggregate.layout != layout:
        raise Misuse("the aggregate has a different layout; decode it with the object that encoded it")
    if capacity is not None:
        require_capacity(aggregate.contributors, capacity)


def float32_capacity(largest: float) -> int:
    """Return the largest number of values of this size whose sum is exact in float32."""
    return int(Fraction(float(np.finfo(np.float32).max)) / Fraction(largest))


def inner_decoded(aggregate: Aggregate, layout: Layout, inner: LinearDecoder[Any], length: int) -> npt.NDArray[Any]:
    """Decode a sum of the outer scheme with its inner scheme; both have the same segments."""
    require_sum(aggregate, layout)
    values: npt.NDArray[Any] = inner.decode(Aggregate(inner.layout, aggregate.values, aggregate.contributors))
    if values.shape != (length,):
        raise ContractViolation(f"the inner scheme must decode a vector of {length}; got {values.shape}")
    return values
