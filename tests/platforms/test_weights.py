"""Weights and failed trainings on a platform: what counts in a mean, and what the server does where nobody trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.model_update import decode_parameters
from secagg.contract import Payload, ideal_aggregate
from secagg.errors import InvalidParameters
from secagg.platforms import LOG
from secagg.platforms.client_round import Trained, Training
from secagg.platforms.round_task import Means, Rounds, RoundTask, TooFewTrained
from secagg.platforms.settings import SecAggSettings
from secagg.session.ledger import SpentUpdates

Model = dict[str, npt.NDArray[Any]]
Train = Callable[[int, Model], Mapping[str, Any]]
CLIENTS = 6


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(LOG, "propagate", True)
    caplog.set_level(logging.DEBUG, "secagg")
    return caplog


def model() -> Model:
    return {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "steps": np.array(7, np.int64)}


def moved(number: int, sent: Model, **changes: Any) -> dict[str, Any]:
    """Train: client n moves values by n + 1 hundredths, makes four steps, and reports a loss of 0.99."""
    after = {"w": sent["w"] + np.float32((number + 1) / 100), "steps": np.asarray(sent["steps"] + 4)}
    return {"model": after, "loss": 0.99, "n": 1024, **changes}


def play(made: Rounds, train: Train, sent: Model, number: int = 1) -> tuple[RoundTask, Means, Model]:
    task = made.begun(sent, clients=CLIENTS, task="t", number=number, weighted_by="n")

    def trained(client: int) -> Trained:
        returned = train(client, sent)
        return Trained(models=[returned["model"]], number=returned.get)

    payloads = list[Payload]()
    for client in range(CLIENTS):
        training = Training(
            terms=task.terms,
            update=decode_parameters(task.terms.parameters),
            charges=SpentUpdates(attempts=None),
            sent=sent,
            train=lambda client=client: trained(client),  # type: ignore[misc]
        )
        payloads.append(training.late.take(task.update.layout).payload)
    means = task.means(ideal_aggregate(task.update.layout, payloads))
    return task, means, made.model(task, means)


def failing(which: set[int], train: Train = moved) -> Train:
    def some(number: int, sent: Model) -> Mapping[str, Any]:
        if number in which:
            raise RuntimeError("the data loader is gone")
        return train(number, sent)

    return some


def test_clients_with_few_examples_are_no_failed_ones_where_a_minimum_is_to_train() -> None:
    """The total of six clients of weight 1/4 is that of two of weight 1."""
    sent = {"w": model()["w"]}

    def light(number: int, sent: Model) -> Mapping[str, Any]:
        return {"model": {"w": sent["w"] + np.float32((number + 1) / 100)}, "n": 100}

    made = Rounds(SecAggSettings(minimum_trained=4))
    assert play(made, light, sent)[1].trainings == {"secagg-trained": 6, "secagg-failed": 0}
    with pytest.raises(TooFewTrained, match=r": of 6 uploads 3 trained, .* secagg-minimum-trained is 4"):
        play(made, failing({0, 1, 2}, light), sent, 2)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"weighting": "uniform"},
    {"compression": "scalar-12"},
    {"compression": "scalar-12", "weighting": "uniform"},
    {"compression": "pruning-0.5", "weighting": "uniform", "tensors": "w"},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_means_and_metrics_are_those_of_the_clients_that_trained(
    settings: dict[str, Any], log: pytest.LogCaptureFixture
) -> None:
    """With half of the clients failing the step was 0.496 of the true one, and a loss of 0.99 was 0.497."""
    made, sent = Rounds(SecAggSettings(metrics="loss", **settings)), model()
    for number in (1, 2):
        task, means, after = play(made, failing({0, 2, 4}), sent, number)
        assert means.metrics["loss"] == pytest.approx(0.99, abs=1e-3)
        assert means.training == {"trained": 3, "failed": 3}
        if "pruning" not in task.settings.compression:
            assert np.abs(after["w"] - sent["w"] - 0.04).max() < 1e-3
            assert after["steps"] == sent["steps"] + 4
        sent = after
    assert "training failed at 3 of 6 clients; their own logs say why" in log.text
    assert "TRAINING FAILED (RuntimeError: the data loader is gone)" in log.text
    assert "An update of zeros is uploaded instead" in log.text


def test_a_round_in_which_nobody_trained_is_refused(log: pytest.LogCaptureFixture) -> None:
    """All six clients raised, the run succeeded with a loss of 0.0, and the model did not move."""
    for settings in SETTINGS:
        made = Rounds(SecAggSettings(metrics="loss", **settings))
        with pytest.raises(TooFewTrained, match="0 trained, with 0 examples in all, and secagg-minimum-trained is 1"):
            play(made, failing(set(range(CLIENTS))), model())
    log.clear()


def test_an_app_that_returns_what_it_trained_alone_is_told_so(log: pytest.LogCaptureFixture) -> None:
    def adapters(number: int, sent: Model) -> Mapping[str, Any]:
        return {**moved(number, sent), "model": {"w": sent["w"]}}

    with pytest.raises(TooFewTrained, match="check that the app returns every tensor that it was sent"):
        play(Rounds(SecAggSettings()), adapters, model())
    assert "training returned other tensors than were sent and are summed: ['steps']" in log.text


@pytest.mark.parametrize(("least", "is_refused"), [(3, False), (4, True)])
def test_an_operator_has_a_floor_on_how_many_trained(least: int, *, is_refused: bool) -> None:
    made = Rounds(SecAggSettings(minimum_trained=least, weighting="uniform"))
    if is_refused:
        with pytest.raises(TooFewTrained, match=r"3 trained, with .* examples in all, and secagg-minimum-trained is 4"):
            play(made, failing({1, 3, 5}), model())
    else:
        play(made, failing({1, 3, 5}), model())


@pytest.mark.parametrize("examples", [0, -5, float("nan"), None])
def test_who_has_no_examples_weighs_nothing(examples: float | None, log: pytest.LogCaptureFixture) -> None:
    def train(number: int, sent: Model) -> Mapping[str, Any]:
        return moved(number, sent, n=1024 if number else examples, loss=0.5 if number else 100.0)

    made = Rounds(SecAggSettings(metrics="loss"))
    _, means, after = play(made, train, model())
    assert means.training == {"trained": 5, "failed": 1}
    assert np.abs(after["w"] - model()["w"] - 0.04).max() < 1e-3
    assert means.metrics["loss"] == pytest.approx(0.5, abs=1e-3)
    assert "so its update weighs 0" in log.text


def test_weights_are_examples_over_the_full_number_and_metrics_have_none() -> None:
    examples = {0: 5000, 1: 1024, 2: 512, 3: 256, 4: 10, 5: 1}

    def train(number: int, sent: Model) -> Mapping[str, Any]:
        return moved(number, sent, n=examples[number], loss=number)

    made = Rounds(SecAggSettings(metrics="loss"))
    _, means, after = play(made, train, model())
    weights = [4, 4, 2, 1, 1, 1]
    due = np.average([0.01 * (number + 1) for number in range(CLIENTS)], weights=weights)
    assert np.abs(after["w"] - model()["w"] - due).max() < 2**-13
    assert means.metrics["loss"] == pytest.approx(2.5, abs=1e-3)
    assert means.examples == 256 * sum(weights)


def test_without_metrics_no_count_of_clients_is_in_a_weighted_sum() -> None:
    """Counts over sampled rounds name who fails where a property is missing."""
    made, sent = Rounds(SecAggSettings(tensors="w")), model()
    _, means, after = play(made, failing({0, 1, 2, 3}), sent)
    assert means.training == {"trained_at_least": 2}
    assert means.counted.trained is None
    assert np.abs(after["w"] - sent["w"] - 0.055).max() < 1e-3


def test_rounding_of_examples_is_unbiased_and_remembered() -> None:
    """A server with many cohorts gets each client's exact number from exact totals."""
    sums, charges = list[int](), SpentUpdates(attempts=None)
    for examples in (700, 701):
        task = Rounds(SecAggSettings()).begun(model(), clients=CLIENTS, task="t", number=1, weighted_by="n")
        found = set[int]()
        for _ in range(4):
            training = Training(
                terms=task.terms,
                update=task.update,
                charges=charges,
                sent=model(),
                train=lambda: Trained([], dict.get),  # type: ignore[arg-type]
            )
            found.add(training._examples(Trained([], {"n": examples}.get)))  # noqa: SLF001 -- what is encoded  # pyright: ignore[reportPrivateUsage]
        assert len(found) == 1
        sums += found
    assert set(sums) <= {640, 704}


def test_a_server_is_warned_where_nearly_all_count_as_the_lightest(log: pytest.LogCaptureFixture) -> None:
    play(Rounds(SecAggSettings()), lambda number, sent: moved(number, sent, n=30), model())
    assert "lower secagg-full-weight from 1024 to about the largest number of examples" in log.text
    assert "30 examples count as 256, since secagg-full-weight is 1024" in log.text
    log.clear()
    play(Rounds(SecAggSettings(full_weight=30)), lambda number, sent: moved(number, sent, n=30), model())
    assert "lower secagg-full-weight" not in log.text


@pytest.mark.parametrize("compression", ["pq", "peak"])
def test_votes_are_refused_with_weights(compression: str) -> None:
    with pytest.raises(
        InvalidParameters, match="indices are votes, each counting once: take secagg-weighting = 'uniform'"
    ):
        SecAggSettings(protocol="enclave", roster="roster.json", compression=compression)
