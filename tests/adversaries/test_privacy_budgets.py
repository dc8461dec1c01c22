"""Attacks on the ledger of a client's privacy costs, in each protocol whose clients add noise."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.choices import Topology
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.privacy.accounting import Adjacency, PrivacyBudget
from secagg.privacy.client_noise import ClientNoise, NoiseSettings, noise_in
from secagg.protocols.one_message.client import Ledger
from secagg.protocols.one_message.session import OneMessageOptions
from secagg.protocols.pairwise_mask import PairwiseOptions
from secagg.session.ledger import PrivacyLedger, PrivacyLedgers, Spent, SpentUpdates
from secagg.session.registry import Simulation, find
from secagg.session.roles import ClientSession, LazyUpdate, ServerSession, Subject, Update
from secagg.session.store import Store

MODEL = bytes(32)
LAYOUT = Layout((RingSegment(24, 8),))
SUBJECT = Subject(task=b"a task", round_number=1, layout=LAYOUT, capacity=1 << 10, model_digest=MODEL)
CLIENTS = tuple(map(ClientId, range(1, 5)))
CLIENT = CLIENTS[0]
NOISE: dict[str, Any] = {
    "noise_multiplier": Fraction(1),
    "l2_bounds": (3000,),
    "adjacency": Adjacency.ZERO_OUT,
    "minimum_cohort": 3,
    "corrupted": 0,
}
SEMI_HONEST: dict[str, Any] = {"topology": Topology.FULL, "population": 4, "mode": SecurityMode.SEMI_HONEST}
PROTOCOLS: dict[str, tuple[str, Any]] = {
    "pairwise": ("pairwise", PairwiseOptions(**NOISE, **SEMI_HONEST)),
    "one message": ("one-message", OneMessageOptions(**NOISE, capacity=4)),
}
_TRAINED = count()
EACH = pytest.mark.parametrize("name", PROTOCOLS)
TWO = PrivacyBudget(epsilon=8.5, delta=1e-6, adjacency=Adjacency.ZERO_OUT)
"""A budget for two sums, not three."""


@pytest.fixture(autouse=True)
def dp_accounting() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], PrivacyLedger]:
    """Return a function that opens the attacked client's file, as each of its members does."""

    def opened() -> PrivacyLedger:
        return PrivacyLedger(TWO, folder=tmp_path / "ledger")

    def of(_: PrivacyLedgers, client: ClientId) -> PrivacyLedger | None:
        return opened() if client == CLIENT else None

    monkeypatch.setattr(PrivacyLedgers, "of", of)
    return opened


