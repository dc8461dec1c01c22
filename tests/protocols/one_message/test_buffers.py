"""Asynchronous buffers: a list for each model, weights by age, and nothing of an upload in two sums.

| attack or slip | test |
|---|---|
| an upload is sent to a second buffer, by whoever kept it | `test_an_upload_is_counted_once_over_buffers` |
| a server lists an upload of another buffer again | `test_holders_refuse_an_upload_that_was_listed_in_another_buffer` |
| an upload from a model that is too old | `test_an_upload_beyond_the_bound_is_refused` |
| a list of the few that started from one model | `test_an_age_with_too_few_uploads_is_never_asked_for` |
| a dead model for all but one | `test_a_model_with_two_digests_is_refused` |
| a vector that its shares do not open, in one age | `test_a_bad_client_of_one_age_costs_that_age_alone` |
| holders that are away at the release | `test_a_buffer_whose_holders_are_away_is_released_when_they_are_back` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import numpy as np
import pytest

from secagg.contract import Aggregate, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import (
    UNDECIDED,
    CapacityExceeded,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.lattice.masks import EpochRing, RingSecret
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.plan import OneMessageSettings
from secagg.protocols.one_message.session import Answered, BufferSession, OneMessageHelpers, open_any_session
from secagg.protocols.one_message.simulation import OneMessageSimulation
from secagg.protocols.one_message.tally import State, Tally
from secagg.session.roles import LateUpdate, Subject, Update
from secagg.wire import MessageKind, message_kind

LAYOUT = Layout((RingSegment(16, 5), RingSegment(12, 7, 8)))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEWEST = 9
SETTINGS = OneMessageSettings(staleness_weights=(4, 2, 1), capacity=16)


def late(update: Update) -> LateUpdate:
    return LateUpdate(lambda: update)


def digest_of(version: int) -> bytes:
    return bytes([version]) * 32


def subject_of(version: int, **changed: Any) -> Subject:
    chosen: dict[str, Any] = {
        "task": b"buffers",
        "round_number": version,
        "layout": LAYOUT,
        "capacity": 1 << 9,
        "model_digest": digest_of(version),
        **changed,
    }
    return Subject(**chosen)


def payload_of(client: int, version: int = NEWEST) -> Payload:
    drawn = np.random.default_rng([client, version])
    return Payload(
        LAYOUT, tuple(one.ring.from_integers(drawn.integers(-9, 10, one.length)) for one in LAYOUT.require_rings())
    )


class World:
    """Holders, and clients that start from any model."""

    def __init__(self, settings: OneMessageSettings = SETTINGS) -> None:
        self.simulation = OneMessageSimulation(settings, coins=SystemCoins(), clock=lambda: NOW)
        self.settings = settings

    def open(self, version: int = NEWEST, **changed: Any) -> BufferSession:
        session = self.simulation.open(subject_of(version, **changed), None)
        assert isinstance(session, BufferSession)
        return session

    def upload(self, session: BufferSession, client: int, version: int = NEWEST, newest: int = NEWEST) -> bytes:
        """Let a client answer the offer of the model that it started from."""
        subject = subject_of(version)
        offer = session.invitation if version == newest else session.invitation_for(subject)
        update = Update(payload_of(client, version), digest_of(version))
        member = self.simulation.member(ClientId(client)).join(subject, late(update))
        return member.answer(offer)

    def fill(self, session: BufferSession, uploads: Iterable[tuple[int, int]]) -> None:
        for client, version in uploads:
            session.receive(ClientId(client), self.upload(session, client, version))


def require_sum(found: Aggregate, uploads: Iterable[tuple[int, int]]) -> None:
    """Demand the sum of these uploads by their ages, exactly where nothing is rounded."""
    listed = list(uploads)
    weights = [SETTINGS.staleness_weights[NEWEST - version] for _, version in listed]
    due = ideal_aggregate(LAYOUT, [payload_of(client, version) for client, version in listed], weights)
    assert (found.contributors, found.total_weight) == (due.contributors, due.total_weight)
    assert (found.values[0] == due.values[0]).all()
    fine = LAYOUT.require_rings()[1]
    errors = fine.ring.lift(fine.ring.subtract(found.values[1], due.values[1])).astype(np.int64)
    assert np.abs(errors).max() <= due.total_weight * fine.head_room


MIXED = [(1, 9), (2, 8), (3, 7), (4, 9), (5, 8), (6, 7), (7, 9), (8, 8), (9, 7), (10, 9)]


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("order", [1, -1])
def test_a_buffer_is_one_sum_for_each_age_in_any_order_of_uploads(mode: SecurityMode, order: int) -> None:
    world = World(replace(SETTINGS, mode=mode, delivered_at_once=2))
    session = world.open()
    world.fill(session, MIXED[::order])
    session.close_stage()
    released = session.release()
    require_sum(released.aggregate, MIXED)
    by_age = {frozenset(ClientId(client) for client, version in MIXED if version == age) for age in (7, 8, 9)}
    assert released.revealed == by_age
    assert released.counted == frozenset(ClientId(client) for client, _ in MIXED)
    assert released.left_out == {}
    assert session.faults == ()


def test_a_client_may_be_in_one_buffer_for_each_model() -> None:
    world = World()
    for newest in (9, 10, 11):
        session = world.open(newest)
        for client in range(1, 5):
            session.receive(ClientId(client), world.upload(session, client, newest, newest))
        session.close_stage()
        assert session.release().aggregate.contributors == 4


# --- Attacks ----------------------------------------------------------------------------------------------------------


def two_buffers(world: World) -> tuple[BufferSession, bytes]:
    """Release one buffer, and return the next one, with an upload that the first has counted."""
    first = world.open()
    kept = world.upload(first, 1)
    first.receive(ClientId(1), kept)
    world.fill(first, [(2, 9), (3, 9)])
    first.close_stage()
    first.release()
    second = world.open(NEWEST + 1)
    second.invitation_for(subject_of(NEWEST))
    return second, kept


def test_an_upload_is_counted_once_over_buffers() -> None:
    second, kept = two_buffers(World())
    with pytest.raises(PeerMisbehaved) as caught:
        second.receive(ClientId(1), kept)
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert caught.value.culprits == {ClientId(1)}


def test_holders_refuse_an_upload_that_was_listed_in_another_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that forgets, or that never meant to remember, gets no certificate for a list with a spent upload."""

    def forgetful(*_: object) -> None:
        return

    monkeypatch.setattr(Answered, "require_new", forgetful)
    world = World()
    second, kept = two_buffers(world)
    second.receive(ClientId(1), kept)
    for client in (4, 5):
        second.receive(ClientId(client), world.upload(second, client, NEWEST, NEWEST + 1))
    second.close_stage()
    with pytest.raises(ThresholdNotMet, match="holders"):
        second.release()


