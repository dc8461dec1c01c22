"""Explore every case; end with status 1 unless each comes out as it has to.

Run as ``python proofs/model/run.py`` where the library can be imported, or as a part of ``proofs/check``. A word on the
command line restricts the run to the cases whose name has it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import enclave_release
import one_message_cases
import pairwise
import server_cases
import two_servers
from pins import Outcome, Tally, pinned
from schedules import Report, described

ENCLAVE_CALLS = 9
AS_RELEASED = "enclave: as released"
_REVEALS = ("steps release a share", "of them open a sum or are answered")


def explore(name: str) -> tuple[Report, float]:
    """Explore one case and time it."""
    started = time.perf_counter()
    (case,) = (case for case in pairwise.cases() if case.name == name)
    report = case.explore()
    return report, time.perf_counter() - started


def explore_enclave(defect: str) -> tuple[enclave_release.Report, float]:
    """Explore the enclave's rules, with a defect or as they are."""
    started = time.perf_counter()
    replacements = enclave_release.DEFECTS[defect] if defect else ()
    return enclave_release.explore(ENCLAVE_CALLS, replacements), time.perf_counter() - started


def explore_servers(name: str) -> tuple[two_servers.Report, float]:
    """Explore one case of the two servers, or of one message a client."""
    started = time.perf_counter()
    (case,) = (case for case in driven_cases() if case.name == name)
    report = case.explore()
    return report, time.perf_counter() - started


def driven_cases() -> tuple[server_cases.Case | one_message_cases.Case, ...]:
    """Return the cases in which servers or holders are driven with their journals."""
    return *server_cases.cases(), *one_message_cases.cases()


def main(word: str = "") -> Iterator[str]:
    """Yield the report, case by case, and end with status 1 if one is not as it has to be."""
    started, tally = time.perf_counter(), Tally()
    chosen = [case for case in pairwise.cases() if word in case.name]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for case, (report, took) in zip(chosen, pool.map(explore, [case.name for case in chosen]), strict=True):
            not_expected = tally.judged(
                Outcome(case.name, report.schedules, report.revealing, report.fault, case.attacked)
            )
            found = f"ATTACK: {report.fault}" if report.fault else f"none found, {report.revealing} open some sum"
            yield (
                f"  {case.name:48} {report.schedules:6} schedules, {report.runs:6} runs of a client, "
                f"{report.refused:5} messages refused, {took:5.1f} s: {found}{not_expected}"
            )
            if report.fault:
                yield from (f"      {described(path)}" for path in report.trace)
        planted = ("", *enclave_release.DEFECTS)
        defects = [name for name in planted if word in (name or AS_RELEASED)]
        for name, (seen, took) in zip(defects, pool.map(explore_enclave, defects), strict=True):
            not_expected = tally.judged(
                Outcome(name or AS_RELEASED, seen.schedules, seen.revealing, seen.fault, bool(name))
            )
            found = f"ATTACK: {seen.fault}" if seen.fault else f"none found, {seen.revealing} release a sum"
            yield (
                f"  {name or AS_RELEASED:48} {seen.schedules:6} states,    {seen.calls:6} calls, "
                f"{seen.refused:6} refused, {took:5.1f} s: {found}{not_expected}"
            )
            if seen.fault:
                yield f"      {', '.join(seen.trace)}"
        served = [case for case in driven_cases() if word in case.name]
        for server, (met, took) in zip(served, pool.map(explore_servers, [case.name for case in served]), strict=True):
            not_expected = tally.judged(Outcome(server.name, met.schedules, met.revealing, met.fault, server.attacked))
            reveals = _REVEALS[isinstance(server, one_message_cases.Case)]
            found = f"ATTACK: {met.fault}" if met.fault else f"none found, {met.revealing} {reveals}"
            yield (
                f"  {server.name:48} {met.schedules:6} worlds,    {met.calls:6} calls, "
                f"{met.refused:6} refused, {took:5.1f} s: {found}{not_expected}"
            )
            if met.fault:
                yield f"      {', '.join(met.trace)}"
    known = {case.name for case in (*pairwise.cases(), *driven_cases())} | {AS_RELEASED, *enclave_release.DEFECTS}
    for stranger in sorted(pinned().keys() - known):
        tally.wrong += 1
        yield f"  {stranger}  NOT EXPECTED: cases.toml pins it, and no such case exists"
    yield f"model: {tally}, {time.perf_counter() - started:.0f} s"
    if tally.wrong or not (chosen or defects or served):
        sys.exit(1)


if __name__ == "__main__":
    for line in main(*sys.argv[1:2]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
