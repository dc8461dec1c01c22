"""Parts of a run that a platform can replace, and the run's random streams and cohorts."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT
from secagg.session.registry import find
from secagg.session.roles import Stage
from secagg.training.configuration import Configuration, DropoutSettings, LocalTraining

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "secagg.training needs torch; install it with: pip install '.[train]' in a checkout", name=missing.name
    ) from None


Seed = tuple[int, ...]
"""(run's seed, stream, round, client)."""

_WORD_BITS: Final = 32
_PARTS: Final = 4


class Stream(IntEnum):
    """Purpose of randomness; two purposes never share a stream. Gaps are retired purposes."""

    MODEL = 0
    """Initial parameters."""
    PARTITION = 1
    """The examples of each client."""
    SAMPLING = 3
    """The clients of a round."""
    TRAINING = 4
    """The order of a client's batches, and dropout."""
    OPERATORS = 5
    """Common masks, codebooks and rotations."""
    ENCODING = 6
    """A client's rounding coins."""
    DROPPING = 7
    """Which clients drop out, and when."""
    VALIDATION = 11
    """Test examples reserved for choosing the model."""
    PROBE = 12
    """Public noise for clients' losses, and the examples that each uses."""


def seed_of(run: int, stream: Stream, round_number: int = 0, client: int = 0) -> Seed:
    """Return the seed of one purpose."""
    return checked((run, int(stream), round_number, client))


def checked(seed: Seed) -> Seed:
    """Return a seed in its only valid form."""
    # SeedSequence pads with zeros and splits large numbers, so that (1,) and (1, 0), or (2**32,) and (0, 1), are equal.
    if len(seed) != _PARTS or not all(0 <= part < 1 << _WORD_BITS for part in seed):
        raise InvalidParameters(
            f"the seed {seed} must have {_PARTS} parts (run, stream, round, client), each from 0 to 2^{_WORD_BITS} - 1"
        )
    return seed


def generator(seed: Seed) -> np.random.Generator:
    """Start the generator of a seed."""
    return np.random.default_rng(np.random.SeedSequence(checked(seed)))


def torch_seed(seed: Seed) -> int:
    """Return the number that seeds one of torch's generators."""
    return int(np.random.SeedSequence(checked(seed)).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def torch_seeded(seed: Seed) -> Generator[None]:
    """Seed torch's CPU generator, and restore its state afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(torch_seed(seed))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_bytes(seed: Seed) -> bytes:
    """Return the 32 bytes of a seed, for an update plan or repeatable coins."""
    return np.random.SeedSequence(checked(seed)).generate_state(8, np.uint32).astype("<u4").tobytes()


Done = TypeVar("Done")
Tensors = Mapping[str, torch.Tensor]
"""Parameters by name, on one device."""
Update = dict[str, npt.NDArray[np.float32]]
"""A client's change by parameter name: after minus before."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets for the model; the first axis is examples."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return int(self.targets.shape[0])

    def at(self, positions: npt.NDArray[np.int64]) -> Examples:
        """Return the examples at these positions."""
        chosen = torch.as_tensor(positions)
        return Examples(self.inputs[chosen], self.targets[chosen])


class FederatedData(Protocol):
    """Training data by client, and common test data; clients are numbered from 0."""

    @property
    def name(self) -> str: ...

    @property
    def sizes(self) -> npt.NDArray[np.int64]: ...

    def client(self, number: int) -> Examples:
        """Return the training examples of a client, in a fixed order."""
        ...

    def test(self) -> Examples: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One client's work in one round; everything random in it follows from the seed."""

    client: int
    examples: Examples
    seed: tuple[int, ...]
    """Seed of the order of its batches and of dropout: (run's seed, stream, round, client)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedClient:
    """Result of one client's training."""

    client: int
    update: Update
    examples: int
    loss: float
    """Mean loss over the examples of the first epoch, before each step."""


class Engine(Protocol):
    """Trains many clients from one model; all engines give equal updates up to float rounding."""

    @property
    def name(self) -> str: ...

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``; yield them in any order, holding few at a time."""
        ...


@runtime_checkable
class FinishingEngine(Engine, Protocol):
    """Finishes each client in the thread that trained it, so that training never waits.

    A separate encoding thread would compete with the training threads and slow them all down.
    """

    def train_and_finish(
        self,
        start: Tensors,
        assignments: Sequence[Assignment],
        settings: LocalTraining,
        finish: Callable[[TrainedClient], Done],
    ) -> Iterator[Done]:
        """Train each client from ``start``; yield the result of ``finish``, which any thread may call."""
        ...


ModelFactory = Callable[[], torch.nn.Module]
"""Makes the model with initial parameters from torch's current seed."""
Progress = Callable[[int, int], None]


Lost = Mapping[str, frozenset[int]]
"""Clients that drop out before they answer in a stage, by its name."""
_DEVIATIONS: Final = 2
"""A session tolerates dropouts up to this many standard deviations above the mean; a round with more fails."""


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run."""

    seed: int
    size: int
    """Number of clients that a round invites."""
    dropouts: DropoutSettings
    stages: tuple[Stage, ...]
    """All stages of the protocol."""

    @classmethod
    def of(cls, run: Configuration) -> Cohorts:
        cohorts = cls(run.seed, run.clients_per_round, run.dropouts, find(run.secagg.protocol).stages)
        names = [stage.name for stage in cohorts.stages]
        if unknown := [name for name in run.dropouts.stages if name not in names]:
            raise InvalidParameters(
                f"dropouts.stages has {unknown[0]!r}; the stages of {run.secagg.protocol} are {', '.join(names)}"
            )
        return cohorts

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Return the stages in which clients drop out."""
        ends = (self.stages[-1].name, next(stage.name for stage in self.stages if stage.takes_update))
        return self.dropouts.stages or tuple(sorted(set(ends)))

    @cached_property
    def before_upload(self) -> frozenset[str]:
        """Return the stages that a client must answer to be in the sum."""
        names = [stage.name for stage in self.stages]
        last = next(place for place, stage in enumerate(self.stages) if stage.takes_update)
        return frozenset(names[: last + 1])

    def invited(self, available: int, number: int) -> tuple[int, ...]:
        """Return the clients invited to a round, and optionally one more that calibrates it."""
        count = min(self.size + 1, available)
        drawn = generator(seed_of(self.seed, Stream.SAMPLING, number)).choice(available, size=count, replace=False)
        return tuple(int(client) for client in drawn)

    def lost(self, clients: Sequence[int], number: int) -> Lost:
        drawn = generator(seed_of(self.seed, Stream.DROPPING, number))
        return sampled_losses(clients, self.dropouts.rate, self.places, drawn)

    def uploaders(self, clients: Sequence[int], lost: Lost) -> tuple[int, ...]:
        gone = frozenset[int]().union(*(lost.get(stage, frozenset()) for stage in self.before_upload))
        return tuple(client for client in clients if client not in gone)

    @property
    def planned_losses(self) -> tuple[int, int]:
        """Planned dropouts of a round: in the first of several stages, and after it."""
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
        """Minimum number of clients of a released sum."""
        return max(LEAST_COHORT, self.size - sum(self.planned_losses))


def sampled_losses(
    clients: Sequence[int], rate: float, stages: Sequence[str], generator: np.random.Generator
) -> dict[str, frozenset[int]]:
    """Draw the dropouts of each stage: equal probability for each client and each stage."""
    lost = {stage: set[int]() for stage in stages}
    for client, draw in zip(clients, generator.random(len(clients)), strict=True):
        if draw < rate:
            lost[stages[int(generator.integers(len(stages)))]].add(client)
    return {stage: frozenset(some) for stage, some in lost.items() if some}
