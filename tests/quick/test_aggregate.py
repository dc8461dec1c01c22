"""The quick interface: sums, means and histograms of arrays and models, by every protocol, and refusals."""

from __future__ import annotations

import importlib.metadata
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import secagg
from secagg import Session
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.options import declared
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.enclave import EnclaveOptions
from secagg.protocols.pairwise_mask import PairwiseOptions, Topology
from secagg.quick.trees import Shapes, digest_of, leaves
from secagg.session.client_policy import ClientPolicy, usual_corrupted, usual_dropped
from secagg.session.registry import ProtocolName, find, names
from secagg.session.run import Measured, run

PROTOCOLS = [name for name in names() if name != "plain-sum"]


class Layer(NamedTuple):
    """A layer as in some frameworks."""

    kernel: npt.NDArray[np.float64]
    bias: npt.NDArray[np.float64]


def updates(clients: int, size: int = 6) -> list[dict[str, Any]]:
    rng = np.random.default_rng(clients)
    return [
        {"w": rng.normal(size=(size, 2)).astype(np.float32), "b": [rng.normal(size=2), 0.5]} for _ in range(clients)
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("clients", "drop"), [(3, 0), (8, 2)])
def test_a_mean_is_that_of_the_clients_that_stayed(protocol: ProtocolName, clients: int, drop: int) -> None:
    made = updates(clients)
    result = secagg.aggregate(made, clip=4.0, drop=drop, protocol=protocol)
    assert len(result.counted) == clients - drop == result.trained
    assert result.failed == 0
    assert set(result.left_out) == set(range(clients)) - set(result.counted)
    stayed = [made[number] for number in range(clients) if number in result.counted]
    parts: list[Callable[[Any], Any]] = [
        lambda tree: tree["w"],
        lambda tree: tree["b"][0],
        lambda tree: np.float64(tree["b"][1]),
    ]
    for part in parts:
        expected: Any = np.mean([part(each) for each in stayed], axis=0)
        assert np.abs(part(result.mean) - expected).max() <= result.step
        assert np.allclose(part(result.total), part(result.mean) * result.trained, atol=1e-5)
    assert result.mean["w"].dtype == np.float32
    assert result.clipped == 0
    assert result.bytes_sent > 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_weigh_by_their_examples(protocol: ProtocolName) -> None:
    made = list(np.random.default_rng(1).uniform(-1, 1, size=(8, 2)))
    examples = [1, 2] * 4
    result = secagg.aggregate(made, clip=1.0, examples=examples, protocol=protocol)
    assert result.examples == 12
    assert np.abs(result.mean - np.average(made, axis=0, weights=examples)).max() <= 8 / 6 * result.step
    assert np.abs(result.total - 12 * result.mean).max() <= 1e-4


@pytest.mark.parametrize("examples", [np.arange(1, 5), np.arange(1, 5, dtype=np.uint8), dict(enumerate([1, 2, 3, 4]))])
def test_examples_are_integers_of_any_kind(examples: Any) -> None:
    result = secagg.aggregate([np.full(2, each / 4) for each in range(4)], clip=1.0, examples=examples)
    assert result.examples == 10
    assert np.abs(result.mean - 0.5).max() <= 2 * result.step


