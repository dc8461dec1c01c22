"""The error classes: their hierarchy, their attributes, and pickling across processes."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import secagg
from secagg import errors
from secagg.errors import (
    UNDECIDED,
    AuthenticationFailed,
    CapacityExceeded,
    ContractViolation,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId

BLAMED = (ClientId(3), ServerId())

PARENTS = {
    SecAggError: (Exception,),
    InvalidParameters: (SecAggError, ValueError),
    Misuse: (SecAggError,),
    PeerError: (SecAggError,),
    MalformedMessage: (PeerError,),
    UnexpectedMessage: (PeerError,),
    AuthenticationFailed: (PeerError,),
    PeerMisbehaved: (PeerError,),
    ThresholdNotMet: (SecAggError,),
    CapacityExceeded: (SecAggError,),
    ContractViolation: (SecAggError,),
    InternalError: (SecAggError,),
}
ABSTRACT = {SecAggError, PeerError}

EXAMPLES: list[SecAggError] = [
    InvalidParameters("bad"),
    InvalidParameters("weak", reason=Reason.BELOW_FLOOR),
    Misuse("twice", reason=Reason.ALREADY_SPENT),
    MalformedMessage("cut", reason=Reason.TRUNCATED, culprits=BLAMED),
    UnexpectedMessage(expected="a", received="b", culprits=[ClientId(1)]),
    AuthenticationFailed(culprits=BLAMED),
    PeerMisbehaved("twice the same", reason=Reason.SHARE_DUPLICATE, culprits=UNDECIDED),
    ThresholdNotMet(needed=5, present=4, what="shares"),
    CapacityExceeded("too much"),
    ContractViolation("not linear"),
    InternalError("never"),
]


def descendants(cls: type[SecAggError]) -> Iterator[type[SecAggError]]:
    for child in cls.__subclasses__():
        yield child
        yield from descendants(child)


def the_librarys_own() -> set[type[SecAggError]]:
    return {SecAggError} | {cls for cls in descendants(SecAggError) if cls.__module__ == "secagg.errors"}


def test_the_class_tree_is_the_documented_one() -> None:
    assert {cls: cls.__bases__ for cls in the_librarys_own()} == PARENTS


def test_every_concrete_class_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(PARENTS) - ABSTRACT


def test_the_value_of_a_reason_is_its_name_in_lower_case() -> None:
    assert {reason.value: reason.name.lower() for reason in Reason} == {reason.value: reason.value for reason in Reason}


def test_every_reason_documents_its_attribution(repository: Path) -> None:
    source = (repository / "secagg" / "errors.py").read_text(encoding="utf-8")
    (body,) = [
        node.body for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == "Reason"
    ]
    documented: dict[str, str] = {}
    for member, sentence in pairwise(body[1:]):
        if isinstance(member, ast.Assign) and isinstance(sentence, ast.Expr):
            documented[ast.unparse(member.targets[0])] = ast.unparse(sentence)
    assert set(documented) == set(Reason.__members__)
    assert [name for name, text in documented.items() if not re.search(r"Attribution: .+\.'?\"*$", text)] == []


def test_the_two_abstract_classes_are_never_raised(repository: Path) -> None:
    faults, names = list[str](), {cls.__name__ for cls in ABSTRACT}
    for folder in ("secagg", "compression", "protocols"):
        for file in (repository / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if not any(name in text for name in names):
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Call):
                    called = ast.unparse(node.func).rpartition(".")[2]
                elif isinstance(node, ast.Raise) and node.exc is not None:
                    called = ast.unparse(node.exc).rpartition(".")[2]
                else:
                    continue
                if called in names:
                    faults.append(f"{file.relative_to(repository)}:{node.lineno}: {called}")
    assert not faults


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling_with_all_attributes(error: SecAggError, protocol: int) -> None:
    restored = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 -- the bytes were made on this line
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert restored.args == error.args
    assert vars(restored) == vars(error)
    assert restored.reason is error.reason


@pytest.mark.parametrize(
    "blamed", [list(BLAMED), BLAMED, set(BLAMED), iter(BLAMED)], ids=["list", "tuple", "set", "iterator"]
)
def test_culprits_are_stored_as_a_frozenset(blamed: Any) -> None:
    error = AuthenticationFailed(culprits=blamed)
    assert type(error.culprits) is frozenset
    assert error.culprits == {ClientId(3), ServerId(0)}


def test_culprits_are_empty_by_default() -> None:
    for error in (
        MalformedMessage("cut", reason=Reason.TRUNCATED),
        UnexpectedMessage(expected="a", received="b"),
        AuthenticationFailed(culprits=UNDECIDED),
        PeerMisbehaved("wrong", reason=Reason.SHARE_DUPLICATE, culprits=UNDECIDED),
    ):
        assert error.culprits == frozenset()


def test_messages_give_the_limit_and_the_value() -> None:
    assert str(ThresholdNotMet(needed=5, present=4, what="shares")) == "not enough shares: 5 needed, got 4"
    said = str(ThresholdNotMet(needed=5, present=4, what="clients", must="complete the key exchange"))
    assert said == "not enough clients: 5 must complete the key exchange, 4 did"
    assert str(UnexpectedMessage(expected="kind 1", received="kind 2")) == "expected kind 1, received kind 2"
    assert str(AuthenticationFailed(culprits=BLAMED)) == "authentication failed", "it carries no detail"


def test_each_class_has_its_usual_reason_by_default() -> None:
    defaults = {
        InvalidParameters("bad"): Reason.PARAMETER_OUT_OF_RANGE,
        Misuse("wrong order"): Reason.API_MISUSE,
        UnexpectedMessage(expected="a", received="b"): Reason.WRONG_KIND,
        AuthenticationFailed(culprits=UNDECIDED): Reason.AUTHENTICATION_FAILED,
        ThresholdNotMet(needed=5, present=4, what="shares"): Reason.THRESHOLD_NOT_MET,
        CapacityExceeded("too much"): Reason.CAPACITY_EXCEEDED,
        ContractViolation("not linear"): Reason.CONTRACT_VIOLATION,
        InternalError("never"): Reason.INTERNAL_ERROR,
    }
    assert {error: error.reason for error in defaults} == defaults


def test_the_package_exports_the_same_errors() -> None:
    public = {
        name
        for name in dir(secagg)
        if isinstance(getattr(secagg, name), type) and issubclass(getattr(secagg, name), BaseException)
    }
    assert public == {cls.__name__ for cls in PARENTS}
    assert all(getattr(secagg, name) is getattr(errors, name) for name in public)
