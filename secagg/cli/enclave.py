"""``secagg enclave serve``: the trusted part's own program, started from here where nothing is measured."""

from __future__ import annotations

from pathlib import Path

from secagg.protocols.enclave import serve_simulated


def serve_enclave(*, socket_path: Path, threads: int) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status."""
    serve_simulated(socket_path, threads=threads)
    return 0
