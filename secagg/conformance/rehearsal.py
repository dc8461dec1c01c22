"""One rehearsed session, step by step: messages, answers, and checks of the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import numpy as np

from secagg.contract import Payload, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret
from secagg.errors import ContractViolation, SecAggError
from secagg.identifiers import ClientId, Party
from secagg.session.registry import Clock, ProtocolEntry, Simulation
from secagg.session.roles import ClientSession, LazyUpdate, Released, ServerSession, Subject, Update

LEAST_CLIENTS: Final = 4
_STAGES: Final = 16
"""Limit on stages; no session has more."""
MODEL: Final = bytes(range(32))
"""The digest of the model that every rehearsed update was trained from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCandidate:
    """A protocol under test, with settings that tolerate the loss of one client in any stage."""

    entry: ProtocolEntry
    settings: Any
    subject: Subject
    """Subject with a layout of rings, and ``MODEL`` as its model."""
    clients: tuple[ClientId, ...]
    payload: Callable[[ClientId], Payload]
    """A client's upload; it needs nonzero values, or an altered sum might go undetected."""
    coins: Coins
    clock: Clock
    proves_senders: bool = True
    """Whether answers are authenticated; otherwise an answer submitted under another name spoils the sum."""
    notices_alterations: bool = True
    """Whether a sum with an altered answer is withheld; otherwise the transport must prevent this."""

    between: Callable[[Any, Callable[[bytes], bytes]], None] | None = None
    """Applies an alteration to every message between server and helpers of a simulation, if it has helpers."""
    linked: tuple[Party, ...] = ()
    """Parties that any blame for such an alteration must name, in addition to the server."""

    def __post_init__(self) -> None:
        if len(self.clients) < LEAST_CLIENTS:
            raise ContractViolation(f"rehearse with at least {LEAST_CLIENTS} clients; got {len(self.clients)}")
        if self.subject.model_digest != MODEL:
            raise ContractViolation("rehearse with a subject whose model is secagg.conformance.sessions.MODEL")

    def world(self) -> Simulation:
        return self.entry.simulate(self.settings, coins=self.coins, clock=self.clock)


@dataclass(slots=True)
class Rehearsal:
    """A session and its clients; each client's answer is computed once and cached."""

    candidate: SessionCandidate
    world: Simulation
    subject: Subject
    server: ServerSession
    sessions: dict[ClientId, ClientSession]
    answers: dict[str, dict[ClientId, bytes]] = field(default_factory=dict[str, dict[ClientId, bytes]])
    made: dict[ClientId, int] = field(default_factory=dict[ClientId, int])
    """Number of times that each client's update was made."""

    @classmethod
    def begin(
        cls, candidate: SessionCandidate, world: Simulation | None = None, *, is_open: bool = False, **changes: object
    ) -> Rehearsal:
        """Open a session that all clients join; ``changes`` modify the subject."""
        world = world or candidate.world()
        subject = replace(candidate.subject, **cast("dict[str, Any]", changes))
        server = world.open(subject, None if is_open else frozenset(candidate.clients))
        rehearsal = cls(candidate, world, subject, server, {})
        for client in candidate.clients:
            rehearsal.sessions[client] = world.member(client).join(subject, rehearsal.update_of(client))
        return rehearsal

    def update_of(self, client: ClientId) -> LazyUpdate:
        """Return a client's lazy update, and count how often it is made."""

        def make() -> Update:
            self.made[client] = self.made.get(client, 0) + 1
            return Update(self.candidate.payload(client), MODEL)

        return LazyUpdate(make)

    @property
    def stage(self) -> str:
        """Name of the open stage; a session that ended early breaks the law."""
        if self.server.stage is None:
            raise ContractViolation("the stage ended without being closed")
        return self.server.stage.name

    def answer(self, client: ClientId) -> bytes | None:
        """Return a client's answer in the open stage; None if it has no message."""
        kept = self.answers.setdefault(self.stage, {})
        if client not in kept:
            message = self.server.message_to(client)
            if message is None:
                return None
            kept[client] = self.sessions[client].answer(message)
        return kept[client]

    def all_answers(self, clients: Iterable[ClientId] | None = None) -> dict[ClientId, bytes]:
        found = {client: self.answer(client) for client in (clients or self.candidate.clients)}
        return {client: answer for client, answer in found.items() if answer is not None}

    def deliver(self, answers: Mapping[ClientId, bytes]) -> None:
        for client, answer in answers.items():
            self.server.receive(client, answer)

    def step(self, without: frozenset[ClientId] = frozenset()) -> None:
        """Let all clients except dropouts answer, and close the stage."""
        for client in without:
            self.server.drop(client)
        self.deliver(self.all_answers([c for c in self.candidate.clients if c not in without]))
        self.server.close_stage()

    def reach(self, number: int, without: frozenset[ClientId] = frozenset()) -> bool:
        """Continue until the stage with this number (from 0) is open; return whether it exists."""
        for _ in range(number):
            if self.server.stage is None:
                return False
            self.step(without)
        return self.server.stage is not None

    def finish(self, without: frozenset[ClientId] = frozenset()) -> Released:
        while self.server.stage is not None:
            self.step(without)
        return self.server.release()

    def require_exact(self, released: Released, counted: Iterable[ClientId]) -> None:
        """Require that a release is the sum of the expected clients."""
        due = frozenset(counted)
        if released.counted != due:
            raise ContractViolation(f"the sum counts {sorted(released.counted)}, but expected {sorted(due)}")
        ideal = ideal_aggregate(self.subject.layout, [self.candidate.payload(client) for client in sorted(due)])
        sums = released.aggregate
        is_same = len(sums.values) == len(ideal.values) and all(
            np.array_equal(value, other) for value, other in zip(sums.values, ideal.values, strict=True)
        )
        if not is_same or sums.contributors != ideal.contributors:
            raise ContractViolation("the sum differs from that of the counted clients")
        if not due <= frozenset[ClientId]().union(*released.revealed):
            raise ContractViolation("counted clients are in none of the revealed sets")
        segments = range(len(self.subject.layout.segments))
        if list(released.unbounded) != sorted(set(released.unbounded) & set(segments)):
            raise ContractViolation(f"{released.unbounded} are not segments of the subject's layout, in order")
        if missing := set(self.subject.layout.ring_positions) - set(released.unbounded):
            raise ContractViolation(f"segments {sorted(missing)} have ring elements, but are not listed as unbounded")

    def require_right_or_refused(self, going_on: Callable[[], Released]) -> None:
        """Require that a session with altered messages releases the right sum of the clients it counts, or none."""
        try:
            released = going_on()
        except ContractViolation:
            raise
        except SecAggError:
            return
        if self.candidate.notices_alterations:
            self.require_exact(released, released.counted)


def rehearsals(candidate: SessionCandidate) -> Iterator[tuple[int, Rehearsal]]:
    """For each stage, yield a new session in which it is open."""
    for number in range(_STAGES):
        rehearsal = Rehearsal.begin(candidate)
        if not rehearsal.reach(number):
            rehearsal.server.abort()
            return
        yield number, rehearsal
        rehearsal.server.abort()
        rehearsal.world.close()


def update_stages(rehearsal: Rehearsal) -> tuple[bool, bool]:
    """Return whether the open stage takes updates, and whether updates were made before it."""
    stage = rehearsal.server.stage
    return stage is not None and stage.takes_update, bool(rehearsal.made)


def two_copies(suspended: Secret) -> tuple[Secret, Secret]:
    """Return the suspended state twice, as if its store had been copied."""
    data = bytes(suspended.expose())
    suspended.wipe()
    return Secret("client record", data), Secret("client record", data)
