"""What every test shares: two Hypothesis profiles, one thread for arithmetic, and the root of the repository."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Each of pytest's workers has a core of its own. Threads of torch and of BLAS beside those wait for one another: a file
# of k-means takes four times the computing and ten times the time with them. Read before either is imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# No test reads or changes what this user's own clients have uploaded.
_STATES = tempfile.TemporaryDirectory(prefix="secagg-tests-")
os.environ["XDG_STATE_HOME"] = _STATES.name
os.environ.pop("SECAGG_LEDGER_DIRECTORY", None)

# A property is judged by its result and not by its speed; it searches anew in every run, also where a CI variable is
# set; and a failure prints the blob that reproduces it. As many examples kill the mutants of ``proofs/mutation``.
settings.register_profile("house", deadline=None, derandomize=False, print_blob=True, max_examples=25)
settings.register_profile("long", settings.get_profile("house"), max_examples=200)
settings.load_profile("house")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def forgotten_warnings() -> None:
    """Let a warning that a process logs once be logged in every test."""
    if (module := sys.modules.get("secagg.compression.model_update.weighting")) is not None:
        module.warn_once.cache_clear()
