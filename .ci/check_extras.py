"""Install each extra alone in an empty environment, and make the first call that needs it, without it and with it.

Run it as `make extras`, for all of them, or with the names of some; `make dist-check` runs those that install in
seconds. Where an extra is missing, its first call must end in an error that names it. It needs the standard library
and pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from build_distributions import REPOSITORY, build, copy_sources

FEW_HELD = ("cryptography", "numpy", "torch")
"""Held where platforms pin other versions of what is in constraints.txt."""
NOT_FOR_USERS = {"dev", "docs"}


@dataclass(frozen=True)
class Extra:
    """The program of a first call, and whether its packages install in seconds."""

    call: str
    is_small: bool
    has_call: bool = True
    """An extra without one serves the repository's own programs, which no wheel holds: its packages are imported."""
    includes: str = ""
    """Another extra that comes with it, and that its first call may miss first."""


COMMAND = "import sys; from secagg.cli import main; sys.exit(main({arguments!r}))"
EPSILON = """
from fractions import Fraction
from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.kinds import NoiseKind
part = ReleasePart(l2_squared=1, l1=None, variance=Fraction(4))
assert 0 < epsilon(NoiseKind.DISCRETE_GAUSSIAN, [part], 1, 1e-6) < 10
"""
EXTRAS = {
    "conformance": Extra("from secagg.conformance import LAWS; assert LAWS", is_small=True),
    "dp": Extra(EPSILON, is_small=False),
    "flower": Extra("from secagg.flower import SecAggMod; SecAggMod()", is_small=False),
    "http": Extra("import secagg.transport.server, secagg.transport.client", is_small=True),
    "leaf": Extra(
        "from pathlib import Path; from secagg.training.datasets.prepared import picture_reader; "
        "picture_reader(Path('celeba'))",
        is_small=False,
        includes="train",
    ),
    "nvflare": Extra("from secagg.nvflare import secure; assert secure", is_small=False),
    "plot": Extra("from secagg.training.reports import new_figure; new_figure(3, 2)", is_small=True),
    "proofs": Extra("import z3; assert z3.get_version_string()", is_small=False, has_call=False),
    "ray": Extra(
        "import os; os.environ |= {'RAY_AUTH_MODE': 'token', 'RAY_AUTH_TOKEN': '7' * 64}; "
        "from secagg.scale.engines import OnRay; OnRay(1).close()",
        is_small=False,
    ),
    "storage": Extra("from secagg.scale.storage import FsspecStore; FsspecStore('memory://sums')", is_small=True),
    "train": Extra(COMMAND.format(arguments=["train", "--preset", "fashion-peak", "--show"]), is_small=False),
}


def main() -> None:
    """Build the wheel and check every extra."""
    with tempfile.TemporaryDirectory(prefix="secagg-extras-") as name:
        scratch = Path(name).resolve()
        wheel, _ = build(copy_sources(scratch / "sources"), scratch, isolated=True)
        without = new_environment(wheel, scratch / "without")
        check_missing(without, scratch)
        check_present(wheel, scratch, sys.argv[1:] or [*EXTRAS])


def check_missing(python: Path, folder: Path) -> None:
    """Make each first call where no extra is installed, and expect the error that names the extra."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    # An extra without packages is the name of one that was needed once.
    needed = {name for name, packages in project["optional-dependencies"].items() if packages}
    unknown = needed ^ EXTRAS.keys() ^ NOT_FOR_USERS
    if unknown:
        sys.exit(f"extras: give each extra of pyproject.toml its first call in {Path(__file__).name}: {unknown}")
    for name, extra in EXTRAS.items():
        if extra.has_call:
            status, output = run(python, "-c", extra.call, cwd=folder)
            if status == 0 or not any(f".[{one}]" in output for one in (name, extra.includes)):
                sys.exit(f"extras: without {name} its first call must end in an error that names it:\n{output}")


def check_present(wheel: Path, folder: Path, names: list[str]) -> None:
    """Install each extra alone and make its first call."""
    for name in names:
        held = None if EXTRAS[name].is_small else FEW_HELD
        python = new_environment(f"secagg[{name}] @ {wheel.as_uri()}", folder / name, held)
        status, output = run(python, "-W", "ignore", "-c", EXTRAS[name].call, cwd=folder)
        if status:
            sys.exit(f"extras: with {name} installed its first call failed:\n{output}")
        print(f"  {name}: installed alone; its first call works, and without it says what to install", flush=True)


def new_environment(requirement: Path | str, environment: Path, held: tuple[str, ...] | None = None) -> Path:
    """Install the wheel with its dependencies in a new environment without pip; return that one's interpreter."""
    _succeed(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment.parent)
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = environment / "constraints.txt"
    chosen = (line for line in lines if held is None or line.partition("==")[0] in held)
    constraints.write_text("\n".join(chosen), encoding="utf-8")
    _succeed(*pip, "install", "--no-compile", "-c", constraints, requirement, cwd=environment.parent)
    return python


def run(*command: str | Path, cwd: Path) -> tuple[int, str]:
    """Run a command outside the repository; return its exit status and its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY"))}
    child = subprocess.run(  # noqa: S603 - the commands are the ones in these files
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return child.returncode, child.stdout


def _succeed(*command: str | Path, cwd: Path) -> None:
    status, output = run(*command, cwd=cwd)
    if status:
        sys.exit(f"exit status {status} of: {' '.join(str(part) for part in command)}\n{output}")


if __name__ == "__main__":
    main()
