"""``secagg enclave serve``: the trusted part in a process of its own, with evidence that says that it is simulated."""

from __future__ import annotations

from pathlib import Path

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.protocols.enclave.process import SIMULATED, serve

from .serving import serving


def serve_enclave(*, socket_path: Path, threads: int) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status."""
    if threads < 1:
        raise InvalidParameters(f"--threads is {threads}; at least one thread expands masks")

    def say_ready() -> None:
        print(
            f"secagg enclave: ready at {socket_path}. No hardware vouches for it: its evidence is simulated, and it "
            "protects nobody from the owner of this machine.",
            flush=True,
        )

    with serving():
        serve(socket_path, coins=SystemCoins(), quote=_simulated, threads=threads, ready=say_ready)
    return 0


def _simulated(binding: bytes) -> tuple[str, bytes]:
    return SIMULATED, binding