def test_a_client_without_examples_weighs_nothing_and_a_light_one_a_quarter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "secagg.quick"):
        result = secagg.aggregate([np.ones(2)] * 3 + [-np.ones(2)], clip=1.0, examples=[100, 1, 1, 0])
    assert result.examples == 150
    assert (result.trained, result.failed) == (3, 1), "everybody's examples are known in one process"
    assert np.abs(result.mean - 1).max() <= 4 * result.step
    assert caplog.text.count("full is 100") == 1
    assert "2 of 4 clients have more than 100 examples or fewer than 25, and count as that many" in caplog.text
    caplog.clear()
    with pytest.raises(ThresholdNotMet, match="not enough clients with examples: 1 needed, got 0"):
        secagg.aggregate([np.ones(2)] * 3, clip=1.0, examples=[0, 0, -1])
    assert "over 0 clients" not in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bit": 8}, "did you mean bits?"),
        ({"drops": 1}, "did you mean drop?"),
        ({"minimum_cohor": 3}, "did you mean minimum_cohort?"),
        ({"protocol": "two_servers"}, "did you mean two-servers?"),
        ({"protocol": "pairwise_mask"}, "did you mean pairwise?"),
        ({"protocol": "secagg+"}, "did you mean pairwise?"),
        ({"protocol": "LightSecAgg"}, "did you mean lightsecagg?"),
        ({"protocol": "circle"}, "there are pairwise, enclave, two-servers, one-message, lightsecagg"),
        ({"full": 50}, "full only applies together with examples"),
        ({"drop": 10}, "drop must be between 0 and 9 for 10 clients; got 10"),
        ({"drop": -1}, "drop must be between 0 and 9 for 10 clients; got -1"),
        ({"drop": 8}, "tolerate at most 3 dropouts; you asked for 8"),
    ],
)
def test_an_error_says_what_may_be_meant(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        secagg.aggregate([np.ones(2)] * 10, clip=1.0, **options)


def test_as_many_may_leave_as_an_error_says() -> None:
    assert len(secagg.aggregate([np.ones(2)] * 10, clip=1.0, drop=3).counted) == 7
    with pytest.raises(InvalidParameters, match="at most 3 dropouts"):
        secagg.aggregate([np.ones(2)] * 10, clip=1.0, drop=4)


def test_weights_from_1_to_50_stand_a_dropout_of_one_message() -> None:
    """Regression: the error named a minimum_cohort that was not set."""
    result = secagg.aggregate([np.ones(4)] * 50, clip=1.0, examples=range(1, 51), protocol="one-message", drop=1)
    assert len(result.counted) == 49
    assert np.abs(result.mean - 1).max() <= 50 * result.step


def test_a_mean_of_whole_numbers_is_a_float() -> None:
    result = secagg.aggregate([1, 2, 4], clip=4.0)
    assert isinstance(result.mean, float)
    assert abs(result.mean - 7 / 3) <= result.step
    assert secagg.aggregate([1, 2, 10**400, -(10**400)], clip=4.0).total == pytest.approx(3, abs=4 * result.step)


def test_what_is_left_out_of_a_model_is_named() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(InvalidParameters, match=re.escape("exclude='*num_batches_tracked'")):
        secagg.mean([model.state_dict()] * 3, clip=2.0)
    mean: Any = secagg.mean([model.state_dict()] * 3, clip=2.0, exclude="*num_batches_tracked")
    assert model.state_dict().keys() - mean.keys() == {"1.num_batches_tracked"}
    session = secagg.Session.for_model({"a": np.ones(2), "b": np.ones(2)}, clients=3, clip=1.0, exclude=["b"])
    with pytest.raises(Misuse, match="an update has 'c'"):
        session.shapes.vector({"a": np.ones(2), "b": np.ones(2), "c": np.ones(2)})


def test_names_are_those_of_the_caller() -> None:
    result = secagg.aggregate({"bo": np.zeros(3), **{name: np.ones(3) for name in "abcd"}}, clip=1.0, drop=["bo"])
    assert set(result.counted) == set("abcd")
    assert set(result.left_out) == {"bo"}
    assert np.abs(result.mean - 1).max() <= result.step


def test_rounding_has_no_bias() -> None:
    third = np.full(20_000, 1 / 3)
    result: npt.NDArray[np.float64] = secagg.mean([third] * 3, clip=1.0, bits=3)
    assert abs(float(result.mean()) - 1 / 3) < 0.005


def test_clipped_values_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "secagg.quick"):
        result = secagg.aggregate([np.array([3.0, 0.1])] * 3, clip=1.0)
    assert result.clipped == 3
    assert result.mean[0] == pytest.approx(1.0, abs=result.step)
    assert "the update of 0 is beyond the clip of 1 in 1 value; raise clip" in caplog.text


