"""Time of sessions of thousands and millions of clients, extrapolated from four small ones on the machine at hand.

A protocol counts its work in steps and words. The small sessions give each party's seconds for either, and the
server's seconds for a session of any size. Seconds are the processor's, so that a busy machine gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Final

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.parameters import Suite
from secagg.scale.tree import MOST_IN_A_GROUP as MOST_CLIENTS
from secagg.session.costs import Costs
from secagg.session.registry import ProtocolEntry

from .seconds import Rates, Sample, costs_of, run_session

_FEW, _MANY, _LONG_CLIENTS = 60, 200, 20
_SHORT, _LONG = 64, 1 << 20
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
    sizes = (_WARM_CLIENTS, _SHORT), (_FEW, _SHORT), (_MANY, _SHORT), (_LONG_CLIENTS, _SHORT), (_LONG_CLIENTS, _LONG)
    _, few, many, short, long = (
        run_session(entry, layout_for(clients, values), clients, suite, shares_checks=shares_checks)
        for clients, values in sizes
    )
    return fit(few, many, short, long)


def layout_for(clients: int, values: int, bits: int = _BITS) -> Layout:
    """Return the layout of so many values of so many bits, in a ring that holds the sum."""
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
