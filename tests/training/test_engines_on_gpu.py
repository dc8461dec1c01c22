"""Engines give the same results on an accelerator as on a CPU."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
import torch

from secagg.training.configuration import LocalTraining
from secagg.training.engines import ENGINES, Evaluator, make_engine
from secagg.training.models import initial_parameters, model_factory
from secagg.training.parts import Assignment, Engine, Examples, ModelFactory, Stream, seed_of, torch_seed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

SETTINGS = LocalTraining(epochs=2, batch=8, rate=0.05, momentum=0.9, weight_decay=0.01, proximal=0.1, clip=0.3)
IMAGES: Mapping[str, tuple[int, ...]] = {"stride": (1, 28, 28), "simple-conv": (3, 32, 32), "resnet18": (1, 28, 28)}


def in_double(name: str) -> ModelFactory:
    made = model_factory(name, classes=3, shape=IMAGES[name])
    return lambda: made().double()


def work(shape: tuple[int, ...]) -> list[Assignment]:
    drawn = list[Assignment]()
    for client, size in enumerate((9, 4, 17)):
        seed = seed_of(5, Stream.TRAINING, client=client)
        coins = torch.Generator().manual_seed(torch_seed(seed))
        inputs = torch.randn(size, *shape, generator=coins).double()
        examples = Examples(inputs, torch.randint(3, (size,), generator=coins))
        drawn.append(Assignment(client=client, examples=examples, seed=seed))
    return drawn


def updates(engine: Engine, factory: ModelFactory, assignments: list[Assignment]) -> npt.NDArray[np.float32]:
    found = {client.client: client.update for client in engine.train(start_of(factory), assignments, SETTINGS)}
    return np.concatenate([found[client][name].ravel() for client in sorted(found) for name in sorted(found[client])])


def start_of(factory: ModelFactory) -> dict[str, torch.Tensor]:
    return initial_parameters(factory, seed_of(5, Stream.MODEL))


@pytest.mark.parametrize("model", IMAGES)
@pytest.mark.parametrize("name", ENGINES)
def test_engines_agree_with_the_cpu(name: str, model: str) -> None:
    factory, assignments = in_double(model), work(IMAGES[model])
    wanted = updates(make_engine("sequential", factory), factory, assignments)
    found = updates(make_engine(name, factory, device="cuda", chunk=2), factory, assignments)
    assert np.isclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max()).mean() >= 0.999


def test_an_evaluation_agrees_with_the_cpu() -> None:
    factory, examples = in_double("stride"), work(IMAGES["stride"])[2].examples
    on_cpu, on_gpu = (Evaluator(factory, examples, device=name).evaluate(start_of(factory)) for name in ("cpu", "cuda"))
    assert on_gpu.accuracy == on_cpu.accuracy
    assert on_gpu.loss == pytest.approx(on_cpu.loss, rel=1e-5)
