"""Default steps: fine for the clip, with an upload at most as long as the model in its own type."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest

from secagg.compression.fixed_point import FixedPoint
from secagg.contract import Payload, ideal_aggregate
from secagg.platforms.client_round import Trained, Training
from secagg.platforms.round_task import Rounds
from secagg.platforms.schemes import SchemeChoice
from secagg.platforms.settings import SecAggSettings


def planned(dtype: str, clients: int, **settings: Any) -> FixedPoint:
    sent = {"w": np.zeros(8, dtype), "counter": np.zeros(2, np.int64)}
    made = SchemeChoice(SecAggSettings(**settings), clients).parameters(sent, seed=bytes(32), epoch=1)
    scheme = made.schemes["tensor/w"]
    assert isinstance(scheme, FixedPoint)
    return scheme


@pytest.mark.parametrize("clip", [2.0**-20, 0.003, 0.02, 1.0, 4.0, 5.0, 100.0, 2.0**12])
@pytest.mark.parametrize("clients", [3, 8, 100, 10_000])
@pytest.mark.parametrize(("dtype", "width"), [("float16", 16), ("float32", 32), ("float64", 64)])
def test_a_default_upload_is_never_longer_than_the_model_in_its_own_type(
    dtype: str, width: int, clients: int, clip: float
) -> None:
    found = planned(dtype, clients, clip=clip)
    # Only if a clip would have fewer than 2^8 steps.
    is_coarsest = found.fraction_bits == max(1, 8 - math.ceil(math.log2(clip)))
    assert found.modulus_bits <= width or (is_coarsest and width == 16)


@pytest.mark.parametrize(("clip", "bits"), [(4.0, 16), (64.0, 16), (1.0, 18), (0.02, 23), (2.0**-22, 40), (1e-8, 40)])
def test_planned_steps_are_finer_for_a_small_clip_and_no_coarser_than_before(clip: float, bits: int) -> None:
    assert planned("float32", 8, clip=clip).fraction_bits == bits
    assert planned("float32", 8, clip=clip, fraction_bits=30).fraction_bits == 30


def test_a_model_trained_at_a_small_rate_is_warned_of_and_the_setting_that_is_named_helps(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam moves a value by about the rate, 2e-5, in each of ten steps."""
    monkeypatch.setattr(logging.getLogger("secagg.platforms"), "propagate", True)
    generator = np.random.default_rng(1)
    sent = {"w": np.zeros(4096, np.float32)}
    changes = [{"w": generator.normal(0, 2e-5, 4096).astype(np.float32)} for _ in range(8)]
    errors = dict[float, float]()
    for clip in (4.0, 2.0**-10):
        caplog.clear()
        rounds = Rounds(SecAggSettings(clip=clip, weighting="uniform"))
        task = rounds.begun(sent, clients=8, task="t", number=1, weighted_by="n")
        payloads = list[Payload]()
        for change in changes:
            trained = Trained([change], lambda _: 1)
            training = Training(task.terms, task.update, None, sent, lambda trained=trained: trained)  # type: ignore[arg-type,misc]
            payloads.append(training.made().payload)
        means = task.means(ideal_aggregate(task.update.layout, payloads))
        due = np.mean([change["w"] for change in changes], axis=0)
        errors[clip] = float(np.linalg.norm(means.tensors["tensor/w"] - due) / np.linalg.norm(due))
        is_warned = "the mean change is about" in caplog.text and "lower secagg-clip" in caplog.text
        assert is_warned == (clip == 4.0)
    assert errors[4.0] > 0.1
    assert errors[2.0**-10] < 0.001
