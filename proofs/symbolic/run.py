"""Ask ProVerif every query of every case; run it as ``python proofs/symbolic/run.py PROVERIF [WORD]``.

A query is proved, or an attack on it is reconstructed; "cannot be proved" and three minutes without an answer are
failures. ProVerif never reports that an equivalence is false; there a trace that distinguishes the two counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cases import AS_IT_IS, CASES, CHECKS, PLANTED, Answer, Case
from source import checks_of, queries_of, read, variant

MOST_SECONDS = 180.0


def main(proverif: str, word: str = "") -> int:
    """Run every case, or those with the word in their name, on all cores; print a report and return an exit status."""
    require_complete()
    started, chosen = time.perf_counter(), [case for case in CASES if word in str(case)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        numbered = enumerate(chosen)
        answers = list(pool.map(lambda item: answer_to(item[1], proverif, Path(folder, f"{item[0]}.pv")), numbered))
    faults = 0
    for case, (answer, seconds) in zip(chosen, answers, strict=True):
        verdict = answer if answer == case.answer else f"NOT EXPECTED: {answer}; expected: {case.answer}"
        faults += answer != case.answer
        print(f"symbolic: {case}: {verdict} ({seconds:.1f} s)")  # noqa: T201 -- a command prints
    taken = f"{time.perf_counter() - started:.0f} s"
    planted = sum(case in PLANTED for case in chosen)
    counted = f"{len(chosen)} queries, {planted} of them with something missing and attacked"
    print(f"symbolic: {counted}; {taken}")  # noqa: T201 -- the same
    return int(faults > 0 or not chosen)


def require_complete() -> None:
    """Refuse cases that omit a query or a check of a model."""
    for model in {case.model for case in CASES}:
        source = read(model)
        asked = {case.query for case in AS_IT_IS if case.model == model}
        planted = {check for case in PLANTED if case.model == model for check in case.missing}
        named = {check for of, check in CHECKS if of == model}
        marked = set(checks_of(source))
        unmatched = sorted((asked ^ set(queries_of(source))) | (planted ^ marked) | (named ^ marked))
        if unmatched:
            sys.exit(f"symbolic: {model}.pv and cases.py do not name the same queries and checks: {unmatched}")


def answer_to(case: Case, proverif: str, file: Path) -> tuple[str, float]:
    """Return ProVerif's answer, and the seconds that it took."""
    file.write_text(variant(read(case.model), case.query, frozenset(case.missing)), encoding="utf-8")
    started = time.perf_counter()
    try:
        child = subprocess.run(  # noqa: S603 -- the prover that the caller names
            (proverif, file.name),
            cwd=file.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {MOST_SECONDS:.0f} s", time.perf_counter() - started
    return understood(case, child.stdout), time.perf_counter() - started


def understood(case: Case, output: str) -> str:
    """Parse the answer from ProVerif's report."""
    results = {line for line in output.splitlines() if line.startswith("RESULT ")}
    if len(results) != 1:
        return f"no single result:\n{output[-1000:]}"
    (result,) = results
    if result.endswith(" is true."):
        return Answer.HOLDS
    is_equivalence = result.startswith("RESULT Observational equivalence cannot be proved")
    if result.endswith(" is false.") or (is_equivalence and "A trace has been found." in output):
        return Answer.REACHED if case.answer is Answer.REACHED else Answer.ATTACK
    return result


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
