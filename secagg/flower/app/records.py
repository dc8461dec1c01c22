"""What travels between the grid and the mod: one config record, beside it one array record where a message is large."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from secagg.crypto.labels import Label, bind
from secagg.errors import MalformedMessage, Reason
from secagg.flower.settings import PROTOCOLS

RECORD: Final = "secagg"
LARGE_RECORD: Final = "secagg.large"
OFFER_STAGE: Final = "offer"
"""Of a message that brings an offer and no model."""
TRAIN_STAGE: Final = "train"
"""Of a message that brings the model; what it is answered with holds the update."""
PROTOCOL_STAGE: Final = "protocol"
LEGACY_ARRAYS: Final = "fitins.parameters"
LEFT_ROUND: Final = "secagg: this client left the round; its own log says why"
MOD_FAILED: Final = 6
"""Flower's code for a mod that refuses a message."""
Kind = TypeVar("Kind")
_LARGE_BYTES: Final = 1 << 20
"""Beyond this a message goes into an array, which Flower sends in pieces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a round is about: the offer, how to encode, and what is summed. All of it is bound to the offer."""

    protocol: str
    offer: bytes
    """The protocol's own: of a session of pairwise masks, or the configuration of an enclave or of two servers."""
    evidence: bytes = b""
    """An enclave's keys, and what vouches for them; or the offers of two servers."""
    parameters: bytes
    """The public parameters of every tensor's scheme."""
    weighted_by: str
    weighting: str
    weight_unit: int
    maximum_weight: int
    metrics: tuple[str, ...]
    round_number: int
    task: str

    @property
    def application_digest(self) -> bytes:
        """The digest of what the offer does not hold itself."""
        terms = (self.weighted_by, self.weighting, self.weight_unit, self.maximum_weight, *self.metrics)
        return hashlib.sha256(bind(Label.FLOWER_INVITATION, json.dumps(terms).encode())).digest()

    def to_record(self, stage: str, message: bytes = b"") -> ConfigRecord:
        """Return the record that stands beside the app's own."""
        return ConfigRecord(
            {
                "stage": stage,
                "protocol": self.protocol,
                "offer": self.offer,
                "evidence": self.evidence,
                "message": message,
                "parameters": self.parameters,
                "weighted-by": self.weighted_by,
                "weighting": self.weighting,
                "weight-unit": self.weight_unit,
                "maximum-weight": self.maximum_weight,
                "metrics": list(self.metrics),
                "round": self.round_number,
                "task": self.task,
            }
        )

    @classmethod
    def from_record(cls, record: ConfigRecord) -> Invitation:
        """Read the record of another party.

        Raises:
            MalformedMessage: a field is missing or of another type, or the protocol is none that is known here.
        """
        protocol = _field(record, "protocol", str)
        if protocol not in PROTOCOLS:
            raise MalformedMessage(
                f"the server asks for the protocol {protocol!r}, which this version has not; update secagg",
                reason=Reason.WRONG_VERSION,
            )
        metrics = cast("list[object]", _field(record, "metrics", list))
        if any(type(name) is not str for name in metrics):
            raise _malformed("metrics")
        return cls(
            protocol=protocol,
            offer=_field(record, "offer", bytes),
            evidence=_field(record, "evidence", bytes),
            parameters=_field(record, "parameters", bytes),
            weighted_by=_field(record, "weighted-by", str),
            weighting=_field(record, "weighting", str),
            weight_unit=_field(record, "weight-unit", int),
            maximum_weight=_field(record, "maximum-weight", int),
            metrics=tuple(cast("list[str]", metrics)),
            round_number=_field(record, "round", int),
            task=_field(record, "task", str),
        )


def with_message(message: bytes) -> RecordDict:
    """Return the records that carry one message of the protocol."""
    if len(message) <= _LARGE_BYTES:
        return RecordDict({RECORD: ConfigRecord({"stage": PROTOCOL_STAGE, "message": message})})
    array = Array("uint8", (len(message),), "secagg.message", message)
    return RecordDict({RECORD: ConfigRecord({"stage": PROTOCOL_STAGE}), LARGE_RECORD: ArrayRecord({"message": array})})


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
    raise _malformed("message")


def refusal(message: Message) -> Message:
    """Return what a server is told where a client leaves: that it left, and never why."""
    return Message(Error(MOD_FAILED, LEFT_ROUND), reply_to=message)


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


def _field(record: ConfigRecord, name: str, kind: type[Kind]) -> Kind:
    value = record.get(name)
    if type(value) is not kind:
        raise _malformed(name)
    return value


def _malformed(name: str) -> MalformedMessage:
    return MalformedMessage(
        f"the {RECORD} record lacks {name!r}, or it is of another type; use one version of secagg at both ends",
        reason=Reason.NOT_CANONICAL,
    )
