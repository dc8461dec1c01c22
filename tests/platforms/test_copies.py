"""Peak bytes per value at a platform's client, from the trained model to the encoded update."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import ideal_aggregate
from secagg.platforms.client_round import Trained, Training
from secagg.platforms.round_task import Rounds, RoundTask
from secagg.platforms.settings import SecAggSettings
from secagg.session.ledger import SpentUpdates

VALUES = 1 << 20
CODES: dict[str, Any] = {"weighting": "uniform", "clip": 2.0**-5, "fraction_bits": 22, "compression": "scalar-8"}


class Charges(SpentUpdates):
    """A ledger without a file, with constant words for rounding."""

    def word_for(self, examples: float, coins: object) -> int:
        del examples, coins
        return 1


@pytest.mark.parametrize(
    ("settings", "rounds"), [({}, 1), ({"weighting": "uniform"}, 1), (CODES, 2)], ids=["defaults", "uniform", "codes"]
)
def test_a_client_holds_its_change_and_its_upload_and_little_more(settings: dict[str, Any], rounds: int) -> None:
    generator, made = np.random.default_rng(1), Rounds(SecAggSettings(**settings))
    sent = {f"layer.{number}": np.zeros((8, VALUES // 512), np.float32) for number in range(64)}
    after = {name: generator.normal(0, 0.005, array.shape).astype(np.float32) for name, array in sent.items()}
    trained = Trained([after], lambda _: 700)

    def trained_in(number: int) -> tuple[RoundTask, Training]:
        task = made.begun(sent, clients=8, task="t", number=number, weighted_by="n")
        return task, Training(task.terms, task.update, Charges(attempts=None), sent, lambda: trained)

    for number in range(1, rounds):
        task, training = trained_in(number)
        payloads = [training.made().payload] * 8
        made.model(task, task.means(ideal_aggregate(task.update.layout, payloads)))
        del payloads
    task, training = trained_in(rounds)
    assert isinstance(task.update.schemes["tensor/layer.0"], ScalarQuantization) == (rounds == 2)
    training.made()
    tracemalloc.start()
    try:
        training.made()
        most = tracemalloc.get_traced_memory()[1] / VALUES
    finally:
        tracemalloc.stop()
    # The change takes 4 bytes per value, and the ring elements, which become the upload, at most 4.
    assert most <= 9
