"""What a policy accepts, and that everything else is refused: a rule at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.protocols.enclave.attestation import (
    Claims,
    EvidenceFormat,
    IntelTcb,
    PinnedMeasurement,
    Policy,
    SnpTcb,
    TcbStatus,
)

Refusal = Callable[..., Reason]
BIND = bytes(range(64))
NOW = datetime(2030, 12, 30, tzinfo=UTC)
END = NOW + timedelta(days=2)
NITRO, SNP, TDX, SGX = EvidenceFormat.NITRO, EvidenceFormat.SNP, EvidenceFormat.TDX, EvidenceFormat.SGX
LEAST = SnpTcb(boot_loader=4, tee=0, snp=22, microcode=200)
INTEL_TCB = IntelTcb(
    platform=TcbStatus.UP_TO_DATE, quoting_enclave=TcbStatus.UP_TO_DATE, module=None, evaluation_number=17
)

PROGRAM: dict[EvidenceFormat, dict[str, bytes]] = {
    NITRO: {name: name.encode() * 12 for name in ("PCR0", "PCR1", "PCR2")},
    SNP: {"MEASUREMENT": b"m" * 48},
    TDX: {name: name.encode().ljust(48) for name in ("MRTD", "RTMR0", "RTMR1", "RTMR2", "RTMR3")},
    SGX: {"MRENCLAVE": b"e" * 32},
}
SURROUNDINGS: dict[EvidenceFormat, dict[str, bytes]] = {
    NITRO: {f"PCR{index}": bytes([index]) * 48 for index in range(3, 16)},
    SNP: {"HOST_DATA": bytes(32)},
    TDX: dict.fromkeys(("MRCONFIGID", "MROWNER", "MROWNERCONFIG", "MRSERVICETD"), bytes(48)),
    SGX: {"CONFIGID": bytes(64), "CONFIGSVN": bytes(2)},
}
REQUIRED = [(kind, name) for kind in EvidenceFormat for name in PROGRAM[kind]]


def claims(kind: EvidenceFormat, **changes: Any) -> Claims:
    fields: dict[str, Any] = {
        "format": kind,
        "measurement": PROGRAM[kind] | SURROUNDINGS[kind],
        "signer": b"signer",
        "debug": False,
        "migratable": False,
        "privilege_level": 0 if kind is SNP else None,
        "sibling_threads": False,
        "tcb": {NITRO: None, SNP: LEAST}.get(kind, INTEL_TCB),
        "lists": {} if kind is NITRO else {b"issuer": NOW - timedelta(days=2)},
        "report_data": BIND,
        "signed_digest": bytes(32),
        "issued_at": None,
        "not_after": END,
    }
    return Claims(**(fields | changes))


def policy(**changes: Any) -> Policy:
    accepted = tuple(PinnedMeasurement(kind, PROGRAM[kind]) for kind in EvidenceFormat)
    fields: dict[str, Any] = {"accepted": accepted, "minimum_snp_tcb": LEAST}
    return Policy(**(fields | changes))


@pytest.fixture
def refused(refusal: Refusal) -> Callable[..., None]:
    def run(judged: Claims, saying: str, **changes: Any) -> None:
        assert refusal(lambda: policy(**changes).check(judged, BIND, NOW), saying) is Reason.ATTESTATION_REFUSED

    return run


@pytest.mark.parametrize("kind", EvidenceFormat)
def test_a_pinned_program_on_current_hardware_bound_to_the_keys_is_accepted(kind: EvidenceFormat) -> None:
    assert policy().check(claims(kind), BIND, NOW) == END


@pytest.mark.parametrize("kind", EvidenceFormat)
def test_debug_builds_and_migration_are_refused(kind: EvidenceFormat, refused: Callable[..., None]) -> None:
    refused(claims(kind, debug=True), "debug build")
    refused(claims(kind, migratable=True), "migrated")


@pytest.mark.parametrize("kind", EvidenceFormat)
def test_another_binding_is_refused(kind: EvidenceFormat, refused: Callable[..., None]) -> None:
    for other in (b"", bytes(64), BIND[:-1], BIND + b"\0", BIND[:32] + bytes(32), BIND[:-1] + b"\0"):
        refused(claims(kind, report_data=other), "bound to keys")


@pytest.mark.parametrize("wrong", [b"", bytes(32), bytes(65), bytearray(64), None, "x" * 64])
def test_the_expected_binding_is_64_bytes(wrong: Any) -> None:
    with pytest.raises(Misuse):
        policy().check(claims(NITRO, report_data=wrong), wrong, NOW)


@pytest.mark.parametrize(("kind", "name"), REQUIRED)
def test_each_register_of_the_program_matters(kind: EvidenceFormat, name: str, refused: Callable[..., None]) -> None:
    registers = PROGRAM[kind] | SURROUNDINGS[kind]
    refused(claims(kind, measurement=registers | {name: bytes(len(registers[name]))}), name)
    del registers[name]
    refused(claims(kind, measurement=registers), "no pinned measurement")


@pytest.mark.parametrize(("kind", "name"), REQUIRED)
def test_a_pin_that_leaves_a_register_out_is_no_pin(kind: EvidenceFormat, name: str) -> None:
    registers = {pinned: value for pinned, value in PROGRAM[kind].items() if pinned != name}
    with pytest.raises(InvalidParameters, match=f"must pin {name}"):
        PinnedMeasurement(kind, registers)


def test_further_nitro_registers_are_judged_only_where_they_are_pinned(refused: Callable[..., None]) -> None:
    policy(accepted=(PinnedMeasurement(NITRO, PROGRAM[NITRO] | {"PCR8": b"\x08" * 48}),)).check(
        claims(NITRO), BIND, NOW
    )
    other = PinnedMeasurement(NITRO, PROGRAM[NITRO] | {"PCR8": b"\x09" * 48})
    refused(claims(NITRO), "no pinned measurement", accepted=(other,))
    absent = PinnedMeasurement(NITRO, PROGRAM[NITRO] | {"PCR31": bytes(48)})
    refused(claims(NITRO), "no pinned measurement", accepted=(absent,))


def test_a_program_of_one_format_is_not_that_of_another(refused: Callable[..., None]) -> None:
    for kind in EvidenceFormat:
        others = tuple(PinnedMeasurement(other, PROGRAM[other]) for other in EvidenceFormat if other is not kind)
        refused(claims(kind), "no pinned measurement", accepted=others)


def test_one_of_several_pinned_programs_is_enough() -> None:
    older = PinnedMeasurement(SGX, {"MRENCLAVE": b"o" * 32})
    policy(accepted=(older, PinnedMeasurement(SGX, PROGRAM[SGX]))).check(claims(SGX), BIND, NOW)


def test_registers_are_not_mixed_between_pinned_programs(refused: Callable[..., None]) -> None:
    first, second = PROGRAM[NITRO], {name: value[::-1] for name, value in PROGRAM[NITRO].items()}
    accepted = (PinnedMeasurement(NITRO, first), PinnedMeasurement(NITRO, second))
    mixed = first | {"PCR1": second["PCR1"]}
    refused(claims(NITRO, measurement=mixed | SURROUNDINGS[NITRO]), "no pinned measurement", accepted=accepted)


@pytest.mark.parametrize(
    ("kind", "registers"),
    [
        (SGX, {"MRENCLAVE": b"e" * 32, "MRSIGNER": b"s" * 32}),
        (SGX, {"MRSIGNER": b"s" * 32}),
        (SGX, {"MRENCLAVE": b"e" * 31}),
        (SGX, {"MRENCLAVE": "e" * 32}),
        (SGX, {"MRENCLAVE": bytearray(32)}),
        (SNP, {"MEASUREMENT": b"m" * 48, "HOST_DATA": bytes(31)}),
        (NITRO, PROGRAM[NITRO] | {"PCR32": bytes(48)}),
        ("sgx", {"MRENCLAVE": b"e" * 32}),
        (None, {}),
    ],
    ids=str,
)
def test_a_pin_names_registers_of_its_format(kind: Any, registers: Any) -> None:
    with pytest.raises(InvalidParameters):
        PinnedMeasurement(kind, registers)


def test_pins_are_the_policys_own_copy() -> None:
    registers = dict(PROGRAM[SGX])
    pinned = PinnedMeasurement(SGX, registers)
    registers["MRENCLAVE"] = b"x" * 32
    policy(accepted=(pinned,)).check(claims(SGX), BIND, NOW)


# --- The platform -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["boot_loader", "snp", "microcode"])
def test_firmware_below_the_minimum_in_any_part_is_refused(part: str, refused: Callable[..., None]) -> None:
    lower = replace(LEAST, **{part: getattr(LEAST, part) - 1})
    refused(claims(SNP, tcb=replace(lower, tee=255)), "the firmware is")
    policy().check(claims(SNP, tcb=replace(LEAST, tee=255)), BIND, NOW)


def test_a_report_whose_revocation_was_not_checked_is_refused_by_default(refused: Callable[..., None]) -> None:
    refused(claims(SNP, lists={}), "revocation was not checked")
    policy(snp_revocation_required=False).check(claims(SNP, lists={}), BIND, NOW)


def test_a_report_of_another_privilege_level_is_refused(refused: Callable[..., None]) -> None:
    refused(claims(SNP, privilege_level=1), "VMPL 1")
    refused(claims(SNP, privilege_level=0), "VMPL 0", privilege_level=2)
    policy(privilege_level=2).check(claims(SNP, privilege_level=2), BIND, NOW)
    policy(privilege_level=2).check(claims(NITRO), BIND, NOW)


def test_shared_cores_are_refused_by_default(refused: Callable[..., None]) -> None:
    refused(claims(SNP, sibling_threads=True), "sibling_threads_accepted=True")
    policy(sibling_threads_accepted=True).check(claims(SNP, sibling_threads=True), BIND, NOW)


@pytest.mark.parametrize("kind", [TDX, SGX])
def test_a_quote_without_collateral_is_refused_by_every_policy(
    kind: EvidenceFormat, refused: Callable[..., None]
) -> None:
    all_but_revoked = frozenset(TcbStatus) - {TcbStatus.REVOKED}
    for changes in ({}, {"accepted_tcb_statuses": all_but_revoked, "snp_revocation_required": False}):
        refused(claims(kind, tcb=None, lists={}), "without collateral", **changes)


def test_the_tcb_is_of_the_formats_own_kind(refused: Callable[..., None]) -> None:
    for kind, tcb in ((SNP, INTEL_TCB), (SNP, None), (SGX, LEAST), (TDX, LEAST), (NITRO, LEAST), (NITRO, INTEL_TCB)):
        refused(claims(kind, tcb=tcb), "TCB is unknown")


@pytest.mark.parametrize("part", ["platform", "quoting_enclave", "module"])
@pytest.mark.parametrize("status", [status for status in TcbStatus if status is not TcbStatus.UP_TO_DATE])
def test_each_part_below_an_intel_enclave_is_up_to_date(
    part: str, status: TcbStatus, refused: Callable[..., None]
) -> None:
    changes: dict[str, Any] = {part: status, "advisories": frozenset({"INTEL-SA-9"})}
    tcb = replace(INTEL_TCB, **changes)
    refused(claims(TDX, tcb=tcb), f"the platform is {status} (advisories: INTEL-SA-9)")
    if status is not TcbStatus.REVOKED:
        accepted = frozenset({TcbStatus.UP_TO_DATE, status})
        known = {"accepted_tcb_statuses": accepted, "accepted_advisories": frozenset({"INTEL-SA-9"})}
        policy(**known).check(claims(TDX, tcb=tcb), BIND, NOW)
        refused(claims(TDX), "the platform is UpToDate", accepted_tcb_statuses=frozenset({status}))


def test_a_status_that_is_accepted_for_one_advisory_is_not_for_another(refused: Callable[..., None]) -> None:
    """What the program mitigates says nothing of what was found since, under the same status."""
    tcb = replace(INTEL_TCB, platform=TcbStatus.SW_HARDENING_NEEDED, advisories=frozenset({"INTEL-SA-8", "INTEL-SA-9"}))
    statuses = frozenset({TcbStatus.UP_TO_DATE, TcbStatus.SW_HARDENING_NEEDED})
    for known, unmet in (
        (set[str](), "open advisories: INTEL-SA-8, INTEL-SA-9"),
        ({"INTEL-SA-8"}, "open advisories: INTEL-SA-9"),
    ):
        refused(claims(SGX, tcb=tcb), unmet, accepted_tcb_statuses=statuses, accepted_advisories=frozenset(known))


def test_collateral_of_an_older_evaluation_is_refused(refused: Callable[..., None]) -> None:
    pinned = (PinnedMeasurement(SGX, PROGRAM[SGX]),)
    policy(accepted=pinned, minimum_tcb_evaluation=17).check(claims(SGX), BIND, NOW)
    refused(claims(SGX), "TCB evaluation number 17", accepted=pinned, minimum_tcb_evaluation=18)


@pytest.mark.parametrize("kind", [SNP, SGX, TDX])
@pytest.mark.parametrize("days", [None, 1, 30])
def test_an_old_revocation_list_is_stale_whatever_its_own_end(
    kind: EvidenceFormat, days: int | None, refusal: Refusal
) -> None:
    age = timedelta(days=366 if days is None else days)
    judging = policy(**({} if days is None else {"greatest_list_age": age}))
    far = NOW + timedelta(days=10_000)

    def judged(issued: datetime) -> datetime:
        return judging.check(claims(kind, lists={b"issuer": issued}, not_after=far), BIND, NOW)

    assert judged(NOW - age) == NOW
    assert judged(NOW) == NOW + age
    older = NOW - age - timedelta(seconds=1)
    assert refusal(lambda: judged(older), f"more than {age.days} days before") is Reason.COLLATERAL_STALE


# --- Construction -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted": ()},
        {"accepted": (PROGRAM[SGX],)},
        {"minimum_snp_tcb": None},
        {"minimum_snp_tcb": (4, 0, 22, 200)},
        {"accepted_tcb_statuses": frozenset({TcbStatus.REVOKED})},
        {"accepted_tcb_statuses": frozenset({"UpToDate"})},
        {"accepted_advisories": frozenset({9})},
        {"accepted_advisories": "INTEL-SA-9"},
        {"minimum_tcb_evaluation": -1},
        {"minimum_tcb_evaluation": True},
        {"privilege_level": 4},
        {"privilege_level": -1},
        {"privilege_level": False},
        {"greatest_list_age": timedelta()},
        {"greatest_list_age": timedelta.max},
        {"greatest_list_age": 30},
    ],
    ids=str,
)
def test_an_unsafe_or_inconsistent_policy_is_not_made(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        policy(**changes)


def test_a_policy_without_snp_needs_no_snp_minimum(refused: Callable[..., None]) -> None:
    only_sgx = {"accepted": (PinnedMeasurement(SGX, PROGRAM[SGX]),), "minimum_snp_tcb": None}
    policy(**only_sgx).check(claims(SGX), BIND, NOW)
    refused(claims(SNP), "the firmware is", **only_sgx)


class SimulatedClaims(Claims):
    """What a simulated enclave could say of itself."""


def test_claims_of_another_type_are_refused_whatever_they_say(refusal: Refusal) -> None:
    genuine = claims(SGX)
    fields = {name: getattr(genuine, name) for name in Claims.__slots__}
    simulated: list[Any] = [SimulatedClaims(**fields), None, fields]
    for judged in simulated:
        reason = refusal(partial(policy().check, judged, BIND, NOW), "check takes the Claims of Verifier.verify")
        assert reason is Reason.ATTESTATION_REFUSED
