"""Lazy packages: public names are imported on first use, so that a client loads only the client's modules.

A package imports ``from .client import Client as Client`` under ``TYPE_CHECKING``, and passes the same names to
``public_names`` in the other branch. Type checkers see only the imports, and report a name that the package lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module


def public_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        names: for each module of the package, its public names separated by spaces.
    """
    modules = {name: f"{package}.{module}" for module, listed in names.items() for name in listed.split()}
    namespace = vars(import_module(package))

    def load(name: str) -> object:
        if name in modules:
            value: object = getattr(import_module(modules[name]), name)
        elif name in names:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def listed() -> list[str]:
        return sorted({*namespace, *modules})

    return load, listed, sorted(modules)
