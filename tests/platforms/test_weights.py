"""Weights and failed trainings on a platform: the terms of a mean, and a server's behaviour if no client trained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, TensorScheme, decode_parameters, encode_parameters
from secagg.compression.model_update.arrays import METRICS
from secagg.compression.model_update.weighting import COUNTS, Counted
from secagg.compression.rotation import RandomRotation
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import Payload, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS
from secagg.platforms import LOG, Left, code_of
from secagg.platforms.client_node import DIRECTORY_VARIABLE, ClientNode
from secagg.platforms.client_round import Node, NodeRound, Trained, Training, bounds_of
from secagg.platforms.round_task import Means, Rounds, RoundTask, TooFewTrained
from secagg.platforms.schemes import noise_settings
from secagg.platforms.settings import SecAggSettings
from secagg.session.ledger import SpentUpdates
from secagg.session.sealed_state import StateDirectory
from tests.harness.planted import always
from tests.harness.tutorial import tutorial_scheme

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
    """Six clients of weight 1/4 have a smaller total than two of weight 1."""
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
    """Regression: if half of the clients failed, the step was 0.496 of the true one; a loss of 0.99 became 0.497."""
    made, sent = Rounds(SecAggSettings(metrics="loss", **settings)), model()
    for number in (1, 2):
        task, means, after = play(made, failing({0, 2, 4}), sent, number)
        assert means.metrics["loss"] == pytest.approx(0.99, abs=1e-3)
        assert means.training == {"trained": 3, "failed": 3}
        if "pruning" not in task.settings.compression:
            assert np.abs(after["w"] - sent["w"] - 0.04).max() < 1e-3
            assert after["steps"] == sent["steps"] + 4
        sent = after
    assert "round 2, sum: 6 clients, 3 trained" in log.text
    assert "training failed at 3 of 6 clients; their own logs say why" in log.text
    assert "TRAINING FAILED (RuntimeError: the data loader is gone)" in log.text
    assert "An update of zeros is uploaded instead" in log.text


def test_a_round_in_which_nobody_trained_is_refused(log: pytest.LogCaptureFixture) -> None:
    """Regression: all six clients raised, yet the run succeeded with a loss of 0.0, and the model did not change."""
    for settings in SETTINGS:
        made = Rounds(SecAggSettings(metrics="loss", **settings))
        log.clear()
        with pytest.raises(
            TooFewTrained, match=r"0 trained(, with 0 examples in all)?, but secagg-minimum-trained is 1"
        ):
            play(made, failing(set(range(CLIENTS))), model())
        assert "round 1 failed: training failed at too many clients: of 6 uploads 0 trained" in log.text


def test_a_client_logs_values_that_are_cut_off_with_the_setting_to_change(log: pytest.LogCaptureFixture) -> None:
    def far(_: int, sent: Model) -> Mapping[str, Any]:
        return {"model": {"w": sent["w"] + np.float32(1000.0), "steps": sent["steps"]}, "n": 1024}

    play(Rounds(SecAggSettings(clip=1.0)), far, model())
    assert "of this update's values exceeded their range and were clipped; the server's secagg-clip" in log.text


def test_counts_that_a_dishonest_client_has_altered_divide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(contributors=CLIENTS, full=1024, examples=0, trained=CLIENTS)
    monkeypatch.setattr(ModelUpdate, "counted", always(counted))
    with pytest.raises(TooFewTrained, match="6 trained, with 0 examples in all"):
        play(Rounds(SecAggSettings(metrics="loss")), moved, model())


def test_an_app_that_returns_what_it_trained_alone_is_told_so(log: pytest.LogCaptureFixture) -> None:
    def adapters(number: int, sent: Model) -> Mapping[str, Any]:
        return {**moved(number, sent), "model": {"w": sent["w"]}}

    with pytest.raises(TooFewTrained, match="check that the app returns every tensor that it was sent"):
        play(Rounds(SecAggSettings()), adapters, model())
    assert "training did not return these tensors, which were sent and are summed: ['steps']" in log.text


@pytest.mark.parametrize(("least", "is_refused"), [(3, False), (4, True)])
def test_an_operator_has_a_floor_on_how_many_trained(least: int, *, is_refused: bool) -> None:
    made = Rounds(SecAggSettings(minimum_trained=least, weighting="uniform"))
    if is_refused:
        with pytest.raises(TooFewTrained, match="3 trained, but secagg-minimum-trained is 4"):
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
    """Counts over sampled rounds would identify clients that fail for lack of a property."""
    made, sent = Rounds(SecAggSettings(tensors="w")), model()
    _, means, after = play(made, failing({0, 1, 2, 3}), sent)
    assert means.training == {"trained_at_least": 2}
    assert means.counted.trained is None
    assert np.abs(after["w"] - sent["w"] - 0.055).max() < 1e-3


def test_rounding_of_examples_is_unbiased_and_remembered() -> None:
    """With exact totals over many cohorts, a server could compute each client's exact number."""
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


