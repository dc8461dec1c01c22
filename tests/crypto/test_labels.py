"""No two uses share a label, and no two inputs to a primitive coincide across uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse

VERSIONED_PREFIX = b"secagg/1/"

LITERALS_THAT_ARE_NO_LABELS: dict[str, set[bytes]] = {}
"""Byte strings that begin with the library's name but are not labels, with the file that may contain each."""

bound_inputs = st.tuples(st.sampled_from(Label), st.lists(st.binary(max_size=6), max_size=4))


def shipped_sources(repository: Path, having: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield the modules whose text contains a pattern."""
    for folder in ("secagg", "compression", "protocols"):
        for file in sorted((repository / folder).rglob("*.py")):
            if re.search(having, source := file.read_text(encoding="utf-8")):
                yield file.relative_to(repository).as_posix(), ast.parse(source)


def test_labels_are_distinct() -> None:
    assert len({label.value for label in Label.__members__.values()}) == len(Label.__members__), "an enum alias"


def test_no_label_is_the_beginning_of_another() -> None:
    clashes = [(one.name, other.name) for one, other in permutations(Label, 2) if other.value.startswith(one.value)]
    assert not clashes


def test_a_label_is_the_versioned_prefix_and_one_use() -> None:
    form = re.compile(re.escape(VERSIONED_PREFIX) + rb"[a-z0-9]+(-[a-z0-9]+)*")
    assert not [label.name for label in Label if not form.fullmatch(label.value)]


def test_every_label_is_used(repository: Path) -> None:
    used = {
        node.attr
        for name, tree in shipped_sources(repository, r"\bLabel\b")
        for node in ast.walk(tree)
        if name != "secagg/crypto/labels.py"
        and isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "Label"
    }
    assert set(Label.__members__) - used == set(), "remove these labels, or use them"
    assert used - set(Label.__members__) == set()


def test_no_label_is_written_outside_the_table(repository: Path) -> None:
    found: dict[str, set[bytes]] = {}
    for name, tree in shipped_sources(repository, r"\b([bB][rR]?|[rR][bB])[\"']|secagg/"):
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in docstrings or name == "secagg/crypto/labels.py":
                continue
            if isinstance(node.value, bytes) and b"secagg" in node.value.lower():
                found.setdefault(name, set()).add(node.value)
            elif isinstance(node.value, str) and re.search(r"secagg/\d", node.value):
                found.setdefault(name, set()).add(node.value.encode())
    unexpected = {name: literals - LITERALS_THAT_ARE_NO_LABELS.get(name, set()) for name, literals in found.items()}
    assert not {name: literals for name, literals in unexpected.items() if literals}, "add a Label and use it"
    stale = {name: literals - found.get(name, set()) for name, literals in LITERALS_THAT_ARE_NO_LABELS.items()}
    assert not {name: literals for name, literals in stale.items() if literals}, "remove these exceptions"


@given(left=bound_inputs, right=bound_inputs)
def test_bind_gives_one_string_for_one_input(left: tuple[Label, list[bytes]], right: tuple[Label, list[bytes]]) -> None:
    assert (bind(left[0], *left[1]) == bind(right[0], *right[1])) == (left == right)


@given(
    data=st.binary(max_size=12), cuts=st.lists(st.integers(0, 12), min_size=2, max_size=2), label=st.sampled_from(Label)
)
def test_the_boundaries_between_parts_are_part_of_the_string(data: bytes, cuts: list[int], label: Label) -> None:
    one, other = (bind(label, data[:cut], data[cut:]) for cut in cuts)
    assert (one == other) == (min(cuts[0], len(data)) == min(cuts[1], len(data)))


def test_the_bound_string_is_pinned() -> None:
    assert bind(Label.EDGE_SEED, b"ab", b"") == b"secagg/1/edge-seed\0\0\0\2ab\0\0\0\0"
    for length in (1, 255, 256, 2047, 2048, 65537):
        framed = length.to_bytes(4, "big") + bytes(length)
        assert bind(Label.EDGE_SEED, bytes(length)) == Label.EDGE_SEED.value + framed


def test_a_part_is_bound_up_to_the_length_that_its_length_field_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.crypto.labels._LENGTH_BYTES", 1)
    monkeypatch.setattr("secagg.crypto.labels._SHORT", 0)
    assert bind(Label.LAYOUT_DIGEST, bytes(255)) == Label.LAYOUT_DIGEST.value + b"\xff" + bytes(255)
    with pytest.raises(InvalidParameters, match="256 bytes"):
        bind(Label.LAYOUT_DIGEST, bytes(256))


@pytest.mark.parametrize("part", [bytearray(4), memoryview(bytes(4)), memoryview(bytes(4)).cast("I"), "four"])
def test_a_part_that_is_no_bytes_is_refused(part: Any) -> None:
    # The length of a view counts its items, and the string would not be unambiguous.
    with pytest.raises(Misuse):
        bind(Label.LAYOUT_DIGEST, part)
