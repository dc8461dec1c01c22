"""Training: one run, a sweep, its figures, its data, and what it will take."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from secagg.errors import InvalidParameters

from .figures import in_bytes

_NEEDED = "training needs torch: pip install 'secagg[train]'"


def run_training(options: argparse.Namespace) -> int:
    """Train one run, and print what it came to."""
    require_torch()
    from secagg.training.records.metrics import Observer, TensorBoard
    from secagg.training.runs.driver import train
    from secagg.training.runs.progress import Progress
    from secagg.training.settings.configuration import changed, read, to_toml, versions_here
    from secagg.training.settings.presets import preset

    configuration = read(options.config) if options.config is not None else preset(options.preset)
    configuration = changed(configuration, options.set)
    if options.show:
        print(to_toml(configuration, versions_here()), end="")
        return 0
    out = options.out or Path("build/runs") / f"{configuration.name}-seed{configuration.seed}"
    observers: list[Observer] = [Progress(configuration.name, configuration.rounds)]
    if options.tensorboard:
        observers.append(TensorBoard(out / "tensorboard"))
    try:
        summary = train(configuration, out, resume=options.resume, observers=observers)
    except KeyboardInterrupt:
        print(f"\nstopped; go on with: secagg train --config {out / 'configuration.toml'} --out {out} --resume")
        return 130
    print("\n".join(_told(summary)))
    print(f"written to {out}; figures: secagg plot {out}")
    return 0


def run_sweep(options: argparse.Namespace) -> int:
    """Train every cell of a grid that is not finished."""
    require_torch()
    from secagg.training.runs.sweep import read_grid, sweep, table

    grid = read_grid(options.grid)
    out = options.out or Path("build/sweeps") / options.grid.stem
    results = sweep(
        grid, out, jobs=options.jobs, ray=options.ray, told=lambda line: print(line, file=sys.stderr, flush=True)
    )
    print("\n".join(table(results)))
    print(f"written to {out}; figures: secagg plot {out}")
    return 0 if all(result.get("error") is None for result in results) else 1


def run_plot(options: argparse.Namespace) -> int:
    """Draw figures of runs, and write one report with all of them."""
    require_torch()
    from secagg.training.reports.report import write_report

    report = write_report(options.folders, options.out or options.folders[0] / "figures")
    print(f"written to {report}")
    return 0


def run_data(options: argparse.Namespace) -> int:
    """Prepare data once, or say what is there."""
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


def _prepare(name: str, root: Path | None) -> int:
    from secagg.training.datasets import prepare_leaf

    from .figures import Bar

    if root is None:
        raise InvalidParameters(f"say where the files of {name} are, with --root")
    bar = Bar()
    try:
        folder = prepare_leaf(name, root, progress=lambda done, count: bar.update(name, done, count))
    finally:
        bar.clear()
    print(f"{name} is prepared in {folder}; train with --set data.root={root}")
    return 0


def require_torch() -> None:
    """Refuse to go on without torch."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InvalidParameters(_NEEDED)


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
            f"a client sends {in_bytes(summary['payload bytes'])} ({in_bytes(summary['paper bytes'])} by the paper's "
            f"accounting, {summary['factor']:.1f} times less than float32)"
        )
    if summary["bytes up of a client, protocol included"] is not None:
        lines.append(
            f"with the protocol {in_bytes(summary['bytes up of a client, protocol included'])}; it ran for real in "
            f"{summary['rounds with a real protocol']} of {summary['rounds']} rounds and gave the plain sum each time, "
            f"in {summary['seconds of the protocol in a real round']:.2f} s for all parties"
        )
    if summary["overflow"] is not None:
        lines.append(f"overflow: {percent(summary['overflow'])} of the coordinates")
    if summary["epsilon"] is not None:
        lines.append(f"epsilon: {summary['epsilon']:.3g} for the client that was in most rounds")
    if summary["failed rounds"]:
        lines.append(f"{summary['failed rounds']} rounds released nothing, because too many clients were lost")
    return lines
