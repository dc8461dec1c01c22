"""``secagg estimate``: what a run will take, of training or of one sum of very many clients."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from secagg.errors import InvalidParameters
from secagg.session.registry import find, names

from .figures import against_float32, in_bytes, in_seconds, shown, writable, write_json
from .train import CHANGES, require_torch

_INDENT = "      "


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg estimate``."""
    estimated = commands.add_parser("estimate", help="what a run will take, by a few timed clients")
    estimated.add_argument("preset", metavar="PRESET", nargs="?", help="of a training run")
    estimated.add_argument("--set", **CHANGES)
    scale = estimated.add_argument_group("one sum of very many clients, in place of a training run")
    scale.add_argument(
        "--scale",
        action="store_true",
        help="run small sessions, and scale their seconds: of one-message as its additions are divided among workers, "
        "of other protocols as a server has a session for each group of clients",
    )
    scale.add_argument("--protocol", choices=names(), default="one-message", help="(default: %(default)s)")
    scale.add_argument("--clients", type=int, default=1_000_000, help="(default: %(default)s)")
    scale.add_argument("--values", type=int, default=1 << 20, help="of each client (default: %(default)s)")
    scale.add_argument("--bits", type=int, default=8, help="of one value (default: %(default)s)")
    scale.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="(default: %(default)s)")
    scale.add_argument("--workers", type=int, default=64, help="machines that add up (default: %(default)s)")
    scale.add_argument("--gigabits", type=float, default=10.0, help="a second into each (default: %(default)s)")
    scale.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    estimated.set_defaults(run=run_estimate)


def run_estimate(options: argparse.Namespace) -> int:
    """Say what a run will take."""
    if options.scale and options.set:
        raise InvalidParameters("--set changes a training run; leave it out with --scale")
    if options.scale == (options.preset is not None):
        raise InvalidParameters("estimate a training run by its PRESET, or one sum with --scale; give one of the two")
    return _scale(options) if options.scale else _training(options)


# --- Private ----------------------------------------------------------------------------------------------------------


def _scale(options: argparse.Namespace) -> int:
    from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
    from secagg.parameters import Suite
    from secagg.planning.seconds import SPREAD, Farm, calibrate, estimate_scale

    for name, value, least, most in (
        ("clients", options.clients, 2, 1 << 32),
        ("values", options.values, 1, 1 << 40),
        ("bits", options.bits, 1, MAXIMUM_MODULUS_BITS - options.clients.bit_length()),
    ):
        if not least <= value <= most:
            raise InvalidParameters(f"--{name} is in {least}..{most}; got {value}")
    farm = Farm(workers=options.workers, gigabits=options.gigabits)
    if options.json is not None:
        writable(options.json)
    entry, suite = find(options.protocol), Suite[options.suite.upper()]
    if entry.costs is None:
        raise InvalidParameters(f"{entry.name} does not say what it costs; take another protocol")
    constants = calibrate(entry, suite)
    lines = list(
        estimate_scale(entry, constants, options.clients, options.values, bits=options.bits, suite=suite, farm=farm)
    )
    shown(
        [
            f"{options.clients:,} clients, {options.values:,} values of {options.bits} bits each; {entry.name}",
            (
                f"this holds for {SPREAD} as `secagg serve --engine` adds it, divided among workers; for other "
                "protocols as `--group` has them, a server for each session, whose sums `secagg add` joins"
            ),
        ]
    )
    machine = (
        f"on this machine a client takes {in_seconds(constants.client.step)} a step and "
        f"{1e9 * constants.client.word:.2f} ns a word, the server {in_seconds(constants.server.step)} and "
        f"{1e9 * constants.server.word:.2f} ns, and {in_seconds(constants.session)} a session"
    )
    shown([machine])
    width = max(len(line.name) for line in lines)
    for line in lines:
        print(f"  {line.name:<{width}}  {_in_unit(line.value, line.unit):>10}")
        shown([f"{_INDENT}{line.assumes}"], _INDENT)
    if options.json is not None:
        figures = [
            {"name": line.name, "value": line.value, "unit": line.unit, "assumes": line.assumes} for line in lines
        ]
        write_json(options.json, figures)
        print(f"\nwritten to {options.json}")
    return 0


def _in_unit(value: float, unit: str) -> str:
    match unit:
        case "s":
            return in_seconds(value)
        case "B":
            return in_bytes(value)
        case _:
            return f"{value:,.0f}"


def _training(options: argparse.Namespace) -> int:
    require_torch()
    from secagg.training.configuration import changed
    from secagg.training.driver import estimate, in_time
    from secagg.training.presets import preset

    configuration = changed(preset(options.preset), options.set)
    found = estimate(configuration)
    print(f"{configuration.name}: {configuration.rounds:,} rounds of {configuration.clients_per_round} clients")
    print(f"{found.clients_per_second:,.0f} clients per second, encoding included, on this machine as it is now")
    print(f"{found.round_seconds:.2f} s a round, {in_time(3600 * found.hours)} in all")
    print(
        f"{in_bytes(found.payload_bytes)} up for a client and round ({in_bytes(found.paper_bytes)} by the paper's "
        f"accounting, {against_float32(found.factor, 1)})"
    )
    print(f"{in_bytes(found.bytes_up_in_all)} up and {in_bytes(found.bytes_down_in_all)} down, of all clients together")
    print(f"some {in_bytes(found.memory_bytes)} of memory in addition to the data")
    return 0
