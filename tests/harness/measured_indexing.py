"""A round of two servers in memory with a stopwatch: what was sent to whom, how long it took, and who was rejected.

Clients come one after another, and the servers decide about a batch of uploads at a time, so that the memory is that
of a few models however many clients there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Any, Final

from secagg.contract import Payload
from secagg.errors import PeerError
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import BATCH
from secagg.protocols.two_servers.upload import Upload
from tests.harness.indexing_rounds import SharingClient

Progress = Callable[[int, int], None]
"""Told how many clients have uploaded, and how many may."""


class Delivery(Enum):
    """Which halves of an upload arrive."""

    BOTH = (0, 1)
    ZERO_ALONE = (0,)
    ONE_ALONE = (1,)


_LOSSES: Final = (None, Delivery.ZERO_ALONE, Delivery.ONE_ALONE)
"""Where clients drop out, dealt out in turn; None before anything was sent."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who drops out and where, who cheats, and who does as the protocol says."""

    lost: dict[int, Delivery | None]
    cheaters: tuple[int, ...]
    honest: tuple[int, ...]

    @classmethod
    def of(cls, clients: int, *, drop: int, cheat: int) -> Cast:
        """Spread those who drop out, and of the others those who cheat."""
        gone = [1 + turn * clients // drop for turn in range(drop)]
        lost = {number: _LOSSES[turn % len(_LOSSES)] for turn, number in enumerate(gone)}
        present = [number for number in range(1, clients + 1) if number not in lost]
        cheaters = tuple(present[turn * len(present) // cheat] for turn in range(cheat))
        return cls(lost, cheaters, tuple(number for number in present if number not in set(cheaters)))

    def deliveries(self) -> Iterator[tuple[int, Delivery]]:
        """Yield everybody who sends anything, in order, and what of it arrives."""
        present = dict.fromkeys((*self.cheaters, *self.honest), Delivery.BOTH)
        partly = {number: delivery for number, delivery in self.lost.items() if delivery is not None}
        yield from sorted((present | partly).items())

    def lost_at(self, delivery: Delivery | None) -> list[int]:
        """Return who dropped out there."""
        return [number for number, place in self.lost.items() if place is delivery]


STEPS: Final = ("proposal", "answer", "conclusion", "signed list", "commitment", "share of the sum")
"""What the servers send each other, in order; the last three go both ways."""


@dataclass(slots=True)
class IndexingFigures:
    """What one round took, apart from encoding the updates."""

    bytes_down: int = 0
    """Both servers' offers, to all clients."""
    bytes_up: list[int] = field(default_factory=lambda: [0, 0])
    """To server 0 and to server 1, of all clients."""
    largest_up: list[int] = field(default_factory=lambda: [0, 0])
    """Of one client."""
    between: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STEPS, 0))
    """Between the servers, step by step."""
    client_seconds: float = 0.0
    """Of all clients together, one after another: verifying offers, sharing, proving and sealing."""
    slowest_client_seconds: float = 0.0
    upload_seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of each server, until it holds an opened upload."""
    check_seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Of each server, for deciding and adding."""
    release_seconds: list[float] = field(default_factory=lambda: [0.0, 0.0])
    uploaded: set[ClientId] = field(default_factory=set[ClientId], repr=False)
    """Of whom both halves arrived."""
    failed: dict[ClientId, str] = field(default_factory=dict[ClientId, str])
    """Whose uploads a server did not even take in, and why."""


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """What both servers got, and what it took."""

    results: tuple[RoundResult, RoundResult]
    undecided: tuple[int, int]
    """How many uploads either server holds, and the other one never took."""
    figures: IndexingFigures


def measured_round(  # noqa: PLR0913 -- the servers, the clients, and what all of them are told
    zero: IndexingServer,
    one: IndexingServer,
    updates: Iterable[tuple[SharingClient, Callable[[], Payload], Delivery]],
    *,
    count: int,
    now: datetime,
    progress: Progress | None = None,
) -> MeasuredRound:
    """Let every client that comes upload once, and release the sum.

    Args:
        updates: the clients, each with what encodes its update, whose time is not counted, and what of it arrives.
        count: how many there are.
    Raises:
        ThresholdNotMet: too few uploads were taken; nothing is released.
        PeerMisbehaved: more were rejected than the configuration puts up with.
    """
    figures = IndexingFigures()
    servers, offers, asked = (zero, one), (zero.offer, one.offer), set[bytes]()
    for done, (client, payload_of, delivery) in enumerate(updates, start=1):
        payload = payload_of()
        started = perf_counter()
        halves = client.share(
            payload, configuration=zero.configuration, round_number=zero.round_number, offers=offers, now=now
        )
        seconds = perf_counter() - started
        figures.client_seconds += seconds
        figures.slowest_client_seconds = max(figures.slowest_client_seconds, seconds)
        figures.bytes_down += sum(map(len, offers))
        for index in delivery.value:
            _deliver(servers[index], client.client, halves[index], figures)
        if delivery is Delivery.BOTH and client.client not in figures.failed:
            figures.uploaded.add(client.client)
        if len(waiting := _not_in(asked, one)) >= BATCH:
            _check(zero, one, waiting, asked, figures)
        if progress is not None:
            progress(done, count)
    _check(zero, one, _not_in(asked, one), asked, figures)
    undecided = len(zero.waiting()), len(one.waiting())
    return MeasuredRound(_released(zero, one, figures), undecided, figures)


# --- Private ----------------------------------------------------------------------------------------------------------


def _deliver(server: IndexingServer, client: ClientId, half: Upload, figures: IndexingFigures) -> None:
    index, message = server.server.index, half.encode()
    figures.bytes_up[index] += len(message)
    figures.largest_up[index] = max(figures.largest_up[index], len(message))
    started = perf_counter()
    try:
        server.receive(message)
    except PeerError as error:
        figures.failed[client] = str(error)
    figures.upload_seconds[index] += perf_counter() - started


def _not_in(asked: set[bytes], one: IndexingServer) -> list[bytes]:
    """Return the uploads that server 1 has not asked about; what server 0 never got would only be asked about again."""
    return [upload for upload in one.waiting() if upload not in asked]


def _check(
    zero: IndexingServer, one: IndexingServer, uploads: list[bytes], asked: set[bytes], figures: IndexingFigures
) -> None:
    for start in range(0, len(uploads), BATCH):
        batch = uploads[start : start + BATCH]
        asked.update(batch)
        proposal = _timed(figures.check_seconds, one.server, partial(one.propose, batch))
        answer = _timed(figures.check_seconds, zero.server, partial(zero.answer, proposal))
        conclusion = _timed(figures.check_seconds, one.server, partial(one.conclude, answer))
        _timed(figures.check_seconds, zero.server, partial(zero.settle, conclusion))
        for step, message in zip(STEPS, (proposal, answer, conclusion), strict=False):
            figures.between[step] += len(message)


def _released(zero: IndexingServer, one: IndexingServer, figures: IndexingFigures) -> tuple[RoundResult, RoundResult]:
    seconds = figures.release_seconds
    lists = _timed(seconds, zero.server, zero.close), _timed(seconds, one.server, one.close)
    commitments = (
        _timed(seconds, zero.server, partial(zero.agree, lists[1])),
        _timed(seconds, one.server, partial(one.agree, lists[0])),
    )
    shares = (
        _timed(seconds, zero.server, partial(zero.open, commitments[1])),
        _timed(seconds, one.server, partial(one.open, commitments[0])),
    )
    for step, messages in zip(STEPS[3:], (lists, commitments, shares), strict=True):
        figures.between[step] += sum(map(len, messages))
    return (
        _timed(seconds, zero.server, partial(zero.combine, shares[1])),
        _timed(seconds, one.server, partial(one.combine, shares[0])),
    )


def _timed(seconds: list[float], server: ServerId, step: Callable[[], Any]) -> Any:
    started = perf_counter()
    try:
        return step()
    finally:
        seconds[server.index] += perf_counter() - started