def node(folder: Path) -> Node:
    return Node(
        settings=ClientNode(data_name="mine"),
        config={},
        client=ClientId(1),
        run="t",
        states=StateDirectory(folder / "states", coins=SystemCoins()),
        custom={},
    )


def training_in(begun: NodeRound, sent: Model) -> Training:
    return Training(begun.terms, begun.update, begun.charges, sent, lambda: Trained([sent], {"n": 700}.get))


@pytest.mark.parametrize("name", ["n", "num-examples", "num_examples", "NUM_STEPS_CURRENT_ROUND"])
def test_a_server_does_not_take_numbers_of_examples_for_metrics(tmp_path: Path, name: str) -> None:
    """Regression: a metric of 700 was summed exactly in every round: sums of several cohorts reveal each number."""
    with pytest.raises(InvalidParameters, match=f"the metrics name '{name}', a number of examples"):
        play(Rounds(SecAggSettings(metrics=f"loss,{name}")), moved, model())
    terms = Rounds(SecAggSettings(metrics="loss")).begun(model(), clients=CLIENTS, task="t", number=1, weighted_by="n")
    hostile = replace(terms.terms, metrics=(name,), weighted_by="n" if name == "n" else "loss")
    with pytest.raises(InvalidParameters, match="exact sums over several cohorts would reveal") as caught:
        node(tmp_path).begun(hostile)
    assert code_of(caught.value) == Left.TERMS


def test_an_offer_that_a_client_refuses_fixes_no_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: one wrong number, in a session that it refused, excluded a client from the task for good."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    sent, client = model(), node(tmp_path)

    def begun(full: int, number: int = 1) -> NodeRound:
        made = Rounds(SecAggSettings(full_weight=full))
        return client.begun(made.begun(sent, clients=CLIENTS, task="t", number=number, weighted_by="n").terms)

    begun(512)
    first, second = begun(1024), begun(2048)
    training_in(first, sent).charge()
    for offer in (512, 2048):
        with pytest.raises(InvalidParameters, match=f"count fully is {offer}, but was 1024 in an earlier") as caught:
            begun(offer, number=2)
        assert code_of(caught.value) == Left.TERMS
    # Parallel sessions may each have checked before.
    late = training_in(second, sent).late
    with pytest.raises(InvalidParameters, match="count fully is 2048, but was 1024 in an earlier"):
        late.take(second.update.layout)
    begun(1024, number=2)


def test_a_server_of_one_run_does_not_name_many_tasks(tmp_path: Path) -> None:
    """Each task has its own bounds, so a server could sweep them with another task each round."""
    made = Rounds(SecAggSettings())
    for task in ("t 1", "t1", "t ", ""):
        terms = made.begun(model(), clients=CLIENTS, task=task, number=1, weighted_by="n").terms
        with pytest.raises(InvalidParameters, match="but this run is 't'"):
            node(tmp_path).begun(terms)
    # If runs share a name, as in simulations, the server's number follows it, one per run.
    for client in (replace(node(tmp_path), task_file=tmp_path / "task") for _ in range(2)):
        first, second = (
            made.begun(model(), clients=CLIENTS, task=task, number=1, weighted_by="n").terms for task in ("t 1", "t 2")
        )
        assert client.begun(first).terms == first
        with pytest.raises(InvalidParameters, match="names task 't 2', but this run is 't 1'"):
            client.begun(second)


