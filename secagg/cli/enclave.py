"""``secagg enclave serve``: the trusted part's own program, started from here where nothing is measured."""

from __future__ import annotations

import argparse

from secagg.protocols.enclave import DEFAULT_MEMORY_BYTES, serve_simulated


def serve_enclave(options: argparse.Namespace) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status."""
    memory_bytes = DEFAULT_MEMORY_BYTES if options.memory is None else options.memory << 20
    serve_simulated(options.socket, threads=options.threads, memory_bytes=memory_bytes)
    return 0
