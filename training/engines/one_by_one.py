"""Clients one after the other, each trained by the model itself; or several at once, each in a thread of its own.

Torch leaves Python's lock while it computes, so threads use all cores without copies between processes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Final

import torch

from secagg.errors import InvalidParameters
from secagg.training.models import key_buffers
from secagg.training.settings.parts import Assignment, Done, ModelFactory, Tensors, TrainedClient
from secagg.training.settings.sections import LocalTraining

from .settings import Computing, Descent, Schedule, as_update, changes, longest_first, one_torch_thread, schedule_of
from .suitability import trainable, values_of

_AHEAD: Final = 2
"""How many trained clients for each thread may wait to be taken."""


class PlainModel:
    """One model in memory, which trains one client at a time, in the ordinary way of torch."""

    def __init__(self, factory: ModelFactory, computing: Computing) -> None:
        self._model = trainable(factory).to(computing.device)
        self._computing = computing
        self._names = [name for name, _ in self._model.named_parameters()]
        self._parameters = list(self._model.parameters())
        self._keys = key_buffers(self._model)
        self.dropouts = len(self._keys)
        """How many layers of dropout it has."""

    def train(
        self, start: Tensors, assignment: Assignment, schedule: Schedule, settings: LocalTraining
    ) -> TrainedClient:
        """Train one client."""
        device = self._computing.device
        before = values_of(self._model, start, device)
        with torch.no_grad():
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.copy_(value)
        inputs, targets = assignment.examples.inputs.to(device), assignment.examples.targets.to(device)
        descent = Descent(self._parameters, before, settings)
        total = torch.zeros((), device=device)
        for step, batch in enumerate(schedule.batches):
            chosen = torch.as_tensor(batch, device=device)
            for buffer, key in zip(self._keys, schedule.keys[step].tolist(), strict=True):
                buffer.fill_(key)
            with self._computing.precision():
                losses = self._computing.loss(self._model(inputs[chosen]), targets[chosen])
            descent.step(torch.autograd.grad(losses.mean(), self._parameters, materialize_grads=True))
            if step < schedule.first_epoch:
                total += losses.detach().sum()
        found = changes(self._parameters, before, settings.clip, stacked=False)
        count = len(assignment.examples)
        return TrainedClient(
            client=assignment.client, update=as_update(self._names, found), examples=count, loss=float(total) / count
        )


class SequentialEngine:
    """One client after the other."""

    name = "sequential"

    def __init__(self, model: PlainModel) -> None:
        self._model = model

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``."""
        schedules = [schedule_of(assignment, settings, self._model.dropouts) for assignment in assignments]
        with one_torch_thread():
            for place in longest_first(schedules):
                yield self._model.train(start, assignments[place], schedules[place], settings)


class ThreadsEngine:
    """Several clients at once, each in a thread."""

    name = "threads"

    def __init__(self, model: Callable[[], PlainModel], threads: int | None = None) -> None:
        """Make a model for each thread; by default there is one for each core.

        Raises:
            InvalidParameters: the number of threads is not positive.
        """
        count = cores() if threads is None else threads
        if count < 1:
            raise InvalidParameters(f"the engine needs 1 thread or more, and {count} are asked for")
        made = [model() for _ in range(count)]
        self._count, self._dropouts = count, made[0].dropouts
        self._idle = SimpleQueue[PlainModel]()
        for each in made:
            self._idle.put(each)

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``; a client that fails ends the round with its error."""
        return self.train_and_finish(start, assignments, settings, lambda trained: trained)

    def train_and_finish(
        self,
        start: Tensors,
        assignments: Sequence[Assignment],
        settings: LocalTraining,
        finish: Callable[[TrainedClient], Done],
    ) -> Iterator[Done]:
        """Train each client from ``start``, and finish it in the same thread."""
        schedules = [schedule_of(assignment, settings, self._dropouts) for assignment in assignments]

        def work(place: int) -> Done:
            model = self._idle.get()
            try:
                return finish(model.train(start, assignments[place], schedules[place], settings))
            finally:
                self._idle.put(model)

        with one_torch_thread():
            yield from _in_order(work, longest_first(schedules), self._count)


def _in_order(work: Callable[[int], Done], places: Sequence[int], threads: int) -> Generator[Done]:
    """Work ahead of what is taken by a few clients, and yield in order, so that sums of floats repeat."""
    # Each thread has its own setting of how many threads an operation may use.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    waiting = deque[Future[Done]]()
    try:
        for place in places:
            if len(waiting) == _AHEAD * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, place))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
