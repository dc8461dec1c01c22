"""The models of the studies: their sizes, inputs and accuracy, and their dropout from keys."""

import numpy as np
import pytest
import torch
from torch import nn

from secagg.errors import InvalidParameters
from secagg.training.engines import Evaluator, WrittenOutLstm
from secagg.training.models import KeyedDropout, dropped, initial_parameters, key_buffers, model_factory
from secagg.training.parts import Examples, torch_seed, torch_seeded

SEED = (1, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "classes", "shape", "vocabulary", "options", "count"),
    [
        ("stride", 10, (1, 28, 28), None, {}, 19_338),
        ("simple-conv", 2, (3, 32, 32), None, {}, 29_282),
        ("resnet18", 62, (1, 28, 28), None, {}, 11_202_046),
        ("resnet18", 62, (3, 28, 28), None, {}, 11_208_318),
        ("lstm", 2, (25,), 9931, {"leftover": 128}, 3_221_360),
        ("lstm", 2, (25,), 5002, {"width": 64, "hidden": 64, "layers": 1, "pooled": 1}, 353_538),
        ("lstm", 97, (12,), 97, {"width": 24, "hidden": 96, "layers": 1}, 58_585),
        ("text-conv", 97, (12,), 97, {}, 56_697),
    ],
)
def test_models_have_the_sizes_of_the_studies(  # noqa: PLR0913, PLR0917 -- a row of the table
    name: str, classes: int, shape: tuple[int, ...], vocabulary: int | None, options: dict[str, float], count: int
) -> None:
    factory = model_factory(name, classes=classes, shape=shape, vocabulary=vocabulary, options=options)
    assert sum(value.numel() for value in initial_parameters(factory, SEED).values()) == count
    inputs = torch.zeros(2, *shape) if vocabulary is None else torch.zeros(2, *shape, dtype=torch.int64)
    assert factory()(inputs).shape == (2, classes)


def test_initial_parameters_follow_from_the_seed_alone() -> None:
    factory = model_factory("stride", classes=10, shape=(1, 28, 28))
    first = initial_parameters(factory, SEED)
    torch.rand(5)
    again, other = initial_parameters(factory, SEED), initial_parameters(factory, (2, 0, 0, 0))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_a_model_that_does_not_take_the_inputs_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="takes images"):
        model_factory("stride", classes=2, shape=(25,), vocabulary=100)
    with pytest.raises(InvalidParameters, match="takes tokens"):
        model_factory("lstm", classes=2, shape=(1, 28, 28))
    with pytest.raises(InvalidParameters, match="stride, simple-conv, resnet18, lstm, text-conv"):
        model_factory("resnet50", classes=2, shape=(1, 28, 28))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_written_out_lstm_computes_what_torch_does(*, batch_first: bool, bias: bool) -> None:
    with torch_seeded(SEED):
        layer = nn.LSTM(5, 4, num_layers=2, batch_first=batch_first, bias=bias)
        inputs = torch.randn(3, 7, 5)
    written = WrittenOutLstm(layer)
    assert [name for name, _ in written.named_parameters()] == [name for name, _ in layer.named_parameters()]
    for found, wanted in zip(flat(written(inputs)), flat(layer(inputs)), strict=True):
        torch.testing.assert_close(found, wanted)


def flat(outputs: tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    return [outputs[0], *outputs[1]]


STRIDE = model_factory("stride", classes=10, shape=(1, 28, 28))


class Given(nn.Module):
    """A model that returns its inputs as scores."""

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


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_rate_under_every_key(rate: float) -> None:
    ones = torch.ones(100, 100)
    for key in (0, 1, 2**31, 2**32 - 1):
        kept = (dropped(ones, torch.tensor(key), rate) > 0).float()
        assert abs(kept.mean().item() - (1 - rate)) < 0.02
        assert kept.mean(0).std().item() < 0.08
        assert kept.mean(1).std().item() < 0.08


def test_what_is_kept_is_scaled_up() -> None:
    shown = dropped(torch.ones(1000), torch.tensor(3), 0.25)
    torch.testing.assert_close(shown[shown > 0], torch.full_like(shown[shown > 0], 1 / 0.75))


def test_keys_and_neighbouring_keys_are_independent() -> None:
    patterns = torch.stack([dropped(torch.ones(10_000), torch.tensor(key), 0.5) > 0 for key in range(8)]).float()
    correlation = torch.corrcoef(patterns)
    assert (correlation - torch.eye(8)).abs().max().item() < 0.05


def test_examples_that_follow_change_nothing() -> None:
    values = torch.ones(8, 3, 5)
    assert torch.equal(dropped(values, torch.tensor(9), 0.3)[:5], dropped(values[:5], torch.tensor(9), 0.3))


def test_a_key_for_each_client_drops_what_the_client_alone_would_drop() -> None:
    keys = torch.tensor([5, 6, 7])
    together = dropped(torch.ones(4, 3, 10), keys[None, :, None], 0.4)
    for place, key in enumerate(keys):
        assert torch.equal(together[:, place], dropped(torch.ones(4, 10), key, 0.4))


def test_nothing_is_dropped_in_evaluation() -> None:
    layer = KeyedDropout(0.5)
    assert torch.equal(layer.eval()(torch.ones(10)), torch.ones(10))
    assert not torch.equal(layer.train()(torch.ones(10)), torch.ones(10))


def test_a_layer_that_stands_in_two_places_has_one_key() -> None:
    layer = KeyedDropout(0.5)
    assert len(key_buffers(torch.nn.ModuleList([layer, layer, KeyedDropout(0.1)]))) == 2
