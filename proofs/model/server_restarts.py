"""An honest server of pairwise masks whose process ends at any time and continues from its stored record.

The search runs the library's own ``Server`` and clients. The platform stores a record whenever a round is closed,
before a message of the next round is sent, as ``snapshot`` requires; between two records answers arrive, are lost with
the process, and arrive again. Every sequence is tried until nothing new is reached.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import ideal
from defects import Replacement, altered, planted
from report import Report, steps_to
from secagg.crypto.secret import Secret
from secagg.errors import InternalError, SecAggError
from secagg.protocols.pairwise_mask.client import Client
from secagg.protocols.pairwise_mask.plan import SessionPlan
from secagg.protocols.pairwise_mask.session import Server, ServerState
from secagg.session.roles import LazyUpdate
from secagg.session.sealed_state import MemoryLatch
from secagg.wire import message_kind
from sessions import Clients, client_id, new_update
from setups import GENUINE, Party, Setup


class World(NamedTuple):
    """The process, the stored record, and the messages that each client has received."""

    held: bytes
    stored: bytes
    sent: tuple[tuple[bytes, ...], ...]


class Adding(Clients):
    """Clients whose inputs have a different sum for every subset."""

    def client(
        self,
        party: Party,
        attempt: int,
        update: LazyUpdate | None = None,
        latch: MemoryLatch | None = None,
        restarts: int = 0,
    ) -> Client:
        """Return a client with its own input."""
        return super().client(party, attempt, update or new_update(1 << party[0]), latch, restarts)


@dataclass
class Search:
    """One session, with every possible loss of its server."""

    clients: Adding
    report: Report = field(default_factory=Report)

    def explore(self) -> Report:
        """Try everything, up to the first fault."""
        setup, report = self.clients.setup, self.report
        configuration = self.clients.configurations[0]
        plan = SessionPlan(configuration, self.clients.opening(0), 0, 0, 40)
        first = stored(Server(plan))
        start = World(first, first, ((),) * setup.population)
        came_from: dict[World, tuple[World, str] | None] = {start: None}
        frontier = [start]
        while frontier:
            world = frontier.pop()
            for name, after, fault in self._after(world):
                if fault is not None:
                    report.fault, report.trace = fault, (*steps_to(came_from, world), name)
                    report.schedules = len(came_from)
                    return report
                if after not in came_from:
                    came_from[after] = world, name
                    frontier.append(after)
        report.schedules = len(came_from)
        return report

    def _after(self, world: World) -> Iterator[tuple[str, World, str | None]]:
        for number in range(self.clients.setup.population):
            yield from self._exchanged(world, number)
        closing = restored(world.held)
        self.report.calls += 1
        if closing.state is ServerState.AWAITING_UNMASKING_SHARES:
            yield "unmask", world, self._fault_in_sum(closing)
        else:
            try:
                closing.close_stage()
            except SecAggError:
                self.report.refused += 1
            else:
                record = stored(closing)
                yield "close the round", World(record, record, world.sent), None
        yield "the process ends", world._replace(held=world.stored), None

    def _exchanged(self, world: World, number: int) -> Iterator[tuple[str, World, str | None]]:
        """Send a client the message of the open round; its answer arrives, arrives late, or never."""
        taking = restored(world.held)
        message = taking.message_to(client_id(number))
        if message is None:
            return
        before, offer = world.sent[number], self.clients.offers[0]
        received = before if message in {*before, offer} else (*before, message)
        if len(set(map(message_kind, received))) < len(received):
            yield f"send to client {number}", world, "a client is sent two messages of one kind"
            return
        # A client that refuses a message because too few clients remain has answered the earlier messages.
        answers = self.clients.run((number, GENUINE), 0, received)
        sent = (*world.sent[:number], received, *world.sent[number + 1 :])
        yield f"client {number} is sent a message, and its answer is lost", world._replace(sent=sent), None
        for reply in answers.replies:
            self.report.calls += 1
            try:
                taking.receive(client_id(number), reply)
            except SecAggError:
                self.report.refused += 1
        yield f"client {number} answers, with what it said before", World(stored(taking), world.stored, sent), None

    def _fault_in_sum(self, closing: Server) -> str | None:
        contributors = closing.contributors
        have_all_answered = not closing.awaited
        try:
            closing.close_stage()
            aggregate = closing.release().aggregate
        except SecAggError:
            self.report.refused += 1
            return "a sum that does not come out although everybody answered" if have_all_answered else None
        self.report.revealing += 1
        due = sum(1 << (client.value - 1) for client in contributors)
        if int(aggregate.values[0][0]) != due or aggregate.contributors != len(contributors):
            return "a sum that is not that of its contributors"
        if closing.revealed != frozenset({contributors}):
            return "a sum over others than its contributors"
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """A search, with planted defects."""

    name: str
    setup: Setup
    defects: tuple[Replacement, ...] = ()
    attacked: bool = False

    def explore(self) -> Report:
        """Run it."""
        logging.disable(logging.WARNING)
        with ideal.installed(with_masks=True), planted(*self.defects):
            return Search(Adding(self.setup)).explore()


def stored(server: Server) -> bytes:
    """Return the bytes of a server's record."""
    record = server.snapshot()
    if record is None:
        raise InternalError("a session whose last round is closed has no record")
    return bytes(record.expose())


def restored(record: bytes) -> Server:
    """Return a server restored from a record."""
    return Server.restore(Secret("server session", record))


THREE, CURIOUS = Setup(3, 2, 2), Setup(3, 2)
READ = "kept = ServerRecord.decode(bytes(snapshot.expose()))"
DEFECTS: dict[str, tuple[Replacement, ...]] = {
    "a record without the sum": (
        altered(
            Server, "restore", (READ, f"{READ}; kept.total = kept.total and MaskedVector(kept.plan.configuration)")
        ),
    ),
    "a record whose sum is added twice": (
        altered(
            Server,
            "restore",
            (READ, f"{READ}; kept.total is None or kept.total.add_packed(b''.join(kept.total.pack()))"),
        ),
    ),
}


def cases() -> tuple[Case, ...]:
    """Return every case: the unchanged server, then each defect."""
    return (
        Case("server's record: 3 clients", THREE),
        Case("server's record: 3 clients, semi_honest", CURIOUS),
        *(Case(f"server's record: {name}", CURIOUS, defects, attacked=True) for name, defects in DEFECTS.items()),
    )
