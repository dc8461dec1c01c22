"""Training data in arrays, by client; how the rows become what a model takes is a function of the set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters
from secagg.training.models.partition import Indices
from secagg.training.settings.parts import Examples

Rows = npt.NDArray[np.generic]
Transform = Callable[[Rows, int | None], torch.Tensor]
"""Makes a model's inputs of stored rows; the number is the client's, and None for test examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stored examples; ``owners`` says whose each is, where the data say so."""

    rows: Rows
    labels: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A data set as the driver takes it."""

    name: str
    classes: int
    shape: tuple[int, ...]
    """Of one input."""
    train: Split
    parts: Sequence[Indices]
    """Which rows are whose, by the client's number."""
    held_out: Split
    transform: Transform
    vocabulary: int | None = None
    """How many tokens an embedding has to know, where inputs are tokens."""

    sizes: npt.NDArray[np.int64] = field(init=False)
    """How many training examples each client has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.array([len(part) for part in self.parts], dtype=np.int64))
        self.sizes.flags.writeable = False

    def client(self, number: int) -> Examples:
        """Return the training examples of a client, in an order that never changes.

        Raises:
            InvalidParameters: there is no such client.
        """
        if not 0 <= number < len(self.parts):
            raise InvalidParameters(f"there is no client {number}; they have the numbers 0 to {len(self.parts) - 1}")
        part = self.parts[number]
        return Examples(self.transform(self.train.rows[part], number), torch.as_tensor(self.train.labels[part]))

    def test(self) -> Examples:
        """Return the test examples."""
        labels = torch.as_tensor(np.array(self.held_out.labels))
        return Examples(self.transform(self.held_out.rows, None), labels)

    def test_clients(self) -> npt.NDArray[np.int64] | None:
        """Return whose each test example is, where the data say so."""
        return self.held_out.owners


def normalised(images: npt.NDArray[np.float32], *, mean: float, deviation: float) -> torch.Tensor:
    """Shift and scale values from 0 to 1 as a model's training expects them."""
    return torch.as_tensor((images - np.float32(mean)) / np.float32(deviation))
