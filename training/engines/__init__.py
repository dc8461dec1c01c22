"""Engines train many clients from one model; all give the same updates but for float rounding.

``threads`` and ``sequential`` train one client after the other in the ordinary way; ``vmap`` trains many clients in one
computation. All take the same examples in the same order, since a client's schedule follows from its seed.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from secagg.errors import InvalidParameters
from secagg.training.settings.parts import Engine, ModelFactory

from .one_by_one import PlainModel, SequentialEngine, ThreadsEngine, cross_entropy, device_named
from .stacked import StackedEngine

__all__ = ["ENGINES", "cross_entropy", "device_named", "make_engine"]
ENGINES: Final = ("threads", "sequential", "vmap")
_CHUNK_ON_CPU: Final = 8
_CHUNK_ON_GPU: Final = 64


def make_engine(
    name: str,
    factory: ModelFactory,
    *,
    device: str = "cpu",
    threads: int | None = None,
    chunk: int | None = None,
) -> Engine:
    """Return an engine by its name.

    Args:
        threads: how many clients ``threads`` trains at once; by default as many as there are cores.
        chunk: how many clients ``vmap`` trains at once.
    """
    on = device_named(device)
    size = chunk if chunk is not None else _CHUNK_ON_CPU if on.type == "cpu" else _CHUNK_ON_GPU

    match name:
        case "threads":
            return ThreadsEngine(partial(PlainModel, factory, on), threads)
        case "sequential":
            return SequentialEngine(PlainModel(factory, on))
        case "vmap":
            return StackedEngine(factory, on, chunk=size)
        case _:
            raise InvalidParameters(f"there is no engine {name!r}; the engines are {', '.join(ENGINES)}")
