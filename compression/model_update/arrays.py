"""Converts a model's arrays to the differences that are aggregated, and back.

Floating-point tensors change by a float difference. Integer tensors, such as the counters of a normalisation layer,
change by an integer difference, which is exact up to its bound and clipped there; its weighted mean is rounded to the
nearest integer. Both keep their dtype. Empty tensors, tensors that no pattern names, and booleans, which have no
meaningful sum, stay as they were sent; training must not change a boolean. Other dtypes are refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters

Arrays = Mapping[str, npt.NDArray[Any]]
TENSOR: Final = "tensor/"
"""Prefix of every tensor's name, so that no tensor can be confused with the vector of metrics."""
METRICS: Final = "secagg/metrics"
_NARROW_FLOAT_BYTES: Final = 4
_LARGEST_WHOLE: Final = 1 << 53


def is_integer(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor is aggregated as integers."""
    return array.dtype.kind in "iu"


def is_boolean(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor is boolean, and so never summed."""
    return array.dtype.kind == "b"


def aggregated_names(sent: Arrays, patterns: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names of the summed tensors, in order.

    Args:
        patterns: shell patterns of names; without any, all are summed.
        excluded: patterns of names that are not summed, such as parts that stay on each client.
    """
    for key, each in (("secagg-tensors", patterns), ("secagg-exclude", excluded)):
        if idle := [pattern for pattern in each if not any(fnmatchcase(name, pattern) for name in sent)]:
            raise InvalidParameters(f"{key} names {idle[0]}, but the model has {', '.join(list(sent)[:8])}")
    left = [name for name in sent if not any(fnmatchcase(name, pattern) for pattern in excluded)]
    chosen = [name for name in left if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]
    for name in chosen:
        if sent[name].dtype.kind not in "fiub":
            raise InvalidParameters(
                f"tensor {name!r} is of dtype {sent[name].dtype}, which cannot be summed; leave it out of the record "
                "to aggregate, name the others in secagg-tensors, or send it as floats"
            )
    names = tuple(name for name in chosen if sent[name].size and not is_boolean(sent[name]))
    if not names:
        named = f" in secagg-tensors ({', '.join(patterns)})" if patterns else ""
        named += f" outside secagg-exclude ({', '.join(excluded)})" if excluded else ""
        raise InvalidParameters(
            f"the model has no non-empty tensor of numbers{named}; send the arrays that clients train"
        )
    return names


def differences(
    sent: Arrays, trained: Arrays, integer_bound: float, names: Iterable[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return the change of each summed tensor in training, by its name in the update.

    Args:
        names: names of the summed tensors; by default all that can be. Other returned tensors are ignored.
    """
    summed = aggregated_names(sent) if names is None else tuple(names)
    if missing := sorted({*summed} - trained.keys() | trained.keys() - sent.keys()):
        raise InvalidParameters(
            f"training did not return these tensors, which were sent and are summed: {missing[:4]}; return them, or "
            "name in secagg-tensors which ones are trained"
        )
    for name, before in sent.items():
        if is_boolean(before) and name in trained and not np.array_equal(before, trained[name]):
            raise InvalidParameters(
                f"training changed the boolean tensor {name!r}, which cannot be summed; send floats, or keep it"
            )
    update = dict[str, npt.NDArray[Any]]()
    for name in summed:
        before, after = sent[name], trained[name]
        if before.shape != after.shape:
            raise InvalidParameters(
                f"tensor {name!r} was sent with shape {before.shape} but returned with {after.shape}"
            )
        if is_integer(before) and after.dtype.kind == "f" and np.array_equal(after, np.rint(after)):
            # Training turned integers into floats.
            after = np.clip(after, -_LARGEST_WHOLE, _LARGEST_WHOLE).astype(np.int64)
        elif is_integer(after) and before.dtype.kind == "f" and np.array_equal(before, np.rint(before)):
            # A strategy or a saved model turned integers into floats.
            after = after.astype(np.float64)
        if is_integer(before) != is_integer(after) or after.dtype.kind not in "fiu":
            raise InvalidParameters(f"tensor {name!r} was sent as {before.dtype} but returned as {after.dtype}")
        if is_integer(before):
            change = np.subtract(after, before, dtype=np.int64, casting="unsafe").astype(np.float64)
            change = np.clip(change, -integer_bound, integer_bound)
        else:
            wide = np.float32 if max(before.itemsize, after.itemsize) <= _NARROW_FLOAT_BYTES else np.float64
            change = np.subtract(after, before, dtype=wide, casting="unsafe")
        update[TENSOR + name] = np.ascontiguousarray(change).reshape(before.shape)
    return update


def applied(sent: Arrays, mean: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return the sent model plus the mean difference; every tensor keeps its dtype."""
    changed = dict[str, npt.NDArray[Any]]()
    for name, before in sent.items():
        difference = mean.get(TENSOR + name)
        if difference is None:
            changed[name] = before
        elif is_integer(before):
            changed[name] = (before.astype(np.int64) + np.rint(difference).astype(np.int64)).astype(before.dtype)
        else:
            changed[name] = (before.astype(np.float64) + difference).astype(before.dtype)
    return changed


def restored(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a tensor of integers or booleans in its dtype after a strategy multiplied it by floats."""
    if array.dtype == dtype or dtype.kind not in "iub" or array.dtype.kind in "iub":
        return array
    changed: npt.NDArray[Any] = array.astype(bool) if dtype.kind == "b" else np.rint(array).astype(dtype)
    return changed


def model_digest(sent: Arrays) -> bytes:
    """Return the digest of a model or of an unrounded update: names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, array in sent.items():
        described = f"{len(name.encode())}:{name}:{array.dtype.str}:{array.shape}:".encode()
        digest.update(described)
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.digest()
