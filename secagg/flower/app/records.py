"""What travels between the grid and the mod: one config record, beside it one array record where a message is large."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Final, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from secagg.crypto.labels import Label, bind
from secagg.errors import CapacityExceeded, MalformedMessage, Misuse, Reason, SecAggError
from secagg.identifiers import CLIENT_ID_BYTES, ClientId

RECORD: Final = "secagg"
LARGE_RECORD: Final = "secagg.large"
LEGACY_ARRAYS: Final = "fitins.parameters"
MOD_FAILED: Final = 6
"""Flower's code for a mod that refuses a message."""
_LEFT: Final = "secagg: this client left the round; code: "
_LARGE_BYTES: Final = 1 << 20
"""Beyond this a message goes into an array, which Flower sends in pieces."""


class Left(StrEnum):
    """Why a client left, as far as the server is told. Each is as much as the server could have tried out anyway."""

    TERMS = "terms"
    """The server's offer is below this client's floors, or about something else than the server says."""
    WEIGHT = "weight"
    """The update weighs more than secagg-maximum-weight."""
    RANGE = "range"
    """The update holds NaN, or an integer that changed by more than its bound."""
    REPEAT = "repeat"
    """The client has no session to go on with, or uploaded for this round, or this update, before."""
    TRAINING = "training"
    """Training failed, or returned something else than it should."""
    OTHER = "other"
    """Something else; the client's own log says what."""


ADVICE: Final[Mapping[Left, str]] = {
    Left.TERMS: "the offer is below their floors, or not what they were told; compare it with SecAggMod's arguments",
    Left.WEIGHT: "their updates weigh more than secagg-maximum-weight; raise it, or secagg-weight-unit",
    Left.RANGE: "their updates hold NaN, or an integer changed by more than its bound",
    Left.REPEAT: "they restarted, or have uploaded for this round, or of this model, before",
    Left.TRAINING: "training failed there, or returned other tensors or metrics than it should",
    Left.OTHER: "their own logs say why",
}
"""What a server's log says of a code."""


class TrainingFailed(Misuse):
    """The app's own function failed, or returned what cannot be summed."""


class TooHeavy(CapacityExceeded):
    """An update weighs more than the run allows."""


def code_of(error: Exception) -> Left:
    """Return what the server is told of an error."""
    if isinstance(error, TrainingFailed):
        return Left.TRAINING
    if isinstance(error, TooHeavy):
        return Left.WEIGHT
    match error.reason if isinstance(error, SecAggError) else None:
        case Reason.BELOW_FLOOR | Reason.LAYOUT_MISMATCH | Reason.WRONG_VERSION | Reason.PARAMETER_OUT_OF_RANGE:
            return Left.TERMS
        case Reason.INPUT_OUT_OF_RANGE:
            return Left.RANGE
        case Reason.ALREADY_SPENT | Reason.ALREADY_ANSWERED:
            return Left.REPEAT
        case _:
            return Left.OTHER


def refusal(message: Message, error: Exception) -> Message:
    """Return what a server is told where a client leaves: that it left, and one of a few codes."""
    return Message(Error(MOD_FAILED, _LEFT + code_of(error)), reply_to=message)


def code_in(reply: Message) -> Left:
    """Return the code of a client that left; that of anything else is the last one."""
    said = str(reply.error.reason or "").removeprefix(_LEFT)
    return next((code for code in Left if code == said), Left.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a session is about, besides what the protocol's own invitation holds; the digest is bound to that."""

    protocol: str
    is_certified: bool
    """Whether clients are known by their keys, and not as nodes."""
    weighted_by: str
    weighting: str
    weight_unit: int
    maximum_weight: int
    metrics: tuple[str, ...]
    joined: tuple[str, ...]
    """The tensors that travel as one vector, in their order."""
    round_number: int
    task: str
    parameters: bytes = field(repr=False)
    """The public parameters of every tensor's scheme, whose digest is the version of the layout."""

    @property
    def _small(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if name != "parameters"})

    @property
    def digest(self) -> bytes:
        """The digest of all but the parameters."""
        return hashlib.sha256(bind(Label.FLOWER_INVITATION, self._small.encode())).digest()

    def write(self, record: ConfigRecord) -> None:
        """Put the terms into a record."""
        record["terms"], record["parameters"] = self._small, self.parameters

    @classmethod
    def read(cls, record: ConfigRecord) -> Terms | None:
        """Read the terms in a record of another party, if there are any.

        Raises:
            MalformedMessage: a field is missing or of another type.
        """
        small, parameters = record.get("terms"), record.get("parameters")
        if not small:
            return None
        try:
            given = cast("dict[str, object]", json.loads(str(small)))
            for name in ("metrics", "joined"):
                given[name] = tuple(cast("list[object]", given[name]))
            terms = cls(**given, parameters=parameters)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise malformed("terms") from None
        kinds = {"str": str, "int": int, "bool": bool, "bytes": bytes, "tuple[str, ...]": tuple}
        if any(type(getattr(terms, item.name)) is not kinds[str(item.type)] for item in fields(cls)):
            raise malformed("terms")
        if any(type(name) is not str for name in (*terms.metrics, *terms.joined)) or terms.round_number < 0:
            raise malformed("terms")
        return terms


def with_message(message: bytes, client: ClientId | None = None, terms: Terms | None = None) -> RecordDict:
    """Return the records that carry one message of the protocol.

    Args:
        client: who answers; the session holds the claim to what the message itself proves.
    """
    record, found = ConfigRecord(), RecordDict()
    if client is not None:
        record["client"] = client.encode()
    if terms is not None:
        terms.write(record)
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
    named = None if record is None else record.get("client")
    if not isinstance(named, bytes) or len(named) != CLIENT_ID_BYTES:
        raise malformed("client")
    return ClientId(int.from_bytes(named, "big"))


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


def malformed(name: str) -> MalformedMessage:
    """Return what is wrong with a record that lacks something."""
    return MalformedMessage(
        f"the {RECORD} record lacks {name!r}, or it is of another type; use one version of secagg at both ends",
        reason=Reason.NOT_CANONICAL,
    )
