"""Who is invited to a round, who of them is lost where, and how many a round is planned to lose.

All of it follows from the seed and the number of the round, so that who was in which round is known without a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT
from secagg.session.registry import find
from secagg.session.roles import Stage

from .configuration import Configuration
from .sections import DropoutSettings
from .seeds import Stream, generator, seed_of

Lost = Mapping[str, frozenset[int]]
"""By the name of a stage, who is gone before answering in it."""
_DEVIATIONS: Final = 2
"""Standard deviations by which a session is planned for more dropouts than are expected; a round that loses more still
releases nothing."""


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run."""

    seed: int
    size: int
    """How many clients a round invites."""
    dropouts: DropoutSettings
    stages: tuple[Stage, ...]
    """All of the protocol."""

    @classmethod
    def of(cls, run: Configuration) -> Cohorts:
        """Return the cohorts that a configuration describes.

        Raises:
            InvalidParameters: clients are lost in a stage that the protocol does not have.
        """
        cohorts = cls(run.seed, run.clients_per_round, run.dropouts, find(run.secagg.protocol).stages)
        names = [stage.name for stage in cohorts.stages]
        if unknown := [name for name in run.dropouts.stages if name not in names]:
            raise InvalidParameters(
                f"dropouts.stages has {unknown[0]!r}; the stages of {run.secagg.protocol} are {', '.join(names)}"
            )
        return cohorts

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Return the stages in which clients are lost."""
        ends = (self.stages[-1].name, next(stage.name for stage in self.stages if stage.takes_update))
        return self.dropouts.stages or tuple(sorted(set(ends)))

    @cached_property
    def before_upload(self) -> frozenset[str]:
        """Return the stages of which a client has to answer each to be in the sum."""
        names = [stage.name for stage in self.stages]
        last = next(place for place, stage in enumerate(self.stages) if stage.takes_update)
        return frozenset(names[: last + 1])

    def invited(self, available: int, number: int) -> tuple[int, ...]:
        """Return who is invited to a round, of so many clients, and one more, who calibrates it if that is wanted."""
        count = min(self.size + 1, available)
        drawn = generator(seed_of(self.seed, Stream.SAMPLING, number)).choice(available, size=count, replace=False)
        return tuple(int(client) for client in drawn)

    def lost(self, clients: Sequence[int], number: int) -> Lost:
        """Return who of the clients of a round is lost, and where."""
        drawn = generator(seed_of(self.seed, Stream.DROPPING, number))
        return sampled_losses(clients, self.dropouts.rate, self.places, drawn)

    def uploaders(self, clients: Sequence[int], lost: Lost) -> tuple[int, ...]:
        """Return those who stay for long enough to upload."""
        gone = frozenset[int]().union(*(lost.get(stage, frozenset()) for stage in self.before_upload))
        return tuple(client for client in clients if client not in gone)

    @property
    def planned_losses(self) -> tuple[int, int]:
        """How many clients a round is planned to lose in the first of several stages, and after it."""
        first = self.stages[0]
        early = 0 if first.takes_update else sum(place == first.name for place in self.places)
        rates = [self.dropouts.rate * count / len(self.places) for count in (early, len(self.places) - early)]
        late, dropped = (
            min(self.size, math.ceil(self.size * rate + _DEVIATIONS * math.sqrt(self.size * rate * (1 - rate))))
            for rate in rates
        )
        return late, dropped

    @property
    def minimum(self) -> int:
        """How many clients a released sum has at least."""
        return max(LEAST_COHORT, self.size - sum(self.planned_losses))


def sampled_losses(
    clients: Sequence[int], rate: float, stages: Sequence[str], generator: np.random.Generator
) -> dict[str, frozenset[int]]:
    """Draw who is lost where: each client with the same probability, each stage equally likely."""
    lost = {stage: set[int]() for stage in stages}
    for client, draw in zip(clients, generator.random(len(clients)), strict=True):
        if draw < rate:
            lost[stages[int(generator.integers(len(stages)))]].add(client)
    return {stage: frozenset(some) for stage, some in lost.items() if some}
