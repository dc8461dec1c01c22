"""Commands that are imported when they run, so that reading arguments loads no protocol."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module


def when_run(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command that imports its function, and calls it with its options."""

    def run(options: argparse.Namespace) -> int:
        command: Callable[[argparse.Namespace], int] = getattr(import_module(module), name)
        return command(options)

    return run
