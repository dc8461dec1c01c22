"""Asks cvc5 and bitwuzla z3's questions: whether each obligation has a counterexample.

``make proofs-second-opinion`` runs it in an environment that has both. A solver that gives up within its time is
counted; one that contradicts the expected answer ends the run with status 1.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from obligations import Obligation
from run import collected
from terms import Answer, z3

TIME_LIMIT_SECONDS = 20
SOLVERS = ("cvc5", "bitwuzla")


def counterexample(obligation: Obligation) -> str:
    """Return the question for a counterexample, in SMT-LIB."""
    question, solver = obligation.ask(), z3.Solver()
    solver.add(*question.premises, z3.Not(question.goal))
    written: str = solver.to_smt2()
    return "(set-logic ALL)\n" + written


def by_cvc5(text: str) -> str:
    """Return cvc5's answer."""
    cvc5: Any = importlib.import_module("cvc5")
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", str(1000 * TIME_LIMIT_SECONDS))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "obligation")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += command.invoke(solver, parser.getSymbolManager())
    return said.strip()


def by_bitwuzla(text: str) -> str:
    """Return bitwuzla's answer."""
    bitwuzla: Any = importlib.import_module("bitwuzla")
    options = bitwuzla.Options()
    options.set(bitwuzla.Option.TIME_LIMIT_PER, 1000 * TIME_LIMIT_SECONDS)
    parser = bitwuzla.Parser(bitwuzla.TermManager(), options)
    parser.parse(text.replace("(check-sat)", ""), True, False)  # noqa: FBT003 -- parse only, and a string
    return str(parser.bitwuzla().check_sat()).lower()


def ask(index: int) -> tuple[str, ...]:
    """Return each solver's verdict on one obligation: agrees, gave up, or something else."""
    obligation = collected()[index]
    due = "unsat" if obligation.due is Answer.PROVED else "sat"
    verdicts = list[str]()
    for solver in (by_cvc5, by_bitwuzla):
        try:
            said = solver(counterexample(obligation))
        except Exception as error:  # noqa: BLE001 -- reported, so that one refusal does not hide the others
            said = f"error: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        verdicts.append("agrees" if said == due else said if said in {"sat", "unsat"} else f"gave up ({said})")
    return tuple(verdicts)


def _kind(verdict: str) -> str:
    return "contradicts" if verdict in {"sat", "unsat"} else verdict.partition(" (")[0]


def main(word: str = "") -> None:
    """Ask both solvers, and print their answers."""
    started = time.perf_counter()
    chosen = [index for index, obligation in enumerate(collected()) if word in obligation.family]
    counts, wrong = {solver: Counter[str]() for solver in SOLVERS}, 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for index, verdicts in zip(chosen, pool.map(ask, chosen, chunksize=4), strict=True):
            for solver, verdict in zip(SOLVERS, verdicts, strict=True):
                counts[solver][_kind(verdict)] += 1
                if verdict != "agrees":
                    obligation = collected()[index]
                    sys.stdout.write(f"  {solver}: {obligation.family}: {obligation.name}: {verdict}\n")
                    sys.stdout.flush()
                wrong += verdict in {"sat", "unsat"}
    for solver, count in counts.items():
        sys.stdout.write(f"second opinion: {solver}: {dict(count)}\n")
    sys.stdout.write(f"second opinion: {len(chosen)} obligations, {time.perf_counter() - started:.0f} s\n")
    if wrong or not chosen:
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:2])
