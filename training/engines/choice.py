"""Engines by name, and the one that is fastest for a model on the machine at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Final

import torch

from secagg.errors import InvalidParameters
from secagg.training.settings.parts import Assignment, Engine, ModelFactory, Tensors
from secagg.training.settings.sections import LocalTraining

from .one_by_one import PlainModel, SequentialEngine, ThreadsEngine
from .settings import Computing, Loss, cross_entropy, device_named
from .stacked import StackedEngine

ENGINES: Final = ("threads", "sequential", "vmap")
_CHUNK_ON_CPU: Final = 8
_CHUNK_ON_GPU: Final = 64
_ROUNDS: Final = 2
"""How many rounds of each engine are timed, after one that warms up."""


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


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest engine, and what was found of all."""

    engine: Engine
    seconds: Mapping[str, float]
    """Of a round, by the engine's name."""
    refused: Mapping[str, str]
    """Why an engine cannot train this model."""


def fastest_engine(  # noqa: PLR0913 -- what is trained, where, and among what is chosen
    factory: ModelFactory,
    start: Tensors,
    assignments: Sequence[Assignment],
    settings: LocalTraining,
    *,
    device: str = "cpu",
    names: Sequence[str] | None = None,
    chunk: int | None = None,
    bf16: bool = False,
    loss: Loss = cross_entropy,
) -> Choice:
    """Train a round's clients twice with each engine, and return the one that took the least time.

    On a CPU nothing is timed unless ``names`` asks for it: threads win there.

    Raises:
        InvalidParameters: no engine can train this model, or the device is not there.
    """
    if names is None:
        names = ("threads",) if device_named(device).type == "cpu" else ENGINES[1:]
    engines, refused = dict[str, Engine](), dict[str, str]()
    for name in names:
        try:
            engines[name] = make_engine(name, factory, device=device, chunk=chunk, bf16=bf16, loss=loss)
        except InvalidParameters as error:
            refused[name] = str(error)
    if len(engines) == 1 and not refused:
        return Choice(next(iter(engines.values())), {}, {})
    seconds = dict[str, float]()
    for name, engine in engines.items():
        try:
            seconds[name] = seconds_of_a_round(engine, start, assignments, settings)
        except InvalidParameters as error:
            refused[name] = str(error)
        except torch.OutOfMemoryError:
            refused[name] = "there is too little memory on the device; a smaller chunk may fit"
    if not seconds:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise InvalidParameters(f"no engine can train this model on {device}: {reasons}")
    return Choice(engines[min(seconds, key=seconds.__getitem__)], seconds, refused)


def seconds_of_a_round(
    engine: Engine, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining, rounds: int = _ROUNDS
) -> float:
    """Return the least time that an engine takes for these clients, after a round that warms up."""
    times = list[float]()
    for _ in range(rounds + 1):
        begin = perf_counter()
        for _ in engine.train(start, assignments, settings):
            pass
        times.append(perf_counter() - begin)
    return min(times[1:])
