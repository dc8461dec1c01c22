"""An enclave is verified or there is none: types, digests, keys, times and receipts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import TracebackType
from typing import Any

import pytest

from secagg.crypto.hpke import sealing_sizes
from secagg.errors import AuthenticationFailed, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ServerId
from secagg.parameters import Suite
from secagg.protocols.enclave.remote_enclave import SimulatedEvidence, SimulatedJudge
from secagg.protocols.enclave.trusted.messages import EnclaveOffer, Receipt
from secagg.protocols.enclave.verified_enclave import Judgement, VerifiedEnclave
from secagg.session.certificates import SigningKey
from tests.harness.enclave_buffers import NOW, EnclaveSetup, InsecureEnclaveSession, model_digest

HOST = {ServerId()}


class JudgeUntil:
    """Accepts everything until a time."""

    def __init__(self, not_after: datetime) -> None:
        self.not_after, self.asked = not_after, list[bytes]()

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:
        assert evidence is not None
        assert now == NOW
        self.asked.append(binding)
        return Judgement("a program", self.not_after)


def verified(session: InsecureEnclaveSession, **changes: Any) -> VerifiedEnclave:
    chosen: dict[str, Any] = {
        "offer": session.enclave.offer,
        "evidence": session.enclave.evidence,
        "configuration": session.configuration,
        "judge": SimulatedJudge(),
        "now": NOW,
    }
    chosen |= changes
    return VerifiedEnclave(chosen.pop("offer"), chosen.pop("evidence"), **chosen)


@pytest.fixture(params=Suite)
def session(request: pytest.FixtureRequest) -> InsecureEnclaveSession:
    return InsecureEnclaveSession(EnclaveSetup(suite=request.param))


def test_what_passes_carries_what_was_verified(session: InsecureEnclaveSession) -> None:
    judge = JudgeUntil(NOW + timedelta(hours=1))
    enclave = verified(session, judge=judge)
    assert judge.asked == [session.enclave.offer.binding]
    assert (enclave.offer, enclave.configuration) == (session.enclave.offer, session.configuration)
    assert (enclave.program, enclave.not_after) == ("a program", NOW + timedelta(hours=1))
    assert repr(enclave) == "<VerifiedEnclave a program, until 2026-01-01 01:00 UTC>"


@pytest.mark.parametrize(
    "change",
    [{"offer": None}, {"offer": b""}, {"configuration": None}, {"configuration": b""}],
    ids=["no offer", "an encoded offer", "no configuration", "an encoded configuration"],
)
def test_only_an_offer_and_a_configuration_are_verified(
    session: InsecureEnclaveSession, change: dict[str, Any]
) -> None:
    if change.get("offer") == b"":
        change = {"offer": session.enclave.offer.encode()}
    with pytest.raises(Misuse, match="EnclaveOffer"):
        verified(session, **change)


@pytest.mark.parametrize(
    "change", [{"epoch": b"e" * 31}, {"epoch": b"e" * 33}, {"receipt_key": b"r" * 31}, {"receipt_key": b"r" * 33}]
)
def test_an_offer_that_no_decoder_made_is_refused(session: InsecureEnclaveSession, change: dict[str, Any]) -> None:
    offer: EnclaveOffer = replace(session.enclave.offer, **change)
    with pytest.raises(Misuse, match=r"EnclaveOffer\.decode"):
        verified(session, offer=offer, evidence=SimulatedEvidence(offer.binding))


def test_a_sealing_key_of_another_length_is_refused(session: InsecureEnclaveSession) -> None:
    length = sealing_sizes(session.setup.suite)[0]
    for wrong, reason in (
        (session.enclave.offer.sealing_key[:-1], Reason.TRUNCATED),
        (session.enclave.offer.sealing_key + b"\0", Reason.TRAILING_BYTES),
        (b"", Reason.TRUNCATED),
    ):
        offer = replace(session.enclave.offer, sealing_key=wrong)
        with pytest.raises(MalformedMessage) as caught:
            verified(session, offer=offer, evidence=SimulatedEvidence(offer.binding))
        assert caught.value.reason is reason
        assert caught.value.culprits == HOST
    assert len(session.enclave.offer.sealing_key) == length


@pytest.mark.parametrize("first", ["judgement", "configuration"])
def test_it_ends_with_what_ends_first(session: InsecureEnclaveSession, first: str) -> None:
    expiry = datetime.fromtimestamp(session.configuration.expiry, UTC)
    judged = expiry + timedelta(hours=1 if first == "configuration" else -1)
    enclave = verified(session, judge=JudgeUntil(judged))
    assert enclave.not_after == min(expiry, judged)
    enclave.require_current(enclave.not_after - timedelta(microseconds=1))
    for now in (enclave.not_after, enclave.not_after + timedelta(days=999)):
        with pytest.raises(PeerMisbehaved, match="start a new epoch") as caught:
            enclave.require_current(now)
        assert caught.value.reason is Reason.ATTESTATION_REFUSED
        assert caught.value.culprits == HOST


def test_what_has_run_out_before_it_is_verified_is_not_made(session: InsecureEnclaveSession) -> None:
    with pytest.raises(PeerMisbehaved) as caught:
        verified(session, judge=JudgeUntil(NOW))
    assert caught.value.reason is Reason.ATTESTATION_REFUSED


def test_times_of_all_zones_are_one_time(session: InsecureEnclaveSession) -> None:
    enclave = verified(session, judge=JudgeUntil(NOW + timedelta(hours=1)))
    east = timezone(timedelta(hours=9))
    enclave.require_current((NOW + timedelta(minutes=59)).astimezone(east))
    with pytest.raises(PeerMisbehaved):
        enclave.require_current((NOW + timedelta(minutes=60)).astimezone(east))


def test_what_was_refused_can_be_shown_in_a_traceback(session: InsecureEnclaveSession) -> None:
    with pytest.raises(PeerMisbehaved) as caught:
        verified(session, evidence=SimulatedEvidence(bytes(64)))
    traceback: TracebackType | None = caught.tb
    shown: list[str] = []
    while traceback is not None:
        shown += [repr(each) for each in traceback.tb_frame.f_locals.values() if type(each) is VerifiedEnclave]
        traceback = traceback.tb_next
    assert shown == ["<VerifiedEnclave, not verified>"]


# --- Receipts ---------------------------------------------------------------------------------------------------------


def receipt_of(session: InsecureEnclaveSession) -> Receipt:
    session.host.open_buffer(3, model_digest(3))
    for number in (1, 2, 3):
        session.upload(number, version=3)
    return session.host.release()[1]


def test_a_receipt_of_the_enclave_verifies_wherever_it_was_carried(session: InsecureEnclaveSession) -> None:
    receipt = receipt_of(session)
    enclave = verified(session)
    enclave.verify_receipt(receipt)
    enclave.verify_receipt(Receipt.decode(receipt.encode()))


CHANGES: dict[str, Any] = {
    "context": AttemptContext(bytes(32)),
    "epoch": b"f" * 32,
    "buffer": 4,
    "uploads_digest": b"w" * 32,
    "contributors": 4,
    "releases": 2,
    "released_digest": b"e" * 32,
    "signature": b"s" * 64,
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_receipt_with_any_field_changed_does_not(session: InsecureEnclaveSession, field: str) -> None:
    changes: dict[str, Any] = {field: CHANGES[field]}
    receipt = receipt_of(session)
    changed: Receipt = replace(receipt, **changes)
    assert changed != receipt
    with pytest.raises(AuthenticationFailed) as caught:
        verified(session).verify_receipt(changed)
    assert caught.value.culprits == HOST


@pytest.mark.parametrize("field", ["context", "epoch"])
def test_a_receipt_of_another_epoch_or_configuration_does_not_though_the_key_is_the_same(
    session: InsecureEnclaveSession, field: str
) -> None:
    changes: dict[str, Any] = {field: CHANGES[field]}
    key: SigningKey = vars(session.enclave)["_receipt_key"]
    receipt = receipt_of(session)
    verified(session).verify_receipt(replace(receipt, buffer=4).signed_with(key))
    other: Receipt = replace(receipt, **changes)
    with pytest.raises(AuthenticationFailed):
        verified(session).verify_receipt(other.signed_with(key))
