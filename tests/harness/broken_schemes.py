"""Which conformance laws reject a deliberately broken scheme."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from hypothesis import HealthCheck, Phase, settings

from secagg.conformance import LAWS, Candidate, Law
from secagg.errors import ContractViolation

SEARCH = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=False,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
GLANCE = settings(SEARCH, max_examples=4)
"""For laws that a broken scheme keeps; correct schemes are searched in full."""
LAW = {str(law): law for law in LAWS}


def rejecting(candidate: Candidate, expected: AbstractSet[str]) -> set[str]:
    """Return the names of the laws that fail; expected ones search longer."""
    return {name for name, law in LAW.items() if _is_rejected(law, candidate, SEARCH if name in expected else GLANCE)}


def _is_rejected(law: Law, candidate: Candidate, search: settings) -> bool:
    try:
        law.check(candidate, search)
    except ContractViolation:
        return True
    return False
