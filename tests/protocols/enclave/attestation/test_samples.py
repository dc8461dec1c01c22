"""The vendors' own evidence, from the folder that SECAGG_ATTESTATION_SAMPLES names; it is not ours to publish.

Where the variable is not set these tests are skipped and say so; where it is set, each file must be there and be the
one that was looked at. The other files of this folder make evidence of their own and miss nothing without the samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import MalformedMessage, PeerError, Reason
from secagg.protocols.enclave.attestation import (
    Claims,
    Evidence,
    EvidenceFormat,
    IntelCollateral,
    IntelTcb,
    PinnedMeasurement,
    Policy,
    SnpCollateral,
    SnpTcb,
    TcbStatus,
    Verifier,
)
from secagg.protocols.enclave.attestation.certificate_chains import read_pem_chain
from secagg.protocols.enclave.attestation.intel_collateral import judge
from secagg.protocols.enclave.attestation.intel_quote import verify_quote
from secagg.protocols.enclave.attestation.roots import PINNED_ROOTS
from secagg.protocols.enclave.attestation.tdx_report import TdReport

Refusal = Callable[..., Reason]
NITRO, SNP, TDX, SGX = EvidenceFormat.NITRO, EvidenceFormat.SNP, EvidenceFormat.TDX, EvidenceFormat.SGX
V4_QUOTE_BYTES = 4935

DIGESTS = {
    "nitro/document.cose": "a72552688ab6de06b9039ebda2bd5ae9285860ec886f841da94351681dfb3eb6",
    "nitro/debug_document.cose": "46591b92f9abefaace22a6d7ea4ca9c7007dfdbe788fbe8634b230ec2043a789",
    "snp/attestation.bin": "377e6241d3b373ab1df80c0f96978594e7e21f4797dd6ea95e2957e1c1e26060",
    "snp/ask_ark_milan.pem": "22e62f8d2c21a156470145fc75f7b5a377cb053ced3e97f0bd3f8d8ca5941ce6",
    "snp/vcek.der": "0d057f9b6e29a69eda9c0154b259567d291c1c08d73a11e9d31ace07c435b6d8",
    "tdx/quote_v4.bin": "6dde5548bec99147fef832643301f113df99931547be26df8ac376c4eaa5b5a7",
    "tdx/quote_v5.bin": "cf77a6e91e48291d5d338c5f3b5d0674225a4d13e7d83ff5e537a4914bf22e1d",
    "tdx/tcb_info.json": "1b96f799643d045c076fbc505c094a4fb26f51f4851feb8ac95f3fc12408f2d6",
    "tdx/qe_identity.json": "86239584ed47792d02cdfc051cde95cb5169a0b74dc9dcc61c1ebaeb5e59ade0",
    "sgx/quote_v3.bin": "f8b81014b6e443609746822194910f5dc1c92c322fa0584298d1e33e505ca3b5",
    "sgx/collateral.json": "bdd694bbe50f3a2a1cfe12f9e2bd83125921107a368edcf10780a5523b8501ce",
}
"""The SHA-256 of each sample."""


@pytest.mark.parametrize("name", DIGESTS)
def test_a_sample_is_the_one_that_was_looked_at(samples: Path, name: str) -> None:
    assert hashlib.sha256((samples / name).read_bytes()).hexdigest() == DIGESTS[name]


@dataclass(frozen=True)
class Sample:
    """One piece of evidence, with what it is verified with and a time at which it held."""

    kind: EvidenceFormat
    document: bytes
    collateral: Any
    now: datetime

    def verify(self, document: bytes | None = None, now: datetime | None = None) -> Claims:
        evidence = Evidence(self.kind, self.document if document is None else document)
        return Verifier().verify(evidence, self.collateral, now or self.now)


def day(year: int, month: int, date: int, hour: int = 0) -> datetime:
    return datetime(year, month, date, hour, tzinfo=UTC)


def snp_collateral(folder: Path) -> SnpCollateral:
    text = (folder / "snp/ask_ark_milan.pem").read_bytes()
    authority, root = read_pem_chain(text)
    chip = (folder / "snp/vcek.der").read_bytes()
    return SnpCollateral(chip_certificate=chip, authority_certificate=authority, root_certificate=root)


def sgx_collateral(folder: Path) -> IntelCollateral:
    parts: dict[str, str] = json.loads((folder / "sgx/collateral.json").read_text(encoding="utf-8"))

    def response(name: str, key: str) -> bytes:
        return f'{{"{name}":{parts[key]},"signature":"{parts[f"{key}_signature"]}"}}'.encode()

    return IntelCollateral(
        tcb_info=response("tcbInfo", "tcb_info"),
        tcb_info_chain=parts["tcb_info_issuer_chain"].encode(),
        identity=response("enclaveIdentity", "qe_identity"),
        identity_chain=parts["qe_identity_issuer_chain"].encode(),
        platform_revocation_list=bytes.fromhex(parts["pck_crl"]),
        root_revocation_list=bytes.fromhex(parts["root_ca_crl"]),
    )


@pytest.fixture(scope="module")
def vendor(samples: Path) -> dict[str, Sample]:
    def read(name: str) -> bytes:
        return (samples / name).read_bytes()

    return {
        "nitro": Sample(NITRO, read("nitro/document.cose"), None, day(2022, 10, 13, 9)),
        "nitro debug": Sample(NITRO, read("nitro/debug_document.cose"), None, day(2022, 10, 12, 14)),
        "snp": Sample(SNP, read("snp/attestation.bin"), snp_collateral(samples), day(2023, 1, 1)),
        "tdx 4": Sample(TDX, read("tdx/quote_v4.bin")[:V4_QUOTE_BYTES], None, day(2023, 7, 1)),
        "tdx 5": Sample(TDX, read("tdx/quote_v5.bin"), None, day(2026, 7, 1)),
        "sgx": Sample(SGX, read("sgx/quote_v3.bin"), sgx_collateral(samples), day(2025, 7, 1)),
    }


NAMES = ("nitro", "nitro debug", "snp", "tdx 4", "tdx 5", "sgx")


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_verifies_under_the_pinned_roots_at_its_time_only(
    vendor: dict[str, Sample], refusal: Refusal, name: str
) -> None:
    sample = vendor[name]
    claims = sample.verify()
    assert claims.format is sample.kind
    sample.verify(now=claims.not_after)
    late = claims.not_after + timedelta(seconds=1)
    assert refusal(lambda: sample.verify(now=late)) in (Reason.ATTESTATION_INVALID, Reason.COLLATERAL_STALE)
    early = day(2018, 1, 1)
    assert refusal(lambda: sample.verify(now=early)) is Reason.ATTESTATION_INVALID


def test_the_nitro_documents_say_what_they_are(vendor: dict[str, Sample]) -> None:
    production, debug = vendor["nitro"].verify(), vendor["nitro debug"].verify()
    assert not production.debug
    assert production.measurement["PCR0"].hex().startswith("f4d48b81a460c991")
    assert production.signer.hex().startswith("8790eb3cce6c83d0")
    assert debug.debug
    assert debug.report_data == b"hello, world!"
    assert debug.issued_at == datetime(2022, 10, 12, 13, 50, 6, 81000, tzinfo=UTC)


def test_the_snp_report_is_of_a_debug_guest_that_shares_cores(vendor: dict[str, Sample]) -> None:
    claims = vendor["snp"].verify()
    assert claims.debug
    assert claims.sibling_threads
    assert not claims.migratable
    assert claims.privilege_level == 0
    assert claims.tcb == SnpTcb(boot_loader=2, tee=0, snp=5, microcode=68)
    assert claims.report_data == bytes([1, 2, 3, 4, 5]) + bytes(59)
    assert claims.measurement["MEASUREMENT"].hex().startswith("b07af9620f3b839b")


def test_the_tdx_quotes_say_what_they_are(vendor: dict[str, Sample]) -> None:
    starts = {"tdx 4": ("6363b8043668a3ad", "2927da70461cd632"), "tdx 5": ("7348651a34b2d2d3", "5c8daf76063a71ac")}
    for name, (domain, first) in starts.items():
        claims = vendor[name].verify()
        assert claims.measurement["MRTD"].hex().startswith(domain)
        assert claims.measurement["RTMR0"].hex().startswith(first)
        assert ("MRSERVICETD" in claims.measurement) is (name == "tdx 5")
        assert (claims.debug, claims.migratable, claims.tcb) == (False, False, None)


def test_the_sgx_quote_is_of_a_platform_that_needs_hardening(vendor: dict[str, Sample]) -> None:
    claims = vendor["sgx"].verify()
    assert claims.measurement["MRENCLAVE"].hex().startswith("33d8736db756ed49")
    assert claims.signer.hex().startswith("815f42f11cf64430")
    assert claims.not_after == datetime(2025, 7, 19, 10, 1, 18, tzinfo=UTC)
    assert claims.tcb == IntelTcb(
        platform=TcbStatus.CONFIGURATION_AND_SW_HARDENING_NEEDED,
        quoting_enclave=TcbStatus.UP_TO_DATE,
        module=None,
        evaluation_number=17,
        advisories=frozenset({"INTEL-SA-00289", "INTEL-SA-00615"}),
    )


def test_intels_tcb_info_for_tdx_lists_nothing_that_the_version_4_quote_reaches(
    samples: Path, vendor: dict[str, Sample], refusal: Refusal
) -> None:
    # The certificate of that time's signer is not among the samples, so its judgement is read without its signature.
    info = json.loads((samples / "tdx/tcb_info.json").read_bytes())["tcbInfo"]
    identity = json.loads((samples / "tdx/qe_identity.json").read_bytes())["enclaveIdentity"]
    sample = vendor["tdx 4"]
    quote = verify_quote(sample.document, slice(48, 632), PINNED_ROOTS.intel, sample.now)
    td = TdReport(quote.body)
    assert refusal(lambda: judge(info, identity, quote, td), "below every TCB level") is Reason.ATTESTATION_INVALID
    reached = [
        {"svn": min(least["svn"], have)}
        for least, have in zip(info["tcbLevels"][0]["tcb"]["sgxtcbcomponents"], quote.platform.components, strict=True)
    ]
    info["tcbLevels"][1]["tcb"]["sgxtcbcomponents"] = reached
    info["tcbLevels"][1]["tcb"]["tdxtcbcomponents"][2]["svn"] = 4
    judgement = judge(info, identity, quote, td)
    assert (judgement.platform, judgement.module) == (TcbStatus.OUT_OF_DATE, None)
    assert judgement.quoting_enclave is TcbStatus.UP_TO_DATE


def test_the_version_4_quote_is_refused_with_the_tail_it_is_published_with(samples: Path) -> None:
    quote = (samples / "tdx/quote_v4.bin").read_bytes()
    with pytest.raises(MalformedMessage, match="39 unsigned bytes follow"):
        Verifier().verify(Evidence(TDX, quote), None, day(2023, 7, 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_default_policy_refuses_every_sample_though_it_pins_them_all(
    vendor: dict[str, Sample], refusal: Refusal, name: str
) -> None:
    required: dict[EvidenceFormat, tuple[str, ...]] = {
        NITRO: ("PCR0", "PCR1", "PCR2"),
        SNP: ("MEASUREMENT",),
        SGX: ("MRENCLAVE",),
    }
    required[TDX] = ("MRTD", "RTMR0", "RTMR1", "RTMR2", "RTMR3")
    accepted: list[PinnedMeasurement] = []
    for sample in vendor.values():
        measured = sample.verify().measurement
        accepted.append(PinnedMeasurement(sample.kind, {pin: measured[pin] for pin in required[sample.kind]}))
    policy = Policy(accepted=tuple(accepted), minimum_snp_tcb=SnpTcb(boot_loader=0, tee=0, snp=0, microcode=0))
    saying = {
        "nitro": "bound to other keys",
        "nitro debug": "debug build",
        "snp": "debug build",
        "tdx 4": "without collateral",
        "tdx 5": "without collateral",
        "sgx": "ConfigurationAndSWHardeningNeeded",
    }
    claims = vendor[name].verify()
    refused = Reason.ATTESTATION_REFUSED
    assert (
        refusal(lambda: policy.check(claims, claims.report_data.ljust(64, b"\0"), vendor[name].now), saying[name])
        is refused
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_byte_of_a_sample_matters(vendor: dict[str, Sample], name: str) -> None:
    sample = vendor[name]
    sample.verify()
    for position in sampled(len(sample.document)):
        changed = bytearray(sample.document)
        changed[position] ^= 1 << position % 8
        with pytest.raises(PeerError):
            pytest.fail(f"byte {position} was ignored: {sample.verify(bytes(changed))}")


def sampled(length: int) -> Iterator[int]:
    """Take every seventh position, and every one near the end, where padding would be."""
    yield from range(0, length - 80, 7)
    yield from range(max(length - 80, 0), length)
