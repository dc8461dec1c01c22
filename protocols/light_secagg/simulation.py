"""Simulates LightSecAgg in one process; counts its costs, and registers the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.session.client_policy import ClientPolicy, usual_corrupted
from secagg.session.ledger import SpentUpdates
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.run import ONE_IN, Costs, Work

from .configuration import MAXIMUM_CLIENTS, NONCE_BYTES
from .field import ELEMENT_BYTES
from .member import ENFORCED
from .server import STAGES, Server
from .session import LightSecAggHelpers, LightSecAggMember, LightSecAggOptions, open_session


def describe(session: Server) -> tuple[str, ...]:
    """Return the plan, one line per fact."""
    configuration = session.configuration
    return (
        (
            f"masks of {configuration.length:,} elements modulo 2^31 - 1 in pieces of {configuration.piece_length:,}; "
            f"semi_honest mode, {configuration.suite.value}"
        ),
        (
            f"any {configuration.target} of {configuration.population} clients recover the sum of the masks, and "
            f"{configuration.privacy} of them colluding with the server learn only the sum"
        ),
    )


class LightSecAggSimulation(Confined):
    """A server and its clients in one process; see ``Simulation``."""

    def __init__(self, settings: LightSecAggOptions, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        del clock, threads  # Nothing here expires or runs in parallel.
        self._settings, self._coins = settings, coins
        self._members = dict[ClientId, LightSecAggMember]()

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        return open_session(subject, self._settings, invited, LightSecAggHelpers(coins=self._coins))

    def member(self, client: ClientId) -> LightSecAggMember:
        if client not in self._members:
            settings = self._settings
            policy = ClientPolicy(
                modes=frozenset({settings.mode}),
                suites=frozenset({settings.suite}),
                minimum_cohort=settings.least_cohort,
                minimum_modulus_bits=1,
                maximum_length=1 << 40,
                maximum_population=settings.population or MAXIMUM_CLIENTS,
                assumed_corrupted=settings.corrupted,
            )
            # A simulation may be repeated with the same updates; its round numbers still increase.
            charge = partial(SpentUpdates().charge, is_repeat_allowed=True)
            self._members[client] = LightSecAggMember(client, policy=policy, coins=self._coins, charge=charge)
        return self._members[client]

    @property
    def bytes_between(self) -> int:
        return 0

    def close(self) -> None:
        for member in self._members.values():
            member.forget()


# --- Costs ------------------------------------------------------------------------------------------------------------

_HEADER, _COUNT, _ENTRY = 7 + 32, 4, 8 + 4
"""Bytes of a message: its kind and T0, a count or a length, and of an entry the client with a length."""
_PASSES: Final = 8
"""Passes over an element in addition to its code: draw, add, reduce, write, send and read."""


def costs(layout: Layout, clients: int, suite: Suite, dropped: int | None = None) -> Iterator[Costs]:
    """Count one session; by default, one client in twenty is corrupted, and as many drop out."""
    rare = clients // ONE_IN
    corrupted, leaving = (rare, rare) if dropped is None else (usual_corrupted(clients), dropped)
    settings = LightSecAggOptions(suite=suite, corrupted=corrupted, dropped=leaving)
    subject = Subject(task=b"a plan", round_number=1, layout=layout, capacity=clients)
    configuration = settings.plan(subject, clients, bytes(NONCE_BYTES))
    key, overhead = sealing_sizes(suite)
    piece, masked = ELEMENT_BYTES * configuration.piece_length, ELEMENT_BYTES * configuration.length
    pieces = _entries(clients, piece + overhead)
    coded = configuration.target * configuration.piece_length
    yield Costs(
        plan=f"a curious server, {suite.value}, {configuration.privacy} clients that collude with it; "
        f"{configuration.target} must stay to the end",
        payload_bytes=layout.payload_bytes,
        up_bytes=3 * (_HEADER + _COUNT) + key + pieces + masked + piece,
        down_bytes=len(configuration.encode()) + _entries(clients, key) + pieces + _entries(clients, 0),
        client=Work(
            word_operations=clients * (coded + configuration.piece_length) + _PASSES * configuration.length,
            steps=clients,
        ),
        server=Work(
            word_operations=(clients + configuration.target) * configuration.length + clients * pieces // ELEMENT_BYTES,
            steps=clients * clients,
        ),
    )


def _entries(count: int, length: int) -> int:
    return _HEADER + _COUNT + count * (_ENTRY + length)


ENTRY: Final = ProtocolEntry(
    name="lightsecagg",
    summary="LightSecAgg: one honest-but-curious server, four exchanges; for comparison",
    settings=LightSecAggOptions,
    segments=frozenset({RingSegment}),
    stages=tuple(STAGES.values()),
    takes=LightSecAggOptions.takes,
    describe=describe,
    open_session=open_session,
    keeps=ENFORCED,
    helpers=LightSecAggHelpers,
    simulate=LightSecAggSimulation,
    costs=costs,
    is_suspended=False,
    trust="a server that follows the protocol, with at most the planned number of corrupted clients; a server "
    "that deviates learns inputs",
)
