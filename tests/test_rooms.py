"""Limits on the size of modules, folders and the library, and one public package for each protocol."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.harness.house import Check, Fault, Module, copy_of, plant, report, shipped_modules, uses_in

pytestmark = pytest.mark.repository

MODULES_IN_A_FOLDER = 16
LINES_OF_A_MODULE = 800

LINES_OF_THE_LIBRARY = 71_000

ROLES = ("configuration", "client", "session", "simulation", "run")
"""Files that every protocol has, in addition to ``server`` or ``host``."""
PROTOCOLS = ("pairwise_mask", "enclave", "two_servers", "one_message", "light_secagg")
LISTENING = {
    "secagg.protocols.enclave.machine.evidence",
    "secagg.protocols.enclave.machine.listeners",
    "secagg.protocols.enclave.trusted.hosts",
    "secagg.protocols.two_servers.process",
}
"""Modules inside protocols that still use sockets directly."""
PRIVATE = re.compile(r"\bimport (\([^)]*|[^(\n]*)\b_[A-Za-z]")
OUTSIDE = re.compile(r"\b(socket|Thread|sleep)\b")
ENTRY_POINTS = {
    "secagg.cli.__main__",
    "secagg.protocols.enclave.machine.__main__",
    "secagg.protocols.enclave.machine.boot",
    "secagg.nvflare.forced_site",
}
"""Modules that are started as a process, or loaded by NVFlare under the name in a site's files."""


def test_many_machines_have_three_hooks(repository: Path) -> None:
    sources = {name: module.file.read_text() for name, module in shipped_modules(repository).items()}
    hooks = {name for name, source in sources.items() if "from secagg.scale" in source}
    assert len(hooks) <= 3, hooks


def test_no_key_and_no_build_product_is_tracked(repository: Path) -> None:
    """Without a Git index, as in an unpacked source distribution, there is nothing to check."""
    if (repository / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files"],  # noqa: S607 - whichever git the developer uses
            cwd=repository,
            capture_output=True,
            text=True,
            check=True,
        )
        report(tracked_faults(listed.stdout.splitlines()))


def check_sizes(root: Path) -> None:
    folders = Counter[str]()
    faults = list[str]()
    for module in shipped_modules(root).values():
        place = module.file.relative_to(root)
        folders[place.parent.as_posix()] += module.file.name != "__init__.py"
        if (lines := lines_of(module.file)) > LINES_OF_A_MODULE:
            faults.append(f"{place} has {lines} lines; the maximum is {LINES_OF_A_MODULE}; split it")
    report(
        [
            *faults,
            *(
                f"{folder} has {count} modules; the maximum is {MODULES_IN_A_FOLDER}; merge some"
                for folder, count in folders.items()
                if count > MODULES_IN_A_FOLDER
            ),
        ]
    )


def check_total(root: Path) -> None:
    lines = sum(lines_of(module.file) for module in shipped_modules(root).values())
    if lines > LINES_OF_THE_LIBRARY:
        report([f"the library has {lines} lines; the maximum is {LINES_OF_THE_LIBRARY}; shorten it"])


def check_faces(root: Path) -> None:
    modules = shipped_modules(root)
    report(
        f"{module.file.relative_to(root)}: import {use.name} from the package of its protocol"
        for module in modules.values()
        if not module.name.startswith("secagg.protocols")
        for use in uses_in(module.file.read_text(encoding="utf-8"), module.package)
        if is_deep(use.name, modules)
    )


def check_circles(root: Path) -> None:
    modules = shipped_modules(root)
    files = {name for name, module in modules.items() if module.file.name != "__init__.py"}
    imported = {name: files & set(_modules_used(modules[name], modules)) - {name} for name in files}
    order: dict[str, set[str]] = {}
    for name in files:
        waiting, reached = [name], set[str]()
        while waiting:
            new = imported[waiting.pop()] - reached
            reached |= new
            waiting += new
        order[name] = reached
    circles = {frozenset(other for other in order[name] if name in order[other]) for name in files}
    report(
        f"{', '.join(sorted(circle))} import each other, for types or at run time: move what they share to another file"
        for circle in circles - {frozenset()}
    )


