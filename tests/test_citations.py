"""Every citation in the code resolves, and every deviation from a cited text is recorded in DECISIONS.md.

Only prose is searched: comments and docstrings, including those of attributes. A subscript in an annotation is not a
citation.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository

SHIPPED = ("secagg", "compression", "protocols")

BRACKETS = re.compile(r"(?<![\w\])`])\[([^\[\]]+)\](?![(\[])")
AUTHORS_AND_YEAR = r"[A-Z][A-Za-z]+\+?\d{2}[a-z]?"
STANDARD = r"[A-Z]{2,} \d[\w.-]*"
KEY = re.compile(rf"{AUTHORS_AND_YEAR}|{STANDARD}")
ENTRY = re.compile(r"^- \*\*\[([^\]]+)\]\*\*", re.MULTILINE)


def test_every_citation_resolves(repository: Path) -> None:
    entries = ENTRY.findall((repository / "proofs" / "REFERENCES.md").read_text(encoding="utf-8"))
    repeated = sorted({entry for entry in entries if entries.count(entry) > 1})
    assert not repeated, f"proofs/REFERENCES.md has several entries for {repeated}: keep one of each"
    cited = {(key, file) for file, text in prose_of_repository(repository) for key in citations_in(text)}
    assert cited, "no citation was found in the code; one looks like `[BIK+17] Fig. 4` or `[RFC 7748] section 5`"
    unresolved = sorted(f"[{key}] in {file}" for key, file in cited if key not in entries)
    assert not unresolved, "add to proofs/REFERENCES.md, as `- **[KEY]** ...`:\n" + "\n".join(unresolved)


def test_every_deviation_is_a_recorded_decision(repository: Path) -> None:
    decisions = (repository / "DECISIONS.md").read_text(encoding="utf-8")
    deviating = {file for file, text in prose_of_repository(repository) if "Deviation:" in text}
    unrecorded = sorted(file for file in deviating if not re.search(rf"(?<![\w/]){re.escape(file)}\b", decisions))
    assert not unrecorded, f"DECISIONS.md must name each file with a `Deviation:` tag; it lacks {unrecorded}"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("Implements: [BIK+17] Fig. 4, Round 4, server.", ["BIK+17"]),
        ("As in [Gao03], [BGI16] and [SSV+22b].", ["Gao03", "BGI16", "SSV+22b"]),
        (
            "[RFC 7748] section 5; [FIPS 203]; [SP 800-38D]; [SP 800-90A]",
            ["RFC 7748", "FIPS 203", "SP 800-38D", "SP 800-90A"],
        ),
        ("Several at once: [BIK+17, BBG+20; RFC 5869].", ["BIK+17", "BBG+20", "RFC 5869"]),
        ("A place within the brackets: [BIK+17, Fig. 4].", ["BIK+17"]),
        ("Broken over two lines: [RFC\n    7748].", ["RFC 7748"]),
        ("Types: Mapping[ClientId, Int16], tuple[MLKEM768, ...], NDArray[Uint64].", []),
        ("Slices and ranges: x[A16], values[0:16], [0, 255], [least, greatest], [X25519].", []),
    ],
)
def test_only_citations_are_recognized_as_citations(text: str, keys: list[str]) -> None:
    assert list(citations_in(text)) == keys


def test_only_comments_and_docstrings_are_prose() -> None:
    source = '"""Module."""\nkey: T[Gao03] = "[Gao03]"\n"""Attribute."""\ndef f():\n    """Function."""  # Comment.\n'
    assert sorted(prose_in(source)) == ["# Comment.", "Attribute.", "Function.", "Module."]


def prose_of_repository(repository: Path) -> Iterator[tuple[str, str]]:
    for folder in SHIPPED:
        for file in (repository / folder).rglob("*.py"):
            for text in prose_in(file.read_text(encoding="utf-8")):
                yield file.relative_to(repository).as_posix(), text


@cache
def prose_in(source: str) -> tuple[str, ...]:
    return (*docstrings_in(source), *comments_in(source))


def docstrings_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case _:
                pass


def comments_in(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def citations_in(text: str) -> Iterator[str]:
    for bracket in BRACKETS.findall(text):
        for part in re.split("[,;]", bracket):
            candidate = " ".join(part.split())
            if KEY.fullmatch(candidate):
                yield candidate
