"""The vendors' own evidence, from the folder that SECAGG_VECTORS names; it is not ours to publish.

Where the variable is not set these tests are skipped and say so; where it is set, each file must be there and be the
one that was looked at. The other files of this folder make evidence of their own and miss nothing without the samples.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from secagg.errors import MalformedMessage, Reason
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
from tests.harness.suites import TALLIES

Refusal = Callable[..., Reason]
NITRO, SNP, TDX, SGX = EvidenceFormat.NITRO, EvidenceFormat.SNP, EvidenceFormat.TDX, EvidenceFormat.SGX
V4_QUOTE_BYTES = 4935
HCL_HEADER_BYTES = 32
SNP_REPORT_BYTES = 1184

DIGESTS = {
    "nitro/document.cose": "a72552688ab6de06b9039ebda2bd5ae9285860ec886f841da94351681dfb3eb6",
    "nitro/debug_document.cose": "46591b92f9abefaace22a6d7ea4ca9c7007dfdbe788fbe8634b230ec2043a789",
    "snp/attestation.bin": "377e6241d3b373ab1df80c0f96978594e7e21f4797dd6ea95e2957e1c1e26060",
    "snp/ask_ark_milan.pem": "22e62f8d2c21a156470145fc75f7b5a377cb053ced3e97f0bd3f8d8ca5941ce6",
    "snp/vcek.der": "0d057f9b6e29a69eda9c0154b259567d291c1c08d73a11e9d31ace07c435b6d8",
    "tdx/quote_v4.bin": "6dde5548bec99147fef832643301f113df99931547be26df8ac376c4eaa5b5a7",
    "tdx/quote_v5.bin": "cf77a6e91e48291d5d338c5f3b5d0674225a4d13e7d83ff5e537a4914bf22e1d",
    "sgx/quote_v3.bin": "f8b81014b6e443609746822194910f5dc1c92c322fa0584298d1e33e505ca3b5",
    "sgx/collateral.json": "bdd694bbe50f3a2a1cfe12f9e2bd83125921107a368edcf10780a5523b8501ce",
    "azure/az-snp-vtpm_evidence-genoa.json": "81c1fd5491d1523a25ee6cb6d5385b7e2eb99777533f359492cffa6596451990",
    "azure/az-snp-vtpm_evidence-v2.json": "cd272f2b5102c6b289f64455d8d478e3ec8fb4e6fdf22a7c133d9ed3a4efa9c5",
    "azure/az-tdx-vtpm_evidence-v1.json": "d656dbf4ae44f9e944c4d39a3ab90183e9ce9b366d46802981b2e0ed40a9c656",
    "sgx/occlum_debug.bin": "77bcbdfa9c1abb98fd19d60f815b049d187e4e7495203a2e13aeac91fb9f9772",
    "snp2/genoa/ask_ark.pem": "e6ecc853fa56d3170a624d40851f98a1036f974b50204ea69e6aec91d777aca3",
    "snp2/genoa/report.bin": "6d1ceffae6ad5caeadbc27655b2dfabf38fe3a0033e2e3b4a8a5958f893c67a3",
    "snp2/genoa/vcek.der": "b6563a6c7767990bbb9e84368cf66822e3a883c16fb24b2b94fba46dac3bd809",
    "snp2/milan_v3/ask_ark.pem": "22e62f8d2c21a156470145fc75f7b5a377cb053ced3e97f0bd3f8d8ca5941ce6",
    "snp2/milan_v3/report.bin": "40a2778d02fa56e1d82ab108492919fca56549f4781e38002d61f23cf435fc9f",
    "snp2/milan_v3/vcek.der": "176f84a079b72eb89c399b2bc5022a78629dbb6dcaa36a6e4877c6d161c081b6",
    "snp2/turin/ask_ark.pem": "3bc97ef895aa1be2150b2e9fb12403f131e80c68fbc9683d2ae465220188dbfe",
    "snp2/turin/report.bin": "3f44a09b769aae243b2c603c2a6f53d4b1cf5feb36b380ea29adcf47da847e20",
    "snp2/turin/vcek.der": "14889815724988d463b971dc409aa00ff1f24b7d3fa3b3c55efb3b2aa9bd6919",
    "snp2/vlek/asvk_ark.pem": "3098f7e90ee7049b8cf116448d1bdf33b08847b4250bd99507cf73b5c49d3467",
    "snp2/vlek/report.bin": "decdab949afc590668e45869b20f23e4afc7ac03c61201ab20208c6668a58a2d",
    "snp2/vlek/vlek.der": "296a7c99053efe4b1e480bb76d421fd24633d245f3e34708399a18a7713b7a7c",
    "tdx2/below_every_level/collateral.json": "05e91466e56352166c15a73654147c3d95d6f4ffa62bd150c3c8cbb1d75c3b15",
    "tdx2/below_every_level/quote.bin": "4c453ea417a7863ed67c215fe4735d91e26f359c760e5984a277866d8d5758e9",
    "tdx2/gcp_cos_113_padded.bin": "54334c81b4e03634ab3a269ad397c9cea3b5c9ee96c57505b684470b964fd15e",
    "tdx2/uptodate/collateral.json": "b0a5f5fd620a8881b1eda45261fdf30dd930b49aff93231556645c81fcb4c0bc",
    "tdx2/uptodate/quote.bin": "f1c8503301126c30ab9863df145a8c328f0834a59817e77abc24d1db6e9fce24",
    "tdx2/uptodate_mrconfigid/collateral.json": "b6cafa8cc98cb9bbce185933bb61431a8e4374105d1208f42321e3b1b5ff98aa",
    "tdx2/uptodate_mrconfigid/quote.bin": "9069d475eda328d4f89fe367cf938a65d903df20802a0287f08b54a72f58aef2",
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


def certificates(path: Path) -> list[bytes]:
    return [each.public_bytes(Encoding.DER) for each in x509.load_pem_x509_certificates(path.read_bytes())]


def snp_collateral(chip: bytes, chain: Path) -> SnpCollateral:
    authority, root = certificates(chain)
    return SnpCollateral(chip_certificate=chip, authority_certificate=authority, root_certificate=root)


def intel_collateral(path: Path) -> IntelCollateral:
    parts: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))

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
        "snp": Sample(
            SNP,
            read("snp/attestation.bin"),
            snp_collateral(read("snp/vcek.der"), samples / "snp/ask_ark_milan.pem"),
            day(2023, 1, 1),
        ),
        "tdx 4": Sample(TDX, read("tdx/quote_v4.bin")[:V4_QUOTE_BYTES], None, day(2023, 7, 1)),
        "tdx 5": Sample(TDX, read("tdx/quote_v5.bin"), None, day(2026, 7, 1)),
        "sgx": Sample(
            SGX, read("sgx/quote_v3.bin"), intel_collateral(samples / "sgx/collateral.json"), day(2025, 7, 1)
        ),
    }


@pytest.fixture(scope="module")
def clouds(samples: Path) -> dict[str, Sample]:
    """Evidence of machines that clouds rent out, collected by others."""

    def read(name: str) -> bytes:
        return (samples / name).read_bytes()

    def snp(name: str, key: str = "vcek.der", chain: str = "ask_ark.pem") -> Sample:
        collateral = snp_collateral(read(f"snp2/{name}/{key}"), samples / f"snp2/{name}/{chain}")
        return Sample(SNP, read(f"snp2/{name}/report.bin"), collateral, day(2025, 10, 1))

    def tdx(name: str, now: datetime) -> Sample:
        return Sample(
            TDX, read(f"tdx2/{name}/quote.bin"), intel_collateral(samples / f"tdx2/{name}/collateral.json"), now
        )

    return {
        "milan": snp("milan_v3"),
        "genoa": snp("genoa"),
        "turin": snp("turin"),
        "vlek": snp("vlek", "vlek.der", "asvk_ark.pem"),
        "tdx": tdx("uptodate", day(2025, 6, 20)),
        "tdx with MRCONFIGID": tdx("uptodate_mrconfigid", day(2025, 9, 3)),
        "tdx below": tdx("below_every_level", day(2026, 2, 19)),
        "tdx padded": Sample(TDX, read("tdx2/gcp_cos_113_padded.bin"), None, day(2025, 6, 1)),
        "tdx 4 padded": Sample(TDX, read("tdx/quote_v4.bin"), None, day(2023, 7, 1)),
        "sgx debug": Sample(SGX, read("sgx/occlum_debug.bin"), None, day(2023, 7, 1)),
    }


@dataclass(frozen=True)
class Azure:
    """What a guest of Azure has: the paravisor's report, and within it or next to it the hardware's."""

    whole: Sample
    hardware: Sample


@pytest.fixture(scope="module")
def azure(samples: Path) -> dict[str, Azure]:
    def decoded(text: str) -> bytes:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

    made: dict[str, Azure] = {}
    for name, chain in (("az-snp-vtpm_evidence-v2", "milan_v3"), ("az-snp-vtpm_evidence-genoa", "genoa")):
        parts = json.loads((samples / f"azure/{name}.json").read_bytes())
        report = bytes(parts["report"]) if "report" in parts else decoded(parts["hcl_report"])
        chip = PEM_cert_to_DER_cert(parts["vcek"]) if "BEGIN" in parts["vcek"] else decoded(parts["vcek"])
        collateral = snp_collateral(chip, samples / f"snp2/{chain}/ask_ark.pem")
        inner = report[HCL_HEADER_BYTES : HCL_HEADER_BYTES + SNP_REPORT_BYTES]
        made[name] = Azure(*(Sample(SNP, document, collateral, day(2025, 6, 1)) for document in (report, inner)))
    parts = json.loads((samples / "azure/az-tdx-vtpm_evidence-v1.json").read_bytes())
    documents = decoded(parts["hcl_report"]), decoded(parts["td_quote"])
    made["az-tdx-vtpm_evidence-v1"] = Azure(*(Sample(TDX, document, None, day(2025, 6, 1)) for document in documents))
    return made


REQUIRED: dict[EvidenceFormat, tuple[str, ...]] = {
    NITRO: ("PCR0", "PCR1", "PCR2"),
    SNP: ("MEASUREMENT",),
    TDX: ("MRTD", "RTMR0", "RTMR1", "RTMR2", "RTMR3"),
    SGX: ("MRENCLAVE",),
}


def policy_for(claims: Claims, *more: str, **changes: Any) -> Policy:
    """Pin a program as it was measured; the rest is the default's."""
    names = (*REQUIRED[claims.format], *more)
    pinned = PinnedMeasurement(claims.format, {name: claims.measurement[name] for name in names})
    tcb = claims.tcb if isinstance(claims.tcb, SnpTcb) else None
    return Policy(accepted=(pinned,), minimum_snp_tcb=tcb, **changes)


