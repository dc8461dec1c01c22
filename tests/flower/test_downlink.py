"""The compressed downlink, the rate from clients' losses, and warnings of the peak code, over real mods and grids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import secagg.flower as plugin
from secagg.errors import MalformedMessage
from secagg.platforms.round_task import Rounds
from tests.flower.test_rounds_in_memory import CLIENTS, MemoryGrid, folders, lenient, log, settings_of

__all__ = ["folders", "log"]
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

GOAL = np.random.default_rng(3).normal(size=(60, 200)).astype(np.float32)
MODEL: dict[str, Any] = {"w": np.zeros_like(GOAL), "b": np.zeros(200, np.float64), "steps": np.array(0, np.int64)}
SUMS: dict[str, Any] = {"compression": "peak-2", "down": "sums"}
AUTO: dict[str, Any] = {"compression": "peak", "rate": "auto", "evaluation_metrics": "loss"}

SCENARIOS = ["enclave_told"]


class Federation:
    """Clients that move half of the way to their own goals near a common one, and keep the messages they received."""

    def __init__(self, folder: Path, protocol: str, **settings: Any) -> None:
        self.inner = MemoryGrid(lenient(folder), self.train)
        self.received = dict[int, dict[str, Any]]()
        self.settings = settings_of(folder, protocol, **settings)
        self.grid = plugin.SecAggGrid(cast("Any", self.inner), settings=self.settings)
        self.rounds: Rounds = vars(self.grid)["_rounds"]
        self.model = dict(MODEL)

    def train(self, model: dict[str, Any], node: int) -> dict[str, Any]:
        self.received[node] = {name: np.array(values) for name, values in model.items()}
        own = np.random.default_rng(100 + node).normal(size=GOAL.shape)
        loss = float(np.square(model["w"] - GOAL).mean())
        step = 0.5 * (GOAL + 0.1 * own.astype(np.float32) - model["w"])
        return {**model, "w": model["w"] + step, "steps": model["steps"] + 1, "metrics": {"loss": loss}}

    def evaluate(self, model: dict[str, Any], node: int) -> dict[str, Any]:
        return {"metrics": self.train(model, node)["metrics"]}

    def round(self) -> None:
        self.inner.train = self.train
        self.model, _ = self.inner.round(self.grid, self.model)

    def down(self, node: int = 0) -> int:
        """Return the bytes last sent to a node with its model: arrays, and records of the protocol."""
        sent = [m for m in self.inner.sent if m.metadata.dst_node_id == 100 + node and m.content.array_records]
        records = sent[-1].content
        arrays = sum(len(a.data) for record in records.array_records.values() for a in record.values())
        return arrays + sum(len(v) for v in records.config_records["secagg"].values() if isinstance(v, bytes))

    def are_alike(self) -> bool:
        """Whether all clients of the last round trained the same model."""
        digests = {b"".join(v.tobytes() for v in model.values()) for model in self.received.values()}
        return len(digests) == 1


@pytest.mark.parametrize("protocol", ["enclave", "two-servers"])
def test_clients_that_stay_train_the_servers_model_to_the_bit_without_being_sent_it(
    folders: Path, protocol: str
) -> None:
    made, sizes = Federation(folders, protocol, **SUMS), list[int]()
    for number in range(4):
        before = made.rounds.restored(made.model)
        made.round()
        sizes.append(made.down())
        assert made.are_alike()
        for name, values in made.received[0].items():
            assert values.dtype == MODEL[name].dtype
            assert values.tobytes() == before[name].tobytes()
        assert made.model["steps"] == number + 1
    assert np.square(made.model["w"] - GOAL).mean() < 0.1
    whole = sum(values.nbytes for values in MODEL.values())
    assert sizes[0] < whole
    assert max(sizes[1:]) < whole / 6


def test_a_client_that_missed_a_round_is_sent_the_model(folders: Path) -> None:
    made = Federation(folders, "enclave", minimum_cohort=3, threshold=0.6, **SUMS)
    made.round()
    made.inner.contexts[2] = made.inner.context(2)
    made.received.clear()
    made.round()
    assert sorted(made.received) == [0, 1, 3, 4]
    assert made.down(2) < made.down(0) + 1
    made.round()
    assert sorted(made.received) == list(range(CLIENTS))
    assert made.down(2) > 1.5 * made.down(0)
    assert made.are_alike()


def test_terms_that_name_tensors_that_are_not_there_are_refused(folders: Path) -> None:
    from secagg.flower.client import training_of  # noqa: PLC0415 -- Flower warns where it is imported

    made = Federation(folders, "enclave", **SUMS)
    made.round()
    (message, *_) = [sent for sent in made.inner.sent if sent.content.array_records]
    named = SimpleNamespace(joined=("w", "absent"))
    begun: Any = SimpleNamespace(terms=named, update=SimpleNamespace(names=()), charges=None)
    with pytest.raises(MalformedMessage):
        training_of(message, made.inner.contexts[0], made.inner.call, begun)


def test_an_evaluated_model_is_not_sent_again(folders: Path) -> None:
    made = Federation(folders, "enclave", evaluation_metrics="loss", **SUMS)
    made.round()
    made.inner.train = made.evaluate
    _, metrics = made.inner.round(made.grid, made.model, "evaluate")
    assert metrics["loss"] == pytest.approx(float(np.square(made.model["w"] - GOAL).mean()), rel=1e-3)
    evaluated = made.down()
    made.round()
    assert made.down() < evaluated / 2
    assert made.are_alike()


def test_the_rate_follows_from_the_losses_with_noise(folders: Path) -> None:
    """A quadratic loss rises by the mean square of the noise, so its harm is known."""
    made = Federation(folders, "enclave", **AUTO)
    for _ in range(5):
        made.round()
    known = made.rounds.known_of(made.model)
    assert known.rate is not None
    assert known.rate.slope is None
    sent = len(made.inner.sent)
    made.inner.train = made.evaluate
    _, metrics = made.inner.round(made.grid, made.model, "evaluate")
    assert metrics["loss"] == pytest.approx(float(np.square(made.model["w"] - GOAL).mean()), rel=1e-3)
    three = len(made.inner.sent) - sent
    assert known.rate.slope == pytest.approx(known.deviations["w"] ** 2 / known.noise, rel=0.05)
    sent = len(made.inner.sent)
    made.inner.round(made.grid, made.model, "evaluate")
    assert three == 3 * (len(made.inner.sent) - sent)


def test_lengths_that_differ_and_noise_that_is_large_are_said_once(folders: Path, log: Any) -> None:
    made = Federation(folders, "enclave", compression="peak-512")
    lazy, usual = {0, 1}, made.train
    made.train = lambda model, node: model if node in lazy else usual(model, node)  # type: ignore[method-assign]
    for _ in range(3):
        made.round()
    assert log.text.count("clients' updates differ in length") == 1
    assert log.text.count("a round's noise is") == 1


def test_alike_clients_and_a_fine_code_are_not_warned_about(folders: Path, log: Any) -> None:
    made = Federation(folders, "enclave", compression="peak-1")
    made.model["w"] = 100 * GOAL
    made.round()
    assert "differ in length" not in log.text
    assert "a round's noise is" not in log.text


def test_nodes_of_a_simulation_keep_the_model_between_rounds(outcomes: dict[str, Any]) -> None:
    outcome = outcomes["enclave_told"]
    assert outcome["error"] is None
    assert [(stage["sent"], stage["received"]) for stage in outcome["stages"]] == [(8, 8)]
    assert outcome["left"] == 0
    assert len(outcome["down"]) == 8
    for first, *others in outcome["down"]:
        # 20,000 values of 32 bits; the model in steps has at most 8.
        assert first < 26_000
        assert len(others) == 3
        assert max(others) < first / 2
