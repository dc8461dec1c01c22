"""The engines, timed: clients per second for the paper's models, beside what the machine could do at best."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .figures import Bar

if TYPE_CHECKING:
    from secagg.training.engines.benchmark import Machine, Measured


def run_bench_engines(
    *, device: str, loads: Sequence[str], engines: Sequence[str], clients: int | None, report: Path | None
) -> int:
    """Time each engine with each load, print a table, and write all figures to a file where one is named.

    Raises:
        InvalidParameters: a load, an engine or the device does not exist.
    """
    from secagg.training.engines import ENGINES
    from secagg.training.engines.benchmark import LOADS, measure_engines, measure_machine

    chosen, names = list(loads) or list(LOADS), list(engines) or list(ENGINES)
    machine, bar, found = measure_machine(device), Bar(), list["Measured"]()
    for place, load in enumerate(chosen):
        for number, name in enumerate(names):
            bar.update(f"{load}: {name}", place * len(names) + number, len(chosen) * len(names))
            found += measure_engines(load, machine, engines=[name], clients=clients)
    bar.clear()
    print("\n".join(_table(machine, found)))
    if report is not None:
        figures = {"machine": asdict(machine), "engines": [asdict(row) for row in found]}
        report.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def _table(machine: Machine, found: Sequence[Measured]) -> Iterator[str]:
    yield (
        f"{machine.device} ({machine.name}), torch {machine.torch_version}: {machine.operations_per_second / 1e9:.0f} "
        f"GFLOP/s in a large product, {machine.bytes_per_second / 1e9:.1f} GB/s in a large copy"
    )
    yield f"{'model':<10}{'engine':<12}{'clients/s':>11}{'against sequential':>20}{'arithmetic':>12}{'bandwidth':>11}"
    base = {row.load: row.clients_per_second for row in found if row.engine == "sequential"}
    for row in found:
        line = f"{row.load:<10}{row.engine:<12}"
        if row.clients_per_second is None or row.arithmetic_share is None or row.bandwidth_share is None:
            yield f"{line}  cannot: {row.refusal}"
            continue
        alone = base.get(row.load)
        ratio = "-" if not alone else f"{row.clients_per_second / alone:.2f}"
        yield (
            f"{line}{row.clients_per_second:>11.1f}{ratio:>20}{row.arithmetic_share:>12.1%}{row.bandwidth_share:>11.1%}"
        )
    yield "arithmetic, bandwidth: the time at that floor as a share of the time taken"
