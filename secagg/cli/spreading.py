"""Options of sums that are added by other processes or machines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from secagg.errors import InvalidParameters
from secagg.session.metrics import Metrics
from secagg.session.registry import ProtocolEntry

if TYPE_CHECKING:
    from secagg.contract.pieces import Adder, Cut
    from secagg.scale.memory import Memory
    from secagg.scale.spread import Figures

ENGINES = ("memory", "processes", "ray")


def add_options(command: Any) -> None:  # noqa: ANN401 -- argparse names the type of its groups privately
    """Add the options to a command."""
    group = command.add_argument_group("who adds the uploads: the server, or its workers")
    group.add_argument("--engine", choices=ENGINES, help="(default: the server itself, without a storage)")
    group.add_argument("--workers", type=int, default=2, help="of processes or ray (default: %(default)s)")
    group.add_argument("--ray-address", default="", metavar="ADDRESS", help="of a cluster (default: a local one)")
    group.add_argument("--storage", metavar="URL", help="that all workers see (default: a folder for this run alone)")
    group.add_argument("--audit", type=int, default=0, metavar="N", help="have one of N jobs done by two workers")
    group.add_argument("--metrics", type=Path, metavar="FILE", help="keep figures there, as Prometheus reads them")


@dataclass(slots=True)
class Spreading:
    """Who adds, and where it tells how far it is."""

    adding: Callable[..., Adder] | None = None
    """``adding(cut)``, with a ``memory`` where there is one; None where the server adds."""
    metrics: Metrics = field(default_factory=Metrics)


@contextmanager
def workers_for(
    entry: ProtocolEntry, options: argparse.Namespace, show: Callable[[Figures], None]
) -> Generator[Spreading]:
    """Start the workers that the options ask for, and end them."""
    found = Spreading()
    _require_sense(entry, options)
    if options.engine is None:
        yield found
        return
    from secagg.crypto.entropy import SystemCoins
    from secagg.scale.spread import SpreadSettings, SpreadSum
    from secagg.scale.telling import tell
    from secagg.scale.workers import open_workers

    def told(figures: Figures) -> None:
        show(figures)
        tell(found.metrics, figures)
        if options.metrics is not None:
            # Who collects figures from files must not see a half of one.
            beside = options.metrics.with_name(options.metrics.name + ".new")
            beside.write_text(found.metrics.text())
            beside.replace(options.metrics)

    def adding(cut: Cut, memory: Memory | None = None) -> Adder:
        return SpreadSum(cut, workers, settings, coins=SystemCoins(), memory=memory, progress=told)

    with TemporaryDirectory() as folder:
        settings = SpreadSettings(storage=options.storage or folder, audited=options.audit)
        workers = open_workers(options.engine, options.workers, options.ray_address)
        found.adding = adding
        try:
            yield found
        finally:
            workers.close()


def _require_sense(entry: ProtocolEntry, options: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    if options.engine is None:
        for name in ("storage", "metrics", "audit", "ray_address"):
            if getattr(options, name):
                raise InvalidParameters(f"--{name.replace('_', '-')} is for --engine; say who adds the uploads")
        return
    if not entry.spreads:
        raise InvalidParameters(f"the uploads of {entry.name} are added by its server alone; leave out --engine")
    if not 1 <= options.workers <= 1 << 12:
        raise InvalidParameters(f"--workers is in 1..4096; got {options.workers}")
    if options.ray_address and options.engine != "ray":
        raise InvalidParameters("--ray-address is for --engine ray")
    if options.ray_address and options.storage is None:
        raise InvalidParameters("--ray-address needs --storage: a folder or URL that all machines of the cluster see")
