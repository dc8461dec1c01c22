"""Rounds of adapters on a platform: encoding, decoding and memory of each method."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch

from secagg.adapters import METHODS, AdapterPlan, Arrays, with_middle
from secagg.contract import ideal_aggregate
from secagg.platforms.client_round import Trained, Training
from secagg.platforms.round_task import Rounds, RoundTask
from secagg.platforms.settings import SecAggSettings
from tests.harness.lora import FEATURES, Model

CLIENTS, RATE, STEPS = 8, 1e-3, 4
WIDE, RANK = 1 << 15, 16


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("secagg.platforms"), "propagate", True)
    return caplog


def training(task: RoundTask, model: Arrays) -> Training:
    return Training(task.terms, task.update, cast("Any", None), task.sent, lambda: Trained([model], lambda _: 1))


def trained(model: Any, plan: AdapterPlan, sent: Arrays, client: int, turn: int) -> Arrays:
    plan.load(model, sent)
    optimizer = torch.optim.AdamW(plan.train_only(model, turn), lr=RATE, weight_decay=0.0)
    points = torch.randn(16, FEATURES, generator=torch.Generator().manual_seed(client))
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(points).square().mean().backward()
        optimizer.step()  # pyright: ignore[reportUnknownMemberType]
    return plan.arrays(model)


@pytest.mark.parametrize("method", METHODS)
def test_a_round_of_every_method_gives_the_mean_of_what_clients_train(
    method: str, log: pytest.LogCaptureFixture
) -> None:
    model = with_middle(Model()) if method == "sb" else Model()
    plan = AdapterPlan.of(model, method)
    rounds, sent = Rounds(SecAggSettings(**plan.settings([RATE] * STEPS, clients=CLIENTS))), plan.arrays(model)
    for turn in range(4):
        task = rounds.begun(sent, clients=CLIENTS, task="t", number=turn + 1, weighted_by="n", turn=turn)
        models = [trained(model, plan, sent, client, turn) for client in range(CLIENTS)]
        payloads = [training(task, one).made().payload for one in models]
        after = rounds.model(task, task.means(ideal_aggregate(task.update.layout, payloads)))
        for name in plan.shapes:
            due = np.mean([one[name].astype(np.float64) for one in models], axis=0)
            # A changes less in its first round than later, when some values exceed the range that it reported.
            near = np.abs(due - sent[name]).max() / 8 + 1e-6
            assert np.abs(after[name] - due).max() <= near, name
        sent = after
    assert "lost" not in log.text


def begun(plan: AdapterPlan, sent: Arrays) -> RoundTask:
    rounds = Rounds(SecAggSettings(**plan.settings([RATE] * STEPS, clients=CLIENTS)))
    return rounds.begun(sent, clients=CLIENTS, task="t", number=1, weighted_by="n")


@pytest.mark.parametrize("is_difference", [False, True])
def test_a_change_that_no_round_sums_is_named_with_what_to_do(
    is_difference: bool,  # noqa: FBT001 -- pytest's
    log: pytest.LogCaptureFixture,
) -> None:
    """A script that trains a whole adapter, like transformers' Trainer, with a method that sums one part."""
    model = Model()
    plan = AdapterPlan.of(model, "ffa")
    sent = plan.arrays(model)
    task, whole = begun(plan, sent), trained(model, AdapterPlan.of(model, "fedit"), sent, 1, 0)
    found = Trained(
        [{name: whole[name] - sent[name] * is_difference for name in sent}], lambda _: 1, is_difference=is_difference
    )
    Training(task.terms, task.update, cast("Any", None), sent, lambda: found).made()
    assert "training changed first.lora_A.weight, which this round does not sum, so its change is lost" in log.text


def test_a_model_of_16_bits_that_rounds_what_it_is_sent_has_trained_nothing_of_it(
    log: pytest.LogCaptureFixture,
) -> None:
    plan = AdapterPlan.of(Model(), "ffa")
    sent = plan.arrays(Model())
    rounded = {name: torch.tensor(array).to(torch.bfloat16).float().numpy() for name, array in sent.items()}
    assert not np.array_equal(rounded["first.lora_A.weight"], sent["first.lora_A.weight"])
    training(begun(plan, sent), rounded | {"first.lora_B.weight": sent["first.lora_B.weight"] + 1e-3}).made()
    assert "lost" not in log.text


def peak(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return a call's peak memory in bytes per value, beyond the memory before it, and its result."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = call()
        return (tracemalloc.get_traced_memory()[1] - before) / (2 * WIDE * RANK), found
    finally:
        tracemalloc.stop()


def test_a_clients_and_a_servers_memory_is_a_few_copies_of_the_adapter() -> None:
    """A million values: in fixed point in the first round, and in codes of 8 bits in the second."""
    shapes = {"model.lora_A.weight": (RANK, WIDE), "model.lora_B.weight": (WIDE, RANK)}
    sent = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": ["model"]}
    plan = AdapterPlan.of_state(sent, config, "fedit")
    generator = np.random.default_rng(1)
    model = {name: generator.normal(0, RATE, shape).astype(np.float32) for name, shape in shapes.items()}
    rounds = Rounds(SecAggSettings(**plan.settings([RATE] * STEPS, clients=CLIENTS)))
    for number in (1, 2):
        task = rounds.begun(sent, clients=CLIENTS, task="t", number=number, weighted_by="n")
        client, update = peak(training(task, model).made)
        aggregate = ideal_aggregate(task.update.layout, [update.payload] * CLIENTS)
        server, means = peak(lambda task=task, aggregate=aggregate: task.means(aggregate))  # type: ignore[misc]
        stepped, _ = peak(lambda task=task, means=means: rounds.model(task, means))  # type: ignore[misc]
        # A model of 32 bits takes 4 bytes per value; the summed vectors take 8.
        ceilings = {1: (29, 17), 2: (13, 9)}[number]
        assert client < ceilings[0]
        assert server < ceilings[1]
        assert stepped < 9
