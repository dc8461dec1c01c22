"""The Coq theories: no unproved statements, all compile, no axioms, and Coq prints what is pinned.

``coq/printed.toml`` has a digest of every statement and every definition that one reaches, as Coq prints it without
notations. This pins the meaning of definitions, whichever sentence could change it. Only
``proofs/check print NAME ...`` changes these pins.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
import tomllib

from gates.coq_text import THEORIES, check_sources, required_by, sentences, source_of, stated
from gates.packages import provide
from gates.report import BUILT, PROOFS, require, run, say
from gates.reviewed import digest_of

PACKAGES = ("coq", "libcoq-mathcomp-algebra", "libcoq-mathcomp-zify")
COQC = ("coqc", "-q", "-w", "-notation-overridden,-ambiguous-paths")
CLOSED = "Closed under the global context"
PRINTED = PROOFS / "coq" / "printed.toml"
PREFACE = "# Digests of what Coq prints of statements and definitions; `proofs/check print NAME ...` takes them over."
AS_IT_IS = "Set Printing All.\nSet Printing Depth 1000000.\nSet Printing Width 1000000.\n"
REACHED = re.compile(rf"(?<![\w.'])(?:{'|'.join(THEORIES)})\.[\w']+")


def check_theories(*, afresh: bool = True) -> None:
    """Check the sources, compile them, and check what every theorem depends on and what Coq prints."""
    build(afresh=afresh)
    printed, pinned = as_printed(), tomllib.loads(PRINTED.read_text(encoding="utf-8"))
    version, due = printed["coq"], pinned.get("coq")
    require(version == due, f"{PRINTED.name} has the output of Coq {due}, but this is {version}; install that version")
    differing = sorted(name for name in printed.keys() | pinned.keys() if printed.get(name) != pinned.get(name))
    shown = ", ".join(differing)
    require(not differing, f"Coq prints other text than pinned: {shown}\nreview, then `proofs/check print NAME ...`")
    say(f"coq: Coq prints {len(printed) - 1} statements and definitions as pinned")


def take_over(names: list[str]) -> None:
    """Pin what Coq prints of the named statements and definitions, and list the others that still differ."""
    build()
    printed = as_printed()
    pinned = tomllib.loads(PRINTED.read_text(encoding="utf-8")) if PRINTED.exists() else {}
    strangers = sorted(set(names) - {*printed, *pinned})
    require(not strangers, f"no pinned or printed statement is named {strangers}")
    kept = {name: digest for name, digest in pinned.items() if name not in names}
    kept |= {name: printed[name] for name in names if name in printed}
    lines = [f'"{name}" = "{digest}"' for name, digest in sorted(kept.items())]
    PRINTED.write_text("\n".join((PREFACE, *lines, "")), encoding="utf-8")
    left = sorted(name for name in printed.keys() | kept.keys() if printed.get(name) != kept.get(name))
    require(not left, f"not as pinned: {', '.join(left)}; pin these as well, or restore the theories")


def as_printed() -> dict[str, str]:
    """Return a digest of what Coq prints for each statement, and for everything in the theories that it uses."""
    proved = {f"{theory}.{one.name}" for theory in THEORIES for one in sentences(theory) if one.is_proved}
    found = {"coq": run("coqc", "--print-version", otherwise="coqc has no version").split()[0]}
    waiting = {f"{THEORIES[-1]}.{theorem}" for theorem in stated()}
    while waiting:
        questions = [
            f'Redirect "printed.{name}" {"Check @" if name in proved else "Print "}{name}.\n'
            for name in sorted(waiting)
        ]
        text = f"Require {' '.join(THEORIES)}.\n{AS_IT_IS}{''.join(questions)}"
        (BUILT / "printed.v").write_text(text, encoding="utf-8")
        run(*COQC, "printed.v", otherwise="Coq does not print what the statements use")
        told = {name: (BUILT / f"printed.{name}.out").read_text(encoding="utf-8") for name in waiting}
        found |= {name: digest_of(" ".join(text.split()).encode()) for name, text in told.items()}
        waiting = {name for text in told.values() for name in REACHED.findall(text)} - found.keys()
    return found


def recheck() -> None:
    """Compile only the theories that changed and those that require them; then check the same."""
    check_theories(afresh=False)


def build(*, afresh: bool = True) -> None:
    """Check and compile the sources, and check what every theorem depends on."""
    check_sources()
    provide(PACKAGES, has_coq, "Coq with MathComp")
    started = time.perf_counter()
    BUILT.mkdir(parents=True, exist_ok=True)
    for file in BUILT.iterdir() if afresh else ():
        if file.is_file():
            file.unlink()
    stale = list[str]()
    for name in THEORIES:
        if not is_built(name) or required_by(name) & {*stale}:
            stale.append(name)
            # A theory that does not compile must leave no file that looks compiled.
            (BUILT / f"{name}.vo").unlink(missing_ok=True)
    for name in stale:
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


def is_built(theory: str) -> bool:
    """Return whether the last compiled version of a theory is this one, word by word."""
    kept = BUILT / f"{theory}.v"
    same = kept.exists() and kept.read_text(encoding="utf-8") == source_of(theory)
    return same and kept.with_suffix(".vo").exists()


def has_coq() -> bool:
    """Test the compiler with the libraries that the theories need."""
    if shutil.which("coqc") is None:
        return False
    BUILT.mkdir(parents=True, exist_ok=True)
    probe = BUILT / "probe.v"
    probe.write_text("From mathcomp Require Import all_ssreflect all_algebra zify.\n", encoding="utf-8")
    command = ("coqc", "-q", probe.name)
    return subprocess.run(command, cwd=BUILT, capture_output=True, check=False).returncode == 0  # noqa: S603 -- fixed


def check_independently() -> None:
    """Let Coq's separate checker verify the compiled theories."""
    check_theories()
    started = time.perf_counter()
    report = run("coqchk", "-silent", "-o", *THEORIES, otherwise="coqchk does not accept the theories")
    require("* Axioms: <none>" in report, f"coqchk found axioms:\n{report}")
    say(f"coqchk: no axioms, {time.perf_counter() - started:.0f} s")
