"""A host that chooses what its evidence is verified with: none, another vendor's, altered, or the oldest valid one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from secagg.errors import InvalidParameters, PeerError, Reason
from secagg.identifiers import ClientId
from secagg.protocols.enclave.attestation import (
    Collateral,
    Evidence,
    EvidenceFormat,
    IntelCollateral,
    IntelTcb,
    PinnedMeasurement,
    Policy,
    Roots,
    SnpCollateral,
    SnpTcb,
    TcbStatus,
    Verifier,
)
from secagg.protocols.enclave.attestation.claims import Claims
from secagg.protocols.enclave.client import Invitation
from secagg.protocols.enclave.collateral import decode_collateral, encode_collateral
from secagg.protocols.enclave.judge import HardwareJudge, _require_newest, read_policy  # pyright: ignore[reportPrivateUsage]
from secagg.protocols.enclave.server import Server
from secagg.protocols.enclave.trusted.messages import ModelStamp
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.session.store import Store
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, attested_of
from tests.harness.evidence_makers import evidence_makers

MODELS = count(1)
NEEDED = SnpTcb(boot_loader=4, tee=0, snp=22, microcode=200)


@pytest.fixture(scope="module")
def makers(repository: Path) -> Iterator[ModuleType]:
    yield from evidence_makers(repository)


@pytest.fixture
def session(makers: ModuleType) -> InsecureEnclaveSession:
    return InsecureEnclaveSession(EnclaveSetup(), now=makers.authority.NOW)


def of_intel(makers: ModuleType, evaluation: int = 17) -> IntelCollateral:
    """Return collateral of one evaluation number, all of it valid."""
    info = makers.intel.tcb_info("TDX", tcbEvaluationDataNumber=evaluation)
    identity = makers.intel.qe_identity("TD_QE", tcbEvaluationDataNumber=evaluation)
    return IntelCollateral(**makers.intel.collateral("TDX", info=info, identity=identity))


def of_amd(makers: ModuleType, **changes: Any) -> SnpCollateral:
    root, authority = makers.snp.authorities()
    made = {
        "chip_certificate": makers.snp.chip_certificate().der,
        "authority_certificate": authority.der,
        "root_certificate": root.der,
        "revocation_list": makers.snp.amd_revocation_list(),
    }
    return SnpCollateral(**(made | changes))


def shown(session: InsecureEnclaveSession, makers: ModuleType, form: EvidenceFormat) -> Evidence:
    binding = session.enclave.offer.binding
    if form is EvidenceFormat.SNP:
        return Evidence(form, makers.snp.SnpReport(report_data=binding).encode())
    body = makers.intel.td_report(patches={520: binding})
    return Evidence(form, makers.intel.tdx_quote(body=body).encode())


@pytest.fixture
def judge(makers: ModuleType, tmp_path: Path) -> Callable[..., HardwareJudge]:
    def fingerprint(issued: Any) -> frozenset[bytes]:
        return frozenset({hashlib.sha256(issued.der).digest()})

    roots = Roots(
        nitro=frozenset(),
        amd=fingerprint(makers.snp.authorities()[0]),
        intel=fingerprint(makers.intel.authorities()[0]),
    )
    registers = {"MRTD": b"\x3d" * 48} | {f"RTMR{index}": bytes([0xB0 + index]) * 48 for index in range(4)}
    pins = (
        PinnedMeasurement(EvidenceFormat.TDX, registers),
        PinnedMeasurement(EvidenceFormat.SNP, {"MEASUREMENT": b"\x4d" * 48}),
    )
    bounded = Policy(
        accepted=pins,
        minimum_snp_tcb=NEEDED,
        minimum_tcb_evaluation=5,
        lists_since=makers.authority.START - timedelta(days=1),
    )

    def make(**changes: Any) -> HardwareJudge:
        newest = changes.pop("newest", Store.at(tmp_path))
        collateral = changes.pop("collateral", None)
        policy = replace(bounded, **changes)
        return HardwareJudge(policy=policy, verifier=Verifier(roots), newest=newest, collateral=collateral)

    return make


def verify(session: InsecureEnclaveSession, evidence: Evidence, collateral: Collateral, judge: HardwareJudge) -> None:
    """Let a client judge what the host's own invitation carries."""
    server = Server(
        session.configuration,
        session.enclave,
        ModelStamp(version=next(MODELS), digest=bytes(32)),
        attested=attested_of(session.enclave.offer, evidence.format.value, evidence.document),
        collateral=encode_collateral(collateral),
    )
    message = server.message_to(ClientId(1))
    assert message is not None
    invited = Invitation.decode(message)
    evidence = replace(evidence, relayed=invited.collateral)
    try:
        VerifiedEnclave(
            session.enclave.offer, evidence, configuration=session.configuration, judge=judge, now=session.now
        )
    finally:
        server.abort()


