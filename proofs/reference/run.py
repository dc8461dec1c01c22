"""Asks the library and the reference the same questions and compares every answer; exits with status 1 on a difference.

Run it as ``python proofs/reference/run.py PROGRAM`` with the extracted program, where the library can be imported, or
as
a part of ``proofs/check``; a second word selects the kinds with that word in their function's name. Each kind of
question has a fixed seed, so a run can be repeated.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import sharing
import trees
from questions import Question

SHOWN: Final = 3
KINDS: Final[tuple[Callable[[random.Random], Iterator[Question]], ...]] = (
    sharing.packed_shares,
    sharing.recovered_sums,
    sharing.light_secagg_masks,
    sharing.dealt_secrets,
    sharing.decoded_secrets,
    sharing.located_errors,
    sharing.inverses,
    trees.trees,
)


def compare(program: str, index: int) -> tuple[dict[str, int], list[str], float]:
    """Ask all questions of a kind; return the numbers of agreeing inputs by sort, the differences, and the seconds."""
    started, agreed, faults = time.perf_counter(), dict[str, int](), list[str]()
    for question in KINDS[index](random.Random(index)):  # noqa: S311 -- test inputs, not secrets
        child = subprocess.run(  # noqa: S603 -- the extracted program
            (program,), input=question.text, capture_output=True, text=True, check=True
        )
        answers = [question.compared(line) for line in child.stdout.splitlines()]
        if len(answers) != len(question.due):
            faults.append(f"{question.what}: {len(question.due)} inputs but {len(answers)} answers")
            continue
        differing = [pair for pair in zip(question.due, answers, strict=True) if pair[0] != pair[1]]
        agreed[question.what] = agreed.get(question.what, 0) + len(answers) - len(differing)
        faults += [f"{question.what}: the library gives `{due}`, the reference `{answer}`" for due, answer in differing]
    return agreed, faults, time.perf_counter() - started


def main(program: str, word: str = "") -> Iterator[str]:
    """Yield the report line by line, and exit with status 1 if an answer differs."""
    started, total, faults, counted = time.perf_counter(), 0, list[str](), dict[str, int]()
    chosen = [index for index, kind in enumerate(KINDS) if word in kind.__name__]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for agreed, differing, seconds in pool.map(partial(compare, program), chosen):
            yield from (f"  {what:32} {count:8,} inputs agree" for what, count in agreed.items())
            yield f"  {'':32} {seconds:8.1f} s"
            total += sum(agreed.values())
            faults += differing
            counted |= agreed
    ledger = tomllib.loads((Path(__file__).parents[1] / "claims.toml").read_text(encoding="utf-8"))
    claimed = [entry.partition(" ") for claim in ledger["claim"] for entry in claim.get("compared", ())]
    least = {what: int(count) for count, _, what in claimed if not word or what in counted}
    if least.keys() != counted.keys():
        faults.append(f"claims.toml and the reference differ in {sorted(least.keys() ^ counted.keys())}")
    # Fewer are a fault: a kind that asks nothing would pass.
    faults += [
        f"{what}: {counted.get(what, 0):,} inputs agree, but claims.toml says {count:,}"
        for what, count in least.items()
        if counted.get(what, 0) < count
    ]
    yield from (f"  FAULT {fault}" for fault in faults[:SHOWN])
    yield f"reference: {total:,} inputs agree, {len(faults):,} faults, {time.perf_counter() - started:.0f} s"
    if faults or not chosen:
        sys.exit(1)


if __name__ == "__main__":
    for line in main(*sys.argv[1:3]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
