"""An adapter on SuperNodes in processes: one is killed while it trains, one joins late, and another run continues."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.flower.conftest import APPS
from tests.harness.flower_federation import Federation

pytestmark = [pytest.mark.flower, pytest.mark.long]
NODES, KILLED, LATE = 4, 3, 4


def replace_the_dead(federation: Federation, is_over: threading.Event) -> None:
    """Act as an operator: remove the ended SuperNode, and start another one."""
    while not is_over.wait(0.2):
        if federation.nodes[KILLED].poll() is not None and not federation.removed:
            federation.remove(KILLED)
            federation.add(LATE)


def due(*rounds: set[int]) -> float:
    """Return the value of every element after rounds, given the clients that trained in each."""
    return sum(float(np.mean([(number + 1) / 16 for number in who])) for who in rounds)


def test_an_adapter_is_exact_after_a_killed_node_a_late_one_and_in_a_run_that_goes_on(workplace: Any) -> None:
    app: Path = shutil.copytree(APPS / "lasting", workplace.folder / "lasting-app")
    (app / "lasting" / "__init__.py").touch()
    federation, is_over = Federation(workplace, "lasting"), threading.Event()
    federation.register(range(NODES + 1))
    for number in range(NODES):
        changes: dict[str, Any] = {"kill-in-round": "2"} if number == KILLED else {}
        federation.add(number, **changes)
    operator = threading.Thread(target=replace_the_dead, args=[federation, is_over])
    operator.start()
    roster = str(workplace.folder / "keys" / "roster.txt")
    models = [str(workplace.folder / f"{name}.json") for name in ("first", "second")]
    try:
        (first,) = federation.run(app, roster=roster, model=models[0])
        (second,) = federation.run(app, roster=roster, rounds=1, model=models[1], begins=models[0])
    finally:
        is_over.set()
        operator.join()
    everybody, others = {*range(NODES)}, {*range(NODES)} - {KILLED}
    assert (first["trained"], second["trained"]) == ([4, 3, 4], [4])
    assert federation.removed == [KILLED]
    rounds = [everybody, others, others | {LATE}, others | {LATE}]
    for found, b_rounds in ((first, (0, 2)), (second, (0, 2, 3))):
        for part, numbers in (("lora_B", b_rounds), ("lora_A", (1,))):
            values = np.array(found["model"][f"model.{part}.weight"])
            assert np.abs(values - due(*(rounds[number] for number in numbers))).max() < 1e-5
