"""What schemes refuse alike: updates of another kind or shape, values that are none, and sums of another layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.contract import Aggregate, Layout
from secagg.crypto.ring import require_capacity
from secagg.errors import CapacityExceeded, Misuse, Reason


def require_floats(update: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Refuse what is no array of floats of a shape, with ``Misuse``."""
    if getattr(update, "dtype", np.dtype(bool)).kind != "f" or update.shape != shape:
        raise Misuse(f"an update is an array of floats of shape {shape}; convert it, or give it that shape first")


def require_finite(values: npt.NDArray[Any]) -> None:
    """Refuse NaN and infinity, with ``not_finite``."""
    if not np.isfinite(values).all():
        raise not_finite()


def not_finite() -> CapacityExceeded:
    """Return the error for an update that no client should send."""
    return CapacityExceeded(
        "an update holds NaN or infinity, or what its scheme cannot hold; skip this client or repair its training",
        reason=Reason.INPUT_OUT_OF_RANGE,
    )


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
