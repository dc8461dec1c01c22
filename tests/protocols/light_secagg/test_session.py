"""LightSecAgg as a session: tolerated dropouts, clients' policy, and their messages."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from secagg.conformance.sessions import MODEL
from secagg.contract import IndexSegment, Layout, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.light_secagg.server import STAGES, Server
from secagg.protocols.light_secagg.session import (
    LightSecAggHelpers,
    LightSecAggMember,
    LightSecAggOptions,
    open_session,
)
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.roles import ClientSession, LazyUpdate, Participation, Released, Subject, Update
from secagg.session.run import Measured, run
from tests.harness.session_worlds import CAPACITY, LAYOUT, NOW, client_ids, entry_of, payload_of

CLIENTS = client_ids(9)
SETTINGS = LightSecAggOptions(dropped=3, corrupted=2, minimum_cohort=5)
SUBJECT = Subject(task=b"a task", round_number=3, layout=LAYOUT, capacity=CAPACITY, model_digest=MODEL)
POLICY = replace(
    ClientPolicy.among(9, SecurityMode.SEMI_HONEST), minimum_modulus_bits=1, minimum_cohort=5, assumed_corrupted=2
)
NAMES = [stage.name for stage in STAGES.values()]


def update_of(client: ClientId) -> LazyUpdate:
    return LazyUpdate(lambda: Update(payload_of(client), MODEL))


def opened(settings: LightSecAggOptions = SETTINGS, *, invited: frozenset[ClientId] | None = None) -> Any:
    helpers = LightSecAggHelpers(coins=SystemCoins())
    return open_session(SUBJECT, settings, frozenset(CLIENTS) if invited is None else invited, helpers)


def member(client: ClientId, policy: ClientPolicy = POLICY, ledger: SpentUpdates | None = None) -> LightSecAggMember:
    charge = (ledger or SpentUpdates()).charge
    return LightSecAggMember(client, policy=policy, coins=SystemCoins(), charge=charge)


def joined(subject: Subject = SUBJECT) -> dict[ClientId, ClientSession]:
    return {client: member(client).join(subject, update_of(client)) for client in CLIENTS}


def reach(session: Server, clients: Mapping[ClientId, ClientSession], stages: int) -> None:
    for _ in range(stages):
        for client in clients:
            if (message := session.message_to(client)) is not None:
                session.receive(client, clients[client].answer(message))
        session.close_stage()


def require_exact(released: Released, counted: frozenset[ClientId]) -> None:
    names = sorted(counted)
    ideal = ideal_aggregate(LAYOUT, [payload_of(client) for client in names], [1] * len(names))
    assert released.counted == counted
    assert released.aggregate.encode() == ideal.encode()
    assert released.revealed == {counted}


@pytest.mark.parametrize("stage", NAMES)
def test_one_more_that_leaves_ends_the_session(stage: str) -> None:
    session = Measured(opened())
    with pytest.raises(ThresholdNotMet):
        run(session, joined().values(), {stage: frozenset(CLIENTS[:4])})
    assert session.stage is None


def test_a_server_that_may_lie_is_not_promised_anything() -> None:
    with pytest.raises(InvalidParameters, match="LightSecAgg signs nothing"):
        LightSecAggOptions(mode=SecurityMode.ACTIVE)
    careful = member(CLIENTS[0], replace(POLICY, modes=frozenset({SecurityMode.ACTIVE})))
    with pytest.raises(InvalidParameters, match="only against a server that follows the protocol"):
        careful.join(SUBJECT, update_of(CLIENTS[0])).answer(opened().invitation)


@pytest.mark.parametrize(
    ("floor", "sentence"),
    [
        ({"suites": frozenset({Suite.HYBRID})}, "suite x25519-aes128 is not accepted"),
        ({"minimum_cohort": 7}, "a cohort of 6 is below 7"),
        ({"assumed_corrupted": 3}, "it tolerates only 2 corrupted clients"),
        ({"minimum_modulus_bits": 8}, "a ring of 7 bits is below 8"),
        ({"maximum_length": 8}, "a vector of 9 is longer than 8"),
        ({"maximum_population": 8}, "9 clients are more than 8"),
    ],
)
def test_a_client_takes_no_part_below_its_policy(floor: dict[str, Any], sentence: str) -> None:
    charged = SpentUpdates()
    session = member(CLIENTS[0], replace(POLICY, **floor), charged).join(SUBJECT, update_of(CLIENTS[0]))
    with pytest.raises(InvalidParameters, match=sentence) as refused:
        session.answer(opened().invitation)
    assert refused.value.reason is Reason.BELOW_FLOOR
    assert charged.count(SUBJECT.task) == 0


def test_policies_that_are_just_met_let_a_client_take_part() -> None:
    met = replace(POLICY, minimum_cohort=6, minimum_modulus_bits=7, maximum_length=9, maximum_population=9)
    assert member(CLIENTS[0], met).join(SUBJECT, update_of(CLIENTS[0])).answer(opened().invitation)


@pytest.mark.parametrize(
    "floor",
    [
        {"minimum_cohort": 1},
        {"assumed_corrupted": -1},
        {"minimum_modulus_bits": 0},
        {"maximum_length": 0},
        {"maximum_population": 4},
    ],
)
def test_policies_that_are_none(floor: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters, match=next(iter(floor))):
        replace(POLICY, **floor)


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, dropped=5),
        replace(SETTINGS, late=2),
        replace(SETTINGS, corrupted=5),
        replace(SETTINGS, minimum_cohort=7),
    ],
)
def test_a_session_that_cannot_end_well_is_not_opened(settings: LightSecAggOptions) -> None:
    with pytest.raises(InvalidParameters, match="invite more"):
        opened(settings)
    assert opened(replace(SETTINGS, minimum_cohort=6))


def test_a_layout_of_indices_is_refused() -> None:
    indices = replace(SUBJECT, layout=Layout((IndexSegment(4, 1),)))
    with pytest.raises(InvalidParameters, match="contains indices"):
        open_session(indices, SETTINGS, frozenset(CLIENTS), LightSecAggHelpers(coins=SystemCoins()))


def test_places_are_given_to_the_first_who_come() -> None:
    settings = replace(SETTINGS, population=9)
    helpers = LightSecAggHelpers(coins=SystemCoins())
    session = open_session(SUBJECT, settings, None, helpers)
    for client, one in joined().items():
        session.receive(client, one.answer(session.invitation))
    assert session.participation is Participation.COMPLETE
    with pytest.raises(PeerMisbehaved, match="the sum is full"):
        session.receive(
            ClientId(1), member(ClientId(1)).join(SUBJECT, update_of(ClientId(1))).answer(session.invitation)
        )
    with pytest.raises(InvalidParameters, match=r"settings\.population"):
        open_session(SUBJECT, SETTINGS, None, helpers)


@pytest.mark.parametrize("stages", range(4))
def test_nothing_of_one_attempt_is_taken_in_another_of_the_same_round(stages: int) -> None:
    """Masked inputs of two attempts have different masks; an accepted one would spoil the sum unnoticed."""
    first, second = opened(), opened()
    one, other = joined(), joined()
    reach(first, one, stages)
    reach(second, other, stages)
    message = first.message_to(CLIENTS[0])
    assert message is not None
    with pytest.raises(PeerMisbehaved, match="another sum"):
        second.receive(CLIENTS[0], one[CLIENTS[0]].answer(message))
    assert [error.culprits for error in second.faults] == [{CLIENTS[0], ServerId()}]
    reach(second, {client: session for client, session in other.items() if client != CLIENTS[0]}, 4 - stages)
    require_exact(second.release(), frozenset(CLIENTS) if stages == 3 else frozenset(CLIENTS[1:]))


def test_a_model_has_its_attempts() -> None:
    """Two sums that differ in one client would reveal that client, whatever number the second one has."""
    ledger, client = SpentUpdates(attempts=1), CLIENTS[0]
    for subject in (SUBJECT, replace(SUBJECT, round_number=4)):
        session, clients = (
            open_session(subject, SETTINGS, frozenset(CLIENTS), LightSecAggHelpers(coins=SystemCoins())),
            {name: member(name).join(subject, update_of(name)) for name in CLIENTS},
        )
        clients[client] = member(client, ledger=ledger).join(subject, update_of(client))
        reach(session, clients, 2)
        message = session.message_to(client)
        assert message is not None
        if subject is SUBJECT:
            clients[client].answer(message)
            continue
        with pytest.raises(PeerMisbehaved, match="once for the model"):
            clients[client].answer(message)
        with pytest.raises(Misuse, match="has left"):
            clients[client].answer(message)


def test_a_client_that_the_ledger_refuses_is_wiped_before_anything_of_its_update_leaves() -> None:
    def refuse(spent: Spent) -> None:
        raise OSError(f"no room for {spent.number}")

    session, clients = opened(), joined()
    refused = LightSecAggMember(CLIENTS[0], policy=POLICY, coins=SystemCoins(), charge=refuse)
    clients[CLIENTS[0]] = refused.join(SUBJECT, update_of(CLIENTS[0]))
    reach(session, clients, 2)
    message = session.message_to(CLIENTS[0])
    assert message is not None
    with pytest.raises(OSError, match="no room"):
        clients[CLIENTS[0]].answer(message)
    with pytest.raises(Misuse, match="has left"):
        clients[CLIENTS[0]].answer(message)


def test_the_ledger_is_not_charged_for_an_update_that_was_taken() -> None:
    session, clients, charged, update = opened(), joined(), list[Spent](), update_of(CLIENTS[0])
    once = LightSecAggMember(CLIENTS[0], policy=POLICY, coins=SystemCoins(), charge=charged.append)
    clients[CLIENTS[0]] = once.join(SUBJECT, update)
    reach(session, clients, 2)
    update.take(LAYOUT)
    message = session.message_to(CLIENTS[0])
    assert message is not None
    with pytest.raises(Misuse, match="already used"):
        clients[CLIENTS[0]].answer(message)
    assert not charged


def test_what_a_client_suspends_ends_with_its_process() -> None:
    session, clients = opened(), joined()
    reach(session, clients, 1)
    kept = clients[CLIENTS[0]].suspend()
    assert kept is not None
    with pytest.raises(Misuse, match="its process has ended"):
        member(CLIENTS[0]).join(SUBJECT, update_of(CLIENTS[0]), kept)


def inside(value: object) -> dict[str, Any]:
    """Return what an object holds, of any type."""
    return vars(value)


def test_what_is_suspended_is_gone_on_with_for_its_own_subject_alone() -> None:
    session, one = opened(), member(CLIENTS[0])
    for subject, sentence in ((replace(SUBJECT, round_number=4), "round differs"), (SUBJECT, "resumed before")):
        joining = one.join(SUBJECT, update_of(CLIENTS[0]))
        joining.answer(session.invitation)
        kept = joining.suspend()
        assert kept is not None
        copy = Secret("handle", bytes(kept.expose()))
        suspended: dict[bytes, Any] = vars(one)["_suspended"]
        held = next(iter(suspended.values()))
        if subject is SUBJECT:
            one.join(subject, update_of(CLIENTS[0]), kept)
            with pytest.raises(Misuse):
                kept.expose()
            kept = copy
        with pytest.raises((InvalidParameters, Misuse), match=sentence):
            one.join(subject, update_of(CLIENTS[0]), kept)
        assert bool(held.mask.any()) is (subject is SUBJECT), "that of another round is wiped"


def test_the_update_is_that_of_the_session_that_goes_on() -> None:
    session, clients, one = opened(), joined(), member(CLIENTS[0])
    clients[CLIENTS[0]] = one.join(SUBJECT)
    reach(session, clients, 2)
    message = session.message_to(CLIENTS[0])
    assert message is not None
    kept = clients[CLIENTS[0]].suspend()
    assert kept is not None
    clients[CLIENTS[0]] = one.join(SUBJECT, update_of(CLIENTS[0]), kept)
    reach(session, clients, 2)
    require_exact(session.release(), frozenset(CLIENTS))


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        (None, "include the model; this one does not"),
        (LazyUpdate(lambda: pytest.fail("it is made"), bytes(range(1, 33))), "trained from a different model"),
    ],
)
def test_an_update_that_is_none_or_of_another_model_is_not_charged(update: LazyUpdate | None, sentence: str) -> None:
    session, clients, ledger = opened(), joined(), SpentUpdates()
    clients[CLIENTS[0]] = member(CLIENTS[0], ledger=ledger).join(SUBJECT, update)
    reach(session, clients, 2)
    message = session.message_to(CLIENTS[0])
    assert message is not None
    mask = inside(clients[CLIENTS[0]])["_held"].mask
    with pytest.raises(InvalidParameters, match=sentence):
        clients[CLIENTS[0]].answer(message)
    assert ledger.count(SUBJECT.task) == 0
    assert not mask.any(), "it has left, and holds nothing"
    member(CLIENTS[0]).join(SUBJECT).abort()


def test_a_simulation_that_ends_wipes_what_was_suspended() -> None:
    world = entry_of("lightsecagg").simulate(SETTINGS, coins=SystemCoins(), clock=lambda: NOW)
    with closing(world):
        joining = world.member(CLIENTS[0]).join(SUBJECT, update_of(CLIENTS[0]))
        joining.answer(world.open(SUBJECT, frozenset(CLIENTS)).invitation)
        kept = joining.suspend()
        assert kept is not None
    with pytest.raises(Misuse, match="its process has ended"):
        world.member(CLIENTS[0]).join(SUBJECT, update_of(CLIENTS[0]), kept)


def test_a_stage_has_enough_from_the_target_on() -> None:
    session, clients = opened(), joined()
    for number, client in enumerate(CLIENTS):
        due = Participation.ENOUGH if number >= 6 else Participation.TOO_FEW
        assert session.participation is due
        session.receive(client, clients[client].answer(session.invitation))
    assert session.participation is Participation.COMPLETE


def test_settings_take_as_many_clients_as_leave_enough_and_no_fewer() -> None:
    assert SETTINGS.takes(8), "three leave, and five have to stay"
    assert not SETTINGS.takes(7)
