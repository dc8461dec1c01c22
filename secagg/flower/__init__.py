"""Secure aggregation for Flower apps: a client mod, a grid for the server, and a fit workflow for legacy strategies.

Names are imported on first use, so that settings can be read without Flower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.platforms import needing
from secagg.platforms.settings import SecAggSettings as SecAggSettings

if TYPE_CHECKING:
    from .analytics import SiteStatistics as SiteStatistics
    from .analytics import ask as ask  # pyright: ignore[reportUnknownVariableType] -- of Flower's types
    from .client import SecAggMod as SecAggMod
    from .server_grid import SecAggFitWorkflow as SecAggFitWorkflow
    from .server_grid import SecAggGrid as SecAggGrid
else:
    __getattr__, __dir__, __all__ = needing(
        "flwr",
        __name__,
        {"client": "SecAggMod", "server_grid": "SecAggFitWorkflow SecAggGrid", "analytics": "SiteStatistics ask"},
    )
    __all__ += ["SecAggSettings"]
