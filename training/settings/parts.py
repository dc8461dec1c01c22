"""What a run is put together from: data, a model, an engine, a way to sum. Each is replaceable by a platform's own.

A run is a sequence of rounds. In each the driver samples clients; an engine trains them from one model; what each of
them changed is encoded and handed to a secure sum; and the server's optimiser moves the model by the decoded mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "secagg.training needs torch; install it with: pip install 'secagg[train]'", name=missing.name
    ) from None

from .sections import LocalTraining

Done = TypeVar("Done")
Tensors = Mapping[str, torch.Tensor]
"""Parameters by name, on one device."""
Update = dict[str, npt.NDArray[np.float32]]
"""What a client changed, by the name of the parameter: after minus before."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs and targets, as the model takes them; the first axis counts examples."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        """Return how many examples there are."""
        return int(self.targets.shape[0])


class FederatedData(Protocol):
    """Training data by client, and test data of everybody; clients have numbers from 0."""

    @property
    def name(self) -> str:
        """What the data are called in configurations and reports."""
        ...

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many training examples each client has."""
        ...

    def client(self, number: int) -> Examples:
        """Return the training examples of a client, in an order that never changes."""
        ...

    def test(self) -> Examples:
        """Return the test examples."""
        ...

    def test_clients(self) -> npt.NDArray[np.int64] | None:
        """Return whose each test example is, where the data say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One client's work in one round; everything random in it follows from the seed."""

    client: int
    examples: Examples
    seed: tuple[int, ...]
    """Of the order of its batches and of dropout: (run's seed, stream, round, client)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedClient:
    """What one client's training gave."""

    client: int
    update: Update
    examples: int
    loss: float
    """The mean over the examples of the first epoch, before each step."""


class Engine(Protocol):
    """Trains many clients from one model; all engines give the same updates but for float rounding."""

    @property
    def name(self) -> str:
        """What configurations call it."""
        ...

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
