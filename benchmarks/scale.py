"""Sessions of a hundred to ten thousand clients, against the model of ``secagg plan --seconds``; larger ones by model.

    python benchmarks/scale.py build/scale.json                      run, compare, write; within minutes
    python benchmarks/scale.py build/scale.json --sizes 10000 ...    add larger sizes to the file
    python benchmarks/scale.py build/scale.json --picture FILE.png   draw the file

Each vector has 64 values of 16 bits, so the measurement is everything except the vector. Seconds are processor time, of
all parties in one process. Pairwise masks are run twice: once every client verifies all signatures that it receives, as
real clients do; once checks are shared, as in a rehearsal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any, Final

from figures import machine
from secagg.parameters import Suite
from secagg.planning.seconds import Constants, Rates, calibrate, costs_of, layout_for, run_session
from secagg.scale.tree import MOST_IN_A_GROUP as MOST_CLIENTS
from secagg.session.registry import find
from secagg.training.reports import new_figure

SIZES: Final = (100, 300, 1_000)
BY_MODEL: Final = (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
VALUES: Final = 64
MOST_ERROR: Final = 0.15
_KINDS: Final = {
    "pairwise": ("pairwise", False),
    "pairwise, shared checks": ("pairwise", True),
    "one-message": ("one-message", False),
}
_NAMES: Final = {
    "pairwise": "pairwise masks, active mode",
    "pairwise, shared checks": "the same, each signature verified once",
    "one-message": "one message",
}


def compare(report: Path, sizes: Iterable[int], kinds: Iterable[str]) -> None:
    """Run sessions, and write them next to the model's predictions; replace earlier results of the same size."""
    known: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"machine": machine(), "runs": []}
    for kind in kinds:
        protocol, shares = _KINDS[kind]
        entry = find(protocol)
        constants = calibrate(entry, shares_checks=shares)
        known.setdefault("constants", {})[kind] = _written(constants)
        for clients in sizes:
            done = run_session(entry, layout_for(clients, VALUES), clients, shares_checks=shares)
            model = constants.predict(done.costs, clients)
            row = {"kind": kind, "clients": clients, "measured": done.seconds, "model": model.seconds}
            known["runs"] = [one for one in known["runs"] if (one["kind"], one["clients"]) != (kind, clients)] + [row]
            off = model.seconds / done.seconds - 1
            verdict = "met" if abs(off) <= MOST_ERROR else "MISSED"
            found = f"{done.seconds:.2f} s, by model {model.seconds:.2f}"
            print(f"{kind}, {clients:,} clients: {found} ({off:+.0%}, {verdict})", flush=True)
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(json.dumps(known, indent=2) + "\n")


def rows_by_model(known: Mapping[str, Any], kind: str) -> list[tuple[int, float]]:
    """Return the model's prediction for each size, with the fewest possible sessions."""
    entry, written = find(_KINDS[kind][0]), known["constants"][kind]
    constants = Constants(
        session=written["session"], client=Rates(*written["client"]), server=Rates(*written["server"])
    )
    found = list[tuple[int, float]]()
    for clients in BY_MODEL:
        sessions = ceil(clients / MOST_CLIENTS)
        each = ceil(clients / sessions)
        costs = costs_of(entry, layout_for(each, VALUES), each, Suite.CLASSIC)
        found.append((clients, sessions * constants.predict(costs, each).seconds))
    return found


def draw(known: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw seconds over clients: marks are measured, lines are the model."""
    title = (
        "Processor time of one sum, all parties together\n64 values of 16 bits from each client; "
        f"marks: measured on {known['machine']['processor']}, {known['machine']['cores']} cores; lines: the model"
    )
    figure, axes = new_figure(7.2, 4.8, title=title)
    for color, (kind, name) in zip(("#0b4f8a", "#6aa0cc", "#c2571a"), _NAMES.items(), strict=True):
        if kind not in known.get("constants", {}):
            continue
        model = rows_by_model(known, kind)
        measured = sorted((row["clients"], row["measured"]) for row in known["runs"] if row["kind"] == kind)
        axes.plot(*zip(*model, strict=True), color=color, linewidth=1.2, label=name)
        axes.plot(*zip(*measured, strict=True), "o", color=color, markersize=5)
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="processor seconds")
    axes.axvspan(MOST_CLIENTS, BY_MODEL[-1], color="#000000", alpha=0.05, linewidth=0)
    axes.text(1.15 * MOST_CLIENTS, 1, "several sessions,\na tree of sums", fontsize=8, color="#555555")
    clients = sorted({row["clients"] for row in known["runs"]} | set(BY_MODEL))
    axes.set_xticks(clients, [f"{count:,}" for count in clients], rotation=30, ha="right")
    axes.set_yticks([1, 10, 100, 1000, 10_000, 100_000], ["1", "10", "100", "1,000", "10,000", "100,000"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure


def table(known: dict[str, Any]) -> str:
    """Return the table of sizes: measured where a session ran, else by model."""
    lines = ["| clients | " + " | ".join(_KINDS) + " |", "|---|" + "---|" * len(_KINDS)]
    measured = {(row["kind"], row["clients"]): row["measured"] for row in known["runs"]}
    by_model = {kind: dict(rows_by_model(known, kind)) for kind in _KINDS if kind in known["constants"]}
    for clients in BY_MODEL:
        cells = [
            f"{model[clients]:,.1f} s by model"
            + (f", {measured[kind, clients]:,.1f} s measured" if (kind, clients) in measured else "")
            for kind, model in by_model.items()
        ]
        lines.append(f"| {clients:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _written(constants: Constants) -> dict[str, Any]:
    return {
        "session": constants.session,
        "client": [constants.client.step, constants.client.word],
        "server": [constants.server.step, constants.server.word],
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--sizes", nargs="*", type=int, help=f"(default: {', '.join(map(str, SIZES))})")
    parser.add_argument("--kinds", nargs="*", choices=tuple(_KINDS), default=tuple(_KINDS))
    parser.add_argument("--picture", type=Path, help="draw the report's results, and run only the given --sizes")
    options = parser.parse_args()
    if options.sizes is not None or options.picture is None:
        compare(options.report, options.sizes or SIZES, options.kinds)
    known = json.loads(options.report.read_text())
    print(table(known))
    if options.picture:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(known).savefig(options.picture, dpi=150)


if __name__ == "__main__":
    _main()
