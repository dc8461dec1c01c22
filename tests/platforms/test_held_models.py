"""Models held by a server and its nodes: equal bits, few bytes, and a whole model for nodes that missed one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.downlink import HeldModel
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason, SecAggError
from secagg.platforms import LOG
from secagg.platforms.held_models import followed, is_told, parted, restored, stored
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from tests.platforms.test_peaks import Model, model, play, rounds

FLOATS = ("conv.weight", "conv.bias", "head.weight")
NODES = range(4)


class Nodes:
    """Nodes that keep their held models, and the last message to each."""

    def __init__(self) -> None:
        self.held = dict[int, HeldModel]()
        self.fields = dict[int, set[str]]()
        self.sizes = dict[int, int]()

    def follow(self, made: Rounds, sent: Model, number: int, nodes: Any = NODES) -> None:
        """Let nodes take part in a session, and compare their models with the server's."""
        task = made.begun(sent, clients=len(NODES), task="t", number=number, weighted_by="n", is_evaluation=True)
        assert task.held is not None
        forms = {name: (sent[name].shape, sent[name].dtype) for name in task.terms.joined}
        assert tuple(forms) == FLOATS
        for node in nodes:
            record = task.held.record(node)
            assert is_told(record)
            before = self.held.get(node)
            self.held[node] = followed(record, None if before is None else restored(stored(before)), forms, task.update)
            own = parted(self.held[node].values, forms)
            assert all(own[name].tobytes() == sent[name].tobytes() for name in FLOATS)
            self.fields[node] = set(record) - {"held"}
            self.sizes[node] = sum(map(len, record.values()))
        task.held.answered(nodes)


def holding() -> Rounds:
    made = rounds()
    object.__setattr__(made.settings, "down", "sums")
    return made


def test_both_ends_hold_the_same_bits_round_after_round_for_a_fraction_of_the_bytes() -> None:
    made, nodes, sent = holding(), Nodes(), model()
    for number in range(1, 8, 2):
        sent = made.restored(sent)
        nodes.follow(made, sent, number)
        assert set(map(frozenset, nodes.fields.values())) == {frozenset({"model" if number == 1 else "sum"})}
        _, _, sent = play(made, number + 1, sent, [0.1] * 20)
    floats = sum(sent[name].nbytes for name in FLOATS)
    assert max(nodes.sizes.values()) < floats / 6


def test_the_model_that_is_held_is_the_one_that_was_made_within_a_step() -> None:
    plain, made = rounds(), holding()
    _, _, due = play(plain, 2, model(), [0.1] * 20)
    sent = made.restored(model())
    held = made.known_of(sent).held
    assert held is not None
    step = float(held.held.steps.max())
    assert step < 0.05
    _, _, moved = play(made, 2, sent, [0.1] * 20)
    for name in FLOATS:
        assert moved[name].dtype == due[name].dtype
        assert np.abs(sent[name] - model()[name]).max() <= step
    assert moved["steps"] == due["steps"]
    assert moved["empty"].shape == (0, 2)


def test_a_node_that_missed_a_session_is_sent_the_model_and_one_that_has_it_nothing() -> None:
    made, nodes, sent = holding(), Nodes(), holding().restored(model())
    sent = made.restored(model())
    nodes.follow(made, sent, 1)
    _, _, sent = play(made, 2, sent, [0.1] * 4)
    sent = made.restored(sent)
    nodes.follow(made, sent, 3, [0, 1])
    nodes.follow(made, sent, 4, [0, 2])
    assert nodes.fields == {0: set(), 1: {"sum"}, 2: {"sum"}, 3: {"model"}}
    _, _, sent = play(made, 5, sent, [0.1] * 4)
    nodes.follow(made, made.restored(sent), 6)
    assert nodes.fields == {0: {"sum"}, 1: {"sum"}, 2: {"sum"}, 3: {"model"}}


def test_a_node_that_does_not_answer_is_sent_the_model_next_time() -> None:
    made = holding()
    sent = made.restored(model())
    task = made.begun(sent, clients=4, task="t", number=1, weighted_by="n")
    assert task.held is not None
    assert [set(task.held.record(0)) for _ in range(2)] == [{"held", "model"}] * 2
    task.held.answered([0])
    assert [set(task.held.record(0)) for _ in range(2)] == [{"held"}, {"held", "model"}]


