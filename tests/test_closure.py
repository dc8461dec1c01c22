"""A client stays small: limits on the lines of code that importing its class executes. Limits may only be lowered."""

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

BARS = {"pairwise_mask": 3_930, "one_message": 3_233, "enclave": 2_915, "two_servers": 3_875, "light_secagg": 1_595}
"""Maximum lines of code of each client. Lower it when the code shrinks."""
GOALS = {"pairwise_mask": 3_930, "one_message": 3_060, "enclave": 2_915, "two_servers": 3_875, "light_secagg": 1_595}
LATE = {"secagg.crypto.hpke", "secagg.protocols.pairwise_mask.suites"}
"""Modules that import the hybrid suite inside the functions that need it."""
ATTESTATION, ATTESTATION_BAR = "secagg.protocols.enclave.attestation", 1_370
"""The verifier of evidence, which no client imports. A reviewer reads these modules and ``secagg.errors``."""
FACES = ("secagg", "secagg.contract", *(f"secagg.protocols.{protocol}" for protocol in BARS))


def client_of(protocol: str) -> str:
    return f"secagg.protocols.{protocol}.client"


@pytest.mark.parametrize("protocol", BARS)
def test_a_client_executes_at_most_its_limit_of_lines(repository: Path, protocol: str) -> None:
    check_bar(repository, protocol)


def test_attestation_has_a_separate_closure(repository: Path) -> None:
    assert not any(name.startswith(ATTESTATION) for name in closure(repository, client_of("enclave")))
    executed = closure(repository, ATTESTATION)
    others = {"secagg", "secagg.errors", "secagg.lazy", "secagg.identifiers", "secagg.protocols.enclave"}
    assert {name for name in executed if not name.startswith(ATTESTATION)} <= others
    assert sum(lines for name, lines in executed.items() if name.startswith(ATTESTATION)) <= ATTESTATION_BAR


@pytest.mark.parametrize("protocol", BARS)
def test_a_client_has_no_import_inside_a_function(repository: Path, protocol: str) -> None:
    check_late(repository, protocol)


@pytest.mark.parametrize("protocol", BARS)
def test_importing_a_client_executes_no_server_and_no_planner(protocol: str) -> None:
    others = {
        f"secagg.protocols.{protocol}.{role}" for role in ("server", "host", "run", "simulation", "costs", "holder")
    }
    assert not others & _loaded(protocol)


@pytest.mark.parametrize("protocol", BARS)
def test_the_measured_closure_is_what_python_loads(repository: Path, protocol: str) -> None:
    assert closure(repository, client_of(protocol)).keys() == _loaded(protocol)


@pytest.mark.parametrize(
    "program",
    ["import secagg", "import secagg.cli\ntry:\n    secagg.cli.main(['--help'])\nexcept SystemExit:\n    pass"],
    ids=["import", "help"],
)
def test_import_and_help_do_not_load_numpy(program: str) -> None:
    """Loading numpy and cryptography takes longer than everything else that an import or a help text needs."""
    program += "\nimport sys\nprint(); print(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 -- fixed command
    assert not {"numpy", "cryptography", "asyncio", "importlib.metadata"} & {*child.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize("face", FACES)
def test_lazy_names_are_the_same_for_type_checkers_and_at_run_time(face: str) -> None:
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
def test_no_lazy_name_equals_the_name_of_a_module(repository: Path, face: str) -> None:
    """Importing the module would replace the name by the module."""
    names: list[str] = importlib.import_module(face).__all__
    report(
        f"rename {face}.{name}: it is a module too" for name in names if f"{face}.{name}" in shipped_modules(repository)
    )


def check_bar(root: Path, protocol: str) -> None:
    lines = sum(closure(root, client_of(protocol)).values())
    bar = BARS[protocol]
    assert lines <= bar, (
        f"the client of {protocol} executes {lines} lines of code; its limit is {bar} (goal: {GOALS[protocol]})"
    )


def check_late(root: Path, protocol: str) -> None:
    files = shipped_modules(root)
    report(
        f"{name}: {statement} is inside a function, where no closure counts it"
        for name in closure(root, client_of(protocol))
        if name not in LATE
        for statement in late_imports(files[name].file.read_text(encoding="utf-8"))
    )


def _loaded(protocol: str) -> set[str]:
    program = f"import sys, {client_of(protocol)}\nprint(*sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603 -- fixed command
    return {name for name in child.stdout.split() if name.partition(".")[0] == "secagg"} - {"secagg.protocols"}


def test_a_client_that_imports_its_server_is_detected(repository: Path, tmp_path: Path) -> None:
    tree = copy_of(repository, tmp_path)
    plant("protocols/light_secagg/client.py", "from . import server")(tree)
    with pytest.raises(AssertionError, match="the client of light_secagg executes"):
        check_bar(tree, "light_secagg")


def test_a_client_that_imports_its_server_in_a_function_is_detected(repository: Path, tmp_path: Path) -> None:
    tree = copy_of(repository, tmp_path)
    plant("protocols/light_secagg/client.py", "def late():\n    from . import server")(tree)
    with pytest.raises(AssertionError, match=r"from \. import server is inside a function"):
        check_late(tree, "light_secagg")


def test_lines_of_code_are_counted_without_docstrings_comments_and_imports() -> None:
    source = (
        '"""Docstring."""\n\nimport os\n\n# Comment.\nX = (\n  1,\n)\n\ndef f():\n  """Two\n  lines."""\n  return X\n'
    )
    assert code_lines(source) == len(["X = (", "1,", ")", "def f():", "return X"])
