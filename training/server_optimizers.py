"""Server optimizers: FedAvg, FedAvgM and FedAdam on the mean of the updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .settings.sections import Optimizer, ServerSettings

Arrays = Mapping[str, npt.NDArray[np.float32]]
Parameters = dict[str, npt.NDArray[np.float32]]


class ServerStep(Protocol):
    """What a run needs of an optimiser; a platform's own has these methods, and is copied shallowly each round."""

    def step(self, parameters: Arrays, mean: Arrays) -> Parameters:
        """Return the parameters after one step."""
        ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a resumed run needs."""
        ...

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take back what ``state`` returned."""


@dataclass(slots=True)
class ServerOptimizer:
    """FedAvg with a rate, FedAvgM, or FedAdam.

    Implements: [RCZ+21] Algorithm 2 for FedAdam, without bias correction, and with momentum for FedAvgM; the pseudo
        gradient is the mean update itself.
    """

    settings: ServerSettings
    first: Parameters = field(default_factory=Parameters, init=False)
    second: Parameters = field(default_factory=Parameters, init=False)

    def step(self, parameters: Arrays, mean: Arrays) -> Parameters:
        """Return the parameters after one step."""
        settings, rate = self.settings, np.float32(self.settings.rate)
        momentum = np.float32(settings.momentum)
        match settings.optimizer:
            case Optimizer.FEDAVG:
                return {name: _narrow(value + rate * mean[name]) for name, value in parameters.items()}
            case Optimizer.FEDAVGM:
                self.first = {
                    name: _narrow(momentum * self.first[name] + mean[name]) if self.first else mean[name]
                    for name in parameters
                }
                return {name: _narrow(value + rate * self.first[name]) for name, value in parameters.items()}
            case Optimizer.FEDADAM:
                return self._adam(parameters, mean)

    def _adam(self, parameters: Arrays, mean: Arrays) -> Parameters:
        one, adaptivity = np.float32(1), np.float32(self.settings.adaptivity)
        beta1, beta2 = np.float32(self.settings.momentum), np.float32(self.settings.second_momentum)
        first = self.first or {name: np.zeros_like(value) for name, value in parameters.items()}
        second = self.second or {
            name: np.full_like(value, self.settings.adaptivity**2) for name, value in parameters.items()
        }
        # A float32 number times an array of float32 is float32, which the types of numpy do not say.
        rest1, rest2 = one - beta1, one - beta2
        self.first = {name: _narrow(beta1 * first[name] + rest1 * mean[name]) for name in parameters}
        self.second = {name: _narrow(beta2 * second[name] + rest2 * np.square(mean[name])) for name in parameters}
        rate = np.float32(self.settings.rate)
        return {
            name: _narrow(value + rate * self.first[name] / (np.sqrt(self.second[name]) + adaptivity))
            for name, value in parameters.items()
        }

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a resumed run needs."""
        return {
            **{f"first/{name}": value for name, value in self.first.items()},
            **{f"second/{name}": value for name, value in self.second.items()},
        }

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take back what ``state`` returned."""
        for prefix, kept in (("first/", self.first), ("second/", self.second)):
            kept.clear()
            kept.update({name[len(prefix) :]: stored[name] for name in stored if name.startswith(prefix)})


def _narrow(value: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.asarray(value, dtype=np.float32)
