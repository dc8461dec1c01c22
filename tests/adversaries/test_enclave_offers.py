"""Enclaves that a client has no reason to seal to, and configurations that would have an honest one give it away."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout
from secagg.contract.codewords import CodewordTable, Tables
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ServerId
from secagg.protocols.enclave.attestation import (
    Evidence,
    EvidenceFormat,
    PinnedMeasurement,
    Policy,
    Roots,
    SnpCollateral,
    SnpTcb,
    Verifier,
)
from secagg.protocols.enclave.client import VerifiedEnclave
from secagg.protocols.enclave.floors import EnclaveFloors
from secagg.protocols.enclave.remote_enclave import SimulatedEvidence, SimulatedJudge
from secagg.protocols.enclave.session import HardwareJudge
from secagg.protocols.enclave.trusted.configuration import NO_AUTHORITY, EnclaveConfiguration, ReleaseForm
from secagg.protocols.enclave.trusted.messages import EnclaveOffer, ModelStamp
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, sealed_by

PACKAGE = "secagg_evidence_of_our_own"
MODEL = ModelStamp(version=0, digest=bytes(32))


@pytest.fixture(scope="module")
def makers(repository: Path) -> Iterator[ModuleType]:
    """Import the makers of evidence, whose folder is no package, for as long as these tests use them."""
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(repository / "tests/protocols/enclave/attestation/self_made")]
    sys.modules[PACKAGE] = module_from_spec(spec)
    yield import_module(f"{PACKAGE}.makers")
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


@pytest.fixture
def hardware(makers: ModuleType) -> Callable[..., HardwareJudge]:
    """Make a judge that trusts the makers' roots and pins one program of each of two formats."""

    def fingerprint(issued: Any) -> frozenset[bytes]:
        return frozenset({hashlib.sha256(issued.der).digest()})

    roots = Roots(
        nitro=fingerprint(makers.nitro.chain()[0]), amd=fingerprint(makers.snp.authorities()[0]), intel=frozenset()
    )
    nitro = {f"PCR{index}": makers.nitro.registers()[index] for index in (0, 1, 2)}
    pins = (
        PinnedMeasurement(EvidenceFormat.NITRO, nitro),
        PinnedMeasurement(EvidenceFormat.SNP, {"MEASUREMENT": b"\x4d" * 48}),
    )
    policy = Policy(accepted=pins, minimum_snp_tcb=SnpTcb(boot_loader=4, tee=0, snp=22, microcode=200))

    def make(collateral: Any = None) -> HardwareJudge:
        return HardwareJudge(policy=policy, verifier=Verifier(roots), collateral=collateral)

    return make


@pytest.fixture
def session(makers: ModuleType) -> InsecureEnclaveSession:
    return InsecureEnclaveSession(EnclaveSetup(), now=makers.authority.NOW)


def nitro_of(makers: ModuleType, binding: bytes, **fields: Any) -> Evidence:
    return Evidence(EvidenceFormat.NITRO, makers.nitro.NitroDocument(fields={"user_data": binding, **fields}).encode())


def verified(
    session: InsecureEnclaveSession,
    evidence: Any,
    judge: Any,
    *,
    offer: EnclaveOffer | None = None,
    now: datetime | None = None,
) -> VerifiedEnclave:
    return VerifiedEnclave(
        offer or session.enclave.offer,
        evidence,
        configuration=session.configuration,
        judge=judge,
        now=now or session.now,
    )


def refusal(call: Callable[[], object]) -> Reason:
    with pytest.raises(PeerError) as caught:
        call()
    return caught.value.reason


# --- Evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_of_pinned_hardware_for_these_keys_is_accepted(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    binding = session.enclave.offer.binding
    enclave = verified(session, nitro_of(makers, binding), hardware())
    assert "nitro" in enclave.program.lower()
    snp = Evidence(EvidenceFormat.SNP, makers.snp.SnpReport(report_data=binding).encode())
    assert "snp" in verified(session, snp, hardware(snp_collateral(makers))).program.lower()
    sealed_by(session.clients[0], session.setup.payload_of(1), enclave=enclave, model=MODEL, now=session.now)


def other_offers(session: InsecureEnclaveSession) -> dict[str, EnclaveOffer]:
    offer = session.enclave.offer
    other = InsecureEnclaveSession(replace(session.setup, seed=b"another host")).enclave.offer
    return {
        "sealing key": replace(offer, sealing_key=other.sealing_key),
        "receipt key": replace(offer, receipt_key=other.receipt_key),
        "epoch": replace(offer, epoch=other.epoch),
        "configuration": replace(offer, context=AttemptContext(bytes(32))),
    }


