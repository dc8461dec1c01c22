"""The repository for architecture tests: its modules, their imports, and faults planted in a copy."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LINKED_ROOMS = ("compression", "protocols", "training")
SHIPPED = {"secagg": "secagg", **{room: f"secagg.{room}" for room in LINKED_ROOMS}}
"""Each shipped folder, and the import name of its root."""

Check = Callable[[Path], None]
Fault = Callable[[Path], None]


def report(faults: Iterable[str]) -> None:
    """Fail with one line for each fault."""
    listed = sorted(faults)
    assert not listed, "\n".join(listed)


def copy_of(repository: Path, target: Path) -> Path:
    """Copy the files that the checks read, and link the packages as a checkout does."""
    shutil.copy(repository / "pyproject.toml", target)
    for folder in SHIPPED:
        ignored = shutil.ignore_patterns("__pycache__", *LINKED_ROOMS)
        shutil.copytree(repository / folder, target / folder, ignore=ignored)
    for room in LINKED_ROOMS:
        (target / "secagg" / room).symlink_to(f"../{room}")
    return target


def plant(file: str, text: str = "") -> Fault:
    """Return a fault that appends ``text`` to a file, which is created if needed."""

    def fault(root: Path) -> None:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        with (root / file).open("a", encoding="utf-8") as opened:
            opened.write(f"\n{text}\n")

    return fault


def is_within(name: str, ancestor: str) -> bool:
    """Whether a dotted name equals another, or is below it."""
    return f"{name}.".startswith(f"{ancestor}.")


def nearest(name: str, known: Container[str]) -> str | None:
    """Return the module that contains a dotted name: ``secagg.wire`` for ``secagg.wire.Reader.take``."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


@dataclass(frozen=True)
class Module:
    """One shipped module, under the name by which it is imported, at its real path."""

    name: str
    file: Path

    @property
    def package(self) -> str:
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Use:
    """The full name of one thing that a module imports, or reads through an import."""

    name: str
    line: int
    runs: bool
    """False under ``if TYPE_CHECKING``: such an import has a direction, but cannot close a cycle."""


def shipped_modules(root: Path) -> dict[str, Module]:
    """Find every module by its import name; ``rglob`` does not descend links, so each is met at its real path."""
    found: dict[str, Module] = {}
    for folder, package in SHIPPED.items():
        for file in (root / folder).rglob("*.py"):
            inner = file.relative_to(root / folder).with_suffix("").parts
            name = ".".join((package, *(part for part in inner if part != "__init__")))
            found[name] = Module(name, file)
    return found


@cache
def uses_in(source: str, package: str) -> tuple[Use, ...]:
    """List the names that a module of ``package`` imports anywhere, then those that it reads through imports."""
    nodes = list(ast.walk(ast.parse(source)))
    typing_only = {id(inner) for node in nodes for inner in typing_only_nodes(node)}
    bindings: dict[str, str] = {}
    uses: list[Use] = []
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for local, meaning, name in imported_names(node, package):
                bindings[local] = meaning
                uses.append(Use(name, node.lineno, id(node) not in typing_only))
    for node in nodes:
        if isinstance(node, ast.Attribute):
            local, _, rest = ast.unparse(node).partition(".")
            if local in bindings:
                uses.append(Use(f"{bindings[local]}.{rest}", node.lineno, id(node) not in typing_only))
    return tuple(uses)


def imported_names(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, str, str]]:
    """Yield each local name that the statement binds, its meaning, and the full imported name."""
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            full = f"{origin}.{alias.name}"
            yield alias.asname or alias.name, full, full
        elif alias.asname:
            yield alias.asname, alias.name, alias.name
        else:
            head = alias.name.partition(".")[0]
            yield head, head, alias.name


def typing_only_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
        for statement in node.body:
            yield from ast.walk(statement)
