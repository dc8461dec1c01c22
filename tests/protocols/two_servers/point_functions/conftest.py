"""The slow implementations, which no test imports by name, and what the tests of point functions share."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.identifiers import ClientId
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape
from secagg.simulation.insecure_coins import InsecureSeededCoins

PACKAGE = "secagg_slow_point_functions"
CONTEXT = bytes(range(32))

Integers = npt.NDArray[np.int64]
Share = Callable[..., tuple[ServerShare, ServerShare]]
Reconstruct = Callable[[ServerShare, ServerShare], Integers]


@pytest.fixture(scope="session")
def slow_reference(repository: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a module of the slow implementation."""
    folder = repository / "tests/protocols/two_servers/point_functions/slow_reference"
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[PACKAGE] = module_from_spec(spec)
    yield lambda module: import_module(f"{PACKAGE}.{module}")
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


@pytest.fixture
def share() -> Share:
    """Return a function that shares point functions with repeatable coins."""

    def shared(
        shape: PointFunctionShape, alpha: Any, *, seed: bytes = b"coins", client: int = 5, **rest: Any
    ) -> tuple[ServerShare, ServerShare]:
        options: dict[str, Any] = {"context": CONTEXT, "coins": InsecureSeededCoins(seed)} | rest
        return generate_shares(shape, np.asarray(alpha), client=ClientId(client), **options)

    return shared


@pytest.fixture
def reconstruct() -> Reconstruct:
    """Return a function that adds the two servers' rows up."""

    def reconstructed(share_0: ServerShare, share_1: ServerShare) -> Integers:
        rows = [share.lanes(0, share.blocks).astype(object) for share in (share_0, share_1)]
        total: Any = (rows[0] + rows[1]) % share_0.shape.group.order
        integers: Integers = total.astype(np.uint64).astype(np.int64)
        return integers

    return reconstructed
