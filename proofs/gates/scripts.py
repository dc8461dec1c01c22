"""The parts that import the library, each in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from gates.report import PROOFS, REPOSITORY, require


def run_part(part: str, otherwise: str, *arguments: str) -> None:
    """Run the part's own program; its report is the part's report."""
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
    run_part("smt", "an obligation has not the answer that is due; see FAULT above")


def check_cases() -> None:
    """Explore every case of the model checker."""
    run_part("model", "a case did not come out as it has to; see NOT EXPECTED above")
