"""A session in memory with a stopwatch: what was sent in which round, how long it took, and who was gone by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from secagg.contract import Aggregate
from secagg.errors import PeerError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import Client, Server, ServerState, SessionPlan
from secagg.protocols.pairwise_mask.run import Dropouts, Observer, run
from secagg.wire import MessageKind, message_kind

ROUNDS: Final = {
    MessageKind.SESSION_OFFER: ServerState.AWAITING_KEY_ADVERTISEMENTS,
    MessageKind.ADVERTISED_KEYS: ServerState.AWAITING_ENCRYPTED_SHARES,
    MessageKind.DELIVERED_SHARES: ServerState.AWAITING_MASKED_INPUTS,
    MessageKind.SURVIVOR_SET: ServerState.AWAITING_SURVIVOR_SIGNATURES,
    MessageKind.UNMASKING_REQUEST: ServerState.AWAITING_UNMASKING_SHARES,
}
"""The round that each message to a client belongs to, by what the server awaits in it."""

Progress = Callable[[ServerState, int, int], None]
"""Told of a round, how many clients have answered in it, and how many may; for ``COMPLETED`` it counts masks."""


@dataclass(slots=True)
class RoundFigures:
    """What one round took."""

    state: ServerState
    messages_down: int = 0
    messages_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    client_seconds: float = 0.0
    """Of all clients together, one after another."""
    slowest_client_seconds: float = 0.0
    server_seconds: float = 0.0
    """Everything between the clients' steps: taking answers, closing the round before, making the messages of this."""
    answered: set[ClientId] = field(default_factory=set[ClientId], repr=False)
    dropped: tuple[ClientId, ...] = ()
    """Who was asked, or should have been, and did not answer."""
    failed: dict[ClientId, str] = field(default_factory=dict[ClientId, str])
    """Who left the session on its own account, and why."""

    @property
    def lost(self) -> frozenset[ClientId]:
        """Everybody who is gone after this round and was not before."""
        return frozenset((*self.dropped, *self.failed))


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A finished session, and what each round of it took."""

    aggregate: Aggregate
    server: Server
    rounds: tuple[RoundFigures, ...]
    unmask_seconds: float
    """What the server took after the last answer: reconstructing secrets, removing masks, checking the sum."""


class MeasuredClient(Client):
    """A client that tells a meter what it was sent, what it answers, and how long that took."""

    meter: Meter | None = None

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message, as every client does."""
        if self.meter is None:
            return super().answer(message)
        figures = self.meter.begin(message)
        answers, reason = list[bytes](), ""
        try:
            answers.append(super().answer(message))
        except (PeerError, ThresholdNotMet) as error:
            reason = str(error)
            raise
        finally:
            self.meter.end(figures, self.client, answers, reason)
        return answers[0]


class Meter:
    """Counts and times; whatever happens outside a client's step is the server's time."""

    def __init__(self, clients: int, progress: Progress | None = None) -> None:
        self.rounds = dict[ServerState, RoundFigures]()
        self._expected = clients
        self._progress = progress
        self._mark = perf_counter()

    def begin(self, message: bytes) -> RoundFigures:
        """Note that a client is handed a message, and return the round that it belongs to."""
        now = perf_counter()
        state = ROUNDS[message_kind(message)]
        if state not in self.rounds:
            answered = [len(figures.answered) for figures in self.rounds.values()]
            # Of the consistency check not everybody is a part, so the round before it counts as well.
            self._expected = max(answered[-2:], default=self._expected)
            self.rounds[state] = RoundFigures(state)
        figures = self.rounds[state]
        figures.server_seconds += now - self._mark
        figures.messages_down += 1
        figures.bytes_down += len(message)
        self._mark = perf_counter()
        return figures

    def end(self, figures: RoundFigures, client: ClientId, answers: Sequence[bytes], reason: str) -> None:
        """Note what it answered, or why it left."""
        took = perf_counter() - self._mark
        figures.client_seconds += took
        figures.slowest_client_seconds = max(figures.slowest_client_seconds, took)
        figures.messages_up += len(answers)
        figures.bytes_up += sum(map(len, answers))
        if reason:
            figures.failed[client] = reason
        else:
            figures.answered.add(client)
        if self._progress is not None:
            self._progress(figures.state, len(figures.answered), self._expected)
        self._mark = perf_counter()

    def unmasked(self, done: int, count: int) -> None:
        """Pass on how far the server has come with removing masks."""
        if self._progress is not None:
            self._progress(ServerState.COMPLETED, done, count)

    @property
    def seconds_since_last_answer(self) -> float:
        """How long the server has been at work."""
        return perf_counter() - self._mark


def measured_run(  # noqa: PLR0913 -- all but two have defaults
    plan: SessionPlan,
    clients: Sequence[MeasuredClient],
    *,
    dropouts: Dropouts | None = None,
    sent: Observer | None = None,
    progress: Progress | None = None,
    threads: int = 1,
) -> MeasuredRun:
    """Run one session in memory as ``run`` does, one client after another, and measure it.

    Raises:
        ThresholdNotMet: too many dropped out; nothing is released.
    """
    meter = Meter(len(clients), progress)
    for client in clients:
        client.meter = meter
    aggregate, server = run(plan, clients, dropouts=dropouts, sent=sent, progress=meter.unmasked, threads=threads)
    unmask_seconds = meter.seconds_since_last_answer
    rounds = tuple(meter.rounds.values())
    gone, committee = set[ClientId](), frozenset(server.roster.clients[p] for p in _committee(server))
    for figures in rounds:
        planned = (dropouts or {}).get(figures.state, frozenset()) - gone
        if figures.state is ServerState.AWAITING_SURVIVOR_SIGNATURES:
            planned &= committee
        figures.dropped = tuple(sorted(planned))
        gone |= planned | figures.failed.keys()
    return MeasuredRun(aggregate, server, rounds, unmask_seconds)


def _committee(server: Server) -> tuple[int, ...]:
    return server.roster.committee if server.configuration.mode is SecurityMode.ACTIVE else ()