def _modules_used(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    for use in uses_in(module.file.read_text(encoding="utf-8"), module.package):
        name = use.name
        while name and name not in modules:
            name = name.rpartition(".")[0]
        yield name


def check_no_waiting(root: Path) -> None:
    report(
        f"{module.file.relative_to(root)}: {found} belongs in secagg/session"
        for module in modules_below(root, "secagg.protocols")
        if module.name not in LISTENING
        for found in waiting_in(module.file.read_text(encoding="utf-8"))
    )


def check_trusted_part(root: Path) -> None:
    core = (
        "errors",
        "identifiers",
        "blame",
        "wire",
        "declared",
        "choices",
        "parameters",
        "crypto",
        "contract",
        "privacy",
        "session",
    )
    allowed = ("secagg.protocols.enclave.trusted", *(f"secagg.{room}" for room in core))
    report(
        f"{module.file.relative_to(root)}: the trusted part must not import {use.name}"
        for module in modules_below(root, "secagg.protocols.enclave.trusted")
        for use in uses_in(module.file.read_text(encoding="utf-8"), module.package)
        if use.name.startswith("secagg.") and not use.name.startswith(allowed)
    )


def check_roles(root: Path) -> None:
    report(
        f"protocols/{protocol}/{role}.py is missing: every protocol has this file"
        for protocol in PROTOCOLS
        for role in ROLES
        if not (root / "protocols" / protocol / f"{role}.py").exists()
        and not (root / "protocols" / protocol / "trusted" / f"{role}.py").exists()
    )


def check_use(root: Path) -> None:
    modules = shipped_modules(root)
    used = ENTRY_POINTS.copy()
    for module in modules.values():
        for use in uses_in(module.file.read_text(encoding="utf-8"), module.package):
            name = use.name
            while name:
                if name in modules and name != module.name:
                    used.add(name)
                    break
                name = name.rpartition(".")[0]
        used |= set(re.findall(r'"(secagg(?:\.\w+)+)"', module.file.read_text(encoding="utf-8")))
    report(
        f"no shipped module imports {module.file.relative_to(root)}: move it to tests, or remove it"
        for name, module in modules.items()
        if name not in used and module.file.name != "__init__.py" and not is_public(name)
    )


def check_private_members(root: Path) -> None:
    report(
        f"{module.file.relative_to(root)}:{line}: {name} is private to another package"
        for module in shipped_modules(root).values()
        for line, name in foreign_private_names(module.file.read_text(encoding="utf-8"))
    )


def lines_of(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def modules_below(root: Path, package: str) -> Iterator[Module]:
    return (module for module in shipped_modules(root).values() if f"{module.name}.".startswith(f"{package}."))


def is_deep(name: str, modules: dict[str, Module]) -> bool:
    """Whether a name belongs to a module inside a protocol."""
    parts = name.split(".")
    return parts[:2] == ["secagg", "protocols"] and ".".join(parts[:4]) in modules


@cache
def waiting_in(source: str) -> list[str]:
    """Return the names of sockets and waiting that a module imports or calls; its prose does not count."""
    if OUTSIDE.search(source) is None:
        return []
    tree = ast.parse(source)
    names = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]
    code = "\n".join(re.sub(r"'[^']*'|\"[^\"]*\"", "''", name) for name in names)
    return sorted(set(OUTSIDE.findall(code)))


def is_public(name: str) -> bool:
    """Whether only users import a module, such as the conformance suite or the driver of a protocol."""
    is_driver = name.startswith("secagg.protocols.") and name.endswith(".run")
    return is_driver or name == "secagg.conformance.sessions"


@cache
def foreign_private_names(source: str) -> list[tuple[int, str]]:
    """Find ``from elsewhere import _name``; type checkers already check private members of classes."""
    if PRIVATE.search(source) is None:
        return []
    return [
        (node.lineno, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def tracked_faults(paths: list[str]) -> Iterator[str]:
    for path in paths:
        parents = Path(path).parent.parts
        if path.endswith((".key", ".pem")) or "build" in parents or any("cache" in part for part in parents):
            yield f"remove {path} from the Git index: keys, caches and build products must not be tracked"


def crowd(root: Path) -> None:
    for number in range(MODULES_IN_A_FOLDER + 1):
        plant(f"protocols/new/m{number}.py")(root)


def swell(root: Path) -> None:
    for number in range(LINES_OF_THE_LIBRARY // LINES_OF_A_MODULE + 1):
        plant(f"secagg/swollen/m{number}.py", "x = 1\n" * LINES_OF_A_MODULE)(root)


PROVOCATIONS: list[tuple[Check, Fault, str]] = [
    (check_sizes, plant("compression/long.py", "x = 1\n" * 801), "compression/long.py has"),
    (check_sizes, crowd, "protocols/new has 17 modules"),
    (check_total, swell, "the library has"),
    (
        check_faces,
        plant("secagg/cli/x.py", "from secagg.protocols.pairwise_mask.graph import Topology"),
        "secagg/cli/x.py: import secagg.protocols.pairwise_mask.graph",
    ),
    (
        check_circles,
        plant("protocols/two_servers/member.py", "from .client import Client"),
        "secagg.protocols.two_servers.client, secagg.protocols.two_servers.member import each other",
    ),
    (check_no_waiting, plant("protocols/enclave/x.py", "from time import sleep"), "sleep belongs in secagg/session"),
    (check_no_waiting, plant("protocols/one_message/x.py", "import socket"), "socket belongs in secagg/session"),
    (
        check_trusted_part,
        plant("protocols/enclave/trusted/x.py", "from secagg.protocols.enclave.server import Server"),
        "must not import secagg.protocols.enclave.server",
    ),
    (check_roles, lambda root: (root / "protocols/pairwise_mask/run.py").unlink(), "pairwise_mask/run.py is missing"),
    *(
        (check_use, plant(f"{folder}/x.py"), f"no shipped module imports {folder}/x.py")
        for folder in ("secagg/planning", "secagg/session", "protocols/pairwise_mask", "compression")
    ),
    (
        check_private_members,
        plant("secagg/cli/x.py", "from secagg.wire import _reader"),
        "_reader is private to another package",
    ),
]


@pytest.mark.parametrize("check", dict.fromkeys(check for check, *_ in PROVOCATIONS))
def test_the_repository_keeps_its_limits(repository: Path, check: Check) -> None:
    check(repository)


@pytest.mark.parametrize(("check", "fault", "objection"), PROVOCATIONS)
def test_a_planted_fault_is_detected(
    repository: Path, tmp_path: Path, check: Check, fault: Fault, objection: str
) -> None:
    tree = copy_of(repository, tmp_path)
    fault(tree)
    with pytest.raises(AssertionError, match=re.escape(objection)):
        check(tree)


@pytest.mark.parametrize("path", ["benchmarks/build/x.json", "keys/a.key", "build/x", ".mypy_cache_own/x.db"])
def test_a_tracked_key_or_build_product_is_detected(path: str) -> None:
    assert [*tracked_faults([path, "src/a.py"])] == [
        f"remove {path} from the Git index: keys, caches and build products must not be tracked"
    ]
