"""Train twice on the bundled images through real protocols: uncompressed, and with the peak code, a core for each.

Twenty of 200 clients train in a round, and some vanish in every stage. Uncompressed updates go through pairwise masks
with a server that may deviate, codes through the enclave, whose hardware is simulated. Each sum is compared with the
plain one. The script prints README's table, whose figures are in ``results/demo.json``.

    python benchmarks/training_demo.py --out build/demo
    python benchmarks/training_demo.py --out build/demo --json benchmarks/results/demo.json
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from secagg.training.configuration import Configuration, Scheme, changed, versions_here
from secagg.training.presets import preset
from secagg.training.records import SUMMARY_NAME, RoundRecord
from secagg.training.reports import STYLES, new_figure, read_runs

COMMITTED: Final = Path(__file__).parent / "results" / "demo.json"
RUNS: Final = {"fashion-none": "uncompressed, pairwise masks", "fashion-peak": "peak code, blocks of 128, enclave"}
CHANGES: Final = (
    "rounds=50",
    "engine=sequential",
    "secagg.mode=real",
    "dropouts.rate=0.02",
    "server.falling=0.5",
    "evaluation.every=5",
)
CORE: Final = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
}
"""Limits a process to one core, and to instructions that round alike on every x86-64 processor with AVX2."""
PICTURE: Final = "accuracy-and-bytes.png"
TOLERANCE: Final = 2.0
"""Points by which accuracy may differ from README's on a processor without AVX2, whose floats round differently."""
_CELLS: Final = 24


def run_of(name: str) -> Configuration:
    """Return the configuration of one of the two runs."""
    return changed(preset(name), CHANGES)


class Reporting:
    """Observer that sends the round, its accuracy and its bytes to the process that displays them."""

    def __init__(self, name: str, to: Connection) -> None:
        """Keep the pipe."""
        self._name, self._to = name, to

    def round_done(self, record: RoundRecord) -> None:
        """Send a round's progress."""
        self._to.send((self._name, record.round, None if record.test is None else record.test.accuracy, record.wire_up))

    def close(self) -> None:
        """Report that no round follows."""
        self._to.close()


def train_one(name: str, out: Path, to: Connection) -> None:
    """Train one run, on one core."""
    from secagg.training.driver import train  # noqa: PLC0415 -- loads torch, which then counts the cores

    train(run_of(name), out / name, observers=[Reporting(name, to)])