@pytest.mark.parametrize("what", ["sealing key", "receipt key", "epoch", "configuration"])
@pytest.mark.parametrize("simulated", [False, True])
def test_evidence_serves_no_other_key_epoch_or_configuration(
    what: str,
    simulated: bool,  # noqa: FBT001 -- a parameter of the test
    session: InsecureEnclaveSession,
    makers: ModuleType,
    hardware: Callable[..., HardwareJudge],
) -> None:
    other = other_offers(session)[what]
    genuine, forged = session.enclave.offer.binding, other.binding
    assert genuine != forged
    judge: Any = SimulatedJudge() if simulated else hardware()

    def of(binding: bytes) -> Any:
        return SimulatedEvidence(binding) if simulated else nitro_of(makers, binding)

    assert refusal(lambda: verified(session, of(forged), judge)) is Reason.ATTESTATION_REFUSED
    expected = Reason.WRONG_SESSION if what == "configuration" else Reason.ATTESTATION_REFUSED
    assert refusal(lambda: verified(session, of(genuine), judge, offer=other)) is expected


def test_a_simulation_is_no_hardware_and_hardware_no_simulation(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    simulated = session.enclave.evidence
    assert type(simulated) is SimulatedEvidence
    assert refusal(lambda: verified(session, simulated, hardware())) is Reason.ATTESTATION_REFUSED
    genuine = nitro_of(makers, session.enclave.offer.binding)
    assert refusal(lambda: verified(session, genuine, SimulatedJudge())) is Reason.ATTESTATION_REFUSED
    assert refusal(lambda: verified(session, None, hardware())) is Reason.ATTESTATION_REFUSED


def test_another_program_and_a_debug_build_are_refused(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    binding = session.enclave.offer.binding
    for registers in (
        makers.nitro.registers() | {2: b"\xee" * 48},
        makers.nitro.registers() | dict.fromkeys((0, 1, 2), bytes(48)),
    ):
        document = nitro_of(makers, binding, pcrs=registers)
        assert refusal(partial(verified, session, document, hardware())) is Reason.ATTESTATION_REFUSED
    report = makers.snp.SnpReport(report_data=binding, policy=0x20000 | 1 << 19).encode()
    judge = hardware(snp_collateral(makers))
    debug = Evidence(EvidenceFormat.SNP, report)
    assert refusal(lambda: verified(session, debug, judge)) is Reason.ATTESTATION_REFUSED


def snp_collateral(makers: ModuleType, **changes: Any) -> SnpCollateral:
    root, authority = makers.snp.authorities()
    fields = {
        "chip_certificate": makers.snp.chip_certificate().der,
        "authority_certificate": authority.der,
        "root_certificate": root.der,
        "revocation_list": makers.snp.amd_revocation_list(),
    }
    return SnpCollateral(**(fields | changes))


def test_stale_collateral_is_refused(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    root, _ = makers.snp.authorities()
    stale = makers.authority.revocation_list(root, end=session.now - timedelta(seconds=1))
    evidence = Evidence(EvidenceFormat.SNP, makers.snp.SnpReport(report_data=session.enclave.offer.binding).encode())
    judge = hardware(snp_collateral(makers, revocation_list=stale))
    assert refusal(lambda: verified(session, evidence, judge)) is Reason.COLLATERAL_STALE
    # The host keeps a list of before a revocation, which says of itself that it holds for years.
    day = timedelta(days=1)
    old = makers.authority.revocation_list(root, start=session.now - 367 * day, end=session.now + 9999 * day)
    judge = hardware(snp_collateral(makers, revocation_list=old))
    assert refusal(lambda: verified(session, evidence, judge)) is Reason.COLLATERAL_STALE
    aging = makers.authority.revocation_list(root, start=session.now - 366 * day + timedelta(seconds=9))
    judge = hardware(snp_collateral(makers, revocation_list=aging))
    assert verified(session, evidence, judge).not_after == session.now + timedelta(seconds=9)
    missing = hardware(snp_collateral(makers, revocation_list=None))
    assert refusal(lambda: verified(session, evidence, missing)) is Reason.ATTESTATION_REFUSED


def test_evidence_that_has_run_out_is_not_sealed_to(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    """The document's certificate ends two hours after it was made, ten hours before the configuration does."""
    enclave = verified(session, nitro_of(makers, session.enclave.offer.binding), hardware())
    end = session.now + timedelta(hours=2)
    assert enclave.not_after == end
    payload, client = session.setup.payload_of(1), session.clients[0]
    late: Any = {"enclave": enclave, "model": MODEL, "now": end}
    with pytest.raises(PeerMisbehaved) as caught:
        sealed_by(client, payload, **late)
    assert caught.value.reason is Reason.ATTESTATION_REFUSED
    assert caught.value.culprits == {ServerId()}
    assert client.ledger.seals == 0
    sealed_by(client, payload, **(late | {"now": end - timedelta(seconds=1)}))


def test_only_a_verified_enclave_is_sealed_to(session: InsecureEnclaveSession) -> None:
    unverified: Any
    for unverified in (session.enclave, session.enclave.offer, None):
        with pytest.raises(Misuse, match="VerifiedEnclave"):
            sealed_by(session.clients[0], session.setup.payload_of(1), enclave=unverified, model=MODEL, now=session.now)


def test_a_low_order_sealing_key_is_refused_even_with_evidence(session: InsecureEnclaveSession) -> None:
    """An enclave that was made to publish a constant would let its host read every seed."""
    weak = replace(session.enclave.offer, sealing_key=bytes(32))
    evidence = SimulatedEvidence(weak.binding)
    assert refusal(lambda: verified(session, evidence, SimulatedJudge(), offer=weak)) is Reason.PUBLIC_KEY_LOW_ORDER
    second = replace(weak, sealing_key=(9 + 2**255 - 19).to_bytes(32, "little"))
    with pytest.raises(MalformedMessage) as caught:
        verified(session, SimulatedEvidence(second.binding), SimulatedJudge(), offer=second)
    assert caught.value.reason is Reason.PUBLIC_KEY_NOT_CANONICAL
    assert caught.value.culprits == {ServerId()}


# --- Configurations ---------------------------------------------------------------------------------------------------


def judged(
    floors: EnclaveFloors,
    configuration: EnclaveConfiguration,
    session: InsecureEnclaveSession,
    tables: Tables | None = None,
) -> None:
    own = session.setup.tables if tables is None else tables
    floors.admit(configuration, layout=session.setup.layout, tables=own, maximum_seals=1, now=session.now)


def admit(session: InsecureEnclaveSession, configuration: EnclaveConfiguration, **floors: Any) -> None:
    chosen: EnclaveFloors = replace(session.floors, **floors)
    judged(chosen, configuration, session)


def is_below_the_floor(
    session: InsecureEnclaveSession, changed: EnclaveConfiguration, saying: str, **floors: Any
) -> None:
    admit(session, session.configuration, **floors)
    with pytest.raises(InvalidParameters, match=saying) as caught:
        admit(session, changed, **floors)
    assert caught.value.reason is Reason.BELOW_FLOOR


def test_clients_certified_by_the_host_itself_are_no_company(session: InsecureEnclaveSession) -> None:
    own = session.setup.signing_key_of("the host's authority").public_key
    is_below_the_floor(session, replace(session.configuration, authority=own), "another authority")


def test_without_an_authority_there_is_noise_or_nothing(session: InsecureEnclaveSession) -> None:
    with pytest.raises(InvalidParameters, match="only noise"):
        replace(session.configuration, authority=NO_AUTHORITY)
    with pytest.raises(InvalidParameters, match="only noise"):
        replace(session.floors, authority=None)
    noised = InsecureEnclaveSession(replace(session.setup, noise_multiplier=Fraction(1), l2_bounds=(9, 9)))
    bare = replace(noised.configuration, authority=NO_AUTHORITY)
    with pytest.raises(InvalidParameters, match="another authority"):
        judged(session.floors, bare, session)


def test_codewords_can_spell_out_the_histogram_so_that_their_entries_are_bounded() -> None:
    """With powers of the cohort's size as codewords, the digits of the sum are the counts."""
    layout = Layout((IndexSegment(8, 5),))
    base, powers = 7, np.array([[7**digit] for digit in range(8)], dtype=np.int64)
    session = InsecureEnclaveSession(EnclaveSetup(layout=layout, form=ReleaseForm.HISTOGRAM, maximum_cohort=6))
    session.host.open_buffer(0, bytes(32))
    session.upload(1, 2, 3)
    counts: Any = session.host.release()[0].values[0]
    digits = (counts.astype(np.int64) @ powers).reshape(-1, 1) // powers.reshape(1, -1) % base
    assert (digits == counts).all(), "the attack would work"
    tables = ((CodewordTable(5, powers),),)
    spelled = replace(session.configuration, form=ReleaseForm.DECODED_SUM, tables=tables)
    # Even a client that was given this codebook as its own refuses it if its entries are bounded to what values need.
    bounded = replace(session.floors, maximum_codeword_bits=20), replace(session.floors, maximum_released_bits=22)
    for floors, saying in zip(bounded, ("entry", "element"), strict=True):
        with pytest.raises(InvalidParameters, match=saying) as caught:
            judged(floors, spelled, session, tables)
        assert caught.value.reason is Reason.BELOW_FLOOR
    judged(replace(session.floors, maximum_codeword_bits=21), spelled, session, tables)


def test_keys_that_live_for_more_than_a_day_are_refused(session: InsecureEnclaveSession) -> None:
    expiry = int((session.now + timedelta(days=1)).timestamp())
    admit(session, replace(session.configuration, expiry=expiry))
    is_below_the_floor(session, replace(session.configuration, expiry=expiry + 1), "longer than a day")
