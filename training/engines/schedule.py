"""What a client's training does step by step, in whatever engine: which examples, and which keys of dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.training.models.partition import Indices
from secagg.training.settings.parts import Assignment
from secagg.training.settings.sections import LocalTraining
from secagg.training.settings.seeds import generator


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of one client."""

    batches: tuple[Indices, ...]
    """Which of the client's examples each step takes."""
    keys: npt.NDArray[np.int64]
    """Of each step, a key for each layer of dropout."""
    first_epoch: int
    """How many steps the first epoch has."""


def schedule_of(assignment: Assignment, settings: LocalTraining, dropouts: int) -> Schedule:
    """Shuffle a client's examples anew for each epoch, and cut them into batches; the last one may be smaller.

    Raises:
        InvalidParameters: there is nothing to train with, or the settings make no step.
    """
    count = len(assignment.examples)
    if count == 0:
        raise InvalidParameters(f"client {assignment.client} has no examples; leave such clients out of the data")
    if settings.batch < 1 or settings.epochs < 1:
        raise InvalidParameters(
            f"a client takes {settings.epochs} epochs of batches of {settings.batch}; both must be 1 or more"
        )
    coins = generator(assignment.seed)
    batches = list[Indices]()
    for _ in range(settings.epochs):
        order = coins.permutation(count)
        batches += [order[begin : begin + settings.batch] for begin in range(0, count, settings.batch)]
    keys = coins.integers(0, 1 << 32, (len(batches), dropouts), dtype=np.int64)
    return Schedule(tuple(batches), keys, len(batches) // settings.epochs)


def longest_first(schedules: Sequence[Schedule]) -> list[int]:
    """Return the order in which to train: much work before little, and else as assigned."""
    return sorted(range(len(schedules)), key=lambda place: -len(schedules[place].batches))
