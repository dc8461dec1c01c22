"""Every claim names code, evidence and a test, and nothing in the code claims more than the ledger.

``make proofs`` runs the proofs themselves, and compares the code with the reviewed digests.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.repository

SHIPPED = ("secagg", "compression", "protocols")
TAG = re.compile(r"\bClaim ([A-Z]{2}-\d+): \w")
MENTION = re.compile(r"\b[Cc]laim ([A-Z]{2}-\d+)\b")
TEST = re.compile(r"^ *(def test|class Test)", re.MULTILINE)
JUDGES = re.compile(
    r"^ +assert (?!True$).*$|^ +with pytest\.raises|\b(?:require|refuse|expect|check)\w*\(", re.MULTILINE
)
SAY_THAT_NOTHING_IS_RAISED = {"test_other_clients_and_other_segments_are_queried_in_the_same_round"}
THEOREM = re.compile(r"^Theorem (\w+)", re.MULTILINE)
EVIDENCE = ("theorems", "families", "cases", "queries")
OVERSTATED = re.compile(r"\b(provably secure|formally verified|verified end to end)\b", re.IGNORECASE)


@pytest.fixture(scope="session")
def claims(repository: Path) -> dict[str, dict[str, Any]]:
    ledger = tomllib.loads((repository / "proofs" / "claims.toml").read_text(encoding="utf-8"))
    ids = [claim["id"] for claim in ledger["claim"]]
    assert len(set(ids)) == len(ids), "proofs/claims.toml contains a claim twice"
    return {claim["id"]: claim for claim in ledger["claim"]}


@pytest.fixture(scope="session")
def sources(repository: Path) -> dict[str, str]:
    """Read the modules by their real paths, so that packages that are linked into ``secagg`` are read once."""
    return {
        file.relative_to(repository).as_posix(): file.read_text(encoding="utf-8")
        for room in SHIPPED
        for file in (repository / room).rglob("*.py")
        if file.resolve() == repository.resolve() / file.relative_to(repository)
    }


def test_code_tags_and_claims_match(claims: dict[str, dict[str, Any]], sources: dict[str, str]) -> None:
    tagged = {tag for source in sources.values() for tag in TAG.findall(source)}
    assert tagged == claims.keys(), "tag `Claim XX-n:` in the code, or write a row into proofs/claims.toml"


def test_every_claim_mentioned_in_a_document_exists(claims: dict[str, dict[str, Any]], sources: dict[str, str]) -> None:
    mentioned = {name for source in sources.values() for name in MENTION.findall(source)}
    assert mentioned <= claims.keys()


def test_tags_are_in_code_that_their_claim_names(claims: dict[str, dict[str, Any]], sources: dict[str, str]) -> None:
    tags = {path: TAG.findall(source) for path, source in sources.items()}
    for name, claim in claims.items():
        places = {path for path, found in tags.items() if name in found}
        named = tuple(claim["code"])
        strangers = {path for path in places if not path.startswith(named)}
        assert not strangers, f"{name} is tagged in {strangers}, which its row does not name"


def test_every_claim_names_existing_code_tests_and_evidence(
    claims: dict[str, dict[str, Any]], repository: Path
) -> None:
    stated = THEOREM.findall((repository / "proofs" / "coq" / "statements.v").read_text(encoding="utf-8"))
    for name, claim in claims.items():
        assert claim["code"], f"{name} has no code"
        assert claim["tests"], f"{name} has no test"
        assert any(claim.get(kind) for kind in EVIDENCE), f"{name} has no theorem, obligation, case or query"
        assert claim["does_not_say"] or name == "RI-3", f"{name} has no limits in `does_not_say`"
        for path in claim["code"]:
            assert (repository / path).exists(), f"{name}: {path} does not exist"
        for theorem in claim.get("theorems", ()):
            assert theorem in stated, f"{name}: no theorem {theorem} in proofs/coq/statements.v"
        for path in claim["tests"]:
            assert TEST.search((repository / path).read_text(encoding="utf-8")), f"{name}: {path} contains no test"


def test_every_test_that_a_claim_names_can_fail(claims: dict[str, dict[str, Any]], repository: Path) -> None:
    """It asserts, expects an error, or calls a test helper that does."""
    named = {repository / path for claim in claims.values() for path in claim["tests"]}
    files = [functions_of(path) for path in (*sorted(named), *(repository / "tests").rglob("conftest.py"))]
    judges, before = set[str](), -1
    while before < len(judges):
        before = len(judges)
        judges |= {name for own in files for name, called in own.items() if called is None or called & judges}
    tests = [test for own in files[: len(named)] for test in own.items() if test[0].startswith("test_")]
    idle = {name for name, called in tests if called is not None and not called & judges}
    assert idle == SAY_THAT_NOTHING_IS_RAISED


def functions_of(path: Path) -> dict[str, set[str] | None]:
    """Return the names that each function calls; None for a function that can fail by itself."""
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    functions = {node.name: node for node in tree if isinstance(node, ast.FunctionDef)}
    return {
        name: None
        if JUDGES.search(ast.unparse(node))
        else {ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
        for name, node in functions.items()
    }


def test_every_theorem_supports_a_claim(claims: dict[str, dict[str, Any]], repository: Path) -> None:
    stated = THEOREM.findall((repository / "proofs" / "coq" / "statements.v").read_text(encoding="utf-8"))
    assert {theorem for claim in claims.values() for theorem in claim.get("theorems", ())} == set(stated)


def test_no_document_claims_more_than_is_proved(repository: Path) -> None:
    documents = [*repository.glob("*.md"), *(file for room in SHIPPED for file in (repository / room).rglob("*.md"))]
    assert documents
    for document in (*documents, *(repository / "proofs").rglob("*.md")):
        found = OVERSTATED.search(document.read_text(encoding="utf-8"))
        assert found is None, f"{document} says `{found[0]}`; refer to the claim instead"
