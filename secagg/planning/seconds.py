"""Time of a session on the machine at hand: small sessions are run, and their seconds scaled by counted work.

For each protocol and kind of layout two sessions run, a short one and a longer one. The difference gives the seconds
of a word, and the rest of the short one those of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from types import MappingProxyType
from typing import Final

import numpy as np

from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import CodewordTable, Tables
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.session.costs import ONE_IN, Costs, Work
from secagg.session.registry import ProtocolEntry, find
from secagg.session.settings import planned_settings
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
