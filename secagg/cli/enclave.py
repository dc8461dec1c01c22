"""``secagg enclave serve``: the trusted part in a process of its own, with evidence that says that it is simulated."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from types import FrameType

from secagg.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.protocols.enclave.process import SIMULATED, serve


def serve_enclave(*, socket_path: Path, threads: int) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status."""
    if threads < 1:
        raise InvalidParameters(f"--threads is {threads}; at least one thread expands masks")
    if not hasattr(socket, "AF_UNIX"):
        raise InvalidParameters("this system has no Unix sockets; serve where there are some")
    import resource

    # A crash leaves no image of the keys on a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ending = (signal.SIGTERM, signal.SIGINT)

    def end(*_: int | FrameType | None) -> None:
        # One signal is enough; another is not to interrupt what overwrites keys and removes the socket.
        for each in ending:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(0)

    def say_ready() -> None:
        print(
            f"secagg enclave: ready at {socket_path}. No hardware vouches for it: its evidence is simulated, and it "
            "protects nobody from the owner of this machine.",
            flush=True,
        )

    for each in ending:
        signal.signal(each, end)
    serve(socket_path, coins=SystemCoins(), quote=_simulated, threads=threads, ready=say_ready)
    return 0


def _simulated(binding: bytes) -> tuple[str, bytes]:
    return SIMULATED, binding