CLOUD_TCB = {
    "milan": SnpTcb(boot_loader=4, tee=0, snp=24, microcode=219),
    "genoa": SnpTcb(boot_loader=10, tee=0, snp=25, microcode=84),
    "turin": SnpTcb(boot_loader=1, tee=0, snp=2, microcode=71, fmc=0),
    "vlek": SnpTcb(boot_loader=4, tee=0, snp=24, microcode=217),
}


@pytest.mark.parametrize("name", CLOUD_TCB)
def test_a_report_from_a_cloud_is_accepted_once_its_shared_cores_are(
    clouds: dict[str, Sample], refusal: Refusal, name: str
) -> None:
    sample = clouds[name]
    claims = sample.verify()
    assert (claims.debug, claims.migratable, claims.tcb) == (False, False, CLOUD_TCB[name])
    settings: dict[str, Any] = {"privilege_level": int(name == "vlek"), "snp_revocation_required": False}
    strict, usual = (policy_for(claims, sibling_threads_accepted=accepted, **settings) for accepted in (False, True))
    check = partial(strict.check, claims, claims.report_data, sample.now)
    assert refusal(check, "sibling_threads_accepted=True") is Reason.ATTESTATION_REFUSED
    assert usual.check(claims, claims.report_data, sample.now) == claims.not_after
    TALLIES[f"Evidence, SNP {name}"] = "verifies, and is accepted where shared cores are"


