"""Data sets by name: bundled, installed, or in a given folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters
from secagg.training.datasets.prepared import Dealing

from .prepared import LEAF_SETS, PreparedData, Split, leaf, prepare_leaf
from .sources import INSTALLED, fashion, stdlib_characters, vader

NAMES: Final = ("fashion", "fashion-full", "vader", "stdlib-chars", *LEAF_SETS)
_CLIENTS: Final = 200
"""Default number of clients for examples without owners."""

__all__ = ["LEAF_SETS", "NAMES", "PreparedData", "Split", "federated_data", "prepare_leaf"]


def federated_data(
    name: str, *, root: Path | None = None, clients: int | None = None, alpha: float = 1.0, seed: int = 0
) -> PreparedData:
    """Return a data set by its name.

    Args:
        root: the folder of its files, or for ``vader`` an archive.
        clients: number of clients that share the examples; for LEAF's users and modules, the maximum number.
        alpha: similarity of the clients' labels, for examples without owners.
    """
    dealing = Dealing(clients=_CLIENTS if clients is None else clients, alpha=alpha, seed=seed)
    match name:
        case "fashion":
            return fashion(dealing)
        case "fashion-full":
            return fashion(dealing, INSTALLED if root is None else root)
        case "vader":
            return vader(root, dealing)
        case "stdlib-chars":
            return stdlib_characters(root, clients=clients)
        case _ if name in LEAF_SETS:
            return leaf(name, root, clients=clients)
        case _:
            raise InvalidParameters(f"unknown data set {name!r}; the data sets are {', '.join(NAMES)}")
