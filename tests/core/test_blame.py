"""Whom evidence names: every row of the table, and no other place in the library that pairs a party with the server."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import pytest

from secagg.blame import Evidence, culprits, said_by, unverified
from secagg.errors import (
    NOBODY,
    UNDECIDED,
    MalformedMessage,
    Misuse,
    Party,
    PeerError,
    PeerMisbehaved,
    Reason,
    blaming,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode
from tests.harness.house import shipped_modules

ROOT = Path(__file__).parents[2]
ALICE, BOB, SERVERS = ClientId(1), ClientId(2), {ServerId(0), ServerId(1)}

TABLE: dict[Evidence, frozenset[Party] | set[Party]] = {
    Evidence.UNVERIFIED_BYTES: {ALICE, ServerId()},
    Evidence.VERIFIED_CONTENT: {ALICE},
    Evidence.REFUSED_HALF: {ALICE, *SERVERS},
    Evidence.DIFFERENT_LISTS: {*SERVERS},
    Evidence.UNOPENED_UPLOAD: {ALICE, ServerId()},
    Evidence.REFUSED_REQUEST: {ServerId()},
    Evidence.CIRCUMSTANCE: NOBODY,
}


@pytest.mark.parametrize("evidence", Evidence)
def test_evidence_names_whom_its_row_names(evidence: Evidence) -> None:
    found = culprits(evidence, sender=ALICE)
    assert found == TABLE[evidence]
    assert (found is NOBODY) == (not TABLE[evidence])


def test_evidence_that_names_somebody_unknown_is_a_misuse() -> None:
    with pytest.raises(Misuse, match="REFUSED_HALF names its sender"):
        culprits(Evidence.REFUSED_HALF)


def test_what_a_mode_signs_is_its_signers_alone() -> None:
    assert said_by(ALICE, SecurityMode.ACTIVE) == {ALICE}
    assert said_by(ALICE, SecurityMode.SEMI_HONEST) == unverified(ALICE) == {ALICE, ServerId()}


def test_nobody_stays_nobody_where_the_undecided_is_filled_in() -> None:
    def raised(error: PeerError) -> PeerError:
        with pytest.raises(PeerError) as caught, blaming(BOB), blaming(ALICE):
            raise error
        return caught.value

    assert raised(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=NOBODY)).culprits is NOBODY
    assert raised(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=())).culprits is NOBODY
    assert raised(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=UNDECIDED)).culprits == {ALICE}
    assert raised(MalformedMessage("", reason=Reason.TRUNCATED)).culprits == {ALICE}


@pytest.mark.parametrize("value", [NOBODY, UNDECIDED], ids=["nobody", "undecided"])
def test_who_is_not_named_is_not_named_in_another_process_either(value: frozenset[Party]) -> None:
    error = PeerMisbehaved("", reason=Reason.REPLAYED, culprits=value)
    assert pickle.loads(pickle.dumps(error)).culprits is copy.deepcopy(error).culprits is value  # noqa: S301


def test_no_other_module_pairs_a_party_with_the_server() -> None:
    pairs = [
        f"{module.file.relative_to(ROOT)}:{node.lineno}"
        for module in shipped_modules(ROOT).values()
        if module.name != "secagg.blame"
        for node in ast.walk(ast.parse(module.file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Set | ast.List | ast.Tuple) and is_pair(node.elts)
    ]
    assert not pairs, "use secagg.blame"


def is_pair(elements: list[ast.expr]) -> bool:
    return len(elements) > 1 and any(ast.unparse(each) == "ServerId()" for each in elements)
