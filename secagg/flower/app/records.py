"""What travels between the grid and the mod: one config record, beside it one array record where a message is large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from secagg.identifiers import ClientId
from secagg.platforms.leaving import Left, code_of, code_said
from secagg.platforms.terms import RECORD, Terms, malformed, parsed_client

LARGE_RECORD: Final = "secagg.large"
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


def read_terms(record: ConfigRecord) -> Terms | None:
    """Read the terms in a record of another party, if there are any.

    Raises:
        MalformedMessage: a field is missing or of another type.
    """
    return Terms.parsed(record.get("terms"), record.get("parameters"))


def write_terms(terms: Terms, record: ConfigRecord) -> None:
    """Put the terms into a record."""
    record["terms"], record["parameters"] = terms.small, terms.parameters


def with_message(
    message: bytes, client: ClientId | None = None, terms: Terms | None = None, signature: bytes = b""
) -> RecordDict:
    """Return the records that carry one message of the protocol.

    Args:
        client: who answers, and with a key its signature.
    """
    record, found = ConfigRecord(), RecordDict()
    if client is not None:
        record["client"], record["signature"] = client.encode(), signature
    if terms is not None:
        write_terms(terms, record)
    found[RECORD] = record
    if len(message) <= _LARGE_BYTES:
        record["message"] = message
    else:
        found[LARGE_RECORD] = ArrayRecord({"message": Array("uint8", (len(message),), "secagg.message", message)})
    return found


def message_in(content: RecordDict) -> bytes:
    """Take the message of the protocol out of its records.

    Raises:
        MalformedMessage: there is none.
    """
    record = content.config_records.get(RECORD)
    if record is not None and (message := record.get("message")) and isinstance(message, bytes):
        return message
    large = content.array_records.get(LARGE_RECORD)
    if large is not None and "message" in large:
        return large["message"].data
    raise malformed("message")


def claimed_client(content: RecordDict) -> ClientId:
    """Return who an answer says it is of.

    Raises:
        MalformedMessage: it does not say so.
    """
    record = content.config_records.get(RECORD)
    return parsed_client(None if record is None else record.get("client"))


def signature_in(content: RecordDict) -> bytes:
    """Return the signature of who an answer says it is of; nothing where there is none."""
    record = content.config_records.get(RECORD)
    found = None if record is None else record.get("signature")
    return found if isinstance(found, bytes) else b""


def protocol_bytes(content: RecordDict) -> int:
    """Return how many bytes of the protocol a message carries, beside the app's own records."""
    total = 0
    if (record := content.config_records.get(RECORD)) is not None:
        total += sum(len(value) for value in record.values() if isinstance(value, bytes))
    large = content.array_records.get(LARGE_RECORD)
    return total + (sum(len(array.data) for array in large.values()) if large is not None else 0)


def scalar_in(content: RecordDict, name: str) -> float | int | None:
    """Return a number that training reported under a name, in metrics or, as legacy clients do, in a config record."""
    records: list[Mapping[str, object]] = [*content.metric_records.values(), *content.config_records.values()]
    for record in records:
        value = record.get(name)
        if type(value) in (int, float):
            return cast("float | int", value)
    return None


def metric_record(values: dict[str, float | int]) -> MetricRecord:
    """Return a record of numbers."""
    return MetricRecord(dict(values))
