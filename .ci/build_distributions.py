"""Build the source distribution, and the wheel from it, so that the same sources give the same bytes.

Run it as `make dist`, which writes to dist/. Both archives carry one date and one set of permissions, whoever builds
them, where and when: SOURCE_DATE_EPOCH, or a fixed date where that is not set. The build tool's version is held by
constraints.txt.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
NOT_SOURCES = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", ".coverage")
FIXED_DATE = 1_577_836_800
"""The first of January 2020, in seconds."""


def main() -> None:
    """Write both distributions of this repository to dist/."""
    with tempfile.TemporaryDirectory(prefix="secagg-build-") as name:
        scratch = Path(name).resolve()
        built = build(copy_sources(scratch / "sources"), scratch, isolated=True)
        (REPOSITORY / "dist").mkdir(exist_ok=True)
        for file in built:
            print(shutil.copy(file, REPOSITORY / "dist"))


def copy_sources(target: Path, origin: Path = REPOSITORY) -> Path:
    """Copy what a fresh checkout would hold, so that nothing left over from an earlier build is picked up."""
    return shutil.copytree(origin, target, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCES))


def build(sources: Path, scratch: Path, *, isolated: bool) -> tuple[Path, Path]:
    """Return the wheel and the source distribution of a tree; isolated, the build tool is installed for each."""
    raw = _run_build("--sdist", sources, scratch / "raw", isolated=isolated)
    (scratch / "built").mkdir()
    archive = normalize(raw, scratch / "built" / raw.name)
    with tarfile.open(archive) as opened:
        opened.extractall(scratch / "unpacked")  # noqa: S202 - it was written above, and older 3.11 have no filters
    (unpacked,) = (scratch / "unpacked").iterdir()
    return _run_build("--wheel", unpacked, scratch / "built", isolated=isolated), archive


def normalize(archive: Path, target: Path) -> Path:
    """Write an archive again with sorted members, one date, one owner and plain permissions."""
    date = int(os.environ.get("SOURCE_DATE_EPOCH", FIXED_DATE))
    with (
        tarfile.open(archive) as old,
        target.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=date) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            executable = member.isdir() or bool(member.mode & 0o100)
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.mode = date, 0o755 if executable else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            new.addfile(member, content)
    return target


def _run_build(kind: str, sources: Path, out: Path, *, isolated: bool) -> Path:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt")}
    environment.setdefault("SOURCE_DATE_EPOCH", str(FIXED_DATE))
    isolation = () if isolated else ("--no-isolation",)
    command = (sys.executable, "-P", "-m", "build", kind, *isolation, "--outdir", out, sources)
    child = subprocess.run(  # noqa: S603 - the command is the one above
        command, cwd=sources, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if child.returncode:
        sys.exit(f"the build failed: {' '.join(str(part) for part in command)}\n{child.stdout}")
    (built,) = out.glob("*.tar.gz" if kind == "--sdist" else "*.whl")
    return built


if __name__ == "__main__":
    main()