def test_an_update_below_one_step_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "secagg.quick"):
        secagg.mean([np.full(4, 1e-4)] * 3, clip=1.0, bits=4)
    assert "lower clip or raise bits" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"updates": []}, "no update"),
        ({"updates": [np.ones(2)]}, "hides nobody"),
        ({"clip": 0.0}, "clip must be between"),
        ({"clip": "1"}, "clip must be between"),
        ({"clip": None}, "clip must be between"),
        ({"clip": 1e300}, "clip must be between"),
        ({"clip": 10**400}, "clip must be between"),
        ({"bits": 17}, r"bits must be between 2 and 16"),
        ({"drop": ["nobody"]}, "not a client"),
        ({"protocol": "trust"}, "there is no protocol"),
        ({"examples": [1, 2]}, "one number for each update"),
        ({"examples": [1, 2, 1 << 50]}, "full must be an integer in"),
        ({"colour": "red"}, "unknown argument colour; there are updates, clip.*; PairwiseOptions has others"),
        (
            {"suite": "hybrid"},
            r": from secagg\.protocols\.pairwise_mask import PairwiseOptions, .*PairwiseOptions\(suite=",
        ),
        ({"protocol": PairwiseOptions(corrupted=2)}, "corrupted of PairwiseOptions is a fact about the clients"),
        ({"protocol": EnclaveOptions(minimum_cohort=4)}, "enclave has no session of 3 clients"),
        ({"only": ["nothing"]}, "no path matches"),
        ({"updates": [np.array([1, 2])] * 3}, "only floats can be summed, but the array has type int64"),
        ({"updates": [np.array(["a"])] * 3}, "not an array of numbers"),
        ({"updates": [np.ma.masked_array(np.ones(2), [True, False])] * 3}, "is a masked array"),
        ({"updates": [np.ones(2)] * 4, "drop": 1}, "invite more"),
        ({"drop": 1.5}, "a number of clients, or their names"),
        ({"drop": True}, "a number of clients, or their names"),
        ({"dropped": 1}, "dropped is an option of the protocol|did you mean drop"),
        ({"protocol": PairwiseOptions(dropped=1)}, "dropped of PairwiseOptions is a fact about the clients"),
        ({"examples": [1, 1, 1.5]}, "a number of examples must be an integer"),
        (
            {"updates": [np.ones(2)] * 2},
            "1 of 2 clients may collude with the server.*invite 3 or more, or set corrupted=0",
        ),
        ({"updates": [np.ones(2)] * 2, "protocol": PairwiseOptions(topology=Topology.FULL)}, "invite 3 or more"),
        ({"updates": [np.array([1j])] * 3}, "has complex numbers"),
        ({"updates": [{"w": np.array([1j])}] * 3}, "'w' has complex numbers"),
        ({"protocol": PairwiseOptions(noise_multiplier=Fraction(1), l2_bounds=(9,))}, "cannot add noise"),
    ],
)
def test_what_cannot_be_summed_is_refused_with_the_way_out(arguments: dict[str, Any], expected: str) -> None:
    given: dict[str, Any] = {"updates": [np.ones(2)] * 3, "clip": 1.0} | arguments
    with pytest.raises(InvalidParameters, match=expected):
        secagg.aggregate(given.pop("updates"), **given)


def test_nan_counts_as_zero_and_infinity_as_the_clip_and_both_are_counted() -> None:
    result = secagg.aggregate([np.ones(3), np.array([np.nan, np.inf, -np.inf]), np.ones(3)], clip=1.0)
    np.testing.assert_allclose(result.total, [2, 3, 1], atol=3 * result.step)
    assert result.clipped == 3


def test_where_an_update_is_nan_is_said(caplog: pytest.LogCaptureFixture) -> None:
    lost = {"w": np.array([np.nan, 1.0]), "b": np.full(3, np.nan)}
    with caplog.at_level(logging.WARNING):
        secagg.mean({"ann": {"w": np.ones(2), "b": np.ones(3)}, "bo": lost, "eve": lost}, clip=1.0)
    said = "the update of 'bo' is NaN, which counts as 0, in 3 values of 'b', 1 value of 'w'"
    assert [record.getMessage() for record in caplog.records] == [said, said.replace("bo", "eve")]


def test_an_update_of_another_shape_is_refused() -> None:
    with pytest.raises(Misuse, match=r"float64 of shape \(3,\)"):
        secagg.mean([np.ones(2), np.ones(3), np.ones(2)], clip=1.0)


@pytest.mark.parametrize("more", [(), ["b*"]])
def test_a_tensor_that_the_model_does_not_have_is_not_left_out_in_silence(more: list[str]) -> None:
    model = {"b": np.ones(2), "frozen": np.ones(1)} if more else {"b": np.ones(2)}
    with pytest.raises(Misuse, match="an update has 'bias', which the model lacks"):
        secagg.aggregate([model, {**model, "bias": np.ones(2)}, model], clip=1.0, only=more)


def test_one_pattern_is_not_taken_for_its_letters() -> None:
    result = secagg.aggregate([{"lora_up": np.ones(2), "base": np.ones(2)}] * 3, clip=1.0, only="*lora*")
    assert set(result.mean) == {"lora_up"}


