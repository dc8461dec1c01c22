"""Engines train many clients from one model; all give equal updates up to float rounding.

``threads`` and ``sequential`` train each client separately; ``vmap`` trains many clients in one computation with
stacked parameters, for accelerators. All use the same examples in the same order, since a client's schedule follows
from its seed. Torch releases Python's lock while it computes, so threads use all cores without copies between
processes.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Final, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name
from torch import nn

from secagg.errors import InvalidParameters, Reason
from secagg.training.configuration import LocalTraining
from secagg.training.datasets.prepared import Indices
from secagg.training.models import KeyedDropout, key_buffers, key_names
from secagg.training.parts import (
    Assignment,
    Done,
    Engine,
    Examples,
    ModelFactory,
    Seed,
    Tensors,
    TrainedClient,
    Update,
    generator,
)
from secagg.training.records import Accuracy

Given = ParamSpec("Given")
Found = TypeVar("Found")


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each example, for targets that are classes."""
    return F.cross_entropy(scores, targets, reduction="none")


def device_named(name: str) -> torch.device:
    """Return an available device; ``auto`` is the first accelerator, or the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidParameters(f"{name!r} is not a device; use `cpu`, `cuda`, `cuda:1`, or `auto`") from error
    if device.type not in {"cpu", "cuda"}:
        raise InvalidParameters(f"training runs on the CPU and on CUDA; the device is {name!r}")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise InvalidParameters(
            f"the device is {name!r}, but torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices; "
            "install a build of torch for CUDA and its driver, or use the device `cpu`",
            reason=Reason.BACKEND_MISSING,
        )
    return device


@contextmanager
def one_torch_thread() -> Generator[None]:
    """Keep torch from splitting operations, so that rounding does not depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of one client."""

    batches: tuple[Indices, ...]
    """The client's examples of each step."""
    keys: npt.NDArray[np.int64]
    """Keys of each step, one for each layer of dropout."""
    first_epoch: int
    """Number of steps of the first epoch."""


