"""Who is in a round's sum: every call in every state, every rule, and a naive model beside the class."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from secagg.errors import Misuse, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.offers import Entry, RoundRules, RoundState, Standing

COLLECTING, SIGNED, AGREED, FAILED = RoundState


def rules(**changes: Any) -> RoundRules:
    chosen: dict[str, Any] = {"minimum_cohort": 2, "maximum_cohort": 6, "maximum_rejections": 2, **changes}
    return RoundRules(**chosen)


def entry(client: int, *, upload: int | None = None) -> Entry:
    number = client if upload is None else upload
    return Entry(ClientId(client), number.to_bytes(32, "big"))


def take(kept: RoundRules, *entries: Entry) -> None:
    for one in entries:
        kept.receive(one)
        kept.ask(one.upload_id)
        kept.take(one.upload_id)


def is_refused(
    kept: RoundRules, call: Callable[[], object], kind: type[SecAggError], reason: Reason | None = None
) -> SecAggError:
    """Check that a call is refused in this way, and that the rules remember exactly what they did before."""
    before = copy.deepcopy(vars(kept))
    with pytest.raises(SecAggError) as caught:
        call()
    assert type(caught.value) is kind
    assert reason in (None, caught.value.reason)
    assert vars(kept) == before
    return caught.value


def at(state: RoundState) -> RoundRules:
    """Return rules in a state, with two uploads taken, one asked about and one received."""
    kept = rules()
    take(kept, entry(1), entry(2))
    for waiting in (entry(3), entry(4)):
        kept.receive(waiting)
    kept.ask(entry(3).upload_id)
    if state in (SIGNED, AGREED):
        kept.sign()
    if state is AGREED:
        kept.agree()
    if state is FAILED:
        kept.fail()
    return kept


CALLS: dict[str, tuple[Callable[[RoundRules], object], set[RoundState]]] = {
    "receive": (lambda kept: kept.receive(entry(9)), {COLLECTING}),
    "require_new": (lambda kept: kept.require_new(entry(9)), {COLLECTING}),
    "ask": (lambda kept: kept.ask(entry(4).upload_id), {COLLECTING}),
    "take": (lambda kept: kept.take(entry(3).upload_id), {COLLECTING}),
    "reject": (lambda kept: kept.reject(entry(4).upload_id), {COLLECTING}),
    "list_to_sign": (lambda kept: kept.list_to_sign(), {COLLECTING}),
    "sign": (lambda kept: kept.sign(), {COLLECTING}),
    "agree": (lambda kept: kept.agree(), {SIGNED, AGREED}),
    "fail": (lambda kept: kept.fail(), set(RoundState)),
}


@pytest.mark.parametrize("state", RoundState)
@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_for_its_states(name: str, state: RoundState) -> None:
    call, states = CALLS[name]
    kept = at(state)
    if state in states:
        call(kept)
    else:
        is_refused(kept, lambda: call(kept), Misuse)


def test_an_upload_is_added_after_it_was_asked_about_and_once() -> None:
    kept, upload = rules(), entry(1).upload_id
    is_refused(kept, lambda: kept.ask(upload), Misuse)
    kept.receive(entry(1))
    is_refused(kept, lambda: kept.require_asked(upload), Misuse)
    is_refused(kept, lambda: kept.take(upload), Misuse)
    kept.ask(upload)
    kept.require_asked(upload)
    kept.take(upload)
    is_refused(kept, lambda: kept.require_asked(upload), Misuse)


def test_who_waits_is_told_in_the_order_of_arrival() -> None:
    kept = rules()
    for number in (3, 1, 2):
        kept.receive(entry(number))
    kept.ask(entry(3).upload_id)
    assert kept.waiting() == tuple(entry(number).upload_id for number in (3, 1, 2))
    kept.reject(entry(1).upload_id)
    assert kept.waiting() == tuple(entry(number).upload_id for number in (3, 2))


def test_a_round_takes_its_maximum_of_uploads_and_not_one_more() -> None:
    """A rejected upload gives its place to another; one that waits keeps it."""
    kept = rules(maximum_cohort=3)
    take(kept, entry(1), entry(2))
    kept.receive(entry(3))
    error = is_refused(kept, lambda: kept.receive(entry(4)), PeerMisbehaved, Reason.BUFFER_FULL)
    assert isinstance(error, PeerMisbehaved)
    assert error.culprits == frozenset()
    kept.receive(entry(3))
    kept.reject(entry(3).upload_id)
    take(kept, entry(4))
    is_refused(kept, lambda: kept.require_new(entry(5)), PeerMisbehaved, Reason.BUFFER_FULL)
    assert kept.sign() == (entry(1), entry(2), entry(4))


def test_a_round_signs_with_its_maximum_of_rejections_and_not_with_one_more() -> None:
    rejected = [entry(3), entry(4), entry(5)]
    kept = rules(maximum_rejections=2)
    take(kept, entry(1), entry(2))
    for one in rejected:
        assert kept.list_to_sign() == (entry(1), entry(2))
        kept.receive(one)
        kept.reject(one.upload_id)
    for call in (kept.list_to_sign, kept.sign):
        error = is_refused(kept, call, PeerMisbehaved, Reason.ONE_HOT_REFUTED)
        assert isinstance(error, PeerMisbehaved)
        assert error.culprits == {*(one.client for one in rejected), ServerId(0), ServerId(1)}


class RoundModel(RuleBasedStateMachine):
    """Any calls in any order: what the rules hold is what a list of what happened says."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = rules(minimum_cohort=2, maximum_cohort=5, maximum_rejections=2)
        self.uploads: dict[int, tuple[Entry, str]] = {}
        self.state = COLLECTING
        self.named: Any = (None, None)

    def live(self) -> int:
        return sum(standing != "rejected" for _, standing in self.uploads.values())

    @rule(client=st.integers(1, 7), upload=st.integers(1, 2))
    def receive(self, client: int, upload: int) -> None:
        new = entry(client, upload=10 * client + upload)
        known = self.uploads.get(client)
        try:
            self.kept.receive(new)
        except Misuse:
            assert self.state is not COLLECTING
        except PeerMisbehaved:
            is_other = known is not None and known[0].upload_id != new.upload_id
            assert is_other or (known is None and self.live() >= 5)
        else:
            assert self.state is COLLECTING
            if known is None:
                assert self.live() < 5
                self.uploads[client] = (new, "received")
            else:
                assert known[0].upload_id == new.upload_id

    @rule(client=st.integers(1, 7), step=st.sampled_from(["ask", "take", "reject"]))
    def move(self, client: int, step: str) -> None:
        known = self.uploads.get(client)
        upload_id = known[0].upload_id if known else bytes(32)
        earlier = {"ask": {"received", "asked"}, "take": {"asked"}, "reject": {"received", "asked"}}[step]
        allowed = self.state is COLLECTING and known is not None and known[1] in earlier
        try:
            getattr(self.kept, step)(upload_id)
        except Misuse:
            assert not allowed
        else:
            assert allowed
            assert known is not None
            self.uploads[client] = (known[0], {"ask": "asked", "take": "taken", "reject": "rejected"}[step])

    @rule()
    def sign(self) -> None:
        taken = [one for one, standing in self.uploads.values() if standing == "taken"]
        rejected = sum(standing == "rejected" for _, standing in self.uploads.values())
        try:
            self.kept.sign()
        except Misuse:
            assert self.state is not COLLECTING
        except PeerMisbehaved as error:
            assert rejected > 2
            named = {one.client for one, standing in self.uploads.values() if standing == "rejected"}
            self.named = error.culprits, frozenset({*named, ServerId(0), ServerId(1)})
        except ThresholdNotMet:
            assert len(taken) < 2
        else:
            assert self.state is COLLECTING
            assert rejected <= 2
            assert self.kept.counted == tuple(sorted(taken))
            self.state = SIGNED

    @precondition(lambda self: self.state is not COLLECTING)
    @rule(fails=st.booleans())
    def end(self, fails: bool) -> None:  # noqa: FBT001 -- drawn by hypothesis
        if fails:
            self.kept.fail()
            self.state = FAILED
            return
        try:
            self.kept.agree()
        except Misuse:
            assert self.state is FAILED
        else:
            self.state = AGREED

    @invariant()
    def is_what_happened(self) -> None:
        assert self.kept.state is self.state
        assert self.named[0] == self.named[1]
        for one, standing in self.uploads.values():
            assert self.kept.standing(one.upload_id) is Standing(standing)
        for kind in Standing:
            assert self.kept.number_of(kind) == sum(other == kind.value for _, other in self.uploads.values())


TestRoundModel = RoundModel.TestCase
TestRoundModel.settings = settings(stateful_step_count=30)