def test_a_total_that_its_dtype_cannot_hold_comes_with_more_bits() -> None:
    result = secagg.aggregate([np.full(2, 60_000, dtype=np.float16)] * 5, clip=65_000.0)
    assert result.total.dtype == np.float32
    assert np.abs(result.total - 300_000).max() <= 5 * result.step
    assert result.mean.dtype == np.float32
    session = secagg.Session.for_model(np.zeros(2, dtype=np.float32), clients=3, clip=1.0)
    assert session.shapes.tree(np.full(2, 1e300), session.like).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mean_of_16_bits_is_within_a_step(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    made = [torch.tensor([1.0 + 2.0**-7 * each, -0.3], dtype=getattr(torch, dtype)) for each in range(3)]
    result = secagg.aggregate(made, clip=2.0)
    assert result.mean.dtype == torch.float32
    expected = torch.stack(made).double().mean(dim=0)
    assert float((result.mean.double() - expected).abs().max()) <= result.step


def test_a_protocol_is_named_by_its_options() -> None:
    options = PairwiseOptions(topology=Topology.FULL, mode=SecurityMode.SEMI_HONEST, minimum_cohort=4)
    session = secagg.Session.for_model(np.zeros(2), clients=6, clip=1.0, dropped=1, protocol=options)
    assert session.settings == replace(options, population=6, corrupted=1, dropped=1)
    assert len(secagg.aggregate([np.ones(2)] * 6, clip=1.0, protocol=options, drop=1).counted) == 5
    assert secagg.histogram([1, 1, 2], [1, 2], protocol=EnclaveOptions(suite=Suite.CLASSIC)) == {1: 2, 2: 1}
    with pytest.raises(InvalidParameters, match=r"mode must be a SecurityMode: \.SEMI_HONEST, \.ACTIVE; got 'strict'"):
        PairwiseOptions(mode="strict")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_names_that_repeat_drop_one_client() -> None:
    assert set(secagg.aggregate([np.ones(2)] * 5, clip=1.0, drop=[1, 1, 1, 1, 1]).left_out) == {1}


def test_too_few_says_why_clients_left() -> None:
    with pytest.raises(ThresholdNotMet) as caught:
        secagg.aggregate([np.ones(2)] * 3, clip=1.0, protocol=EnclaveOptions(lifetime=timedelta(days=3)))
    assert [note for note in caught.value.__notes__ if "its keys last" in note]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_histogram_counts_each_client_once(protocol: ProtocolName) -> None:
    counts = secagg.histogram(["x", "y", "x", "x"], ["x", "y", "z"], protocol=protocol)
    assert counts == {"x": 3, "y": 1, "z": 0}


def test_a_histogram_is_of_those_that_stayed() -> None:
    assert secagg.histogram({"bo": 2} | dict.fromkeys("abcd", 1), [1, 2], drop=["bo"]) == {1: 4, 2: 0}


def test_a_value_in_no_bin_is_counted_in_none() -> None:
    assert secagg.histogram(["x", "q", "x"], ["x"]) == {"x": 2}
    assert secagg.histogram([1.0, float("nan"), 10**400], [1, 2]) == {1: 1, 2: 0}
    strange: list[Any] = [1, [8765], np.ones(2)]
    assert secagg.histogram(strange, [1, 2]) == {1: 1, 2: 0}


def test_a_bin_twice_and_no_bins_are_refused() -> None:
    with pytest.raises(InvalidParameters, match="there must be at least one"):
        secagg.histogram(["x", "x"], [])
    with pytest.raises(InvalidParameters, match="bins must be distinct"):
        secagg.histogram(["x", "x", "x"], ["x", "x"])


def test_heavy_hitters_are_the_strings_that_enough_clients_have() -> None:
    texts = ["cat", "cat", "cats", "dog", "cat", "dog", "owl", ""]
    assert secagg.heavy_hitters(texts, least=2) == {"cat": 3, "dog": 2}
    assert secagg.heavy_hitters(["", "", "a"], least=2) == {"": 2}
    assert secagg.heavy_hitters(["é", "é", "e"], least=2) == {"é": 2}


def test_a_setting_that_a_histogram_cannot_have_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameters, match="unknown argument colour"):
        secagg.histogram([1, 2, 1], [1, 2], colour="red")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_what_a_client_has_is_in_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "secagg.quick"):
        secagg.mean([np.full(4, 1.2345e-4)] * 3, clip=1.0, bits=4)
        secagg.mean([np.full(4, 9.8765)] * 3, clip=1.0)
    assert "1.23" not in caplog.text
    assert "9.87" not in caplog.text


