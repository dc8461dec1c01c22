"""One rehearsed session, step by step: who is sent what, who answers what, and whether the sum is right."""

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
"""No session has more."""
MODEL: Final = bytes(range(32))
"""The digest of the model that every rehearsed update was trained from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCandidate:
    """A protocol that is held to the laws, with settings that survive the loss of one client in any stage."""

    entry: ProtocolEntry
    settings: Any
    subject: Subject
    """Subject with a layout of rings, and ``MODEL`` as its model."""
    clients: tuple[ClientId, ...]
    payload: Callable[[ClientId], Payload]
    """A client's upload; values other than zero, or an altered sum might go unnoticed."""
    coins: Coins
    clock: Clock
    proves_senders: bool = True
    """Whether an answer proves who made it; where it does not, one that is handed over as another's spoils the sum."""
    notices_alterations: bool = True
    """Whether a sum in which an altered answer is, is not released; elsewhere that is the transport's to see to."""

    between: Callable[[Any, Callable[[bytes], bytes]], None] | None = None
    """Puts an alteration on every message between server and helpers of a simulation, where there are helpers."""
    linked: tuple[Party, ...] = ()
    """Parties that are named for such an alteration whenever anybody is, in addition to the server."""

    def __post_init__(self) -> None:
        if len(self.clients) < LEAST_CLIENTS:
            raise ContractViolation(f"rehearse with at least {LEAST_CLIENTS} clients; {len(self.clients)} were given")
        if self.subject.model_digest != MODEL:
            raise ContractViolation("rehearse with a subject whose model is secagg.conformance.sessions.MODEL")

    def world(self) -> Simulation:
        return self.entry.simulate(self.settings, coins=self.coins, clock=self.clock)


@dataclass(slots=True)
class Rehearsal:
    """A session and its clients; each client's answer is made once and kept."""

    candidate: SessionCandidate
    world: Simulation
    subject: Subject
    server: ServerSession
    sessions: dict[ClientId, ClientSession]
    answers: dict[str, dict[ClientId, bytes]] = field(default_factory=dict[str, dict[ClientId, bytes]])
    made: dict[ClientId, int] = field(default_factory=dict[ClientId, int])
    """How often each client's update was made."""

    @classmethod
    def begin(
        cls, candidate: SessionCandidate, world: Simulation | None = None, *, is_open: bool = False, **changes: object
    ) -> Rehearsal:
        """Open a session and let everybody join it; ``changes`` are of the subject."""
        world = world or candidate.world()
        subject = replace(candidate.subject, **cast("dict[str, Any]", changes))
        server = world.open(subject, None if is_open else frozenset(candidate.clients))
        rehearsal = cls(candidate, world, subject, server, {})
        for client in candidate.clients:
            rehearsal.sessions[client] = world.member(client).join(subject, rehearsal.update_of(client))
        return rehearsal

    def update_of(self, client: ClientId) -> LazyUpdate:
        """Return a client's update, whose making is counted."""

        def make() -> Update:
            self.made[client] = self.made.get(client, 0) + 1
            return Update(self.candidate.payload(client), MODEL)

        return LazyUpdate(make)

    @property
    def stage(self) -> str:
        """The name of the open stage; a session that has ended early breaks the law."""
        if self.server.stage is None:
            raise ContractViolation("a stage is open no more, and it was not closed")
        return self.server.stage.name

    def answer(self, client: ClientId) -> bytes | None:
        """Return a client's answer in the open stage; None if it has no part in it."""
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
        """Let everybody answer who is not lost, and close the stage."""
        for client in without:
            self.server.drop(client)
        self.deliver(self.all_answers([c for c in self.candidate.clients if c not in without]))
        self.server.close_stage()

    def reach(self, number: int, without: frozenset[ClientId] = frozenset()) -> bool:
        """Continue until a stage is open, counted from 0; return whether there is such a stage."""
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
        """Hold a release to the sum of those who must be in it."""
        due = frozenset(counted)
        if released.counted != due:
            raise ContractViolation(f"{sorted(released.counted)} are counted; expected {sorted(due)}")
        ideal = ideal_aggregate(self.subject.layout, [self.candidate.payload(client) for client in sorted(due)])
        sums = released.aggregate
        is_same = len(sums.values) == len(ideal.values) and all(
            np.array_equal(value, other) for value, other in zip(sums.values, ideal.values, strict=True)
        )
        if not is_same or sums.contributors != ideal.contributors:
            raise ContractViolation("the sum is not that of the clients that are counted")
        if not due <= frozenset[ClientId]().union(*released.revealed):
            raise ContractViolation("clients that are counted are in none of the sets that are revealed")
        segments = range(len(self.subject.layout.segments))
        if list(released.unbounded) != sorted(set(released.unbounded) & set(segments)):
            raise ContractViolation(f"{released.unbounded} are not segments of the subject's layout, in order")
        if missing := set(self.subject.layout.ring_positions) - set(released.unbounded):
            raise ContractViolation(f"segments {sorted(missing)} hold ring elements, and are not named as unbounded")

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
    """Yield a fresh session for each of its stages, in which that stage is open."""
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
    """Return the suspended state twice, as the owner of a copied store has it."""
    data = bytes(suspended.expose())
    suspended.wipe()
    return Secret("client record", data), Secret("client record", data)