def schedule_of(assignment: Assignment, settings: LocalTraining, dropouts: int) -> Schedule:
    """Shuffle a client's examples for each epoch and cut them into batches; the last may be smaller."""
    count = len(assignment.examples)
    if count == 0:
        raise InvalidParameters(f"client {assignment.client} has no examples; remove such clients from the data")
    if settings.batch < 1 or settings.epochs < 1:
        raise InvalidParameters(f"epochs and batch size must be at least 1; got {settings.epochs} and {settings.batch}")
    coins = generator(assignment.seed)
    batches = list[Indices]()
    for _ in range(settings.epochs):
        order = coins.permutation(count)
        batches += [order[begin : begin + settings.batch] for begin in range(0, count, settings.batch)]
    keys = coins.integers(0, 1 << 32, (len(batches), dropouts), dtype=np.int64)
    return Schedule(tuple(batches), keys, len(batches) // settings.epochs)


def longest_first(schedules: Sequence[Schedule]) -> list[int]:
    """Return the order of training: most work first, ties as assigned."""
    return sorted(range(len(schedules)), key=lambda place: -len(schedules[place].batches))


class Descent:
    """Updates parameters in place by their gradients; keeps the momentum of one client's training.

    Parameters may have a leading axis of clients; the start is then broadcast.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], start: Sequence[torch.Tensor], settings: LocalTraining
    ) -> None:
        self._parameters, self._start, self._settings = parameters, start, settings
        self._momenta = [torch.zeros_like(tensor) for tensor in parameters] if settings.momentum else []

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor], active: torch.Tensor | None = None) -> None:
        """Do one step.

        Args:
            active: in a stack, 1 for each client with this step and 0 for each that is done; a done client never
            continues, so its momentum does not matter.
        """
        settings = self._settings
        for place, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
            direction = gradient
            if settings.weight_decay:
                direction = direction.add(parameter, alpha=settings.weight_decay)
            if settings.proximal:
                direction = direction.add(parameter - self._start[place], alpha=settings.proximal)
            if settings.momentum:
                direction = self._momenta[place].mul_(settings.momentum).add_(direction)
            if active is not None:
                direction = direction * active.reshape(-1, *(1,) * (parameter.ndim - 1))
            parameter.sub_(direction, alpha=settings.rate)


@torch.no_grad()
def changes(
    parameters: Sequence[torch.Tensor], start: Sequence[torch.Tensor], clip: float | None, *, stacked: bool
) -> list[torch.Tensor]:
    """Return the change by training (after minus before), scaled down if its L2 norm is above the limit."""
    found = [parameter - before for parameter, before in zip(parameters, start, strict=True)]
    if clip is None:
        return found
    squares = [(change.flatten(1).square().sum(1) if stacked else change.square().sum()) for change in found]
    factor = (clip / torch.stack(squares).sum(0).sqrt().clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1)
    return [change * (factor.reshape(-1, *(1,) * (change.ndim - 1)) if stacked else factor) for change in found]


def as_update(names: Sequence[str], found: Sequence[torch.Tensor]) -> Update:
    """Return one client's tensors as arrays."""
    arrays = (tensor.float().cpu().numpy() for tensor in found)
    return {name: np.asarray(array, dtype=np.float32) for name, array in zip(names, arrays, strict=True)}


class WrittenOutLstm(nn.Module):
    """Computes the same as ``torch.nn.LSTM``, with parameters of the same names."""

    def __init__(self, layer: nn.LSTM) -> None:
        super().__init__()
        self._layers, self._batch_first = layer.num_layers, layer.batch_first
        for name, parameter in list(layer.named_parameters()):
            self.register_parameter(name, parameter)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        states = inputs if self._batch_first else inputs.transpose(0, 1)
        last = list[tuple[torch.Tensor, torch.Tensor]]()
        for layer in range(self._layers):
            states, state, cell = self._layer(layer, states)
            last.append((state, cell))
        ends = torch.stack([state for state, _ in last]), torch.stack([cell for _, cell in last])
        return states if self._batch_first else states.transpose(0, 1), ends

    def _layer(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        recurrent = self._parameter(f"weight_hh_l{layer}")
        from_inputs = inputs @ self._parameter(f"weight_ih_l{layer}").T
        if f"bias_ih_l{layer}" in self._parameters:
            from_inputs = from_inputs + (self._parameter(f"bias_ih_l{layer}") + self._parameter(f"bias_hh_l{layer}"))
        state = inputs.new_zeros(inputs.shape[0], recurrent.shape[1])
        cell = torch.zeros_like(state)
        states = list[torch.Tensor]()
        for from_input in from_inputs.unbind(1):
            enter, keep, candidate, leave = (from_input + state @ recurrent.T).chunk(4, -1)
            cell = keep.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            state = leave.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, 1), state, cell

    def _parameter(self, name: str) -> torch.Tensor:
        return cast("torch.Tensor", getattr(self, name))


def written_out(layer: nn.Module) -> nn.Module | None:
    """Return a replacement for a unidirectional LSTM; None for other layers."""
    if isinstance(layer, nn.LSTM) and not layer.bidirectional and not layer.proj_size:
        return WrittenOutLstm(layer)
    return None


_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS: Final = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_UNKEYED: Final = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)

