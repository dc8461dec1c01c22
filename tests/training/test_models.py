"""The models of the studies: their sizes, which the paper's byte counts rest on, and what they take."""

import pytest
import torch
from torch import nn

from secagg.errors import InvalidParameters
from secagg.training.engines import WrittenOutLstm
from secagg.training.models import initial_parameters, model_factory
from secagg.training.parts import torch_seeded

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