def test_an_upload_that_a_session_does_not_pay_for_has_not_used_up_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a spent privacy budget also used up the round and one of the model's three uploads."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))

    def refuse() -> None:
        raise Misuse("the budget is spent")

    terms = Rounds(SecAggSettings()).begun(model(), clients=CLIENTS, task="t", number=1, weighted_by="n").terms
    begun = node(tmp_path).begun(terms)
    training = training_in(begun, model())
    with pytest.raises(Misuse, match="the budget is spent"):
        training.late.take(begun.update.layout, charge=refuse)
    assert begun.charges.count(b"t") == 0
    begun.require_open()
    training.late.take(begun.update.layout)
    assert begun.charges.count(b"t") == 1


def test_a_model_is_trained_from_and_evaluated_so_many_times_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: evaluations counted as uploads of the model, and kept a client out of training."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    client, made = node(tmp_path), Rounds(SecAggSettings(evaluation_metrics="loss"))
    for is_evaluation in (False, True):
        for number in range(1, ATTEMPTS + 2):
            terms = made.begun(
                model(),
                clients=CLIENTS,
                task="t",
                number=number + 10 * is_evaluation,
                weighted_by="n",
                is_evaluation=is_evaluation,
            ).terms
            training = training_in(client.begun(terms), model())
            if number <= ATTEMPTS:
                training.charge()
                continue
            with pytest.raises(PeerMisbehaved, match=f"has uploaded {ATTEMPTS} times for the model"):
                training.charge()


def test_a_server_is_warned_of_a_sum_that_may_be_noise_alone(log: pytest.LogCaptureFixture) -> None:
    """Regression: with noise all trainings failed, and the round did not report it."""
    settings = SecAggSettings(noise=0.05, norm=4.0, weighting="uniform")
    sent = {"w": np.zeros((50, 40), np.float32)}
    task = Rounds(settings).begun(sent, clients=CLIENTS, task="t", number=1, weighted_by="n")
    noise = noise_settings(0.05, 4.0, task.update).noise_for(
        task.update.layout, minimum_cohort=4, capacity=CLIENTS, corrupted=1
    )
    assert noise is not None
    for step, is_said in ((0.0, True), (0.08, False)):
        log.clear()
        trained = Trained(models=[{"w": sent["w"] + np.float32(step)}], number={"n": 1}.get)
        payloads = list[Payload]()
        for _ in range(CLIENTS):
            training = Training(task.terms, task.update, SpentUpdates(attempts=None), sent, lambda: trained)  # noqa: B023 -- called in this turn
            payloads.append(noise.add_to(training.late.take(task.update.layout).payload, SystemCoins()))
        session: Any = SimpleNamespace(noise=noise)
        task.say_if_noise_alone(session, ideal_aggregate(task.update.layout, payloads))
        assert ("the sum is no longer than its noise alone, so perhaps no client trained" in log.text) is is_said


@pytest.mark.parametrize("cut", [256.0, 512.0, 2048.0])
def test_a_server_does_not_sweep_where_counts_are_cut(cut: float, tmp_path: Path) -> None:
    """Sums of one cohort under sixteen limits of the counts would reveal all of its numbers of examples."""
    task = Rounds(SecAggSettings()).begun(model(), clients=CLIENTS, task="t", number=1, weighted_by="n")
    tensors = [
        replace(one, scheme=replace(cast("Any", one.scheme), clip=cut)) if one.name == COUNTS else one
        for one in task.update.tensors
    ]
    offered = ModelUpdate(tensors=tuple(tensors), epoch=task.update.epoch, source=task.update.source)
    with pytest.raises(InvalidParameters, match=f"1024 examples count fully, but clips them at {cut:g}"):
        node(tmp_path).begun(replace(task.terms, parameters=encode_parameters(offered)))


def test_a_server_does_not_cut_metrics_by_a_scheme_without_a_bound(tmp_path: Path) -> None:
    task = Rounds(SecAggSettings(metrics="loss")).begun(model(), clients=CLIENTS, task="t", number=1, weighted_by="n")
    scheme = ScalarQuantization(shape=(1,), bits=4, modulus_bits=8, scales=(0.01,))
    tensors = [replace(one, scheme=scheme) if one.name == METRICS else one for one in task.update.tensors]
    offered = ModelUpdate(tensors=tuple(tensors), epoch=task.update.epoch, source=task.update.source)
    with pytest.raises(InvalidParameters, match="secagg/metrics is not in fixed point"):
        node(tmp_path).begun(replace(task.terms, parameters=encode_parameters(offered)))


