"""Records between the grid and the mod: one config record, with an array record where a message is large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from secagg.platforms.leaving import Left, code_of, code_said
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
    small, large = dict(record), record["message"]
    found = RecordDict()
    if len(large) > _LARGE_BYTES and isinstance(large, bytes):
        del small["message"]
        found[LARGE_RECORD] = ArrayRecord({"message": Array("uint8", (len(large),), "secagg.message", large)})
    found[RECORD] = ConfigRecord({**small})
    return found


def record_in(content: RecordDict) -> dict[str, object]:
    """Return the record of the protocol; absent fields are missing in it."""
    found: dict[str, object] = {**content.config_records.get(RECORD, {})}
    large = content.array_records.get(LARGE_RECORD)
    if large is not None and "message" in large:
        found.setdefault("message", large["message"].data)
    return found


def scalar_in(content: RecordDict, name: str) -> float | int | None:
    """Return a number that training reported under a name, in metrics or, as legacy clients do, in a config record."""
    records: list[Mapping[str, object]] = [*content.metric_records.values(), *content.config_records.values()]
    for record in records:
        value = record.get(name)
        if type(value) in (int, float):
            return cast("float | int", value)
    return None


def reported_in(content: RecordDict) -> list[str]:
    """Return the names of the metrics that training reported."""
    return [name for record in content.metric_records.values() for name in record]


def metric_record(values: dict[str, float | int]) -> MetricRecord:
    """Return a record of numbers."""
    return MetricRecord(dict(values))