@pytest.mark.parametrize("name", ["tdx", "tdx with MRCONFIGID"])
def test_a_quote_from_a_platform_in_date_is_accepted_by_default(
    clouds: dict[str, Sample], refusal: Refusal, name: str
) -> None:
    sample = clouds[name]
    claims = sample.verify()
    up = TcbStatus.UP_TO_DATE
    assert claims.tcb == IntelTcb(platform=up, quoting_enclave=up, module=up, evaluation_number=17)
    configured = any(claims.measurement["MRCONFIGID"])
    assert configured is (name == "tdx with MRCONFIGID")
    policy = policy_for(claims, *(["MRCONFIGID"] if configured else []))
    assert policy.check(claims, claims.report_data, sample.now) == claims.not_after
    if configured:
        check = partial(policy_for(claims).check, claims, claims.report_data, sample.now)
        assert refusal(check, "differs in MRCONFIGID") is Reason.ATTESTATION_REFUSED
    TALLIES[f"Evidence, {name} up to date"] = "accepted by default"


def test_a_quote_from_a_platform_below_every_level_is_refused(clouds: dict[str, Sample], refusal: Refusal) -> None:
    sample = clouds["tdx below"]
    assert refusal(sample.verify, "below every TCB level") is Reason.ATTESTATION_INVALID
    without = Sample(TDX, sample.document, None, sample.now).verify()
    assert without.tcb is None
    TALLIES["Evidence, tdx below every level"] = "refused"


