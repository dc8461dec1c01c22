"""The session: standing holders give the exact sum, and who is missing is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from secagg.blame import unverified
from secagg.crypto.labels import Label
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, ThresholdNotMet
from secagg.identifiers import ClientId, HolderId, ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.opening import LocalSum, OneMessageCut
from secagg.protocols.one_message.requests import Receipt, Verdict
from secagg.protocols.one_message.session import OneMessageHelpers, OneMessageOptions, Server, open_session
from secagg.protocols.one_message.tally import State
from secagg.session.frames import decode_refusal, encode_refusal
from secagg.session.roles import ClientSession, Participation
from secagg.wire import MessageKind, message_kind
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup


@dataclass
class Standing:
    """Holders behind a call, of which some are away, or are killed when they are asked for the n-th time."""

    world: InsecureSum
    away: set[int] = field(default_factory=set[int])
    refusing: set[int] = field(default_factory=set[int])

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, request in requests.items():
            if position not in self.away:
                answer = self.world.holders[position].answer(request)
                if position in self.refusing:
                    answer = encode_refusal(InvalidParameters("this holder insists on more clients"))
                elif message_kind(answer) is MessageKind.REFUSAL:
                    raise decode_refusal(answer)
                yield position, answer


def opened(world: InsecureSum, standing: Standing) -> Server:
    return world.session(standing.ask_all, delivered_at_once=2)


def carry(session: Server, clients: Mapping[ClientId, ClientSession], gone: Mapping[str, set[int]]) -> None:
    """Carry every stage out; ``gone`` has the positions of the clients that are lost in a stage."""
    order = list(clients)
    while (stage := session.stage) is not None:
        for index in gone.get(stage.name, set()):
            session.drop(order[index])
        for client in order:
            if (message := session.message_to(client)) is not None:
                assert session.message_to(client) == message
                session.receive(client, clients[client].answer(message))
        assert session.participation is Participation.COMPLETE
        session.close_stage()


def members(world: InsecureSum) -> dict[ClientId, ClientSession]:
    found = dict[ClientId, ClientSession]()
    for client in world.setup.clients:
        found[client] = world.member(client).join(world.setup.subject, world.update(client))
    return found


def test_standing_holders() -> None:
    world = InsecureSum(SumSetup(holders=8, absent=1))
    session = opened(world, Standing(world, away={3}))
    carry(session, members(world), {})
    released = session.release()
    assert released.aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert released.revealed == {released.counted} == {frozenset(world.setup.clients)}
    assert not released.left_out


def test_a_release_that_lacks_holders_can_be_asked_for_later() -> None:
    world = InsecureSum(SumSetup())
    standing = Standing(world)
    session = opened(world, standing)
    carry(session, members(world), {})
    standing.away = {0, 1, 2, 3}
    with pytest.raises(ThresholdNotMet, match="missing: holder/0, holder/1"):
        session.release()
    standing.away = set()
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()
    with pytest.raises(Misuse, match="releases only once"):
        session.release()


def test_a_holder_that_refuses_is_named_with_what_it_said() -> None:
    world = InsecureSum(SumSetup())
    standing = Standing(world)
    standing.refusing, standing.away = {1}, {0}
    said = r"a sum survives the loss of 1 \(holder/1 refused: this holder insists on more clients; missing: holder/0\)"
    with pytest.raises(ThresholdNotMet, match=said):
        opened(world, standing)
    standing.away = set()
    session = opened(world, standing)
    assert session.faults == ()  # To refuse is no fault.
    carry(session, members(world), {})
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()


@pytest.mark.parametrize("most_bytes", [1 << 24, 1])
def test_uploads_are_delivered_as_many_at_once_as_settings_say_and_long_ones_alone(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.protocols.one_message.tally._WAITING_BYTES", most_bytes)
    world = InsecureSum(SumSetup())
    session, counted = opened(world, Standing(world)), list[int]()
    for client, one in members(world).items():
        session.receive(client, one.answer(session.invitation))
        counted.append(len(session.tally.listed))
    assert counted[:4] == ([0, 2, 2, 4] if most_bytes > 1 else [1, 2, 3, 4])


def refuse_all(world: InsecureSum, session: Server, position: int) -> None:
    """Have a holder accuse every client, which tells that it lies."""
    holder, key = world.holders[position], world.holder_keys[position]
    honest = holder.respond

    def respond(request: bytes) -> bytes:
        answer = honest(request)
        if message_kind(answer) is not MessageKind.ONE_MESSAGE_RECEIPT:
            return answer
        receipt = Receipt.decode(answer)
        judged = tuple(replace(one, verdict=Verdict.NOT_AUTHENTIC) for one in receipt.judged)
        altered = replace(receipt, judged=judged)
        signature = session.agreement.sign(key, Label.ONE_MESSAGE_RECEIPT, *altered.parts)
        return replace(altered, signature=signature).encode()

    holder.respond = respond  # type: ignore[method-assign]


def test_a_holder_that_lies_is_told_with_the_delivery() -> None:
    world = InsecureSum(SumSetup())
    session = opened(world, Standing(world))
    refuse_all(world, session, 3)
    told = list[int]()
    for client, one in members(world).items():
        session.receive(client, one.answer(session.invitation))
        told.append(len(session.faults))
    assert told == [0, 1, 1, 1, 1]
    assert session.faults[0].culprits == unverified(HolderId(3))


def test_a_holder_that_answers_the_offer_with_anything_else_is_lost() -> None:
    world = InsecureSum(SumSetup())
    standing = Standing(world)

    def ask_all(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, answer in standing.ask_all(requests):
            yield position, world.holders[1].respond(requests[1]) if position == 2 else answer

    session = world.session(ask_all)
    assert session.tally.present == {0, 1, 3, 4}
    assert [fault.culprits for fault in session.faults] == [unverified(HolderId(2))]


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_session_says_whether_messages_are_signed(mode: SecurityMode) -> None:
    world = InsecureSum(SumSetup(mode=mode))
    assert opened(world, Standing(world)).is_signed is (mode is SecurityMode.ACTIVE)


def test_a_sum_has_a_capacity_that_the_codec_can_decode() -> None:
    world = InsecureSum(SumSetup(capacity=4))
    with pytest.raises(CapacityExceeded):
        opened(world, Standing(world))
    world = InsecureSum()
    settings, helpers = (
        OneMessageOptions(),
        OneMessageHelpers(record=world.record, keys=(), coins=COINS, ask_all=Standing(world).ask_all),
    )
    with pytest.raises(InvalidParameters, match=r"set capacity"):
        open_session(world.setup.subject, settings, None, helpers)


def test_a_cohort_has_two_honest_clients_or_as_many_as_settings_say() -> None:
    assert [OneMessageOptions(corrupted=corrupted).least_cohort for corrupted in (0, 1, 4)] == [3, 3, 6]
    assert OneMessageOptions(minimum_cohort=9).least_cohort == 9


def test_holders_that_answer_a_list_with_anything_else_are_told_although_no_sum_opens() -> None:
    world = InsecureSum(SumSetup())
    standing, is_lying = Standing(world), False

    def ask_all(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, answer in standing.ask_all(requests):
            yield position, bytes(answer[:-1]) if is_lying and position < 4 else answer

    session = world.session(ask_all)
    carry(session, members(world), {})
    is_lying = True
    with pytest.raises(ThresholdNotMet):
        session.release()
    assert {culprit for fault in session.faults for culprit in fault.culprits} == {ServerId(), *map(HolderId, range(4))}


def test_an_aborted_session_keeps_no_upload() -> None:
    world = InsecureSum()
    session = opened(world, Standing(world))
    session.abort()
    assert session.tally.state is State.ENDED


class Earlier(LocalSum):
    """What an earlier process has kept: uploads, and perhaps the list that it had fixed."""

    def __init__(self, cut: OneMessageCut, kept: Iterable[bytes], listed: bytes | None) -> None:
        super().__init__(cut)
        self._kept = tuple(replace(Upload.decode(upload), vector=b"") for upload in kept)
        self._listed = listed

    def uploads(self) -> tuple[Upload, ...]:
        return self._kept

    def listed(self) -> bytes | None:
        return self._listed


def test_a_server_continues_from_what_those_who_add_have_kept() -> None:
    world = InsecureSum(SumSetup())
    first, parts = opened(world, Standing(world)), members(world)
    uploads = {client: part.answer(first.invitation) for client, part in parts.items()}
    kept = tuple(world.setup.clients[:3])
    collecting, later = opened(world, Standing(world)), opened(world, Standing(world))
    collecting.add_through(lambda cut: Earlier(cut, (uploads[client] for client in kept), None))
    assert set(collecting.tally.taken) == set(kept)
    assert collecting.awaited == frozenset(uploads) - frozenset(kept)
    assert (collecting.tally.state, collecting.stage) == (State.COLLECTING, first.stage)
    collecting.receive(kept[0], uploads[kept[0]])
    for client, upload in uploads.items():
        first.receive(client, upload)
    first.close_stage()
    later.add_through(lambda cut: Earlier(cut, uploads.values(), first.tally.upload_list.encode()))
    assert later.stage is None
    assert later.tally.requests() == first.tally.requests()
    assert later.tally.listed == frozenset(uploads)
    assert not later.tally.is_due(1)
    with pytest.raises(Misuse, match="before the first upload"):
        later.add_through(LocalSum)
