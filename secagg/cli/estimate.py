"""``secagg estimate``: what a run will take."""

from __future__ import annotations

import argparse
from typing import Any

from .figures import in_bytes
from .train import CHANGES, require_torch


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg estimate``."""
    estimated = commands.add_parser("estimate", help="what a run will take, by a few timed clients")
    estimated.add_argument("preset", metavar="PRESET")
    estimated.add_argument("--set", **CHANGES)
    estimated.set_defaults(run=run_estimate)


def run_estimate(options: argparse.Namespace) -> int:
    """Say what a run will take."""
    require_torch()
    from secagg.training.runs.estimate import estimate
    from secagg.training.runs.progress import in_time
    from secagg.training.settings.configuration import changed
    from secagg.training.settings.presets import preset

    configuration = changed(preset(options.preset), options.set)
    found = estimate(configuration)
    print(f"{configuration.name}: {configuration.rounds:,} rounds of {configuration.clients_per_round} clients")
    print(f"{found.clients_per_second:,.0f} clients per second, encoding included, on this machine as it is now")
    print(f"{found.round_seconds:.2f} s a round, {in_time(3600 * found.hours)} in all")
    print(
        f"{in_bytes(found.payload_bytes)} up for a client and round ({in_bytes(found.paper_bytes)} by the paper's "
        f"accounting, {found.factor:.1f} times less than float32)"
    )
    print(f"{in_bytes(found.bytes_up_in_all)} up and {in_bytes(found.bytes_down_in_all)} down, of all clients together")
    print(f"some {in_bytes(found.memory_bytes)} of memory beside the data")
    return 0