@pytest.mark.parametrize("name", ["tdx padded", "tdx 4 padded"])
def test_the_padding_of_a_quote_is_cut(clouds: dict[str, Sample], refusal: Refusal, name: str) -> None:
    sample = clouds[name]
    claims = sample.verify()
    assert claims == sample.verify(sample.document[:V4_QUOTE_BYTES])
    with pytest.raises(MalformedMessage):
        sample.verify(sample.document[: V4_QUOTE_BYTES - 1])
    check = partial(policy_for(claims).check, claims, claims.report_data, sample.now)
    assert refusal(check, "without collateral") is Reason.ATTESTATION_REFUSED
    TALLIES[f"Evidence, {name}"] = "verifies, and is refused without collateral"


def test_a_debug_build_of_a_library_os_is_refused(clouds: dict[str, Sample], refusal: Refusal) -> None:
    sample = clouds["sgx debug"]
    claims = sample.verify()
    check = partial(policy_for(claims).check, claims, claims.report_data, sample.now)
    assert refusal(check, "debug build") is Reason.ATTESTATION_REFUSED
    TALLIES["Evidence, sgx debug"] = "verifies, and is refused as a debug build"


@pytest.mark.parametrize("name", ["az-snp-vtpm_evidence-v2", "az-snp-vtpm_evidence-genoa", "az-tdx-vtpm_evidence-v1"])
def test_evidence_of_azures_paravisor_is_refused_and_the_error_says_why(
    azure: dict[str, Azure], refusal: Refusal, name: str
) -> None:
    why = "pins would not cover the program"
    assert refusal(azure[name].whole.verify, why) is Reason.ATTESTATION_REFUSED
    TALLIES[f"Evidence, {name}"] = "refused: it covers the paravisor alone"
    sample = azure[name].hardware
    claims = sample.verify()
    up = TcbStatus.UP_TO_DATE
    judged = IntelTcb(platform=up, quoting_enclave=up, module=None, evaluation_number=17)
    claims = replace(claims, tcb=claims.tcb or judged)
    pins = [name for name in claims.measurement if name not in REQUIRED[sample.kind]]
    policy = policy_for(claims, *pins, sibling_threads_accepted=True, snp_revocation_required=False)
    assert refusal(partial(policy.check, claims, bytes(range(64)), sample.now), why) is Reason.ATTESTATION_REFUSED


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


@pytest.mark.parametrize("name", NAMES)
def test_a_default_policy_refuses_every_sample_though_it_pins_them_all(
    vendor: dict[str, Sample], refusal: Refusal, name: str
) -> None:
    accepted: list[PinnedMeasurement] = []
    for sample in vendor.values():
        measured = sample.verify().measurement
        accepted.append(PinnedMeasurement(sample.kind, {pin: measured[pin] for pin in REQUIRED[sample.kind]}))
    policy = Policy(accepted=tuple(accepted), minimum_snp_tcb=SnpTcb(boot_loader=0, tee=0, snp=0, microcode=0))
    saying = {
        "nitro": "bound to keys",
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
