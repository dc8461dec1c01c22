"""Secure aggregation for NVFlare: one line makes a FedAvg recipe secure.

The names are resolved when they are used, so that the room can be looked at where NVFlare is absent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from secagg.errors import InvalidParameters, Reason

if TYPE_CHECKING:
    from .recipe import secure

__all__ = ["secure"]

_MODULES = {"secure": "secagg.nvflare.recipe"}


def __getattr__(name: str) -> object:
    """Import what is asked for.

    Raises:
        InvalidParameters: NVFlare is not installed; the message names the extra.
    """
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nvflare":
            raise
        raise InvalidParameters(
            f"{name} needs NVFlare; install it with: pip install 'secagg[nvflare]'", reason=Reason.BACKEND_MISSING
        ) from None
