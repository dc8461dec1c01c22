"""Where tasks run: in one process, in a pool of processes, or on a Ray cluster, which places and retries them."""

from __future__ import annotations

import os
import platform
from abc import ABC, abstractmethod
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
"""A pool that breaks so often in a row is given up: a task may be what ends its workers."""
_PROBE_SECONDS: Final = 120.0
Result = tuple[Task, BaseException | None]
"""A task that is done, or why it failed for good."""


def attempt(task: Task) -> None:
    """Do a task, and do it again if the storage fails."""
    for number in range(ATTEMPTS):
        try:
            add(task)
        except (OSError, Lost):
            if number == ATTEMPTS - 1:
                raise
            sleep(_PAUSE_SECONDS * 2**number)
        else:
            return


class Engine(ABC):
    """Runs tasks, and retries each of them."""

    def __init__(self, count: int = 1) -> None:
        self.count, self._running = count, dict[Future[None], Task]()
        """Numbers of tasks that run at once, and of those that were begun."""

    @abstractmethod
    def _start(self, task: Task) -> Future[None]: ...

    def submit(self, task: Task) -> None:
        """Run a task, now or later."""
        self._running[self._start(task)] = task

    def wait(self, seconds: float) -> list[Result]:
        """Wait at most so long for the first that is done, and return all that are.

        Raises:
            ConnectionError: the workers are lost.
        """
        done = wait_for(self._running, seconds, FIRST_COMPLETED).done
        return [(self._running.pop(future), future.exception()) for future in done]

    def begin_again(self, tasks: Iterable[Task] = ()) -> None:
        """Run some tasks again, and all that run: for a long time nothing was done, or workers were lost."""
        again = [*tasks, *self._running.values()]
        self._give_up()
        self._running.clear()
        for task in again:
            self.submit(task)

    def _give_up(self) -> None:  # noqa: B027 -- in one process nothing runs
        """End what runs."""

    def close(self) -> None:
        """End the workers."""
        self._running.clear()


class InProcess(Engine):
    """The coordinator's process alone."""

    def _start(self, task: Task) -> Future[None]:
        done = Future[None]()
        try:
            attempt(task)
        except Exception as error:  # noqa: BLE001 -- the coordinator judges it
            done.set_exception(error)
        else:
            done.set_result(None)
        return done


class Processes(Engine):
    """Processes of this machine; where one is lost, all are started again, with the tasks that were not done."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._losses, self._pool = 0, self._started()

    def _started(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(self.count, mp_context=get_context("spawn"), initializer=_end_with_parent)
        for _ in range(self.count):
            pool.submit(int)  # So that each process is there before it is needed.
        return pool

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that were started so far, for those who watch them."""
        return tuple(self._pool._processes or ())  # noqa: SLF001 -- there is no other way to name them

    def _start(self, task: Task) -> Future[None]:
        try:
            return self._pool.submit(attempt, task)
        except BrokenProcessPool as error:
            lost = Future[None]()
            lost.set_exception(error)
            return lost

    def wait(self, seconds: float) -> list[Result]:
        """Return the finished tasks; after a loss, run the rest again."""
        results = super().wait(seconds)
        lost = [task for task, error in results if isinstance(error, BrokenProcessPool)]
        if len(lost) < len(results):
            self._losses = 0
        if lost:
            self.begin_again(lost)
        return [result for result in results if not isinstance(result[1], BrokenProcessPool)]

    def _give_up(self) -> None:
        self._losses += 1
        if self._losses > _LOSSES:
            raise ConnectionError(f"processes were lost {_LOSSES} times in a row; see why the system ends them")
        self._kill()
        self._pool = self._started()

    def _kill(self) -> None:
        for process in list((self._pool._processes or {}).values()):  # noqa: SLF001 -- a frozen one does not end
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End them."""
        super().close()
        self._kill()


def _end_with_parent() -> None:
    """End this process when its parent does, however that ends."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(0)

    Thread(target=watch, daemon=True).start()


class OnRay(Engine):
    """Tasks of a Ray cluster, which all see the storage."""

    def __init__(self, count: int, address: str = "") -> None:
        """Connect to a cluster, as Ray finds it, or start one on this machine.

        Raises:
            InvalidParameters: Ray is not installed, lets anybody in, or has nodes of other versions.
        """
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
                found = f"nothing that answers ({error})"
            if found != versions():
                raise InvalidParameters(f"the node {where} of the cluster has {found}, and this machine {versions()}")

    def _start(self, task: Task) -> Future[None]:
        started: Future[None] = self._add.remote(task).future()
        return started

    def wait(self, seconds: float) -> list[Result]:
        """Return the finished tasks, with the errors that Ray wraps."""
        return [(task, getattr(error, "cause", error)) for task, error in super().wait(seconds)]

    def _give_up(self) -> None:
        for future in self._running:
            with suppress(self._ray.exceptions.RayError, TypeError):
                self._ray.cancel(vars(future)["object_ref"], force=True)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        super().close()
        self._ray.shutdown()


def connect(count: int, address: str = "") -> Any:  # noqa: ANN401 -- an optional module
    """Connect to a cluster: at the address, or at ``RAY_ADDRESS``; without either one is started on this machine.

    Raises:
        InvalidParameters: Ray is not installed, there is no such cluster, or it lets anybody in.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise InvalidParameters(
            "work on several machines goes through Ray: pip install 'secagg[ray]'", reason=Reason.BACKEND_MISSING
        ) from None
    if not _has_tokens():
        raise InvalidParameters(
            "anyone who reaches a Ray cluster without tokens can run code on it: set RAY_AUTH_MODE=token on all of its "
            "nodes and here, with one token (`ray get-auth-token --generate`)"
        )
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address or os.environ.get("RAY_ADDRESS"):
        options |= {"address": address} if address else {}
    else:
        options |= {"num_cpus": count, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    ending = getsignal(SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"no Ray cluster at {address or os.environ.get('RAY_ADDRESS') or 'this machine'}"
        raise InvalidParameters(f"{where} lets us in ({error}); compare addresses, tokens and versions") from None
    finally:
        # Ray takes this signal over, and who called has something to finish when it comes.
        if ending is not None and current_thread() is main_thread():
            signal(SIGTERM, ending)
    return ray


def _has_tokens() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def versions() -> str:
    """Return what coordinator and workers must have alike."""
    try:
        library = version("secagg")
    except PackageNotFoundError:
        library = "of a checkout"
    return f"secagg {library} on Python {platform.python_version()}, with{'' if _has_tokens() else 'out'} tokens"


def open_engine(engine: str, count: int, address: str = "") -> Engine:
    """Return an engine: ``memory``, ``processes`` or ``ray``.

    Raises:
        InvalidParameters: there are no workers, or Ray is not there.
    """
    if count < 1:
        raise InvalidParameters(f"a sum needs at least one worker; got {count}")
    if engine == "ray":
        return OnRay(count, address)
    return Processes(count) if engine == "processes" else InProcess()
