"""Work on the machines of a Ray cluster, or on a local one that is started for it; Ray is the extra ``ray``.

Nothing that a protocol protects is sent through Ray: it carries simulated clients and whole simulated runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from signal import SIGTERM, getsignal, signal
from threading import current_thread, main_thread
from typing import Any, Final, TypeVar

from secagg.errors import InvalidParameters, Reason

LOCAL: Final = ""
"""The address of a cluster that is started for the work, and ends with it."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def require_ray() -> Any:  # noqa: ANN401 -- an optional module
    """Return Ray.

    Raises:
        InvalidParameters: it is not installed.
    """
    try:
        return import_module("ray")
    except ImportError:
        raise InvalidParameters(
            "work on several machines goes through Ray: pip install 'secagg[ray]'", reason=Reason.BACKEND_MISSING
        ) from None


@contextmanager
def cluster(address: str = LOCAL, *, processes: int | None = None) -> Generator[Any]:
    """Connect to a cluster, or start a local one with so many processes at a time; leave it, or end it, afterwards.

    Raises:
        InvalidParameters: Ray is not installed, or there is no cluster at that address.
    """
    ray = require_ray()
    if ray.is_initialized():
        # Whoever connected before us disconnects, too.
        yield ray
        return
    connect(address, processes=processes)
    try:
        yield ray
    finally:
        ray.shutdown()


def connect(address: str = LOCAL, *, processes: int | None = None) -> None:
    """Connect to a cluster, or start a local one, for as long as this process lives."""
    ray = require_ray()
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address == LOCAL:
        options |= {"num_cpus": processes, "include_dashboard": False}
    else:
        options["address"] = address
    ending = getsignal(SIGTERM)
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"no Ray cluster at {address or 'this machine'}"
        raise InvalidParameters(f"{where} lets us in ({error}); compare addresses, and RAY_AUTH_MODE") from None
    finally:
        # Ray takes this signal over, and who called has something to finish when it comes.
        if ending is not None and current_thread() is main_thread():
            signal(SIGTERM, ending)


def spread(
    ray: Any,  # noqa: ANN401 -- an optional module
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    *,
    ahead: int,
) -> Iterator[_Result]:
    """Yield what a function makes of each item, in their order; at most so many are at work or wait to be taken."""
    remote, remaining = ray.remote(function), iter(items)
    waiting = deque[Any](remote.remote(item) for item in islice(remaining, ahead))
    while waiting:
        result: _Result = ray.get(waiting.popleft())
        waiting.extend(remote.remote(item) for item in islice(remaining, 1))
        yield result