@pytest.mark.parametrize("strange", ["abcd", "a\0", "\0", "\ud8ff"])
def test_a_string_that_cannot_be_counted_counts_as_none(strange: str) -> None:
    assert secagg.heavy_hitters([strange, "abc", strange, "abc"], least=2, longest=3) == {"abc": 2}


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (["a", "a"], {"least": float("nan")}, "least must be at least 2"),
        (["a", "a"], {"least": 2.5}, "least must be at least 2"),
        (["a", "b"], {"least": 1}, "not a heavy hitter"),
        (["", ""], {"least": 2, "longest": 0}, "longest must be at least 1 byte"),
        ([8765, 1], {"least": 2}, "value is not a string"),
    ],
)
def test_what_is_no_question_for_heavy_hitters_is_refused_and_tells_nothing(
    values: list[Any], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidParameters, match=expected) as caught:
        secagg.heavy_hitters(values, **options)
    assert "8765" not in str(caught.value)


def test_every_leaf_has_a_path_and_comes_back_in_its_place() -> None:
    tree = {"a": Layer(np.zeros((2, 1)), np.ones(1)), "c": (1.5, [np.float32(2.0)])}
    assert [path for path, _ in leaves(tree)] == ["a/0", "a/1", "c/0", "c/1/0"]
    shapes = Shapes.of(tree)
    again = shapes.tree(shapes.vector(tree), tree)
    assert isinstance(again["a"], Layer)
    assert again["c"][0] == 1.5
    assert again["c"][1][0] == np.float32(2.0)


def test_some_tensors_alone_are_summed() -> None:
    model = {"base": np.ones(3), "lora": {"down": np.zeros(2), "up": np.zeros(2)}, "steps": np.array(3)}
    session = secagg.Session.for_model(model, clients=4, clip=1.0, only=["lora/*"])
    assert session.shapes.paths == ("lora/down", "lora/up")
    result = secagg.aggregate([model] * 3, clip=1.0, only=["lora/*"])
    assert set(result.mean) == {"lora"}


class Weighted:
    """A model as in Keras."""

    def get_weights(self) -> list[npt.NDArray[np.float32]]:
        return [np.ones((2, 2), dtype=np.float32), np.zeros(2, dtype=np.float32)]


