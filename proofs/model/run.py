"""Search every case; exit with status 1 unless each has its expected outcome.

Run it as ``python proofs/model/run.py`` where the library can be imported, or as a part of ``proofs/check``. A word on
the command line selects the cases with that word in their name.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import enclave_cases
import one_message_cases
import pairwise
import server_cases
import server_restarts
from pins import Outcome, Tally, pinned
from report import Case, Report


def cases() -> dict[str, Case]:
    """Return every case by name."""
    models = pairwise, server_restarts, enclave_cases, server_cases, one_message_cases
    return {case.name: case for model in models for case in model.cases()}


def explore(name: str) -> tuple[Report, float]:
    """Search one case and time it."""
    started = time.process_time()
    try:
        report = cases()[name].explore()
    except LookupError as error:
        report = Report(fault=f"the defect cannot be planted: {error}")
    return report, time.process_time() - started


def main(word: str = "") -> Iterator[str]:
    """Yield the report case by case, and exit with status 1 if one does not have its expected outcome."""
    started, tally, everything = time.perf_counter(), Tally(), cases()
    chosen = [case for name, case in everything.items() if word in name]
    spent = 0.0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for case, (report, took) in zip(chosen, pool.map(explore, [case.name for case in chosen]), strict=True):
            not_expected = tally.judged(
                Outcome(case.name, report.schedules, report.revealing, report.fault, case.attacked)
            )
            spent += took
            found = f"ATTACK: {report.fault}" if report.fault else f"none found, a sum in {report.revealing}"
            yield (
                f"  {case.name:60} {report.schedules:6} schedules or states, {report.calls:6} calls, "
                f"{report.refused:5} refused, {took:5.1f} s: {found}{not_expected}"
            )
            if report.fault:
                yield f"      {'; '.join(report.trace)}"
    for stranger in sorted(pinned().keys() - everything.keys()):
        tally.wrong += 1
        yield f"  {stranger}  NOT EXPECTED: cases.toml pins it, and no such case exists"
    yield f"model: {tally}, {spent:.0f} s of one core's time, {time.perf_counter() - started:.0f} s"
    if tally.wrong or not chosen:
        sys.exit(1)


if __name__ == "__main__":
    for line in main(*sys.argv[1:2]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
