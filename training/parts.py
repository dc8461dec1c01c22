"""Parts of a run that a platform can replace, its random streams and its cohorts."""

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
        "secagg.training needs torch; install it with: pip install 'secagg[train]'", name=missing.name
    ) from None


Seed = tuple[int, ...]
"""(run's seed, stream, round, client)."""

_WORD_BITS: Final = 32
_PARTS: Final = 4


class Stream(IntEnum):
    """Purpose of randomness; two purposes never share a stream. Missing numbers stood for purposes that are gone."""

    MODEL = 0
    """Initial parameters."""
    PARTITION = 1
    """Which client holds which examples."""
    SAMPLING = 3
    """Which clients take part in a round."""
    TRAINING = 4
    """The order of a client's batches, and dropout."""
    OPERATORS = 5
    """Masks, codebooks and rotations that everybody shares."""
    ENCODING = 6
    """A client's rounding coins."""
    DROPPING = 7
    """Which clients disappear, and when."""
    VALIDATION = 11
    """Which examples are set aside for choosing."""
    PROBE = 12
    """Public noise that clients try on their losses, and on which examples each tries it."""


def seed_of(run: int, stream: Stream, round_number: int = 0, client: int = 0) -> Seed:
    """Return the seed of one purpose."""
    return checked((run, int(stream), round_number, client))


def checked(seed: Seed) -> Seed:
    """Return a seed that no other one is taken for."""
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
    """Let torch draw from a seed what it draws on the CPU by itself, and restore its generator afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(torch_seed(seed))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_bytes(seed: Seed) -> bytes:
    """Return the 32 bytes of a seed, for what expands bytes: an update plan, or repeatable coins."""
    return np.random.SeedSequence(checked(seed)).generate_state(8, np.uint32).astype("<u4").tobytes()


Done = TypeVar("Done")
Tensors = Mapping[str, torch.Tensor]
"""Parameters by name, on one device."""
Update = dict[str, npt.NDArray[np.float32]]
"""A client's change, by the name of the parameter: after minus before."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets, as the model takes them; the first axis counts examples."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return int(self.targets.shape[0])

    def at(self, positions: npt.NDArray[np.int64]) -> Examples:
        """Return those in these positions."""
        chosen = torch.as_tensor(positions)
        return Examples(self.inputs[chosen], self.targets[chosen])


class FederatedData(Protocol):
    """Training data by client, and test data of everybody; clients have numbers from 0."""

    @property
    def name(self) -> str: ...

    @property
    def sizes(self) -> npt.NDArray[np.int64]: ...

    def client(self, number: int) -> Examples:
        """Return the training examples of a client, in an order that never changes."""
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
    """The mean over the examples of the first epoch, before each step."""


class Engine(Protocol):
    """Trains many clients from one model; all engines give the same updates but for float rounding."""

    @property
    def name(self) -> str: ...

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``; yield them one after another, in any order, holding few at a time."""
        ...


@runtime_checkable
class FinishingEngine(Engine, Protocol):
    """Does something with each client where it was trained, so that training waits for nobody.

    A thread that only encoded would take turns with those that train, and slow all of them down.
    """

    def train_and_finish(
        self,
        start: Tensors,
        assignments: Sequence[Assignment],
        settings: LocalTraining,
        finish: Callable[[TrainedClient], Done],
    ) -> Iterator[Done]:
        """Train each client from ``start``; yield what ``finish`` makes of it, which is called in any thread."""
        ...


ModelFactory = Callable[[], torch.nn.Module]
"""Makes the model with its initial parameters, which follow from torch's seed at that moment."""
Progress = Callable[[int, int], None]


Lost = Mapping[str, frozenset[int]]
"""Clients that are gone before they answer in a stage, by its name."""
_DEVIATIONS: Final = 2
"""Standard deviations by which a session is planned for more dropouts than are expected; a round that loses more still
releases nothing."""


@dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run."""

    seed: int
    size: int
    """Number of clients that a round invites."""
    dropouts: DropoutSettings
    stages: tuple[Stage, ...]
    """All of the protocol."""

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
        """Return the stages in which clients are lost."""
        ends = (self.stages[-1].name, next(stage.name for stage in self.stages if stage.takes_update))
        return self.dropouts.stages or tuple(sorted(set(ends)))

    @cached_property
    def before_upload(self) -> frozenset[str]:
        """Return the stages that a client has to answer to be in the sum."""
        names = [stage.name for stage in self.stages]
        last = next(place for place, stage in enumerate(self.stages) if stage.takes_update)
        return frozenset(names[: last + 1])

    def invited(self, available: int, number: int) -> tuple[int, ...]:
        """Return the clients invited to a round, and one more that calibrates it if that is wanted."""
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
        """Planned losses of a round: clients in the first of several stages, and after it."""
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
        """Least number of clients of a released sum."""
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
