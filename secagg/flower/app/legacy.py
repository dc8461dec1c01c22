"""Fit workflow for apps of the legacy API, in the place of ``SecAggPlusWorkflow``.

``DefaultWorkflow(fit_workflow=SecAggFitWorkflow())(grid, legacy_context)``; the client's side is the same mod.
"""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.server.workflow.default_workflows import default_fit_workflow
from flwr.serverapp import Grid

from secagg.errors import Misuse
from secagg.platforms.settings import SecAggSettings

from .server_grid import SecAggGrid


class SecAggFitWorkflow:
    """One fit round of the legacy API, whose results reach the strategy as one: the mean."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 -- of the settings' own types
        """Take the settings as keywords, with underscores; the run's ``secagg-`` keys give the others."""
        self._given = settings
        self._grid: SecAggGrid | None = None

    def __call__(self, grid: Grid, context: Context) -> None:
        strategy: object = getattr(context, "strategy", None)
        if strategy is None:
            raise Misuse(f"expected a LegacyContext, which has a strategy; got {type(context).__name__}")
        if self._grid is None:
            settings = SecAggSettings(**self._given) if self._given else None
            self._grid = SecAggGrid(grid, context, settings=settings, strategy=strategy)
        default_fit_workflow(self._grid, context)
