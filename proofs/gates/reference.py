"""The reference: extracted from the theories, compiled, and compared with the library on the same inputs."""

from __future__ import annotations

import re
import shutil
import subprocess
import time

from gates.coq_text import HOLES, THEORIES, without_comments
from gates.packages import provide
from gates.report import BUILT, require, run, say, text_of
from gates.scripts import run_part
from gates.theories import COQC, check_theories, is_built

PACKAGES = ("ocaml-nox", "ocaml-findlib", "libzarith-ocaml-dev")
SUBSTITUTED = re.compile(r"\bExtract\s+(?:Inlined\s+)?(?:Constant|Inductive)\b")
PROGRAM = BUILT / "answer"
COMPILE = ("ocamlfind", "ocamlopt", "-w", "-a", "-package", "zarith", "-linkpkg")


def check_reference() -> None:
    """Build the program and compare; build the theories first if they have changed."""
    source = without_comments(text_of("reference", "extract.v"))
    for refused in (HOLES, SUBSTITUTED):
        found = refused.search(source)
        require(found is None, f"proofs/reference/extract.v has `{found and found[0]}`: extract proved terms")
    if not all(map(is_built, THEORIES)):
        check_theories()
    provide(PACKAGES, has_compiler, "OCaml's compiler with zarith")
    started = time.perf_counter()
    for name in ("extract.v", "answer.ml"):
        (BUILT / name).write_text(text_of("reference", name), encoding="utf-8")
    run(*COQC, "extract.v", otherwise="proofs/reference/extract.v does not compile")
    program = PROGRAM
    sources = ("extracted.mli", "extracted.ml", "answer.ml")
    run(*COMPILE, *sources, "-o", program.name, otherwise="the reference does not compile")
    say(f"reference: extracted and compiled, {time.perf_counter() - started:.0f} s")
    run_part("reference", "the library and the reference differ; see FAULT above", str(program))


def has_compiler() -> bool:
    """Return the package for compiling with big integers."""
    if shutil.which("ocamlfind") is None or shutil.which("ocamlopt") is None:
        return False
    query = ("ocamlfind", "query", "-format", "%d/zarith.cmxa", "zarith")
    found = subprocess.run(query, capture_output=True, text=True, check=False)  # noqa: S603 -- fixed
    archive = found.stdout.strip()
    return found.returncode == 0 and (BUILT / archive).exists()
