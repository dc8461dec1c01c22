"""Who is invited to a round, who of them is lost where, and how many a round is planned to lose.

All of it follows from the seed and the number of the round, so that who was in which round is known without a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from secagg.parameters import LEAST_COHORT

from .configuration import Configuration
from .sections import Stage
from .seeds import Stream, generator, seed_of

LOST_BEFORE_UPLOAD: Final = frozenset(
    {Stage.BEFORE_KEYS, Stage.BEFORE_SHARES, Stage.BEFORE_UPLOAD, Stage.BETWEEN_HALVES}
)
_DEVIATIONS: Final = 2
"""Standard deviations by which a session is planned for more dropouts than are expected; a round that loses more still
releases nothing."""


def invited(configuration: Configuration, available: int, number: int) -> tuple[int, ...]:
    """Return who is invited to a round, of so many clients, and one more, who calibrates it where that is asked for."""
    count = min(configuration.clients_per_round + 1, available)
    drawn = generator(seed_of(configuration.seed, Stream.SAMPLING, number)).choice(available, size=count, replace=False)
    return tuple(int(client) for client in drawn)


def lost(configuration: Configuration, clients: Sequence[int], number: int) -> dict[Stage, frozenset[int]]:
    """Return who of the clients of a round is lost, and where."""
    return sampled_losses(
        clients,
        configuration.dropouts.rate,
        configuration.dropouts.stages,
        generator(seed_of(configuration.seed, Stream.DROPPING, number)),
    )


def uploaders(clients: Sequence[int], lost: Mapping[Stage, frozenset[int]]) -> tuple[int, ...]:
    """Return those who stay for long enough to upload."""
    gone = frozenset[int]().union(*(lost.get(stage, frozenset()) for stage in LOST_BEFORE_UPLOAD))
    return tuple(client for client in clients if client not in gone)


def planned_losses(configuration: Configuration) -> tuple[int, int]:
    """Return how many clients a round is planned to lose before they advertise keys, and after."""
    clients, stages = configuration.clients_per_round, configuration.dropouts.stages
    early = sum(stage is Stage.BEFORE_KEYS for stage in stages)
    rates = [configuration.dropouts.rate * count / max(1, len(stages)) for count in (early, len(stages) - early)]
    late, dropped = (
        min(clients, math.ceil(clients * rate + _DEVIATIONS * math.sqrt(clients * rate * (1 - rate)))) for rate in rates
    )
    return late, dropped


def minimum_cohort(configuration: Configuration) -> int:
    """Return how many clients a released sum has at least."""
    return max(LEAST_COHORT, configuration.clients_per_round - sum(planned_losses(configuration)))


def sampled_losses(
    clients: Sequence[int], rate: float, stages: Sequence[Stage], generator: np.random.Generator
) -> dict[Stage, frozenset[int]]:
    """Draw who is lost where: each client with the same probability, each stage equally likely."""
    lost = {stage: set[int]() for stage in stages}
    for client, draw in zip(clients, generator.random(len(clients)), strict=True):
        if draw < rate:
            lost[stages[int(generator.integers(len(stages)))]].add(client)
    return {stage: frozenset(some) for stage, some in lost.items() if some}
