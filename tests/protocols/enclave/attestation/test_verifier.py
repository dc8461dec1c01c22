"""The entry to the formats: types, times and lengths; and the whole way from evidence to acceptance in each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import MalformedMessage, Misuse, Reason
from secagg.protocols.enclave.attestation import (
    PINNED_ROOTS,
    Claims,
    Evidence,
    EvidenceFormat,
    IntelCollateral,
    PinnedMeasurement,
    Policy,
    Roots,
    SnpCollateral,
    SnpTcb,
    Verifier,
)

Refusal = Callable[..., Reason]
NITRO, SNP, TDX, SGX = EvidenceFormat.NITRO, EvidenceFormat.SNP, EvidenceFormat.TDX, EvidenceFormat.SGX
NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
Case = tuple[EvidenceFormat, bytes, SnpCollateral | IntelCollateral | None]


@pytest.fixture(scope="module")
def cases(
    self_made: ModuleType,
    snp_collateral: Callable[..., SnpCollateral],
    intel_collateral: Callable[..., IntelCollateral],
) -> list[Case]:
    return [
        (NITRO, self_made.nitro.NitroDocument().encode(), None),
        (SNP, self_made.snp.SnpReport().encode(), snp_collateral()),
        (TDX, self_made.intel.tdx_quote().encode(), intel_collateral("TDX")),
        (SGX, self_made.intel.Quote().encode(), intel_collateral("SGX")),
    ]


def test_evidence_of_each_format_is_accepted_by_a_policy_that_pins_it(
    cases: list[Case], verify: Callable[..., Claims], self_made: ModuleType
) -> None:
    accepted = (
        PinnedMeasurement(NITRO, {f"PCR{index}": self_made.nitro.registers()[index] for index in range(3)}),
        PinnedMeasurement(SNP, {"MEASUREMENT": b"\x4d" * 48}),
        PinnedMeasurement(
            TDX, {"MRTD": b"\x3d" * 48} | {f"RTMR{index}": bytes([0xB0 + index]) * 48 for index in range(4)}
        ),
        PinnedMeasurement(SGX, {"MRENCLAVE": b"\xec" * 32}),
    )
    policy = Policy(accepted=accepted, minimum_snp_tcb=SnpTcb(boot_loader=4, tee=1, snp=22, microcode=209))
    for case in cases:
        policy.check(verify(*case), bytes(range(64)), self_made.authority.NOW)


def test_evidence_under_roots_of_our_own_is_refused_under_the_vendors(cases: list[Case], refusal: Refusal) -> None:
    for kind, document, collateral in cases:
        evidence = Evidence(kind, document)
        reason = refusal(partial(Verifier().verify, evidence, collateral, NOW), "not a pinned root")
        assert reason is Reason.ATTESTATION_INVALID


def test_the_pinned_roots_are_the_vendors() -> None:
    intel = "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3"
    nitro = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"
    milan = "69d063b45344d26a2e94e1f4210de49ef555308287d4c174445c95639a540bcd"
    genoa = "4c6598d19c18719c5dfd4a7d335f674e5bfe1d8f800cea2cf270c10d103db2f1"
    assert {root.hex() for root in PINNED_ROOTS.intel} == {intel}
    assert {root.hex() for root in PINNED_ROOTS.nitro} == {nitro}
    turin = "1f084161a44bb6d93778a904877d4819cafa5d05ef4193b2ded9dd9c73dd3f6a"
    assert {root.hex() for root in PINNED_ROOTS.amd} == {milan, genoa, turin}


class SimulatedEvidence:
    """What a simulated enclave hands out, in the shape of the real one."""

    def __init__(self, kind: EvidenceFormat, document: bytes) -> None:
        self.format, self.document = kind, document


class RelabelledEvidence(Evidence):
    """The same, by inheritance."""


def test_what_is_no_vendors_evidence_is_refused_by_type(cases: list[Case], roots: Roots, refusal: Refusal) -> None:
    verifier: Any = Verifier(roots)
    for kind, document, collateral in cases:
        for evidence in (SimulatedEvidence(kind, document), RelabelledEvidence(kind, document), document, None):
            reason = refusal(partial(verifier.verify, evidence, collateral, NOW), "is not hardware evidence")
            assert reason is Reason.ATTESTATION_REFUSED


def test_the_label_of_evidence_is_checked_against_its_bytes(cases: list[Case], verify: Callable[..., Claims]) -> None:
    collaterals = {kind: collateral for kind, _, collateral in cases}
    for kind, document, _ in cases:
        for label in EvidenceFormat:
            if label is not kind:
                with pytest.raises(MalformedMessage):
                    verify(label, document, collaterals[label])


def test_collateral_is_of_the_formats_kind(cases: list[Case], verify: Callable[..., Claims]) -> None:
    collaterals: list[Any] = [*(collateral for _, _, collateral in cases), "collateral"]
    for kind, document, own in cases:
        for collateral in collaterals:
            if type(collateral) is not type(own) and not (collateral is None and kind in (TDX, SGX)):
                with pytest.raises(Misuse):
                    verify(kind, document, collateral)


@pytest.mark.parametrize("now", [datetime(2031, 5, 6, 7, 8, 9), 1_935_000_000, None, "2031-05-06"])  # noqa: DTZ001
def test_the_time_has_a_zone(cases: list[Case], roots: Roots, now: Any) -> None:
    for kind, document, collateral in cases:
        with pytest.raises(Misuse):
            Verifier(roots).verify(Evidence(kind, document), collateral, now)


def test_the_same_time_in_another_zone_is_the_same_time(cases: list[Case], verify: Callable[..., Claims]) -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=-11)))
    for case in cases:
        assert verify(*case, elsewhere) == verify(*case, NOW)


@pytest.mark.parametrize(
    ("kind", "document"), [("sgx", b""), (None, b""), (SGX, bytearray(4)), (SGX, "text"), (SGX, None)]
)
def test_evidence_is_a_format_and_bytes(kind: Any, document: Any) -> None:
    with pytest.raises(Misuse):
        Evidence(kind, document)


def test_evidence_beyond_all_lengths_is_not_read(cases: list[Case], verify: Callable[..., Claims]) -> None:
    for kind, document, collateral in cases:
        with pytest.raises(MalformedMessage) as caught:
            verify(kind, document + bytes(1 << 16), collateral)
        assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


def test_neither_evidence_nor_collateral_is_printed(cases: list[Case]) -> None:
    for kind, document, collateral in cases:
        assert len(repr(Evidence(kind, document))) < 100
        assert len(repr(collateral)) < 100
