"""Explore every case; end with status 1 unless each comes out as it has to.

Run as ``python proofs/model/run.py`` where the library can be imported, or as a part of ``proofs/check``. A word on the
command line restricts the run to the cases whose name has it.
"""

from __future__ import annotations

import os
import sys
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import enclave_release
import one_message_cases
import pairwise
import server_cases
import two_servers
from schedules import Report, described

ENCLAVE_CALLS = 9
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
    started, wrong = time.perf_counter(), 0
    schedules = attacks = clean = 0
    chosen = [case for case in pairwise.cases() if word in case.name]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for case, (report, took) in zip(chosen, pool.map(explore, [case.name for case in chosen]), strict=True):
            # A run in which no sum ever came out has tried nothing.
            right = bool(report.fault) == case.attacked and report.revealing > 0
            wrong += not right
            schedules += report.schedules
            attacks += bool(report.fault)
            clean += not report.fault
            found = f"ATTACK: {report.fault}" if report.fault else f"none found, {report.revealing} open some sum"
            yield (
                f"  {case.name:48} {report.schedules:6} schedules, {report.runs:6} runs of a client, "
                f"{report.refused:5} messages refused, {took:5.1f} s: {found}{'' if right else '  NOT EXPECTED'}"
            )
            if report.fault:
                yield from (f"      {described(path)}" for path in report.trace)
        planted = ("", *enclave_release.DEFECTS)
        defects = [name for name in planted if word in (name or "enclave: as released")]
        for name, (seen, took) in zip(defects, pool.map(explore_enclave, defects), strict=True):
            right = bool(seen.fault) == bool(name) and (seen.revealing > 0 or bool(name))
            wrong += not right
            schedules += seen.schedules
            attacks += bool(seen.fault)
            clean += not seen.fault
            found = f"ATTACK: {seen.fault}" if seen.fault else f"none found, {seen.revealing} release a sum"
            yield (
                f"  {name or 'enclave: as released':48} {seen.schedules:6} states,    {seen.calls:6} calls, "
                f"{seen.refused:6} refused, {took:5.1f} s: {found}{'' if right else '  NOT EXPECTED'}"
            )
            if seen.fault:
                yield f"      {', '.join(seen.trace)}"
        served = [case for case in driven_cases() if word in case.name]
        for server, (met, took) in zip(served, pool.map(explore_servers, [case.name for case in served]), strict=True):
            right = bool(met.fault) == server.attacked and (met.revealing > 0 or server.attacked)
            wrong += not right
            schedules += met.schedules
            attacks += bool(met.fault)
            clean += not met.fault
            reveals = _REVEALS[isinstance(server, one_message_cases.Case)]
            found = f"ATTACK: {met.fault}" if met.fault else f"none found, {met.revealing} {reveals}"
            yield (
                f"  {server.name:48} {met.schedules:6} worlds,    {met.calls:6} calls, "
                f"{met.refused:6} refused, {took:5.1f} s: {found}{'' if right else '  NOT EXPECTED'}"
            )
            if met.fault:
                yield f"      {', '.join(met.trace)}"
    ledger = tomllib.loads((Path(__file__).parents[1] / "claims.toml").read_text(encoding="utf-8"))
    known = {case.name for case in (*pairwise.cases(), *driven_cases())} | {"enclave: as released"}
    for stranger in {name for claim in ledger["claim"] for name in claim.get("cases", ())} - known:
        wrong += 1
        yield f"  claims.toml names a case that does not exist: {stranger}  NOT EXPECTED"
    total = time.perf_counter() - started
    found = f"{clean} cases without a fault, {attacks} planted defects found"
    yield f"model: {found}, {schedules} schedules and states, {total:.0f} s"
    if wrong or not (chosen or defects or served):
        sys.exit(1)


if __name__ == "__main__":
    for line in main(*sys.argv[1:2]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
