"""Time of a session on the machine at hand: small sessions are run, and their seconds scaled by counted work.

For each protocol and kind of layout two sessions run, a short one and a longer one. The difference gives the seconds
of a word, and the rest of the short one those of a step.

Sessions of thousands and millions of clients are extrapolated from four small ones, which give the server's seconds for
a session of any size too. Seconds are the processor's, so that a busy machine gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, inf
from types import MappingProxyType
from typing import Final

import numpy as np

from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import CodewordTable, Tables
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.scale.tree import MOST_IN_A_GROUP as MOST_CLIENTS
from secagg.session.registry import ProtocolEntry, find, planned_settings
from secagg.session.run import ONE_IN, Costs, Work
from secagg.simulation.rehearsal import Rehearsal

from .costs import Option

_CLIENTS: Final = 5
_RUNS: Final = 2
_SHORT, _LONG = 16, 1 << 17
"""Values of a session."""
_RING_BITS: Final = 24
_CODEWORDS: Final = 16
_COUNTERS: Final = 4 * _CODEWORDS
"""Values for which a block stands, so that sessions with indices take as long as others."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The seconds of one party's step and of one of its words."""

    step: float
    word: float

    def of(self, work: Work) -> float:
        return self.step * work.steps + self.word * work.words

    @classmethod
    def between(cls, short: tuple[Work, float], long: tuple[Work, float]) -> Rates:
        word = max(0.0, long[1] - short[1]) / max(1, long[0].words - short[0].words)
        return cls(max(0.0, short[1] - word * short[0].words) / short[0].steps, word)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Processor time of one session: all clients together, and the server with its helpers."""

    costs: Costs
    clients: int
    client_seconds: float
    server_seconds: float

    @property
    def seconds(self) -> float:
        return self.client_seconds + self.server_seconds


@dataclass(frozen=True, slots=True)
class Seconds:
    """An estimate for one option."""

    client: float
    server: float
    """The server's for all clients, with what its helpers do, one after another."""
    round: float
    """Time from the first message to the sum: clients work in parallel, and wait for the network and the server."""


@dataclass(frozen=True, slots=True)
class Network:
    """A client's connection."""

    megabits: float = 20.0
    """Per second, each way."""
    latency: float = 0.1
    """Seconds there and back, of each exchange."""

    def __post_init__(self) -> None:
        if not 0 < self.megabits < inf or not 0 <= self.latency < inf:
            raise InvalidParameters("--megabits is above 0 and --latency at least 0; correct them")


def seconds_of(option: Option, suite: Suite, network: Network) -> Seconds:
    """Return the estimate for an option."""
    has_indices = any(isinstance(segment, IndexSegment) for segment in option.layout.segments)
    client_rates, server_rates = rates(option.protocol, suite, has_indices, option.costs.is_checked)
    client, server = client_rates.of(option.costs.client), server_rates.of(option.costs.server)
    sending = 8e-6 * (option.costs.up_bytes + option.down_bytes) / network.megabits
    waiting = len(option.entry.stages) * network.latency
    return Seconds(client, server, waiting + sending + client + server)


@cache
def rates(protocol: str, suite: Suite, has_indices: bool, is_checked: bool) -> tuple[Rates, Rates]:  # noqa: FBT001
    """Return the rates of a client and of the server; sessions run when they are asked for first."""
    entry, samples = find(protocol), list[Sample]()
    for length in (_SHORT, _LONG):
        layout = _layout(length, has_indices=has_indices)
        # The first session of all imports modules and fills caches, and any may be disturbed.
        runs = [run_session(entry, layout, _CLIENTS, suite, is_checked=is_checked) for _ in range(_RUNS)]
        client, server = min(run.client_seconds for run in runs), min(run.server_seconds for run in runs)
        samples.append(replace(runs[0], client_seconds=client / _CLIENTS, server_seconds=server))
    short, long = samples
    return (
        Rates.between((short.costs.client, short.client_seconds), (long.costs.client, long.client_seconds)),
        Rates.between((short.costs.server, short.server_seconds), (long.costs.server, long.server_seconds)),
    )


def costs_of(entry: ProtocolEntry, layout: Layout, clients: int, suite: Suite, *, is_checked: bool = True) -> Costs:
    """Return what a protocol that has costs says of its form with the shortest upload."""
    forms = () if entry.costs is None else entry.costs(layout, clients, suite)
    return min((form for form in forms if form.is_checked == is_checked), key=lambda form: form.up_bytes)


