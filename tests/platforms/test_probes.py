"""The rate of a peak code from losses with noise: the probed rounds and models, and the resulting rate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.compression.cohort_bits import AutoRate
from secagg.compression.model_update.arrays import Arrays
from secagg.platforms import LOG
from secagg.platforms.round_task import Means, Rounds
from tests.platforms.test_peaks import Model, model, play, rounds

FLOATS = ("conv.weight", "conv.bias", "head.weight")


class Evaluations:
    """Clients with losses set by a test, and the models at which they were probed."""

    def __init__(self, means: Means, *losses: float) -> None:
        self.first, self.rest = self.told(means, losses[0]), list(losses[1:])
        self.models = list[Arrays]()

    def told(self, means: Means, loss: float) -> Means:
        return replace(means, metrics={"loss": loss})

    def __call__(self, sent: Arrays) -> Means:
        self.models.append(sent)
        return self.told(self.first, self.rest.pop(0))


def trained(count: int, **changes: Any) -> tuple[Rounds, Means, Model]:
    """Return the state after a number of training rounds, with the last sum."""
    made, sent = rounds(), model()
    for name, value in {"rate": "auto", "evaluation_metrics": ("loss",), **changes}.items():
        object.__setattr__(made.settings, name, value)
    _, means, sent = play(made, 1, sent, [0.1] * 4)
    for number in range(2, count + 1):
        _, means, sent = play(made, number, sent, [0.1] * 4)
    return made, means, sent


def test_losses_are_told_at_the_model_with_the_noise_of_the_code_and_with_its_opposite() -> None:
    made, means, sent = trained(5)
    known, asked = made.known_of(sent), Evaluations(means, 1.0, 1.0005, 1.0007)
    made.probe(sent, asked.first, asked)
    added, taken = asked.models
    assert set(known.deviations) == set(FLOATS)
    for name, deviation in known.deviations.items():
        noise = added[name].astype(np.float64) - sent[name]
        assert np.allclose(noise, sent[name].astype(np.float64) - taken[name], atol=1e-5)
        assert np.allclose(np.abs(noise), deviation, rtol=1e-3)
        assert noise.size < 32 or abs(np.sign(noise).mean()) < 0.5
    assert all(added[name] is sent[name] for name in ("steps", "empty"))
    assert known.rate is not None
    assert known.rate.slope == pytest.approx(0.0006 / known.noise)


def test_clients_are_asked_after_the_fifth_and_every_tenth_round_and_once() -> None:
    asked, (made, means, sent) = list[int](), trained(1)
    for count in range(1, 12):
        made.known_of(sent).trained = count
        evaluations = Evaluations(means, 1.0, 1.1, 1.1, 1.1, 1.1)
        made.probe(sent, evaluations.first, evaluations)
        made.probe(sent, evaluations.first, evaluations)
        asked += [count] if evaluations.models else []
        assert len(evaluations.models) in {0, 2}
    assert asked == [5, 10]


def test_losses_of_other_clients_do_not_compare(caplog: pytest.LogCaptureFixture) -> None:
    made, means, sent = trained(5)
    fewer = Evaluations(replace(means, counted=replace(means.counted, contributors=3)), 1.0, 1.5, 1.7)
    LOG.addHandler(caplog.handler)
    try:
        made.probe(sent, means, fewer)
    finally:
        LOG.removeHandler(caplog.handler)
    rate = made.known_of(sent).rate
    assert rate is not None
    assert rate.slope is None
    assert "the rate is unchanged" in caplog.text


def test_what_noise_did_decides_about_the_code_of_the_next_round() -> None:
    sizes = dict[float, int]()
    for harm in (1e-9, 1e9):
        made, means, sent = trained(25, harm=harm)
        known = made.known_of(sent)
        known.rate = AutoRate(4, harm, 1.0)
        task = made.begun(sent, clients=4, task="t", number=26, weighted_by="n")
        sizes[harm] = sum(segment.length for segment in task.update.layout.segments)
        del means
    assert sizes[1e-9] > 2 * sizes[1e9]


def test_a_fixed_rate_asks_nobody() -> None:
    made, means, sent = trained(5, rate="fixed")
    asked = Evaluations(means, 1.0)
    made.probe(sent, asked.first, asked)
    assert not asked.models


def test_the_noise_of_a_first_round_is_not_that_of_the_scales_that_follow_from_it() -> None:
    """The next round's lengths use its own scales, and a first round's code has none."""
    (first, _, one), (second, _, two) = trained(1), trained(2)
    deviations = [made.known_of(sent).deviations["conv.weight"] for made, sent in ((first, one), (second, two))]
    assert deviations[0] == pytest.approx(deviations[1], rel=0.2)
