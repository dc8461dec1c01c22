"""A federation as it is deployed: SuperLink and SuperNodes as processes, over TLS, with nodes that authenticate.

SuperNodes are killed at every stage of a session. A thread acts as the operator: it removes each from the federation
and starts a replacement, so that at most nine run. Flower reports to the round that a removed node will not answer, so
nothing here depends on the machine's speed. Then ``flwr stop`` ends a run while a client trains.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.analytics import summed
from tests.harness.flower_federation import Federation, until
from tests.harness.town_of_sites import declared, functions, people

pytestmark = [pytest.mark.flower, pytest.mark.long]

NODES = 9
"""A full graph of nine clients tolerates three dropouts, and two in active mode."""
KILLED = {1: "OFFER", 2: "ADVERTISED_KEYS", 3: "TRAIN", 9: "SURVIVOR_SET", 10: "UNMASKING_REQUEST"}
"""Numbers from nine on replace the nodes killed in the first round; the others are not replaced."""
ALL = range(NODES + 3)


def held(federation: Federation) -> Path:
    """Return the file for which the last SuperNode waits within a round."""
    return federation.folder / "hold"


def add(federation: Federation, number: int) -> None:
    """Start a SuperNode, which may be killed later."""
    changes: dict[str, Any] = {"kill-at": KILLED.get(number, "never")}
    if number == NODES - 1:
        changes |= {"hold-at": "OFFER", "hold-until": str(held(federation))}
    federation.add(number, **changes)


def replace_the_dead(federation: Federation, is_over: threading.Event) -> None:
    """Act as an operator: remove an ended SuperNode from the federation, and start another."""
    spare = iter(range(NODES, len(ALL)))
    while not is_over.wait(0.2):
        for number, node in list(federation.nodes.items()):
            if node.poll() is not None and number not in federation.removed:
                federation.remove(number)
                for replacement in islice(spare, 1):
                    add(federation, replacement)


@pytest.fixture(scope="module")
def federation(workplace: Any) -> Iterator[Federation]:
    workplace.pause = 1.0
    made, is_over = Federation(workplace, "deployed"), threading.Event()
    held(made).touch()
    made.register(ALL)
    for number in range(NODES):
        add(made, number)
    operator = threading.Thread(target=replace_the_dead, args=[made, is_over])
    operator.start()
    try:
        yield made
    finally:
        is_over.set()
        operator.join()


@pytest.fixture(scope="module")
def results(federation: Federation, workplace: Any, make_app: Callable[[Path], Path]) -> list[dict[str, Any]]:
    """Train a model and ask for statistics, in either mode, while SuperNodes are killed."""
    app, roster = make_app(workplace.folder), str(workplace.folder / "keys" / "roster.txt")
    return federation.run(app, nodes=NODES, ways="model:semi_honest statistics:active", secagg_roster=roster)


def test_supernodes_over_tls_are_killed_at_every_stage_and_the_others_finish(
    results: list[dict[str, Any]], federation: Federation, lab: Any
) -> None:
    assert not [result["error"] for result in results if "error" in result]
    first, second = results
    # Answers of each stage, of how many: 1, 2 and 3 are killed, then their replacements 9 and 10.
    assert answered(first) == [[9, 8], [8, 7], [7, 6], [6, 6]]
    agrees(first, lab, {0, 4, 5, 6, 7, 8})
    # The statistics of nine include 9 and 10, which are killed after their uploads.
    here = summed(declared(), [functions(people(number, 20 * number)) for number in (0, *range(4, NODES + 3))])
    assert second["statistics"] == json.loads(json.dumps(here.statistics))
    assert second["sites"] == NODES
    assert {number: node.poll() for number, node in federation.nodes.items() if number in KILLED} == dict.fromkeys(
        KILLED, -9
    )
    assert federation.removed == list(KILLED)


def test_a_stopped_run_leaves_no_process_and_nothing_that_its_keys_open(
    results: list[dict[str, Any]], federation: Federation, workplace: Any
) -> None:
    assert results
    hold, states = held(federation), workplace.folder / "states"
    before, running = set(keys_in(states)), [number for number, node in federation.nodes.items() if node.poll() is None]
    hold.unlink()
    hold.with_suffix(".reached").unlink(missing_ok=True)
    run = federation.begin(workplace.folder / "federated", nodes=len(running))
    # One client is held within the round; the others have answered, and wait with their secrets sealed.
    until(hold.with_suffix(".reached").exists)
    until(lambda: len(set(keys_in(states)) - before) == len(running) - 1)
    assert apps_of(workplace)
    federation.stop(run)
    hold.touch()
    until(lambda: not apps_of(workplace))
    assert [number for number, node in federation.nodes.items() if node.poll() is None] == running
    # The keys are where an operator puts them, by default in memory; the states that they open are in no file.
    left = keys_in(states)
    assert len(left) >= len(running) - 1
    secrets = [part for key in left for part in (key.read_bytes(), bytes.fromhex(key.stem), key.stem.encode())]
    for file in workplace.folder.rglob("*"):
        if file.is_file() and file not in left:
            content = file.read_bytes()
            assert not [secret for secret in secrets if secret in content], file


def keys_in(states: Path) -> list[Path]:
    """Return the keys to sealed states, each in a file by the state's name."""
    return [path for path in states.glob("*.*") if path.is_file() and path.stat().st_size]


def apps_of(workplace: Any) -> list[int]:
    """Return the processes of the server's and clients' apps."""
    return [pid for pid in workplace.processes() if b"flwr-" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def answered(result: dict[str, Any]) -> list[list[int]]:
    return [stage[1:3] for stage in result["stages"]]


def agrees(result: dict[str, Any], lab: Any, contributors: set[int]) -> None:
    due = lab.expected(contributors, 1, {}, {})
    assert np.abs(np.array(result["layer"]) - due["layer"].ravel()[:1000]).max() < 3e-5
    assert result["steps"] == [due["steps"]]
    assert result["loss"] == pytest.approx(lab.mean_loss(contributors, {}, {}), abs=1e-6)