def test_a_strategy_that_changes_the_model_is_followed_with_whole_models_and_told_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made, nodes, sent = holding(), Nodes(), model()
    LOG.addHandler(caplog.handler)
    try:
        for number in range(1, 6, 2):
            sent = made.restored({name: values + values.dtype.type(1) for name, values in sent.items()})
            nodes.follow(made, sent, number)
            assert nodes.fields[0] == {"model"}
            _, _, sent = play(made, number + 1, sent, [0.1] * 4)
    finally:
        LOG.removeHandler(caplog.handler)
    said = {id(record) for record in caplog.records if "every node receives it whole" in record.getMessage()}
    assert len(said) == 1


def test_a_strategy_that_multiplies_and_divides_leaves_the_model_as_it_is() -> None:
    made, nodes = holding(), Nodes()
    sent = made.restored(model())
    nodes.follow(made, sent, 1)
    _, _, moved = play(made, 2, sent, [0.1] * 4)
    divided = {name: np.asarray(values * 7 / 7).astype(values.dtype) for name, values in moved.items()}
    assert any(divided[name].tobytes() != moved[name].tobytes() for name in FLOATS)
    nodes.follow(made, made.restored(divided), 3)
    assert nodes.fields[0] == {"sum"}


def test_a_node_refuses_what_does_not_lead_from_its_model_to_the_servers() -> None:
    made, nodes = holding(), Nodes()
    sent = made.restored(model())
    nodes.follow(made, sent, 1)
    task, _, moved = play(made, 2, sent, [0.1] * 4)
    assert task.held is not None
    record, own = task.held.record(0), nodes.held[0]
    forms = {name: (moved[name].shape, moved[name].dtype) for name in FLOATS}
    assert "sum" in record
    other = HeldModel.rounded(own.values + 1, seed=own.seed, name=own.name, sizes=own.sizes, round_number=1)
    shorter = {name: forms[name] for name in FLOATS[:2]}
    for held, told_record in (
        (other, record),
        (None, record),
        (own, {"held": record["held"]}),
        (own, {**record, "held": bytes(32)}),
    ):
        with pytest.raises(PeerMisbehaved) as caught:
            followed(told_record, held, forms, task.update)
        assert caught.value.reason is Reason.MODEL_MISMATCH
        assert not caught.value.culprits
    with pytest.raises(SecAggError):
        followed({"held": record["held"], "model": task.held.record(1)["sum"]}, None, forms, task.update)
    # Another form than the session's would let a few bytes reserve any amount of memory.
    vast = {**forms, "head.weight": ((1 << 31,), np.dtype(np.float32))}
    integers = {**forms, "head.weight": (forms["head.weight"][0], np.dtype(np.int32))}
    refused: list[tuple[dict[str, Any], Any]] = [(record, shorter), (record, vast), (record, integers)]
    for told_record, due in [*refused, ({**record, "sum": 7}, forms)]:
        with pytest.raises(MalformedMessage):
            followed(told_record, own, due, task.update)


def test_tensors_of_16_bits_are_held_as_they_are_sent() -> None:
    made = holding()
    narrow: dict[str, npt.NDArray[Any]] = {"w": np.linspace(-1, 1, 2000, dtype=np.float16).reshape(40, 50)}
    sent = made.restored(narrow)
    task, _, moved = play(made, 1, sent, [0.1] * 4)
    assert moved["w"].dtype == np.float16
    assert task.held is not None
    task.held.answered([0])
    _, _, after = play(made, 2, made.restored(moved), [0.1] * 4)
    assert "sum" in task.held.record(0) or after["w"].dtype == np.float16


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"compression": "fixed-point"}, "secagg-down requires"),
        ({"compression": "peak", "weighting": "examples"}, "secagg-weighting = 'uniform'"),
        ({"compression": "peak", "rate": "auto", "evaluation_metrics": "loss"}, "secagg-rate = 'fixed'"),
        ({"down": "deltas"}, "must be one of model, sums"),
    ],
)
def test_settings_that_no_downlink_sum_fits_are_refused(changes: dict[str, Any], sentence: str) -> None:
    given: dict[str, Any] = {"protocol": "enclave", "roster": "any", "weighting": "uniform", "down": "sums", **changes}
    with pytest.raises(SecAggError, match=sentence):
        SecAggSettings(**given)