Swap = Callable[[nn.Module], nn.Module | None]
"""Returns the replacement of a layer, or None to keep it."""


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every layer with its name."""
    yield from cast("Iterator[tuple[str, nn.Module]]", model.named_modules())


def trainable(factory: ModelFactory) -> nn.Module:
    """Make a model for training, with dropout from keys."""
    model = factory()
    for name, layer in layers_of(model):
        if isinstance(layer, (*_BATCH_NORMS, *_INSTANCE_NORMS)) and layer.track_running_stats:
            raise InvalidParameters(
                f"the layer {_shown(name, layer)} keeps running statistics, which are not parameters and would never "
                "reach the server; use GroupNorm, or pass track_running_stats=False"
            )
        if isinstance(layer, _UNKEYED) or (isinstance(layer, nn.RNNBase) and layer.dropout > 0):
            raise InvalidParameters(
                f"the layer {_shown(name, layer)} draws from torch's own generator, which clients share, so runs "
                "could not be repeated; use torch.nn.Dropout instead"
            )
    model = swapped(model, lambda layer: KeyedDropout(layer.p) if isinstance(layer, nn.Dropout) else None)
    return model.train()


def refuse_batch_norm(model: nn.Module, engine: str) -> None:
    """Refuse a layer that mixes the examples of a batch, for engines that pad batches."""
    for name, layer in layers_of(model):
        if isinstance(layer, _BATCH_NORMS):
            raise InvalidParameters(
                f"the engine {engine} pads batches, but the layer {_shown(name, layer)} would mix the padding into "
                "its statistics; use GroupNorm, or the engine `threads` or `sequential`"
            )


def swapped(model: nn.Module, swap: Swap) -> nn.Module:
    """Return a copy of a model with some layers replaced; a layer used twice stays shared."""
    copy = deepcopy(model)
    made = dict[int, nn.Module | None]()

    def replacement(layer: nn.Module) -> nn.Module | None:
        if id(layer) not in made:
            made[id(layer)] = swap(layer)
        return made[id(layer)]

    whole = replacement(copy)
    if whole is not None:
        return whole
    # Without duplicates, the second use would keep the old layer.
    places = cast("Iterator[tuple[str, nn.Module]]", copy.named_modules(remove_duplicate=False))
    for name, layer in list(places):
        new = replacement(layer)
        if new is not None:
            parent, _, own = name.rpartition(".")
            setattr(copy.get_submodule(parent), own, new)
    return copy


def values_of(model: nn.Module, start: Tensors, device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of ``start`` in the order of a model's parameters, on a device."""
    names = [name for name, _ in model.named_parameters()]
    if set(names) != set(start):
        odd = sorted(set(names) ^ set(start))
        raise InvalidParameters(f"the start does not fit this engine's model: they differ in {', '.join(odd)}")
    return [start[name].detach().to(device) for name in names]


def _shown(name: str, layer: nn.Module) -> str:
    return f"{name or 'itself'} ({type(layer).__name__})"


_CPU: Final = torch.device("cpu")
_AHEAD: Final = 2
"""Maximum number of trained clients that wait, for each thread."""


class PlainModel:
    """One model in memory, which trains one client at a time with plain torch."""

    def __init__(self, factory: ModelFactory, device: torch.device = _CPU) -> None:
        self._model = trainable(factory).to(device)
        self._device = device
        self._names = [name for name, _ in self._model.named_parameters()]
        self._parameters = list(self._model.parameters())
        self._keys = key_buffers(self._model)
        self.dropouts = len(self._keys)
        """Number of layers of dropout."""

    def train(
        self, start: Tensors, assignment: Assignment, schedule: Schedule, settings: LocalTraining
    ) -> TrainedClient:
        device = self._device
        before = values_of(self._model, start, device)
        with torch.no_grad():
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.copy_(value)
        inputs, targets = assignment.examples.inputs.to(device), assignment.examples.targets.to(device)
        descent = Descent(self._parameters, before, settings)
        total = torch.zeros((), device=device)
        for step, batch in enumerate(schedule.batches):
            chosen = torch.as_tensor(batch, device=device)
            for buffer, key in zip(self._keys, schedule.keys[step].tolist(), strict=True):
                buffer.fill_(key)
            losses = cross_entropy(self._model(inputs[chosen]), targets[chosen])
            descent.step(torch.autograd.grad(losses.mean(), self._parameters, materialize_grads=True))
            if step < schedule.first_epoch:
                total += losses.detach().sum()
        found = changes(self._parameters, before, settings.clip, stacked=False)
        count = len(assignment.examples)
        return TrainedClient(
            client=assignment.client, update=as_update(self._names, found), examples=count, loss=float(total) / count
        )


class SequentialEngine:
    """Trains one client after the other."""

    name = "sequential"

    def __init__(self, model: PlainModel) -> None:
        self._model = model

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        schedules = [schedule_of(assignment, settings, self._model.dropouts) for assignment in assignments]
        with one_torch_thread():
            for place in longest_first(schedules):
                yield self._model.train(start, assignments[place], schedules[place], settings)