def refusal(call: Callable[[], object]) -> Reason:
    with pytest.raises(PeerError) as caught:
        call()
    return caught.value.reason


COLLATERAL: dict[EvidenceFormat, Callable[..., Collateral]] = {EvidenceFormat.TDX: of_intel, EvidenceFormat.SNP: of_amd}


@pytest.mark.parametrize("form", COLLATERAL)
def test_what_a_host_relays_is_verified_and_no_part_of_it_can_be_altered(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge], form: EvidenceFormat
) -> None:
    evidence, collateral = shown(session, makers, form), COLLATERAL[form](makers)
    verify(session, evidence, collateral, judge())
    for part in fields(collateral):  # type: ignore[arg-type] # a dataclass
        content = bytearray(getattr(collateral, part.name))
        for at in (0, len(content) // 2):
            altered = bytes(content[:at]) + bytes([content[at] ^ 1]) + bytes(content[at + 1 :])
            changed = replace(cast("Any", collateral), **{part.name: altered})
            with pytest.raises(PeerError):
                verify(session, evidence, changed, judge())


@pytest.mark.parametrize("form", COLLATERAL)
def test_evidence_without_collateral_is_refused(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge], form: EvidenceFormat
) -> None:
    evidence = shown(session, makers, form)
    assert refusal(lambda: verify(session, evidence, None, judge())) in (
        Reason.COLLATERAL_STALE,
        Reason.ATTESTATION_REFUSED,
    )


@pytest.mark.parametrize("form", COLLATERAL)
def test_collateral_of_another_vendor_is_malformed_and_no_fault_of_the_client(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge], form: EvidenceFormat
) -> None:
    (other,) = set(COLLATERAL) - {form}
    for relayed in (encode_collateral(COLLATERAL[other](makers)), b"\xff" * 40):
        evidence = replace(shown(session, makers, form), relayed=relayed)
        assert refusal(partial(judge().judge, evidence, bytes(64), session.now)) is not None
    nitro = Evidence(EvidenceFormat.NITRO, b"a document", relayed=encode_collateral(of_amd(makers)))
    assert refusal(lambda: judge().judge(nitro, bytes(64), session.now)) is Reason.NOT_CANONICAL


@pytest.mark.parametrize("form", COLLATERAL)
def test_a_family_that_the_own_collateral_is_not_of_is_refused_and_no_fault_of_the_client(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge], form: EvidenceFormat
) -> None:
    """A host chooses the format that it names; the client's operator would look for a fault of his own."""
    own = judge(collateral=COLLATERAL[form](makers))
    (other,) = set(COLLATERAL) - {form}
    for evidence in (shown(session, makers, other), Evidence(EvidenceFormat.NITRO, b"a document")):
        found = refusal(partial(own.judge, evidence, session.enclave.offer.binding, session.now))
        assert found is Reason.ATTESTATION_REFUSED


def test_a_host_that_leaves_the_list_out_goes_behind_no_day_that_was_asked_for(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge]
) -> None:
    """Also where lists need not be there: without one, the host's collateral would have no age at all."""
    evidence, lax = shown(session, makers, EvidenceFormat.SNP), judge(snp_revocation_required=False)
    verify(session, evidence, of_amd(makers), lax)
    without = of_amd(makers, revocation_list=None)
    assert refusal(lambda: verify(session, evidence, without, lax)) is Reason.ATTESTATION_REFUSED


@pytest.mark.parametrize(
    "case",
    [
        (EvidenceFormat.TDX, {"minimum_tcb_evaluation": 0}, "minimum_tcb_evaluation"),
        (EvidenceFormat.SNP, {"lists_since": None}, "lists_since"),
        (EvidenceFormat.TDX, {"newest": None}, "newest= with a store"),
        (EvidenceFormat.SNP, {"newest": None}, "newest= with a store"),
    ],
)
def test_a_client_that_bounds_no_age_judges_by_nothing_that_a_host_chose(
    session: InsecureEnclaveSession,
    makers: ModuleType,
    judge: Callable[..., HardwareJudge],
    case: tuple[EvidenceFormat, dict[str, Any], str],
) -> None:
    form, changes, named = case
    evidence, collateral = shown(session, makers, form), COLLATERAL[form](makers)
    with pytest.raises(InvalidParameters, match=named):
        verify(session, evidence, collateral, judge(**changes))
    verify(session, evidence, None, judge(**changes, collateral=collateral))


