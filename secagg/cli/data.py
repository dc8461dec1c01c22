"""``secagg data``: training data, prepared once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from secagg.errors import InvalidParameters

from .figures import Bar
from .train import require_torch


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg data``."""
    data = commands.add_parser("data", help="prepare training data, or say what is there")
    steps = data.add_subparsers(required=True, metavar="COMMAND")
    for name, meant in (
        ("prepare", "read a data set once and keep it in a form that loads fast"),
        ("info", "count it"),
    ):
        step = steps.add_parser(name, help=meant)
        step.add_argument("name", metavar="DATA", help="fashion, fashion-full, vader, femnist, celeba or sent140")
        step.add_argument("--root", type=Path, metavar="PATH", help="where its files are")
        step.set_defaults(run=run_data, prepares=name == "prepare")


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


def _prepare(name: str, root: Path | None) -> int:
    from secagg.training.datasets import prepare_leaf

    if root is None:
        raise InvalidParameters(f"say where the files of {name} are, with --root")
    bar = Bar()
    try:
        folder = prepare_leaf(name, root, progress=lambda done, count: bar.update(name, done, count))
    finally:
        bar.clear()
    print(f"{name} is prepared in {folder}; train with --set data.root={root}")
    return 0
