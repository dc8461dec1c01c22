"""Engines by name."""

from __future__ import annotations

from functools import partial
from typing import Final

from secagg.errors import InvalidParameters
from secagg.training.settings.parts import Engine, ModelFactory

from .one_by_one import PlainModel, SequentialEngine, ThreadsEngine
from .settings import Computing, Loss, cross_entropy, device_named
from .stacked import StackedEngine

ENGINES: Final = ("threads", "sequential", "vmap")
_CHUNK_ON_CPU: Final = 8
_CHUNK_ON_GPU: Final = 64


def make_engine(  # noqa: PLR0913 -- what a configuration says of an engine
    name: str,
    factory: ModelFactory,
    *,
    device: str = "cpu",
    threads: int | None = None,
    chunk: int | None = None,
    bf16: bool = False,
    loss: Loss = cross_entropy,
) -> Engine:
    """Return an engine by its name.

    Args:
        threads: how many clients ``threads`` trains at once; by default as many as there are cores.
        chunk: how many clients ``vmap`` trains at once.
        bf16: run models in bfloat16, which changes results.

    Raises:
        InvalidParameters: there is no such engine or device, or the engine cannot train this model.
    """
    computing = Computing(device=device_named(device), is_bf16=bf16, loss=loss)
    size = chunk if chunk is not None else _CHUNK_ON_CPU if computing.device.type == "cpu" else _CHUNK_ON_GPU

    match name:
        case "threads":
            return ThreadsEngine(partial(PlainModel, factory, computing), threads)
        case "sequential":
            return SequentialEngine(PlainModel(factory, computing))
        case "vmap":
            return StackedEngine(factory, computing, chunk=size)
        case _:
            raise InvalidParameters(f"there is no engine {name!r}; the engines are {', '.join(ENGINES)}")
