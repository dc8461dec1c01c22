"""Estimates how long a session takes on this machine, by measuring small sessions and scaling them by counted work.

For each protocol and kind of layout, a short and a longer session are run. Their difference gives the seconds per word;
the rest of the short session's time gives the seconds per step.

Four small sessions also give the server's fixed time, to extrapolate to thousands or millions of clients. All times are
processor time, so a busy machine gives the same result.
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
from secagg.session.client_policy import USUAL_BITS
from secagg.session.registry import ProtocolEntry, find, planned_settings
from secagg.session.run import ONE_IN, Costs, Work
from secagg.simulation.rehearsal import Rehearsal

from .costs import Option

_CLIENTS: Final = 5
_RUNS: Final = 2
_SHORT, _LONG = 16, 1 << 17
"""Number of values in a session."""
_RING_BITS: Final = 24
_CODEWORDS: Final = 16
_COUNTERS: Final = 4 * _CODEWORDS
"""Number of values that count as one block, so that sessions with indices take as long as others."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds for one step and for one word of one party."""

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
    """Estimate for one option."""

    client: float
    server: float
    """Seconds of the server for all clients, plus those of its helpers, one after another."""
    round: float
    """Time from the first message to the sum; clients compute in parallel, and wait for the network and the server."""


@dataclass(frozen=True, slots=True)
class Network:
    """Connection of a client."""

    megabits: float = 20.0
    """Megabits per second in each direction."""
    latency: float = 0.1
    """Round-trip time in seconds; each stage takes one."""

    def __post_init__(self) -> None:
        if not 0 < self.megabits < inf or not 0 <= self.latency < inf:
            raise InvalidParameters("--megabits must be above 0, and --latency at least 0")


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
    """Return the rates of a client and of the server; the first call runs sessions to measure them."""
    entry, samples = find(protocol), list[Sample]()
    for length in (_SHORT, _LONG):
        layout = _layout(length, has_indices=has_indices)
        # The first session imports modules and fills caches, and any run may be disturbed, so take the minimum.
        runs = [run_session(entry, layout, _CLIENTS, suite, is_checked=is_checked) for _ in range(_RUNS)]
        client, server = min(run.client_seconds for run in runs), min(run.server_seconds for run in runs)
        samples.append(replace(runs[0], client_seconds=client / _CLIENTS, server_seconds=server))
    short, long = samples
    return (
        Rates.between((short.costs.client, short.client_seconds), (long.costs.client, long.client_seconds)),
        Rates.between((short.costs.server, short.server_seconds), (long.costs.server, long.server_seconds)),
    )


def costs_of(entry: ProtocolEntry, layout: Layout, clients: int, suite: Suite, *, is_checked: bool = True) -> Costs:
    """Return the costs of a protocol's variant with the shortest upload; the protocol must declare costs."""
    forms = () if entry.costs is None else entry.costs(layout, clients, suite)
    return min((form for form in forms if form.is_checked == is_checked), key=lambda form: form.up_bytes)


def run_session(  # noqa: PLR0913 -- parameters of a session
    entry: ProtocolEntry,
    layout: Layout,
    clients: int,
    suite: Suite = Suite.CLASSIC,
    *,
    is_checked: bool = True,
    shares_checks: bool = False,
) -> Sample:
    """Run a session in this process; one client in twenty drops out, at the stage where that costs most."""
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
    # Clients and server are interrupted alike on a busy machine, so divide the processor time in proportion.
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
    """Inputs that are all zero; no protocol may take less time for them."""

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
_WARM_CLIENTS: Final = 5
_GIGABIT_BYTES: Final = 125_000_000
SPREAD: Final = "one-message"
"""The protocol whose additions ``secagg.scale`` divides among workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Measured seconds of a protocol on this machine."""

    session: float
    """Seconds of the server for a session of any size."""
    client: Rates
    server: Rates

    def predict(self, costs: Costs, clients: int) -> Sample:
        """Return the predicted times of a session, with the same share of dropouts as in the measured sessions."""
        return Sample(
            costs=costs,
            clients=clients,
            client_seconds=clients * self.client.of(costs.client),
            server_seconds=self.session + self.server.of(costs.server),
        )


