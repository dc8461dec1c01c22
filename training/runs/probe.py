"""The harm of a code's noise: what it does to the losses of a round's clients, each of which tells three numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.training.engines.one_by_one import cross_entropy, device_named
from secagg.training.settings.parts import Assignment, Examples, ModelFactory, Seed, generator

_EXAMPLES: Final = 60
"""The most examples of a client that are tried."""
_BATCH: Final = 2000

Arrays = Mapping[str, npt.NDArray[np.float32]]


class Probe:
    """Evaluates clients' losses at a model, and at the model with noise added and taken away."""

    def __init__(self, factory: ModelFactory, device: str) -> None:
        self._device = device_named(device)
        self._model = factory().to(self._device).eval()

    def losses(
        self, parameters: Arrays, noise: Arrays, work: Sequence[Assignment], seed: Callable[[int], Seed]
    ) -> dict[int, npt.NDArray[np.float32]]:
        """Return three mean losses of each client, on some of its examples.

        Args:
            seed: says by which seed a client chooses them.
        """
        chosen = [_some(one.examples, seed(one.client)) for one in work]
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
        for begin in range(0, len(targets), _BATCH):
            some = inputs[begin : begin + _BATCH].to(self._device)
            scores = torch.func.functional_call(self._model, on_device, (some,))
            losses = cross_entropy(scores, targets[begin : begin + _BATCH].to(self._device))
            found.append(losses.double().cpu().numpy())
        return np.concatenate(found)


def _some(examples: Examples, seed: Seed) -> Examples:
    at = torch.as_tensor(generator(seed).permutation(len(examples))[:_EXAMPLES])
    return Examples(examples.inputs[at], examples.targets[at])
