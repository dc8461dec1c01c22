"""``secagg train`` with ``sweep``, ``plot`` and ``data``, and ``secagg plan --seconds``."""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.registry import find

from .figures import Bar, against_float32, in_bytes, in_seconds, shown, writable, write_json
from .options import PROTOCOLS, protocol_name

CHANGES: Final[dict[str, Any]] = {
    "action": "append",
    "default": [],
    "metavar": "KEY=VALUE",
    "help": "change a value, such as compression.bits=4",
}
"""Arguments of the option ``--set``."""
_MANY: Final = 1_000_000
"""Default number of clients with ``--seconds``."""


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add the command and its subcommands."""
    trained = commands.add_parser(
        "train",
        help="federated learning through secure aggregation, on a CPU or a GPU (extra `train`)",
        description="Train a model with many simulated clients, whose updates are encoded, summed and decoded.",
    )
    which = trained.add_mutually_exclusive_group()
    which.add_argument(
        "--preset",
        metavar="NAME",
        help="fashion-, vader-, celeba-, femnist- or sent140- with none, sq, prune, pq; fashion- with peak, sketch",
    )
    which.add_argument("--config", type=Path, metavar="FILE", help="TOML file, such as the one in a run's folder")
    trained.add_argument("--set", **CHANGES)
    trained.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: build/runs/NAME-seedN)")
    trained.add_argument("--resume", action="store_true", help="resume from the checkpoint in that folder")
    trained.add_argument("--show", action="store_true", help="only print the whole configuration")
    trained.set_defaults(run=run_training)
    commands = trained.add_subparsers(metavar="COMMAND", help="without a command, train one run")
    swept = commands.add_parser("sweep", help="train every cell of a grid with every seed; skip finished ones")
    swept.add_argument("grid", type=Path, metavar="GRID.toml")
    swept.add_argument("--jobs", type=int, default=1, help="number of processes (default: %(default)s)")
    swept.add_argument("--out", type=Path, metavar="DIR", help="(default: build/sweeps/GRID)")
    swept.set_defaults(run=run_sweep)
    plotted = commands.add_parser("plot", help="draw figures of runs and sweeps, and one report with all of them")
    plotted.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="folder of a run or a sweep")
    plotted.add_argument("--out", type=Path, metavar="DIR", help="(default: figures in the first folder)")
    plotted.set_defaults(run=run_plot)
    data = commands.add_parser("data", help="prepare training data, or list it")
    steps = data.add_subparsers(required=True, metavar="COMMAND")
    for name, meant in (
        ("prepare", "convert a data set once to a format that loads fast"),
        ("info", "count its clients and examples"),
    ):
        step = steps.add_parser(name, help=meant)
        step.add_argument("name", metavar="DATA", help="fashion, fashion-full, vader, femnist, celeba or sent140")
        step.add_argument("--root", type=Path, metavar="PATH", help="folder of its files")
        step.set_defaults(run=run_data, prepares=name == "prepare")


def run_training(options: argparse.Namespace) -> int:
    """Train one run, and print its results."""
    if options.config is None and options.preset is None:
        raise InvalidParameters("choose a run: --preset NAME, or --config FILE")
    require_torch()
    from secagg.training.configuration import changed, read, to_toml, versions_here
    from secagg.training.driver import Progress, train
    from secagg.training.presets import preset
    from secagg.training.records import Observer

    configuration = read(options.config) if options.config is not None else preset(options.preset)
    configuration = changed(configuration, options.set)
    if options.show:
        print(to_toml(configuration, versions_here()), end="")
        return 0
    out = options.out or Path("build/runs") / f"{configuration.name}-seed{configuration.seed}"
    observers: list[Observer] = [Progress(configuration.name, configuration.rounds)]
    try:
        summary = train(configuration, out, resume=options.resume, observers=observers)
    except KeyboardInterrupt:
        print(f"\nstopped; resume with: secagg train --config {out / 'configuration.toml'} --out {out} --resume")
        return 130
    print("\n".join(_told(summary)))
    print(f"written to {out}; figures: secagg train plot {out}")
    return 0


def run_sweep(options: argparse.Namespace) -> int:
    """Train every cell of a grid that is not finished."""
    require_torch()
    from secagg.training.driver import read_grid, sweep
    from secagg.training.reports import cells_of, read_runs, table

    grid = read_grid(options.grid)
    out = options.out or Path("build/sweeps") / options.grid.stem
    results = sweep(grid, out, jobs=options.jobs, told=lambda line: print(line, file=sys.stderr, flush=True))
    failed = [result for result in results if "error" in result]
    for result in failed:
        print(f"{result['folder']} failed: {result['error']}")
    if len(failed) < len(results):
        print("\n".join(table(cells_of(read_runs([out])))))
    print(f"written to {out}; figures: secagg train plot {out}")
    return int(bool(failed))


def run_plot(options: argparse.Namespace) -> int:
    """Draw figures of runs, and write one report with all of them."""
    from secagg.training.reports import write_report

    report = write_report(options.folders, options.out or options.folders[0] / "figures")
    print(f"written to {report}")
    return 0


def run_data(options: argparse.Namespace) -> int:
    """Prepare data once, or list it."""
    require_torch()
    from secagg.training.datasets import federated_data

    if options.prepares:
        return _prepare(options.name, options.root)
    data = federated_data(options.name, root=options.root)
    sizes = data.sizes
    print(
        f"{data.name}: {len(sizes):,} clients, {int(sizes.sum()):,} training examples ({sizes.min()} to {sizes.max()} "
        f"of a client, {sizes.mean():.1f} on average), {len(data.test()):,} test examples, {data.classes} classes, "
        f"inputs of shape {data.shape}"
    )
    return 0


def _prepare(name: str, root: Path | None) -> int:
    from secagg.training.datasets import prepare_leaf

    if root is None:
        raise InvalidParameters(f"set --root to the folder of {name}'s files")
    bar = Bar()
    try:
        folder = prepare_leaf(name, root, progress=lambda done, count: bar.update(name, done, count))
    finally:
        bar.clear()
    print(f"{name} is prepared in {folder}; train with --set data.root={root}")
    return 0


def require_torch() -> None:
    """Raise an error unless torch is installed."""
    if find_spec("torch") is None:
        raise InvalidParameters("training needs torch: pip install '.[train]' in a checkout")


def _told(summary: dict[str, Any]) -> list[str]:
    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.2f} %"

    chosen = summary["best by validation"]
    lines = [
        f"accuracy: final {percent(summary['final accuracy'])}, best {percent(summary['best accuracy'])}"
        + (
            f"; chosen by validation (round {chosen['round']}): {percent(chosen['accuracy on the others'])}"
            if chosen
            else ""
        )
    ]
    if summary["payload bytes"] is not None:
        lines.append(
            f"payload: {in_bytes(summary['payload bytes'])} ({in_bytes(summary['paper bytes'])} by the paper's "
            f"accounting, {against_float32(summary['factor'], 1)}); to have the model a client receives "
            f"{in_bytes(summary['model bytes'])}"
        )
    if summary["wire up"] is not None:
        lines.append(
            f"wire up: {in_bytes(summary['wire up'])}, down: {in_bytes(summary['wire down'])}; the protocol ran in "
            f"{summary['rounds with a real protocol']} of {summary['rounds']} rounds and gave the plain sum each time, "
            f"in {summary['seconds of the protocol in a real round']:.2f} s for all parties"
        )
    if summary["overflow"] is not None:
        lines.append(f"overflow: {percent(summary['overflow'])} of the coordinates")
    if summary["epsilon"] is not None:
        lines.append(f"epsilon: {summary['epsilon']:.3g} for the client in the most rounds")
    if summary["failed rounds"]:
        lines.append(f"{summary['failed rounds']} rounds released nothing, because too many clients were lost")
    return lines


# --- Estimates --------------------------------------------------------------------------------------------------------

_INDENT = "      "


def add_seconds_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``secagg plan --seconds``."""
    command.add_argument("--set", **CHANGES).help = f"with --seconds PRESET: {CHANGES['help']}"
    scale = command.add_argument_group(
        "with --seconds",
        "One sum: for one-message, workers divide the additions; for other protocols, a server has one session per "
        "group of clients.",
    )
    scale.add_argument("--protocol", type=protocol_name, default="one-message", help=PROTOCOLS)
    scale.add_argument("--values", type=int, default=1 << 20, help="values per client (default: %(default)s)")
    scale.add_argument("--workers", type=int, default=64, help="number of machines (default: %(default)s)")
    scale.add_argument("--gigabits", type=float, default=10.0, help="bandwidth of each, Gbit/s (default: %(default)s)")


