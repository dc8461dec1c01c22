"""The plain implementation, with which tests play clients that cheat; no test imports it by name."""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

from secagg.protocols.two_servers.point_functions import lanes as extension_field
from secagg.protocols.two_servers.point_functions.lanes import ExtensionField


@pytest.fixture(scope="session")
def plain() -> Iterator[ModuleType]:
    package = "secagg_plain_one_hot"
    spec = ModuleSpec(package, None, is_package=True)
    spec.submodule_search_locations = [str(Path(__file__).parent / "plain")]
    sys.modules[package] = module_from_spec(spec)
    yield import_module(f"{package}.client")
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


@pytest.fixture
def quadratic_field(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make F so small that all its elements can be tried: 127^2, of which 127 lie in the base field."""
    monkeypatch.setitem(extension_field.DEGREES_AND_CONSTANTS, 127, (2, 3))


@pytest.fixture
def field_of_127(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make F so small that cheating succeeds often enough to be counted: the base field itself.

    Query points then come from it as well, from 16 upwards; tests take at most 7 columns.
    """

    def is_low(_: ExtensionField, element: extension_field.Elements) -> bool:
        return int(element[..., 0]) <= 15

    monkeypatch.setitem(extension_field.DEGREES_AND_CONSTANTS, 127, (1, 3))
    monkeypatch.setattr(ExtensionField, "is_in_base_field", is_low)
    return 127
