"""Shared by all tests: two Hypothesis profiles, one thread for arithmetic, and the root of the repository."""

import os
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Each pytest worker has one core. Additional threads of torch and BLAS wait for each other: with them, a test file of
# k-means takes four times the processor time and ten times the wall time. The variables must be set before the imports.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Tests must not read or change the ledgers of this user's own clients.
_STATES = tempfile.TemporaryDirectory(prefix="secagg-tests-")
os.environ["XDG_STATE_HOME"] = _STATES.name
os.environ.pop("SECAGG_LEDGER_DIRECTORY", None)

# Properties are judged by their results, not by speed; every run searches anew, also with a CI variable set; a failure
# prints the blob that reproduces it. This number of examples kills the mutants of ``proofs/mutation``.
settings.register_profile("house", deadline=None, derandomize=False, print_blob=True, max_examples=25)
settings.register_profile("long", settings.get_profile("house"), max_examples=200)
settings.load_profile("house")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def forgotten_warnings() -> None:
    """Let a warning that is logged once per process be logged in every test."""
    if (module := sys.modules.get("secagg.compression.model_update.weighting")) is not None:
        module.warn_once.cache_clear()
