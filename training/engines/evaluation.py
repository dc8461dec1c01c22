"""How good a model is: over all test examples at once, and over the people that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters
from secagg.training.settings.parts import Examples, ModelFactory

from .one_by_one import cores
from .settings import Loss, cross_entropy, device_named, one_torch_thread
from .suitability import values_of

_BATCH: Final = 500
"""Fixed, since a result's last digit depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What was found; accuracies are shares from 0 to 1."""

    accuracy: float
    loss: float
    user_mean: float | None = None
    """The mean of the users' own accuracies, where it is known whose the examples are."""
    user_tenth: float | None = None
    """The accuracy that a tenth of the users do not reach."""


class Evaluator:
    """Evaluates models of one kind on the same examples, many times."""

    def __init__(  # noqa: PLR0913 -- what is evaluated, on what, and where
        self,
        factory: ModelFactory,
        examples: Examples,
        *,
        owners: npt.NDArray[np.int64] | None = None,
        device: str = "cpu",
        threads: int | None = None,
        loss: Loss = cross_entropy,
    ) -> None:
        """Make the model, and bring the examples to the device.

        Raises:
            InvalidParameters: there are no examples, or it is not said of each whose it is.
        """
        if len(examples) == 0:
            raise InvalidParameters("there are no test examples to evaluate on")
        if owners is not None and len(owners) != len(examples):
            raise InvalidParameters(f"{len(owners)} owners are named for {len(examples)} test examples")
        self._device = device_named(device)
        self._model = factory().to(self._device).eval()
        self._inputs, self._targets = examples.inputs.to(self._device), examples.targets.to(self._device)
        self._owners, self._loss = owners, loss
        # On an accelerator one thread keeps it busy.
        self._threads = 1 if self._device.type != "cpu" else cores() if threads is None else threads

    def evaluate(self, parameters: Mapping[str, torch.Tensor]) -> Evaluation:
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
        accuracy, loss = float(is_right.mean()), float(losses.mean(dtype=np.float64))
        if self._owners is None:
            return Evaluation(accuracy=accuracy, loss=loss)
        by_user = user_accuracies(is_right, self._owners)
        return Evaluation(
            accuracy=accuracy,
            loss=loss,
            user_mean=float(by_user.mean()),
            user_tenth=float(np.percentile(by_user, 10)),
        )

    @torch.no_grad()
    def _batch(self, begin: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float32]]:
        targets = self._targets[begin : begin + _BATCH]
        scores: torch.Tensor = self._model(self._inputs[begin : begin + _BATCH])
        losses = self._loss(scores, targets).float()
        return np.asarray((scores.argmax(1) == targets).cpu()), np.asarray(losses.cpu())


def user_accuracies(is_right: npt.NDArray[np.bool_], owners: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return each user's share of right answers."""
    _, places = np.unique(owners, return_inverse=True)
    return np.bincount(places, is_right) / np.bincount(places)
