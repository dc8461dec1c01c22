"""Records between the grid and the mod: one config record, with an array record where a message is large."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from secagg.platforms import Left, code_of, code_said
from secagg.platforms.round_task import RECORD, Record

LARGE_RECORD: Final = "secagg.large"
LEFT_RECORD: Final = "secagg.left"
"""Record of the reply to the strategy: messages of each stage of the round, and why clients left."""
LEGACY_ARRAYS: Final = "fitins.parameters"
MOD_FAILED: Final = 6
"""Flower's code for a mod that refuses a message."""
_LEFT: Final = "secagg: this client left the round; code: "
_LARGE_BYTES: Final = 1 << 20
"""Beyond this a message goes into an array, which Flower sends in pieces."""


def refusal(message: Message, error: Exception) -> Message:
    """Return what a server is told where a client leaves: that it left, and one of a few codes."""
    return Message(Error(MOD_FAILED, _LEFT + code_of(error)), reply_to=message)


def code_in(reply: Message) -> Left:
    """Return the code of a client that left; that of anything else is the last one."""
    return code_said(str(reply.error.reason or "").removeprefix(_LEFT))


def with_record(record: Record) -> RecordDict:
    """Return what carries a record of the protocol."""
    large = {name: value for name, value in record.items() if isinstance(value, bytes) and len(value) > _LARGE_BYTES}
    found = RecordDict()
    if large:
        arrays = {name: Array("uint8", (len(value),), "secagg.message", value) for name, value in large.items()}
        found[LARGE_RECORD] = ArrayRecord(arrays)
    found[RECORD] = ConfigRecord({name: value for name, value in record.items() if name not in large})
    return found


def record_in(content: RecordDict) -> dict[str, object]:
    """Return the record of the protocol; absent fields are missing in it."""
    found: dict[str, object] = {**content.config_records.get(RECORD, {})}
    for name, array in content.array_records.get(LARGE_RECORD, {}).items():
        found.setdefault(name, array.data)
    return found


def arrays_of(model: Mapping[str, npt.NDArray[Any]]) -> ArrayRecord:
    """Return a model as Flower sends it."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in model.items()})


def emptied(model: Mapping[str, npt.NDArray[Any]], names: Collection[str]) -> ArrayRecord:
    """Return a model as Flower sends it, without the values of some tensors, whose shapes and types stay."""
    return ArrayRecord(
        {
            name: Array(str(array.dtype), array.shape, "secagg.held", b"")
            if name in names
            else Array(np.asarray(array))
            for name, array in model.items()
        }
    )


def scalar_in(content: RecordDict, name: str) -> float | int | None:
    """Return a number that training reported, in metrics or, as legacy clients do, in a config record."""
    records: list[Mapping[str, object]] = [*content.metric_records.values(), *content.config_records.values()]
    for record in records:
        value = record.get(name)
        if type(value) in (int, float):
            return cast("float | int", value)
    return None
