"""Cost of dishonest clients: every attack against every scheme on the bundled images, with a baseline without attack.

A run is some rounds of federated averaging over exact modular sums, in which 20 % of the clients of every round attack.
Runs are kept in the given folder, the most informative first, so a stopped study can be resumed; the table and the
figure have the finished runs. ``--only`` selects schemes by the start of their names.

    python benchmarks/training_attacks.py build/attacks --json benchmarks/results/training_attacks.json
    python benchmarks/training_attacks.py --picture benchmarks/results/training_attacks.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from secagg.training.configuration import AttackKind, Configuration, changed, versions_here
from secagg.training.driver import Cell, Grid, sweep
from secagg.training.presets import preset
from secagg.training.reports import new_figure

UNBOUNDED: Final = "not bounded: a ring element may be anything"
SCHEMES: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "peak, median length": (
        ("scheme=peak", "places=128", "refresh=10", "lengths=median"),
        "enclave, two servers: direction and length, by the check of one codeword a block",
    ),
    "none": ((), UNBOUNDED),
    "peak, mean length": (
        ("scheme=peak", "places=128", "refresh=10", "lengths=own"),
        "enclave, two servers: direction; the length to four times that of the round before",
    ),
    "sketch": (("scheme=sketch", "bits=1", "refresh=10"), UNBOUNDED),
    "sq": (("scheme=sq", "bits=6", "modulus_bits=8", "wrap=true"), UNBOUNDED),
    "pruning": (("scheme=pruning", "sparsity=0.9"), UNBOUNDED),
    "pq": (("scheme=pq", "codewords=16", "block_size=9"), "codewords, by the check; scales are ring elements"),
}
"""Compression settings of each scheme, and the bound on a client."""
INDEXED: Final = ("peak", "pq")
COHORTS: Final = (20, 100)
_NAMES: Final = {
    "peak, median length": "peak code of 128, median of lengths",
    "none": "uncompressed",
    "peak, mean length": "peak code of 128, mean of lengths",
    "sketch": "linear sketch, 1 bit a value",
    "sq": "scalar quantization, 6 bits in a ring of 8",
    "pruning": "random pruning, 1 value in 10",
    "pq": "product quantization, 16 codewords of 9",
}
_ATTACKS: Final = {
    AttackKind.NONE: "no attack",
    AttackKind.SIGN_FLIP: "update times -1",
    AttackKind.FLIP_TENFOLD: "update times -10",
    AttackKind.SCALE_TENFOLD: "update times 10",
    AttackKind.INSIDE_SPREAD: "1.5 deviations from the mean",
    AttackKind.LABEL_FLIP: "labels reversed",
}
_COLOURS: Final = ("#222222", "#1b6ca8", "#c8553d", "#3c8d53", "#c79a1b", "#8f5bb0")


def configuration(scheme: str, kind: AttackKind, cohort: int, rounds: int) -> Configuration:
    """Return one run, of the first seed."""
    changes = [f"compression.{change}" for change in SCHEMES[scheme][0]]
    if scheme.startswith(INDEXED):
        changes.append("secagg.protocol=enclave")
    if scheme == "sketch":
        # A sketch's reported lengths are unchecked, and refused if clients may be dishonest.
        changes.append('secagg.settings=["mode=semi_honest"]')
    return changed(
        preset("fashion-none"),
        [
            f"name={scheme}, {kind.value}, {cohort}",
            f"rounds={rounds}",
            f"evaluation.every={rounds}",
            f"clients_per_round={cohort}",
            "workers=1",
            f"attack.kind={kind.value}",
            *changes,
        ],
    )


def runs(
    schemes: Sequence[str],
    cohorts: Sequence[int],
    seeds: int,
    rounds: int,
    kinds: Sequence[AttackKind] = tuple(AttackKind),
) -> Iterator[Configuration]:
    """Yield every run, the most informative first: small cohorts before large ones, one seed of all before the next."""
    for cohort in cohorts:
        for seed in range(seeds):
            for scheme in schemes:
                for kind in kinds:
                    yield replace(configuration(scheme, kind, cohort, rounds), seed=seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the missing runs; print, write and draw all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path, nargs="?", help="the folder of the runs")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: %(default)s)")
    parser.add_argument("--cohorts", type=int, nargs="+", default=COHORTS)
    parser.add_argument("--only", action="append", default=[], help="prefixes of schemes' names")
    parser.add_argument("--kinds", type=AttackKind, nargs="+", default=list(AttackKind), help="attacks to run")
    parser.add_argument("--finished", action="store_true", help="only collect finished runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, metavar="JSON", help="only draw the figure of this file, next to it")
    options = parser.parse_args(arguments)
    if options.picture is not None:
        draw(json.loads(options.picture.read_text())).savefig(options.picture.with_suffix(".png"), dpi=150)
        return 0
    if options.out is None:
        parser.error("name the folder of the runs, or --picture")
    schemes = [name for name in SCHEMES if not options.only or name.startswith(tuple(options.only))]
    found = list[dict[str, Any]]()
    for run in runs(schemes, options.cohorts, options.seeds, options.rounds, options.kinds):
        summary = options.out / f"{run.name.replace(', ', '--').replace(' ', '-')}-seed{run.seed}" / "summary.json"
        if options.finished and not summary.exists():
            continue
        grid = Grid(run, (Cell(run.name, ()),), (run.seed,))
        found += sweep(grid, options.out, told=lambda line: print(line, file=sys.stderr, flush=True))
    rows = list(table(found, schemes, options.cohorts))
    for row in rows:
        print("{cohort:>4}  {scheme:<20} {attack:<14} {mean:>6.2f} %  costs {cost:>6}  ({seeds} seeds)".format(**row))
    if options.json is not None:
        summary = {
            "machine": platform.processor() or platform.machine(),
            "versions": versions_here(),
            "rounds": options.rounds,
            "share": preset("fashion-none").attack.share,
            "rows": rows,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
        draw(summary).savefig(options.json.with_suffix(".png"), dpi=150)
    return 0


def table(
    found: Sequence[Mapping[str, Any]], schemes: Sequence[str], cohorts: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each attack; its cost is the mean difference to the same seeds without attack."""
    by_cell = dict[str, dict[int, float]]()
    for result in found:
        by_cell.setdefault(str(result["name"]), {})[int(result["seed"])] = 100 * float(result["final accuracy"])
    for cohort in cohorts:
        for scheme in schemes:
            honest = by_cell.get(f"{scheme}, {AttackKind.NONE.value}, {cohort}", {})
            for kind in AttackKind:
                cell = by_cell.get(f"{scheme}, {kind.value}, {cohort}", {})
                seeds = sorted(honest.keys() & cell.keys())
                if not seeds:
                    continue
                costs = [honest[seed] - cell[seed] for seed in seeds]
                yield {
                    "cohort": cohort,
                    "scheme": scheme,
                    "bound": SCHEMES[scheme][1],
                    "attack": kind.value,
                    "seeds": len(seeds),
                    "accuracy": [round(cell[seed], 2) for seed in seeds],
                    "mean": round(fmean(cell[seed] for seed in seeds), 2),
                    "cost": round(fmean(costs), 2),
                    "deviation of the cost": round(stdev(costs), 2) if len(costs) > 1 else None,
                }