def test_an_older_evaluation_than_one_that_was_seen_is_refused_also_after_a_restart(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge], tmp_path: Path
) -> None:
    evidence = shown(session, makers, EvidenceFormat.TDX)
    assert refusal(lambda: verify(session, evidence, of_intel(makers, 4), judge())) is Reason.ATTESTATION_REFUSED
    verify(session, evidence, of_intel(makers, 16), judge())
    verify(session, evidence, of_intel(makers, 17), judge())
    Store.at(tmp_path).close()
    with closing(Store(tmp_path)) as again:
        later = judge(newest=again)
        assert refusal(lambda: verify(session, evidence, of_intel(makers, 16), later)) is Reason.COLLATERAL_STALE
        verify(session, evidence, of_intel(makers, 17), later)
        assert refusal(lambda: verify(session, evidence, of_intel(makers, 5), later)) is Reason.COLLATERAL_STALE


def test_an_older_revocation_list_than_one_that_was_seen_is_refused(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge]
) -> None:
    evidence = shown(session, makers, EvidenceFormat.SNP)
    root, start = makers.snp.authorities()[0], makers.authority.START

    def lists(days: int) -> SnpCollateral:
        made = makers.authority.revocation_list(root, start=start + timedelta(days=days))
        return of_amd(makers, revocation_list=made)

    verify(session, evidence, lists(0), judge())
    verify(session, evidence, lists(1), judge())
    assert refusal(lambda: verify(session, evidence, lists(0), judge())) is Reason.COLLATERAL_STALE
    assert refusal(lambda: verify(session, evidence, lists(-5), judge())) is Reason.COLLATERAL_STALE


def test_lists_of_two_authorities_are_remembered_apart(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge], tmp_path: Path
) -> None:
    """A client of enclaves on two kinds of processors would else refuse the newest list of the one for the other's."""
    evidence, store = shown(session, makers, EvidenceFormat.SNP), Store.at(tmp_path)
    root, start = makers.snp.authorities()[0], makers.authority.START
    other = hashlib.sha256(b"the root of other processors").digest()
    _require_newest(store, claims_with({other: start + timedelta(days=300)}))
    made = makers.authority.revocation_list(root, start=start)
    verify(session, evidence, of_amd(makers, revocation_list=made), judge())
    with pytest.raises(PeerError, match="a revocation list issued at second"):
        _require_newest(store, claims_with({other: start + timedelta(days=299)}))


def test_the_newer_of_two_lists_cannot_go_back_behind_the_older(
    session: InsecureEnclaveSession, makers: ModuleType, judge: Callable[..., HardwareJudge]
) -> None:
    """Intel's root signs once a year; its platform authority once a month, and that list names platforms."""
    evidence, start = shown(session, makers, EvidenceFormat.TDX), makers.authority.START
    root, authority, _ = makers.intel.authorities()
    yearly = makers.authority.revocation_list(root, start=start - timedelta(days=1))

    def lists(days: int) -> IntelCollateral:
        monthly = makers.authority.revocation_list(authority, start=start + timedelta(days=days))
        return replace(of_intel(makers), root_revocation_list=yearly, platform_revocation_list=monthly)

    verify(session, evidence, lists(1), judge())
    assert refusal(lambda: verify(session, evidence, lists(0), judge())) is Reason.COLLATERAL_STALE


def test_an_evaluation_counts_for_all_platforms_of_sgx_or_of_tdx_and_not_for_the_other(tmp_path: Path) -> None:
    """Intel numbers its evaluations of all platforms of SGX, and those of TDX apart."""
    store = Store.at(tmp_path)

    def of(form: EvidenceFormat, number: int) -> Claims:
        up = TcbStatus.UP_TO_DATE
        tcb = IntelTcb(platform=up, quoting_enclave=up, module=None, evaluation_number=number)
        return replace(claims_with({}), format=form, tcb=tcb)

    _require_newest(store, of(EvidenceFormat.TDX, 19))
    with pytest.raises(PeerError, match="TCB evaluation 18, older than 19"):
        _require_newest(store, of(EvidenceFormat.TDX, 18))
    _require_newest(store, of(EvidenceFormat.SGX, 18))
    pins = (
        PinnedMeasurement(EvidenceFormat.SGX, {"MRENCLAVE": bytes(32)}),
        PinnedMeasurement(EvidenceFormat.TDX, {"MRTD": bytes(48)} | {f"RTMR{index}": bytes(48) for index in range(4)}),
    )
    with pytest.raises(InvalidParameters, match="use one policy for each"):
        Policy(accepted=pins, minimum_tcb_evaluation=18)
    Policy(accepted=pins)


