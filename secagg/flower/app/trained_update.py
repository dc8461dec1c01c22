"""What a client is asked to train and to sum, held to what it agreed to; and what its training returned, encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.compression.model_update import ModelUpdate, decode_parameters
from secagg.contract import Layout, Payload
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse, Reason
from secagg.flower.model_tensors import METRICS, Arrays, differences, model_digest
from secagg.flower.schemes import clipped_share, integer_bound

from .logs import LOG
from .records import LARGE_RECORD, RECORD, Invitation, scalar_in


@dataclass(frozen=True, slots=True)
class Training:
    """One call of the app's training, whose result is encoded and goes nowhere else."""

    message: Message
    context: Context
    call_next: ClientAppCallable
    invitation: Invitation
    update: ModelUpdate
    sent: Arrays

    @classmethod
    def of(
        cls,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        invitation: Invitation,
        layout: Layout | None = None,
    ) -> Training:
        """Take the records of the protocol out of a message, and hold the rest to the session's layout.

        Args:
            layout: the session's; None where the caller compares it, because it binds the model as well.
        Raises:
            SecAggError: the encoding is not the session's, or the message holds more than one model.
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
        update = decode_parameters(invitation.parameters) if layout is None else agreed_update(invitation, layout)
        return cls(message, context, call_next, invitation, update, sent)

    @property
    def model_digest(self) -> bytes:
        """The digest of the model as this client was sent it."""
        return model_digest(self.sent)

    def encoded(self) -> tuple[Payload, int]:
        """Train, and return the encoded update and its weight.

        Raises:
            SecAggError: training failed, or what it returned cannot be part of the sum; the message says why.
        """
        try:
            trained = self.call_next(self.message, self.context)
        except Exception as error:  # noqa: BLE001 -- whatever an app raises
            # Flower would send the sentence to the server, and forget what became of this node's state.
            LOG.exception("training raised an error")
            raise Misuse(f"training raised {type(error).__name__}; the lines before say where") from None
        if trained.has_error():
            raise Misuse(f"training answered with an error: {trained.error.reason}")
        records = list(trained.content.array_records.values())
        if len(records) != 1:
            raise InvalidParameters(f"training returned {len(records)} array records; return the trained model as one")
        arrays = {name: array.numpy() for name, array in records[0].items()}
        values = differences(self.sent, arrays, integer_bound(self.update, self.sent))
        share = clipped_share(self.update, values)
        if share:
            LOG.warning("%.3g of this update's values are beyond their range, and were cut off", share)
        values[METRICS] = np.array([share, *self._metrics(trained)], dtype=np.float64)
        weight = self._weight(trained)
        return self.update.encode(values, SystemCoins()), weight

    def _metrics(self, trained: Message) -> list[float]:
        reported = list[float]()
        for name in self.invitation.metrics:
            value = scalar_in(trained.content, name)
            if value is None:
                raise InvalidParameters(
                    f"training reported no number {name!r}, which secagg-metrics asks for; report it, or change the key"
                )
            reported.append(float(value))
        return reported

    def _weight(self, trained: Message) -> int:
        invitation = self.invitation
        if invitation.weighting == "uniform":
            return 1
        examples = scalar_in(trained.content, invitation.weighted_by)
        if examples is None or not np.isfinite(examples) or examples != int(examples) or examples < 1:
            raise InvalidParameters(
                f"training has to report {invitation.weighted_by!r} as a whole number of at least 1; got {examples!r}"
            )
        weight = max(1, round(int(examples) / max(1, invitation.weight_unit)))
        if weight > invitation.maximum_weight:
            raise CapacityExceeded(
                f"{int(examples)} examples are a weight of {weight}, and secagg-maximum-weight is "
                f"{invitation.maximum_weight}; raise it, or raise secagg-weight-unit",
                reason=Reason.INPUT_OUT_OF_RANGE,
            )
        return weight


def agreed_update(invitation: Invitation, layout: Layout) -> ModelUpdate:
    """Return how to encode, if that is what the session's layout says."""
    update = decode_parameters(invitation.parameters)
    update.require_layout(layout)
    return update


def require_capacity_for(update: ModelUpdate, total_weight: int) -> None:
    """Refuse a session whose sum could leave its ring.

    Raises:
        InvalidParameters: it could.
    """
    if total_weight > update.capacity:
        raise InvalidParameters(
            f"a total weight of {total_weight} can leave the ring, which carries {update.capacity}; the server has to "
            "offer fewer clients, smaller weights or a wider ring",
            reason=Reason.BELOW_FLOOR,
        )
