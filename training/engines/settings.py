"""How a client is trained, step by step, and on which device: shared by all engines."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 -- the name that everybody gives it

from secagg.errors import InvalidParameters, Reason
from secagg.training.datasets.partition import Indices
from secagg.training.settings.parts import Assignment, Update, generator
from secagg.training.settings.sections import LocalTraining

Given = ParamSpec("Given")
Found = TypeVar("Found")
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes a model's outputs and the targets, and returns one value for each example."""


def cross_entropy(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each example where targets are classes."""
    # Where a model ran in bfloat16, its loss would be too coarse.
    precise = scores.float() if scores.dtype is torch.bfloat16 else scores
    return F.cross_entropy(precise, targets, reduction="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """Where and how an engine computes."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    is_bf16: bool = False
    """Whether models run in bfloat16 where torch's autocast allows it; it changes results."""
    loss: Loss = cross_entropy

    def precision(self) -> AbstractContextManager[object]:
        """Return the context in which a model runs."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.is_bf16 else nullcontext()


def device_named(name: str) -> torch.device:
    """Return a device that is there; ``auto`` is the first accelerator, or the CPU.

    Raises:
        InvalidParameters: it is not there, or torch knows no such name.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidParameters(f"{name!r} is no device; take `cpu`, `cuda`, `cuda:1`, or `auto`") from error
    if device.type not in {"cpu", "cuda"}:
        raise InvalidParameters(f"training runs on the CPU and on CUDA; the device is {name!r}")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise InvalidParameters(
            f"the device is {name!r}, and torch {torch.__version__} finds {torch.cuda.device_count()} CUDA devices; "
            "install a build of torch for CUDA and its driver, or take the device `cpu`",
            reason=Reason.BACKEND_MISSING,
        )
    return device


@contextmanager
def one_torch_thread() -> Generator[None]:
    """Keep torch from splitting an operation, whose rounding would then depend on how many threads there are."""
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
    """Which of the client's examples each step takes."""
    keys: npt.NDArray[np.int64]
    """Of each step, a key for each layer of dropout."""
    first_epoch: int
    """How many steps the first epoch has."""


def schedule_of(assignment: Assignment, settings: LocalTraining, dropouts: int) -> Schedule:
    """Shuffle a client's examples anew for each epoch, and cut them into batches; the last one may be smaller.

    Raises:
        InvalidParameters: there is nothing to train with, or the settings make no step.
    """
    count = len(assignment.examples)
    if count == 0:
        raise InvalidParameters(f"client {assignment.client} has no examples; leave such clients out of the data")
    if settings.batch < 1 or settings.epochs < 1:
        raise InvalidParameters(
            f"a client takes {settings.epochs} epochs of batches of {settings.batch}; both must be 1 or more"
        )
    coins = generator(assignment.seed)
    batches = list[Indices]()
    for _ in range(settings.epochs):
        order = coins.permutation(count)
        batches += [order[begin : begin + settings.batch] for begin in range(0, count, settings.batch)]
    keys = coins.integers(0, 1 << 32, (len(batches), dropouts), dtype=np.int64)
    return Schedule(tuple(batches), keys, len(batches) // settings.epochs)


def longest_first(schedules: Sequence[Schedule]) -> list[int]:
    """Return the order in which to train: much work before little, and else as assigned."""
    return sorted(range(len(schedules)), key=lambda place: -len(schedules[place].batches))


class Descent:
    """Moves parameters in place by their gradients; remembers the momentum of one client's training.

    Parameters, and what they start from, may have a leading axis of clients; the start is then broadcast.
    """

    def __init__(
        self, parameters: Sequence[torch.Tensor], start: Sequence[torch.Tensor], settings: LocalTraining
    ) -> None:
        """Take what is moved, and where it starts."""
        self._parameters, self._start, self._settings = parameters, start, settings
        self._momenta = [torch.zeros_like(tensor) for tensor in parameters] if settings.momentum else []

    def forget(self) -> None:
        """Begin the training of another client."""
        for momentum in self._momenta:
            momentum.zero_()

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor], active: torch.Tensor | None = None) -> None:
        """Make one step.

        Args:
            active: of a stack, 1 for each client that has this step and 0 for each that is done; a client that is done
                never goes on, so its momentum is of no interest.
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
    """Return what training changed, after minus before, scaled down where its L2 norm is above the limit."""
    found = [parameter - before for parameter, before in zip(parameters, start, strict=True)]
    if clip is None:
        return found
    squares = [(change.flatten(1).square().sum(1) if stacked else change.square().sum()) for change in found]
    factor = (clip / torch.stack(squares).sum(0).sqrt().clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1)
    return [change * (factor.reshape(-1, *(1,) * (change.ndim - 1)) if stacked else factor) for change in found]


def as_update(names: Sequence[str], found: Sequence[torch.Tensor]) -> Update:
    """Return tensors of one client as arrays."""
    arrays = (tensor.float().cpu().numpy() for tensor in found)
    return {name: np.asarray(array, dtype=np.float32) for name, array in zip(names, arrays, strict=True)}
