"""Checks that schemes share: updates of another kind or shape, sums of another layout, and clamped values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout, LinearDecoder
from secagg.crypto.ring import Ring, RingVector, reduce_into, require_capacity
from secagg.errors import ContractViolation, Misuse

LARGEST: Final = 2.0**100
"""The largest value of an update that is turned: sums of many are still float32."""
_PIECE: Final = 1 << 15
"""Values that are encoded at a time: those between two steps stay in the processor's cache."""
LOG: Final = logging.getLogger("secagg.compression")


def require_floats(update: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Require an array of floats of a shape; raise ``Misuse`` otherwise."""
    if getattr(update, "dtype", np.dtype(bool)).kind != "f" or update.shape != shape:
        raise Misuse(f"an update is an array of floats of shape {shape}; convert it, or give it that shape first")


def finite(values: npt.NDArray[Any], limit: float = math.inf) -> npt.NDArray[Any]:
    """Return floats within a limit: NaN counts as 0, and a value beyond the limit as the limit; a log line says so.

    Nothing is refused: whether a client answers would tell its server of the values.
    """
    most = min(limit, float(np.finfo(values.dtype).max))
    if not values.size or (values.max() <= most and values.min() >= -most):
        return values
    within: npt.NDArray[Any] = np.nan_to_num(np.clip(values, -most, most), copy=False, nan=0.0)
    changed = int(np.count_nonzero(within != values))
    LOG.warning("%d values are NaN, infinite or too large for their scheme; they count as 0 and as its limit", changed)
    return within


def encoded(
    values: npt.NDArray[Any], ring: Ring, steps: Callable[[npt.NDArray[Any]], npt.NDArray[np.float64]]
) -> RingVector:
    """Return a vector of floats as ring elements; ``steps`` makes whole numbers within the ring of a few of them."""
    codes = ring.zeros(len(values))
    signed = codes.view(f"<i{ring.word_bytes}")
    for start in range(0, len(values), _PIECE):
        # What Ring.from_integers does, without its temporaries.
        np.copyto(signed[start : start + _PIECE], steps(finite(values[start : start + _PIECE])), casting="unsafe")
        reduce_into(codes[start : start + _PIECE], ring.modulus_bits)
    return codes


def require_sum(aggregate: Aggregate, layout: Layout, capacity: int | None = None) -> None:
    """Refuse a sum that is not of a scheme's own layout (``Misuse``), or of more weight than its rings hold."""
    if aggregate.layout != layout:
        raise Misuse("the aggregate belongs to another layout; decode with the object that encoded")
    if capacity is not None:
        require_capacity(aggregate.total_weight, capacity)


def inner_decoded(aggregate: Aggregate, layout: Layout, inner: LinearDecoder[Any], length: int) -> npt.NDArray[Any]:
    """Return what the scheme inside another one decodes a sum of the latter to; their segments are the same."""
    require_sum(aggregate, layout)
    counts = (aggregate.contributors, aggregate.total_weight)
    values: npt.NDArray[Any] = inner.decode(Aggregate(inner.layout, aggregate.values, *counts))
    if values.shape != (length,):
        raise ContractViolation(f"the inner scheme has to decode a vector of {length}, not of {values.shape}")
    return values
