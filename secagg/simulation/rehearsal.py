"""Rehearsals: complete sessions of any protocol in one process, with dropouts, malicious clients and measurements."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from time import perf_counter, process_time
from typing import Any, Final, Protocol

from secagg.contract import Aggregate, Layout, Payload
from secagg.contract.codewords import Tables
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.privacy.client_noise import deviations_in
from secagg.session import certificates
from secagg.session.registry import ProtocolEntry, Simulation
from secagg.session.roles import ClientSession, LazyUpdate, Released, ServerSession, Stage, Subject, Update
from secagg.session.run import Measured, Progress, run

# --- Checks that are shared -------------------------------------------------------------------------------------------

SHARED_CHECKS: Final = 1 << 16


@contextmanager
def shared_checks() -> Generator[None]:
    """Verify each signature once in this process, for all its receivers; for rehearsals of thousands of clients.

    Verification gives the same result for every receiver, so nothing invalid passes. But a client does only part of its
    work, so its seconds are below those of a real client.
    """
    verify, known = certificates.verified_by, dict[tuple[bytes, bytes, bytes], None]()

    def remembered(public_key: bytes, signature: bytes, statement: bytes) -> None:
        said = public_key, signature, sha256(statement).digest()
        if said in known:
            return
        verify(public_key, signature, statement)
        known[said] = None
        while len(known) > SHARED_CHECKS:
            known.pop(next(iter(known), said), None)

    certificates.verified_by = remembered
    try:
        yield
    finally:
        certificates.verified_by = verify


# --- Rehearsals -------------------------------------------------------------------------------------------------------

TASK: Final = b"a rehearsal"
_MODEL: Final = bytes(32)


class Inputs(Protocol):
    """Payloads for any number of clients in the memory of one client."""

    @property
    def layout(self) -> Layout: ...

    @property
    def tables(self) -> Tables: ...

    @property
    def values(self) -> int:
        """Number of values of an update."""
        ...

    @property
    def capacity(self) -> int:
        """Largest number of uploads that the codec can decode."""
        ...

    @property
    def bounds(self) -> Mapping[str, float | None]:
        """Maximum length of one client's part in a decoded sum, by name; None if unbounded."""
        ...

    def payload_of(self, number: int) -> Payload: ...

    def is_sum_of(
        self, aggregate: Aggregate, contributors: Iterable[ClientId], deviations: Sequence[float] = ()
    ) -> bool:
        """Whether a sum is exactly that of these clients, or within the noise of it."""
        ...


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """Result and measurements of a session."""

    released: Released
    session: Measured
    """The ended session, with figures of each stage, and last of the release."""
    contributors: frozenset[ClientId]
    """Clients whose updates were accepted and not excluded by name, regardless of what the server reports."""
    description: tuple[str, ...]
    is_exact: bool
    """Whether the sum equals that of the contributors in the clear, up to any noise."""
    seconds: float
    processor_seconds: float
    """Processor time of the whole process."""
    deviations: tuple[float, ...] = ()
    """Standard deviations of each segment's noise, in steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A planned session, and its dropouts."""

    entry: ProtocolEntry
    settings: Any
    inputs: Inputs
    clients: int
    first: int = 1
    """Number of the first client, if others are in other sessions."""
    dropouts: Mapping[str, frozenset[ClientId]]
    cheaters: frozenset[ClientId] = frozenset()
    threads: int = 1
    shares_checks: bool = False
    """Whether signatures are verified once for all clients in the process; otherwise each client verifies its own."""

    def run(
        self, progress: Progress = lambda _, __, ___: None, opened: Callable[[ServerSession], None] = lambda _: None
    ) -> Rehearsed:
        """Run the session once; ``opened`` is called with it before any client joins."""
        self.entry.require_segments(self.inputs.layout)
        world = self.entry.simulate(
            self.settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC), threads=self.threads
        )
        with closing(world), _no_collections(), shared_checks() if self.shares_checks else nullcontext():
            return self._run(world, progress, opened)

    def _run(self, world: Simulation, progress: Progress, opened: Callable[[ServerSession], None]) -> Rehearsed:
        subject = Subject(
            task=TASK,
            round_number=1,
            layout=self.inputs.layout,
            capacity=self.inputs.capacity,
            tables=self.inputs.tables,
            model_digest=_MODEL,
        )
        everybody = client_ids(self.clients, self.first)
        held = world.open(subject, frozenset(everybody))
        opened(held)
        session = Measured(held, between=lambda: world.bytes_between)
        description = self.entry.describe(session.session)
        started, worked = perf_counter(), process_time()
        released = run(session, self._join(world, subject, everybody), self.dropouts, progress=progress)
        seconds, processor_seconds = perf_counter() - started, process_time() - worked
        uploading = next(figures for figures in session.figures if figures.takes_update)
        contributors = frozenset(uploading.answered).difference(released.left_out)
        deviations = deviations_in(session.session)
        is_exact = released.counted == contributors and self.inputs.is_sum_of(
            released.aggregate, sorted(contributors), deviations
        )
        return Rehearsed(released, session, contributors, description, is_exact, seconds, processor_seconds, deviations)

    def _join(self, world: Simulation, subject: Subject, everybody: Sequence[ClientId]) -> Iterator[ClientSession]:
        for client in everybody:
            if client in self.cheaters:
                if self.entry.simulate_cheater is None:
                    raise InvalidParameters(f"{self.entry.name} has no misbehavior that it would detect")
                member = self.entry.simulate_cheater(world, client)
            else:
                member = world.member(client)
            yield member.join(subject, LazyUpdate(partial(self._update_of, client)))

    def _update_of(self, client: ClientId) -> Update:
        return Update(self.inputs.payload_of(client.value), _MODEL)


def client_ids(clients: int, first: int = 1) -> list[ClientId]:
    """Return the ids of a cohort."""
    return [ClientId(number) for number in range(first, first + clients)]


def spread_dropouts(
    clients: int, dropped: int, stages: Sequence[Stage], first: int = 1
) -> dict[str, frozenset[ClientId]]:
    """Distribute dropouts over the stages in turn, with clients from the whole cohort.

    The most expensive stage comes first: before the upload. Then the last stage, and the others in order.
    """
    if not 0 <= dropped < clients:
        raise InvalidParameters(f"of {clients} clients, 0 to {clients - 1} can drop out; got {dropped}")
    uploading = [stage for stage in stages if stage.takes_update]
    places = [*uploading, *(stage for stage in reversed(stages) if not stage.takes_update)]
    dealt: dict[str, set[ClientId]] = {stage.name: set() for stage in stages}
    for turn in range(dropped):
        dealt[places[turn % len(places)].name].add(ClientId(first + turn * clients // dropped))
    return {name: frozenset(gone) for name, gone in dealt.items()}


@contextmanager
def _no_collections() -> Generator[None]:
    """Disable cycle collection: each run would traverse the objects of thousands of clients."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
