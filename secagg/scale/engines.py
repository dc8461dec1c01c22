"""Where tasks run: in one process, in a pool of processes, or on a Ray cluster, which places and retries them."""

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
from multiprocessing.connection import wait as wait_on
from signal import SIGTERM, getsignal, signal
from threading import Thread, current_thread, main_thread
from time import sleep
from typing import Any, Final, Protocol

from secagg.errors import InvalidParameters, Reason

from .storage import Lost
from .work import Task, add

Result = tuple[Task, Exception | None]
"""A task that is done, or why it failed for good."""
ATTEMPTS: Final = 3
_PAUSE_SECONDS: Final = 0.2
_LOSSES: Final = 25
"""A pool that breaks so often in a row is given up: a task may be what ends its workers."""
_PROBE_SECONDS: Final = 60.0


class Engine(Protocol):
    """Runs tasks, each of which it retries."""

    count: int
    """How many tasks run at once."""

    def submit(self, task: Task) -> None:
        """Run a task, now or later."""

    def wait(self, seconds: float) -> list[Result]:
        """Wait at most so long for the first that is done, and return all that are.

        Raises:
            ConnectionError: the workers are lost.
        """
        ...

    def begin_again(self) -> None:
        """Give up what runs, and run it elsewhere: for a long time nothing was done."""

    def close(self) -> None:
        """End the workers."""


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


class InProcess:
    """The coordinator's process alone."""

    count = 1

    def __init__(self) -> None:
        self._done = list[Result]()

    def submit(self, task: Task) -> None:
        """Do it."""
        try:
            attempt(task)
        except Exception as error:  # noqa: BLE001 -- the coordinator judges it
            self._done.append((task, error))
        else:
            self._done.append((task, None))

    def wait(self, seconds: float) -> list[Result]:
        """Return what was done."""
        del seconds
        done, self._done = self._done, []
        return done

    def begin_again(self) -> None:
        """Do nothing: nothing runs."""

    def close(self) -> None:
        """Do nothing."""


class Processes:
    """Processes of this machine; where one is lost, all are started again, with the tasks that were not done."""

    def __init__(self, count: int) -> None:
        self.count, self._losses = count, 0
        self._running = dict[Future[None], Task]()
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(self.count, mp_context=get_context("spawn"), initializer=_end_with_parent)
        for _ in range(self.count):
            pool.submit(int)  # So that each process is there before it is needed.
        return pool

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that were started so far, for those who watch them."""
        return tuple(self._pool._processes or ())  # noqa: SLF001 -- there is no other way to name them

    def submit(self, task: Task) -> None:
        """Run a task."""
        try:
            self._running[self._pool.submit(attempt, task)] = task
        except BrokenProcessPool:
            self.begin_again((task,))

    def wait(self, seconds: float) -> list[Result]:
        """Return what is done; after a loss, run the rest again."""
        done = wait_for(list(self._running), seconds, FIRST_COMPLETED).done
        results, lost = list[Result](), list[Task]()
        for future in done:
            task, error = self._running.pop(future), future.exception()
            if isinstance(error, BrokenProcessPool):
                lost.append(task)
            else:
                results.append((task, error if isinstance(error, Exception) else None))
        if results:
            self._losses = 0
        if lost:
            self.begin_again(lost)
        return results

    def begin_again(self, tasks: Iterable[Task] = ()) -> None:
        """Start other processes, and have them do what these were at."""
        self._losses += 1
        if self._losses > _LOSSES:
            raise ConnectionError(f"processes were lost {_LOSSES} times in a row; see why the system ends them")
        again = [*tasks, *self._running.values()]
        self._running.clear()
        self._kill()
        self._pool = self._started()
        for task in again:
            self.submit(task)

    def _kill(self) -> None:
        for process in list((self._pool._processes or {}).values()):  # noqa: SLF001 -- a frozen one does not end
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End them."""
        self._running.clear()
        self._kill()


def _end_with_parent() -> None:
    """End this process when its parent does, however that ends."""
    parent = parent_process()
    if parent is not None:

        def watch() -> None:
            wait_on([parent.sentinel])
            os._exit(0)

        Thread(target=watch, daemon=True).start()


class OnRay:
    """Tasks of a Ray cluster, which all see the storage."""

    def __init__(self, count: int, address: str = "") -> None:
        """Connect to a cluster, as Ray finds it, or start one on this machine.

        Raises:
            InvalidParameters: Ray is not installed, lets anybody in, or has nodes of other versions.
        """
        self.count, self._running = count, dict[Any, Task]()
        self._ray: Any = connect(count, address)
        try:
            self._require_same_versions()
        except BaseException:
            self._ray.shutdown()
            raise
        self._add = self._ray.remote(num_cpus=1, max_retries=ATTEMPTS, retry_exceptions=[OSError, Lost])(add)

    def _require_same_versions(self) -> None:
        probe = self._ray.remote(num_cpus=0)(_versions_there)
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

    def submit(self, task: Task) -> None:
        """Have Ray place a task."""
        self._running[self._add.remote(task)] = task

    def wait(self, seconds: float) -> list[Result]:
        """Return what is done."""
        running = list(self._running)
        if not running:
            return []
        done, _ = self._ray.wait(running, num_returns=1, timeout=seconds)
        if done:
            done, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        return [(self._running.pop(reference), self._error_of(reference)) for reference in done]

    def _error_of(self, reference: Any) -> Exception | None:  # noqa: ANN401 -- Ray's
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            return error.cause if isinstance(error.cause, Exception) else error
        except self._ray.exceptions.RayError as error:
            return ConnectionError(f"Ray gave a task up: {error}")
        return None

    def begin_again(self) -> None:
        """Cancel what runs, and have it placed again."""
        again = list(self._running.values())
        for reference in self._running:
            with suppress(self._ray.exceptions.RayError, TypeError):
                self._ray.cancel(reference, force=True)
        self._running.clear()
        for task in again:
            self.submit(task)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        self._running.clear()
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
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        ray.shutdown()
        raise InvalidParameters(
            "whoever reaches a Ray cluster without tokens runs code on it: set RAY_AUTH_MODE=token on all of its nodes "
            "and here, with one token (`ray get-auth-token --generate`)"
        )
    return ray


def versions() -> str:
    """Return what coordinator and workers must have alike."""
    try:
        library = version("secagg")
    except PackageNotFoundError:
        library = "of a checkout"
    return f"secagg {library} on Python {platform.python_version()}"


def _versions_there() -> str:
    """Return them as a node has them: it imports this module."""
    return versions()


def open_engine(engine: str, count: int, address: str = "") -> Engine:
    """Return an engine: ``memory``, ``processes`` or ``ray``.

    Raises:
        InvalidParameters: there are no workers, or Ray is not there.
    """
    if count < 1:
        raise InvalidParameters(f"a sum needs at least one worker; got {count}")
    match engine:
        case "ray":
            return OnRay(count, address)
        case "processes":
            return Processes(count)
        case _:
            return InProcess()
