"""The external suites exist, or a run reports once that they are missing."""

from __future__ import annotations

import pytest

from tests.harness.suites import VARIABLE, folder

FOLDERS = {"wycheproof", "cctv", "hpke", "vdaf", "attestation"}


def test_the_suites_are_there() -> None:
    place = folder()
    if place is None:
        pytest.skip(f"set {VARIABLE} to a folder with {', '.join(sorted(FOLDERS))}")
    assert {each.name for each in place.iterdir()} >= FOLDERS