def claims_with(lists: dict[bytes, datetime]) -> Claims:
    return Claims(
        format=EvidenceFormat.SNP,
        measurement={},
        signer=b"",
        debug=False,
        migratable=False,
        privilege_level=0,
        sibling_threads=False,
        tcb=NEEDED,
        lists=lists,
        report_data=b"",
        signed_digest=b"",
        issued_at=None,
        not_after=datetime.max.replace(tzinfo=UTC),
    )


# --- The file of a node's operator ------------------------------------------------------------------------------------

TDX_PINS = {"MRTD": "3d" * 48} | {f"RTMR{index}": f"b{index}" * 48 for index in range(4)}
FILES: dict[EvidenceFormat, dict[str, Any]] = {
    EvidenceFormat.TDX: {"accepted": [TDX_PINS], "minimum_tcb_evaluation": 17},
    EvidenceFormat.SNP: {
        "accepted": [{"MEASUREMENT": "4d" * 48}],
        "minimum_tcb": {"boot_loader": 4, "tee": 0, "snp": 22, "microcode": 200},
    },
}


@pytest.mark.parametrize("form", COLLATERAL)
def test_a_policy_file_judges_relayed_collateral_from_end_to_end(
    session: InsecureEnclaveSession,
    makers: ModuleType,
    judge: Callable[..., HardwareJudge],
    tmp_path: Path,
    form: EvidenceFormat,
) -> None:
    evidence, collateral, file = shown(session, makers, form), COLLATERAL[form](makers), tmp_path / "policy.json"
    day = (makers.authority.START - timedelta(days=1)).strftime("%Y-%m-%d")
    content = {"format": form.value, **FILES[form]} | ({"lists_since": day} if form is EvidenceFormat.SNP else {})
    file.write_text(json.dumps(content))
    own = replace(judge(), policy=read_policy(file))
    verify(session, evidence, collateral, own)
    loose = {name: value for name, value in content.items() if name not in ("lists_since", "minimum_tcb_evaluation")}
    file.write_text(json.dumps(loose))
    with pytest.raises(InvalidParameters, match="could choose the oldest that is still valid"):
        verify(session, evidence, collateral, replace(own, policy=read_policy(file)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": "sgx", "accepted": [{"MRENCLAVE": "%s"}], "accepted": [{"MRENCLAVE": "%s"}]}', "occurs twice"),
        ('{"format": "sgx", "accepted": [{"MRENCLAVE": "%s", "MRENCLAVE": "%s"}]}', "occurs twice"),
        ('{"format": "sgx", "accepted": [{"MRENCLAVE": "%s"}], "accepted_advisories": "%s"}', "is not a list"),
        ('{"format": "sgx", "accepted": [{"MRENCLAVE": "%s"}], "minimum_tcb_evaluation": "%s"}', "must be at least 0"),
        (
            '{"format": "sev-snp", "accepted": [{"MEASUREMENT": "%s"}], "sibling_threads_accepted": "no%s", \
            "minimum_tcb": {"boot_loader": 4, "tee": 0, "snp": 22, "microcode": 200}}',
            "must be true or false",
        ),
    ],
)
def test_a_policy_file_that_says_less_than_it_seems_is_refused(tmp_path: Path, text: str, said: str) -> None:
    digests = ("4d" * 48, "") if "sev-snp" in text else ("aa" * 32, "bb" * 32)
    (tmp_path / "policy.json").write_text(text % digests)
    with pytest.raises(InvalidParameters, match=said):
        read_policy(tmp_path / "policy.json")


def test_collateral_reads_back(makers: ModuleType) -> None:
    for form, collateral in COLLATERAL.items():
        made = collateral(makers)
        assert decode_collateral(encode_collateral(made), form) == (made, b"")
        assert decode_collateral(encode_collateral(made, b"signed"), form) == (made, b"signed")
    without = replace(of_amd(makers), revocation_list=None)
    assert decode_collateral(encode_collateral(without), EvidenceFormat.SNP) == (without, b"")
    assert decode_collateral(b"", EvidenceFormat.TDX) == (None, b"")
    assert decode_collateral(encode_collateral(None, b"signed"), EvidenceFormat.NITRO) == (None, b"signed")
    with pytest.raises(InvalidParameters, match="clients accept at most"):
        encode_collateral(replace(of_intel(makers), tcb_info=bytes(1 << 18)))
