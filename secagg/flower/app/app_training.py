"""One call of a Flower app's function: what it is asked for, and what it returned."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from secagg.errors import InvalidParameters, Misuse
from secagg.platforms.client_round import NodeRound
from secagg.platforms.terms import RECORD
from secagg.platforms.trained_update import Trained, Training

from .records import LARGE_RECORD, reported_in, scalar_in


def training_of(message: Message, context: Context, call_next: ClientAppCallable, begun: NodeRound) -> Training:
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
    return Training(begun.terms, begun.update, begun.charges, sent, lambda: _trained(message, context, call_next))


def _trained(message: Message, context: Context, call_next: ClientAppCallable) -> Trained:
    trained = call_next(message, context)
    if trained.has_error():
        raise Misuse(f"the app answered with an error: {trained.error.reason}")
    records = trained.content.array_records.values()
    models = [{name: array.numpy() for name, array in record.items()} for record in records]
    return Trained(models, lambda name: scalar_in(trained.content, name), reported_in(trained.content))
