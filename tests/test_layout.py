"""Architecture of the repository: six checks, and for each of them planted faults that it must detect.

A check takes the root of a repository and raises an AssertionError that says what to change. The first six tests run
the checks on this repository; the last one copies its sources, plants one fault, and expects the check to fail.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.harness.house import (
    LINKED_ROOMS,
    SHIPPED,
    Check,
    Fault,
    copy_of,
    is_within,
    nearest,
    plant,
    report,
    shipped_modules,
    uses_in,
)

pytestmark = pytest.mark.repository

ROOMS_WITHOUT_INIT = (*LINKED_ROOMS, "proofs")
WITHOUT_MODULES = {"secagg.web", "secagg.web.page"}
"""Packages with files for browsers."""

CORE_LEVELS = (
    {"errors", "lazy", "version"},
    {"choices", "identifiers", "options", "parameters"},
    {"blame", "wire"},
    {"declared", "tables"},
    {"crypto"},
    {"contract"},
    {"privacy"},
    {"session"},
)
CORE_MODULES = set[str]().union(*CORE_LEVELS)
FACE_IMPORTS = ("secagg.lazy",)
FACE_NAMES = (
    "secagg.errors",
    "secagg.identifiers",
    "secagg.parameters",
    "secagg.contract",
    "secagg.quick",
    "secagg.version",
)
"""Names that the package declares for type checkers and loads lazily."""
TOP_ROOMS = (
    "adapters",
    "planning",
    "simulation",
    "quick",
    "analytics",
    "training",
    "scale",
    "enclave_image",
    "platforms",
    "flower",
    "nvflare",
    "transport",
    "cli",
)
ROOMS = {
    "face": "secagg/__init__.py only imports lazy; the core names and the quick interface are loaded lazily",
    "core": "a core module may only import its own level and lower ones; move the code, or its level in CORE_LEVELS",
    "compression": "a scheme may only import the core; schemes and protocols meet in secagg.contract",
    "protocols": "a protocol may only import the core and itself; schemes and protocols meet in secagg.contract",
    "conformance": "the conformance suite may only import the core",
    **dict.fromkeys(TOP_ROOMS, "it may import everything"),
}
"""Each package and the rule for its imports; only top-level packages may import another top-level package."""

ONLY_IN: Mapping[str, tuple[str, ...]] = {
    "torch": ("training",),
    "flwr": ("flower",),
    "nvflare": ("nvflare",),
    "starlette": ("transport",),
    "uvicorn": ("transport",),
    "httpx": ("transport",),
    "numpy": ("crypto", "contract", "privacy", "compression", "protocols", "conformance", *TOP_ROOMS),
    "numpy.random": ("conformance", *TOP_ROOMS),
    "random": (),
    "secrets": ("crypto.entropy",),
    "os.urandom": ("crypto.entropy",),
    "os.getrandom": ("crypto.entropy",),
    "Crypto.Random": ("crypto.entropy",),
}
"""Each confined name, and the subpackages of ``secagg`` that may use it."""

REPOSITORY_FOLDERS = (*ROOMS_WITHOUT_INIT, "tests", "benchmarks")
"""Importable by accident from the root of the repository, but absent where the package is installed."""


def check_no_init_files(root: Path) -> None:
    """Check that no top-level ``compression`` package shadows the one in the standard library of Python 3.14."""
    candidates = [*(root / room / "__init__.py" for room in ROOMS_WITHOUT_INIT), *(root / "tests").rglob("__init__.py")]
    report(f"remove {path.relative_to(root)}: its folder is not a package" for path in candidates if path.exists())


def check_room_links(root: Path) -> None:
    """Run in a checkout only; an unpacked source distribution (it has a PKG-INFO) contains no links."""
    if not (root / "PKG-INFO").exists():
        targets = {**{room: f"../{room}" for room in LINKED_ROOMS}, "web": "../clients/web"}
        report(fault for name, target in targets.items() for fault in link_faults(root / "secagg" / name, target))


def check_package_list(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    listed: set[str] = set(project["tool"]["setuptools"]["packages"])
    found: set[str] = set()
    for module in shipped_modules(root).values():
        found |= {module.package, ".".join(module.package.split(".")[:2])}
        folder = module.file.parent
        if folder.parent != root or folder.name not in LINKED_ROOMS:
            assert (folder / "__init__.py").exists(), f"add {folder.relative_to(root)}/__init__.py: it has modules"
    report(f'add "{package}" to `packages` in pyproject.toml' for package in found - listed)
    report(f'remove "{package}" from `packages` in pyproject.toml' for package in listed - found - WITHOUT_MODULES)


def check_standard_library_from_root(root: Path) -> None:
    """Start a child process as a developer does; it imports the modules that Python 3.14 has in ``compression``."""
    program = (
        "import zipfile\n"
        "assert zipfile.bz2 and zipfile.lzma, 'zipfile has lost a compression method'\n"
        "import bz2, gzip, lzma, tarfile\n"
        "for module in (bz2, gzip, lzma, tarfile, zipfile): print(module.__file__)\n"
    )
    command = [sys.executable, "-E", "-B", "-c", program]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)  # noqa: S603 - fixed command
    assert child.returncode == 0, f"rename files that shadow the standard library in the root:\n{child.stderr}"
    files = [Path(line) for line in child.stdout.splitlines()]
    report(f"rename {file}: it shadows the standard library" for file in files if file.is_relative_to(root))


def check_import_direction(root: Path) -> None:
    modules = shipped_modules(root)
    known = {*modules, *SHIPPED.values()}
    first_line: dict[str, int] = {}
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        where = module.file.relative_to(root)
        assert room_of(module.name) in ROOMS, f"{where}: add it to CORE_LEVELS or to ROOMS in tests/test_layout.py"
        for use in uses_in(module.file.read_text(encoding="utf-8"), module.package):
            imported = nearest(use.name, known)
            faults = [*outside_faults(module.name, use.name), *direction_faults(module.name, imported)]
            if module.name == "secagg" and not use.runs and str(imported).startswith(FACE_NAMES):
                continue
            for fault in faults:
                first_line.setdefault(f"{where}: {fault}", use.line)
            if use.runs and imported not in (None, module.name):
                graph.setdefault(module.name, set()).add(str(imported))
    report(f"{fault} (line {line})" for fault, line in first_line.items())
    report(f"break the import cycle {' <- '.join(cycle)}" for cycle in cycles_in(graph))


def check_module_names(root: Path) -> None:
    """Scripts that run from inside a folder see that folder before the standard library, so they are exempt."""
    files = [file for folder in (*SHIPPED, "benchmarks") for file in (root / folder).rglob("*.py")]
    paths = {file.parent if file.name == "__init__.py" else file for file in files}
    report(
        f"rename {path.relative_to(root)}: the standard library has a module of that name"
        for path in paths
        if path.stem in sys.stdlib_module_names
    )


def link_faults(link: Path, target: str) -> Iterator[str]:
    name = f"secagg/{link.name}"
    if not link.is_symlink():
        yield (
            f"{name} is not a symbolic link: remove it and run `ln -s {target} {name}`. Where links are unsupported, "
            "enable them (on Windows: developer mode and `git config core.symlinks true`) and check out again"
        )
    elif link.readlink().as_posix() != target:
        yield f"{name} points to {link.readlink()}: make it the relative link {target}"


def outside_faults(importer: str, name: str) -> Iterator[str]:
    inner = importer.partition(".")[2]
    for confined, users in ONLY_IN.items():
        if is_within(name, confined) and not any(is_within(inner, user) for user in users):
            yield f"{confined} is confined to ({', '.join(users)}): remove it here"
    for folder in REPOSITORY_FOLDERS:
        if is_within(name, folder):
            yield f"`{folder}` is a folder of the repository, not a package: import it as secagg.<package>"


def direction_faults(importer: str, imported: str | None) -> Iterator[str]:
    if imported is not None and importer != imported and not may_import(importer, imported):
        yield f"it must not import {imported}: {ROOMS[room_of(importer)]}"


def may_import(importer: str, imported: str) -> bool:
    match room_of(importer), room_of(imported):
        case "face", _:
            return imported in FACE_IMPORTS
        case "core", "core":
            return level_of(imported) <= level_of(importer)
        case "protocols", "protocols":
            return importer.split(".")[:3] == imported.split(".")[:3]
        case here, there:
            return here in TOP_ROOMS or there in {"core", here}


def room_of(module: str) -> str:
    """Return the package of a name within ``secagg``: ``core`` for modules with a level."""
    child = module.partition(".")[2].partition(".")[0]
    return "core" if child in CORE_MODULES else child or "face"


def level_of(module: str) -> int:
    return next(level for level, modules in enumerate(CORE_LEVELS) if module.split(".")[1] in modules)


def cycles_in(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield error.args[1]


@pytest.fixture
def tree(repository: Path, tmp_path: Path) -> Path:
    return copy_of(repository, tmp_path)


def plant_cycle(root: Path) -> None:
    plant("secagg/identifiers.py", "import secagg.parameters")(root)
    plant("secagg/parameters.py", "def late():\n    import secagg.identifiers")(root)


def list_absent_package(root: Path) -> None:
    project = root / "pyproject.toml"
    project.write_text(project.read_text(encoding="utf-8").replace('  "secagg",', '  "secagg", "secagg.absent",'))


def remove_link(root: Path) -> None:
    (root / "secagg" / "compression").unlink()


def replace_link_by_folder(root: Path) -> None:
    remove_link(root)
    shutil.copytree(root / "compression", root / "secagg" / "compression")


def replace_link_by_text(root: Path) -> None:
    """Create what a checkout without symlink support contains."""
    remove_link(root)
    (root / "secagg" / "compression").write_text("../compression", encoding="utf-8")


def point_link_elsewhere(root: Path) -> None:
    remove_link(root)
    (root / "secagg" / "compression").symlink_to(root / "compression")


INIT_FAULTS = [
    (plant(f"{folder}/__init__.py"), f"remove {folder}/__init__.py")
    for folder in (*ROOMS_WITHOUT_INIT, "tests", "tests/core", "tests/protocols/pairwise_mask")
]
LINK_FAULTS = [
    (remove_link, "secagg/compression is not a symbolic link"),
    (replace_link_by_folder, "secagg/compression is not a symbolic link"),
    (replace_link_by_text, "secagg/compression is not a symbolic link"),
    (point_link_elsewhere, "make it the relative link ../compression"),
]
LIST_FAULTS = [
    (plant("secagg/unlisted/__init__.py"), 'add "secagg.unlisted" to `packages`'),
    (plant("compression/unlisted/__init__.py"), 'add "secagg.compression.unlisted" to `packages`'),
    (plant("protocols/unlisted/__init__.py"), 'add "secagg.protocols.unlisted" to `packages`'),
    (plant("compression/folder/module.py"), "add compression/folder/__init__.py"),
    (list_absent_package, 'remove "secagg.absent" from `packages`'),
]
SHADOW_FAULTS = [
    (plant("gzip.py"), "gzip.py: it shadows the standard library"),
    (plant("tarfile/__init__.py"), "tarfile/__init__.py: it shadows the standard library"),
    (plant("gzip.py", "raise ImportError('planted')"), "ImportError: planted"),
    (plant("lzma.py", "raise ImportError('planted')"), "zipfile has lost a compression method"),
]
DIRECTION_FAULTS = [
    (plant("secagg/novelty.py"), "secagg/novelty.py: add it to CORE_LEVELS"),
    (plant("secagg/__init__.py", "from secagg.crypto.ring import Ring"), "it must not import secagg.crypto.ring"),
    (plant("secagg/__init__.py", "from .compression import x"), "it must not import secagg.compression"),
    (
        plant("secagg/wire.py", "from secagg.crypto.shamir import x"),
        "secagg/wire.py: it must not import secagg.crypto.shamir",
    ),
    (plant("secagg/wire.py", "from secagg.crypto import shamir"), "it must not import secagg.crypto.shamir"),
    (plant("secagg/wire.py", "from secagg import Reason"), "it must not import secagg: a core module"),
    (plant("secagg/wire.py", "import secagg.errors\nsecagg.compression.x()"), "must not import secagg.compression"),
    (plant("secagg/wire.py", "def late():\n    import secagg.protocols.x"), "must not import secagg.protocols"),
    (
        plant("secagg/wire.py", "if TYPE_CHECKING:\n    import secagg.crypto.shamir"),
        "must not import secagg.crypto.shamir",
    ),
    (plant_cycle, "break the import cycle secagg."),
    (plant("compression/x.py", "from secagg.protocols import y"), "compression/x.py: it must not import secagg.protoc"),
    (plant("compression/x.py", "from ..protocols.y import z"), "it must not import secagg.protocols"),
    (plant("compression/x.py", "import secagg.simulation"), "it must not import secagg.simulation"),
    (plant("protocols/x/__init__.py", "from ..y import z"), "protocols/x/__init__.py: it must not import secagg.pro"),
    (plant("protocols/x/round0.py", "import secagg.compression.y"), "it must not import secagg.compression"),
    (plant("secagg/conformance/x.py", "import secagg.compression.y"), "it must not import secagg.compression"),
]
CONFINEMENT_FAULTS = [
    (plant("secagg/wire.py", "import torch"), "torch is confined to (training)"),
    (plant("secagg/cli/x.py", "from torch.nn import Module"), "torch is confined to (training)"),
    (plant("secagg/simulation/x.py", "import flwr.client"), "flwr is confined to (flower)"),
    (plant("secagg/errors.py", "import numpy.typing as npt"), "numpy is confined to (crypto, "),
    (plant("secagg/crypto/ring.py", "import numpy as np\nnp.random.default_rng()"), "numpy.random is confined to"),
    (plant("protocols/x/__init__.py", "from numpy import random"), "numpy.random is confined to"),
    (plant("secagg/cli/x.py", "import random"), "random is confined to ()"),
    (plant("compression/x.py", "from random import Random"), "random is confined to ()"),
    (plant("secagg/crypto/ring.py", "import secrets"), "secrets is confined to (crypto.entropy)"),
    (plant("secagg/crypto/ring.py", "import os\nos.urandom(1)"), "os.urandom is confined to (crypto.entropy)"),
    (plant("secagg/crypto/ring.py", "from os import urandom"), "os.urandom is confined to (crypto.entropy)"),
    (plant("secagg/crypto/ring.py", "from os import getrandom"), "os.getrandom is confined to (crypto.entropy)"),
    (
        plant("secagg/crypto/ring.py", "from Crypto.Random import get_random_bytes"),
        "Crypto.Random is confined to (crypto.entropy)",
    ),
    (plant("secagg/cli/x.py", "import compression.fixed_point"), "import it as secagg.<package>"),
    (plant("secagg/cli/x.py", "from tests import x"), "`tests` is a folder of the repository"),
]
NAME_FAULTS = [
    (plant("secagg/queue.py"), "rename secagg/queue.py"),
    (plant("compression/types.py"), "rename compression/types.py"),
    (plant("protocols/x/token/__init__.py"), "rename protocols/x/token"),
    (plant("benchmarks/profile.py"), "rename benchmarks/profile.py"),
]
PROVOCATIONS: list[tuple[Check, Fault, str]] = [
    *((check_no_init_files, fault, objection) for fault, objection in INIT_FAULTS),
    *((check_room_links, fault, objection) for fault, objection in LINK_FAULTS),
    *((check_package_list, fault, objection) for fault, objection in LIST_FAULTS),
    *((check_standard_library_from_root, fault, objection) for fault, objection in SHADOW_FAULTS),
    *((check_import_direction, fault, objection) for fault, objection in DIRECTION_FAULTS + CONFINEMENT_FAULTS),
    *((check_module_names, fault, objection) for fault, objection in NAME_FAULTS),
]


@pytest.mark.parametrize("check", dict.fromkeys(check for check, *_ in PROVOCATIONS))
def test_the_repository_keeps_its_architecture(repository: Path, check: Check) -> None:
    check(repository)


@pytest.mark.parametrize(("check", "fault", "objection"), PROVOCATIONS)
def test_a_planted_fault_is_detected(tree: Path, check: Check, fault: Fault, objection: str) -> None:
    fault(tree)
    with pytest.raises(AssertionError, match=re.escape(objection)):
        check(tree)


def test_permitted_imports_pass(tree: Path) -> None:
    for fault in (
        plant("training/x.py", "import torch\nimport numpy as np\nnp.random.default_rng()"),
        plant("secagg/flower/x.py", "import flwr"),
        plant("secagg/cli/x.py", "from secagg import Reason, crypto, training\nimport secagg.protocols.x.round0"),
        plant("protocols/x/__init__.py"),
        plant("protocols/x/graph.py", "import numpy as np"),
        plant("protocols/x/round0.py", "from . import graph\nfrom secagg.protocols.x.graph import y"),
        plant("secagg/crypto/hpke.py", "import os\nos.path.join()\nimport secagg.crypto.labels"),
        plant("secagg/crypto/labels.py", "if TYPE_CHECKING:\n    import secagg.identifiers"),
        plant("secagg/identifiers.py", "import secagg.errors"),
    ):
        fault(tree)
    check_import_direction(tree)


def test_contributing_lists_the_enforced_levels(repository: Path) -> None:
    rows = re.findall(
        r"^\| (\d) \| (.*) \|$", (repository / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    named = [{name.partition("/")[0] for name in re.findall(r"`([^`]+)`", row)} for _, row in rows]
    assert [int(number) for number, _ in rows] == list(range(len(rows)))
    assert named == [*CORE_LEVELS, {"compression", "protocols", "conformance"}, set(TOP_ROOMS)]
