"""Run the wheel before this one as real clients of this server, over HTTP: `make previous`.

The wheel is of the newest earlier tag or commit that declares a form of messages that this version speaks; where there
is none, it is of this commit, and the script says so. It needs git and pip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from build_distributions import REPOSITORY, build
from secagg.wire import FORM, FORMS

DECLARED = re.compile(r"^FORM: Final = ([0-9]+)$", re.MULTILINE)
CLIENTS, VALUES, SECONDS, STEP = 3, 8, 120, 1e-3


def main() -> None:
    """Build the wheel, install it in an environment of its own, and hold a sum with its clients."""
    with tempfile.TemporaryDirectory(prefix="secagg-previous-") as name:
        folder = Path(name).resolve()
        commit, form, sources = earlier(folder)
        wheel, _ = build(sources, folder, isolated=False)
        run(sys.executable, "-m", "venv", folder / "venv")
        run(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[http]")
        mean = summed(folder, form)
    wanted = sum(range(CLIENTS)) / CLIENTS / 100
    if abs(mean - wanted) > STEP:
        sys.exit(f"the mean of clients of {commit} is {mean}, and must be {wanted}")
    print(f"clients of {commit} took part in form {form} in a sum of this server, exactly")


def earlier(folder: Path) -> tuple[str, int, Path]:
    """Return the newest earlier tag or commit that declares a spoken form, the form, and a checkout of it."""
    tags = run("git", "tag", "--sort=-creatordate", "--merged", "HEAD").split()
    here = run("git", "rev-parse", "HEAD").strip()
    for commit in (*tags, "HEAD~1", "HEAD"):
        is_other = commit == "HEAD" or run("git", "rev-parse", f"{commit}^{{commit}}").strip() != here
        done = subprocess.run(  # noqa: S603 -- fixed command
            ["git", "show", f"{commit}:secagg/wire.py"],  # noqa: S607 -- whichever git is here
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        found = DECLARED.search(done.stdout)
        if is_other and found and int(found[1]) in FORMS:
            if commit == "HEAD":
                print(f"no earlier tag or commit declares form {' or '.join(map(str, FORMS))}: this commit is used")
            (folder / "sources").mkdir()
            run("git", "archive", f"--output={folder / 'sources.tar'}", commit)
            run("tar", "-xf", folder / "sources.tar", "-C", folder / "sources")
            return commit, int(found[1]), folder / "sources"
    sys.exit(f"this commit declares no form of {FORMS}; commit {FORM} in secagg/wire.py first")


def summed(folder: Path, form: int) -> float:
    """Hold a sum of this server whose clients all run the wheel; return its mean."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SECAGG_"))}
    environment |= {"SECAGG_LEDGER_DIRECTORY": str(folder / "ledgers")}
    plan = ("--values", VALUES, "--clip", 1, "--clients", CLIENTS, "--listen", "127.0.0.1:0", "--form", form)
    server = started(sys.executable, "-m", "secagg.cli", "serve", *plan, "--out", folder / "mean.npy", folder=folder)
    found = (re.search(r"listening at \S+:(\d+)", each) for each in server.stdout or ())
    line = next(filter(None, found), None)
    if line is None:
        sys.exit("the server did not listen")
    clients = list[subprocess.Popen[str]]()
    for number in range(CLIENTS):
        np.save(folder / f"{number}.npy", np.full(VALUES, number / 100))
        about = ("--update", folder / f"{number}.npy", "--client", number, "--state", folder / f"state-{number}")
        python = folder / "venv/bin/python"
        url = f"http://127.0.0.1:{line[1]}"
        clients.append(started(python, "-m", "secagg.cli", "contribute", url, *about, folder=folder, env=environment))
    for each in (*clients, server):
        said = each.communicate(timeout=SECONDS)[0]
        if each.returncode:
            sys.exit(said)
    return float(np.load(folder / "mean.npy")[0])


def started(*command: object, folder: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a process."""
    return subprocess.Popen(  # noqa: S603 -- the commands are those above
        list(map(str, command)), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(*command: object) -> str:
    """Return what a command prints; it must succeed."""
    done = subprocess.run(  # noqa: S603 -- the commands are those above
        list(map(str, command)), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    main()
