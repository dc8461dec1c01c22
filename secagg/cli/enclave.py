"""``secagg enclave serve``: the trusted part's own program, started from here where nothing is measured."""

from __future__ import annotations

from pathlib import Path

from secagg.protocols.enclave import DEFAULT_MEMORY_BYTES, serve_simulated


def serve_enclave(*, socket_path: Path, threads: int, memory: int | None = None) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status.

    Args:
        memory: how many MiB an epoch may need; by default as many as the trusted part's own program has it.
    """
    memory_bytes = DEFAULT_MEMORY_BYTES if memory is None else memory << 20
    serve_simulated(socket_path, threads=threads, memory_bytes=memory_bytes)
    return 0
