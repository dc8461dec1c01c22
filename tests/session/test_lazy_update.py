"""Exceptions in training, and exceptions that only look as if they came from training."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from secagg.conformance.rehearsal import Rehearsal
from secagg.contract import Layout, RingSegment
from secagg.errors import Misuse
from secagg.session.roles import LazyUpdate, Update
from tests.harness.session_worlds import SETTINGS, candidate_of

LAYOUT = Layout((RingSegment(16, 3),))
MODEL = bytes(32)


class Foreign(BaseException):
    """Raised by a library, like the outcomes of test runners."""


def raising(error: BaseException) -> Update:
    raise error


def taken(error: BaseException) -> Update:
    return LazyUpdate(partial(raising, error), MODEL).take(LAYOUT)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), Foreign("x"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_zeros_are_sent_whatever_training_raises(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a server could send a model that makes training raise, and learn from the client's silence."""
    caplog.set_level(logging.ERROR)
    (values,) = taken(error).payload.values
    assert not np.any(values)
    assert "TRAINING FAILED" in caplog.text


def test_an_interrupt_raised_by_a_training_thread_is_not_a_signal() -> None:
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(taken, KeyboardInterrupt()).result()
    assert not np.any(update.payload.values[0])


def test_an_interrupted_process_exits() -> None:
    with pytest.raises(KeyboardInterrupt):
        taken(KeyboardInterrupt())


SIGNING = [name for name in SETTINGS if name != "plain" and "semi-honest" not in name]


@pytest.mark.parametrize("name", SIGNING)
def test_a_client_whose_key_cannot_sign_makes_no_update(name: str) -> None:
    """Otherwise the update would be charged and made, and then fail for lack of a signature."""
    rehearsal = Rehearsal.begin(candidate_of(name))
    client = rehearsal.candidate.clients[0]
    session: object = rehearsal.sessions[client]
    vars(session)["_member"].signing_key.wipe()
    with pytest.raises(Misuse, match="wiped"):
        rehearsal.finish()
    assert client not in rehearsal.made
    rehearsal.server.abort()
    rehearsal.world.close()
