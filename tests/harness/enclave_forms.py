"""One session of each form of an enclave, through a connection to a remote service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract.layout import Layout, RingSegment, RowSegment
from secagg.parameters import Suite
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.remote_enclave import RemoteEnclave
from tests.harness.enclave_buffers import RING_LAYOUT, EnclaveSetup, Host, InsecureEnclaveSession, model_digest

NORMS = (9, 0)


def setups() -> Iterator[tuple[str, EnclaveSetup]]:
    """Yield a name and a setup for each suite and form."""
    for suite in Suite:
        plain = EnclaveSetup(suite=suite, layout=RING_LAYOUT)
        forms: dict[str, EnclaveSetup] = {
            "sum": plain,
            "bounded": replace(plain, max_norms=NORMS),
            "rows": replace(plain, layout=Layout((RingSegment(20, 6), RowSegment(3, least=2))), codebooks=()),
        }
        for way in Accumulation:
            mixed = EnclaveSetup(suite=suite, accumulation=way)
            forms[f"decoded sum, {way.name}"] = mixed
            forms[f"histogram, {way.name}"] = replace(mixed, form=ReleaseForm.HISTOGRAM)
        for kind in NoiseKind:
            noised = replace(plain, noise_kind=kind, noise_multiplier=Fraction(1, 10), l2_bounds=(40, 40))
            forms[f"noise, {kind.name}"] = noised
        for name, setup in forms.items():
            yield f"{suite.name}, {name}", setup


def plain_sum(length: int) -> EnclaveSetup:
    """Return a setup with one vector."""
    return EnclaveSetup(suite=Suite.HYBRID, layout=Layout((RingSegment(20, length),)))


def released_by(remote: RemoteEnclave, setup: EnclaveSetup) -> Any:
    """Return what one session releases through a connection."""
    session: Any = InsecureEnclaveSession(setup)
    offer, evidence = remote.start(session.configuration)
    session.enclave = SimpleNamespace(offer=offer, evidence=evidence)
    session.host = Host(session.configuration, remote)
    return _released(session)


def released_here(setup: EnclaveSetup) -> Any:
    """Return what the same session releases with an enclave in this process."""
    return _released(InsecureEnclaveSession(setup))


def _released(session: InsecureEnclaveSession) -> Any:
    session.host.open_buffer(0, model_digest(0))
    for number in (1, 2, 3, 4):
        session.host.receive(session.seal(number).encode())
    return session.host.release()[0]


def require_same(setup: EnclaveSetup, there: Any, here: Any) -> None:
    """Fail unless both are the same sum, or differ only by noise."""
    assert there.contributors == here.contributors == 4
    assert there.layout == here.layout
    if setup.noise_multiplier is None:
        assert there.encode() == here.encode()
        return
    assert there.encode() != here.encode(), "each has its own noise"
