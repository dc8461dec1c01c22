"""Installs Debian packages if permitted; waits while another program holds the package lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable

from gates.report import require, say

LOCKED = ("Could not get lock", "Unable to acquire the dpkg frontend lock", "Unable to lock")
MOST_SECONDS = 900.0
"""Maximum wait; an upgrade of a whole system can take this long."""
PAUSE_SECONDS = 5.0


def provide(packages: tuple[str, ...], is_there: Callable[[], bool], what: str) -> None:
    """Install missing packages if permitted; otherwise name them."""
    if is_there():
        return
    listed = " ".join(packages)
    permitted = shutil.which("apt-get") is not None and os.geteuid() == 0
    require(permitted, f"{what} is missing; on Debian: apt-get install {listed}")
    started = time.perf_counter()
    say(f"installing {listed} from Debian")
    install = ("install", "-y", "--no-install-recommends", *packages)
    installed, output = apt_get(install)
    if not installed:
        apt_get(("update",))
        installed, output = apt_get(install)
    require(is_there(), f"{what} cannot be installed:\n{output}")
    say(f"installed in {time.perf_counter() - started:.0f} s")


def apt_get(arguments: tuple[str, ...], pause: float = PAUSE_SECONDS, most: float = MOST_SECONDS) -> tuple[bool, str]:
    """Run the package manager once the lock is free; return whether it succeeded, and its output."""
    environment, told = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, False
    until = time.perf_counter() + most
    while True:
        child = subprocess.run(  # noqa: S603 -- fixed commands
            ("apt-get", *arguments),  # noqa: S607 -- found on the path
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        is_locked = child.returncode != 0 and any(word in child.stdout for word in LOCKED)
        if not is_locked:
            return child.returncode == 0, child.stdout
        require(time.perf_counter() < until, f"the package lock was busy for {most:.0f} s:\n{child.stdout}")
        if not told:
            say(f"another program holds the package lock; waiting for it, {most / 60:.0f} minutes at most")
            told = True
        time.sleep(pause)
