"""A host that launches the pinned program with attributes of its choice: refused by default, whatever it measures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import Reason
from secagg.protocols.enclave.attestation import Claims, EvidenceFormat, PinnedMeasurement, Policy, SnpTcb
from secagg.protocols.enclave.attestation.claims import FLAGS, bits

Refusal = Callable[..., Reason]
SNP, TDX, SGX = EvidenceFormat.SNP, EvidenceFormat.TDX, EvidenceFormat.SGX
BIND = bytes(range(64))
NOW = datetime(2030, 12, 30, tzinfo=UTC)
PROGRAM: dict[EvidenceFormat, dict[str, bytes]] = {
    SNP: {"MEASUREMENT": b"\x4d" * 48},
    TDX: {"MRTD": b"\x3d" * 48} | {f"RTMR{index}": bytes([0xB0 + index]) * 48 for index in range(4)},
    SGX: {"MRENCLAVE": b"\xec" * 32},
}
FIELDS: dict[tuple[EvidenceFormat, str], int] = {
    (SNP, "POLICY"): 0x08,
    (SNP, "PLATFORM_INFO"): 0x40,
    (TDX, "ATTRIBUTES"): 120,
    (TDX, "XFAM"): 128,
    (SGX, "ATTRIBUTES"): 48,
    (SGX, "XFRM"): 56,
    (SGX, "MISCSELECT"): 16,
}
PLAIN: dict[tuple[EvidenceFormat, str], int] = {
    (SNP, "POLICY"): bits(17),
    (SNP, "PLATFORM_INFO"): bits(2, 5),
    (TDX, "ATTRIBUTES"): bits(28),
    (TDX, "XFAM"): 0x602E7,
    (SGX, "ATTRIBUTES"): 5,
    (SGX, "XFRM"): 0xE7,
    (SGX, "MISCSELECT"): 0,
}
SIZES = {name: 4 if name[1] == "MISCSELECT" else 8 for name in FIELDS}
CHOSEN: list[tuple[EvidenceFormat, str, int]] = [
    (TDX, "ATTRIBUTES", 0),
    (TDX, "ATTRIBUTES", bits(28, 30)),
    (TDX, "ATTRIBUTES", bits(28, 31)),
    (TDX, "ATTRIBUTES", bits(28, 62)),
    (TDX, "ATTRIBUTES", bits(28, 63)),
    (TDX, "XFAM", 0),
    (TDX, "XFAM", 0x602E7 | bits(8)),
    (TDX, "XFAM", 0x602E7 | bits(15)),
    (TDX, "XFAM", 0x602E7 | bits(16)),
    (SGX, "ATTRIBUTES", bits(2)),
    (SGX, "ATTRIBUTES", bits(0)),
    (SGX, "ATTRIBUTES", bits(0, 2, 4)),
    (SGX, "ATTRIBUTES", bits(0, 2, 5)),
    (SGX, "XFRM", 0),
    (SGX, "MISCSELECT", 1),
    (SGX, "MISCSELECT", 2),
    (SNP, "POLICY", 0),
    (SNP, "POLICY", bits(17, 21)),
    (SNP, "PLATFORM_INFO", 0),
    (SNP, "PLATFORM_INFO", bits(5, 7)),
]
"""What a host may choose and what a client has no reason to accept."""
STRICTER: list[tuple[EvidenceFormat, str, int]] = [
    (TDX, "ATTRIBUTES", bits(27, 28)),
    (TDX, "XFAM", bits(0, 1)),
    (TDX, "XFAM", 0x602E7 | bits(11, 12)),
    (SGX, "ATTRIBUTES", bits(0, 2, 6, 7, 10)),
    (SGX, "XFRM", 3),
    (SNP, "POLICY", bits(17, 20, 22, 23, 24, 25) | 0x3700),
    (SNP, "PLATFORM_INFO", bits(1, 2, 3, 4, 5)),
]
"""What a client accepts without a pin."""

Launch = Callable[..., Claims]


@pytest.fixture(scope="module")
def launched(
    verify: Callable[..., Claims],
    self_made: ModuleType,
    snp_collateral: Callable[..., Any],
    intel_collateral: Callable[..., Any],
) -> Launch:
    """Launch the pinned program with other bytes in its report, and verify the evidence."""

    def run(kind: EvidenceFormat, patches: dict[int, bytes]) -> Claims:
        match kind:
            case EvidenceFormat.SNP:
                policy = int.from_bytes(patches.pop(0x08, b"\0\0\2"), "little")
                report = self_made.snp.SnpReport(policy=policy, patches=patches)
                return verify(kind, report.encode(), snp_collateral())
            case EvidenceFormat.TDX:
                body = self_made.intel.td_report(patches=patches)
                return verify(kind, self_made.intel.tdx_quote(body=body).encode(), intel_collateral("TDX"))
            case _:
                body = self_made.intel.enclave_report(report_data=BIND, patches=patches)
                return verify(kind, self_made.intel.Quote(body=body).encode(), intel_collateral("SGX"))

    return run


def policy(**pins: bytes) -> Policy:
    accepted = tuple(
        PinnedMeasurement(kind, registers | {name: value for name, value in pins.items() if name in FLAGS[kind]})
        for kind, registers in PROGRAM.items()
    )
    return Policy(accepted=accepted, minimum_snp_tcb=SnpTcb(boot_loader=4, tee=1, snp=22, microcode=209))


def patch(kind: EvidenceFormat, name: str, value: int) -> dict[int, bytes]:
    return {FIELDS[kind, name]: value.to_bytes(SIZES[kind, name], "little")}


@pytest.mark.parametrize(("kind", "name", "value"), CHOSEN)
def test_what_a_host_chooses_is_refused_unless_it_is_pinned(
    launched: Launch, refusal: Refusal, kind: EvidenceFormat, name: str, value: int
) -> None:
    claims = launched(kind, patch(kind, name, value))
    assert claims.measurement[name] == value.to_bytes(SIZES[kind, name], "little")
    saying = f"the closest one differs in {name} "
    assert refusal(lambda: policy().check(claims, BIND, NOW), saying) is Reason.ATTESTATION_REFUSED
    policy(**{name: claims.measurement[name]}).check(claims, BIND, NOW)


@pytest.mark.parametrize(("kind", "name", "value"), STRICTER)
def test_what_makes_a_launch_stricter_needs_no_pin(
    launched: Launch, refusal: Refusal, kind: EvidenceFormat, name: str, value: int
) -> None:
    claims = launched(kind, patch(kind, name, value))
    policy().check(claims, BIND, NOW)
    other = policy(**{name: PLAIN[kind, name].to_bytes(SIZES[kind, name], "little")})
    assert refusal(lambda: other.check(claims, BIND, NOW), name) is Reason.ATTESTATION_REFUSED


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_reserved_bit_is_refused_with_the_evidence(
    launched: Launch, refusal: Refusal, kind: EvidenceFormat, name: str
) -> None:
    known = FLAGS[kind][name].known
    for place in range(8 * SIZES[kind, name]):
        run = partial(launched, kind, patch(kind, name, PLAIN[kind, name] | bits(place)))
        if known >> place & 1:
            run()
        else:
            assert refusal(run, f"reserved bits of {name}") is Reason.ATTESTATION_INVALID
    everything = (1 << 8 * SIZES[kind, name]) - 1
    assert refusal(partial(launched, kind, patch(kind, name, everything))) is Reason.ATTESTATION_INVALID


def test_a_pin_does_not_make_a_debug_build_or_a_migratable_guest_acceptable(launched: Launch, refusal: Refusal) -> None:
    for kind, name, value in (
        (TDX, "ATTRIBUTES", bits(0, 28)),
        (TDX, "ATTRIBUTES", bits(28, 29)),
        (SGX, "ATTRIBUTES", bits(0, 1, 2)),
        (SNP, "POLICY", bits(17, 18)),
        (SNP, "POLICY", bits(17, 19)),
    ):
        claims = launched(kind, patch(kind, name, value))
        pinned = policy(**{name: claims.measurement[name]})
        assert refusal(partial(pinned.check, claims, BIND, NOW)) is Reason.ATTESTATION_REFUSED


@pytest.mark.parametrize(
    ("kind", "place", "size", "name"),
    [
        (SNP, 0x04, 4, "GUEST_SVN"),
        (SNP, 0x10, 16, "FAMILY_ID"),
        (SNP, 0x20, 16, "IMAGE_ID"),
        (SNP, 0xC0, 32, "HOST_DATA"),
        (SNP, 0xE0, 48, "ID_KEY_DIGEST"),
        (TDX, 184, 48, "MRCONFIGID"),
        (TDX, 232, 48, "MROWNER"),
        (TDX, 280, 48, "MROWNERCONFIG"),
        (SGX, 192, 64, "CONFIGID"),
        (SGX, 260, 2, "CONFIGSVN"),
        (SGX, 256, 2, "ISVPRODID"),
        (SGX, 258, 2, "ISVSVN"),
        (SGX, 32, 16, "ISVEXTPRODID"),
        (SGX, 304, 16, "ISVFAMILYID"),
    ],
)
def test_what_else_the_host_fills_is_zero_unless_it_is_pinned(  # noqa: PLR0913, PLR0917 -- two are fixtures
    launched: Launch, refusal: Refusal, kind: EvidenceFormat, place: int, size: int, name: str
) -> None:
    claims = launched(kind, {place: b"\1" * size})
    assert refusal(lambda: policy().check(claims, BIND, NOW), name) is Reason.ATTESTATION_REFUSED
    pinned = PinnedMeasurement(kind, PROGRAM[kind] | {name: b"\1" * size})
    minimum = SnpTcb(boot_loader=4, tee=1, snp=22, microcode=209)
    Policy(accepted=(pinned,), minimum_snp_tcb=minimum).check(claims, BIND, NOW)


@pytest.mark.parametrize("flags", [0x02, 0x20, 0x8000_0000, 0x22])
def test_a_masked_chip_key_and_reserved_key_flags_are_refused(launched: Launch, refusal: Refusal, flags: int) -> None:
    run = partial(launched, SNP, {0x48: flags.to_bytes(4, "little")})
    assert refusal(run) is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize("patches", [{0x48: b"\1"}, {0x110: b"\1"}], ids=str)
def test_an_author_key_is_there_and_announced_or_neither(
    launched: Launch, refusal: Refusal, patches: dict[int, bytes]
) -> None:
    run = partial(launched, SNP, patches)
    assert refusal(run, "contradict") is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *((SNP, place) for place in (0x4C, 0x18B, 0x19F, 0x1EB, 0x1EF, 0x1F8, 0x29F)),
        *((SGX, place) for place in (20, 31, 96, 127, 160, 191, 262, 303)),
    ],
)
def test_reserved_bytes_are_zero(launched: Launch, refusal: Refusal, kind: EvidenceFormat, place: int) -> None:
    assert refusal(partial(launched, kind, {place: b"\1"}), "reserved") is Reason.ATTESTATION_INVALID
