"""What every test shares: one Hypothesis profile and the root of the repository."""

from pathlib import Path

import pytest
from hypothesis import settings

# A property is judged by its result and not by its speed; it searches anew in every run, also where a CI variable is
# set; and a failure prints the blob that reproduces it. As many examples kill the mutants of ``proofs/mutation``.
settings.register_profile("house", deadline=None, derandomize=False, print_blob=True, max_examples=25)
settings.register_profile("long", settings.get_profile("house"), max_examples=200)
settings.load_profile("house")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]
