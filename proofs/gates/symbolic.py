"""The symbolic models, where ProVerif is at hand; where it is not, that is said by name.

No distribution packages ProVerif, so this is the one part that `make proofs` can go without. It cannot where somebody
named the tool, or asked for this part.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gates.packages import provide
from gates.report import PROOFS, REPOSITORY, require, say

BINARY, SOURCE = "SECAGG_PROVERIF", "SECAGG_PROVERIF_SOURCE"
BUILD = REPOSITORY / "build" / "proverif"
PACKAGES = ("ocaml-nox",)


def check_symbolic() -> None:
    """Ask ProVerif everything, if it is there."""
    proverif = found_or_built()
    if proverif is None:
        missing = f"ProVerif is missing: set {BINARY} to it, or {SOURCE} to the folder of its source (2.04 or later)"
        require("symbolic" not in sys.argv[1:], missing)
        say(f"symbolic: NOT RUN, nothing of proofs/symbolic/ was checked. {missing}")
        return
    child = subprocess.run(  # noqa: S603 -- this interpreter
        (sys.executable, PROOFS / "symbolic" / "run.py", proverif), check=False
    )
    require(child.returncode == 0, "a symbolic query has not the answer that is due; see NOT EXPECTED above")


def found_or_built() -> str | None:
    """Return the prover: the one that is named, the one that is built from a named source, or the one on the path."""
    if named := os.environ.get(BINARY):
        proverif = shutil.which(named)
        require(proverif is not None, f"{BINARY} names {named}, which cannot be run; correct it, or unset it")
        return proverif
    if source := os.environ.get(SOURCE):
        return str(built(Path(source)))
    return shutil.which("proverif")


def built(source: Path) -> Path:
    """Build a copy of the source, once for each state that it has."""
    proverif, stamp = BUILD / "proverif", BUILD / "built-from"
    require((source / "build").is_file(), f"{SOURCE} names {source}, which has no build script of ProVerif")
    newest = max(file.stat().st_mtime_ns for file in (source / "src").iterdir())
    state = f"{source.resolve()} {newest}"
    if proverif.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return proverif
    provide(PACKAGES, lambda: shutil.which("ocamlopt") is not None, "OCaml, which builds ProVerif,")
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(source, BUILD)
    child = subprocess.run(
        ("sh", "./build", "-nointeract"),  # noqa: S607 -- the system's shell
        cwd=BUILD,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    require(child.returncode == 0 and proverif.is_file(), f"ProVerif does not build:\n{child.stdout[-3000:]}")
    stamp.write_text(state, encoding="utf-8")
    say("symbolic: ProVerif was built from source")
    return proverif