class ThreadsEngine:
    """Trains several clients at once, each in a thread."""

    name = "threads"

    def __init__(self, model: Callable[[], PlainModel], threads: int | None = None) -> None:
        """Make a model for each thread; by default one thread for each core."""
        count = cores() if threads is None else threads
        if count < 1:
            raise InvalidParameters(f"the engine needs at least 1 thread; got {count}")
        made = [model() for _ in range(count)]
        self._count, self._dropouts = count, made[0].dropouts
        self._idle = SimpleQueue[PlainModel]()
        for each in made:
            self._idle.put(each)

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``; a client's error ends the round."""
        return self.train_and_finish(start, assignments, settings, lambda trained: trained)

    def train_and_finish(
        self,
        start: Tensors,
        assignments: Sequence[Assignment],
        settings: LocalTraining,
        finish: Callable[[TrainedClient], Done],
    ) -> Iterator[Done]:
        schedules = [schedule_of(assignment, settings, self._dropouts) for assignment in assignments]

        def work(place: int) -> Done:
            model = self._idle.get()
            try:
                return finish(model.train(start, assignments[place], schedules[place], settings))
            finally:
                self._idle.put(model)

        with one_torch_thread():
            yield from _in_order(work, longest_first(schedules), self._count)


def _in_order(work: Callable[[int], Done], places: Sequence[int], threads: int) -> Generator[Done]:
    """Work a few clients ahead of the consumer, and yield in order, so that float sums are reproducible."""
    # The number of threads of an operation is set in each thread.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    waiting = deque[Future[Done]]()
    try:
        for place in places:
            if len(waiting) == _AHEAD * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(work, place))
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_BATCH: Final = 500
"""Fixed, because results' last digits depend on it."""


