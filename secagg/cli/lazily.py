"""A command that is imported when it runs, so that reading arguments loads no protocol."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module


def when_run(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """Return a command that imports ``secagg.cli.<module>`` and calls a function of it with the options."""

    def run(options: argparse.Namespace) -> int:
        return int(getattr(import_module(f"secagg.cli.{module}"), name)(options))

    return run
