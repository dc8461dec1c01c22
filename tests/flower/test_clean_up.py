"""What a test of Flower starts is gone when it ends; other things that run on the machine stay."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.flower

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, sys.argv[0]], start_new_session=True)
open(f"{os.environ['FLWR_HOME']}/{os.getpid()}.started", "w").close()
time.sleep(600)
"""


def test_processes_in_sessions_of_their_own_that_ignore_termination_are_ended_too(
    make_workplace: Any, tmp_path: Path
) -> None:
    place, script = make_workplace(tmp_path), tmp_path / "stubborn.py"
    script.write_text(STUBBORN, encoding="utf-8")
    environment = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"}
    with subprocess.Popen(["sleep", "600"], env=environment) as other:  # noqa: S607 -- of coreutils
        parent = place.start("stubborn.log", sys.executable, str(script), "and-child")
        deadline = time.monotonic() + 60
        while len(list((tmp_path / "home").glob("*.started"))) < 2:
            assert time.monotonic() < deadline, (tmp_path / "stubborn.log").read_text(encoding="utf-8")
            time.sleep(0.05)
        assert len(place.processes()) == 2
        place.end()
        assert place.processes() == []
        assert parent.poll() == -9
        assert other.poll() is None
        other.kill()


def test_a_process_that_is_left_is_told(make_workplace: Any, tmp_path: Path) -> None:
    place = make_workplace(tmp_path)
    place.start("sleep.log", "sleep", "600")
    with pytest.raises(AssertionError, match="still there"):
        place.end(seconds=0)
    place.end()
    assert place.processes() == []
