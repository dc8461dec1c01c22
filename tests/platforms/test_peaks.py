"""The peak code on a platform: the direction and length that a server learns, round by round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.model_update import decode_parameters
from secagg.compression.model_update.arrays import Arrays
from secagg.compression.model_update.summed_values import LENGTHS
from secagg.contract import IndexSegment, ideal_aggregate
from secagg.errors import MalformedMessage
from secagg.platforms import LOG
from secagg.platforms.client_round import Trained, Training
from secagg.platforms.round_task import Means, Rounds, RoundTask
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import Terms
from secagg.session.ledger import SpentUpdates

CLIENTS = 40
Model = dict[str, npt.NDArray[Any]]


def model(scale: float = 1.0) -> Model:
    generator = np.random.default_rng(7)
    return {
        "conv.weight": (scale * generator.normal(size=(16, 4, 3, 3))).astype(np.float32),
        "conv.bias": np.zeros(16, np.float64),
        "steps": np.array(3, np.int64),
        "head.weight": (0.01 * scale * generator.normal(size=(10, 144))).astype(np.float32),
        "empty": np.zeros((0, 2), np.float32),
    }


def rounds(**changes: Any) -> Rounds:
    made = Rounds(SecAggSettings())
    made.settings = _Unchecked(compression="peak-16", weighting="uniform", **changes)
    return made


def _Unchecked(**changes: Any) -> SecAggSettings:  # noqa: N802 -- stands for the class
    """Return settings of an enclave without its roster."""
    made = SecAggSettings(**{name: value for name, value in changes.items() if name != "compression"})
    object.__setattr__(made, "protocol", "enclave")
    object.__setattr__(made, "compression", changes["compression"])
    return made


def trained_by(sent: Arrays, number: int, size: float) -> Model:
    """Return a model moved along a common direction, and a little along the client's own."""
    common, own = np.random.default_rng(1), np.random.default_rng(100 + number)
    after = dict[str, npt.NDArray[Any]]()
    for name, array in sent.items():
        part = size * (0.01 if name == "head.weight" else 1.0)
        step = part * (common.normal(size=array.shape) + 0.5 * own.normal(size=array.shape))
        after[name] = np.asarray(array + (step if array.dtype.kind == "f" else 1)).astype(array.dtype)
    return after


def upload(task: RoundTask, number: int, size: float) -> Any:
    terms = Terms.parsed(task.terms.record)
    assert terms is not None
    after = trained_by(task.sent, number, size)
    training = Training(
        terms=terms,
        update=decode_parameters(terms.parameters),
        charges=SpentUpdates(attempts=None),
        sent=task.sent,
        train=lambda: Trained(models=[after], number=lambda _: 1),
    )
    return training.made().payload


def play(made: Rounds, number: int, sent: Model, sizes: list[float]) -> tuple[RoundTask, Means, Model]:
    task = made.begun(sent, clients=len(sizes), task="t", number=number, weighted_by="n")
    payloads = [upload(task, client, size) for client, size in enumerate(sizes)]
    means = task.means(ideal_aggregate(task.update.layout, payloads))
    return task, means, made.model(task, means)


def moved(before: Model, after: Model) -> npt.NDArray[np.float64]:
    parts = [
        np.ravel(after[name].astype(np.float64) - before[name]) for name in before if before[name].dtype.kind == "f"
    ]
    return np.concatenate(parts)


def test_a_model_moves_where_its_clients_say_and_as_far_as_the_middle_one() -> None:
    made, sent = rounds(), model()
    for number in range(1, 4):
        task, means, after = play(made, number, sent, [0.1] * CLIENTS)
        due = np.mean([moved(sent, trained_by(sent, client, 0.1)) for client in range(CLIENTS)], axis=0)
        step = moved(sent, after)
        assert np.dot(step, due) / np.linalg.norm(step) / np.linalg.norm(due) > 0.6
        own = np.median([np.linalg.norm(moved(sent, trained_by(sent, client, 0.1))) for client in range(CLIENTS)])
        assert means.lengths[1] == pytest.approx(own * 0.999, rel=0.1)
        assert after["steps"] == sent["steps"] + 1
        assert after["conv.bias"].dtype == np.float64
        assert task.update.names.count(LENGTHS) == 1
        sent = after


