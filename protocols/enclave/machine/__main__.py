"""The measured program: ``python -m secagg.protocols.enclave.machine --listen ADDRESS``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final

from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.protocols.enclave.trusted.enclave import DEFAULT_MEMORY_BYTES

from .evidence import SOURCES
from .serving import serve_at

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one host after the other until SIGTERM or SIGINT, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m secagg.protocols.enclave.machine", description=__doc__)
    parser.add_argument("--listen", required=True, help="address: unix:PATH, vsock:PORT or virtio:NAME")
    parser.add_argument("--evidence", required=True, choices=tuple(SOURCES), help="source of evidence")
    parser.add_argument("--threads", type=int, default=1, help="number of threads for masks (default: %(default)s)")
    usual = DEFAULT_MEMORY_BYTES >> 20
    parser.add_argument("--memory", type=int, default=usual, help="memory of an epoch, in MiB (default: %(default)s)")
    options = parser.parse_args(arguments)
    for each in _ENDING:
        signal.signal(each, _end)
    try:
        serve_at(
            options.listen,
            evidence=options.evidence,
            coins=SystemCoins(),
            threads=options.threads,
            memory_bytes=options.memory << 20,
        )
    except SecAggError as error:
        print(f"enclave: {error}", file=sys.stderr)
        return 2
    return 0


def _end(*_: int | FrameType | None) -> None:
    # A second signal must not interrupt the code that overwrites keys and removes sockets.
    for each in _ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
