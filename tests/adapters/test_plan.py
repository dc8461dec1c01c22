"""Plans of adapters: the tensors summed in a round, the settings that fit, and refusals by name."""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import pytest
import torch

from secagg.adapters import METHODS, NO_SUMS, AdapterPlan, clip_of, with_middle
from secagg.errors import InvalidParameters
from secagg.platforms.client_node import ClientNode
from secagg.platforms.round_task import Rounds
from secagg.platforms.schemes import SchemeChoice
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import Terms
from tests.harness.lora import Model

A = ["first.lora_A.weight", "second.lora_A.weight"]
B = ["first.lora_B.weight", "second.lora_B.weight"]
PEAK: dict[str, Any] = {"protocol": "enclave", "roster": "roster.txt", "compression": "peak", "weighting": "uniform"}
BOTH = [A[0], B[0], A[1], B[1]]


def plan_of(method: str, model: Any | None = None) -> AdapterPlan:
    model = Model() if model is None else model
    return AdapterPlan.of(with_middle(model) if method == "sb" else model, method)


@pytest.mark.parametrize(
    ("method", "first", "second"),
    [
        ("fedit", BOTH, BOTH),
        ("ffa", B, B),
        ("alternate", B, A),
        ("sb", ["first.lora_A.lora_R", "second.lora_A.lora_R"], ["first.lora_A.lora_R", "second.lora_A.lora_R"]),
    ],
)
def test_a_round_trains_and_sums_the_tensors_of_its_turn(method: str, first: list[str], second: list[str]) -> None:
    model = with_middle(Model()) if method == "sb" else Model()
    plan = AdapterPlan.of(model, method)
    rounds = Rounds(SecAggSettings(**plan.settings([1e-3], clients=4)))
    for turn, due in enumerate([first, second, first]):
        assert plan.names(turn) == due
        trained = {id(each) for each in plan.train_only(model, turn)}
        assert trained == {id(each) for name, each in model.named_parameters() if name.replace(".default", "") in due}
        assert all(each.requires_grad == (id(each) in trained) for each in model.parameters())
        task = rounds.begun(plan.arrays(model), clients=4, task="t", number=turn + 1, weighted_by="n", turn=turn)
        summed = [tensor.name.removeprefix("tensor/") for tensor in task.update.tensors]
        assert [name for name in summed if name in plan.shapes] == due


def test_each_turn_has_the_scales_that_its_own_last_round_reported() -> None:
    plan = plan_of("alternate")
    rounds = Rounds(SecAggSettings(**plan.settings([1e-3], clients=4)))
    sent = plan.arrays(Model())
    begun = [rounds.begun(sent, clients=4, task="t", number=1, weighted_by="n", turn=turn) for turn in (0, 1)]
    assert rounds.known_of(sent) is rounds.known_of(sent)
    rounds.begun(sent, clients=4, task="t", number=3, weighted_by="n", turn=2)
    even = rounds.known_of(sent)
    rounds.begun(sent, clients=4, task="t", number=4, weighted_by="n", turn=3)
    assert rounds.known_of(sent) is not even
    assert begun[0].update.layout != begun[1].update.layout


@pytest.mark.parametrize("method", NO_SUMS)
def test_methods_that_need_single_clients_are_refused_with_the_reason(method: str) -> None:
    with pytest.raises(InvalidParameters, match=f"{method} {NO_SUMS[method].split()[0]}.*use one of fedit, ffa"):
        AdapterPlan.of(Model(), method)


@pytest.mark.parametrize(
    ("changes", "advice"), [({"use_dora": True}, "use_dora"), ({"bias": "all"}, "bias"), ({"peft_type": "IA3"}, "IA3")]
)
def test_adapters_without_an_exact_sum_are_refused(changes: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidParameters, match=advice):
        AdapterPlan.of(Model(**changes), "ffa")


def test_a_model_without_what_a_method_trains_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="with_middle"):
        AdapterPlan.of(Model(), "sb")
    with pytest.raises(InvalidParameters, match="get_peft_model"):
        AdapterPlan.of(torch.nn.Linear(2, 2), "ffa")
    with pytest.raises(InvalidParameters, match="use one of"):
        AdapterPlan.of(Model(), "lora")


def test_modules_to_save_are_noticed_and_summed_in_every_turn(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("secagg.platforms"), "propagate", True)
    plan = AdapterPlan.of(Model(saved=True), "alternate")
    assert "second.weight, second.bias are trained and sent whole in every round, 43 %" in caplog.text
    assert plan.saved == ("second.weight", "second.bias")
    assert plan.names(0) == [B[0], *plan.saved]
    assert plan.names(1) == [A[0], *plan.saved]
    settings = SecAggSettings(**plan.settings([1e-3], clients=4))
    for turn in (0, 1, 2):
        choice = SchemeChoice(settings, 4, turn=turn).parameters(
            plan.arrays(Model(saved=True)), seed=bytes(32), epoch=1
        )
        summed = {tensor.name.removeprefix("tensor/") for tensor in choice.tensors}
        assert summed & {*plan.shapes} == {*plan.names(turn)}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (Model(rank=2), ["rank", "shapes", "values"]),
        (Model(lora_alpha=16), ["alpha"]),
        (Model(target_modules=["first"]), ["targets"]),
        (Model(use_rslora=True), ["scale"]),
        (Model(alpha_pattern={"first": 3}), ["patterns"]),
        (Model(saved=True), ["shapes", "values"]),
    ],
)
def test_a_fingerprint_says_what_differs_and_equal_models_have_equal_ones(other: Model, names: list[str]) -> None:
    own = AdapterPlan.of(Model(seed=5), "ffa").fingerprint
    assert own == plan_of("ffa").fingerprint != plan_of("fedit").fingerprint
    found, changed = json.loads(own), json.loads(AdapterPlan.of(other, "ffa").fingerprint)
    assert sorted(name for name in found if found[name] != changed[name]) == names


