"""What every test shares: one Hypothesis profile and the root of the repository."""

from pathlib import Path

import pytest
from hypothesis import settings

# A property is judged by its result and not by its speed; it searches anew in every run, also where a CI variable is
# set; and a failure prints the blob that reproduces it.
settings.register_profile("house", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("house")


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[1]
