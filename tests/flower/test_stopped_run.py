"""A run that its operator stops with ``flwr stop`` while a client trains: nothing hangs, and no secret is on a disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.flower_federation import Federation, until

pytestmark = pytest.mark.flower
NODES = 4
"""As few as the app's own floor permits."""


def test_a_stopped_run_leaves_no_process_and_nothing_that_its_keys_open(
    workplace: Any, app_folder: Callable[[str], Path]
) -> None:
    federation, hold = Federation(workplace, "stopped"), workplace.folder / "hold"
    federation.register(range(NODES))
    for number in range(NODES):
        held: dict[str, Any] = {"hold-at": "OFFER", "hold-until": str(hold)} if number == 0 else {}
        federation.add(number, **held)
    run = federation.begin(app_folder("federated"), nodes=NODES)
    states = workplace.folder / "states"
    # One client is held within the round; the others have answered, and wait with their secrets sealed.
    until(hold.with_suffix(".reached").exists)
    until(lambda: len(keys_in(states)) == NODES - 1)
    assert apps_of(workplace)
    federation.stop(run)
    hold.touch()
    until(lambda: not apps_of(workplace))
    assert [node.poll() for node in federation.nodes.values()] == [None] * NODES
    # The keys are where an operator puts them, by default in memory; what they open is in no file.
    left = keys_in(states)
    assert len(left) >= NODES - 1
    secrets = [part for key in left for part in (key.read_bytes(), bytes.fromhex(key.stem), key.stem.encode())]
    for file in workplace.folder.rglob("*"):
        if file.is_file() and file not in left:
            content = file.read_bytes()
            assert not [secret for secret in secrets if secret in content], file


def keys_in(states: Path) -> list[Path]:
    """Return the keys to sealed states, each in a file by the state's name."""
    return [path for path in states.glob("*.*") if path.is_file() and path.stat().st_size]


def apps_of(workplace: Any) -> list[int]:
    """Return the processes of apps, of the server's and of clients'."""
    return [pid for pid in workplace.processes() if b"flwr-" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
