"""The program that a measurement stands for: ``python -m secagg.protocols.enclave.trusted --socket PATH``.

It imports the trusted part and nothing else of this library. Around it belongs a driver that has the hardware vouch for
its keys; this one has none, and its evidence says so.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters

from .enclave import DEFAULT_MEMORY_BYTES
from .process import SIMULATED, give_up_privileges, serve

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_MEBIBYTE: Final = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m secagg.protocols.enclave.trusted", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="where to listen, for this user alone")
    parser.add_argument("--threads", type=int, default=1, help="threads that expand masks (default: %(default)s)")
    parser.add_argument(
        "--memory",
        type=int,
        default=DEFAULT_MEMORY_BYTES // _MEBIBYTE,
        help="how much an epoch may need, in MiB (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    try:
        serve_simulated(options.socket, threads=options.threads, memory_bytes=options.memory * _MEBIBYTE)
    except InvalidParameters as error:
        print(f"enclave: {error}", file=sys.stderr)
        return 2
    return 0


def serve_simulated(path: Path, *, threads: int, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
    """Serve with evidence that nobody vouches for, until a signal ends the process."""
    if threads < 1 or memory_bytes < 1:
        raise InvalidParameters("an enclave has at least one thread and one MiB of memory: raise --threads or --memory")
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidParameters("this system has no Unix sockets; serve where there are some")

    def say_ready() -> None:
        without = give_up_privileges(memory_bytes)
        listed = f" Beyond that, {'; '.join(without)}." if without else ""
        print(
            f"secagg enclave: ready at {path}. No hardware vouches for it: its evidence is simulated, and it protects "
            f"nobody from the owner of this machine.{listed}",
            flush=True,
        )

    earlier = {each: signal.signal(each, _end) for each in _ENDING}
    try:
        quote = _simulated
        serve(path, coins=SystemCoins(), quote=quote, threads=threads, memory_bytes=memory_bytes, ready=say_ready)
    except InvalidParameters:
        # Nothing was served, and the caller continues.
        for each, handler in earlier.items():
            signal.signal(each, handler)
        raise


def _simulated(binding: bytes) -> tuple[str, bytes]:
    return SIMULATED, binding


def _end(*_: int | FrameType | None) -> None:
    # One signal is enough; another is not to interrupt what overwrites keys and removes sockets.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
