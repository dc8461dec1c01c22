"""Speed of the engines on a machine, for the models of the studies, against the machine's limits.

Each time has two lower bounds: the arithmetic of the training steps at the speed of a large matrix product, and the
moved bytes (each client's parameters once in and once out in every step) at the speed of a large copy. Both speeds are
measured. No engine reaches them; they limit the possible gain.

    python benchmarks/training_engines.py --device cuda --json build/training_engines.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Final, cast

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from secagg.errors import InvalidParameters
from secagg.training.configuration import LocalTraining
from secagg.training.engines import ENGINES, cross_entropy, device_named, make_engine, schedule_of, swapped, written_out
from secagg.training.models import initial_parameters, model_factory
from secagg.training.parts import (
    Assignment,
    Engine,
    Examples,
    ModelFactory,
    Stream,
    Tensors,
    generator,
    seed_of,
    torch_seed,
)

_SEED: Final = 0
_REPETITIONS: Final = 3
_PRODUCT_SIDE: Final = {"cpu": 1024, "cuda": 8192}
_COPIED_VALUES: Final = {"cpu": 1 << 24, "cuda": 1 << 28}


@dataclass(frozen=True, slots=True)
class Load:
    """A model, and the numbers of examples of its clients."""

    model: str
    classes: int
    shape: tuple[int, ...]
    vocabulary: int | None
    mean: float
    deviation: float
    least: int
    most: int
    clients: Mapping[str, int]
    """Clients of a round, on a CPU and on an accelerator."""

    @property
    def factory(self) -> ModelFactory:
        """Return the model's factory."""
        return model_factory(self.model, classes=self.classes, shape=self.shape, vocabulary=self.vocabulary)


LOADS: Final[Mapping[str, Load]] = {
    "celeba": Load("simple-conv", 2, (3, 32, 32), None, 20, 7, 5, 35, {"cpu": 16, "cuda": 100}),
    "femnist": Load("resnet18", 62, (1, 28, 28), None, 226, 89, 20, 450, {"cpu": 2, "cuda": 5}),
    "sent140": Load("lstm", 2, (25,), 9931, 14, 10, 2, 60, {"cpu": 16, "cuda": 100}),
    "fashion": Load("stride", 10, (1, 28, 28), None, 60, 21, 16, 166, {"cpu": 20, "cuda": 100}),
}
"""Sizes as in LEAF's sets; the examples are noise, which does not change the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Result of one engine, or the reason of its failure."""

    load: str
    engine: str
    clients_per_second: float | None = None
    arithmetic_share: float | None = None
    """The time at the arithmetic floor, as a share of the time taken."""
    bandwidth_share: float | None = None
    """The time at the bandwidth floor, as a share of the time taken."""
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured speeds of the machine."""

    device: str
    name: str
    operations_per_second: float
    bytes_per_second: float
    torch_version: str = torch.__version__


def measure_machine(device_name: str) -> Machine:
    """Time a large product of matrices and a large copy.

    Raises:
        InvalidParameters: the device does not exist.
    """
    device = device_named(device_name)
    side, values = _PRODUCT_SIDE[device.type], torch.ones(_COPIED_VALUES[device.type], device=device)
    left, copied = torch.ones(side, side, device=device), torch.empty_like(values)
    product = _fastest(lambda: torch.mm(left, left), device)
    copy = _fastest(lambda: copied.copy_(values), device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return Machine(str(device), name, 2 * side**3 / product, 2 * values.nbytes / copy)


def measure_engines(
    load_name: str, machine: Machine, *, engines: Sequence[str] = ENGINES, clients: int | None = None
) -> list[Measured]:
    """Time a round of each engine, with all transfers between device and memory.

    Raises:
        InvalidParameters: there is no such load.
    """
    load = LOADS.get(load_name)
    if load is None:
        raise InvalidParameters(f"there is no load {load_name!r}; the loads are {', '.join(LOADS)}")
    assignments = assignments_of(load, clients or load.clients[torch.device(machine.device).type])
    settings = LocalTraining(batch=32, rate=0.01)
    start = initial_parameters(load.factory, seed_of(_SEED, Stream.MODEL))
    steps = sum(len(schedule_of(assignment, settings, 0).batches) for assignment in assignments)
    examples = sum(len(assignment.examples) for assignment in assignments)
    arithmetic = examples * operations_of_an_example(load) / machine.operations_per_second
    bandwidth = steps * 2 * 4 * sum(value.numel() for value in start.values()) / machine.bytes_per_second
    found = list[Measured]()
    for name in engines:
        try:
            engine = make_engine(name, load.factory, device=machine.device)
            seconds = seconds_of_a_round(engine, start, assignments, settings)
        except InvalidParameters as error:
            found.append(Measured(load=load_name, engine=name, refusal=str(error)))
        except torch.OutOfMemoryError:
            found.append(Measured(load=load_name, engine=name, refusal="there is too little memory on the device"))
        else:
            found.append(
                Measured(
                    load=load_name,
                    engine=name,
                    clients_per_second=len(assignments) / seconds,
                    arithmetic_share=arithmetic / seconds,
                    bandwidth_share=bandwidth / seconds,
                )
            )
    return found


def seconds_of_a_round(
    engine: Engine, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining, rounds: int = 2
) -> float:
    """Return an engine's minimum time for these clients, after a warm-up round."""
    times = list[float]()
    for _ in range(rounds + 1):
        begin = perf_counter()
        for _ in engine.train(start, assignments, settings):
            pass
        times.append(perf_counter() - begin)
    return min(times[1:])


