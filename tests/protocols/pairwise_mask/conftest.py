"""The second implementation, which tests cannot import by name."""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest


def load(package: str, folder: Path, module: str) -> Iterator[ModuleType]:
    """Import a module from a folder that is not a package, under a temporary name."""
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    sys.modules[package] = module_from_spec(spec)
    yield import_module(f"{package}.{module}")
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def slow_reference(repository: Path) -> Iterator[ModuleType]:
    folder = repository / "tests" / "protocols" / "pairwise_mask" / "slow_reference"
    yield from load("secagg_slow_reference", folder, "accumulated")
