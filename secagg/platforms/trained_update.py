"""What training returned, encoded for one session; the rest of what it returned stays at the client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.model_update import ModelUpdate
from secagg.compression.model_update.model_tensors import METRICS, TENSOR, Arrays, differences, model_digest
from secagg.compression.model_update.summed_values import (
    clipped_share,
    integer_bound,
    rounded_at_random,
    steps_in,
    with_joined,
    with_told,
    with_votes,
)
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters
from secagg.session.ledger import Spent
from secagg.session.roles import LateUpdate, Update

from .charges import Charges
from .leaving import LOG
from .schemes import COARSE
from .terms import Terms

FINER: Final = "raise secagg-fraction-bits"
"""What is to be done about changes of a few steps, at both ends."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What an app's function returned, as its platform has it."""

    models: Sequence[Arrays]
    """The models in it: one, where a model was asked for."""
    number: Callable[[str], float | int | None]
    """The number that it reported under a name."""
    reported: Sequence[str] = ()
    """The names of the numbers that it reported."""
    is_difference: bool = False
    """Whether the model is the difference to the one that was sent."""


@dataclass(frozen=True, slots=True)
class Training:
    """One call of an app's training or evaluation, whose result is encoded and goes nowhere else."""

    terms: Terms
    update: ModelUpdate
    charges: Charges
    sent: Arrays
    train: Callable[[], Trained]

    @property
    def model_digest(self) -> bytes:
        """The digest of the model as this client was sent it."""
        return model_digest(self.sent)

    @property
    def _summed(self) -> list[str]:
        """The names of the tensors that are summed; none where metrics of an evaluation are."""
        alone = [name.removeprefix(TENSOR) for name in self.update.names if name.startswith(TENSOR)]
        return [*self.terms.joined, *alone]

    @property
    def late(self) -> LateUpdate:
        """The update, for a session; what training returns, or that it fails, is nothing that the server hears of."""
        return LateUpdate(self.made, self.model_digest, charge=self.charge)

    def charge(self) -> None:
        """Spend the round and the model for good, or refuse."""
        model = self.model_digest
        if not self._summed:
            # A model may be trained from and evaluated.
            model = hashlib.sha256(bind(Label.PLATFORM_EVALUATION, model)).digest()
        self.charges.charge(Spent(self.terms.task.encode(), self.terms.round_number, model))

    def made(self) -> Update:
        """Train, and return the encoded update and its weight.

        Raises:
            Exception: training failed, or returned what cannot be part of the sum; ``LateUpdate`` sends zeros then.
        """
        trained, summed = self.train(), self._summed
        values = self._differences(trained, summed) if summed else dict[str, npt.NDArray[Any]]()
        share = clipped_share(self.update, values)
        values = with_told(self.update, with_joined(values, self.terms.joined), self.sent)
        values = with_votes(self.update, values, self.sent, self.terms.joined, self.terms.lengths)
        values[METRICS] = np.array([share, *self._metrics(trained)], dtype=np.float64)
        if share:
            LOG.warning("%.3g of this update's values are beyond their range, and were cut off", share)
        if (steps := steps_in(self.update, values)) < COARSE:
            LOG.warning("this update's changes are about %.2g steps, and the rest is noise; %s", steps, FINER)
        coins = SystemCoins()
        payload = self.update.encode(rounded_at_random(self.update, values, coins), coins)
        return Update(payload, self.model_digest, self._weight(trained))

    def _differences(self, trained: Trained, summed: list[str]) -> dict[str, npt.NDArray[Any]]:
        if missing := [name for name in summed if name not in self.sent]:
            raise InvalidParameters(f"the model that was sent lacks {missing[:4]}, which the server wants a sum of")
        if len(trained.models) != 1:
            raise InvalidParameters(
                f"training returned {len(trained.models)} array records; return the trained model as one"
            )
        before = self.sent
        if trained.is_difference:
            before = {name: np.zeros_like(array) for name, array in self.sent.items()}
        return differences(before, trained.models[0], integer_bound(self.update, self.sent), summed)

    def _metrics(self, trained: Trained) -> list[float]:
        if unnamed := sorted({*trained.reported} - {*self.terms.metrics, self.terms.weighted_by}):
            LOG.warning(
                "%s stay at this client: the server's secagg-metrics, or secagg-evaluation-metrics, does not name them",
                ", ".join(unnamed),
            )
        reported = list[float]()
        for name in self.terms.metrics:
            value = trained.number(name)
            if value is None:
                raise InvalidParameters(
                    f"the app reported no number {name!r}, which secagg-metrics or secagg-evaluation-metrics asks for; "
                    "report it, or change the key"
                )
            reported.append(float(value))
        return reported

    def _weight(self, trained: Trained) -> int:
        terms = self.terms
        if terms.weighting == "uniform":
            return 1
        examples = trained.number(terms.weighted_by)
        if examples is None or np.isnan(examples):
            LOG.warning("the app reports no number %r, and its update weighs 1", terms.weighted_by)
            return 1
        units = examples / max(1, terms.weight_unit)
        weight = round(min(max(1.0, units), terms.maximum_weight))
        if examples < 1 or units > terms.maximum_weight:
            LOG.warning(
                "%g examples are no weight of 1 to %d; the update weighs %d", examples, terms.maximum_weight, weight
            )
        return weight