def test_the_clip_of_what_pruning_leaves_is_a_bound_as_well() -> None:
    def bounds(clip: float) -> dict[str, str]:
        made = Rounds(SecAggSettings(compression="pruning-0.5", weighting="uniform", clip=clip))
        task = made.begun(model(), clients=CLIENTS, task="t", number=1, weighted_by="n")
        return bounds_of(task.terms, task.update)

    assert bounds(2.0)["the clip of tensors of floats"] == "2.0"
    assert bounds(4.0)["the clip of tensors of floats"] == "4.0"


def test_a_server_does_not_sweep_the_clip_under_other_names_of_a_tensor_or_behind_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An app that returns the received tensors, changed, can train tensors of any name."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    client = node(tmp_path)

    def begun(number: int, name: str, clip: float) -> NodeRound:
        made = Rounds(SecAggSettings(clip=clip))
        task = made.begun({name: model()["w"]}, clients=CLIENTS, task="t", number=number, weighted_by="n")
        return client.begun(task.terms)

    training_in(begun(1, "w", 4.0), model()).charge()
    begun(2, "other", 4.0)
    with pytest.raises(InvalidParameters, match=r"the clip of tensors of floats is 2\.0, but was 4\.0 in an earlier"):
        begun(2, "other", 2.0)

    stream = PublicStream(seed=bytes(32), round_number=2, tensor_name="tensor/w", shape=(3, 4))
    inner = FixedPoint(length=16, clip=2.0, fraction_bits=16, modulus_bits=40)
    rotated = TensorScheme(
        name="tensor/w", shape=(3, 4), scheme=RandomRotation(stream=stream, block_size=16, inner=inner)
    )
    terms = begun(2, "w", 4.0).terms
    hostile = replace(terms, full=1, parameters=encode_parameters(ModelUpdate(tensors=(rotated,), epoch=2)))
    with pytest.raises(InvalidParameters, match=r"the clip of tensors of floats is 2\.0, but was 4\.0 in an earlier"):
        client.begun(hostile)


def test_a_training_that_diverged_is_no_training(log: pytest.LogCaptureFixture) -> None:
    """Regression: all clients diverged, yet the run succeeded with a loss of 0.0 and an unchanged model."""

    def diverged(number: int, sent: Model) -> Mapping[str, Any]:
        return {**moved(number, sent), "model": {"w": sent["w"] * np.nan, "steps": sent["steps"] + 4}}

    with pytest.raises(TooFewTrained, match=" 0 trained"):
        play(Rounds(SecAggSettings(metrics="loss")), diverged, model())
    assert "all values that training changed are NaN: it diverged" in log.text
    with pytest.raises(TooFewTrained, match=" 0 trained"):
        play(
            Rounds(SecAggSettings(metrics="loss")), lambda number, sent: moved(number, sent, loss=float("nan")), model()
        )
    assert "the app reported 'loss' as NaN" in log.text


def test_a_metric_that_is_nan_at_one_client_is_in_no_mean(log: pytest.LogCaptureFixture) -> None:
    def train(number: int, sent: Model) -> Mapping[str, Any]:
        return moved(number, sent, loss=0.5 if number else float("nan"))

    _, means, after = play(Rounds(SecAggSettings(metrics="loss")), train, model())
    assert means.training == {"trained": 5, "failed": 1}
    assert means.metrics["loss"] == pytest.approx(0.5, abs=1e-3)
    assert np.abs(after["w"] - model()["w"] - 0.04).max() < 1e-3
    log.clear()


def test_a_single_nan_is_no_change_and_is_said(log: pytest.LogCaptureFixture) -> None:
    def train(number: int, sent: Model) -> Mapping[str, Any]:
        returned = moved(number, sent)
        if not number:
            returned["model"]["w"][0, 0] = np.nan
        return returned

    _, means, _ = play(Rounds(SecAggSettings(metrics="loss")), train, model())
    assert means.training == {"trained": CLIENTS, "failed": 0}
    assert "training left NaN in w, which counts as no change" in log.text


