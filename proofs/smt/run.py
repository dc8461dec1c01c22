"""Decide every obligation; exit with status 1 unless each has the expected answer.

Run it as ``python proofs/smt/run.py`` where the library can be imported, or as a part of ``proofs/check``. A word on
the
command line selects the families with that word in their name.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import check_word_sums
import lanes_in_place
import mask_signs
import one_message_kernels
import point_function_kernels
import ring_kernels
import scalar_quantizer
from obligations import Obligation
from terms import Answer, arbitrary_results

BATCH = 4
PINNED = Path(__file__).with_name("families.toml")
"""Number of proved obligations and refuted functions in each family, and a digest of all questions."""


@cache
def collected() -> tuple[Obligation, ...]:
    """Every obligation, in the same order in every process."""
    parts = (
        ring_kernels,
        mask_signs,
        scalar_quantizer,
        point_function_kernels,
        lanes_in_place,
        check_word_sums,
        one_message_kernels,
    )
    return tuple(obligation for part in parts for obligation in part.obligations())


def decide(index: int) -> tuple[Answer | str, str, float]:
    """Decide one obligation and time it; an exception from a function on terms is never the expected answer.

    A proved statement must not hold for arbitrary results, or it says nothing about the code.
    """
    started = time.perf_counter()
    answer: Answer | str
    obligation, text = collected()[index], ""
    try:
        question = obligation.ask()
        answer, text = question.decide(), question.text
        if answer is Answer.PROVED:
            with arbitrary_results():
                holds = obligation.ask().decide()
            if holds is not Answer.REFUTED:
                answer = f"{holds.value} for arbitrary results too, so it says nothing"
    except Exception as error:  # noqa: BLE001 -- reported, so that one fault does not hide the others
        answer = f"{type(error).__name__}: {error}"
    return answer, f"{obligation.name}\n{text}\n", time.perf_counter() - started


def main(word: str = "") -> Iterator[str]:
    """Yield the report line by line, and exit with status 1 if an answer is not the expected one."""
    started = time.perf_counter()
    chosen = [index for index, obligation in enumerate(collected()) if word in obligation.family]
    proved, refuted, seconds = defaultdict[str, int](int), defaultdict[str, int](int), defaultdict[str, float](float)
    texts = defaultdict[str, Any](hashlib.sha256)
    faults = list[str]()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for index, (answer, text, took) in zip(chosen, pool.map(decide, chosen, chunksize=BATCH), strict=True):
            obligation = collected()[index]
            seconds[obligation.family] += took
            texts[obligation.family].update(text.encode())
            if answer is not obligation.due:
                shown = answer.value if isinstance(answer, Answer) else answer
                faults.append(f"{obligation.family}: {obligation.name}: {shown}, expected {obligation.due.value}")
            elif answer is Answer.PROVED:
                proved[obligation.family] += 1
            else:
                refuted[obligation.family] += 1
    pinned = tomllib.loads(PINNED.read_text(encoding="utf-8"))
    for family, spent in seconds.items():
        if not refuted[family]:
            faults.append(f"{family}: no altered function was refuted, so its obligations may be too weak")
        found = {"proved": proved[family], "refuted": refuted[family], "text": texts[family].hexdigest()[:16]}
        if found != pinned.get(family):
            line = f'"{family}" = {{ {", ".join(f"{kind} = {json.dumps(what)}" for kind, what in found.items())} }}'
            faults.append(f"{family}: not as pinned in families.toml; review its statements, then write {line}")
        yield f"  {family:22} {proved[family]:4} proved  {refuted[family]:3} refuted as due  {spent:6.1f} s"
    ledger = tomllib.loads((Path(__file__).parents[1] / "claims.toml").read_text(encoding="utf-8"))
    claimed = {family for claim in ledger["claim"] for family in claim.get("families", ())}
    for where, named in (("claims.toml", claimed), (PINNED.name, pinned.keys())):
        if not word and named != seconds.keys():
            faults.append(f"{where} and the obligations differ in the families {sorted(named ^ seconds.keys())}")
    yield from (f"  FAULT {fault}" for fault in faults)
    total = time.perf_counter() - started
    counts = f"{sum(proved.values())} proved, {sum(refuted.values())} refuted as due, {len(faults)} faults"
    yield f"smt: {counts}, {total:.0f} s"
    if faults or not chosen:
        sys.exit(1)


if __name__ == "__main__":
    for line in main(*sys.argv[1:2]):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