def run_seconds(options: argparse.Namespace) -> int:
    """Print the time of a training run, or of one sum of very many clients."""
    if options.seconds:
        return _training(options)
    if options.set:
        raise InvalidParameters("--set changes a training run; choose its preset with --seconds PRESET")
    return _scale(options)


def _scale(options: argparse.Namespace) -> int:
    from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
    from secagg.parameters import Suite
    from secagg.planning.seconds import SPREAD, Farm, calibrate, estimate_scale

    clients = _MANY if options.clients is None else options.clients
    for name, value, least, most in (
        ("clients", clients, 2, 1 << 32),
        ("values", options.values, 1, 1 << 40),
        ("bits", options.bits, 1, MAXIMUM_MODULUS_BITS - clients.bit_length()),
    ):
        if not least <= value <= most:
            raise InvalidParameters(f"--{name} must be between {least} and {most}; got {value}")
    farm = Farm(workers=options.workers, gigabits=options.gigabits)
    if options.json is not None:
        writable(options.json)
    entry, suite = find(options.protocol), Suite[options.suite.upper()]
    if entry.costs is None:
        raise InvalidParameters(f"{entry.name} declares no costs; use another protocol")
    constants = calibrate(entry, suite)
    lines = list(estimate_scale(entry, constants, clients, options.values, bits=options.bits, suite=suite, farm=farm))
    shown(
        [
            f"{clients:,} clients, {options.values:,} values of {options.bits} bits each; {entry.name}",
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

    configuration = changed(preset(options.seconds), options.set)
    found = estimate(configuration)
    print(f"{configuration.name}: {configuration.rounds:,} rounds of {configuration.clients_per_round} clients")
    print(f"{found.clients_per_second:,.0f} clients per second, encoding included, on this machine as it is now")
    print(f"{found.round_seconds:.2f} s a round, {in_time(3600 * found.hours)} in all")
    print(
        f"{in_bytes(found.payload_bytes)} up for a client and round ({in_bytes(found.paper_bytes)} by the paper's "
        f"accounting, {against_float32(found.factor, 1)})"
    )
    print(f"{in_bytes(found.bytes_up_in_all)} up and {in_bytes(found.bytes_down_in_all)} down, of all clients together")
    print(f"about {in_bytes(found.memory_bytes)} of memory in addition to the data")
    return 0