def run_session(  # noqa: PLR0913 -- what a session is of
    entry: ProtocolEntry,
    layout: Layout,
    clients: int,
    suite: Suite = Suite.CLASSIC,
    *,
    is_checked: bool = True,
    shares_checks: bool = False,
) -> Sample:
    """Run a session in this process; one client in twenty drops out unheard where that costs most."""
    rare = clients // ONE_IN
    facts = {
        "suite": suite,
        "population": clients,
        "corrupted": rare,
        "dropped": rare,
        "minimum_cohort": max(LEAST_COHORT, clients - rare),
        "maximum_cohort": clients,
        "is_checked": is_checked,
    }
    uploading = next(stage.name for stage in entry.stages if stage.takes_update)
    rehearsal = Rehearsal(
        entry=entry,
        settings=planned_settings(entry, facts),
        inputs=ZeroInputs(layout),
        clients=clients,
        dropouts={uploading: frozenset(ClientId(1 + place * ONE_IN) for place in range(rare))},
        shares_checks=shares_checks,
    )
    done = rehearsal.run()
    figures = done.session.figures
    at_clients, at_server = (sum(getattr(each, f"{who}_seconds") for each in figures) for who in ("client", "server"))
    # Each is interrupted alike on a busy machine, so that of the processor's time each has its share.
    share = done.processor_seconds / (at_clients + at_server)
    return Sample(
        costs=costs_of(entry, layout, clients, suite, is_checked=is_checked),
        clients=clients,
        client_seconds=share * at_clients,
        server_seconds=share * at_server,
    )


