"""What a server of one sum does in one order alone, and whom it goes on without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.blame import unverified
from secagg.crypto.ring import RingVector
from secagg.errors import (
    NOBODY,
    AuthenticationFailed,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import HolderId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.decoding import Recovered, SumOfSecrets, recovered
from secagg.protocols.one_message.opening import LocalSum, OneMessageCut, OpenedSum, Sums, WrongSecret, largest_entry
from secagg.protocols.one_message.parameters import FIELD
from secagg.protocols.one_message.requests import Judged, Receipt, Verdict
from secagg.protocols.one_message.tally import State, Tally
from secagg.session.signing_keys import issue_certificate
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup
from tests.harness.planted import always


def test_an_upload_that_comes_again_is_delivered_once() -> None:
    world = InsecureSum()
    client, server = world.setup.clients[0], Tally(world.offer(), COINS)
    upload = world.upload(client)
    world.ask(server, server.introduce())
    server.receive_upload(client, upload)
    server.receive_upload(client, upload)
    assert server.is_due(1)
    assert not server.is_due(2)
    world.ask(server, server.deliver())
    with pytest.raises(Misuse, match="settle the last delivery first"):
        server.deliver()
    server.settle()
    server.receive_upload(client, upload)
    assert (server.is_due(1), server.listed) == (False, frozenset({client}))


def test_a_holder_that_judges_no_delivery_is_lost() -> None:
    world = InsecureSum()
    server = world.server(clients=world.setup.clients[:1])
    requests = server.deliver()
    requests.pop(2)
    world.ask(server, requests)
    server.settle()
    assert server.present == {0, 1, 3, 4}


DUE: dict[State, set[str]] = {
    State.COLLECTING: {"upload", "receipt", "introduce", "deliver", "settle", "fix_list"},
    State.CERTIFYING: {"signature", "certify"},
    State.OPENING: {"answer", "open"},
    State.ENDED: set(),
}


def test_every_call_and_message_is_for_its_state() -> None:
    """Whatever is not due is refused as such, wherever the sum stands, and moves it nowhere."""
    world = InsecureSum(SumSetup())
    server, client = world.collected(), world.setup.clients[0]
    said = {"receipt": server.receipts[0][0], "signature": b"", "answer": b""}
    upload = world.upload(client)

    def hear(kind: str) -> None:
        server.receive(0, said[kind])

    calls: dict[str, Callable[[], object]] = {
        "upload": lambda: server.receive_upload(client, upload),
        "introduce": server.introduce,
        "deliver": server.deliver,
        "settle": server.settle,
        "fix_list": server.fix_list,
        "certify": server.certify,
        "open": server.open,
        **{kind: partial(hear, kind) for kind in said},
    }
    other = InsecureSum(SumSetup())
    twin = other.collected()
    twin.fix_list()
    for kind in ("signature", "answer"):
        said[kind] = other.holders[0].respond(twin.requests()[0])
        other.ask(twin, twin.requests())
        if kind == "signature":
            twin.certify()

    def refuses_all_but(state: State) -> None:
        assert server.state is state
        for name in calls.keys() - DUE[state]:
            with pytest.raises(UnexpectedMessage):
                calls[name]()
        assert server.state is state

    with pytest.raises(Misuse, match="the list is not fixed yet"):
        server.requests()
    refuses_all_but(State.COLLECTING)
    server.fix_list()
    refuses_all_but(State.CERTIFYING)
    world.ask(server, server.requests())
    server.certify()
    refuses_all_but(State.OPENING)
    world.ask(server, server.requests())
    assert server.open().counted == frozenset(world.setup.clients)
    refuses_all_but(State.ENDED)
    with pytest.raises(Misuse, match="cannot become collecting"):
        server._go_to(State.COLLECTING)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def test_a_list_is_fixed_when_nothing_waits_and_nothing_is_on_its_way() -> None:
    world = InsecureSum()
    last = world.setup.clients[-1]
    server = world.collected(clients=world.setup.clients[:-1])
    server.receive_upload(last, world.upload(last))
    with pytest.raises(Misuse, match="deliver and settle"):
        server.fix_list()
    requests = server.deliver()
    with pytest.raises(Misuse, match="deliver and settle"):
        server.fix_list()
    world.ask(server, requests)
    server.settle()
    server.fix_list()
    assert len(server.upload_list.listed) == world.setup.population


def test_a_holder_that_was_lost_says_nothing_more() -> None:
    world = InsecureSum()
    server = Tally(world.offer(), COINS)
    receipt = world.holders[0].respond(server.introduce()[0])
    server.lose(0)
    with pytest.raises(PeerMisbehaved) as caught:
        server.receive(0, receipt)
    assert (caught.value.reason, caught.value.culprits) == (Reason.NOT_ELIGIBLE, unverified(HolderId(0)))


def test_a_second_upload_of_a_client_is_refused_and_the_first_counts() -> None:
    world, again = InsecureSum(), InsecureSum(salt=" again")
    client = world.setup.clients[0]
    server = world.server(clients=[client])
    first = dict(server.taken)
    with pytest.raises(PeerMisbehaved, match="second upload") as caught:
        server.receive_upload(client, again.upload(client, world.offer()))
    assert (caught.value.reason, caught.value.culprits) == (Reason.ALREADY_ANSWERED, NOBODY)
    assert server.taken == first


def test_uploads_wait_until_they_are_many_or_long(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum()
    server = world.server(clients=world.setup.clients[:1])
    (waiting,) = server._pending.values()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    for length, is_due in ((len(waiting.kept) + 1, False), (len(waiting.kept), True)):
        monkeypatch.setattr("secagg.protocols.one_message.tally._WAITING_BYTES", length)
        assert server.is_due(2) is is_due
    server.end()
    assert not server.is_due(1), "an ended sum keeps no upload"


@pytest.mark.parametrize(
    ("setup", "needed"), [(SumSetup(holders=5, threshold=3), 4), (SumSetup(holders=8, absent=1), 6)]
)
def test_a_list_has_the_holders_that_will_be_needed(setup: SumSetup, needed: int) -> None:
    """Those that certify it may be more than those that answer, or fewer."""
    world = InsecureSum(setup)
    server, record = world.collected(), world.record
    assert server.needed == max(record.threshold, record.quorum) == needed > min(record.threshold, record.quorum)
    for position in range(needed - 1, setup.holders):
        server.lose(position)
    with pytest.raises(ThresholdNotMet, match=f"holder/{needed - 1}"):
        server.fix_list()
    assert server.state is State.COLLECTING


@pytest.mark.parametrize("setup", [SumSetup(holders=5, threshold=3), SumSetup(holders=8, absent=1)])
def test_a_list_and_a_sum_each_need_their_own_number_of_holders(setup: SumSetup) -> None:
    """With one fewer those that are missing are named, and they may still come."""
    world = InsecureSum(setup)
    server, record = world.collected(), world.record
    server.fix_list()
    assert record.quorum != record.threshold
    for step, least in ((server.certify, record.quorum), (server.open, record.threshold)):
        for position, request in list(server.requests().items())[:least]:
            with pytest.raises(ThresholdNotMet, match=rf"missing: .*holder/{least - 1}\b") as caught:
                step()
            assert (caught.value.needed, caught.value.present) == (least, position)
            server.receive(position, world.holders[position].respond(request))
        step()
    assert server.state is State.ENDED


def test_an_upload_under_a_revoked_certificate_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stole a key does not look at the revocations that an offer has."""
    monkeypatch.setattr("secagg.protocols.one_message.client.require_standing", always(None))
    world = InsecureSum()
    client = world.setup.clients[0]
    key, _ = world.certified(client)
    (revoked,) = world.standing.revoked
    certificate = issue_certificate(world.authority, client, key.public_key, number=revoked)
    thief = world.member(client, certificate=certificate).join(world.setup.subject, world.update(client))
    server = world.server(clients=())
    with pytest.raises(AuthenticationFailed) as caught:
        server.receive_upload(client, thief.answer(world.offer().encode()))
    assert caught.value.culprits == unverified(client)
    assert not server.taken


