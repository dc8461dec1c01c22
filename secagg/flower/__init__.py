"""Secure aggregation for Flower apps: a client mod, a grid for the server, and a fit workflow for legacy strategies.

The names are resolved when they are used, so that identities can be made, and settings read, where Flower is absent.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from secagg.errors import InvalidParameters, Reason

if TYPE_CHECKING:
    from secagg.platforms.settings import SecAggSettings

    from .app.client_mod import SecAggMod
    from .app.legacy import SecAggFitWorkflow
    from .app.server_grid import SecAggGrid

__all__ = ["SecAggFitWorkflow", "SecAggGrid", "SecAggMod", "SecAggSettings"]

_MODULES = {
    "SecAggFitWorkflow": "secagg.flower.app.legacy",
    "SecAggGrid": "secagg.flower.app.server_grid",
    "SecAggMod": "secagg.flower.app.client_mod",
    "SecAggSettings": "secagg.platforms.settings",
}


def __getattr__(name: str) -> object:
    """Import what is asked for.

    Raises:
        InvalidParameters: Flower is not installed; the message names the extra.
    """
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise InvalidParameters(
            f"{name} needs Flower; install it with: pip install 'secagg[flower]'", reason=Reason.BACKEND_MISSING
        ) from None
