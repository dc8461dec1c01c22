"""Digests of everything that the claims are about, as last reviewed.

One mechanism covers the protocols, the schemes, the core modules that they import, and the proofs: any change fails the
check, which then lists the claims to review.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gates.coq_text import THEORIES, required_by, theorems_of
from gates.report import PROOFS, REPOSITORY, require, say

REVIEWED = PROOFS / "reviewed.toml"
WORDED = PROOFS / "claims.pinned"
WORDED_PREFACE = "# Digests of claims without their code; `proofs/check pin ID ...` takes over the named ones alone."
PREFACE = "# Digests of the files that claims are about, as they were reviewed; `proofs/check renew` writes them."
QUERY = re.compile(r'\(\*# query "([^"]+)" \*\)\n(.*?)(?=\(\*# quer)', re.DOTALL)
"""A query of a symbolic model, by name; its text is part of the claim."""
LINKED = ("compression", "protocols", "training")
"""Packages outside ``secagg/`` that are linked into it."""
EVIDENCE = {"coq": "theorems", "smt": "families", "model": "cases", "symbolic": "queries", "reference": "compared"}
Claim = dict[str, Any]


def claims() -> list[Claim]:
    """Return the rows of claims.toml."""
    found: list[Claim] = tomllib.loads((PROOFS / "claims.toml").read_text(encoding="utf-8"))["claim"]
    return found


def code_of(claim: Claim) -> Iterator[str]:
    """Yield the text of every module that a claim is about."""
    for code in claim["code"]:
        for path in _modules_in(code):
            yield (REPOSITORY / path).read_text(encoding="utf-8") if (REPOSITORY / path).exists() else ""


def check_reviewed() -> None:
    """Compare every claim and every file with the reviewed versions."""
    said, pinned = words(), tomllib.loads(WORDED.read_text(encoding="utf-8"))
    differing = ", ".join(sorted(name for name in said.keys() | pinned.keys() if said.get(name) != pinned.get(name)))
    require(not differing, f"claims differ from their pins: {differing}; review, then run `proofs/check pin ID ...`")
    require(REVIEWED.exists(), f"{REVIEWED.name} does not exist; review the claims, then run `proofs/check renew`")
    found, reviewed = digests(), tomllib.loads(REVIEWED.read_text(encoding="utf-8"))
    differing = sorted(path for path in found.keys() | reviewed.keys() if found.get(path) != reviewed.get(path))
    lines = [f"  {path}{'' if path in found else ' (gone)'}: {about(path)}" for path in differing]
    shown = "\n".join(lines)
    require(not differing, f"changed since its claims were reviewed:\n{shown}\nreview, then run `proofs/check renew`")
    say(f"reviewed: {len(found)} files are unchanged since the {len(claims())} claims were reviewed")


def renew() -> None:
    """Write the current digests of the files; statements and cases keep their pins."""
    lines = [f'"{path}" = "{digest}"' for path, digest in digests().items()]
    REVIEWED.write_text("\n".join((PREFACE, *lines, "")), encoding="utf-8")
    say(f"{len(lines)} digests written; say in the commit why the claims still hold")


def words() -> dict[str, str]:
    """Return a digest of every claim: its text, assumptions, limits, evidence, queries and tests."""
    asked = {
        f"{model.stem}: {name}": " ".join(text.split())
        for model in sorted((PROOFS / "symbolic").glob("*.pv"))
        for name, text in QUERY.findall(model.read_text(encoding="utf-8"))
    }
    said = {claim["id"]: {kind: told for kind, told in claim.items() if kind != "code"} for claim in claims()}
    for row in said.values():
        if "queries" in row:
            row["queries"] = [(name, asked.get(name)) for name in row["queries"]]
    return {name: digest_of(json.dumps(row, sort_keys=True).encode()) for name, row in said.items()}


def pin_words(names: list[str]) -> None:
    """Pin the named claims as they are now."""
    said, pinned = words(), tomllib.loads(WORDED.read_text(encoding="utf-8"))
    kept = {name: (said if name in names else pinned).get(name) for name in sorted({*pinned, *names})}
    lines = [f'"{name}" = "{digest}"' for name, digest in kept.items() if digest]
    WORDED.write_text("\n".join((WORDED_PREFACE, *lines, "")), encoding="utf-8")
    say(f"{len(names)} claims pinned; say in the commit why they changed")


def digest_of(content: bytes) -> str:
    """Return the short digest of a text."""
    return hashlib.sha256(content).hexdigest()[:16]


def digests() -> dict[str, str]:
    """Return the digest of every relevant file, by path."""
    return {path: digest_of((REPOSITORY / path).read_bytes()) for path in sorted(_files())}


def _files() -> set[str]:
    """Return all files of the protocols, what claims name, the core modules that both import, and the proofs."""
    gone = sorted({code for claim in claims() for code in claim["code"] if not (REPOSITORY / code).exists()})
    require(not gone, f"claims.toml names {gone}, which do not exist; update its `code`")
    named = {path for claim in claims() for code in claim["code"] for path in _modules_in(code)}
    code = named | set(_modules_in("protocols"))
    for path in tuple(code):
        code |= imported_by(path)
    evidence = {
        file.relative_to(REPOSITORY).as_posix()
        for file in PROOFS.glob("*/*")
        if file.suffix in {".v", ".ml", ".py", ".toml", ".pv"} and file.name != "ruff.toml"
    }
    return code | evidence | {"proofs/check"}


def _modules_in(code: str) -> Iterator[str]:
    place = REPOSITORY / code
    for file in place.rglob("*.py") if place.is_dir() else (place,):
        yield file.relative_to(REPOSITORY).as_posix()


# --- Imports ----------------------------------------------------------------------------------------------------------


@cache
def imported_by(path: str) -> frozenset[str]:
    """Return the modules of the library that a module imports, directly or indirectly."""
    found, left = set[str](), [path]
    while left:
        for other in _imports(left.pop()) - found:
            found.add(other)
            left.append(other)
    return frozenset(found - {path})


@cache
def _imports(path: str) -> frozenset[str]:
    file, names = REPOSITORY / path, set[str]()
    package = _name_of(path).rpartition(".")[0] if file.name != "__init__.py" else _name_of(path)
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            within = package if node.level else ""
            base = ".".join(part for part in (within, node.module or "") if part)
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(found for name in names if (found := _path_of(name)) and found != path)


def _name_of(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    parts = ("secagg", *parts) if parts[0] in LINKED else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _path_of(name: str) -> str | None:
    """Return the real path of a module's file; nothing if it is not a module of the library."""
    first, *rest = name.split(".")
    if first != "secagg":
        return None
    place = Path(*rest) if rest and rest[0] in LINKED else Path(first, *rest)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if (REPOSITORY / file).is_file():
            return file.as_posix()
    return None