def test_an_upload_beyond_the_bound_is_refused() -> None:
    world = World()
    early = world.open(6)
    late = world.upload(early, 1, 6, 6)
    early.abort()
    session = world.open()
    with pytest.raises(InvalidParameters, match=r"model 6 is not one of 7\.\.9"):
        session.invitation_for(subject_of(6))
    with pytest.raises(InvalidParameters, match=r"not one of 7\.\.9"):
        session.invitation_for(subject_of(10))
    with pytest.raises(PeerMisbehaved) as caught:
        session.receive(ClientId(1), late)
    assert caught.value.reason is Reason.STALE_UPDATE
    world.fill(session, [(client, 9) for client in range(2, 6)])
    session.close_stage()
    assert session.release().counted == frozenset(map(ClientId, range(2, 6)))


def test_an_age_with_too_few_uploads_is_never_asked_for() -> None:
    world = World()
    session, asked = world.open(), list[bytes]()
    ask_all = session._ask_all  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def spy(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        asked.extend(requests.values())
        return ask_all(requests)

    session._ask_all = spy  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    world.fill(session, [(1, 9), (2, 9), (3, 9), (4, 8), (5, 8)])
    session.close_stage()
    released = session.release()
    require_sum(released.aggregate, [(1, 9), (2, 9), (3, 9)])
    assert {client: type(error) for client, error in released.left_out.items()} == {
        ClientId(4): ThresholdNotMet,
        ClientId(5): ThresholdNotMet,
    }
    assert "model 8" in str(released.left_out[ClientId(4)])
    lists = {message for message in asked if message_kind(message) is MessageKind.ONE_MESSAGE_LIST}
    assert len(lists) == 1


def test_a_buffer_without_a_list_of_the_least_cohort_releases_nothing() -> None:
    world = World()
    session = world.open()
    world.fill(session, [(1, 9), (2, 8), (3, 7), (4, 9), (5, 8)])
    with pytest.raises(ThresholdNotMet, match="accepted uploads for one model"):
        session.close_stage()
    assert session.stage is None


def with_another_vector(world: World, session: BufferSession, client: int, version: int) -> bytes:
    """Return an upload whose shares are consistent and whose vector has another mask: no holder can see that."""
    mask = EpochRing.mask

    def masked(ring: EpochRing, vectors: Any, seed: Secret, weight: int) -> tuple[bytes, RingSecret]:
        vector, _ = mask(ring, vectors, seed, weight)
        return vector, mask(ring, vectors, Secret("mask seed", b"m" * 32), weight)[1]

    with mock.patch.object(EpochRing, "mask", masked):
        return world.upload(session, client, version)


@pytest.mark.parametrize("bad", [7, 8, 9])
def test_a_bad_client_of_one_age_costs_that_age_alone(bad: int) -> None:
    """Whichever age is opened first: what was opened before and what comes after is released."""
    world = World()
    session = world.open()
    uploads = [(3 * (9 - version) + number, version) for version in (9, 8, 7) for number in (1, 2, 3)]
    world.fill(session, [one for one in uploads if one != (3 * (9 - bad) + 1, bad)])
    session.receive(ClientId(3 * (9 - bad) + 1), with_another_vector(world, session, 3 * (9 - bad) + 1, bad))
    session.close_stage()
    released = session.release()
    require_sum(released.aggregate, [one for one in uploads if one[1] != bad])
    lost = {ClientId(client) for client, version in uploads if version == bad}
    assert released.left_out.keys() == lost
    # A client that deals consistently cannot be told from the others of its list.
    assert all(isinstance(error, PeerMisbehaved) for error in released.left_out.values())
    assert any(error is one for error in released.left_out.values() for one in session.faults)


def test_a_buffer_of_which_no_age_opens_says_why_and_ends() -> None:
    world = World()
    session = world.open()
    world.fill(session, [(1, 9), (2, 9), (4, 8), (5, 8)])
    session.receive(ClientId(3), with_another_vector(world, session, 3, 9))
    session.close_stage()
    with pytest.raises(PeerMisbehaved):
        session.release()
    with pytest.raises(Misuse, match="releases once"):
        session.release()


@pytest.mark.parametrize("lost_at", [MessageKind.ONE_MESSAGE_LIST, MessageKind.ONE_MESSAGE_CERTIFIED_LIST])
@pytest.mark.parametrize("answered", [0, 1])
def test_a_buffer_whose_holders_are_away_is_released_when_they_are_back(lost_at: MessageKind, answered: int) -> None:
    """After none of its lists, or after one, which is not asked for again."""
    world = World()
    session, asked, are_away = world.open(), list[bytes](), True
    ask_all = session._ask_all  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def ask(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        request = next(iter(requests.values()), b"")
        if request and message_kind(request) is lost_at:
            asked.append(request)
            if are_away and len(asked) > answered:
                return
        yield from ask_all(requests)

    session._ask_all = ask  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    world.fill(session, MIXED)
    session.close_stage()
    for _ in range(2):
        with pytest.raises(ThresholdNotMet, match="holders"):
            session.release()
    are_away = False
    released = session.release()
    require_sum(released.aggregate, MIXED)
    assert len(set(asked)) == 3
    assert asked.count(asked[0]) == (1 if answered else 3)


def test_a_model_with_two_digests_is_refused() -> None:
    session = World().open()
    session.invitation_for(subject_of(8))
    with pytest.raises(InvalidParameters, match="another digest"):
        session.invitation_for(subject_of(8, model_digest=bytes(32)))
    with pytest.raises(InvalidParameters, match="differ in the model"):
        session.invitation_for(subject_of(8, task=b"another"))


def test_a_full_buffer_takes_no_more() -> None:
    world = World(replace(SETTINGS, capacity=4))
    session = world.open()
    world.fill(session, [(client, 9) for client in range(1, 5)])
    with pytest.raises(PeerMisbehaved) as caught:
        world.fill(session, [(5, 8)])
    assert caught.value.reason is Reason.BUFFER_FULL


def server_of(session: BufferSession, version: int = NEWEST) -> Tally:
    return session._tallies[version]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def test_uploads_are_delivered_as_many_at_once_as_settings_say() -> None:
    world = World(replace(SETTINGS, delivered_at_once=2))
    session = world.open()
    for client, waiting in ((1, 1), (2, 0), (3, 1)):
        world.fill(session, [(client, NEWEST)])
        assert server_of(session).is_due(1) is bool(waiting)
    assert server_of(session).listed == {ClientId(1), ClientId(2)}


def test_long_uploads_do_not_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.protocols.one_message.tally._WAITING_BYTES", 1)
    world = World(replace(SETTINGS, delivered_at_once=2))
    session = world.open()
    world.fill(session, [(1, NEWEST)])
    assert server_of(session).listed == {ClientId(1)}


def test_a_fault_of_a_model_is_told_once_and_progress_as_it_is_made() -> None:
    world = World(replace(SETTINGS, delivered_at_once=1))
    session, told, found = world.open(), list[tuple[int, int]](), list[list[PeerError]]()
    session.invitation_for(subject_of(8))
    early, late_one = (
        PeerMisbehaved(name, reason=Reason.ALREADY_ANSWERED, culprits=UNDECIDED) for name in ("early", "late")
    )
    server_of(session).faults.append(early)
    world.fill(session, [(1, NEWEST), (2, NEWEST), (3, NEWEST), (4, 8), (5, 8), (6, 8)])
    found.append(list(session.faults))
    session.close_stage()
    server_of(session, 8).faults.append(late_one)
    session.release(lambda done, due: told.append((done, due)))
    found.append(list(session.faults))
    assert found == [[early], [early, late_one]]
    assert told == [(1, 2), (2, 2)]


def test_a_buffer_that_is_given_up_ends_the_sums_of_all_its_models() -> None:
    world = World()
    session = world.open()
    session.invitation_for(subject_of(8))
    servers = [server_of(session, version) for version in (8, NEWEST)]
    session.abort()
    assert [server.state for server in servers] == [State.ENDED] * 2


def test_who_uploaded_for_a_model_is_remembered_while_a_buffer_may_take_it() -> None:
    world = World()
    answered = helpers_of(world).answered
    for version in (4, 5, 6):
        answered.add(version, ClientId(1))
    world.open(NEWEST - 1)
    # Three ages: 6 is the oldest model that this buffer or a later one takes.
    answered.require_new(5, ClientId(1))
    with pytest.raises(PeerMisbehaved):
        answered.require_new(6, ClientId(1))


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_weights_by_age_ask_for_certified_lists() -> None:
    with pytest.raises(InvalidParameters, match="take rule = certified"):
        replace(SETTINGS, rule=ThresholdRule.ONE_ANSWER)
    for weights in ((0,), (1, 1 << 16), (True,)):
        with pytest.raises(InvalidParameters, match="staleness_weights"):
            replace(SETTINGS, staleness_weights=weights)
    assert World().open().agreement.record.rule is ThresholdRule.CERTIFIED


def helpers_of(world: World) -> OneMessageHelpers:
    session = world.open()
    return session._helpers  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def test_what_a_buffer_cannot_do_is_refused_when_it_is_opened() -> None:
    helpers = helpers_of(World())
    with pytest.raises(InvalidParameters, match="standing holders"):
        open_any_session(subject_of(9), SETTINGS, None, replace(helpers, ask_all=None))
    with pytest.raises(InvalidParameters, match=r"settings\.capacity"):
        open_any_session(subject_of(9), replace(SETTINGS, capacity=None), None, helpers)
    with pytest.raises(CapacityExceeded):
        open_any_session(subject_of(9, capacity=63), SETTINGS, None, helpers)
    rounds = OneMessageSimulation(OneMessageSettings(capacity=8), coins=SystemCoins(), clock=lambda: NOW)
    session = rounds.open(subject_of(9), None)
    one_answer = replace(helpers, record=session.agreement.record)
    with pytest.raises(InvalidParameters, match="begin an epoch under the rule certified"):
        open_any_session(subject_of(9), SETTINGS, None, one_answer)
