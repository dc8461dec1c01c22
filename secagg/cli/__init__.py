"""The ``secagg`` command: it reads arguments and calls the library."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from secagg.errors import SecAggError

_TABLES = ("sq", "sq_unweighted", "pruning", "pq", "codebooks")
"""The names in ``secagg.compression.paper_tables``, which is imported when it is needed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except SecAggError as error:
        print(f"secagg: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"secagg: cannot write there: {error}; choose another --out", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="secagg", description="Secure aggregation for federated learning.")
    parser.add_argument("--version", action="version", version=f"secagg {version('secagg')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="one masked sum with dropouts, in memory, with a picture of who sees what")
    demo.add_argument("--clients", type=int, default=12, help="how many take part, 3 to 300 (default: %(default)s)")
    demo.add_argument("--drop", type=int, help="how many vanish before they upload (default: 2, or fewer of few)")
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="where the report and the picture go (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)
    sizes = commands.add_parser("sizes", help="the size cells of the paper's tables, computed, beside the printed ones")
    sizes.add_argument("--table", choices=_TABLES, help="one table only (default: all)")
    sizes.add_argument("--json", action="store_true", help="a list with an object for each cell")
    sizes.set_defaults(run=_sizes)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from secagg.cli.demo import run_demo

    return run_demo(clients=options.clients, drop=options.drop, out=options.out)


def _sizes(options: argparse.Namespace) -> int:
    from secagg.cli.sizes import run_sizes

    return run_sizes(table=options.table, as_json=options.json)
