"""One client after the other, in batches of one size: for CUDA graphs and torch.compile, which want fixed shapes.

A sequence of small operations costs a GPU less than starting them costs Python; a graph starts all of a step at once.
On the CPU the same step runs without a graph.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from secagg.errors import InvalidParameters
from secagg.training.models.keyed_dropout import key_buffers
from secagg.training.settings.parts import Assignment, Examples, ModelFactory, Tensors, TrainedClient
from secagg.training.settings.sections import LocalTraining

from .descent import Descent, as_update, changes
from .schedule import Schedule
from .settings import Computing
from .suitability import refuse_batch_norm, trainable, values_of

_WARM_UP: Final = 3
"""How many steps libraries take to settle on what they do; a graph is recorded after them."""


class PaddedModel:
    """Trains with batches that are filled up, and weighs what fills them with 0."""

    def __init__(self, factory: ModelFactory, computing: Computing, *, engine: str) -> None:
        self._model = trainable(factory).to(computing.device)
        refuse_batch_norm(self._model, engine)
        self._computing = computing
        self._names = [name for name, _ in self._model.named_parameters()]
        self.dropouts = len(key_buffers(self._model))
        self._step: _FixedStep | None = None

    def train(
        self, start: Tensors, assignment: Assignment, schedule: Schedule, settings: LocalTraining
    ) -> TrainedClient:
        """Train one client."""
        device = self._computing.device
        before = values_of(self._model, start, device)
        examples = Examples(assignment.examples.inputs.to(device), assignment.examples.targets.to(device))
        if self._step is None or not self._step.fits(settings, examples):
            self._step = _FixedStep(self._model, self._computing, settings, examples)
        step = self._step
        step.begin(before)
        for number, batch in enumerate(schedule.batches):
            chosen = torch.as_tensor(batch, device=device)
            batch_of = Examples(examples.inputs[chosen], examples.targets[chosen])
            step.take(batch_of, schedule.keys[number].tolist(), counts=number < schedule.first_epoch)
        found = changes(step.parameters, before, settings.clip, stacked=False)
        count = len(examples)
        loss = float(step.total) / count
        return TrainedClient(client=assignment.client, update=as_update(self._names, found), examples=count, loss=loss)


class _FixedStep:
    """One step with everything it reads and writes at a fixed place."""

    def __init__(
        self, model: torch.nn.Module, computing: Computing, settings: LocalTraining, examples: Examples
    ) -> None:
        self._settings, self._computing = settings, computing
        self._model = computing.prepared(partial(_outputs, model))
        self.parameters = list(model.parameters())
        self._keys = key_buffers(model)
        self._inputs = examples.inputs.new_zeros((settings.batch, *examples.inputs.shape[1:]))
        self._targets = examples.targets.new_zeros((settings.batch, *examples.targets.shape[1:]))
        self._mask = torch.zeros(settings.batch, device=computing.device)
        self._counts = torch.zeros((), device=computing.device)
        self.total = torch.zeros((), device=computing.device)
        self._start = [parameter.detach().clone() for parameter in self.parameters]
        self._descent = Descent(self.parameters, self._start, settings)
        self._graph = self._captured() if computing.device.type == "cuda" else None

    def fits(self, settings: LocalTraining, examples: Examples) -> bool:
        """Return whether the step was made for such training and such examples."""
        return (
            settings == self._settings
            and examples.inputs.shape[1:] == self._inputs.shape[1:]
            and examples.inputs.dtype == self._inputs.dtype
        )

    @torch.no_grad()
    def begin(self, start: list[torch.Tensor]) -> None:
        """Begin the training of a client."""
        for parameter, kept, value in zip(self.parameters, self._start, start, strict=True):
            parameter.copy_(value)
            kept.copy_(value)
        self._descent.forget()
        self.total.zero_()

    def take(self, batch: Examples, keys: list[int], *, counts: bool) -> None:
        """Make one step; ``counts`` says whether its loss is reported."""
        size = len(batch)
        self._inputs[:size].copy_(batch.inputs)
        self._targets[:size].copy_(batch.targets)
        self._mask.zero_()[:size].fill_(1)
        self._counts.fill_(float(counts))
        for buffer, key in zip(self._keys, keys, strict=True):
            buffer.fill_(key)
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _run(self) -> None:
        with self._computing.precision():
            losses = self._computing.loss(self._model(self._inputs), self._targets) * self._mask
        mean = losses.sum() / self._mask.sum().clamp(min=1)
        self._descent.step(torch.autograd.grad(mean, self.parameters, materialize_grads=True))
        self.total += losses.detach().sum() * self._counts

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Record the step; whatever the steps before changed, ``begin`` sets anew."""
        self._mask.fill_(1)
        side = torch.cuda.Stream(self._computing.device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._computing.device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._run()
        torch.cuda.current_stream(self._computing.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise InvalidParameters(
                "the model does what a CUDA graph cannot record, such as asking the device for a value; "
                f"use another engine ({error})"
            ) from error
        return graph


def _outputs(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    outputs: torch.Tensor = model(inputs)
    return outputs
