"""How an engine computes, whatever it trains: where, how precisely, and with which loss."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 -- the name that everybody gives it

from secagg.errors import InvalidParameters, Reason

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
