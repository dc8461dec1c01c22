"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there.

This file imports a module when one of its names is asked for: whatever it imported before would be loaded with the
trusted part. README.md says which module has which name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .privacy.budget import epsilon_of
    from .privacy.sensitivity import Adjacency
    from .session import EnclaveServerSession, EnclaveSettings
    from .trusted.configuration import EnclaveConfiguration

__all__ = ["Adjacency", "EnclaveConfiguration", "EnclaveServerSession", "EnclaveSettings", "epsilon_of"]

_MODULE_OF = {
    "Adjacency": "privacy.sensitivity",
    "EnclaveConfiguration": "trusted.configuration",
    "EnclaveServerSession": "session",
    "EnclaveSettings": "session",
    "epsilon_of": "privacy.budget",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- whatever has that name
    """Import a name's module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
