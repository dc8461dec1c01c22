"""The ``secagg`` command: it reads arguments and calls the library."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from secagg.errors import SecAggError

_TABLES = ("sq", "sq_unweighted", "pruning", "pq", "codebooks")
"""The names in ``secagg.compression.paper_tables``, which is imported when it is needed."""
_MODELS = ("celeba", "sent140", "femnist")
"""The names in ``secagg.cli.plan``, likewise."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except SecAggError as error:
        print(f"secagg: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever reads the output has seen enough; the interpreter is not to complain about it at its end.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 -- it stays open until the end
        return 0
    except OSError as error:
        print(f"secagg: cannot write there: {error}; name another place", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="secagg", description="Secure aggregation for federated learning.")
    parser.add_argument("--version", action="version", version=f"secagg {version('secagg')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="a small session with dropouts, in memory, with a picture of who sees what")
    demo.add_argument("--clients", type=int, default=12, help="how many take part, 3 to 100 (default: %(default)s)")
    demo.add_argument("--drop", type=int, help="how many vanish before they upload (default: 2, or fewer of few)")
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="where the report and the picture go (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)
    _add_round_options(
        commands.add_parser(
            "round",
            help="one whole session in memory, with real cryptography, measured round by round",
            description="Run one session in memory, with real cryptography, and print what each round took, who "
            "dropped out where, what was revealed, and whether the sum is exact.",
        )
    )
    sizes = commands.add_parser("sizes", help="the size cells of the paper's tables, computed, beside the printed ones")
    sizes.add_argument("--table", choices=_TABLES, help="one table only (default: all)")
    sizes.add_argument("--json", action="store_true", help="a list with an object for each cell")
    sizes.set_defaults(run=_sizes)
    _add_plan_options(
        commands.add_parser(
            "plan",
            help="what every combination of compression and protocol costs for a model, the shortest upload first",
            description="Compute what every combination of compression and protocol costs for a model: bytes of a "
            "client, work of the server, whom it trusts, and whether it can be used; the shortest upload comes first.",
        )
    )
    _add_enclave_options(commands.add_parser("enclave", help="the trusted part of the enclave protocol"))
    _add_training_options(commands)
    return parser


def _add_training_options(commands: Any) -> None:  # noqa: ANN401 -- argparse gives it no public name
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
        "--preset", metavar="NAME", help="fashion-, vader-, celeba-, femnist- or sent140-, with none, sq, prune or pq"
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
    bench = commands.add_parser("bench", help="how fast this machine is")
    measured = bench.add_subparsers(required=True, metavar="WHAT").add_parser(
        "engines",
        help="how many clients each engine trains in a second, and how near that is to what the device can do",
    )
    measured.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    measured.add_argument(
        "--load", action="append", default=[], help="celeba, femnist, sent140, fashion (default: all)"
    )
    measured.add_argument("--engine", action="append", default=[], help="(default: all)")
    measured.add_argument("--clients", type=int, help="how many in a round")
    measured.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    measured.set_defaults(run=_bench_engines)
    estimated.set_defaults(run=_estimate)


def _add_plan_options(command: argparse.ArgumentParser) -> None:
    model = command.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", choices=_MODELS, help="a model of the paper")
    model.add_argument(
        "--shapes", type=Path, metavar="FILE", help='JSON such as {"layer.weight": [64, 32], "layer.bias": [64]}'
    )
    model.add_argument("--blocks", type=int, help="a model of so many blocks of --block-size values, and nothing else")
    command.add_argument("--codewords", type=int, default=64, help="of each codebook (default: %(default)s)")
    command.add_argument("--block-size", type=int, default=9, help="values of a codeword (default: %(default)s)")
    command.add_argument("--clients", type=int, default=100, help="how many are added up (default: %(default)s)")
    command.add_argument(
        "--learn",
        choices=("sum", "histogram"),
        default="sum",
        help="what the server has to learn; a histogram gives the sum as well (default: %(default)s)",
    )
    command.add_argument("--bits", type=int, default=8, help="of scalar quantization (default: %(default)s)")
    command.add_argument("--sparsity", default="0.9", help="the share that pruning leaves out (default: %(default)s)")
    command.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="(default: %(default)s)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    command.set_defaults(run=_plan)


def _add_enclave_options(command: argparse.ArgumentParser) -> None:
    commands = command.add_subparsers(required=True, metavar="COMMAND")
    served = commands.add_parser(
        "serve",
        help="run the trusted part in a process of its own, behind a Unix socket",
        description="Run the trusted part in a process of its own, until SIGTERM or SIGINT. Its evidence is simulated: "
        "without hardware it protects nobody from whoever owns this machine.",
    )
    served.add_argument("--socket", type=Path, required=True, metavar="PATH", help="where its host connects")
    served.add_argument("--threads", type=int, default=1, help="how many threads expand masks (default: %(default)s)")
    served.set_defaults(run=_serve_enclave)


def _add_round_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--protocol", choices=("pairwise", "enclave"), default="pairwise", help="who adds up (default: %(default)s)"
    )
    command.add_argument("--clients", type=int, default=100, help="how many are invited (default: %(default)s)")
    command.add_argument("--dimension", type=int, default=100_000, help="values of each client (default: %(default)s)")
    command.add_argument(
        "--drop",
        type=int,
        help="how many drop out (default: one in twenty), dealt out in turn to: before uploading, before unmasking, "
        "before sharing keys, before the consistency check (active mode), before advertising keys",
    )
    command.add_argument("--corrupted", type=int, help="how many the plan withstands (default: one in twenty)")
    command.add_argument("--mode", choices=("active", "semi_honest"), default="active", help="(default: %(default)s)")
    command.add_argument("--graph", choices=("sparse", "full"), default="sparse", help="(default: %(default)s)")
    command.add_argument("--suite", choices=("classic", "hybrid"), default="classic", help="(default: %(default)s)")
    command.add_argument(
        "--bits",
        type=int,
        default=16,
        help="bits of one input value; the ring has as many more as the sum needs (default: %(default)s)",
    )
    enclave = command.add_argument_group("of the enclave, whose hardware is simulated")
    enclave.add_argument(
        "--compression",
        choices=("none", "sq", "pruning", "pq"),
        default="pq",
        help="what is done with a model of that dimension (default: %(default)s)",
    )
    enclave.add_argument("--codewords", type=int, default=64, help="of each codebook (default: %(default)s)")
    enclave.add_argument("--block-size", type=int, default=9, help="values of a codeword (default: %(default)s)")
    enclave.add_argument(
        "--release",
        choices=("decoded-sum", "histogram"),
        default="decoded-sum",
        help="what leaves the enclave of counted codewords (default: %(default)s)",
    )
    enclave.add_argument(
        "--accumulation",
        choices=("oblivious", "direct"),
        default="oblivious",
        help="whether counting touches all counters or those that the indices name (default: %(default)s)",
    )
    command.add_argument("--threads", type=int, default=1, help="how many threads expand masks (default: %(default)s)")
    command.add_argument(
        "--seed", default="", help="of the inputs, up to 16 bytes count; keys and masks are fresh in every run"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    command.set_defaults(run=_round)


def _demo(options: argparse.Namespace) -> int:
    from secagg.cli.demo import run_demo

    return run_demo(clients=options.clients, drop=options.drop, out=options.out)


def _round(options: argparse.Namespace) -> int:
    if options.protocol == "enclave":
        return _enclave_round(options)
    from secagg.cli.round import run_round
    from secagg.parameters import SecurityMode, Suite
    from secagg.protocols.pairwise_mask import Topology
    from secagg.simulation.cohort import Setting

    setting = Setting(
        mode=SecurityMode(options.mode),
        topology=Topology(options.graph),
        suite=Suite[options.suite.upper()],
        corrupted=options.clients // 20 if options.corrupted is None else options.corrupted,
        threads=options.threads,
    )
    return run_round(
        clients=options.clients,
        dimension=options.dimension,
        drop=options.clients // 20 if options.drop is None else options.drop,
        input_bits=options.bits,
        seed=options.seed,
        setting=setting,
        report=options.json,
    )


def _serve_enclave(options: argparse.Namespace) -> int:
    from secagg.cli.enclave import serve_enclave

    return serve_enclave(socket_path=options.socket, threads=options.threads)


def _enclave_round(options: argparse.Namespace) -> int:
    from secagg.cli.enclave_round import EnclaveSetting, run_enclave_round
    from secagg.parameters import Suite
    from secagg.protocols.enclave.configuration import ReleaseForm
    from secagg.protocols.enclave.histogram import Accumulation
    from secagg.simulation.synthetic_updates import Compression, UpdateSetting

    updates = UpdateSetting(
        clients=options.clients,
        dimension=options.dimension,
        compression=Compression(options.compression),
        codewords=options.codewords,
        block_size=options.block_size,
        seed=options.seed,
    )
    setting = EnclaveSetting(
        drop=options.clients // 20 if options.drop is None else options.drop,
        suite=Suite[options.suite.upper()],
        form=ReleaseForm[options.release.replace("-", "_").upper()],
        accumulation=Accumulation[options.accumulation.upper()],
        threads=options.threads,
    )
    return run_enclave_round(updates, setting, options.json)


def _train(options: argparse.Namespace) -> int:
    from secagg.cli.train import run_training

    return run_training(options)


def _sweep(options: argparse.Namespace) -> int:
    from secagg.cli.train import run_sweep

    return run_sweep(options)


def _plot(options: argparse.Namespace) -> int:
    from secagg.cli.train import run_plot

    return run_plot(options)


def _data(options: argparse.Namespace) -> int:
    from secagg.cli.train import run_data

    return run_data(options)


def _bench_engines(options: argparse.Namespace) -> int:
    from secagg.cli.train import require_torch

    require_torch()
    from secagg.cli.bench_engines import run_bench_engines

    return run_bench_engines(
        device=options.device,
        loads=options.load,
        engines=options.engine,
        clients=options.clients,
        report=options.json,
    )


def _estimate(options: argparse.Namespace) -> int:
    from secagg.cli.train import run_estimate

    return run_estimate(options)


def _sizes(options: argparse.Namespace) -> int:
    from secagg.cli.sizes import run_sizes

    return run_sizes(table=options.table, as_json=options.json)


def _plan(options: argparse.Namespace) -> int:
    from secagg.cli.plan import run_plan, shapes_of
    from secagg.compression.random_pruning import exact_sparsity
    from secagg.parameters import Suite
    from secagg.simulation.planned_update import Learned, PlanRequest

    request = PlanRequest(
        shapes=shapes_of(
            model=options.model, file=options.shapes, blocks=options.blocks, block_size=options.block_size
        ),
        codewords=options.codewords,
        block_size=options.block_size,
        clients=options.clients,
        learn=Learned(options.learn),
        bits=options.bits,
        sparsity=exact_sparsity(options.sparsity),
        suite=Suite[options.suite.upper()],
    )
    return run_plan(request, options.json)
