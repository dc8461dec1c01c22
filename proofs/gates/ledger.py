"""Compares the claims with the evidence that they name: every theorem and every case must support a claim."""

from __future__ import annotations

import tomllib

from gates.coq_text import stated
from gates.report import require, say, text_of
from gates.reviewed import check_reviewed, claims, code_of


def check_claims() -> None:
    """Compare the ledger with the theorems and cases, and everything that claims are about with what was reviewed."""
    claimed = {theorem for claim in claims() for theorem in claim.get("theorems", ())}
    differing = sorted(claimed ^ set(stated()))
    require(not differing, f"claims and theorems differ in {differing}")
    cases = tomllib.loads(text_of("model", "cases.toml"))
    planted = {name: case["claim"] for name, case in cases.items() if "fault" in case}
    served = {case: claim["id"] for claim in claims() for case in claim.get("cases", ())}
    differing = sorted(served.keys() ^ cases.keys() - planted.keys())
    require(not differing, f"claims.toml and the clean cases of model/cases.toml differ in {differing}")
    idle = sorted(name for name, claim in planted.items() if claim not in served.values())
    require(not idle, f"these defects are planted against a claim that names no clean case: {idle}")
    unmet = sorted({*served.values()} - {*planted.values()})
    require(not unmet, f"no defect is planted against {unmet}, so nothing shows that its cases can fail")
    untagged = [
        claim["id"] for claim in claims() if not any(f"Claim {claim['id']}: " in text for text in code_of(claim))
    ]
    require(not untagged, f"the code of these claims lacks their tag `Claim XX-n:`: {untagged}")
    check_reviewed()
    say(f"claims: {len(claims())}, over {len(claimed)} theorems and {len(served)} clean cases")
