"""The symbolic models, checked if ProVerif is available; otherwise the report says that they were not run.

No distribution packages ProVerif, so `make proofs` may skip this part; but not if somebody named the tool or asked for
this part.
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
    """Ask ProVerif all queries, if it is available."""
    proverif = found_or_built()
    if proverif is None:
        missing = f"ProVerif is missing: set {BINARY} to it, or {SOURCE} to the folder of its source (2.04 or later)"
        require("symbolic" not in sys.argv[1:], missing)
        say(f"symbolic: NOT RUN, no model in proofs/symbolic/ was checked. {missing}")
        return
    child = subprocess.run(  # noqa: S603 -- this interpreter
        (sys.executable, PROOFS / "symbolic" / "run.py", proverif), check=False
    )
    require(child.returncode == 0, "a symbolic query does not have the expected answer; see NOT EXPECTED above")


def found_or_built() -> str | None:
    """Return the prover: the named one, one built from the named source, or the one on the path."""
    if named := os.environ.get(BINARY):
        proverif = shutil.which(named)
        require(proverif is not None, f"{BINARY} names {named}, which cannot be run; correct or unset it")
        return proverif
    if source := os.environ.get(SOURCE):
        return str(built(Path(source)))
    return shutil.which("proverif")


def built(source: Path) -> Path:
    """Build a copy of the source, once for each version of it."""
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
