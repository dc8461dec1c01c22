"""Preparations of every command that serves until it is told to end."""

from __future__ import annotations

import argparse
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from secagg.errors import InvalidParameters, SecAggError

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def serving() -> Generator[None]:
    """End at the first SIGTERM or SIGINT, and leave no image of keys on a disk after a crash."""
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidParameters("this system has no Unix sockets; serve where there are some")
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    earlier = {each: signal.signal(each, _end) for each in _ENDING}
    try:
        yield
    except SecAggError:
        # Nothing was served, and the caller continues.
        for each, handler in earlier.items():
            signal.signal(each, handler)
        raise


def serve_enclave(options: argparse.Namespace) -> int:
    """Serve one host after the other as the trusted part, whose evidence is simulated, and return the exit status."""
    from secagg.protocols.enclave import DEFAULT_MEMORY_BYTES, serve_simulated

    memory_bytes = DEFAULT_MEMORY_BYTES if options.memory is None else options.memory << 20
    serve_simulated(options.socket, threads=options.threads, memory_bytes=memory_bytes)
    return 0


def _end(*_: int | FrameType | None) -> None:
    # One signal is enough; another is not to interrupt what overwrites keys and removes sockets.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(0)
