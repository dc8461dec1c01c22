"""Fixtures of the training tests: a task that takes a second, with its data, model and other parts of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from secagg.training.configuration import Configuration, changed
from secagg.training.engines import Evaluator, make_engine
from secagg.training.parts import Examples
from secagg.training.presets import preset
from secagg.training.records import Accuracy
from secagg.training.rounds import Pieces
from secagg.training.sums import secure_sum
from tests.harness.tutorial import tutorial_scheme

FEATURES, CLASSES = 12, 3


@dataclass(frozen=True)
class ToyData:
    """Points around three centres; every client has a different mixture."""

    name: str = "toy"
    clients: int = 16
    _centres: npt.NDArray[np.float32] = field(
        default_factory=lambda: np.random.default_rng(5).normal(0, 1.5, (CLASSES, FEATURES)).astype(np.float32)
    )

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return np.array([8 + 3 * (number % 5) for number in range(self.clients)], dtype=np.int64)

    def client(self, number: int) -> Examples:
        generator = np.random.default_rng([1, number])
        return self._drawn(generator, int(self.sizes[number]), generator.dirichlet([1.0] * CLASSES))

    def test(self) -> Examples:
        return self._drawn(np.random.default_rng([2]), 200, np.full(CLASSES, 1 / CLASSES))

    def _drawn(self, generator: np.random.Generator, count: int, mixture: npt.NDArray[np.float64]) -> Examples:
        targets = generator.choice(CLASSES, count, p=mixture)
        inputs = self._centres[targets] + generator.normal(0, 1, (count, FEATURES)).astype(np.float32)
        return Examples(torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(targets))


def toy_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 24), torch.nn.ReLU(), torch.nn.Linear(24, CLASSES))


def make_pieces(run: Configuration) -> Pieces:
    data = ToyData()
    tested = Evaluator(toy_model, data.test(), threads=1)

    def evaluate(parameters: Any) -> Accuracy:
        found = tested.evaluate(parameters)
        return Accuracy(accuracy=found.accuracy, loss=found.loss, validation=found.accuracy, held_out=found.accuracy)

    return Pieces(
        data=data,
        factory=toy_model,
        engine=make_engine("threads", toy_model, threads=run.workers or 1),
        sum=secure_sum(run),
        evaluate=evaluate,
        public=lambda: Examples(data.test().inputs[:20], data.test().targets[:20]),
    )


@pytest.fixture
def toy_pieces() -> Callable[[Configuration], Pieces]:
    """Return a function that makes the pieces of a run on the toy task."""
    return make_pieces


@pytest.fixture
def custom(tmp_path: Path) -> str:
    """Return the name of the tutorial's scheme, in a file outside any package."""
    (tmp_path / "my_scheme.py").write_text(tutorial_scheme(), encoding="utf-8")
    return f"{tmp_path / 'my_scheme.py'}:Ternary"


@pytest.fixture
def toy_run() -> Callable[..., Configuration]:
    """Return a function that makes a configuration of the toy task from changes."""

    def make(*changes: str) -> Configuration:
        base = ("rounds=4", "clients_per_round=6", "evaluation.every=2", "workers=1", "local.batch=4", "local.rate=0.1")
        return changed(preset("fashion-none"), ("name=toy", *base, *changes))

    return make
