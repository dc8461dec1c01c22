"""How good a model is, over examples and over people."""

import numpy as np
import pytest
import torch
from torch import nn

from secagg.errors import InvalidParameters
from secagg.training.engines import Evaluator
from secagg.training.models import initial_parameters, model_factory
from secagg.training.parts import Examples, torch_seed

STRIDE = model_factory("stride", classes=10, shape=(1, 28, 28))


class Given(nn.Module):
    """A model whose inputs are its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.shift


def right_of(pattern: list[bool]) -> Examples:
    scores = torch.tensor([[1.0, 0.0] if is_right else [0.0, 1.0] for is_right in pattern])
    return Examples(scores, torch.zeros(len(pattern), dtype=torch.int64))


def test_accuracy_and_loss_are_means_over_examples() -> None:
    found = Evaluator(Given, right_of([True, True, False, True])).evaluate({"shift": torch.zeros(2)})
    assert found.accuracy == 0.75
    assert found.loss == pytest.approx(np.log(1 + np.exp(1)) - 0.75)


def test_the_parameters_are_those_that_are_given() -> None:
    evaluator = Evaluator(Given, right_of([True, True]))
    assert evaluator.evaluate({"shift": torch.tensor([0.0, 5.0])}).accuracy == 0
    assert evaluator.evaluate({"shift": torch.zeros(2)}).accuracy == 1


def test_threads_change_no_bit() -> None:
    coins = torch.Generator().manual_seed(torch_seed((3, 0, 0, 0)))
    examples = Examples(torch.randn(1100, 1, 28, 28, generator=coins), torch.randint(10, (1100,), generator=coins))
    parameters = initial_parameters(STRIDE, (3, 0, 0, 0))
    found = [Evaluator(STRIDE, examples, threads=threads).evaluate(parameters) for threads in (1, 2, 3)]
    assert found[0] == found[1] == found[2]


def test_nothing_to_evaluate_on_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="no test examples"):
        Evaluator(Given, Examples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))


def test_nothing_is_dropped_out() -> None:
    model = model_factory("simple-conv", classes=2, shape=(3, 32, 32), options={"dropout": 0.9})
    coins = torch.Generator().manual_seed(torch_seed((3, 0, 0, 0)))
    examples = Examples(torch.randn(20, 3, 32, 32, generator=coins), torch.randint(2, (20,), generator=coins))
    parameters = initial_parameters(model, (3, 0, 0, 0))
    plain = model_factory("simple-conv", classes=2, shape=(3, 32, 32), options={"dropout": 0.0})
    assert Evaluator(model, examples).evaluate(parameters) == Evaluator(plain, examples).evaluate(parameters)