def test_fewer_than_half_of_the_clients_cannot_scale_the_model() -> None:
    steps = list[float]()
    for liars in (0, CLIENTS // 2 - 1):
        made, sizes = rounds(), [1000.0] * liars + [0.1] * (CLIENTS - liars)
        _, _, first = play(made, 1, model(), sizes)
        _, _, second = play(made, 2, first, sizes)
        steps.append(float(np.linalg.norm(moved(first, second))))
    assert steps[1] < 1.2 * steps[0]


@pytest.mark.parametrize("failing", [8, 16, 24])
def test_clients_whose_training_fails_do_not_make_the_model_stand_still(failing: int) -> None:
    """Regression: half of them did not vote, and steps of 0.12, 0.03 and 0.01 of the true one passed."""
    made, sent = rounds(), model()
    for number in (1, 2, 3):
        task = made.begun(sent, clients=CLIENTS, task="t", number=number, weighted_by="n")
        payloads = [upload(task, client, 0.1) for client in range(failing, CLIENTS)]
        for _ in range(failing):
            training = Training(
                terms=task.terms,
                update=task.update,
                charges=SpentUpdates(attempts=None),
                sent=sent,
                train=lambda: Trained(models=[], number=lambda _: 1),
            )
            payloads.append(training.late.take(task.update.layout).payload)
        means = task.means(ideal_aggregate(task.update.layout, payloads))
        assert means.training == {"trained": CLIENTS - failing, "failed": failing}
        after = made.model(task, means)
        due = np.mean([moved(sent, trained_by(sent, client, 0.1)) for client in range(failing, CLIENTS)], axis=0)
        assert np.dot(moved(sent, after), due) / np.dot(due, due) == pytest.approx(1, abs=0.25)
        assert means.alike > 0.9
        sent = after


def test_what_travels_is_one_index_for_each_block_and_each_length() -> None:
    task, _, _ = play(rounds(), 1, model(), [0.1] * 3)
    values = sum(array.size for array in model().values() if array.dtype.kind == "f")
    blocks = [part.blocks for part in task.update.layout.segments if isinstance(part, IndexSegment)]
    assert sum(blocks) <= -(-values // 16) + 1024 // 16 + 4
    assert {part.codewords for part in task.update.layout.segments if isinstance(part, IndexSegment)} == {32, 256}


def test_lengths_of_another_model_are_forgotten() -> None:
    made, sent = rounds(), model()
    play(made, 1, sent, [0.1] * 3)
    assert made.begun(sent, clients=3, task="t", number=2, weighted_by="n").terms.lengths
    del sent["conv.bias"]
    assert made.begun(sent, clients=3, task="t", number=3, weighted_by="n").terms.lengths == ()


@pytest.mark.parametrize("wrong", [(1.0,), (1.0, 2.0, float("nan"), 1.0), (1.0, -1.0, 1.0, 1.0), (float("inf"),) * 4])
def test_a_client_refuses_lengths_that_are_none(wrong: tuple[float, ...]) -> None:
    task, _, _ = play(rounds(), 1, model(), [0.1] * 3)
    with pytest.raises(MalformedMessage, match="lengths"):
        upload(replace(task, terms=replace(task.terms, lengths=wrong)), 0, 0.1)


def test_a_client_that_is_told_other_lengths_is_in_another_session() -> None:
    """With its own lengths its vote would be unique, and the histogram would reveal its length."""
    made, sent = rounds(), model()
    play(made, 1, sent, [0.1] * 3)
    task = made.begun(sent, clients=3, task="t", number=2, weighted_by="n")
    told, (common, *tensors) = task.terms, task.terms.lengths
    other = replace(task, terms=replace(told, lengths=(64 * common, *tensors)))
    one, another = (each.terms.subject(each.update, None) for each in (task, other))
    assert one.layout == another.layout
    assert one.terms_digest != another.terms_digest


def test_terms_with_lengths_of_another_type_are_refused() -> None:
    task, _, _ = play(rounds(), 1, model(), [0.1] * 3)
    for wrong in ("1.0", 1, None, True):
        with pytest.raises(MalformedMessage):
            Terms.parsed(replace(task.terms, lengths=cast("Any", (wrong,))).record)


@pytest.mark.parametrize("terms", ["[" * 100_000, '{"a":' * 100_000])
def test_terms_of_many_levels_are_refused_like_others(terms: str) -> None:
    with pytest.raises(MalformedMessage):
        Terms.parsed({"terms": terms, "parameters": b"any"})


def test_a_task_that_is_no_text_is_refused() -> None:
    task, _, _ = play(rounds(), 1, model(), [0.1] * 3)
    with pytest.raises(MalformedMessage):
        Terms.parsed(replace(task.terms, task="half a pair \ud800").record)


def test_lengths_beyond_the_last_level_are_said(caplog: pytest.LogCaptureFixture) -> None:
    LOG.addHandler(caplog.handler)
    try:
        play(rounds(), 1, model(), [1e4] * 3)
    finally:
        LOG.removeHandler(caplog.handler)
    assert any("longer than the longest level" in record.getMessage() for record in caplog.records)


def test_more_clients_need_fewer_bits_each() -> None:
    made = _Unchecked(compression="peak")
    assert made.places_for(10) < made.places_for(100) <= made.places_for(10**6) == 2048
    assert _Unchecked(compression="peak-128").places_for(10) == 128
