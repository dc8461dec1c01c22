"""Many runs in lockstep: each run has a thread, and one stacked computation trains the clients of all runs.

The time of a round of small clients on a GPU is Python's time to launch the kernels, for one run or thirty. Runs in
lockstep share this cost: each thread submits its clients, and the last one trains all of them, from each run's own
model. Steps are captured as a CUDA graph if possible. Everything else of a run is the library's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from secagg.training.configuration import LocalTraining
from secagg.training.engines import Batches, Descent, Mapped, changes, device_named, schedule_of, trainable
from secagg.training.parts import Assignment, Examples, FederatedData, ModelFactory, Tensors, TrainedClient

GRAPHS = True
"""Whether steps are captured."""


class Kept:
    """Data whose examples are made once, and stored contiguously on the device."""

    def __init__(self, data: FederatedData, device: str) -> None:
        self._data, self.name, self.sizes = data, data.name, data.sizes
        self._clients = [data.client(number) for number in range(len(data.sizes))]
        self.inputs = torch.cat([one.inputs for one in self._clients]).to(device)
        self.targets = torch.cat([one.targets for one in self._clients]).to(device)
        self.begins = np.cumsum(data.sizes) - data.sizes

    def client(self, number: int) -> Examples:
        """Return the training examples of a client."""
        return self._clients[number]

    def test(self) -> Examples:
        """Return the test examples."""
        return self._data.test()


@dataclass(slots=True)
class Work:
    """The clients that one run submits."""

    start: Tensors
    assignments: Sequence[Assignment]
    data: Kept
    trained: list[TrainedClient] = field(default_factory=list[TrainedClient])


class Lockstep:
    """Trains the clients of many runs; ``join`` gives each run its engine."""

    def __init__(self, factory: ModelFactory, settings: LocalTraining, device: str) -> None:
        self._device, self._settings = device_named(device), settings
        self._model = trainable(factory).to(self._device)
        self._names = [name for name, _ in self._model.named_parameters()]
        self._mapped = Mapped(self._model)
        self._turn = threading.Condition()
        self._members, self._due, self._number = 0, list[Work](), 0
        self._graphs = dict[Any, Any]()
        self._error: BaseException | None = None

    def join(self, data: Kept) -> Member:
        """Return the engine of one more run."""
        self._members += 1
        return Member(self, data)

    def leave(self) -> None:
        """Remove a run, and let the others continue."""
        with self._turn:
            self._members -= 1
            self._play_if_whole()

    def hand_in(self, work: Work) -> list[TrainedClient]:
        """Wait until every run has submitted, and return this run's trained clients."""
        with self._turn:
            number = self._number
            self._due.append(work)
            self._play_if_whole()
            self._turn.wait_for(lambda: self._number != number)
            if self._error is not None:
                raise RuntimeError("training in lockstep failed") from self._error
        return work.trained

    def _play_if_whole(self) -> None:
        if not self._due or len(self._due) < self._members:
            return
        try:
            self._train(self._due)
        except BaseException as error:  # noqa: BLE001 -- every thread raises it
            self._error = error
        self._due, self._number = [], self._number + 1
        self._turn.notify_all()

    def _train(self, due: Sequence[Work]) -> None:
        begins, inputs, targets, offset = dict[int, int](), list[torch.Tensor](), list[torch.Tensor](), 0
        for work in due:
            if id(work.data) not in begins:
                begins[id(work.data)] = offset
                inputs.append(work.data.inputs)
                targets.append(work.data.targets)
                offset += len(work.data.targets)
        everything = self._everything(tuple(begins), inputs, targets)
        named = [(work, one) for work in due for one in work.assignments]
        schedules = [schedule_of(one, self._settings, 0) for _, one in named]
        steps, size = max(len(one.batches) for one in schedules), self._settings.batch
        rows = np.zeros((steps, len(named), size), dtype=np.int64)
        mask = np.zeros(rows.shape, dtype=np.float32)
        for place, ((work, one), schedule) in enumerate(zip(named, schedules, strict=True)):
            begin = begins[id(work.data)] + int(work.data.begins[one.client])
            rows[:, place] = begin
            for step, batch in enumerate(schedule.batches):
                rows[step, place, : len(batch)] = batch + begin
                mask[step, place, : len(batch)] = 1
        counts = [len(work.assignments) for work in due]
        start = [
            torch.cat(
                [
                    work.start[name].to(self._device).unsqueeze(0).expand(count, *work.start[name].shape)
                    for work, count in zip(due, counts, strict=True)
                ]
            )
            for name in self._names
        ]
        parameters, totals = self._stepped(start, everything, rows, mask)
        found = [
            change.float().cpu().numpy() for change in changes(parameters, start, self._settings.clip, stacked=True)
        ]
        losses: list[float] = totals.cpu().numpy().tolist()
        place = 0
        for work in due:
            for one in work.assignments:
                count = len(one.examples)
                update = {name: change[place] for name, change in zip(self._names, found, strict=True)}
                work.trained.append(
                    TrainedClient(client=one.client, update=update, examples=count, loss=losses[place] / count)
                )
                place += 1

    def _everything(
        self, key: tuple[int, ...], inputs: list[torch.Tensor], targets: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if ("data", key) not in self._graphs:
            self._graphs.clear()
            self._graphs["data", key] = (torch.cat(inputs), torch.cat(targets))
        found: tuple[torch.Tensor, torch.Tensor] = self._graphs["data", key]
        return found

    def _stepped(
        self,
        start: list[torch.Tensor],
        everything: tuple[torch.Tensor, torch.Tensor],
        rows: npt.NDArray[np.int64],
        mask: npt.NDArray[np.float32],
    ) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Run all steps, from a copy of the start."""
        clients, size = rows.shape[1:]
        key = ("step", clients, size)
        if key not in self._graphs:
            self._graphs[key] = _Step(self._mapped, self._names, self._settings, start, everything, (clients, size))
        step: _Step = self._graphs[key]
        step.begin(start)
        all_rows = torch.as_tensor(rows).to(self._device)
        all_masks = torch.as_tensor(mask).to(self._device)
        for number in range(len(rows)):
            step.make(all_rows[number], all_masks[number])
        return step.parameters, step.totals


class _Step:
    """One step of all clients, on tensors at fixed addresses."""

    def __init__(  # noqa: PLR0913, PLR0917 -- the parts of a step
        self,
        mapped: Mapped,
        names: list[str],
        settings: LocalTraining,
        start: list[torch.Tensor],
        everything: tuple[torch.Tensor, torch.Tensor],
        shape: tuple[int, int],
    ) -> None:
        self._mapped, self._names, self._everything = mapped, names, everything
        device = start[0].device
        self.parameters = [value.clone() for value in start]
        self._descent = Descent(self.parameters, start, settings)
        self._rows = torch.zeros(shape, dtype=torch.int64, device=device)
        self._mask = torch.zeros(shape, device=device)
        self._keys = torch.zeros((shape[0], 0), dtype=torch.int64, device=device)
        self.totals = torch.zeros(shape[0], device=device)
        self._graph: Any = None
        if device.type == "cuda" and GRAPHS and not settings.momentum and not settings.proximal:
            self._capture()

    def begin(self, start: list[torch.Tensor]) -> None:
        """Set the start."""
        for mine, given in zip(self.parameters, start, strict=True):
            mine.copy_(given)
        self.totals.zero_()

    def make(self, rows: torch.Tensor, mask: torch.Tensor) -> None:
        """Run one step."""
        self._rows.copy_(rows)
        self._mask.copy_(mask)
        if self._graph is None:
            self._make()
        else:
            self._graph.replay()

    def _make(self) -> None:
        inputs, targets = (values[self._rows] for values in self._everything)
        batches = Batches(inputs, targets, self._mask, self._keys)
        own = dict(zip(self._names, self.parameters, strict=True))
        gradients, losses = self._mapped.gradients(own, batches, is_start=False)
        self._descent.step([gradients[name] for name in self._names], self._mask.amax(1))
        self.totals += losses

    def _capture(self) -> None:
        try:
            side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._make()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._make()
            self._graph = graph
        except RuntimeError as error:
            print(f"no CUDA graph: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)


class Member:
    """The engine of one run."""

    name = "lockstep"

    def __init__(self, lockstep: Lockstep, data: Kept) -> None:
        self._lockstep, self._data = lockstep, data

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        """Train each client from ``start``, together with those of the other runs."""
        del settings
        yield from self._lockstep.hand_in(Work(start, assignments, self._data))


def play(runs: Sequence[Callable[[], None]], leave: Callable[[], None]) -> None:
    """Run each run in a separate thread, and raise the first error."""
    errors = list[BaseException]()

    def one(run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 -- raised below
            errors.append(error)
        finally:
            leave()

    threads = [threading.Thread(target=one, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
