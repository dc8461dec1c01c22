"""Evidence of our own in each format, a verifier that trusts its roots, and the vendors' samples where they are."""

import hashlib
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import PeerError, Reason
from secagg.protocols.enclave.attestation import (
    Claims,
    Evidence,
    EvidenceFormat,
    IntelCollateral,
    Roots,
    SnpCollateral,
    Verifier,
)
from tests.harness.suites import VARIABLE, folder

PACKAGE = "secagg_self_made_evidence"


@pytest.fixture(scope="session")
def self_made() -> Iterator[ModuleType]:
    """Import the folder of makers, which is no package, under a name for as long as tests use it."""
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(Path(__file__).parent / "self_made")]
    sys.modules[PACKAGE] = module_from_spec(spec)
    yield import_module(f"{PACKAGE}.makers")
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


@pytest.fixture(scope="session")
def roots(self_made: ModuleType) -> Roots:
    def fingerprint(issued: Any) -> bytes:
        return hashlib.sha256(issued.der).digest()

    return Roots(
        nitro=frozenset({fingerprint(self_made.nitro.chain()[0])}),
        amd=frozenset({fingerprint(self_made.snp.authorities()[0])}),
        intel=frozenset({fingerprint(self_made.intel.authorities()[0])}),
    )


Verify = Callable[..., Claims]


@pytest.fixture(scope="session")
def snp_collateral(self_made: ModuleType) -> Callable[..., SnpCollateral]:
    def make(**changes: Any) -> SnpCollateral:
        root, authority = self_made.snp.authorities()
        fields = {
            "chip_certificate": self_made.snp.chip_certificate().der,
            "authority_certificate": authority.der,
            "root_certificate": root.der,
            "revocation_list": self_made.snp.amd_revocation_list(),
        }
        return SnpCollateral(**(fields | changes))

    return make


@pytest.fixture(scope="session")
def intel_collateral(self_made: ModuleType) -> Callable[..., IntelCollateral]:
    def make(technology: str = "SGX", *, replace: dict[str, bytes] | None = None, **changes: Any) -> IntelCollateral:
        return IntelCollateral(**(self_made.intel.collateral(technology, **changes) | (replace or {})))

    return make


@pytest.fixture(scope="session")
def verify(self_made: ModuleType, roots: Roots) -> Verify:
    """Verify evidence of our own at the time for which it was made, or at another."""

    def run(kind: EvidenceFormat, document: bytes, collateral: Any = None, now: Any = None) -> Claims:
        return Verifier(roots).verify(Evidence(kind, document), collateral, now or self_made.authority.NOW)

    return run


@pytest.fixture(scope="session")
def refusal() -> Callable[..., Reason]:
    """Return the reason of the refusal that a call must end in; nobody is blamed for what a relay may have changed."""

    def catch(call: Callable[[], object], saying: str = "") -> Reason:
        with pytest.raises(PeerError) as caught:
            call()
        assert caught.value.culprits == frozenset()
        assert saying in str(caught.value)
        return caught.value.reason

    return catch


@pytest.fixture(scope="session")
def samples() -> Path:
    """Find the vendors' samples, which are not ours to publish; where the variable is set they must be there."""
    place = folder()
    if place is None:
        pytest.skip(f"{VARIABLE} does not name the folder of the vendors' samples")
    return place / "attestation"