def _layout(values: int, *, has_indices: bool) -> Layout:
    if has_indices:
        return Layout((IndexSegment(_CODEWORDS, -(-values // _COUNTERS)),))
    return Layout((RingSegment(_RING_BITS, values),))


class ZeroInputs:
    """Everybody's values are zero: no protocol may take less time for them."""

    capacity = 1 << 20
    bounds: Mapping[str, float | None] = MappingProxyType({})

    def __init__(self, layout: Layout) -> None:
        self.layout, self.values = layout, sum(segment.length for segment in layout.segments)
        indexed = [segment for segment in layout.segments if isinstance(segment, IndexSegment)]
        self.tables: Tables = tuple(
            (CodewordTable(segment.blocks, np.eye(segment.codewords, dtype=np.int64)),) for segment in indexed
        )
        self._payload = Payload(layout, tuple(segment.ring.zeros(segment.length) for segment in layout.segments))

    def payload_of(self, number: int) -> Payload:
        del number
        return self._payload

    def is_sum_of(
        self, aggregate: Aggregate, contributors: Iterable[ClientId], deviations: Sequence[float] = ()
    ) -> bool:
        del aggregate, contributors, deviations
        return True


# --- Thousands and millions of clients --------------------------------------------------------------------------------

_FEW, _MANY, _LONG_CLIENTS = 60, 200, 20
_FEW_VALUES, _MANY_VALUES = 64, 1 << 20
_BITS: Final = 16
_WARM_CLIENTS: Final = 5
_GIGABIT_BYTES: Final = 125_000_000
SPREAD: Final = "one-message"
"""The protocol whose additions ``secagg.scale`` divides among workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Seconds of a protocol on the machine at hand."""

    session: float
    """Seconds of the server for a session of any size."""
    client: Rates
    server: Rates

    def predict(self, costs: Costs, clients: int) -> Sample:
        """Return what a session takes; clients that drop out are as many as the constants were measured with."""
        return Sample(
            costs=costs,
            clients=clients,
            client_seconds=clients * self.client.of(costs.client),
            server_seconds=self.session + self.server.of(costs.server),
        )


def fit(few: Sample, many: Sample, short: Sample, long: Sample) -> Constants:
    """Return the constants that give four sessions: few and many clients, and two lengths of as many clients."""
    by_length = [
        ((each.costs.client, each.client_seconds / each.clients), (each.costs.server, each.server_seconds))
        for each in (short, long)
    ]
    client_word, server_word = (Rates.between(one, other).word for one, other in zip(*by_length, strict=True))
    left = [each.server_seconds - server_word * each.costs.server.words for each in (few, many)]
    steps = [each.costs.server.steps for each in (few, many)]
    server_step = max(0.0, left[1] - left[0]) / max(1, steps[1] - steps[0])
    client_left = many.client_seconds / many.clients - client_word * many.costs.client.words
    return Constants(
        session=max(0.0, left[0] - server_step * steps[0]),
        client=Rates(max(0.0, client_left) / many.costs.client.steps, client_word),
        server=Rates(server_step, server_word),
    )


def calibrate(entry: ProtocolEntry, suite: Suite = Suite.CLASSIC, *, shares_checks: bool = False) -> Constants:
    """Run small sessions and return the machine's constants; some ten seconds of one core for pairwise masks."""
    # The first session imports modules and fills caches.
    sizes = (
        (_WARM_CLIENTS, _FEW_VALUES),
        (_FEW, _FEW_VALUES),
        (_MANY, _FEW_VALUES),
        (_LONG_CLIENTS, _FEW_VALUES),
        (_LONG_CLIENTS, _MANY_VALUES),
    )
    _, few, many, short, long = (
        run_session(entry, layout_for(clients, values), clients, suite, shares_checks=shares_checks)
        for clients, values in sizes
    )
    return fit(few, many, short, long)


def layout_for(clients: int, values: int, bits: int = _BITS) -> Layout:
    """Return the layout of ``values`` values of ``bits`` bits, in a ring that holds their sum."""
    return Layout((RingSegment(bits + clients.bit_length(), values),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """The machines that take uploads in and add them up."""

    workers: int = 64
    gigabits: float = 10.0
    """Per second, into each worker."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 1 << 20 or not 0 < self.gigabits < inf:
            raise InvalidParameters("--workers is in 1..1,048,576 and --gigabits above 0; correct them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of an estimate, and the condition on it."""

    name: str
    value: float
    unit: str
    """Unit: ``s``, ``B``, or the counted things."""
    assumes: str


def estimate_scale(  # noqa: PLR0913 -- all but four have defaults
    entry: ProtocolEntry,
    constants: Constants,
    clients: int,
    values: int,
    *,
    bits: int = _BITS,
    suite: Suite = Suite.CLASSIC,
    farm: Farm | None = None,
) -> Iterator[Line]:
    """Yield what clients in sessions of at most ``MOST_CLIENTS`` take, line by line.

    Raises:
        InvalidParameters: no such session is safe or fits; the message says what to change.
    """
    farm = farm or Farm()
    sessions = ceil(clients / MOST_CLIENTS)
    each = ceil(clients / sessions)
    costs = costs_of(entry, layout_for(each, values, bits), each, suite)
    one = constants.predict(costs, each)
    bytes_in = clients * costs.up_bytes
    # Uploads come to the server of their session. Only the additions of one message are divided further.
    servers, adding = min(farm.workers, sessions), sessions * one.server_seconds
    taking = bytes_in / (servers * farm.gigabits * _GIGABIT_BYTES)
    spread = sessions * constants.server.word * costs.server.words if entry.name == SPREAD else 0.0
    divided = (adding - spread) / servers + spread / farm.workers
    yield Line(
        name="sessions",
        value=sessions,
        unit="sessions",
        assumes=f"at most {MOST_CLIENTS:,} clients in each, here {each:,}; a ring for the sum of one session; every "
        "sum is released, then they are added as integers",
    )
    yield Line(name="a client sends", value=costs.up_bytes, unit="B", assumes=f"lengths of messages; {costs.plan}")
    yield Line(
        name="a client computes",
        value=one.client_seconds / each,
        unit="s",
        assumes="one core like this one, all messages together; a device that is ten times slower takes ten times that",
    )
    yield Line(
        name="all clients send",
        value=bytes_in,
        unit="B",
        assumes="nobody sends twice; one in twenty drops out, and is counted all the same",
    )
    yield Line(
        name="taking it in",
        value=taking,
        unit="s",
        assumes=f"{servers} servers of sessions at {farm.gigabits:g} Gb/s each, evenly loaded, at the rate of the line",
    )
    yield Line(
        name="server, cores busy",
        value=adding,
        unit="s",
        assumes="one core like this one; signatures, adding, removing masks or opening; words from the cache of one "
        "core, so that cores of one machine do not wait for its memory",
    )
    yield Line(
        name="server, a core for each worker",
        value=divided,
        unit="s",
        assumes=(
            f"additions on {farm.workers} workers (--engine), the rest"
            if entry.name == SPREAD
            else f"{entry.name} adds at the server of each session (--group): nothing is divided further; all"
        )
        + f" on {servers} servers; none fails, waits or is slower than this core",
    )
    yield Line(
        name="a round at the server",
        value=max(taking, divided),
        unit="s",
        assumes="uploads are added while others come in; clients, their network and stragglers are not in it",
    )