def operations_of_an_example(load: Load) -> int:
    """Count the arithmetic operations of one example's forward and backward pass."""
    # The counter supports matrix products and convolutions, but not an LSTM as one operation.
    model = swapped(load.factory(), written_out)
    examples = _examples(load, 1, torch.Generator().manual_seed(_SEED))
    with FlopCounterMode(display=False) as counter:
        loss = cross_entropy(model(examples.inputs), examples.targets).sum()
        torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True)
    return int(counter.get_total_flops())


def assignments_of(load: Load, clients: int) -> list[Assignment]:
    """Return the work of ``clients`` clients, with the load's distribution of sizes."""
    drawn = generator(seed_of(_SEED, Stream.PARTITION)).normal(load.mean, load.deviation, clients)
    sizes = np.clip(np.rint(drawn), load.least, load.most).astype(np.int64)
    return [
        Assignment(
            client=client,
            examples=_examples(load, int(size), _coins(client)),
            seed=seed_of(_SEED, Stream.TRAINING, client=client),
        )
        for client, size in enumerate(sizes)
    ]


def _coins(client: int) -> torch.Generator:
    return torch.Generator().manual_seed(torch_seed(seed_of(_SEED, Stream.PARTITION, client=client)))


def _examples(load: Load, count: int, coins: torch.Generator) -> Examples:
    targets = torch.randint(load.classes, (count,), generator=coins)
    if load.vocabulary is None:
        return Examples(torch.randn(count, *load.shape, generator=coins), targets)
    return Examples(torch.randint(load.vocabulary, (count, *load.shape), generator=coins), targets)


def _fastest(function: Callable[[], object], device: torch.device) -> float:
    """Return the minimum time of a few calls, after a warm-up call."""
    times = list[float]()
    for _ in range(_REPETITIONS + 1):
        begin = perf_counter()
        function()
        if device.type == "cuda":
            cast("Callable[[torch.device], None]", torch.cuda.synchronize)(device)
        times.append(perf_counter() - begin)
    return min(times[1:])


def table(machine: Machine, found: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of a readable table."""
    yield (
        f"{machine.device} ({machine.name}), torch {machine.torch_version}: {machine.operations_per_second / 1e9:.0f} "
        f"GFLOP/s in a large product, {machine.bytes_per_second / 1e9:.1f} GB/s in a large copy"
    )
    yield f"{'model':<10}{'engine':<12}{'clients/s':>11}{'against sequential':>20}{'arithmetic':>12}{'bandwidth':>11}"
    base = {row.load: row.clients_per_second for row in found if row.engine == "sequential"}
    for row in found:
        line = f"{row.load:<10}{row.engine:<12}"
        if row.clients_per_second is None or row.arithmetic_share is None or row.bandwidth_share is None:
            yield f"{line}  cannot: {row.refusal}"
            continue
        alone = base.get(row.load)
        ratio = "-" if not alone else f"{row.clients_per_second / alone:.2f}"
        yield (
            f"{line}{row.clients_per_second:>11.1f}{ratio:>20}{row.arithmetic_share:>12.1%}{row.bandwidth_share:>11.1%}"
        )
    yield "arithmetic, bandwidth: the time at that floor as a share of the time taken"


def main() -> int:
    """Time each engine with each load, print a table, and write all figures to a file if given."""
    parser = argparse.ArgumentParser(description="Clients per second of every engine, and the floor of the device.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--load", action="append", default=[], help=f"{', '.join(LOADS)} (default: all)")
    parser.add_argument("--engine", action="append", default=[], help="(default: all)")
    parser.add_argument("--clients", type=int, help="number of clients in a round")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for all figures")
    options = parser.parse_args()
    machine = measure_machine(options.device)
    found = [
        row
        for load in options.load or LOADS
        for row in measure_engines(load, machine, engines=options.engine or ENGINES, clients=options.clients)
    ]
    print("\n".join(table(machine, found)))
    if options.json is not None:
        figures = {"machine": asdict(machine), "engines": [asdict(row) for row in found]}
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
