"""What a measurement stands for: the modules that the trusted part imports, all of them, and how much code they are."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.harness.closure import code_lines
from tests.harness.house import nearest, shipped_modules, uses_in

START = "secagg.protocols.enclave.machine.__main__"
LOCKED = "secagg.protocols.enclave.trusted.enclave"
TRUSTED = "secagg.protocols.enclave.trusted"
MACHINE = "secagg.protocols.enclave.machine"
AROUND = {f"{TRUSTED}.{name}" for name in ("service", "hosts", "protection")} | {
    MACHINE,
    *(f"{MACHINE}.{name}" for name in ("__main__", "serving", "self_test", "evidence", "listeners")),
}
"""The process around the trusted part: the only modules that see a socket, a file, a signal or the time."""
CORE = tuple(
    f"secagg.{room}"
    for room in ("errors", "identifiers", "blame", "parameters", "choices", "wire", "declared", "crypto", "contract")
)
ADMITTED = {
    f"secagg.{module}"
    for module in ("privacy.kinds", "privacy.noise", "session.certificates", "session.signing_keys", "session.frames")
}
"""What the trusted part takes of other rooms: noise, whose key signs or agrees, and where a host's message ends."""
PACKAGES = {"secagg", "secagg.lazy", "secagg.privacy", "secagg.protocols.enclave", "secagg.session"}
"""Loaded on the way, with nothing in them that does anything."""
LATE = {"secagg.crypto.hybrid_key_agreement"}
"""Imported when the hybrid suite is used, because that fails where the backend has no ML-KEM."""
OUTSIDE = {
    "__future__",
    "collections",
    "concurrent",
    "contextlib",
    "cryptography",
    "dataclasses",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "hmac",
    "inspect",
    "itertools",
    "math",
    "numpy",
    "operator",
    "os",
    "struct",
    "threading",
    "time",
    "typing",
}
"""No socket, no file, no process, no logging; ``os`` for randomness, ``time`` to compare two equal ways."""
FRAMES = "secagg.session.frames"
OUTSIDE_OF_THE_PROCESS = {
    *("argparse", "ctypes", "errno", "pathlib", "platform", "resource", "select", "signal", "socket", "sys", "types")
}
MOST_OWN_LINES = 1_060
MOST_LINES_AROUND = 660
MOST_CORE_LINES = 2_430


def within(module: str, rooms: Iterable[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def closure(start: str, root: Path) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """Return every module of ours that importing one loads or can load, and what each imports from outside."""
    shipped, found, outside, waiting = shipped_modules(root), dict[str, Path](), dict[str, set[str]](), [start]
    while waiting:
        module = shipped.get(waiting.pop())
        if module is None or module.name in found:
            continue
        found[module.name] = module.file
        used = {use.name for use in uses_in(module.file.read_text(), module.package) if use.runs}
        waiting += [module.name.rpartition(".")[0], *(nearest(name, shipped) or "" for name in used)]
        outside[module.name] = {name.partition(".")[0] for name in used} - {"secagg"}
    return found, outside


def test_the_trusted_part_is_these_modules_and_no_other(repository: Path) -> None:
    found, _ = closure(START, repository)
    table = "\n".join(f"{code_lines(file.read_text()):5} {module}" for module, file in sorted(found.items()))
    print(table)  # noqa: T201 -- shown where it fails, and with -s
    others = {module for module in found if not within(module, (TRUSTED, MACHINE, *CORE))}
    assert others == ADMITTED | PACKAGES, "adding to the trusted part is a decision, taken here"
    files = {file.stem for file in (repository / "protocols/enclave/trusted").glob("*.py")} - {"__init__"}
    assert {module for module in found if within(module, (TRUSTED,))} == {
        TRUSTED,
        *(f"{TRUSTED}.{name}" for name in files),
    }


FACES = {"secagg.lazy"}
"""It imports the modules of a package by name when somebody asks for them; nothing in the trusted part does."""


def test_it_reaches_nothing_outside_but_mathematics_and_cryptography(repository: Path) -> None:
    _, outside = closure(START, repository)
    inner = {module: names for module, names in outside.items() if module not in AROUND | {FRAMES}}
    assert {module for module, names in inner.items() if "importlib" in names} == FACES
    assert set[str]().union(*inner.values()) - {"importlib"} == OUTSIDE
    assert {module for module, names in inner.items() if "os" in names} == {"secagg.crypto.entropy"}
    assert {module for module, names in inner.items() if "time" in names} == {"secagg.crypto.mask_expansion"}
    assert {module for module, names in inner.items() if "threading" in names} == {LOCKED}
    assert set[str]().union(*outside.values()) - OUTSIDE - {"importlib"} == OUTSIDE_OF_THE_PROCESS


def test_an_interpreter_loads_what_the_sources_say(repository: Path) -> None:
    found, _ = closure(START, repository)
    script = f"import sys, {START}; print(*(name for name in sys.modules if name.split('.')[0] == 'secagg'))"
    loaded = subprocess.run(  # noqa: S603 -- our own interpreter, on our own module
        [sys.executable, "-c", script], cwd=repository, check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(loaded) - {"secagg.protocols"} == set(found) - LATE


def test_it_stays_small_and_the_document_says_how_small(repository: Path) -> None:
    found, _ = closure(START, repository)
    sizes = {module: code_lines(file.read_text()) for module, file in found.items()}
    around = sum(sizes[module] for module in AROUND)
    own = sum(size for module, size in sizes.items() if within(module, (TRUSTED,)) and module not in AROUND)
    core = sum(sizes.values()) - own - around - sum(sizes[module] for module in PACKAGES)
    assert own <= MOST_OWN_LINES, f"{own} lines; {sizes}"
    assert around <= MOST_LINES_AROUND, f"{around} lines; {sizes}"
    assert core <= MOST_CORE_LINES, f"{core} lines; {sizes}"
    assert sum(sizes[module] for module in PACKAGES) < 60
    document = " ".join((repository / "protocols/enclave/README.md").read_text().split())
    form = r"about ([\d,]+) lines of code of its own, ([\d,]+) of the process around it, on ([\d,]+) of the core"
    found_said = re.search(form, document)
    assert found_said is not None
    for said, counted in zip(found_said.groups(), (own, around, core), strict=True):
        assert abs(int(said.replace(",", "")) - counted) <= 100, f"the README says {said}; it is {counted}"


def test_a_new_import_is_noticed(tmp_path: Path) -> None:
    room = tmp_path / "protocols/enclave"
    room.mkdir(parents=True)
    (room / "trusted").mkdir()
    (tmp_path / "secagg").mkdir()
    (tmp_path / "secagg/__init__.py").write_text("import socket\n")
    (room / "__init__.py").write_text("")
    (room / "trusted/__init__.py").write_text("from ..late import nothing\n")
    (room / "trusted/enclave.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import logging\n"
        "def f():\n    from secagg.protocols.enclave import late\n    import secagg.late\n"
    )
    (room / "late.py").write_text("import time\n")
    (tmp_path / "secagg/late.py").write_text("from secagg.protocols.enclave.trusted.enclave import f\n")
    found, outside = closure(LOCKED, tmp_path)
    late = {"secagg.late", "secagg.protocols.enclave.late"}
    assert set(found) == {LOCKED, TRUSTED, "secagg", "secagg.protocols.enclave"} | late
    assert set[str]().union(*outside.values()) == {"socket", "time", "typing"}