def train_all(out: Path) -> None:
    """Train all runs in parallel, and show their progress."""
    os.environ.update(CORE)
    context, pipes, processes = multiprocessing.get_context("spawn"), list[Connection](), list[Any]()
    for name in RUNS:
        ours, theirs = context.Pipe(duplex=False)
        processes.append(context.Process(target=train_one, args=(name, out, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    shown = Shown({name: run_of(name).rounds for name in RUNS})
    while pipes:
        for ready in wait(pipes):
            pipe = next(each for each in pipes if each is ready)
            try:
                shown.add(*pipe.recv())
            except EOFError:
                pipes.remove(pipe)
    shown.close()
    for process in processes:
        process.join()
        if process.exitcode:
            raise SystemExit("a run ended with an error, which is shown above")


class Shown:
    """Progress of all runs in one line: rounds, time left, and each run's accuracy and bytes."""

    def __init__(self, rounds: Mapping[str, int]) -> None:
        """Show nothing yet."""
        self._rounds, self._first = rounds, (0.0, 0.0)
        self._done, self._accuracy = dict.fromkeys(rounds, 0), dict[str, float]()
        self._is_terminal = sys.stderr.isatty()

    def add(self, name: str, number: int, accuracy: float | None, sent: float) -> None:
        """Show a finished round."""
        self._done[name] = number
        if accuracy is not None:
            self._accuracy[name] = accuracy
        if self._is_terminal:
            share = min(done / self._rounds[name] for name, done in self._done.items())
            if not self._first[0]:
                # The time before the first rounds is spent loading torch.
                self._first = (share, perf_counter())
            begun, at = self._first
            left = f"{(perf_counter() - at) * (1 - share) / (share - begun):.0f} s" if share > begun else "a minute"
            filled = round(_CELLS * share)
            told = (f"{STYLES[_scheme(each)][2]} {100 * found:.1f} %" for each, found in self._accuracy.items())
            bar = "#" * filled + "." * (_CELLS - filled)
            line = f"[{bar}] {left} left; accuracy: {', '.join(told)}"
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
        elif accuracy is not None:
            said = f"round {number} of {self._rounds[name]}, accuracy {100 * accuracy:.1f} %, {size(sent)} sent"
            print(f"{RUNS[name]}: {said}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self._is_terminal:
            print(file=sys.stderr)


def result_of(out: Path) -> dict[str, Any]:
    """Return the runs' results in the form of ``results/demo.json``."""
    run, runs = run_of(next(iter(RUNS))), list[dict[str, Any]]()
    for name, meant in RUNS.items():
        summary = json.loads((out / name / SUMMARY_NAME).read_text(encoding="utf-8"))
        (finished,) = read_runs([out / name])
        runs.append(
            {
                "preset": name,
                "name": meant,
                "accuracy": round(100 * summary["final accuracy"], 2),
                "bytes": round(summary["wire up"], 1),
                "payload bytes": summary["payload bytes"],
                "lost clients": summary["lost clients"],
                "tests": {
                    str(record.round): round(100 * record.test.accuracy, 2)
                    for record in finished.records
                    if record.test is not None
                },
            }
        )
    return {
        "data": "Fashion-MNIST",
        "images": 12_000,
        "clients": run.data.clients,
        "cohort": run.clients_per_round,
        "rounds": run.rounds,
        "seed": run.seed,
        "changes": list(CHANGES),
        "versions": versions_here(),
        "runs": runs,
    }


def size(count: float) -> str:
    """Format bytes for readers."""
    return f"{count / 1000:.1f} kB" if count >= 1000 else f"{count:.0f} bytes"


def percent(run: Mapping[str, Any]) -> str:
    """Format a run's accuracy."""
    return f"{run['accuracy']:.1f} %"


def table(found: Mapping[str, Any]) -> list[str]:
    """Return README's table, in Markdown that reads well in a terminal too."""
    head = ("updates, and how they are summed", "one update", "all that a client sends", "test accuracy")
    runs = found["runs"]
    rows = [head, *((run["name"], size(run["payload bytes"]), size(run["bytes"]), percent(run)) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, " | ".join("-" * width for width in widths))
    return [f"| {line} |" for line in lines]


def conditions(found: Mapping[str, Any]) -> str:
    """Return the table's conditions, in README's words."""
    return (
        f"{found['data']}, {found['images']:,} images of {found['clients']} clients, {found['cohort']} of them in each "
        f"of {found['rounds']} rounds, one seed"
    )


def draw(found: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- matplotlib's
    """Draw accuracy over rounds, next to the bytes that a client sends in one."""
    title = f"Federated learning through real protocols\n{conditions(found)}"
    figure, (left, right) = new_figure(9.0, 4.0, 2, title=title)
    runs = found["runs"]
    for place, run in enumerate(runs):
        colour, marker, _ = STYLES[_scheme(run["preset"])]
        tests = {int(number): accuracy for number, accuracy in run["tests"].items()}
        left.plot(*zip(*tests.items(), strict=True), color=colour, marker=marker, markersize=5, label=run["name"])
        right.barh(place, run["bytes"] / 1000, color=colour, height=0.4)
        told = f"{run['name']}: {size(run['bytes'])}"
        right.annotate(told, (0, place - 0.2), (2, 4), textcoords="offset points", fontsize=9)
    left.set_title(f"accuracy: {' and '.join(percent(run) for run in runs)}", fontsize=10)
    left.set_xlabel("round")
    left.set_ylabel("test accuracy, %")
    left.set_xticks(range(0, found["rounds"] + 1, 10))
    left.legend(frameon=False, fontsize=9, loc="lower right")
    right.set_title(f"bytes: {runs[0]['bytes'] / runs[1]['bytes']:.0f} times fewer", fontsize=10)
    right.set_xlabel("kB that a client sends in a round, keys included")
    right.set_yticks([])
    right.set_ylim(len(runs) - 0.5, -0.6)
    right.grid(visible=False, axis="y")
    return figure


def differences(found: Mapping[str, Any], committed: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each figure that differs from README's."""
    said = list[str]()
    for here, there in zip(found["runs"], committed["runs"], strict=True):
        if size(here["bytes"]) != size(there["bytes"]):
            said.append(f"{here['name']}: README has {size(there['bytes'])}, and this run {size(here['bytes'])}")
        if abs(here["accuracy"] - there["accuracy"]) > TOLERANCE:
            said.append(f"{here['name']}: README has {percent(there)}, and this run {percent(here)}")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print README's table, draw it, and compare it with the committed one."""
    parser = argparse.ArgumentParser(description="Two training runs through real protocols, in less than a minute.")
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--json", type=Path, help="file for another copy of the result, for README")
    options = parser.parse_args(arguments)
    started = perf_counter()
    print(f"Training twice, a core each, every sum through a real protocol: {'; '.join(RUNS.values())}", flush=True)
    train_all(options.out)
    found = result_of(options.out)
    draw(found).savefig(options.out / PICTURE, dpi=150)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\n{conditions(found)}:\n\n" + "\n".join(table(found)))
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    lost = sum(run["lost clients"] for run in found["runs"])
    print(
        "\nAll that a client sends includes keys and masks; over 1 kB to the enclave is a post-quantum key exchange.\n"
        f"{lost} clients vanished. Every sum of a protocol was the plain sum of the updates, bit for bit.\n"
        f"{'These are the figures of README.' if table(found) == table(committed) else rounding(committed)}\n"
        f"picture: {options.out / PICTURE}\n"
        f"{perf_counter() - started:.0f} s in all"
    )
    wrong = differences(found, committed)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


def rounding(committed: Mapping[str, Any]) -> str:
    """Return the reason why accuracy differs from README's."""
    return f"README has {' and '.join(map(percent, committed['runs']))}: floats round differently on this processor."


def _scheme(name: str) -> Scheme:
    return preset(name).compression.scheme


if __name__ == "__main__":
    sys.exit(main())
