"""Do what README says, in a clean clone and an environment of its own: each block in its order, with its seconds.

Run it as `make readme`; with `--all` it runs `make demo` and `make test` as well. It needs git, bash and pip.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> None:
    """Clone, install, and run every block that a reader types."""
    # A ledger is not kept on the layers of a container.
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 -- of this run, with a name of its own
    with tempfile.TemporaryDirectory(prefix="secagg-readme-") as name, tempfile.TemporaryDirectory(dir=memory) as kept:
        home = Path(name)
        environment = {each: value for each, value in os.environ.items() if not each.startswith(("PYTHON", "SECAGG_"))}
        environment |= {"HOME": name, "PATH": f"{home / 'venv' / 'bin'}{os.pathsep}{environment['PATH']}"}
        environment["SECAGG_LEDGER_DIRECTORY"] = kept
        step(f"git clone --quiet {REPOSITORY} checkout", home, environment)
        step(f"{sys.executable} -m venv venv", home, environment)
        checkout, python = home / "checkout", ""
        for language, body in BLOCK.findall((checkout / "README.md").read_text(encoding="utf-8")):
            if language == "python":
                # A reader types all of it into one interpreter.
                python += body
                (home / "blocks.py").write_text(python, encoding="utf-8")
                step(f"python {home / 'blocks.py'}", checkout, environment)
            elif language == "bash" or (not language and "--all" in sys.argv):
                step(body, checkout, environment)


def step(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Run one step, and say how long it took; one that fails ends all."""
    began = monotonic()
    done = subprocess.run(  # noqa: S603 -- the commands are README's
        ["bash", "-eu", "-c", command],  # noqa: S607 -- the reader's
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{monotonic() - began:7.1f} s  {' '.join(command.split())[:90]}", flush=True)
    if done.returncode or re.search("^secagg: ", done.stdout, re.MULTILINE):
        sys.exit(done.stdout)


if __name__ == "__main__":
    main()
