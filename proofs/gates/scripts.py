"""The parts that import the library, each run in a separate process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from gates.report import PROOFS, REPOSITORY, require


def run_part(part: str, otherwise: str, *arguments: str) -> None:
    """Run the program of a part, which prints its own report."""
    for module, package in (("z3", "z3-solver"), ("numpy", "numpy"), ("cryptography", "cryptography")):
        found = importlib.util.find_spec(module) is not None
        require(found, f"{package} is missing in {sys.executable}; `make proofs`, or pip install '.[proofs]'")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    child = subprocess.run(  # noqa: S603 -- this interpreter
        (sys.executable, PROOFS / part / "run.py", *arguments), env=environment, check=False
    )
    require(child.returncode == 0, otherwise)


def check_kernels() -> None:
    """Have the solver decide every obligation."""
    run_part("smt", "an obligation does not have the expected answer; see FAULT above")


def check_cases() -> None:
    """Explore every case of the model checker."""
    run_part("model", "a case does not have the expected outcome; see NOT EXPECTED above")