def test_a_failed_training_is_zeros_of_the_scheme_and_not_of_the_ring(tmp_path: Path) -> None:
    """With a zero point, ring elements of 0 represent the minimum value, and would move the mean."""
    text = tutorial_scheme().replace("from_integers(codes)", "from_integers(codes + 1)")
    text = text.replace("lift(aggregate.values[0]) *", "lift(aggregate.values[0]) * 1.0 - aggregate.contributors) *")
    text = text.replace("return self.segment.ring.lift", "return (self.segment.ring.lift")
    text = text.replace("capacity_between(-1, 1", "capacity_between(0, 2").replace("RingSegment(1", "RingSegment(2")
    (tmp_path / "shifted.py").write_text(text, encoding="utf-8")
    made = Rounds(SecAggSettings(compression=f"{tmp_path / 'shifted.py'}:Ternary", weighting="uniform"))
    sent = {"w": np.zeros((50, 40), np.float32)}
    task = made.begun(sent, clients=CLIENTS, task="t", number=1, weighted_by="n")
    payloads = list[Payload]()
    for models in ([], [], [], *[[{"w": sent["w"] + np.float32(0.25)}]] * 3):
        charges = SpentUpdates(attempts=None)
        training = Training(task.terms, task.update, charges, sent, lambda models=models: Trained(models, dict.get))  # type: ignore[arg-type, misc]
        payloads.append(training.late.take(task.update.layout).payload)
    mean = task.means(ideal_aggregate(task.update.layout, payloads)).tensors["tensor/w"]
    assert float(mean.mean()) == pytest.approx(0.25, abs=1e-6)


def test_a_metric_that_no_app_reports_is_named_by_the_error() -> None:
    """Regression: for a wrong metric name, the most likely mistake, the error was about tensors."""
    with pytest.raises(TooFewTrained, match="every tensor that it was sent and reports 'n', 'accuracy'"):
        play(Rounds(SecAggSettings(metrics="accuracy")), moved, model())
    made, sent = Rounds(SecAggSettings(evaluation_metrics="accuracy")), model()
    task = made.begun(sent, clients=CLIENTS, task="t", number=1, weighted_by="n", is_evaluation=True)
    zeros = list[Payload]()
    for _ in range(CLIENTS):
        charges = SpentUpdates(attempts=None)
        evaluation = Training(task.terms, task.update, charges, sent, lambda: Trained([], {"acc": 0.5}.get))
        zeros.append(evaluation.late.take(task.update.layout).payload)
    with pytest.raises(TooFewTrained, match=r"^evaluation failed at too many .* that the app reports 'accuracy'$"):
        task.means(ideal_aggregate(task.update.layout, zeros))


def test_a_server_is_warned_where_nearly_all_count_as_the_lightest(log: pytest.LogCaptureFixture) -> None:
    """Regression: every client logged it in every round."""
    made = Rounds(SecAggSettings())
    for number in (1, 2):
        play(made, lambda number, sent: moved(number, sent, n=30), model(), number)
    assert log.text.count("lower secagg-full-weight from 1024 to about the largest number of examples") == 1
    assert log.text.count("30 examples count as 256, because secagg-full-weight is 1024") == 1
    log.clear()
    play(Rounds(SecAggSettings(full_weight=30)), lambda number, sent: moved(number, sent, n=30), model())
    assert "lower secagg-full-weight" not in log.text


@pytest.mark.parametrize(("clip", "said"), [(0.01, "of this update's values exceeded"), (1e6, "rest is noise")])
def test_clients_of_one_process_say_once_that_the_clip_is_wrong(
    log: pytest.LogCaptureFixture, clip: float, said: str
) -> None:
    """Regression: in a simulation each client logged it in each round."""
    made = Rounds(SecAggSettings(clip=clip, weighting="uniform"))
    for number in (1, 2):
        play(made, lambda _, sent: moved(1, sent), model(), number)
    assert len([each for each in log.records if said in each.getMessage() and "update's" in each.getMessage()]) == 1


@pytest.mark.parametrize("compression", ["pq", "peak"])
def test_votes_are_refused_with_weights(compression: str) -> None:
    with pytest.raises(InvalidParameters, match="indices all count equally: set secagg-weighting = 'uniform'"):
        SecAggSettings(protocol="enclave", roster="roster.txt", compression=compression)