@contextmanager
def world_of(name: str, **changes: Any) -> Generator[Simulation]:
    protocol, settings = PROTOCOLS[name]
    settings = replace(settings, **changes)
    with closing(find(protocol).simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        yield world


def update_of(client: ClientId) -> Update:
    return Update(Payload(LAYOUT, (np.full(8, 100 * next(_TRAINED) + client.value, np.uint32),)), MODEL)


def late(client: ClientId) -> LazyUpdate:
    return LazyUpdate(partial(update_of, client))


def subject(number: int, task: bytes = b"a task") -> Subject:
    return replace(SUBJECT, round_number=number, task=task)


def brought_to_the_upload(
    world: Simulation, about: Subject
) -> tuple[ServerSession, dict[ClientId, ClientSession], bytes]:
    """Return a session with its clients, and the message that the attacked client answers with its upload."""
    session = world.open(about, frozenset(CLIENTS))
    clients = {client: world.member(client).join(about, late(client)) for client in CLIENTS}
    while session.stage is not None and not session.stage.takes_update:
        for client, joined in clients.items():
            session.receive(client, joined.answer(session.message_to(client) or b""))
        session.close_stage()
    return session, clients, session.message_to(CLIENT) or b""


def uploaded(world: Simulation, about: Subject) -> bytes:
    session, clients, message = brought_to_the_upload(world, about)
    try:
        return clients[CLIENT].answer(message)
    finally:
        session.abort()


def is_refused(call: Callable[[], object], sentence: str = "its 2 uploads so far have spent 7") -> None:
    with pytest.raises(InvalidParameters, match=sentence) as caught:
        call()
    assert caught.value.reason is Reason.BUDGET_SPENT


# --- A server that asks -----------------------------------------------------------------------------------------------


@EACH
def test_the_upload_that_would_pass_the_budget_is_refused(name: str, ledger: Callable[[], PrivacyLedger]) -> None:
    with world_of(name) as world:
        for number in (1, 2):
            assert uploaded(world, subject(number))
        spent = ledger().spent
        is_refused(lambda: uploaded(world, subject(3)))
    assert ledger().uploads == 2
    assert ledger().spent == spent < TWO.epsilon


@EACH
def test_tasks_are_paid_for_together_and_across_restarts(name: str, ledger: Callable[[], PrivacyLedger]) -> None:
    """Every world has new keys, members and ledgers in memory; only the file persists."""
    for task in (b"one", b"another"):
        with world_of(name) as world:
            assert uploaded(world, subject(1, task))
    with world_of(name) as world:
        is_refused(lambda: uploaded(world, subject(1, b"a third")))
    assert ledger().uploads == 2


@EACH
def test_two_tasks_that_both_found_room_do_not_both_upload(name: str, ledger: Callable[[], PrivacyLedger]) -> None:
    with world_of(name) as world, world_of(name) as beside:
        assert uploaded(world, subject(1))
        sessions = [brought_to_the_upload(each, subject(2, task)) for each, task in ((world, b"a"), (beside, b"b"))]
        (_, first, message), (_, second, other) = sessions
        assert first[CLIENT].answer(message)
        is_refused(lambda: second[CLIENT].answer(other))
        for session, _, _ in sessions:
            session.abort()
    assert ledger().uploads == 2


@EACH
def test_a_session_that_the_budget_does_not_pay_for_is_refused_at_its_offer(
    name: str, ledger: Callable[[], PrivacyLedger]
) -> None:
    """No key is drawn, and no model is trained."""
    with world_of(name) as world:
        for number in (1, 2):
            uploaded(world, subject(number))
        session = world.open(subject(3), frozenset(CLIENTS))
        trained = list[ClientId]()

        def train() -> Update:
            trained.append(CLIENT)
            return update_of(CLIENT)

        update = LazyUpdate(train)
        is_refused(lambda: world.member(CLIENT).join(subject(3), update).answer(session.invitation))
        session.abort()
        assert not trained
    assert ledger().uploads == 2


@EACH
def test_asking_again_costs_nothing_and_gets_nothing_new(
    name: str, ledger: Callable[[], PrivacyLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.protocols.one_message.simulation._Ledger", Ledger)
    with world_of(name) as world:
        session, clients, message = brought_to_the_upload(world, SUBJECT)
        first = clients[CLIENT].answer(message)
        again = None
        try:
            again = world.member(CLIENT).join(SUBJECT, late(CLIENT)).answer(message)
        except SecAggError:
            assert name == "pairwise"
        assert again in {None, first}
        session.abort()
    assert ledger().uploads == 1


def test_a_round_that_was_answered_does_not_use_up_the_budget(ledger: Callable[[], PrivacyLedger]) -> None:
    """Otherwise a server could spend a client's budget without another upload."""
    with world_of("one message") as world:
        uploaded(world, SUBJECT)
        for _ in range(3):
            session = world.open(SUBJECT, frozenset(CLIENTS))
            with pytest.raises(SecAggError, match="with one upload each"):
                world.member(CLIENT).join(SUBJECT, late(CLIENT)).answer(session.invitation)
            session.abort()
    assert ledger().uploads == 1


@EACH
def test_without_noise_a_client_with_a_budget_uploads_nothing(name: str, ledger: Callable[[], PrivacyLedger]) -> None:
    with world_of(name, noise_multiplier=None) as world:
        with pytest.raises(InvalidParameters, match="never uploads without noise") as caught:
            uploaded(world, SUBJECT)
        assert caught.value.reason is Reason.BELOW_FLOOR
    assert ledger().uploads == 0


@EACH
def test_settings_with_a_budget_and_no_noise_open_no_session(name: str) -> None:
    changes = {"noise_multiplier": None, "budget_epsilon": Fraction(8)}
    with world_of(name, **changes) as world, pytest.raises(InvalidParameters, match="set noise_multiplier, or"):
        world.open(SUBJECT, frozenset(CLIENTS))


@EACH
def test_a_sum_costs_what_its_own_noise_is_worth_whatever_its_minimum_is(
    name: str, ledger: Callable[[], PrivacyLedger]
) -> None:
    """With a lower minimum each client adds more, so that the minimum adds the same; earlier charges stay."""
    costs = list[float]()
    for number, minimum in enumerate((4, 3), start=1):
        with world_of(name, minimum_cohort=minimum) as world:
            session = world.open(subject(number), frozenset(CLIENTS))
            noise = noise_in(session)
            session.abort()
            assert isinstance(noise, ClientNoise)
            assert noise.honest == minimum
            costs.append(noise.epsilon(TWO.delta))
            uploaded(world, subject(number))
            assert ledger().spent == pytest.approx(noise.epsilon(TWO.delta, number), rel=1e-9)
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)


# --- A machine that stops ---------------------------------------------------------------------------------------------


@EACH
def test_an_upload_is_on_the_disk_before_its_noise_is_drawn(
    name: str, ledger: Callable[[], PrivacyLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends there; the ledger may count an upload that was never sent, but never misses a sent one."""

    def ending(*_: object) -> Payload:
        counted.append(ledger().uploads)
        raise KeyboardInterrupt

    counted = list[int]()
    with world_of(name) as world:
        session, clients, message = brought_to_the_upload(world, SUBJECT)
        with monkeypatch.context() as patched:
            patched.setattr(ClientNoise, "add_to", ending)
            with pytest.raises(KeyboardInterrupt):
                clients[CLIENT].answer(message)
        session.abort()
    assert counted == [1] == [ledger().uploads]


@EACH
def test_what_cannot_be_written_is_not_uploaded(
    name: str, ledger: Callable[[], PrivacyLedger], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError("no space is left")

    ledger().charge(own_noise())
    with world_of(name) as world:
        session, clients, message = brought_to_the_upload(world, SUBJECT)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", failing)
            with pytest.raises(OSError, match="no space"):
                clients[CLIENT].answer(message)
        session.abort()
    assert ledger().uploads == 1


def own_noise() -> ClientNoise:
    settings = NoiseSettings(noise_multiplier=Fraction(1), l2_bounds=(3000,), adjacency=Adjacency.ZERO_OUT)
    noise = settings.noise_for(LAYOUT, minimum_cohort=3, capacity=4, corrupted=0)
    assert noise is not None
    return noise


def test_many_at_once_spend_no_more_than_there_is(ledger: Callable[[], PrivacyLedger]) -> None:
    """Each has its own ledger on the same file, like separate processes."""

    def charged(_: int) -> bool:
        try:
            ledger().charge(own_noise())
        except InvalidParameters:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(charged, range(16))) == 2
    assert ledger().uploads == 2


# --- A state that is not the one --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["copied elsewhere", "written over in place", "renamed into place"])
def test_a_copy_of_a_ledger_is_refused(ledger: Callable[[], PrivacyLedger], tmp_path: Path, way: str) -> None:
    """It was made before the last upload, or another machine continues from it."""
    ledger().charge(own_noise())
    shutil.copytree(tmp_path / "ledger", tmp_path / "copy")
    ledger().charge(own_noise())
    folder, backup = tmp_path / "ledger", tmp_path / "copy" / "state.db"
    match way:
        case "copied elsewhere":
            folder = tmp_path / "copy"
        case "written over in place":
            (folder / "state.db").write_bytes(backup.read_bytes())
        case _:
            backup.replace(folder / "state.db")
    with pytest.raises((InvalidParameters, OSError), match=r"copied, restored|its 2 uploads so far"):
        PrivacyLedger(TWO, folder=folder).charge(own_noise())


def test_data_of_another_name_have_another_ledger(ledger: Callable[[], PrivacyLedger], tmp_path: Path) -> None:
    ledger().charge(own_noise())
    assert PrivacyLedger(TWO, data="ward 4", folder=tmp_path / "ledger").uploads == 0
    assert ledger().uploads == 1


def test_an_upload_and_its_cost_are_charged_together(ledger: Callable[[], PrivacyLedger], tmp_path: Path) -> None:
    """An upload beyond the budget uses up neither the round nor the model."""
    uploads, model = SpentUpdates(tmp_path / "ledger"), b"m" * 32
    for _ in range(2):
        ledger().charge(own_noise())
    for number in (1, 2):
        late = LazyUpdate(
            partial(update_of, CLIENT),
            charge=partial(uploads.charge, Spent(b"a task", number, model)),
            together=uploads.transaction,
        )
        is_refused(partial(late.take, LAYOUT, charge=partial(ledger().charge, own_noise())))
    assert uploads.count(b"a task") == 0


def test_a_ledger_keeps_to_one_adjacency(ledger: Callable[[], PrivacyLedger], tmp_path: Path) -> None:
    """The cost with zeros as neighbours is a quarter of the cost with other updates."""
    ledger().charge(own_noise())
    with pytest.raises(InvalidParameters, match="a different adjacency"):
        PrivacyLedger(replace(TWO, adjacency=Adjacency.REPLACE), folder=tmp_path / "ledger").charge(own_noise())


def test_a_ledger_counts_with_its_own_neighbours_whatever_the_noise_is_made_for(tmp_path: Path) -> None:
    strict = PrivacyLedger(
        PrivacyBudget(epsilon=50.0, delta=1e-6, adjacency=Adjacency.REPLACE), folder=tmp_path / "own"
    )
    strict.charge(own_noise())
    assert strict.spent == own_noise().loss(Adjacency.REPLACE).epsilon(1e-6) > 1.5 * own_noise().epsilon(1e-6)


@pytest.mark.parametrize("number", [math.inf, -math.inf, -1.0])
def test_a_record_that_is_no_loss_is_refused(
    ledger: Callable[[], PrivacyLedger], tmp_path: Path, number: float
) -> None:
    ledger().charge(own_noise())
    with Store.at(tmp_path / "ledger").transaction() as rows:
        rows.execute("UPDATE losses SET slope = ?", (number,))
    with pytest.raises(InvalidParameters, match="not a number"):
        ledger().charge(own_noise())
