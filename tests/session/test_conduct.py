"""Every protocol, and a plain sum, keeps the laws of sessions."""

from __future__ import annotations

import pytest

from secagg.conformance.sessions import LAWS, check_law
from tests.harness.session_worlds import SETTINGS, candidate_of


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_protocol_keeps_a_law(name: str, law: str) -> None:
    check_law(law, candidate_of(name))
