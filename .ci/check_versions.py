"""Run the tests of the core where users do: other Pythons, and the oldest and newest dependencies.

`make pythons` names the interpreters, `make oldest` and `make newest` the bounds of what is installed. Interpreters
that are absent are listed, and are a failure where none is there. It needs the standard library and pip.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TESTS = ("core", "crypto", "contract", "session", "quick", "conformance", "protocols/pairwise_mask", "privacy")
RUNNERS = ("pytest", "pytest-randomly")
NEEDS = (*RUNNERS, "hypothesis", "cbor2", "dp-accounting", "pycryptodome")


def main() -> None:
    """Run every combination that is asked for, and end with a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", default=[], metavar="VERSION", help="such as 3.12; once for each")
    parser.add_argument("--dependencies", choices=("tested", "oldest", "newest"), default="tested")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="folders below tests/ (default: the core's)")
    options = parser.parse_args()
    names = [f"python{version}" for version in options.python] or [sys.executable]
    found = {name: interpreter for name in names if (interpreter := interpreter_of(name)) is not None}
    results = dict.fromkeys(names, "not on this machine; nothing was run")
    failed = not found
    for name, interpreter in found.items():
        status, said = check(interpreter, options.dependencies, options.tests)
        failed |= status != 0
        results[name] = said
    for name, said in results.items():
        print(f"versions: {Path(name).name}, {options.dependencies} dependencies: {said}", flush=True)
    sys.exit(failed)


def interpreter_of(name: str) -> str | None:
    """Find an interpreter that starts: a version manager's stand-in may be there without one behind it."""
    path = shutil.which(name)
    if path is None:
        return None
    program = "import sys; print(sys.executable)"
    child = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)  # noqa: S603 - as found
    return child.stdout.strip() if child.returncode == 0 else None


def check(interpreter: str, dependencies: str, tests: list[str]) -> tuple[int, str]:
    """Run the tests in a new environment; return pytest's status and its last line."""
    with tempfile.TemporaryDirectory(prefix="secagg-versions-") as name:
        environment = Path(name).resolve()
        subprocess.run([interpreter, "-m", "venv", "--without-pip", environment], check=True)  # noqa: S603 - as found
        python = environment / "bin" / "python"
        held = environment / "held.txt"
        held.write_text("\n".join(constraints(dependencies)), encoding="utf-8")
        pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, "install", "--no-compile", "-c", held, *bounded(dependencies)], check=True)  # noqa: S603
        # Warnings of a dependency that another version of Python or of the dependency gives are not this library's.
        chosen = "not gpu and not flower and not flower_torch and not nvflare_torch"
        # What pyright says of the API depends on neither; the environment has none.
        types = "tests/quick/test_types.py::test_pyright_refuses_what_is_wrong_and_nothing_else"
        command = [str(python), "-m", "pytest", "-q", "-W", "default", "-m", chosen, "--deselect", types]
        folders = [f"tests/{folder}" for folder in tests]
        child = subprocess.run(  # noqa: S603 - the command is the one above
            [*command, *folders], cwd=REPOSITORY, env={"PYTHONPATH": ".", "PATH": str(python.parent)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        if child.returncode:
            print(child.stdout)
        return child.returncode, child.stdout.strip().splitlines()[-1]


def bounded(dependencies: str) -> list[str]:
    """Return what is installed: dependencies and test tools, the oldest ones at the lower bounds of pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = project["optional-dependencies"]
    listed = {re.split(r"[>=\[]", one)[0]: one for one in [*optional["dev"], *project["dependencies"]]}
    users = {re.split(r"[>=\[]", one)[0] for one in project["dependencies"]} | {"hypothesis"}
    wanted = [listed[name] for name in sorted(users | {*NEEDS})]
    if dependencies == "oldest":
        return [one.replace(">=", "==") if re.split(r"[>=]", one)[0] in users else one for one in wanted]
    return wanted


def constraints(dependencies: str) -> list[str]:
    """Return the versions that are held: all that the project was tested with, or none."""
    text = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    return text.splitlines() if dependencies == "tested" else []


if __name__ == "__main__":
    main()