# --- Claims to review -------------------------------------------------------------------------------------------------


def about(path: str) -> str:
    """Return which claims a changed file affects."""
    folder, stem = Path(path).parent, Path(path).stem
    if folder.parent.name == "proofs" or folder.name == "proofs":
        return _about_evidence(folder.name, stem)
    naming = _ids(claim for claim in claims() if any(_is_in(path, code) for code in claim["code"]))
    if naming:
        return f"named by {naming}"
    using = _ids(
        claim for claim in claims() if any(path in imported_by(m) for c in claim["code"] for m in _modules_in(c))
    )
    room = "/".join(Path(path).parts[:2])
    beside = _ids(claim for claim in claims() if any(_is_in(code, room) for code in claim["code"]))
    return (
        f"used by code of {using}" if using else f"in the folder of {beside}" if beside else "no claim names its folder"
    )


def _about_evidence(folder: str, stem: str) -> str:
    kind = EVIDENCE.get(folder)
    if folder == "coq" and stem in THEORIES[:-1]:
        resting = {stem, *(theory for theory in THEORIES[:-1] if stem in required_by(theory))}
        theorems = {theorem for theory in resting for theorem in theorems_of(theory)}
        return f"required by {_ids(claim for claim in claims() if theorems & {*claim.get('theorems', ())})}"
    if kind is None or stem == THEORIES[-1]:
        return "a gate: check what it still detects, see `Weakenings` in README.md"
    return f"evidence of {_ids(claim for claim in claims() if claim.get(kind))}"


def _is_in(path: str, code: str) -> bool:
    return path == code or path.startswith(f"{code}/")


def _ids(found: Iterator[Claim]) -> str:
    return re.sub(r", (?=[^,]*$)", " and ", ", ".join(str(claim["id"]) for claim in found))
