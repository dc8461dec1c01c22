"""Forms of messages: another form is refused by name, an earlier one by policy, and a substituted one by T0.

The attacker is between a server and its clients, and downgrades them to a form whose messages lack a check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from secagg import wire
from secagg.conformance.sessions import MODEL
from secagg.crypto.entropy import SystemCoins
from secagg.declared import fields_of
from secagg.errors import InvalidParameters, MalformedMessage, Reason, SecAggError, ThresholdNotMet
from secagg.protocols.enclave.trusted.configuration import Start
from secagg.protocols.enclave.trusted.service import EnclaveService
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.session.certificates import NO_STANDING
from secagg.session.client_policy import ClientPolicy
from secagg.session.frames import decode_refusal
from secagg.session.registry import OF_FORM, planned_settings
from secagg.session.roles import LazyUpdate, ServerSession, Update
from tests.harness.form_two import lacking
from tests.harness.session_worlds import SETTINGS, candidate_of

NAMES = [name for name in SETTINGS if name != "plain"]


class Round:
    """A session of a protocol's simulation, and one client's answer to its invitation."""

    def __init__(self, name: str, form: int = wire.FORM) -> None:
        self.made_of = of = candidate_of(name)
        settings = replace(of.settings, message_form=form)
        self.world = of.entry.simulate(settings, coins=of.coins, clock=of.clock)
        self.session: ServerSession = self.world.open(of.subject, frozenset(of.clients))

    @property
    def form_at(self) -> int:
        """Position of the form in the invitation: before the task's length and name."""
        task = self.made_of.subject.task
        return self.session.invitation.index(len(task).to_bytes(4, "big") + task) - 1

    def with_form(self, form: int) -> bytes:
        return self.session.invitation[: self.form_at] + bytes([form]) + self.session.invitation[self.form_at + 1 :]

    def answer(self, message: bytes, number: int = 0) -> bytes:
        of = self.made_of
        client = of.clients[number]
        late = LazyUpdate(lambda: Update(of.payload(client), MODEL))
        joined = self.world.member(client).join(of.subject, late)
        try:
            return joined.answer(message)
        finally:
            joined.abort()

    def close(self) -> None:
        self.session.abort()
        self.world.close()


@pytest.fixture
def at(request: pytest.FixtureRequest) -> Iterator[Round]:
    found = Round(request.param)
    yield found
    found.close()


@pytest.fixture
def spoken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let both ends also support form 2; the newest form with a check stays 3."""
    monkeypatch.setattr(wire, "FORMS", range(2, 4))
    object.__setattr__(OF_FORM, "minimum", 2)
    yield
    object.__setattr__(OF_FORM, "minimum", 3)


EACH = pytest.mark.parametrize("at", NAMES, indirect=True)


def test_no_form_is_spoken_that_lacks_a_check() -> None:
    assert wire.FORMS[0] >= max(wire.CHECKED_FORM, wire.FORM - 1)
    assert wire.FORMS[-1] == wire.FORM
    assert ClientPolicy().minimum_form == wire.CHECKED_FORM


@EACH
@pytest.mark.parametrize("form", [2, 4])
def test_an_offer_of_another_form_is_refused_by_its_name(at: Round, form: int) -> None:
    with pytest.raises(MalformedMessage, match=f"the session has form {form} .* supports form 3") as refused:
        at.answer(at.with_form(form))
    assert refused.value.reason is Reason.WRONG_VERSION


@EACH
def test_a_server_makes_no_offer_in_a_form_that_it_does_not_speak(at: Round) -> None:
    with pytest.raises(InvalidParameters, match="between 3 and 3; got 2"):
        planned_settings(at.made_of.entry, {"message_form": 2})


@pytest.mark.usefixtures("spoken")
def test_holders_receive_no_offer_below_their_policy() -> None:
    with pytest.raises(ThresholdNotMet, match="4 needed, got 0 of 5"):
        Round("one message", form=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("spoken")
def test_a_server_that_goes_back_to_an_earlier_form_is_refused_by_policy(name: str) -> None:
    # Holders and server 1 also have a policy, and refuse an offer of that form before a client sees it.
    back = Round(name, form=3 if name in {"one message", "two servers"} else 2)
    try:
        with pytest.raises(InvalidParameters, match="form 2 of its messages is below 3") as refused:
            back.answer(back.with_form(2))
    finally:
        back.close()
    assert refused.value.reason is Reason.BELOW_FLOOR


@EACH
@pytest.mark.usefixtures("spoken")
def test_a_form_that_was_put_in_on_the_way_counts_no_answer(at: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even for a client that accepts form 2, another form changes T0, so one of both ends refuses."""
    defaults = ClientPolicy.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "minimum_form", 2)
    client = at.made_of.clients[0]
    at.session.receive(client, at.answer(at.session.invitation))
    with pytest.raises(SecAggError) as refused:
        at.session.receive(at.made_of.clients[1], at.answer(at.with_form(2), 1))
    assert refused.value.reason in {*(Reason.WRONG_SESSION, Reason.AUTHENTICATION_FAILED, Reason.QUORUM_NOT_MET)}, (
        "its policy takes the form, and T0 does not"
    )


@pytest.mark.usefixtures("spoken")
def test_server_1_refuses_an_earlier_form_by_its_operators_policy() -> None:
    with pytest.raises(InvalidParameters, match="offered to server 1 is refused: form 2 of its messages is below 3"):
        Round("two servers", form=2)


def test_an_enclave_starts_for_a_host_of_its_own_form_only() -> None:
    service = EnclaveService(coins=SystemCoins(), quote=lambda binding: ("simulated", binding))
    start = Start(b"encoded as only a later version knows", ()).encode()
    refused = decode_refusal(service.answer(start[:7] + b"\4" + start[8:]))
    assert refused.reason is Reason.WRONG_VERSION
    assert "the host has form 4 of secagg's messages, and this enclave form 3" in str(refused)


@pytest.mark.usefixtures("spoken")
@pytest.mark.parametrize("mode", ["semi-honest", "active"])
def test_a_field_that_a_form_lacks_is_in_neither_its_bytes_nor_its_digest(mode: str) -> None:
    found = Round(f"pairwise, {mode}, full")
    try:
        new = SessionConfiguration.decode(found.session.invitation)
    finally:
        found.close()
    before = lacking()
    try:
        old = replace(new, message_form=2, standing=NO_STANDING)
        assert SessionConfiguration.decode(old.encode()) == old
        assert SessionConfiguration.decode(new.encode()) == new
        assert len(new.encode()) - len(old.encode()) >= 108
        assert old.context != new.context
    finally:
        fields_of(SessionConfiguration).update(before)
