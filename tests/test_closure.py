"""A client stays small: how many lines of code an import of its class executes, as a bar that only sinks."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.closure import closure, code_lines, late_imports
from tests.harness.house import copy_of, plant, report, shipped_modules, typing_only_nodes

pytestmark = pytest.mark.repository

BARS = {"pairwise_mask": 4_110, "one_message": 3_345, "enclave": 3_570, "two_servers": 4_015, "light_secagg": 1_615}
"""The most lines of code of each client. Lower it with the code."""
GOALS = {"pairwise_mask": 4_300, "one_message": 3_600, "enclave": 3_600, "two_servers": 4_200, "light_secagg": 1_650}
LATE = {"secagg.crypto.hpke", "secagg.protocols.pairwise_mask.suites"}
"""Modules that import the hybrid suite in the functions that need it."""
ATTESTATION, ATTESTATION_BAR = "secagg.protocols.enclave.attestation", 1_370
"""The verifier of evidence, which no client imports. Its reviewer reads these modules and ``secagg.errors``."""
FACES = ("secagg", "secagg.contract", *(f"secagg.protocols.{protocol}" for protocol in BARS))


def client_of(protocol: str) -> str:
    return f"secagg.protocols.{protocol}.client"


@pytest.mark.parametrize("protocol", BARS)
def test_a_client_executes_no_more_than_its_bar(repository: Path, protocol: str) -> None:
    check_bar(repository, protocol)


def test_attestation_is_a_closure_of_its_own(repository: Path) -> None:
    assert not any(name.startswith(ATTESTATION) for name in closure(repository, client_of("enclave")))
    executed = closure(repository, ATTESTATION)
    others = {"secagg", "secagg.errors", "secagg.lazy", "secagg.identifiers", "secagg.protocols.enclave"}
    assert {name for name in executed if not name.startswith(ATTESTATION)} <= others
    assert sum(lines for name, lines in executed.items() if name.startswith(ATTESTATION)) <= ATTESTATION_BAR


@pytest.mark.parametrize("protocol", BARS)
def test_a_client_hides_no_import_in_a_function(repository: Path, protocol: str) -> None:
    check_late(repository, protocol)


@pytest.mark.parametrize("protocol", BARS)
def test_importing_a_client_executes_no_server_and_no_planner(protocol: str) -> None:
    others = {
        f"secagg.protocols.{protocol}.{role}" for role in ("server", "host", "run", "simulation", "costs", "holder")
    }
    assert not others & _loaded(protocol)


@pytest.mark.parametrize("protocol", BARS)
def test_what_is_measured_is_what_is_loaded(repository: Path, protocol: str) -> None:
    assert closure(repository, client_of(protocol)).keys() == _loaded(protocol)


@pytest.mark.parametrize(
    "program",
    ["import secagg", "import secagg.cli\ntry:\n    secagg.cli.main(['--help'])\nexcept SystemExit:\n    pass"],
    ids=["import", "help"],
)
def test_a_first_look_waits_for_no_arithmetic(program: str) -> None:
    """Loading numpy and cryptography takes longer than all else that an import or a help text needs."""
    program += "\nimport sys\nprint(); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 -- fixed command
    assert not {"numpy", "cryptography", "asyncio", "importlib.metadata"} & {*child.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("face", FACES)
def test_a_face_says_the_same_to_type_checkers_and_at_run_time(face: str) -> None:
    module = importlib.import_module(face)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.asname: f"{'.' * node.level}{node.module}"
        for branch in ast.walk(tree)
        for node in typing_only_nodes(branch)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(map(str, typed)) == module.__all__
    for name, origin in typed.items():
        found = vars(importlib.import_module(origin, face))
        assert getattr(module, str(name)) is found.get(str(name), getattr(module, str(name)))
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = module.nonsense


@pytest.mark.parametrize("face", FACES)
def test_no_name_of_a_face_is_that_of_one_of_its_modules(repository: Path, face: str) -> None:
    """Whoever imports the module would replace the name by it."""
    names: list[str] = importlib.import_module(face).__all__
    report(
        f"rename {face}.{name}: it is a module too" for name in names if f"{face}.{name}" in shipped_modules(repository)
    )


def check_bar(root: Path, protocol: str) -> None:
    lines = sum(closure(root, client_of(protocol)).values())
    bar = BARS[protocol]
    assert lines <= bar, (
        f"the client of {protocol} executes {lines} lines of code, and {bar} is its bar ({GOALS[protocol]} the goal)"
    )


def check_late(root: Path, protocol: str) -> None:
    files = shipped_modules(root)
    report(
        f"{name}: {statement} waits in a function, where no closure counts it"
        for name in closure(root, client_of(protocol))
        if name not in LATE
        for statement in late_imports(files[name].file.read_text(encoding="utf-8"))
    )


def _loaded(protocol: str) -> set[str]:
    program = f"import sys, {client_of(protocol)}\nprint(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 -- fixed command
    return {name for name in child.stdout.split() if name.partition(".")[0] == "secagg"} - {"secagg.protocols"}


def test_a_client_that_imports_its_server_is_noticed(repository: Path, tmp_path: Path) -> None:
    tree = copy_of(repository, tmp_path)
    plant("protocols/light_secagg/client.py", "from . import server")(tree)
    with pytest.raises(AssertionError, match="the client of light_secagg executes"):
        check_bar(tree, "light_secagg")


def test_a_client_that_imports_its_server_when_it_is_called_is_noticed(repository: Path, tmp_path: Path) -> None:
    tree = copy_of(repository, tmp_path)
    plant("protocols/light_secagg/client.py", "def late():\n    from . import server")(tree)
    with pytest.raises(AssertionError, match=r"from \. import server waits in a function"):
        check_late(tree, "light_secagg")


def test_lines_of_code_are_counted_as_one_reads_them() -> None:
    source = (
        '"""Docstring."""\n\nimport os\n\n# Comment.\nX = (\n  1,\n)\n\ndef f():\n  """Two\n  lines."""\n  return X\n'
    )
    assert code_lines(source) == len(["X = (", "1,", ")", "def f():", "return X"])
