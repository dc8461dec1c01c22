"""A federation as it is deployed: SuperLink and SuperNodes as processes, over TLS, with nodes that authenticate.

SuperNodes are killed at every stage of a session. An operator, whom a thread plays, removes each from the federation
and starts another in its place, so that never more than nine run. Flower tells the round that a removed node will not
answer; so nothing here is decided by how fast the machine is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.harness.flower_federation import Federation

pytestmark = pytest.mark.flower

NODES = 9
"""A full graph of nine clients stands three that drop out, and in active mode two."""
KILLED = {
    1: "OFFER",
    2: "ADVERTISED_KEYS",
    3: "TRAIN",
    9: "SURVIVOR_SET",
    10: "UNMASKING_REQUEST",
}
"""Numbers from nine on come in the place of those that were killed in the first round; of the others, nobody does."""
ALL = range(NODES + 3)


def add(federation: Federation, number: int) -> None:
    """Start a SuperNode, which is perhaps going to be killed."""
    changes: dict[str, Any] = {"kill-at": KILLED.get(number, "never")}
    federation.add(number, **changes)


def replace_the_dead(federation: Federation, is_over: threading.Event) -> None:
    """Do as an operator does: remove a SuperNode that ended from the federation, and start another."""
    spare = iter(range(NODES, len(ALL)))
    while not is_over.wait(0.2):
        for number, node in list(federation.nodes.items()):
            if node.poll() is not None and number not in federation.removed:
                federation.remove(number)
                for replacement in islice(spare, 1):
                    add(federation, replacement)


@pytest.fixture(scope="module")
def federation(workplace: Any) -> Iterator[Federation]:
    made, is_over = Federation(workplace, "deployed"), threading.Event()
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


def test_supernodes_over_tls_are_killed_at_every_stage_and_the_others_finish(
    federation: Federation, app_folder: Callable[[str], Path], workplace: Any, lab: Any
) -> None:
    roster = str(workplace.folder / "keys" / "roster.json")
    ways = "semi_honest active"
    results = federation.run(app_folder("federated"), nodes=NODES, ways=ways, secagg_roster=roster)
    assert not [result["error"] for result in results if "error" in result]
    first, second = results
    # Who answered each stage of how many: 1, 2 and 3 are killed, then 9 and 10 that came in their place.
    assert answered(first) == [[9, 8], [8, 7], [7, 6], [6, 6]]
    agrees(first, lab, {0, 4, 5, 6, 7, 8})
    assert answered(second)[:-1] == [[9, 9], [9, 9], [9, 9], [9, 8]]
    # Whoever is known to be gone is asked nothing more.
    assert answered(second)[-1] in ([8, 7], [9, 7])
    agrees(second, lab, {0, 4, 5, 6, 7, 8, 9, 10, 11})
    assert {number: node.poll() for number, node in federation.nodes.items() if number in KILLED} == dict.fromkeys(
        KILLED, -9
    )
    assert federation.removed == list(KILLED)


def answered(result: dict[str, Any]) -> list[list[int]]:
    return [stage[1:3] for stage in result["stages"]]


def agrees(result: dict[str, Any], lab: Any, contributors: set[int]) -> None:
    due = lab.expected(contributors, 1, {}, {})
    assert np.abs(np.array(result["layer"]) - due["layer"].ravel()[:1000]).max() < 3e-5
    assert result["steps"] == [due["steps"]]
    assert result["loss"] == pytest.approx(lab.mean_loss(contributors, {}, {}), abs=1e-6)
