"""Every protocol, and a plain sum, obeys the laws of sessions."""

from __future__ import annotations

import pytest

from secagg.conformance.sessions import LAWS, check_law
from tests.harness.session_worlds import SETTINGS, candidate_of

COSTLY = {"altered_answer", "altered_message", "silence"}
"""Laws that take many sessions; for pairwise masks a full graph is enough."""
CASES = [
    pytest.param(name, law, marks=pytest.mark.long if law in COSTLY and name.endswith("sparse") else ())
    for name in SETTINGS
    for law in LAWS
]


@pytest.mark.parametrize(("name", "law"), CASES)
def test_a_protocol_obeys_a_law(name: str, law: str) -> None:
    check_law(law, candidate_of(name))
