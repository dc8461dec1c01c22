"""A model's arrays as what is aggregated: the difference to the model that the server sent, tensor by tensor.

Floating-point tensors change by a float difference. Integer tensors, such as the counters of a normalisation layer,
change by an integer difference, whose weighted mean is rounded to the nearest integer; it is exact, and refused where
it is larger than its bound. Both keep their dtype. Tensors without elements stay as they were sent. Other dtypes, such
as booleans, are refused by name: a sum of them means nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import CapacityExceeded, InvalidParameters, Reason

Arrays = Mapping[str, npt.NDArray[Any]]
TENSOR: Final = "tensor/"
"""Before the name of every tensor of the model, so that none can be taken for the vector of metrics."""
METRICS: Final = "metrics"
_NARROW_FLOAT_BYTES: Final = 4


def is_integer(array: npt.NDArray[Any]) -> bool:
    """Whether a tensor is aggregated as integers."""
    return array.dtype.kind in "iu"


def aggregated_names(sent: Arrays) -> tuple[str, ...]:
    """Return the names of the tensors that are aggregated, in their order.

    Raises:
        InvalidParameters: a tensor is neither of floats nor of integers; or there is nothing to aggregate.
    """
    for name, array in sent.items():
        if array.dtype.kind not in "fiu":
            raise InvalidParameters(
                f"tensor {name!r} is of dtype {array.dtype}, which has no sum; leave it out of the record that is "
                "aggregated, or send it as floats"
            )
    names = tuple(name for name, array in sent.items() if array.size)
    if not names:
        raise InvalidParameters("the model has no tensor with any elements; send the arrays that clients train")
    return names


def differences(sent: Arrays, trained: Arrays, integer_bound: float) -> dict[str, npt.NDArray[Any]]:
    """Return by how much training changed each tensor, under the names of the update.

    Raises:
        InvalidParameters: the client returned other tensors than it was sent.
        CapacityExceeded: an integer changed by more than its bound.
    """
    if sent.keys() != trained.keys():
        changed = sorted(sent.keys() ^ trained.keys())
        raise InvalidParameters(
            f"training returned other tensors than were sent: {changed[:4]}; return all and only those"
        )
    update = dict[str, npt.NDArray[Any]]()
    for name in aggregated_names(sent):
        before, after = sent[name], trained[name]
        if before.shape != after.shape:
            raise InvalidParameters(
                f"tensor {name!r} was sent with shape {before.shape} and returned with {after.shape}"
            )
        if is_integer(before) != is_integer(after) or after.dtype.kind not in "fiu":
            raise InvalidParameters(f"tensor {name!r} was sent as {before.dtype} and returned as {after.dtype}")
        if is_integer(before):
            change = np.subtract(after, before, dtype=np.int64, casting="unsafe").astype(np.float64)
            if np.abs(change).max() > integer_bound:
                raise CapacityExceeded(
                    f"integer tensor {name!r} changed by more than {integer_bound:.0f}",
                    reason=Reason.INPUT_OUT_OF_RANGE,
                )
        else:
            wide = np.float32 if max(before.itemsize, after.itemsize) <= _NARROW_FLOAT_BYTES else np.float64
            change = np.subtract(after, before, dtype=wide, casting="unsafe")
        update[TENSOR + name] = np.ascontiguousarray(change).reshape(before.shape)
    return update


def applied(sent: Arrays, mean: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Return the model that was sent, changed by the mean difference; every tensor keeps its dtype."""
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


def model_digest(sent: Arrays) -> bytes:
    """Return the digest of a model as it was sent: names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, array in sent.items():
        described = f"{len(name.encode())}:{name}:{array.dtype.str}:{array.shape}:".encode()
        digest.update(described)
        digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.digest()
