"""Engines that run tasks: in one process, in a pool of processes, or on a Ray cluster."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context, parent_process
from signal import SIGTERM, getsignal, signal
from threading import Thread, current_thread, main_thread
from time import sleep
from typing import Any, Final

from secagg.errors import InvalidParameters, Reason

from .storage import Lost, Task, add

ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.2
_LOSSES: Final = 25
"""Number of losses in a row after which a pool fails: a task may be killing its workers."""
_PROBE_SECONDS: Final = 120.0
Result = tuple[Task, BaseException | None]
"""A finished task, or the error of a failed one."""


def attempt(task: Task) -> None:
    """Run a task; repeat it if the storage fails."""
    for number in range(1, ATTEMPTS):
        with suppress(OSError, Lost):
            add(task)
            return
        sleep(_PAUSE_SECONDS * number)
    add(task)


class Engine:
    """Runs and retries tasks; this base class in the coordinator's process."""

    def __init__(self, count: int = 1) -> None:
        self.count, self._running = count, dict[Future[None], Task]()
        """Number of concurrent tasks, and the started ones."""

    def _start(self, task: Task) -> Future[None]:
        done = Future[None]()
        try:
            attempt(task)
        except Exception as error:  # noqa: BLE001 -- the coordinator handles it
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def submit(self, task: Task) -> None:
        self._running[self._start(task)] = task

    def wait(self, seconds: float) -> list[Result]:
        """Wait up to a timeout for a task to finish, and return all finished ones; raise if workers are lost."""
        done = wait_for(self._running, seconds, FIRST_COMPLETED).done
        return [(self._running.pop(future), future.exception()) for future in done]

    def begin_again(self, tasks: Iterable[Task] = ()) -> None:
        """Restart these and all running tasks, after a timeout or a loss of workers."""
        again = [*tasks, *self._running.values()]
        self._give_up()
        self._running.clear()
        for task in again:
            self.submit(task)

    def _give_up(self) -> None:
        """Stop running tasks; in one process there are none."""

    def close(self) -> None:
        self._running.clear()


class Processes(Engine):
    """A pool of local processes; if one is lost, all restart with the unfinished tasks."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._losses, self._pool = 0, self._started()

    def _started(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(self.count, mp_context=get_context("spawn"), initializer=_end_with_parent)
        for _ in range(self.count):
            pool.submit(int)  # Start each process before it is needed.
        return pool

    def _start(self, task: Task) -> Future[None]:
        with suppress(BrokenProcessPool):
            return self._pool.submit(attempt, task)
        self.begin_again()
        return self._start(task)

    def wait(self, seconds: float) -> list[Result]:
        results = super().wait(seconds)
        done = [result for result in results if not isinstance(result[1], BrokenProcessPool)]
        self._losses = 0 if done else self._losses
        if len(done) < len(results):
            self.begin_again(task for task, error in results if isinstance(error, BrokenProcessPool))
        return done

    def _give_up(self) -> None:
        self._losses += 1
        if self._losses > _LOSSES:
            raise ConnectionError(f"processes were lost {_LOSSES} times in a row; check why the system kills them")
        self._kill()
        self._pool = self._started()

    def _kill(self) -> None:
        for process in list((self._pool._processes or {}).values()):  # noqa: SLF001 -- a frozen one ignores the pool
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        super().close()
        self._kill()


def _end_with_parent() -> None:
    """End this process when its parent ends for any reason."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(0)

    Thread(target=watch, daemon=True).start()


class OnRay(Engine):
    """The nodes of a Ray cluster; all must reach the storage and have this machine's versions."""

    def __init__(self, count: int, address: str = "") -> None:
        super().__init__(count)
        self._ray: Any = connect(count, address)
        try:
            self._require_same_versions()
        except BaseException:
            self._ray.shutdown()
            raise
        self._add = self._ray.remote(num_cpus=1, max_retries=ATTEMPTS, retry_exceptions=[OSError, Lost])(add)

    def _require_same_versions(self) -> None:
        probe = self._ray.remote(num_cpus=0)(versions)
        on_node = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        asked = {
            probe.options(scheduling_strategy=on_node(node["NodeID"], soft=False)).remote(): node["NodeManagerAddress"]
            for node in self._ray.nodes()
            if node["Alive"]
        }
        for reference, where in asked.items():
            try:
                found = self._ray.get(reference, timeout=_PROBE_SECONDS)
            except self._ray.exceptions.RayError as error:
                found = f"no answer ({error})"
            if found != versions():
                raise InvalidParameters(f"the cluster's node {where} has {found}, but this machine {versions()}")

    def _start(self, task: Task) -> Future[None]:
        started: Future[None] = self._add.remote(task).future()
        return started

    def wait(self, seconds: float) -> list[Result]:
        return [(task, getattr(error, "cause", error)) for task, error in super().wait(seconds)]

    def _give_up(self) -> None:
        for future in self._running:
            with suppress(self._ray.exceptions.RayError, TypeError):
                self._ray.cancel(vars(future)["object_ref"], force=True)

    def close(self) -> None:
        super().close()
        self._ray.shutdown()


def connect(count: int, address: str = "") -> Any:  # noqa: ANN401 -- an optional module
    """Connect to the cluster at the address or ``RAY_ADDRESS``; without either, start one on this machine."""
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise InvalidParameters(
            "several machines need Ray: run pip install '.[ray]' in a checkout", reason=Reason.BACKEND_MISSING
        ) from None
    if not _has_tokens():
        raise InvalidParameters(
            "anyone who reaches a Ray cluster without tokens can run code on it: set RAY_AUTH_MODE=token on all of its "
            "nodes and here, with one token (`ray get-auth-token --generate`)"
        )
    address, ending = address or os.environ.get("RAY_ADDRESS", ""), getsignal(SIGTERM)
    local = {"num_cpus": count, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        ray.init(**({"address": address} if address else local), log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"Ray at {address or 'this machine'}"
        raise InvalidParameters(f"{where} refuses access ({error}); compare addresses, tokens and versions") from None
    finally:
        # Ray replaces this signal's handler, but the caller needs its own.
        if ending is not None and current_thread() is main_thread():
            signal(SIGTERM, ending)
    return ray


def _has_tokens() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def versions() -> str:
    """Return the versions that must be equal at coordinator and workers."""
    try:
        library = version("secagg")
    except PackageNotFoundError:
        library = "of a checkout"
    return f"secagg {library} on Python {platform.python_version()}, with{'' if _has_tokens() else 'out'} tokens"


def open_engine(engine: str, count: int, address: str = "") -> Engine:
    """Return an engine: ``memory``, ``processes`` or ``ray``."""
    if count < 1:
        raise InvalidParameters(f"a sum needs at least one worker; got {count}")
    if engine == "ray":
        return OnRay(count, address)
    return Processes(count) if engine == "processes" else Engine()
