"""One session in memory: the driver of the command line, of training, of simulations and of tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import perf_counter
from typing import Final

from secagg.errors import SecAggError
from secagg.identifiers import ClientId

from .measured import LEFT, Measured
from .roles import ClientSession, Released

_SHOWN: Final = 3
Progress = Callable[[str, int, int], None]
"""Told of a stage, how many answered it, and how many are still in the session."""


def _ignore(stage: str, answered: int, present: int) -> None:
    """Show no progress."""


def _no_seconds() -> float:
    return 0.0


def run(
    session: Measured,
    clients: Iterable[ClientSession],
    dropouts: Mapping[str, frozenset[ClientId]] | None = None,
    *,
    progress: Progress = _ignore,
    making: Callable[[], float] = _no_seconds,
) -> Released:
    """Carry a session through, one client after another; a client is pulled when its first message is due.

    Args:
        dropouts: by the name of a stage, who is gone for good before answering.
        making: the seconds spent on updates so far, which are no client's in the figures.
    Raises:
        SecAggError, ConnectionError: nothing is released; notes of the first say why clients left.
    """
    present = list[ClientSession]()
    try:
        while (stage := session.stage) is not None:
            gone, present = (dropouts or {}).get(stage.name, frozenset[ClientId]()), list[ClientSession]()
            for client in clients:
                if client.client in gone or not _exchanged(session, client, making):
                    session.drop(client.client)
                    client.abort()
                    continue
                present.append(client)
                progress(stage.name, len(session.now.answered), len(present))
            session.close_stage()
            clients = present
        return session.release(lambda done, count: progress("release", done, count))
    except SecAggError as error:
        # That too few stayed is not what to change; why they left is.
        reasons = dict.fromkeys(reason for stage in session.figures for reason in stage.failed.values())
        for reason in [each for each in reasons if each != LEFT][:_SHOWN]:
            error.add_note(f"a client left: {reason}")
        raise
    finally:
        session.abort()
        for client in present:
            client.abort()


def _exchanged(session: Measured, client: ClientSession, making: Callable[[], float]) -> bool:
    """Deliver one message and its answer; return whether the client stays."""
    if (message := session.message_to(client.client)) is None:
        return True
    started, made = perf_counter(), making()
    try:
        answer = client.answer(message)
        session.now.add_client(perf_counter() - started - (making() - made))
        session.receive(client.client, answer)
    except SecAggError as error:
        session.now.failed[client.client] = str(error)
        return False
    return True
