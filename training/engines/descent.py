"""One step of stochastic gradient descent, as torch's optimizer makes it, for one client or for many in a stack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from secagg.training.settings.parts import Update
from secagg.training.settings.sections import LocalTraining


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
