"""Data sets by name: bundled, installed, or in a folder that the user names."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters
from secagg.training.datasets.fashion import INSTALLED, fashion
from secagg.training.datasets.prepared import PreparedData, Split
from secagg.training.partition import Dealing

NAMES: Final = ("fashion", "fashion-full")

__all__ = ["NAMES", "PreparedData", "Split", "federated_data"]


def federated_data(  # noqa: PLR0913 -- what a configuration says of its data
    name: str,
    *,
    root: Path | None = None,
    clients: int = 200,
    alpha: float = 1.0,
    spread: float = 0.35,
    style: bool = False,
    seed: int = 0,
) -> PreparedData:
    """Return a data set by its name.

    Raises:
        InvalidParameters: there is none of that name, or its files are missing or damaged.
    """
    dealing = Dealing(clients=clients, alpha=alpha, spread=spread, style=style, seed=seed)
    match name:
        case "fashion":
            return fashion(dealing)
        case "fashion-full":
            return fashion(dealing, INSTALLED if root is None else root)
        case _:
            raise InvalidParameters(f"there is no data set {name!r}; the data sets are {', '.join(NAMES)}")
