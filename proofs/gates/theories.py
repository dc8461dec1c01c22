"""The Coq theories: no holes, each builds, and every theorem rests on nothing but what it states."""

from __future__ import annotations

import shutil
import subprocess
import time

from gates.coq_text import THEORIES, check_sources, source_of, stated
from gates.packages import provide
from gates.report import BUILT, require, run, say

PACKAGES = ("coq", "libcoq-mathcomp-algebra", "libcoq-mathcomp-zify")
COQC = ("coqc", "-q", "-w", "-notation-overridden,-ambiguous-paths")
CLOSED = "Closed under the global context"


def check_theories() -> None:
    """Read the sources, build them, and ask on what every theorem rests."""
    check_sources()
    provide(PACKAGES, has_coq, "Coq with MathComp")
    started = time.perf_counter()
    BUILT.mkdir(parents=True, exist_ok=True)
    for file in BUILT.iterdir():
        if file.is_file():
            file.unlink()
    for name in THEORIES:
        (BUILT / f"{name}.v").write_text(source_of(name), encoding="utf-8")
        run(*COQC, f"{name}.v", otherwise=f"proofs/coq/{name}.v does not compile")
    theorems = sorted(stated())
    questions = [f"Print Assumptions {THEORIES[-1]}.{theorem}.\n" for theorem in theorems]
    (BUILT / "assumptions.v").write_text(f"Require {THEORIES[-1]}.\n" + "".join(questions), encoding="utf-8")
    answers = run(*COQC, "assumptions.v", otherwise="Print Assumptions does not run").splitlines()
    closed = answers.count(CLOSED)
    others = [line for line in answers if line != CLOSED]
    shown = "\n".join(others)
    require(closed == len(theorems) and not others, f"{closed} of {len(theorems)} theorems are closed:\n{shown}")
    say(f"coq: {closed} theorems, all closed under the global context, {time.perf_counter() - started:.0f} s")


def has_coq() -> bool:
    """Ask the compiler itself, with the libraries that the theories need."""
    if shutil.which("coqc") is None:
        return False
    BUILT.mkdir(parents=True, exist_ok=True)
    probe = BUILT / "probe.v"
    probe.write_text("From mathcomp Require Import all_ssreflect all_algebra zify.\n", encoding="utf-8")
    command = ("coqc", "-q", probe.name)
    return subprocess.run(command, cwd=BUILT, capture_output=True, check=False).returncode == 0  # noqa: S603 -- fixed


def check_independently() -> None:
    """Have Coq's separate checker read the compiled theories again."""
    check_theories()
    started = time.perf_counter()
    report = run("coqchk", "-silent", "-o", *THEORIES, otherwise="coqchk does not accept the theories")
    require("* Axioms: <none>" in report, f"coqchk found axioms:\n{report}")
    say(f"coqchk: no axioms, {time.perf_counter() - started:.0f} s")
