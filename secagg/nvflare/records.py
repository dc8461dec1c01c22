"""Records between the controller and a client: one in a ``Shareable``, and a model as NumPy has it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.app_constant import AlgorithmConstants

from secagg.compression.model_update.summed_values import TENSOR, Arrays, is_integer
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.platforms.leaving import Left, code_of, code_said
from secagg.platforms.round_task import RECORD, Record

STAGE_TASK: Final = "secagg"
"""The task of a stage without updates; the stage with updates is the recipe's own task."""
CONTROL: Final = "scaffold_c/"
"""Before the name of every control variate of SCAFFOLD, which is summed next to the tensor of that name."""
_LEFT: Final = "secagg-left"
_NARROW: Final = ("torch.bfloat16", "torch.float16")
"""Types whose steps a mean would be lost in; 32 bits hold all of their numbers."""


def client_of(site: str) -> ClientId:
    """Return the client that a site without a key is; NVFlare has authenticated its name."""
    digest = hashlib.sha256(bind(Label.PLATFORM_CLIENT, site.encode())).digest()
    return ClientId(int.from_bytes(digest[:CLIENT_ID_BYTES], "big"))


def carrying(record: Record, content: Shareable | None = None) -> Shareable:
    """Return a record in a form that NVFlare sends, with a model where there is one."""
    shareable = Shareable() if content is None else content
    shareable[RECORD] = dict(record)
    return shareable


def emptied(content: Shareable, names: Iterable[str]) -> Shareable:
    """Return a task without the values of some tensors of its model, whose shapes and types stay."""
    dxo = from_shareable(content)
    dxo.data = {**dxo.data, **{name: dxo.data[name][None][:0] for name in names}}
    return cast("Shareable", dxo.update_shareable(content))


def refusal(error: Exception) -> Shareable:
    """Return what a server is told where a client leaves: that it left, and one of a few codes."""
    reply = make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
    reply.set_header(_LEFT, str(code_of(error)))
    return cast("Shareable", reply)


def failure_in(reply: Shareable) -> Left | None:
    """Return why a client left; nothing where it answered."""
    code = reply.get_return_code()
    if code == ReturnCode.OK:
        return None
    said = reply.get_header(_LEFT)
    # A site may say anything, such as values without a hash.
    return code_said(said) if said else (Left.TERMS if code == ReturnCode.TASK_DATA_FILTER_ERROR else Left.LEFT)


def arrays_in(model: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return a model's tensors as NumPy has them; those of PyTorch are looked at, and copied from 16 bits alone."""
    found = dict[str, npt.NDArray[Any]]()
    for name, value in model.items():
        tensor = value.detach().cpu() if hasattr(value, "detach") else value
        if _is_narrow(tensor):
            tensor = tensor.float()
        try:
            array = tensor.numpy() if hasattr(tensor, "numpy") else tensor
        except TypeError as error:
            raise InvalidParameters(f"tensor {name!r} cannot be read ({error}); send it as float32") from None
        if not isinstance(array, np.ndarray | np.generic):
            raise InvalidParameters(f"{name!r} is a {type(value).__name__} and no tensor; send NumPy arrays or tensors")
        # That of ml_dtypes.
        found[name] = np.asarray(array, dtype=np.float32 if array.dtype.name == "bfloat16" else None)
    return found


def controls_in(meta: Mapping[str, Any] | None) -> dict[str, npt.NDArray[Any]]:
    """Return SCAFFOLD's control variates in what is said of a model, under their names in the sum.

    NVFlare has them for counters of whole numbers too, which nothing corrects.
    """
    found = arrays_in((meta or {}).get(AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL) or {})
    return {CONTROL + name: array for name, array in found.items() if not is_integer(array)}


def changes_of(means: Arrays, sent: Arrays, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the mean changes of some tensors, of the types that they were sent with."""
    found = {name: means[TENSOR + name] for name in names if TENSOR + name in means}
    return {
        name: (np.rint(change) if is_integer(sent[name]) else change).astype(sent[name].dtype)
        for name, change in found.items()
    }


def like(before: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return arrays as tensors of the library that those of a model are of; 16 bits become 32, as everywhere here."""
    models = {name: tensor.float() if _is_narrow(tensor) else tensor for name, tensor in before.items()}
    return {
        name: models[name].new_tensor(array) if hasattr(models[name], "new_tensor") else array
        for name, array in arrays.items()
    }


def _is_narrow(tensor: object) -> bool:
    return str(getattr(tensor, "dtype", "")) in _NARROW