class Foreign:
    """An array of another framework, as NumPy reads it."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[np.float32]:
        return np.ones(2, dtype=np.float32)


def test_models_of_frameworks_are_read() -> None:
    assert Shapes.of(Weighted()).shapes == ((2, 2), (2,))
    assert Shapes.of({"x": Foreign()}).shapes == ((2,),)


def test_a_torch_module_comes_back_as_torch() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    result = secagg.aggregate([model.state_dict()] * 3, clip=2.0)
    assert isinstance(result.mean["weight"], torch.Tensor)
    assert result.mean["weight"].dtype == torch.float32
    assert torch.allclose(result.mean["weight"], model.weight, atol=2 * result.step)
    assert Shapes.of(model).shapes == Shapes.of(model.state_dict()).shapes


def test_models_that_differ_anywhere_have_other_digests() -> None:
    models: list[Any] = [
        {"a": np.zeros(2)},
        {"b": np.zeros(2)},
        {"a": np.zeros((2, 1))},
        {"a": np.zeros(2, dtype=np.float32)},
        {"a": np.array([0.0, 1.0])},
    ]
    assert len({digest_of(model) for model in models}) == len(models)
    assert digest_of(models[0]) == digest_of({"a": np.zeros(2)})


def test_the_order_of_a_dictionary_changes_neither_the_digest_nor_the_vector() -> None:
    one, other = {"b": np.ones(1), "a": np.zeros(2)}, {"a": np.zeros(2), "b": np.ones(1)}
    assert digest_of(one) == digest_of(other)
    assert Shapes.of(one).vector(one).tolist() == Shapes.of(other).vector(other).tolist() == [0, 0, 1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_session_for_a_model_serves_a_platform(protocol: ProtocolName) -> None:
    model = updates(1)[0]
    session = secagg.Session.for_model(model, clients=5, clip=4.0, bits=12, protocol=protocol)
    coins, made = SystemCoins(), updates(5)
    subject = session.subject(task=b"a model", round_number=3, model=model)
    clients = [ClientId(number) for number in range(1, 6)]
    with closing(session.simulate(coins=coins, clock=lambda: datetime.now(UTC))) as world:
        joined = (
            world.member(client).join(subject, session.update(update, subject=subject, coins=coins))
            for client, update in zip(clients, made, strict=True)
        )
        released = run(Measured(world.open(subject, frozenset(clients))), joined)
    expected = np.mean([update["w"] for update in made], axis=0)
    assert np.abs(session.mean(released)["w"] - expected).max() <= session.step
    assert np.abs(session.total(released)["w"] - 5 * expected).max() <= 5 * session.step


def test_a_client_of_another_model_leaves() -> None:
    model, other = updates(1)[0], updates(2)[1]
    session = secagg.Session.for_model(model, clients=4, clip=4.0)
    coins = SystemCoins()
    subjects = [session.subject(task=b"t", round_number=1, model=each) for each in (model, other)]
    clients = [ClientId(number) for number in range(1, 5)]
    with closing(session.simulate(coins=coins, clock=lambda: datetime.now(UTC))) as world:
        measured = Measured(world.open(subjects[0], frozenset(clients)))
        joined = (
            world.member(client).join(
                subject := subjects[client == clients[-1]], session.update(model, subject=subject, coins=coins)
            )
            for client in clients
        )
        with pytest.raises(secagg.SecAggError):
            run(measured, joined)
    assert any("model" in reason for each in measured.figures for reason in each.failed.values())


def test_a_client_that_would_sum_other_tensors_leaves() -> None:
    """Both hold one model, and their summed parts have equal length: bias and gate would be added silently."""
    model = {"bias": np.zeros(3), "gate": np.zeros(3)}
    sessions = [secagg.Session.for_model(model, clients=4, clip=4.0, only=only) for only in model]
    coins = SystemCoins()
    subjects = [each.subject(task=b"t", round_number=1, model=model) for each in sessions]
    clients = [ClientId(number) for number in range(1, 5)]
    with closing(sessions[0].simulate(coins=coins, clock=lambda: datetime.now(UTC))) as world:
        measured = Measured(world.open(subjects[0], frozenset(clients)))
        joined = (
            world.member(client).join(subjects[1], sessions[1].update(model, subject=subjects[1], coins=coins))
            for client in clients
        )
        with pytest.raises(secagg.SecAggError):
            run(measured, joined)
    reasons = [reason for each in measured.figures for reason in each.failed.values()]
    assert len(reasons) == 4
    assert all("digest" in reason for reason in reasons)


@pytest.mark.parametrize("wrong", [{"task": "str"}, {"round_number": -1}, {"round_number": 1 << 64}])
def test_a_subject_is_a_task_in_bytes_and_the_number_of_a_round(wrong: dict[str, Any]) -> None:
    session = secagg.Session.for_model(np.zeros(2), clients=3, clip=1.0)
    given: dict[str, Any] = {"task": b"t", "round_number": 1, "model": (), **wrong}
    with pytest.raises(InvalidParameters, match=r"task must be bytes|round_number must be an integer in"):
        session.subject(**given)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("asked", [{"corrupted": 9}, {"clients": 2}, {"late": 1}, {"late": 9}, {"minimum_cohort": 11}])
def test_what_is_planned_can_be_opened(protocol: ProtocolName, asked: dict[str, Any]) -> None:
    """A plan is refused if ``open`` would refuse it, before any client is invited."""
    options = find(protocol).settings
    given: dict[str, Any] = {"clients": 10, **asked}
    own = {name: given.pop(name) for name in ("late", "minimum_cohort") if name in given and name in declared(options)}
    try:
        plan = secagg.Session.for_model(np.zeros(2), clip=1.0, protocol=options(**own), **given)
    except InvalidParameters:
        return
    invited = frozenset(map(ClientId, range(10)))
    with closing(plan.simulate(coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        world.open(plan.subject(task=b"t", round_number=1, model=()), invited).abort()


@pytest.mark.parametrize("clip", [np.float32(1.5), np.float64(1.5), np.int64(1), 1])
def test_a_clip_is_any_number(clip: float) -> None:
    assert secagg.aggregate([np.ones(2)] * 3, clip=clip).mean.tolist() == pytest.approx([1, 1], abs=1e-3)


def test_the_face_shows_what_it_has() -> None:
    program = "import secagg\nhelp(secagg)\nprint(*dir(secagg))"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout  # noqa: S603 -- fixed command
    for name in ("Session", "aggregate", "clip_for", "heavy_hitters", "histogram", "mean"):
        assert name in shown.splitlines()[-1].split()
        assert re.search(rf"^    (class )?{name}\(", shown, re.MULTILINE), f"help(secagg) says nothing of {name}"
    assert secagg.__version__ == importlib.metadata.version("secagg")


def test_the_quick_interface_is_loaded_when_it_is_used_and_not_before() -> None:
    program = (
        "import sys, secagg\n"
        "assert 'secagg.quick' not in sys.modules and 'secagg.compression' not in sys.modules\n"
        "secagg.mean\n"
        "assert 'secagg.quick' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603 -- fixed command
    with pytest.raises(AttributeError, match="no attribute 'sum'"):
        secagg.sum  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


def pinned(had: dict[str, Any]) -> ClientPolicy:
    """Return the policy of a client that names other parties but no number."""
    return ClientPolicy(authority=had.get("authority"), server_keys=had.get("server_keys"))


def among(clients: int, mode: SecurityMode, had: dict[str, Any]) -> ClientPolicy:
    del had
    return ClientPolicy.among(clients, mode)


@pytest.mark.parametrize(
    ("protocol", "made"),
    [
        *((name, pinned) for name in names()),
        ("pairwise", partial(among, mode=SecurityMode.ACTIVE)),
        ("lightsecagg", partial(among, mode=SecurityMode.SEMI_HONEST)),
    ],
)
@given(clients=st.integers(3, 200))
@example(3)
@example(4)
@example(5)
@settings(max_examples=6, deadline=None)
def test_a_policy_without_numbers_admits_what_is_planned_without_numbers(
    protocol: ProtocolName, made: Any, clients: int
) -> None:
    coins = SystemCoins()
    plan = Session.for_model(np.zeros(4), clients=clients, clip=1.0, protocol=protocol)
    subject = plan.subject(task=b"usual", round_number=1, model=())
    with pytest.MonkeyPatch.context() as patch:

        def without_numbers(**had: Any) -> ClientPolicy:
            return made(had) if made is pinned else made(clients, had=had)

        patch.setattr(import_module(find(protocol).simulate.__module__), "ClientPolicy", without_numbers)
        world = plan.simulate(coins=coins, clock=lambda: datetime.now(UTC))
        session = world.open(subject, frozenset(map(ClientId, range(clients))))
        member = world.member(ClientId(0)).join(subject, plan.update(np.zeros(4), subject=subject, coins=coins))
        # A client whose policy refuses the offer raises.
        session.receive(ClientId(0), member.answer(session.invitation))
        session.abort()


@pytest.mark.parametrize("protocol", ["pairwise", "lightsecagg"])
def test_a_plan_without_numbers_tolerates_the_usual_dropouts(protocol: ProtocolName) -> None:
    for clients in range(3, 201):
        made = Session.for_model(np.zeros(4), clients=clients, clip=1.0, protocol=protocol).settings
        # Pairwise masks of few clients, one in ten of them corrupted, tolerate one dropout less.
        assert made.dropped == usual_dropped(clients) - (protocol == "pairwise" and clients in (4, 6, 12))
        assert made.minimum_cohort == clients - made.dropped
        assert made.corrupted == usual_corrupted(clients)


def test_an_update_of_another_form_is_named() -> None:
    updates = {"site a": np.ones(3), "site b": np.ones(3), "site c": np.ones(4), "site d": np.ones(3)}
    with pytest.raises(Misuse, match=r"float64 of shape \(4,\).* \(the update of 'site c'\)"):
        secagg.aggregate(updates, clip=1.0)


def test_who_needs_everybody_plans_for_no_dropout() -> None:
    whole = Session.for_model(np.zeros(4), clients=6, clip=1.0, protocol=PairwiseOptions(minimum_cohort=6))
    assert (whole.settings.dropped, whole.settings.minimum_cohort) == (0, 6)
    full = Session.for_model(np.zeros(4), clients=5, clip=1.0, protocol=PairwiseOptions(topology=Topology.FULL))
    assert full.settings.dropped == 0
    assert Session.for_model(np.zeros(4), clients=5, clip=1.0, dropped=0).settings.dropped == 0
