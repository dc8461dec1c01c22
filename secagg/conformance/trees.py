"""Updates as trees of arrays: what the laws read, change, add and compare; demands raise ``ContractViolation``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import ContractViolation, InvalidParameters

from .candidate import Update

Leaf = npt.NDArray[Any]


def children(update: Update) -> dict[Any, Update] | None:
    """Return the parts of a dict, tuple or list by their keys or positions, and ``None`` for an array."""
    if isinstance(update, np.ndarray | np.generic | float | int):
        return None
    if isinstance(update, Mapping):
        return dict(cast("Any", update))
    if isinstance(update, tuple | list):
        return dict(enumerate(cast("Sequence[Update]", update)))
    raise ContractViolation(f"an update is arrays, or a dict, tuple or list of them; got {type(update).__name__}")


def assembled(like: Update, parts: Mapping[Any, Update]) -> Update:
    """Return the parts as a dict, tuple or list, whichever ``like`` is."""
    if isinstance(like, Mapping):
        return dict(parts)
    return tuple(parts.values()) if isinstance(like, tuple) else list(parts.values())


def leaves(update: Update, path: str = "update") -> dict[str, Leaf]:
    """Return the arrays of an update by their places in it, in order."""
    parts = children(update)
    if parts is None:
        return {path: np.asarray(update)}
    return {place: leaf for key, part in parts.items() for place, leaf in leaves(part, f"{path}[{key!r}]").items()}


def with_leaves(update: Update, change: Callable[[str, Leaf], Any], path: str = "update") -> Update:
    """Return a tree of the same form whose arrays ``change`` makes from their places and values."""
    parts = children(update)
    if parts is None:
        return change(path, np.asarray(update))
    return assembled(update, {key: with_leaves(part, change, f"{path}[{key!r}]") for key, part in parts.items()})


def copied(update: Update) -> Update:
    """Return a copy that shares nothing with the update."""
    return with_leaves(update, lambda _, leaf: leaf.copy())


def require_identical(left: Update, right: Update, what: str) -> None:
    """Demand the same arrays at the same places, bit for bit."""
    require_same_form(left, right, what)
    for place, leaf in leaves(left).items():
        other = leaves(right)[place]
        if leaf.dtype != other.dtype or leaf.tobytes() != other.tobytes():
            raise ContractViolation(f"{what} differ at {place}: {_shown(leaf)} and {_shown(other)}")


def require_same_form(left: Update, right: Update, what: str) -> None:
    """Demand arrays of the same shapes at the same places."""
    shapes, others = ({place: leaf.shape for place, leaf in leaves(tree).items()} for tree in (left, right))
    if shapes != others:
        raise ContractViolation(f"{what} differ in form: {shapes} and {others}")


def require_weighted_sum(total: Update, parts: Sequence[Update], weights: Sequence[int], ulps: float) -> None:
    """Demand that ``total`` is the sum of the parts, each as often as its weight says.

    Integers are compared exactly. Floats may be off by ``ulps`` units in the last place of the largest magnitude that
    each part has, because every decoded float was rounded once.
    """
    for part in parts:
        require_same_form(total, part, "the decoded sum and a decoded summand")
    for place, leaf in leaves(total).items():
        summands = [leaves(part)[place] for part in parts]
        wide = np.dtype(object) if leaf.dtype.kind in "iu" else np.promote_types(leaf.dtype, np.float64)
        expected = sum(summand.astype(wide) * weight for summand, weight in zip(summands, weights, strict=True))
        magnitudes = [_largest(summand) * weight for summand, weight in zip(summands, weights, strict=True)]
        allowed = _rounding(leaf, sum(magnitudes), ulps)
        _require_close(leaf.astype(wide), expected, allowed, f"the decoded sum, at {place},", "the sum of the decoded")


def require_within(decoded: Update, expected: Update, error: Any, ulps: float) -> None:  # noqa: ANN401 -- a tree
    """Demand that every coordinate is within the error that the candidate declares."""
    require_same_form(decoded, expected, "the decoded and the expected update")
    everywhere = isinstance(error, int | float | np.generic)
    bounds: dict[str, Leaf] = {} if everywhere else leaves(error)
    if not everywhere and bounds.keys() != leaves(decoded).keys():
        raise InvalidParameters(
            f"the error is bounded for {sorted(bounds)} only; bound it for every array of an update"
        )
    for place, leaf in leaves(decoded).items():
        wanted = leaves(expected)[place]
        wide = np.promote_types(np.promote_types(leaf.dtype, wanted.dtype), np.float64)
        bound = np.asarray(error if everywhere else bounds[place], dtype=wide)
        allowed = bound + _rounding(leaf, _largest(wanted) + _largest(bound), ulps)
        _require_close(leaf.astype(wide), wanted.astype(wide), allowed, f"the decoded update, at {place},", "expected")


def _require_close(left: Leaf, right: Any, allowed: Any, left_name: str, right_name: str) -> None:  # noqa: ANN401
    distance = np.abs(left - right)
    # A distance that is NaN is not within anything.
    outside = ~np.asarray(distance <= allowed, dtype=bool)
    if outside.any():
        where = tuple(int(axis) for axis in np.argwhere(outside)[0])
        bound = np.broadcast_to(np.asarray(allowed), left.shape)[where]
        raise ContractViolation(
            f"{left_name} has {left[where]!s} where {right_name} has {np.asarray(right)[where]!s}, and they may differ "
            f"by {bound!s} (coordinate {where})"
        )


def _rounding(leaf: Leaf, magnitude: float, ulps: float) -> float:
    """Return how far floats of this array's type may be off where numbers of this magnitude were rounded."""
    return ulps * float(np.finfo(leaf.dtype).eps) * magnitude if leaf.dtype.kind == "f" else 0.0


def _largest(leaf: Leaf) -> float:
    """Return the largest magnitude; below the smallest normal number, floats are rounded as that one is."""
    least = float(np.finfo(leaf.dtype).smallest_normal) if leaf.dtype.kind == "f" else 0.0
    return max(least, float(np.abs(leaf.astype(np.float64)).max(initial=0.0)))


def _shown(leaf: Leaf) -> str:
    return f"{leaf.dtype} {np.array2string(leaf, threshold=8)}"
