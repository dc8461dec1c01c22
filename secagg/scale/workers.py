"""Where jobs are done: in this process, in processes of this machine, or in actors of a Ray cluster.

A worker is a number; one that is lost is replaced by one of another number. What is sent to it is an order of its own
coordinator and what it answers is believed by nobody but that one: both are on the server's side.
"""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

from secagg.errors import InvalidParameters, SecAggError
from secagg.training.runs.ray_cluster import cluster, require_ray

from .work import OUTCOME_BYTES, Order, Outcome, perform, perform_encoded

Answer = tuple[int, Outcome | None]
"""Which worker, and what came of its job; None if the worker is lost."""


class Workers(Protocol):
    """Some workers, each at one job or idle."""

    @property
    def idle(self) -> tuple[int, ...]:
        """Who has nothing to do."""
        ...

    def start(self, worker: int, order: Order) -> None:
        """Give a job to an idle worker; if that is gone, ``poll`` says so."""

    def poll(self, seconds: float) -> list[Answer]:
        """Wait at most so long for the first answer, and return all that are there.

        Raises:
            ConnectionError: they were ended.
        """
        ...

    def close(self) -> None:
        """End the workers."""


class InProcess:
    """One worker: this process."""

    def __init__(self) -> None:
        self._answers = list[Answer]()
        self.idle: tuple[int, ...] = (0,)

    def start(self, worker: int, order: Order) -> None:
        """Do the job."""
        self._answers.append((worker, perform(order)))

    def poll(self, seconds: float) -> list[Answer]:
        """Return what was done."""
        del seconds
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Do nothing."""


class Processes:
    """Processes of this machine, which end with this one."""

    def __init__(self, count: int) -> None:
        """Start them."""
        self._context = get_context("spawn")
        self._running = dict[int, tuple[SpawnProcess, Connection]]()
        self._busy, self._gone, self._next = set[int](), set[int](), 0
        for _ in range(count):
            self._add()

    def _add(self) -> None:
        here, there = self._context.Pipe()
        process = self._context.Process(target=serve_pipe, args=(there,), daemon=True)
        process.start()
        there.close()
        self._running[self._next] = process, here
        self._next += 1

    @property
    def idle(self) -> tuple[int, ...]:
        """Who has nothing to do."""
        return tuple(worker for worker in self._running if worker not in self._busy)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes, for those who watch or end them."""
        return tuple(process.pid or 0 for process, _ in self._running.values())

    def start(self, worker: int, order: Order) -> None:
        """Send an order."""
        self._busy.add(worker)
        try:
            self._running[worker][1].send_bytes(pickle.dumps(order))
        except OSError:
            self._gone.add(worker)

    def poll(self, seconds: float) -> list[Answer]:
        """Receive outcomes, and replace who is gone."""
        if not self._running:
            raise ConnectionError("the workers were ended")
        answers, owners = list[Answer](), {self._running[worker][1]: worker for worker in self._busy}
        for ready in wait(list(owners), 0 if self._gone else seconds) if owners else ():
            worker = owners[ready]  # type: ignore[index]
            try:
                answers.append((worker, Outcome.decode(self._running[worker][1].recv_bytes(OUTCOME_BYTES))))
                self._busy.discard(worker)
            except (EOFError, OSError, SecAggError):
                self._gone.add(worker)
        for worker in sorted(self._gone):
            process, pipe = self._running.pop(worker)
            pipe.close()
            process.kill()
            process.join()
            self._busy.discard(worker)
            answers.append((worker, None))
            self._add()
        self._gone.clear()
        return answers

    def close(self) -> None:
        """End them; what they were at is done by nobody."""
        # Whoever is waiting for them in another thread finds nobody there, and replaces nobody.
        running, self._running = self._running, {}
        for process, pipe in running.values():
            pipe.close()
            process.kill()
            process.join()
        self._busy.clear()


def serve_pipe(pipe: Connection) -> None:
    """Do jobs until the other end of a pipe is gone."""
    while True:
        try:
            order = pipe.recv_bytes()
            pipe.send_bytes(perform_encoded(order))
        except (EOFError, OSError):
            return


class RayWorkers:
    """Actors of a Ray cluster, spread over its machines; all of them see the storage."""

    def __init__(self, count: int, address: str = "") -> None:
        """Connect to a cluster, or start a local one, and start the actors.

        Raises:
            InvalidParameters: Ray is not installed, or there is no such cluster.
        """
        self._cluster = cluster(address, processes=count)
        self._ray: Any = self._cluster.__enter__()
        self._class = self._ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(RayWorker)
        self._actors, self._asked, self._next = dict[int, Any](), dict[Any, int](), 0
        for _ in range(count):
            self._add()

    def _add(self) -> None:
        self._actors[self._next] = self._class.remote()
        self._next += 1

    @property
    def idle(self) -> tuple[int, ...]:
        """Who has nothing to do."""
        busy = set(self._asked.values())
        return tuple(worker for worker in self._actors if worker not in busy)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """The node and the process of each actor that lives."""
        found = list[tuple[str, int]]()
        for reference in [actor.place.remote() for actor in self._actors.values()]:
            with suppress(self._ray.exceptions.RayError):
                found.append(self._ray.get(reference))
        return tuple(found)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes of the actors that live, for those who watch or end them on one machine."""
        return tuple(process for _, process in self.places)

    def start(self, worker: int, order: Order) -> None:
        """Send an order."""
        self._asked[self._actors[worker].perform.remote(pickle.dumps(order))] = worker

    def poll(self, seconds: float) -> list[Answer]:
        """Receive outcomes, and replace actors that are gone."""
        if not self._actors:
            raise ConnectionError("the workers were ended")
        if not self._asked:
            return []
        asked, answers = list(self._asked), list[Answer]()
        ready, _ = self._ray.wait(asked, num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0)
        for reference in ready:
            worker = self._asked.pop(reference)
            try:
                answers.append((worker, Outcome.decode(self._ray.get(reference))))
            except self._ray.exceptions.RayTaskError:
                raise
            except (self._ray.exceptions.RayError, SecAggError):
                self._ray.kill(self._actors.pop(worker))
                answers.append((worker, None))
                self._add()
        return answers

    def close(self) -> None:
        """End the actors, and leave the cluster."""
        actors, self._actors = self._actors, {}
        for actor in actors.values():
            self._ray.kill(actor)
        self._asked.clear()
        self._cluster.__exit__(None, None, None)


class RayWorker:
    """What an actor is."""

    def perform(self, order: bytes) -> bytes:
        """Do a job."""
        return perform_encoded(order)

    def place(self) -> tuple[str, int]:
        """Return the node and the process."""
        return require_ray().get_runtime_context().get_node_id(), os.getpid()


def open_workers(engine: str, count: int, address: str = "") -> Workers:
    """Return workers of an engine: ``memory``, ``processes`` or ``ray``.

    Raises:
        InvalidParameters: there are none, or Ray is not installed, or not at this address.
    """
    if count < 1:
        raise InvalidParameters(f"a sum needs at least one worker; got {count}")
    match engine:
        case "ray":
            return RayWorkers(count, address)
        case "processes":
            return Processes(count)
        case _:
            return InProcess()
