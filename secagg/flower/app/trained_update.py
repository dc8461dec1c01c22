"""What the app's function is asked for, and what it returned, encoded; the rest of what it returned stays here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.compression.model_update import ModelUpdate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.flower.charges import Charges
from secagg.flower.logs import LOG
from secagg.flower.model_tensors import METRICS, TENSOR, Arrays, differences, model_digest, values_digest
from secagg.flower.schemes import (
    COARSE,
    clipped_share,
    integer_bound,
    rounded_at_random,
    steps_in,
    with_joined,
    with_told,
)
from secagg.session.ledger import NO_MODEL
from secagg.session.roles import Update

from .records import LARGE_RECORD, RECORD, Terms, TooHeavy, TrainingFailed, scalar_in


@dataclass(frozen=True, slots=True)
class Training:
    """One call of the app's training or evaluation, whose result is encoded and goes nowhere else."""

    message: Message
    context: Context
    call_next: ClientAppCallable
    terms: Terms
    update: ModelUpdate
    charges: Charges
    sent: Arrays

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 -- the mod's own parts
        cls,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        terms: Terms,
        update: ModelUpdate,
        charges: Charges,
    ) -> Training:
        """Take the records of the protocol out of a message, whose rest is the app's.

        Raises:
            InvalidParameters: it holds more than one model.
        """
        for name in (RECORD, LARGE_RECORD):
            if name in message.content:
                del message.content[name]
        records = list(message.content.array_records.values())
        if len(records) != 1:
            raise InvalidParameters(
                f"the message has {len(records)} array records, and one model is trained; send the model alone"
            )
        sent: dict[str, npt.NDArray[Any]] = {name: array.numpy() for name, array in records[0].items()}
        return cls(message, context, call_next, terms, update, charges, sent)

    @property
    def model_digest(self) -> bytes:
        """The digest of the model as this client was sent it."""
        return model_digest(self.sent)

    @property
    def _summed(self) -> list[str]:
        """The names of the tensors that are summed; none where metrics of an evaluation are."""
        alone = [name.removeprefix(TENSOR) for name in self.update.names if name.startswith(TENSOR)]
        return [*self.terms.joined, *alone]

    def made(self) -> Update:
        """Train, charge, and return the encoded update and its weight.

        Raises:
            SecAggError: training failed, or what it returned cannot be part of the sum; the message says why.
        """
        trained = self._trained()
        model, summed = self.model_digest, self._summed
        try:
            values = self._differences(trained, summed) if summed else dict[str, npt.NDArray[Any]]()
            share = clipped_share(self.update, values)
            values = with_told(self.update, with_joined(values, self.terms.joined), self.sent)
            values[METRICS] = np.array([share, *self._metrics(trained)], dtype=np.float64)
            weight = self._weight(trained)
        except InvalidParameters as error:
            raise TrainingFailed(str(error)) from None
        if share:
            LOG.warning("%.3g of this update's values are beyond their range, and were cut off", share)
        if (steps := steps_in(self.update, values)) < COARSE:
            LOG.warning("this update's changes are about %.2g steps, and the rest is noise; %s", steps, FINER)
        # Values that are rounded at random differ each time, so the ledger knows them as training returned them.
        self.charges.charge(
            self.terms.task.encode(), self.terms.round_number, values_digest(values), model if summed else NO_MODEL
        )
        coins = SystemCoins()
        payload = self.update.encode(rounded_at_random(self.update, values, coins), coins)
        return Update(payload, model, weight)

    def _trained(self) -> Message:
        try:
            trained = self.call_next(self.message, self.context)
        except Exception as error:  # noqa: BLE001 -- whatever an app raises
            # Flower would send the sentence to the server, and forget what became of this node's state.
            LOG.exception("the app raised an error")
            raise TrainingFailed(f"the app raised {type(error).__name__}; the lines before say where") from None
        if trained.has_error():
            raise TrainingFailed(f"the app answered with an error: {trained.error.reason}")
        return trained

    def _differences(self, trained: Message, summed: list[str]) -> dict[str, npt.NDArray[Any]]:
        if missing := [name for name in summed if name not in self.sent]:
            raise InvalidParameters(f"the model that was sent lacks {missing[:4]}, which the server wants a sum of")
        records = list(trained.content.array_records.values())
        if len(records) != 1:
            raise InvalidParameters(f"training returned {len(records)} array records; return the trained model as one")
        arrays = {name: array.numpy() for name, array in records[0].items()}
        return differences(self.sent, arrays, integer_bound(self.update, self.sent), summed)

    def _metrics(self, trained: Message) -> list[float]:
        reported = list[float]()
        for name in self.terms.metrics:
            value = scalar_in(trained.content, name)
            if value is None:
                raise InvalidParameters(
                    f"the app reported no number {name!r}, which secagg-metrics or secagg-evaluation-metrics asks for; "
                    "report it, or change the key"
                )
            reported.append(float(value))
        return reported

    def _weight(self, trained: Message) -> int:
        terms = self.terms
        if terms.weighting == "uniform":
            return 1
        examples = scalar_in(trained.content, terms.weighted_by)
        if examples is None or not np.isfinite(examples) or examples != int(examples) or examples < 1:
            raise InvalidParameters(
                f"the app has to report {terms.weighted_by!r} as a whole number of at least 1; got {examples!r}"
            )
        weight = max(1, round(int(examples) / max(1, terms.weight_unit)))
        if weight > terms.maximum_weight:
            raise TooHeavy(
                f"{int(examples)} examples are a weight of {weight}, and secagg-maximum-weight is "
                f"{terms.maximum_weight}; raise it, or raise secagg-weight-unit"
            )
        return weight


FINER = "raise secagg-fraction-bits"
"""What is to be done about changes of a few steps, at both ends."""
