"""The commands of training, and their options; torch is imported when one of them runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_training_options(commands: Any) -> None:  # noqa: ANN401 -- argparse gives it no public name
    """Add the commands of training to the others."""
    changes: dict[str, Any] = {
        "action": "append",
        "default": [],
        "metavar": "KEY=VALUE",
        "help": "change a value, such as compression.bits=4",
    }
    trained = commands.add_parser(
        "train",
        help="federated learning through secure aggregation, on a CPU or a GPU (extra `train`)",
        description="Train a model over many simulated clients, with every update encoded, summed and decoded.",
    )
    which = trained.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--preset",
        metavar="NAME",
        help="fashion-, vader-, celeba-, femnist- or sent140- with none, sq, prune, pq; fashion- with peak, sketch",
    )
    which.add_argument("--config", type=Path, metavar="FILE", help="a TOML file, such as the one in a run's folder")
    trained.add_argument("--set", **changes)
    trained.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: build/runs/NAME-seedN)")
    trained.add_argument("--resume", action="store_true", help="go on from the checkpoint in that folder")
    trained.add_argument("--show", action="store_true", help="print the whole configuration, and train nothing")
    trained.add_argument("--tensorboard", action="store_true", help="write its logs too, where it is installed")
    trained.set_defaults(run=_train)
    swept = commands.add_parser("sweep", help="every cell of a grid with every seed; finished ones are skipped")
    swept.add_argument("grid", type=Path, metavar="GRID.toml")
    swept.add_argument("--jobs", type=int, default=1, help="how many processes (default: %(default)s)")
    swept.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="train on a Ray cluster, or on one that is started here with --jobs processes (extra `ray`)",
    )
    swept.add_argument("--out", type=Path, metavar="DIR", help="(default: build/sweeps/GRID)")
    swept.set_defaults(run=_sweep)
    plotted = commands.add_parser("plot", help="figures of runs and sweeps, and one report with all of them")
    plotted.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="of a run, or of a sweep")
    plotted.add_argument("--out", type=Path, metavar="DIR", help="(default: figures in the first folder)")
    plotted.set_defaults(run=_plot)
    data = commands.add_parser("data", help="prepare training data, or say what is there")
    steps = data.add_subparsers(required=True, metavar="COMMAND")
    for name, meant in (
        ("prepare", "read a data set once and keep it in a form that loads fast"),
        ("info", "count it"),
    ):
        step = steps.add_parser(name, help=meant)
        step.add_argument("name", metavar="DATA", help="fashion, fashion-full, vader, femnist, celeba or sent140")
        step.add_argument("--root", type=Path, metavar="PATH", help="where its files are")
        step.set_defaults(run=_data, prepares=name == "prepare")
    estimated = commands.add_parser("estimate", help="what a run will take, by a few timed clients")
    estimated.add_argument("preset", metavar="PRESET")
    estimated.add_argument("--set", **changes)
    estimated.set_defaults(run=_estimate)


def _train(options: argparse.Namespace) -> int:
    from .train import run_training

    return run_training(options)


def _sweep(options: argparse.Namespace) -> int:
    from .train import run_sweep

    return run_sweep(options)


def _plot(options: argparse.Namespace) -> int:
    from .train import run_plot

    return run_plot(options)


def _data(options: argparse.Namespace) -> int:
    from .train import run_data

    return run_data(options)


def _estimate(options: argparse.Namespace) -> int:
    from .train import run_estimate

    return run_estimate(options)
