"""A server that searches for one client's values by requests, and by which clients become silent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS
from secagg.protocols.one_message.client import Ledger
from secagg.session.registry import find
from secagg.session.roles import LazyUpdate, Subject, Update
from tests.harness.session_worlds import CAPACITY, NOW, SETTINGS, client_ids

LAYOUT = Layout((RingSegment(20, 8),))
ROUNDS = 10
Answered = tuple[tuple[str, object], ...]
"""For each stage with a request to the victim: the length of its answer, or the error with which it left."""


def model_of(number: int) -> bytes:
    return bytes([number + 1]) * 32


def asked(name: str, settings: Any, subject: Subject, update: LazyUpdate, ledgers: dict[Any, Any]) -> Answered:
    """Run one session in which only the victim is unusual, and return its answers."""
    clients = client_ids(SETTINGS[name][2])
    seen = list[tuple[str, object]]()
    with closing(find(SETTINGS[name][0]).simulate(settings, coins=SystemCoins(), clock=lambda: NOW)) as world:
        if "_ledgers" in vars(world):
            vars(world)["_ledgers"] = ledgers  # A client's ledger outlives every round.
        session = world.open(subject, frozenset(clients))
        plain = Update(Payload(LAYOUT, (np.ones(8, np.uint32),)), subject.model_digest or b"")
        joined = {
            client: world.member(client).join(
                subject, update if client == clients[0] else LazyUpdate(lambda: plain, subject.model_digest)
            )
            for client in clients
        }
        gone = set[ClientId]()
        while session.stage is not None:
            for client, own in joined.items():
                message = session.message_to(client)
                if client in gone or message is None:
                    continue
                try:
                    answer = own.answer(message)
                except SecAggError as error:
                    gone.add(client)
                    session.drop(client)
                    seen.append((session.stage.name, error.reason))
                    continue
                session.receive(client, answer)
                if client == clients[0]:
                    seen.append((session.stage.name, len(answer)))
            session.close_stage()
        session.abort()
    return tuple(seen)


def bisected(name: str, value: int, changes: Callable[[int], dict[str, Any]], most: int) -> list[Answered]:
    """Return the view of a server that halves a range in each round, by whether the victim uploaded."""
    low, high, seen, ledgers = 0, most, list[Answered](), dict[Any, Any]()
    for number in range(ROUNDS):
        middle = max(1, (low + high) // 2)
        settings = replace(SETTINGS[name][1], **changes(middle))
        subject = Subject(
            task=b"a task", round_number=number, layout=LAYOUT, capacity=CAPACITY, model_digest=model_of(number)
        )
        payload = Payload(LAYOUT, (np.full(8, value, np.uint32),))
        update = LazyUpdate(partial(Update, payload, model_of(number)))
        seen.append(asked(name, settings, subject, update, ledgers))
        low, high = (low, middle) if isinstance(seen[-1][-1][1], int) else (middle, high)
    return seen


@pytest.mark.parametrize("name", ["one message"])
def test_bounds_that_are_bisected_tell_no_constant(name: str) -> None:
    """Regression: a client with a value outside was silent, and ten rounds revealed its value."""
    bounds: Callable[[int], dict[str, Any]] = lambda middle: {"bounds": ((-middle, middle),)}  # noqa: E731
    small, large = (bisected(name, value, bounds, 512) for value in (3, 400))
    assert small == large
    assert all(isinstance(answer, int) for seen in small for _, answer in seen)


def test_one_model_again_and_again_gets_as_many_uploads_whatever_its_updates_are() -> None:
    """Clamped updates are equal: a ledger of values would reveal this in the second round."""
    name, found = "one message", list[list[Answered]]()
    for value in (3, 400):
        ledgers = dict[Any, Any]()
        clients = client_ids(SETTINGS[name][2])
        for client in clients:
            ledgers[client, b"a task"] = Ledger(b"a task", lambda _: None)
        settings = replace(SETTINGS[name][1], bounds=((-8, 8),))
        payload = Payload(LAYOUT, (np.full(8, value, np.uint32),))
        update = partial(Update, payload, model_of(0))
        subject = Subject(task=b"a task", round_number=0, layout=LAYOUT, capacity=CAPACITY, model_digest=model_of(0))
        found.append(
            [
                asked(name, settings, replace(subject, round_number=number), LazyUpdate(update), ledgers)
                for number in range(ATTEMPTS)
            ]
        )
    assert found[0] == found[1]
    assert all(isinstance(answer, int) for seen in found[0] for _, answer in seen)
