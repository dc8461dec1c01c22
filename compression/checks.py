"""Checks that schemes share: updates of another kind or shape, sums of another layout, and clamped values."""

from __future__ import annotations

import logging
import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout
from secagg.crypto.ring import require_capacity
from secagg.errors import Misuse

LARGEST: Final = 2.0**100
"""The largest value of an update that is turned: sums of many are still float32."""
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


def require_sum(aggregate: Aggregate, layout: Layout, capacity: int | None = None) -> None:
    """Refuse a sum that is not of a scheme's own layout (``Misuse``), or of more weight than its rings hold."""
    if aggregate.layout != layout:
        raise Misuse("the aggregate belongs to another layout; decode with the object that encoded")
    if capacity is not None:
        require_capacity(aggregate.total_weight, capacity)


def inner_sum(aggregate: Aggregate, layout: Layout, inner: Layout) -> Aggregate:
    """Return a sum of a scheme around another one as that one's, whose segments are the same."""
    require_sum(aggregate, layout)
    return Aggregate(inner, aggregate.values, aggregate.contributors, aggregate.total_weight)
