"""Clients spread over the machines of a Ray cluster, for rounds that no single device holds.

Each worker has one device and an engine of its own. The model goes out once a round, examples with the clients that
they belong to, and updates come back in an order that depends on the data alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import Any, Final

from secagg.training.settings.parts import Assignment, Engine, Tensors, TrainedClient
from secagg.training.settings.sections import LocalTraining

from .ray_cluster import connect, require_ray

PREFIX: Final = "ray"
_AHEAD: Final = 2
"""How many batches of clients for each worker are under way or wait to be taken."""


class RayEngine:
    """Workers on a cluster: the one that RAY_ADDRESS names, or else one on this machine."""

    def __init__(self, make: Callable[[], Engine], name: str, *, workers: int | None, on_gpu: bool, batch: int) -> None:
        """Start the workers.

        Args:
            make: makes a worker's engine, there.
            workers: by default one for each GPU of the cluster, or for each core.
            batch: how many clients a worker is given at a time.
        Raises:
            InvalidParameters: Ray is not installed.
        """
        self.name, self._batch = name, batch
        self._ray = require_ray()
        if not self._ray.is_initialized():
            connect(processes=workers)
        resources = self._ray.cluster_resources()
        count = workers or int(resources.get("GPU" if on_gpu else "CPU", 1))
        kind = self._ray.remote(num_cpus=1, num_gpus=1 if on_gpu else 0)(_Worker)
        self._workers = [kind.remote(make) for _ in range(max(1, count))]

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``."""
        begun = self._ray.put({name: value.cpu() for name, value in start.items()})
        batches = [assignments[first : first + self._batch] for first in range(0, len(assignments), self._batch)]
        waiting = deque[Any]()
        for batch, worker in zip(batches, cycle(self._workers), strict=False):
            if len(waiting) == _AHEAD * len(self._workers):
                yield from self._ray.get(waiting.popleft())
            waiting.append(worker.train.remote(begun, list(batch), settings))
        while waiting:
            yield from self._ray.get(waiting.popleft())


class _Worker:
    """Lives in a process of the cluster."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self._engine = make()

    def train(self, start: Tensors, assignments: list[Assignment], settings: LocalTraining) -> list[TrainedClient]:
        """Train a batch of clients."""
        return list(self._engine.train(start, assignments, settings))
