"""Build both distributions and check what a user gets: their content, every import, and the types.

Nothing is built in the repository and nothing is imported from it. The sources are copied to a temporary directory,
the wheel is built from the source distribution, and it is installed in a new and otherwise empty environment.
Run it as `make dist-check`, which names the folder of the publishing tools; it needs the tools of the development
environment too.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from hashlib import sha256
from pathlib import Path

from build_distributions import REPOSITORY, build, copy_sources
from check_extras import EXTRAS, check_missing, check_present, new_environment
from check_extras import run as run_outside

REPOSITORY_FOLDERS = ("compression", "protocols", "training", "proofs", "tests", "benchmarks", "docs")
DOCUMENTS = {"secagg/compression/README.md"}
"""What the wheel carries because a message names it; tests/test_publishing.py finds the messages."""
DEPENDENCIES = {"cffi", "cryptography", "numpy", "pycparser"}
"""What an installation without extras brings, and the bill of materials lists."""

NEEDS_EXTRA: dict[str, str] = {
    "secagg.conformance": "hypothesis",
    "secagg.flower": "flwr",
    "secagg.nvflare": "nvflare",
    "secagg.training": "torch",
    "secagg.transport": "http",
}
"""Packages of the wheel whose import may fail without an extra: the module that is missing, or the extra it names."""

IMPORT_EVERYTHING = """
import importlib, importlib.metadata, importlib.util, sys, sysconfig

needs_extra, repository_folders = {needs_extra!r}, {repository_folders!r}
files = importlib.metadata.files("secagg")
names = sorted(".".join(f.with_suffix("").parts).removesuffix(".__init__") for f in files if f.suffix == ".py")
for name in names:
    if name.endswith(".__main__"):
        continue  # Importing it would run the command.
    try:
        importlib.import_module(name)
    except (ImportError, ValueError) as missing:
        needed = needs_extra.get(".".join(name.split(".")[:2]))
        if needed is None or (getattr(missing, "name", None) != needed and f".[{{needed}}]" not in str(missing)):
            raise
for name in repository_folders:
    spec = importlib.util.find_spec(name)
    if spec is not None and not str(spec.origin).startswith(sysconfig.get_path("stdlib")):
        sys.exit(f"`{{name}}` is importable from {{spec.origin}}: keep it out of the wheel")
print(f"  imported {{len(names)}} modules")
"""

CONSUMER = """# pyright: strict
from secagg.compression import fixed_point
from secagg.crypto.ring import Ring

ring = Ring(modulus_bits=16)
bits: int = ring.modulus_bits
documentation: str | None = fixed_point.__doc__
"""
PLANTED_ERRORS = ("planted_1: str = ring.modulus_bits", "planted_2: int = fixed_point")


def main() -> None:
    """Run every check in order; the first fault ends the run with a sentence that says what to change."""
    (tools,) = (Path(argument).absolute() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="secagg-distributions-") as name:
        scratch = Path(name).resolve()
        say("build both distributions, twice, and compare")
        sources = copy_sources(scratch / "first" / "sources")
        built = build(sources, scratch / "first", isolated=True)
        wheel, archive = built
        check_reproducible(built, sources, scratch / "again")
        say("check their content")
        check_wheel(wheel, sources)
        check_source_distribution(archive, sources)
        run(tools / "twine", "check", "--strict", wheel, archive, cwd=scratch)
        run(tools / "check-wheel-contents", wheel, cwd=scratch)
        say("install the wheel in an empty environment")
        python = new_environment(wheel, scratch / "environment")
        elsewhere = scratch / "elsewhere"
        elsewhere.mkdir()
        say("import every module of it")
        program = IMPORT_EVERYTHING.format(needs_extra=NEEDS_EXTRA, repository_folders=REPOSITORY_FOLDERS)
        print(run(python, "-c", program, cwd=elsewhere), end="")
        say("list its materials")
        check_materials(tools, python, elsewhere)
        say("type-check a consumer of it, right and wrong")
        check_types(python, elsewhere)
        say("install extras, one by one")
        check_missing(python, elsewhere)
        check_present(wheel, scratch, [name for name, extra in EXTRAS.items() if extra.is_small])
    say("the distributions are sound")


# --- Build and content ------------------------------------------------------------------------------------------------


def check_reproducible(built: tuple[Path, Path], sources: Path, scratch: Path) -> None:
    """Build from another copy, in another folder, with other dates and permissions; expect the same bytes."""
    again = copy_sources(scratch / "a longer name" / "sources", sources)
    for file in again.rglob("*"):
        if not file.is_symlink():
            file.chmod(file.stat().st_mode & 0o700)
            os.utime(file, (1, 1))
    for one, other in zip(built, build(again, scratch, isolated=False), strict=True):
        digests = [sha256(file.read_bytes()).hexdigest() for file in (one, other)]
        require(digests[0] == digests[1], f"two builds of {one.name} differ: {digests}; see .ci/build_distributions.py")
        print(f"  {digests[0]}  {one.name}")


def check_wheel(wheel: Path, sources: Path) -> None:
    """Compare the wheel with the package list: all of its modules, and nothing beside the package and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    strangers = {name for name in names if not name.startswith("secagg/") and ".dist-info/" not in name}
    require(not strangers, f"the wheel must hold secagg/ and its metadata only; it also holds {sorted(strangers)}")
    documents = {name for name in names if name.endswith(".md")}
    require(
        documents == DOCUMENTS, f"the wheel's documents are {sorted(DOCUMENTS)} (package-data): {sorted(documents)}"
    )
    require("secagg/py.typed" in names, "ship secagg/py.typed (package-data), or type checkers ignore the package")
    require(any(name.endswith("licenses/LICENSE") for name in names), "ship LICENSE (license-files)")
    expected = modules_of_listed_packages(sources)
    shipped = {name for name in names if name.endswith(".py")}
    require(shipped == expected, f"the wheel's modules differ from the package list's: {sorted(shipped ^ expected)}")


