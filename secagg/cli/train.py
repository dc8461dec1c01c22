"""``secagg train``: one run."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters

from .figures import in_bytes

CHANGES: Final[dict[str, Any]] = {
    "action": "append",
    "default": [],
    "metavar": "KEY=VALUE",
    "help": "change a value, such as compression.bits=4",
}
"""Of ``--set``."""


def add_options(commands: Any) -> None:  # noqa: ANN401 -- argparse names the type of its subparsers privately
    """Add ``secagg train``."""
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
    trained.add_argument("--set", **CHANGES)
    trained.add_argument("--out", type=Path, metavar="DIR", help="the run's folder (default: build/runs/NAME-seedN)")
    trained.add_argument("--resume", action="store_true", help="go on from the checkpoint in that folder")
    trained.add_argument("--show", action="store_true", help="print the whole configuration, and train nothing")
    trained.set_defaults(run=run_training)


def run_training(options: argparse.Namespace) -> int:
    """Train one run, and print what it came to."""
    require_torch()
    from secagg.training.records import Observer
    from secagg.training.runs.driver import Progress, train
    from secagg.training.settings.configuration import changed, read, to_toml, versions_here
    from secagg.training.settings.presets import preset

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
        print(f"\nstopped; go on with: secagg train --config {out / 'configuration.toml'} --out {out} --resume")
        return 130
    print("\n".join(_told(summary)))
    print(f"written to {out}; figures: secagg plot {out}")
    return 0


def require_torch() -> None:
    """Refuse to go on without torch."""
    if find_spec("torch") is None:
        raise InvalidParameters("training needs torch: pip install 'secagg[train]'")


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
