"""Paths, and reporting by the gates: in sentences and with an exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROOFS = Path(__file__).resolve().parents[1]
REPOSITORY = PROOFS.parent
BUILT = REPOSITORY / "build" / "proofs"


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 -- an assertion with a sentence
    """End the check with an explanation unless the condition holds."""
    if not holds:
        sys.exit(f"proofs: {otherwise}")


def say(sentence: str) -> None:
    """Print at once, so that the output of child processes comes in order."""
    print(f"proofs: {sentence}", flush=True)  # noqa: T201 -- a command prints


def run(*command: str, otherwise: str) -> str:
    """Run a command in the folder of built theories and return its output."""
    child = subprocess.run(  # noqa: S603 -- fixed commands
        command, cwd=BUILT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    require(child.returncode == 0, f"{otherwise}:\n{child.stdout}")
    return child.stdout


def text_of(*path: str) -> str:
    """Return the text of a file of the proofs."""
    return PROOFS.joinpath(*path).read_text(encoding="utf-8")
