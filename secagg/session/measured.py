"""A stopwatch around any server session: it is one itself, and knows nothing of any protocol."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Final

from secagg.crypto.secret import Secret
from secagg.errors import PeerError, UnexpectedMessage
from secagg.identifiers import ClientId

from .roles import Released, ServerSession, Stage, Turnout

LEFT: Final = "left"
"""Why a client is gone of which nothing else is known."""


@dataclass(slots=True)
class StageFigures:
    """What a stage took; a driver in memory adds its clients' seconds."""

    name: str
    takes_update: bool = False
    sent: int = 0
    """How many messages went out."""
    answered: set[ClientId] = field(default_factory=set[ClientId], repr=False)
    failed: dict[ClientId, str] = field(default_factory=dict[ClientId, str])
    """Who was refused or left, and why."""
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_between: int = 0
    """Between the server and its helpers."""
    largest_up: int = 0
    seconds: float = 0.0
    """From opening the stage to closing it."""
    server_seconds: float = 0.0
    client_seconds: float = 0.0
    """Of all clients together, without making their updates."""
    slowest_client_seconds: float = 0.0

    def add_client(self, seconds: float) -> None:
        """Add what one client took."""
        self.client_seconds += seconds
        self.slowest_client_seconds = max(self.slowest_client_seconds, seconds)


def _nothing_between() -> int:
    return 0


class Measured:
    """Counts what passes through a session, stage by stage; the last figures are those of the release.

    For any thread, as the session is. The seconds of the server are summed over threads.
    """

    def __init__(self, session: ServerSession, between: Callable[[], int] = _nothing_between) -> None:
        """Begin; ``between`` says how many bytes went to and from helpers so far, as their connections count them."""
        self.session, self._lock, self._between, self._told = session, Lock(), between, between()
        self.figures = list[StageFigures]()
        """Of each stage so far, in order."""
        self._opened = 0.0
        self._begin()

    @property
    def now(self) -> StageFigures:
        """The figures of the open stage, or of the release."""
        return self.figures[-1]

    def _begin(self) -> None:
        stage = self.session.stage
        with self._lock:
            self.figures.append(
                StageFigures("release") if stage is None else StageFigures(stage.name, stage.takes_update)
            )
            self._opened = perf_counter()

    @contextmanager
    def _timed(self) -> Generator[StageFigures]:
        """Charge what is done to the stage in which it began."""
        figures, started = self.now, perf_counter()
        try:
            yield figures
        finally:
            with self._lock:
                ended = perf_counter()
                figures.server_seconds += ended - started
                figures.seconds = ended - self._opened
                total = self._between()
                figures.bytes_between, self._told = figures.bytes_between + total - self._told, total

    @property
    def invitation(self) -> bytes:
        """See ``ServerSession``, as for all that follows."""
        return self.session.invitation

    @property
    def stage(self) -> Stage | None:
        """The open stage."""
        return self.session.stage

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        """Who may still answer."""
        return self.session.awaited

    @property
    def turnout(self) -> Turnout:
        """Whether closing the stage now can succeed."""
        return self.session.turnout

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """What went wrong so far."""
        return self.session.faults

    def message_to(self, client: ClientId) -> bytes | None:
        """Return a client's message, and count it each time that it is taken to be sent."""
        with self._timed() as figures:
            message = self.session.message_to(client)
        with self._lock:
            figures.sent += message is not None
            figures.bytes_down += len(message or b"")
        return message

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an answer, and count it whether it is taken or not."""
        with self._timed() as figures:
            try:
                self.session.receive(sender, message)
            except UnexpectedMessage:
                raise
            except PeerError as error:
                figures.failed[sender] = str(error)
                raise
            finally:
                with self._lock:
                    figures.bytes_up += len(message)
                    figures.largest_up = max(figures.largest_up, len(message))
            figures.answered.add(sender)

    def drop(self, client: ClientId) -> None:
        """Await a client no more."""
        self.now.failed.setdefault(client, LEFT)
        self.session.drop(client)

    def close_stage(self) -> None:
        """Close the stage, whose figures are complete then."""
        with self._timed():
            self.session.close_stage()
        self._begin()

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum."""
        with self._timed():
            return self.session.release(progress)

    def abort(self) -> None:
        """End the session."""
        self.session.abort()

    def snapshot(self) -> Secret | None:
        """Return what the session is restored from; figures are not in it."""
        return self.session.snapshot()