class Evaluator:
    """Evaluates models of one kind repeatedly on the same examples."""

    def __init__(
        self, factory: ModelFactory, examples: Examples, *, device: str = "cpu", threads: int | None = None
    ) -> None:
        if len(examples) == 0:
            raise InvalidParameters("there are no test examples to evaluate on")
        self._device = device_named(device)
        self._model = factory().to(self._device).eval()
        self._inputs, self._targets = examples.inputs.to(self._device), examples.targets.to(self._device)
        # One thread keeps an accelerator busy.
        self._threads = 1 if self._device.type != "cpu" else cores() if threads is None else threads

    def evaluate(self, parameters: Mapping[str, torch.Tensor]) -> Accuracy:
        """Evaluate the model with these parameters; the result does not depend on the number of threads."""
        with torch.no_grad():
            values = values_of(self._model, parameters, self._device)
            for parameter, value in zip(self._model.parameters(), values, strict=True):
                parameter.copy_(value)
        begins = range(0, len(self._targets), _BATCH)
        with (
            one_torch_thread(),
            ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,)) as pool,
        ):
            pieces = list(pool.map(self._batch, begins))
        is_right = np.concatenate([right for right, _ in pieces])
        losses = np.concatenate([loss for _, loss in pieces])
        return Accuracy(accuracy=float(is_right.mean()), loss=float(losses.mean(dtype=np.float64)))

    @torch.no_grad()
    def _batch(self, begin: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        targets = self._targets[begin : begin + _BATCH]
        scores: torch.Tensor = self._model(self._inputs[begin : begin + _BATCH])
        losses = cross_entropy(scores, targets).float()
        return np.asarray((scores.argmax(1) == targets).cpu()), np.asarray(losses.cpu())


# --- The harm of a code's noise -------------------------------------------------------------------------------------

_EXAMPLES: Final = 60
"""Maximum number of examples of a client."""
_PROBED: Final = 2000

Arrays = Mapping[str, npt.NDArray[np.float32]]


class Probe:
    """Evaluates clients' losses at a model, and at the model with noise added and subtracted."""

    def __init__(self, factory: ModelFactory, device: str) -> None:
        self._device = device_named(device)
        self._model = factory().to(self._device).eval()

    def losses(
        self, parameters: Arrays, noise: Arrays, work: Sequence[Assignment], seed: Callable[[int], Seed]
    ) -> dict[int, npt.NDArray[np.float32]]:
        """Return three mean losses of each client, on some of its examples.

        Args:
            seed: returns the seed with which a client chooses its examples.
        """
        chosen = [
            one.examples.at(generator(seed(one.client)).permutation(len(one.examples))[:_EXAMPLES]) for one in work
        ]
        inputs = torch.cat([some.inputs for some in chosen])
        targets = torch.cat([some.targets for some in chosen])
        counts = np.array([len(some) for some in chosen])
        told = list[npt.NDArray[np.float64]]()
        for sign in (np.float32(0), np.float32(1), np.float32(-1)):
            tried = {name: (value + sign * noise[name]).astype(np.float32) for name, value in parameters.items()}
            each = self._each(tried, inputs, targets)
            told.append(np.add.reduceat(each, np.cumsum(counts) - counts) / counts)
        by_client = np.stack(told, axis=1).astype(np.float32)
        return {one.client: mine for one, mine in zip(work, by_client, strict=True)}

    @torch.no_grad()
    def _each(self, parameters: Arrays, inputs: torch.Tensor, targets: torch.Tensor) -> npt.NDArray[np.float64]:
        """Return the loss of each example."""
        on_device = {name: torch.as_tensor(value, device=self._device) for name, value in parameters.items()}
        found = list[npt.NDArray[np.float64]]()
        for begin in range(0, len(targets), _PROBED):
            some = inputs[begin : begin + _PROBED].to(self._device)
            scores = torch.func.functional_call(self._model, on_device, (some,))
            losses = cross_entropy(scores, targets[begin : begin + _PROBED].to(self._device))
            found.append(losses.double().cpu().numpy())
        return np.concatenate(found)


# --- Many clients at once ---------------------------------------------------------------------------------------------

Named = Mapping[str, torch.Tensor]
_UNMAPPED: Final = re.compile(r"\bvmap\b|[Bb]atching rule")
"""Torch's message about a model that cannot be mapped."""


@dataclass(frozen=True, slots=True)
class Batches:
    """One step's examples of all clients; the first two axes are clients and examples."""

    inputs: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    """1 for an example and 0 for padding."""
    keys: torch.Tensor
    """Keys of each client, one for each layer of dropout."""


_Gradient = Callable[
    [Named, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[Named, tuple[object, torch.Tensor]]
]


class Mapped:
    """Torch's vmap over the gradient of one client."""

    def __init__(self, model: nn.Module) -> None:
        self._model = swapped(model, written_out)
        self._key_names = key_names(model)
        gradient = torch.func.grad_and_value(self._mean_loss, has_aux=True)
        self._own = cast("_Gradient", torch.vmap(gradient, (0, 0, 0, 0, 0)))
        self._shared = cast("_Gradient", torch.vmap(gradient, (None, 0, 0, 0, 0)))

    def gradients(self, parameters: Named, batches: Batches, *, is_start: bool) -> tuple[Named, torch.Tensor]:
        """Return the clients' gradients, and the sum of each one's losses.

        Args:
            is_start: whether all clients share parameters, which then have no axis of clients.
        """
        function = self._shared if is_start else self._own
        try:
            found, (_, totals) = function(parameters, batches.keys, batches.inputs, batches.targets, batches.mask)
        except RuntimeError as error:
            # A failing device raises this too, but does not justify another engine.
            if not _UNMAPPED.search(str(error)):
                raise
            raise InvalidParameters(
                f"torch.vmap cannot map this model over clients ({_first_line(error)}); use another engine"
            ) from error
        return found, totals

    def _mean_loss(
        self, parameters: Named, keys: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values = {**parameters, **dict(zip(self._key_names, keys.unbind(), strict=True))}
        losses = cross_entropy(torch.func.functional_call(self._model, values, (inputs,)), targets)
        total = (losses * mask).sum()
        return total / mask.sum().clamp(min=1), total.detach()


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class StackedEngine:
    """Trains chunks of clients, each chunk in one computation."""

    name = "vmap"

    def __init__(self, factory: ModelFactory, device: torch.device, *, chunk: int) -> None:
        if chunk < 1:
            raise InvalidParameters(f"a chunk needs at least 1 client; got {chunk}")
        self._device, self._chunk_size = device, chunk
        self._model = trainable(factory).to(device)
        refuse_batch_norm(self._model, self.name)
        self._names = [parameter for parameter, _ in self._model.named_parameters()]
        self._dropouts = len(key_names(self._model))
        self._mapped = Mapped(self._model)

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        schedules = [schedule_of(assignment, settings, self._dropouts) for assignment in assignments]
        order = longest_first(schedules)
        with one_torch_thread():
            for begin in range(0, len(order), self._chunk_size):
                places = order[begin : begin + self._chunk_size]
                chunk = _Chunk([assignments[place] for place in places], [schedules[place] for place in places])
                yield from self._train(start, chunk, settings)

    def _train(self, start: Tensors, chunk: _Chunk, settings: LocalTraining) -> Iterator[TrainedClient]:
        device, clients = self._device, len(chunk.assignments)
        before = values_of(self._model, start, device)
        parameters = [value.expand(clients, *value.shape).clone() for value in before]
        descent = Descent(parameters, before, settings)
        totals = torch.zeros(clients, device=device)
        steps = chunk.on(device)
        for number, (batches, is_active, is_counted) in enumerate(steps):
            own = dict(zip(self._names, parameters if number else before, strict=True))
            gradients, losses = self._mapped.gradients(own, batches, is_start=number == 0)
            descent.step([gradients[name] for name in self._names], is_active)
            totals += losses * is_counted
        sums = [float(total) for total in totals.cpu()]
        found = [change.float().cpu() for change in changes(parameters, before, settings.clip, stacked=True)]
        for place, (assignment, total) in enumerate(zip(chunk.assignments, sums, strict=True)):
            update = as_update(self._names, [change[place] for change in found])
            count = len(assignment.examples)
            yield TrainedClient(client=assignment.client, update=update, examples=count, loss=total / count)


class _Chunk:
    """Clients that are trained together, most steps first."""

    def __init__(self, assignments: Sequence[Assignment], schedules: Sequence[Schedule]) -> None:
        self.assignments = assignments
        steps = len(schedules[0].batches)
        size = max(len(batch) for schedule in schedules for batch in schedule.batches)
        self._rows = np.zeros((steps, len(schedules), size), dtype=np.int64)
        self._mask = np.zeros(self._rows.shape, dtype=np.float32)
        self._keys = np.zeros((steps, len(schedules), schedules[0].keys.shape[1]), dtype=np.int64)
        self._counted = np.zeros((steps, len(schedules)), dtype=np.float32)
        begin = 0
        for client, (assignment, schedule) in enumerate(zip(assignments, schedules, strict=True)):
            # A client's first example is the padding, with weight 0.
            self._rows[:, client] = begin
            for step, batch in enumerate(schedule.batches):
                self._rows[step, client, : len(batch)] = batch + begin
                self._mask[step, client, : len(batch)] = 1
            self._keys[: len(schedule.batches), client] = schedule.keys
            self._counted[: schedule.first_epoch, client] = 1
            begin += len(assignment.examples)

    def on(self, device: torch.device) -> Iterator[tuple[Batches, torch.Tensor, torch.Tensor]]:
        """Yield each step's examples, the clients with this step, and the clients whose loss counts."""
        inputs = torch.cat([assignment.examples.inputs.to(device) for assignment in self.assignments])
        targets = torch.cat([assignment.examples.targets.to(device) for assignment in self.assignments])
        arrays = (self._rows, self._mask, self._keys, self._counted)
        rows, mask, keys, counted = (torch.as_tensor(array, device=device) for array in arrays)
        for step in range(len(rows)):
            chosen, shape = rows[step].flatten(), rows.shape[1:]
            step_inputs, step_targets = _by_client(inputs[chosen], shape), _by_client(targets[chosen], shape)
            batches = Batches(step_inputs, step_targets, mask[step], keys[step])
            yield batches, mask[step].amax(1), counted[step]


def _by_client(values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return values.reshape(*shape, *values.shape[1:])


__all__ = ["ENGINES", "cross_entropy", "device_named", "make_engine"]
ENGINES: Final = ("threads", "sequential", "vmap")
_CHUNK_ON_CPU: Final = 8
_CHUNK_ON_GPU: Final = 64


def make_engine(
    name: str, factory: ModelFactory, *, device: str = "cpu", threads: int | None = None, chunk: int | None = None
) -> Engine:
    """Return an engine by its name.

    Args:
        threads: number of clients that ``threads`` trains at once; by default the number of cores.
        chunk: number of clients that ``vmap`` trains at once.
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
            raise InvalidParameters(f"unknown engine {name!r}; the engines are {', '.join(ENGINES)}")