def fit(few: Sample, many: Sample, short: Sample, long: Sample) -> Constants:
    """Compute the constants from four sessions: few and many clients, and short and long updates."""
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
    """Run small sessions and return the machine's constants; takes about ten seconds of one core for pairwise masks."""
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


def layout_for(clients: int, values: int, bits: int = USUAL_BITS) -> Layout:
    """Return the layout of ``values`` values of ``bits`` bits, in a ring that holds their sum."""
    return Layout((RingSegment(bits + clients.bit_length(), values),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Farm:
    """Machines that receive and add up uploads."""

    workers: int = 64
    gigabits: float = 10.0
    """Gigabits per second into each worker."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 1 << 20 or not 0 < self.gigabits < inf:
            raise InvalidParameters("--workers must be between 1 and 1,048,576, and --gigabits above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of an estimate, with its assumptions."""

    name: str
    value: float
    unit: str
    """Unit: ``s``, ``B``, or the name of what is counted."""
    assumes: str


def estimate_scale(  # noqa: PLR0913 -- all but four have defaults
    entry: ProtocolEntry,
    constants: Constants,
    clients: int,
    values: int,
    *,
    bits: int = USUAL_BITS,
    suite: Suite = Suite.CLASSIC,
    farm: Farm | None = None,
) -> Iterator[Line]:
    """Yield the costs for clients that are divided into sessions of at most ``MOST_CLIENTS``.

    Raises:
        InvalidParameters: no such session is safe or fits; the message says what to change.
    """
    farm = farm or Farm()
    sessions = ceil(clients / MOST_CLIENTS)
    each = ceil(clients / sessions)
    costs = costs_of(entry, layout_for(each, values, bits), each, suite)
    one = constants.predict(costs, each)
    bytes_in = clients * costs.up_bytes
    # Each session's server receives its uploads. Only the additions of one message are divided further.
    servers, adding = min(farm.workers, sessions), sessions * one.server_seconds
    taking = bytes_in / (servers * farm.gigabits * _GIGABIT_BYTES)
    spread = sessions * constants.server.word * costs.server.words if entry.name == SPREAD else 0.0
    divided = (adding - spread) / servers + spread / farm.workers
    yield Line(
        name="sessions",
        value=sessions,
        unit="sessions",
        assumes=f"at most {MOST_CLIENTS:,} clients in each session, here {each:,}; a ring for the sum of one session; "
        "every session's sum is released, then these are added as integers",
    )
    yield Line(name="a client sends", value=costs.up_bytes, unit="B", assumes=f"message lengths; {costs.plan}")
    yield Line(
        name="a client computes",
        value=one.client_seconds / each,
        unit="s",
        assumes="one core like this one, all messages together; a device ten times slower takes ten times longer",
    )
    yield Line(
        name="all clients send",
        value=bytes_in,
        unit="B",
        assumes="no client sends twice; one in twenty drops out, but its bytes count",
    )
    yield Line(
        name="receiving uploads",
        value=taking,
        unit="s",
        assumes=f"{servers} session servers at {farm.gigabits:g} Gb/s each, evenly loaded, at line rate",
    )
    yield Line(
        name="server, total core time",
        value=adding,
        unit="s",
        assumes="one core like this one; signatures, additions, removing masks or opening; words fit in one core's "
        "cache, so cores do not compete for memory",
    )
    yield Line(
        name="server, one core per worker",
        value=divided,
        unit="s",
        assumes=(
            f"additions on {farm.workers} workers (--engine), the rest"
            if entry.name == SPREAD
            else f"{entry.name} adds at each session's server (--group), and nothing is divided further; all"
        )
        + f" on {servers} servers; no server fails, waits or is slower than this core",
    )
    yield Line(
        name="one round at the server",
        value=max(taking, divided),
        unit="s",
        assumes="uploads are added while others arrive; clients, their network and stragglers are not included",
    )
