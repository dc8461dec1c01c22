"""Imports the makers of evidence under test roots; their folder is not a package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

PACKAGE = "secagg_evidence_of_our_own"


def evidence_makers(repository: Path) -> Iterator[ModuleType]:
    """Yield ``makers``, and forget it afterwards."""
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(repository / "tests/protocols/enclave/attestation/self_made")]
    sys.modules[PACKAGE] = module_from_spec(spec)
    yield import_module(f"{PACKAGE}.makers")
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
