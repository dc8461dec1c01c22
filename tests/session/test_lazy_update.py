"""What a training raises, and what only seems to come from it."""

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
    """Raised by some library, as outcomes of test runners are."""


def raising(error: BaseException) -> Update:
    raise error


def taken(error: BaseException) -> Update:
    return LazyUpdate(partial(raising, error), MODEL).take(LAYOUT)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), GeneratorExit(), asyncio.CancelledError(), Foreign("x"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_training_raises_zeros_are_sent(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """A model that made it raise chooses whose client is silent, and silence would tell."""
    caplog.set_level(logging.ERROR)
    (values,) = taken(error).payload.values
    assert not np.any(values)
    assert "TRAINING FAILED" in caplog.text


def test_an_interrupt_that_training_raised_in_a_thread_is_no_signal() -> None:
    with ThreadPoolExecutor(1) as pool:
        update = pool.submit(taken, KeyboardInterrupt()).result()
    assert not np.any(update.payload.values[0])


def test_a_process_that_is_interrupted_leaves() -> None:
    with pytest.raises(KeyboardInterrupt):
        taken(KeyboardInterrupt())


SIGNING = [name for name in SETTINGS if name != "plain" and "semi-honest" not in name]


@pytest.mark.parametrize("name", SIGNING)
def test_a_client_whose_key_cannot_sign_makes_no_update(name: str) -> None:
    """The update would be charged and made, and then be refused for want of a signature."""
    rehearsal = Rehearsal.begin(candidate_of(name))
    client = rehearsal.candidate.clients[0]
    session: object = rehearsal.sessions[client]
    vars(session)["_member"].signing_key.wipe()
    with pytest.raises(Misuse, match="wiped"):
        rehearsal.finish()
    assert client not in rehearsal.made
    rehearsal.server.abort()
    rehearsal.world.close()