@pytest.mark.parametrize("verdict", Verdict)
def test_a_receipt_is_for_the_uploads_that_were_delivered(verdict: Verdict) -> None:
    """A share that does not open says nothing of its upload, so that verdict alone may name another."""
    world = InsecureSum(SumSetup(mode=SecurityMode.SEMI_HONEST))
    server = world.server(clients=world.setup.clients[:1])
    said = Receipt.decode(world.holders[0].respond(server.deliver()[0]))
    (own,) = said.judged
    for judged, is_other in (
        ((replace(own, verdict=verdict),), False),
        ((Judged(upload=bytes(32), verdict=verdict),), verdict is not Verdict.NOT_AUTHENTIC),
        ((), True),
        ((own, own), True),
    ):
        message, position = replace(said, judged=judged).encode(), 0
        if is_other:
            with pytest.raises(PeerMisbehaved) as caught:
                server.receive(position, message)
            assert caught.value.reason is Reason.WRONG_SESSION
        else:
            server.receive(position, message)
            server._said.clear()  # noqa: SLF001 -- so that it may say another thing # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("place", [0, -1])
def test_a_sum_with_other_numbers_than_zeros_behind_its_values_is_not_released(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a secret that one liar among just enough holders searched for would leave them."""
    world = InsecureSum()
    server = world.answered()
    last, vector = server.agreement.parameters.inputs - 1, OpenedSum.vector

    def spoilt(self: OpenedSum, index: int) -> RingVector:
        found = vector(self, index).copy()
        if index == last:
            found[place] += 1
        return found

    with monkeypatch.context() as patched:
        patched.setattr(OpenedSum, "vector", spoilt)
        with pytest.raises(PeerMisbehaved, match="nonzero numbers after the values"):
            server.open()
    assert server.state is State.OPENING, "more answers may help"
    assert server.open().counted == frozenset(world.setup.clients)


class CountedSum(LocalSum):
    """Counts how often it is opened and overwritten."""

    def __init__(self, cut: OneMessageCut) -> None:
        super().__init__(cut)
        self.calls = list[str]()

    def open(self, secret: SumOfSecrets) -> Iterable[Sums]:
        self.calls.append("open")
        return super().open(secret)

    def over(self) -> None:
        self.calls.append("over")

    def end(self) -> None:
        self.calls.append("end")
        super().end()


def counted(world: InsecureSum) -> tuple[Tally, CountedSum]:
    made = list[CountedSum]()

    def adding(cut: OneMessageCut) -> CountedSum:
        made.append(CountedSum(cut))
        return made[-1]

    server = Tally(world.offer(), COINS)
    server.add_through(adding)
    world.ask(server, server.introduce())
    for client in world.setup.clients:
        server.receive_upload(client, world.upload(client))
    return world.settled(server), made[0]


def test_what_was_added_is_overwritten_with_the_release_or_the_end() -> None:
    world = InsecureSum()
    server, adder = counted(world)
    world.answered(server).open()
    assert adder.calls == ["open", "over", "end"]
    given_up, adder = counted(InsecureSum())
    given_up.end()
    assert adder.calls == ["end"]


def test_who_adds_is_said_before_the_first_upload() -> None:
    server = InsecureSum().server()
    with pytest.raises(Misuse, match="before the first upload"):
        server.add_through(CountedSum)


@pytest.mark.parametrize("call", ["add", "fix", "end"])
def test_a_call_that_fails_leaves_nothing_that_it_did_not_do(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that was not added is not listed, a list that was not written is shown to nobody, an end is an end."""

    def fail(*_: object) -> None:
        raise ConnectionError("the disk is full")

    monkeypatch.setattr(CountedSum, call, fail)
    world = InsecureSum()
    server = Tally(world.offer(), COINS)
    server.add_through(CountedSum)
    world.ask(server, server.introduce())
    for client in world.setup.clients:
        server.receive_upload(client, world.upload(client))
    with pytest.raises(ConnectionError):
        world.listed(world.settled(server)).end()
    assert bool(server.listed) is (call != "add")
    assert server.state is (State.ENDED if call == "end" else State.COLLECTING)
    if call == "fix":
        with pytest.raises(Misuse, match="the list is not fixed yet"):
            server.requests()


def with_large_entries(secret: SumOfSecrets) -> SumOfSecrets:
    return secret + FIELD // 2


def as_long_as_entries_allow(secret: SumOfSecrets) -> SumOfSecrets:
    return np.full_like(secret, largest_entry(SumSetup().population))


@pytest.mark.parametrize(
    ("altered", "sentence"),
    [(with_large_entries, "an entry is too large"), (as_long_as_entries_allow, "it is too long")],
)
def test_a_secret_that_no_clients_have_costs_no_look_at_the_uploads(
    altered: Callable[[SumOfSecrets], SumOfSecrets], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = InsecureSum()
    server, adder = counted(world)
    world.answered(server)

    def far_off(*arguments: Any) -> Iterator[Recovered]:
        for found in recovered(*arguments):
            yield replace(found, sum_secret=altered(found.sum_secret))

    with monkeypatch.context() as patched:
        patched.setattr("secagg.protocols.one_message.tally.recovered", far_off)
        with pytest.raises(WrongSecret, match=sentence):
            server.open()
    assert not adder.calls


def test_a_piece_of_another_length_is_refused_before_it_is_kept() -> None:
    cut = OneMessageCut.of(InsecureSum().offer().agree())
    cut.check(0, bytes(cut.lengths[0]))
    with pytest.raises(MalformedMessage, match="a masked upload must have"):
        cut.check(0, bytes(cut.lengths[0] - 1))
