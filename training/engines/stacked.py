"""Clients trained in one computation with stacked parameters, for accelerators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch
from torch import nn

from secagg.errors import InvalidParameters
from secagg.training.models import key_names
from secagg.training.settings.configuration import LocalTraining
from secagg.training.settings.parts import Assignment, ModelFactory, Tensors, TrainedClient

from .one_by_one import (
    Descent,
    Schedule,
    as_update,
    changes,
    cross_entropy,
    longest_first,
    one_torch_thread,
    refuse_batch_norm,
    schedule_of,
    swapped,
    trainable,
    values_of,
    written_out,
)

Named = Mapping[str, torch.Tensor]
_UNMAPPED: Final = re.compile(r"\bvmap\b|[Bb]atching rule")
"""Torch's message about a model that cannot be mapped."""


@dataclass(frozen=True, slots=True)
class Batches:
    """One step's examples of all clients; the first two axes are clients and examples."""

    inputs: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    """1 for an example and 0 for what fills up."""
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
            is_start: whether all clients have the same parameters, which then come without an axis of clients.
        """
        function = self._shared if is_start else self._own
        try:
            found, (_, totals) = function(parameters, batches.keys, batches.inputs, batches.targets, batches.mask)
        except RuntimeError as error:
            # A device that fails raises this too, and is not a reason to take another engine.
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
            raise InvalidParameters(f"a chunk holds 1 client or more, and {chunk} are asked for")
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
    """Clients that are trained together, those with the most steps first."""

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
            # Where there is nothing to do, a client's own first example fills up, and weighs nothing.
            self._rows[:, client] = begin
            for step, batch in enumerate(schedule.batches):
                self._rows[step, client, : len(batch)] = batch + begin
                self._mask[step, client, : len(batch)] = 1
            self._keys[: len(schedule.batches), client] = schedule.keys
            self._counted[: schedule.first_epoch, client] = 1
            begin += len(assignment.examples)

    def on(self, device: torch.device) -> Iterator[tuple[Batches, torch.Tensor, torch.Tensor]]:
        """Yield each step's examples, which clients have this step, and whose loss is counted."""
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