def draw(summary: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw accuracy by scheme and attack, a panel for each cohort."""
    rows: list[dict[str, Any]] = summary["rows"]
    cohorts, seeds = sorted({row["cohort"] for row in rows}), max(row["seeds"] for row in rows)
    title = (
        "What clients that attack cost\nFashion-MNIST, 12,000 images of 200 clients, "
        f"{summary['rounds']} rounds; bars: the mean of {seeds} seeds, dashes: each seed; sums in the clear"
    )
    figure, panels = new_figure(10.0, 3.6 * len(cohorts), rows=len(cohorts), title=title)
    width = 0.8 / len(AttackKind)
    schemes = [name for name in SCHEMES if any(row["scheme"] == name for row in rows)]
    for axes, cohort in zip([panels] if len(cohorts) == 1 else panels, cohorts, strict=True):
        for number, kind in enumerate(AttackKind):
            some = {row["scheme"]: row for row in rows if (row["cohort"], row["attack"]) == (cohort, kind.value)}
            places = [place for place, name in enumerate(schemes) if name in some]
            bars = [some[schemes[place]] for place in places]
            left = [place + (number - (len(AttackKind) - 1) / 2) * width for place in places]
            axes.bar(left, [row["mean"] for row in bars], width, color=_COLOURS[number], label=_ATTACKS[kind])
            for x, row in zip(left, bars, strict=True):
                axes.plot([x] * len(row["accuracy"]), row["accuracy"], "_", color="#999999", markersize=5)
        axes.set_xticks(range(len(schemes)), [_NAMES[name].replace(", ", "\n") for name in schemes], fontsize=8)
        axes.set_xlim(-0.5, len(schemes) - 0.5)
        axes.set_ylim(0, 100)
        axes.set_ylabel("test accuracy, %")
        axes.set_title(f"{cohort} clients a round, {round(summary['share'] * cohort)} of them attack", fontsize=10)
        axes.grid(visible=False, axis="x")
    legend = figure.axes[0].get_legend_handles_labels()
    figure.legend(*legend, frameon=False, fontsize=8, loc="outside lower center", ncols=len(AttackKind))
    return figure


if __name__ == "__main__":
    sys.exit(main())
