"""Every protocol, and a plain sum, keeps the laws of sessions."""

from __future__ import annotations

import pytest

from secagg.conformance.sessions import LAWS, check_law
from secagg.errors import ContractViolation
from tests.harness.session_worlds import SETTINGS, candidate_of

KNOWN = {("pairwise", law) for law in ("refused_then_true", "replayed_then_true", "second_answer_is_a_fault")}
"""By protocol and law, what does not hold yet, because the session is not on the base of the others."""


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_protocol_keeps_a_law(name: str, law: str) -> None:
    candidate = candidate_of(name)
    if (candidate.entry.name, law) in KNOWN:
        with pytest.raises(ContractViolation):
            check_law(law, candidate)
    else:
        check_law(law, candidate)
