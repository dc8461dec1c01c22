"""The enclave variants: sums and histograms made in a small trusted part, and how a client knows what runs there.

A module is imported when one of its names is asked for: whatever was imported here before would be loaded with the
trusted part. README.md says which module has which name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .budget import epsilon_of
    from .session import EnclaveServerSession

__all__ = ["EnclaveServerSession", "epsilon_of"]
_MODULES = {"EnclaveServerSession": "session", "epsilon_of": "budget"}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- whatever has that name
    """Import the module of a name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
