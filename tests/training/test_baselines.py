"""The baselines of the studies: each decodes as declared, and trains."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint
from secagg.contract import ideal_aggregate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.configuration import Configuration
from secagg.training.rounds import Pieces, Run

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
VALUES, CLIENTS = 2048, 8


@pytest.fixture
def baselines(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(repository / "benchmarks"), *sys.path])
    return importlib.import_module("baselines")


def decoded(make: Callable[..., Any], updates: Any, epoch: int) -> Any:
    """Return a round's decoded mean."""
    scheme = make(values=VALUES, cohort=CLIENTS, seed=bytes(32), epoch=epoch)
    payloads = [scheme.encode(update, InsecureSeededCoins(bytes([at]))) for at, update in enumerate(updates)]
    return np.asarray(scheme.decode(ideal_aggregate(scheme.layout, payloads)), np.float64) / len(updates)


def of_length(length: float, count: int) -> Any:
    drawn = np.random.default_rng(3).standard_normal((count, VALUES)).astype(np.float32)
    return drawn * np.float32(length) / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("name", ["pruned", "turned_codewords"])
def test_a_mean_over_rounds_is_the_mean_of_the_updates(baselines: Any, name: str) -> None:
    updates = of_length(baselines.LENGTH, CLIENTS)
    true = updates.astype(np.float64).mean(axis=0)
    rounds = [decoded(getattr(baselines, name), updates, epoch) for epoch in range(40)]
    along = float(np.mean(rounds, axis=0) @ true / (true @ true))
    assert along == pytest.approx(1, abs=0.15)


def test_without_collisions_steps_are_those_of_dense_error_feedback(baselines: Any) -> None:
    cells = FixedPoint(length=768, clip=64.0, fraction_bits=20, modulus_bits=40)
    sketches = (CountSketch(length=12, rows=3, columns=256, seed=bytes([n]) * 32, inner=cells) for n in range(256))
    ones = np.eye(12)
    tables = ((each, np.stack([each.sketch(one).reshape(-1) for one in ones])) for each in sketches)
    sketch = next(each for each, table in tables if (table @ table.T == 3 * ones).all())
    server, error = baselines.HeavyHitters(sketch, 2), np.zeros(12)
    for number in range(8):
        update = np.round(8 * np.sin(np.arange(12) * (number + 2))) / 16
        error = error + update
        step = np.zeros(12)
        largest = np.argsort(-np.abs(error), kind="stable")[:2]
        step[largest] = error[largest]
        error = error - step
        assert (
            server.step(ideal_aggregate(sketch.layout, [sketch.encode(update, InsecureSeededCoins(b"none"))])) == step
        ).all()


def test_what_a_sketch_leaves_over_comes_out_in_later_rounds(baselines: Any) -> None:
    """Without the memory every round takes the same step; with it, omitted coordinates follow."""
    update = np.zeros((1, VALUES), np.float32)
    update[0, :800] = 0.01
    steps = [decoded(baselines.fetched, np.repeat(update, CLIENTS, axis=0), epoch) for epoch in range(2)]
    assert not np.array_equal(steps[0], steps[1])
    assert all(np.count_nonzero(step) <= baselines.EXTRACTED for step in steps)
    assert not np.array_equal(np.flatnonzero(steps[0]), np.flatnonzero(steps[1]))


@pytest.mark.parametrize("name", ["pruned", "fetched", "turned_codewords"])
def test_every_baseline_trains(baselines: Any, toy_run: Make, toy_pieces: Pieced, name: str) -> None:
    protocol = "enclave" if name == "turned_codewords" else "pairwise"
    run = toy_run(f"compression.scheme={baselines.__file__}:{name}", f"secagg.protocol={protocol}")
    played = Run(run, toy_pieces(run))
    before = {tensor: value.copy() for tensor, value in played.parameters.items()}
    records = [played.advance() for _ in range(2)]
    assert all(record.is_compressed for record in records)
    assert any(not np.array_equal(before[tensor], value) for tensor, value in played.parameters.items())


def test_what_is_compared_sends_as_many_bytes_unless_its_name_says_otherwise(baselines: Any) -> None:
    names = {cell.name for cell in baselines.CELLS}
    assert {"none", "sketch 1 bit", "peak 128", "none, 2 clients"} <= names
    for make in (baselines.pruned, baselines.fetched, baselines.turned_codewords):
        scheme = make(values=19_338, cohort=20, seed=bytes(32), epoch=1)
        assert 1_450 < scheme.layout.payload_bytes < 1_750
        assert scheme.capacity >= 20
