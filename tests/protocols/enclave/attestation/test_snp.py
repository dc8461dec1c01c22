"""SEV-SNP reports of our own: what they claim, and that certificate and report are of one chip at one version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.protocols.enclave.attestation import Claims, EvidenceFormat, SnpCollateral, SnpTcb

SNP = EvidenceFormat.SNP
TCB = SnpTcb(boot_loader=4, tee=1, snp=22, microcode=209)
LAUNCH = {
    "HOST_DATA": bytes(32),
    "POLICY": bytes.fromhex("0000020000000000"),
    "PLATFORM_INFO": b"\x24" + bytes(7),
    "GUEST_SVN": bytes(4),
    "FAMILY_ID": bytes(16),
    "IMAGE_ID": bytes(16),
    "ID_KEY_DIGEST": bytes(48),
    "AUTHOR_KEY_DIGEST": bytes(48),
}


@dataclass
class Snp:
    """Makers of reports and of their collateral, and their verification."""

    made: Any
    authority: Any
    collateral: Callable[..., SnpCollateral]
    verify: Callable[..., Claims]
    refusal: Callable[..., Reason]

    def claims(self, collateral: SnpCollateral | None = None, **changes: Any) -> Claims:
        return self.verify(SNP, self.made.SnpReport(**changes).encode(), collateral or self.collateral())


@pytest.fixture
def snp(
    verify: Callable[..., Claims],
    self_made: ModuleType,
    snp_collateral: Callable[..., SnpCollateral],
    refusal: Callable[..., Reason],
) -> Snp:
    return Snp(self_made.snp, self_made.authority, snp_collateral, verify, refusal)


def test_a_report_claims_its_measurement_and_data(snp: Snp) -> None:
    claims = snp.claims()
    assert claims.format is SNP
    assert claims.measurement == {"MEASUREMENT": b"\x4d" * 48, **LAUNCH}
    assert claims.signer == bytes(48)
    assert claims.report_data == snp.made.BIND
    assert claims.tcb == TCB
    assert claims.signed_digest == hashlib.sha256(snp.made.SnpReport().signed()).digest()
    assert (claims.debug, claims.migratable, claims.sibling_threads) == (False, False, False)
    assert (claims.privilege_level, claims.issued_at) == (0, None)
    assert claims.revoked_as_of == snp.authority.START.replace(microsecond=0)
    assert claims.not_after == snp.authority.END.replace(microsecond=0)


@pytest.mark.parametrize("version", [2, 3, 5])
def test_the_versions_that_are_laid_out_alike_are_read(snp: Snp, version: int) -> None:
    assert snp.claims(version=version).tcb == TCB


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"policy": 0x20000 | 1 << 19}, {"debug": True}),
        ({"policy": 0x20000 | 1 << 18}, {"migratable": True}),
        ({"patches": {0x160: bytes(32)}}, {"migratable": True}),
        ({"patches": {0x17F: b"\xfe"}}, {"migratable": True}),
        ({"policy": 0x20000 | 1 << 16}, {"sibling_threads": True}),
        ({"privilege_level": 2}, {"privilege_level": 2}),
        ({"patches": {0x40: b"\x25"}}, {"sibling_threads": True}),
        ({"patches": {0xC0: b"\1"}}, {"HOST_DATA": b"\1" + bytes(31)}),
        ({"patches": {0x04: b"\5"}}, {"GUEST_SVN": b"\5\0\0\0"}),
        ({"patches": {0x10: b"\1" * 32}}, {"FAMILY_ID": b"\1" * 16, "IMAGE_ID": b"\1" * 16}),
        ({"patches": {0xE0: b"\1" * 48}}, {"ID_KEY_DIGEST": b"\1" * 48}),
        ({"patches": {0x48: b"\1", 0x110: b"\1" * 48}}, {"AUTHOR_KEY_DIGEST": b"\1" * 48}),
        ({"policy": 0x3020000}, {"POLICY": bytes.fromhex("0000020300000000")}),
        ({"patches": {0x1F0: b"\3"}}, {"tcb": SnpTcb(boot_loader=3, tee=1, snp=22, microcode=209)}),
        ({"patches": {0x1F0: b"\xff" * 8}}, {"tcb": TCB}),
        ({"patches": {0x1E0: b"\2"}}, {"tcb": SnpTcb(boot_loader=2, tee=1, snp=22, microcode=209)}),
        ({"patches": {0x1E0: b"\xff" * 8}}, {"tcb": TCB}),
    ],
    ids=str,
)
def test_what_a_report_says_is_claimed(snp: Snp, changes: dict[str, Any], claim: dict[str, Any]) -> None:
    plain, changed = snp.claims(), snp.claims(**changes)
    names = ("debug", "migratable", "sibling_threads", "privilege_level", "tcb")
    for name in names:
        assert getattr(changed, name) == claim.get(name, getattr(plain, name))
    measured = {name: value for name, value in claim.items() if name in plain.measurement}
    flags = {"POLICY", "PLATFORM_INFO"}
    assert {name: value for name, value in changed.measurement.items() if name not in flags or name in claim} == {
        name: measured.get(name, value)
        for name, value in plain.measurement.items()
        if name not in flags or name in claim
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 1},
        {"version": 4},
        {"version": 6},
        {"version": 0x0100_0002},
        {"patches": {0x34: b"\2"}},
        {"patches": {0x37: b"\1"}},
        {"tail": bytes(367)},
        {"tail": bytes(369)},
        {"tail": bytes(367) + b"\1"},
        {"tail": b"\1" + bytes(367)},
    ],
    ids=str,
)
def test_what_is_no_report_is_malformed(snp: Snp, changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        snp.claims(**changes)


@pytest.mark.parametrize("key", [0x08, 0x0C, 0x10, 0x14, 0x18, 0x1C])
def test_a_report_by_the_key_of_no_chip_and_no_cloud_is_refused(snp: Snp, key: int) -> None:
    changes = {0x48: bytes([key])}
    assert (
        snp.refusal(lambda: snp.claims(patches=changes), "request one signed with a VCEK") is Reason.ATTESTATION_INVALID
    )


BY_CLOUD = {0x48: b"\x04", 0x1A0: bytes(64)}


def test_a_report_by_the_key_of_a_cloud_is_read(snp: Snp) -> None:
    certificate = snp.made.chip_certificate(snp.made.cloud_extensions())
    claims = snp.claims(snp.collateral(chip_certificate=certificate.der), patches=BY_CLOUD)
    assert claims.tcb == TCB


def test_the_key_of_a_chip_and_that_of_a_cloud_do_not_pass_for_each_other(snp: Snp) -> None:
    cloud = snp.collateral(chip_certificate=snp.made.chip_certificate(snp.made.cloud_extensions()).der)
    for patches, collateral, number in ((BY_CLOUD, None, 5), ({0x1A0: bytes(64)}, cloud, 4)):
        reason = snp.refusal(
            partial(snp.claims, collateral, patches=patches), f"lacks the extension 1.3.6.1.4.1.3704.1.{number}"
        )
        assert reason is Reason.ATTESTATION_INVALID


def test_the_versions_of_turin_stand_in_other_places(snp: Snp) -> None:
    made = snp.made
    collateral = snp.collateral(chip_certificate=made.chip_certificate(made.turin_extensions()).der)
    chip = {0x1A0: made.TURIN_CHIP + bytes(56), 0x40: b"\x64"}
    claims = snp.claims(collateral, tcb=made.TURIN_TCB, patches=chip)
    assert claims.tcb == SnpTcb(boot_loader=4, tee=1, snp=22, microcode=209, fmc=3)
    for other in (bytes(8) + bytes(56), made.TURIN_CHIP + bytes(55) + b"\1"):
        wrong = partial(snp.claims, collateral, tcb=made.TURIN_TCB, patches=chip | {0x1A0: other})
        assert snp.refusal(wrong, "for different chips") is Reason.ATTESTATION_INVALID
    assert (
        snp.refusal(partial(snp.claims, collateral, patches=chip), "is for TCB version") is Reason.ATTESTATION_INVALID
    )


def test_a_minimum_for_other_processors_is_never_reached() -> None:
    turin = SnpTcb(boot_loader=1, tee=0, snp=2, microcode=71, fmc=0)
    milan = SnpTcb(boot_loader=4, tee=0, snp=24, microcode=219)
    assert not milan.reaches(turin)
    assert not turin.reaches(SnpTcb(boot_loader=0, tee=0, snp=0, microcode=0))
    assert not turin.reaches(SnpTcb(boot_loader=1, tee=0, snp=2, microcode=71, fmc=1))
    assert turin.reaches(turin)


@pytest.mark.parametrize(
    ("extensions", "saying"),
    [
        ({"4": bytes(64)}, "for different chips"),
        ({"4": bytes(63)}, "for different chips"),
        ({"3.1": b"\2\1\5"}, "is for TCB version"),
        ({"3.2": b"\2\1\0"}, "is for TCB version"),
        ({"3.3": b"\2\1\1"}, "is for TCB version"),
        ({"3.4": b"\2\1\1"}, "is for TCB version"),
        ({"3.7": b"\2\1\1"}, "is for TCB version"),
        ({"3.8": b"\2\1\1"}, "is for TCB version"),
    ],
    ids=str,
)
def test_a_certificate_for_another_chip_or_version_is_refused(
    snp: Snp, extensions: dict[str, bytes], saying: str
) -> None:
    other = snp.made.chip_certificate(snp.made.vendor_extensions() | extensions).der
    collateral = snp.collateral(chip_certificate=other)
    assert snp.refusal(lambda: snp.claims(collateral), saying) is Reason.ATTESTATION_INVALID


def test_a_certificate_without_an_extension_is_refused(snp: Snp) -> None:
    for missing in ("4", "3.1", "3.8"):
        values = snp.made.vendor_extensions()
        del values[missing]
        collateral = snp.collateral(chip_certificate=snp.made.chip_certificate(values).der)
        saying = f"lacks the extension 1.3.6.1.4.1.3704.1.{missing}"
        assert snp.refusal(partial(snp.claims, collateral), saying) is Reason.ATTESTATION_INVALID
    values = snp.made.vendor_extensions() | {"3.1": b"\4\1\4"}
    with pytest.raises(MalformedMessage):
        snp.claims(snp.collateral(chip_certificate=snp.made.chip_certificate(values).der))


def test_a_certificate_with_a_serial_number_is_read_too(snp: Snp) -> None:
    numbered = snp.made.chip_certificate(serial_zero=False).der
    assert snp.claims(snp.collateral(chip_certificate=numbered)).tcb == TCB


def test_a_chip_without_its_authority_is_refused(snp: Snp) -> None:
    root = snp.made.authorities()[0].der
    collateral = snp.collateral(authority_certificate=root)
    assert snp.refusal(lambda: snp.claims(collateral)) is Reason.ATTESTATION_INVALID


def test_a_revoked_authority_is_refused(snp: Snp) -> None:
    collateral = snp.collateral(revocation_list=snp.made.amd_revocation_list(authority_revoked=True))
    assert snp.refusal(lambda: snp.claims(collateral), "has revoked") is Reason.ATTESTATION_INVALID


def test_a_stale_list_is_refused_and_a_missing_one_is_claimed(snp: Snp) -> None:
    made = snp.authority
    root = snp.made.authorities()[0]
    stale = made.revocation_list(root, end=made.NOW - timedelta(seconds=1))
    collateral = snp.collateral(revocation_list=stale)
    assert snp.refusal(lambda: snp.claims(collateral)) is Reason.COLLATERAL_STALE
    soon = made.NOW + timedelta(hours=1)
    assert snp.claims(snp.collateral(revocation_list=made.revocation_list(root, end=soon))).not_after == soon
    assert snp.claims(snp.collateral(revocation_list=None)).revoked_as_of is None


@pytest.mark.parametrize("wrong", [-1, 256, True, 1.0, "1"])
def test_a_security_version_is_one_byte(wrong: Any) -> None:
    with pytest.raises(InvalidParameters):
        SnpTcb(boot_loader=0, tee=0, snp=wrong, microcode=0)