def test_a_client_refuses_the_terms_of_another_adapter_and_says_what_differs() -> None:
    node = ClientNode.of({"adapter": plan_of("ffa").fingerprint})
    node.require_adapter(plan_of("ffa").fingerprint)
    ClientNode().require_adapter("anything")
    with pytest.raises(InvalidParameters, match="rank 4, but the server's has 2") as refused:
        node.require_adapter(plan_of("ffa", Model(rank=2)).fingerprint)
    assert "secagg-adapter" in str(refused.value)
    for strange in ("", "{", "[" * 100_000, "[]"):
        with pytest.raises(InvalidParameters, match="one LoraConfig"):
            node.require_adapter(strange)
    assert Terms.__dataclass_fields__["adapter"].type == "str"


def test_no_step_of_adam_reaches_beyond_the_clip() -> None:
    """Gradients that begin late and grow by beta2 / beta1 are the worst case: the second moment lags behind."""
    rates = [1e-9] * 5000 + [0.01]
    value = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer: Any = torch.optim.Adam([value], eps=1e-30)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        value.grad = torch.full((1,), 1.11 ** (step - 4900) * (step > 4900), dtype=torch.float64)
        optimizer.step()
    assert 7 * sum(rates) < abs(float(value.detach())) <= clip_of(rates)
    for wrong in ([], [0.0], [float("nan")], [-1.0]):
        with pytest.raises(InvalidParameters, match="positive number"):
            clip_of(wrong)
    with pytest.raises(InvalidParameters, match="no bound"):
        clip_of([0.1], betas=(0.99, 0.9))


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 32), (torch.bfloat16, 16)])
@pytest.mark.parametrize("clients", [3, 8, 16])
def test_no_upload_is_longer_than_the_adapter_in_its_own_type(dtype: torch.dtype, width: int, clients: int) -> None:
    model = Model().to(dtype)
    plan = AdapterPlan.of(model, "fedit")
    rounds = Rounds(SecAggSettings(**plan.settings([2e-5] * 20, clients=clients)))
    sent = plan.arrays(model)
    for number in (1, 2):
        task = rounds.begun(sent, clients=clients, task="t", number=number, weighted_by="n")
        values = [tensor for tensor in task.update.tensors if tensor.name.startswith("tensor/")]
        bits = [tensor.scheme.layout.require_rings()[0].ring.modulus_bits for tensor in values]
        assert max(bits) <= (width if number == 1 else 8 + (clients - 1).bit_length())
        told = {tensor.name: 1e-4 for tensor in values}
        rounds.known_of(sent).told = told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_arrays_have_32_bits_and_a_model_keeps_its_types(dtype: torch.dtype) -> None:
    model, other = Model(seed=1).to(dtype), Model(seed=2).to(dtype)
    plan = AdapterPlan.of(model, "ffa")
    arrays = plan.arrays(model)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    arrays[B[0]][:] = 0.5
    assert not plan.arrays(model)[B[0]].any(), "arrays are copies"
    plan.load(other, arrays)
    assert {tensor.dtype for tensor in other.parameters()} == {dtype}
    assert all(np.array_equal(plan.arrays(other)[name], array) for name, array in arrays.items())


def test_tensors_of_another_rank_are_refused_and_the_model_stays() -> None:
    model, plan = Model(), plan_of("ffa")
    before = plan.arrays(model)
    larger = AdapterPlan.of(Model(rank=8, seed=3), "ffa").arrays(Model(rank=8, seed=3))
    with pytest.raises(InvalidParameters, match=r"has the shape \(4, 12\), and the server's has the shape \(8, 12\)"):
        plan.load(model, larger)
    with pytest.raises(InvalidParameters, match="lacks it"):
        plan.load(model, {name: array + 1 for name, array in before.items() if name != B[1]})
    assert all(np.array_equal(plan.arrays(model)[name], array) for name, array in before.items())


def test_a_middle_matrix_changes_nothing_until_it_is_trained() -> None:
    plain, points = Model(), torch.randn(5, 12)
    before = plain(points).detach()
    model = with_middle(Model(), {"first": torch.randn(10, 12), "second": torch.randn(6, 10)})
    assert torch.allclose(model(points), before)
    (trained, *_) = AdapterPlan.of(model, "sb").train_only(model, 0)
    assert trained.shape == (4, 4)
    trained.data.fill_(1.0)
    assert not torch.allclose(model(points), before)


@pytest.mark.parametrize("method", METHODS)
def test_the_peak_code_has_fixed_bits_only_where_both_matrices_are_trained(method: str) -> None:
    settings = plan_of(method).settings([1e-3], clients=8, **PEAK)
    if method in {"ffa", "alternate"}:
        with pytest.raises(InvalidParameters, match="secagg-rate must be 'auto'"):
            SecAggSettings(**settings)
    else:
        SecAggSettings(**settings)
    SecAggSettings(**settings, rate="auto", evaluation_metrics="loss")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tensors": "*a*;"}, "empty pattern before or after a semicolon"),
        ({"tensors": "*a*;*b*", "down": "sums", **PEAK}, "cannot have semicolons"),
        ({"adapter": "{"}, "a plan of secagg.adapters"),
        ({"adapter": "[1]"}, "a plan of secagg.adapters"),
        ({"adapter": '{"method": 3}'}, "a plan of secagg.adapters"),
    ],
)
def test_settings_that_are_no_plans_are_refused_by_name(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        SecAggSettings(**settings)