def modules_of_listed_packages(sources: Path) -> set[str]:
    """List the wheel's paths of all modules of the packages in pyproject.toml, as the mapping there places them."""
    setuptools = tomllib.loads((sources / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders: dict[str, str] = setuptools["package-dir"]
    found: set[str] = set()
    for package in setuptools["packages"]:
        base = max((name for name in folders if f"{package}.".startswith(f"{name}.")), key=len)
        folder = sources / folders[base] / package.removeprefix(base).replace(".", "/").strip("/")
        found |= {f"{package.replace('.', '/')}/{file.name}" for file in folder.glob("*.py")}
    return found


def check_source_distribution(archive: Path, sources: Path) -> None:
    """Look for what a reviewer reads and runs: the proofs, the tests, the rooms' documents, the gates."""
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    expected = {"LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml", ".ci/run"}
    expected |= {"compression/README.md", "protocols/README.md", "proofs/REFERENCES.md"}
    for folder in ("proofs", "tests", "benchmarks"):
        files = [file for file in (sources / folder).rglob("*") if file.suffix in {".py", ".md", ".json"}]
        expected |= {file.relative_to(sources).as_posix() for file in files}
    missing = sorted(expected - names)
    require(not missing, f"the source distribution lacks {missing}; write them, or name them in MANIFEST.in")


# --- Use, as a user would ---------------------------------------------------------------------------------------------


def check_materials(tools: Path, python: Path, folder: Path) -> None:
    """Make the bill of materials of the installed wheel, as `make sbom` does, and look for what is known to come."""
    made, project = folder / "materials.json", REPOSITORY / "pyproject.toml"
    options = ("--pyproject", project, "--mc-type", "library", "--output-reproducible", "--output-file", made)
    run(tools / "cyclonedx-py", "environment", *options, python, cwd=folder)
    listed = {component["name"] for component in json.loads(made.read_text(encoding="utf-8"))["components"]}
    require(listed - {"secagg"} == DEPENDENCIES, f"an installation brings {sorted(listed)}; is that meant?")


def check_types(python: Path, folder: Path) -> None:
    """Expect both checkers to accept the consumer, and to find each planted error and nothing else."""
    right, wrong = folder / "right.py", folder / "wrong.py"
    right.write_text(CONSUMER, encoding="utf-8")
    wrong.write_text(CONSUMER + "\n".join(PLANTED_ERRORS) + "\n", encoding="utf-8")
    first = CONSUMER.count("\n") + 1
    planted = [f"wrong.py:{first + number}" for number in range(len(PLANTED_ERRORS))]
    mypy = (sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", python)
    pyright = (sys.executable, "-m", "pyright", "--pythonpath", python)
    for checker in (mypy, pyright):
        name = checker[2]
        print(f"  {name}")
        run(*checker, right.name, cwd=folder)
        output = run(*checker, wrong.name, cwd=folder, expected_status=1)
        errors = [line for line in output.splitlines() if "error:" in line]
        caught = len(errors) == len(planted) and all(
            f"{place}:" in error for place, error in zip(planted, errors, strict=True)
        )
        require(caught, f"{name} must report {planted} and nothing else: is py.typed in the wheel?\n{output}")


# --- Tools ------------------------------------------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path, expected_status: int = 0) -> str:
    """Run a command outside the repository and return its output; another exit status ends the check."""
    status, output = run_outside(*command, cwd=cwd)
    shown = " ".join(str(part) for part in command)
    require(status == expected_status, f"exit status {status} of: {shown}\n{output}")
    return output


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence at every call
    """End the run with an explanation unless the condition holds."""
    if not holds:
        sys.exit(f"dist-check: {otherwise}")


def say(step: str) -> None:
    """Announce a step as it begins."""
    print(f"dist-check: {step}", flush=True)


if __name__ == "__main__":
    main()
