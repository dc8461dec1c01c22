"""Terms of a round, and the records that carry them and the messages of a session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final, cast

from secagg.compression.model_update import ModelUpdate
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.session.roles import Subject
from secagg.wire import FORM

from .schemes import norms_in_steps

NEWEST_FORM: Final = bytes([FORM])
RECORD: Final = "secagg"
"""Name of the protocol's record at both ends of a platform."""
Record = dict[str, str | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a session; the digest is bound to the protocol's invitation."""

    protocol: str
    is_certified: bool
    """Whether keys identify clients, rather than nodes."""
    adapter: str
    """Fingerprint of the trained adapter; empty if none was named."""
    weighted_by: str
    full: int
    """Number of examples that count fully; 1 with uniform weights."""
    max_norm: float
    """Maximum norm of a change, above which an enclave scales it down; 0 for any."""
    max_norm_unenforced: float
    """Maximum norm of a change, above which an honest client scales it down; 0 for any."""
    metrics: tuple[str, ...]
    joined: tuple[str, ...]
    """Tensors that are sent as one vector, in order."""
    lengths: tuple[float, ...]
    """Lengths of the joined tensors from the previous round; clients report theirs relative to these."""
    round_number: int
    task: str
    parameters: bytes = field(repr=False)
    """Public parameters of every tensor's scheme; their digest is the version of the layout."""

    @property
    def small(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if name != "parameters"})

    def subject(self, update: ModelUpdate, model_digest: bytes | None) -> Subject:
        return Subject(
            task=self.task.encode(),
            round_number=self.round_number,
            layout=update.layout,
            capacity=update.capacity,
            tables=update.tables,
            terms=self.digest,
            model_digest=model_digest,
            zero_points=norms_in_steps(self.max_norm, update)[1],
        )

    @property
    def record(self) -> Record:
        return {"terms": self.small, "parameters": self.parameters}

    @property
    def digest(self) -> bytes:
        """Digest of all but the parameters."""
        return hashlib.sha256(bind(Label.PLATFORM_TERMS, self.small.encode())).digest()

    @classmethod
    def parsed(cls, record: object) -> Terms | None:
        """Read the terms in another party's record, if any; they come with the first message."""
        if not (small := _field(record, "terms")):
            return None
        try:
            given, parameters = cast("dict[str, object]", json.loads(str(small))), _field(record, "parameters")
            for name in ("metrics", "joined", "lengths"):
                given[name] = tuple(cast("list[object]", given[name]))
            terms = cls(**given, parameters=parameters)  # type: ignore[arg-type]
            terms.task.encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise malformed("terms") from None
        kinds = {
            "str": str,
            "int": int,
            "float": float,
            "bool": bool,
            "bytes": bytes,
            "tuple[str, ...]": tuple,
            "tuple[float, ...]": tuple,
        }
        if any(type(getattr(terms, item.name)) is not kinds[str(item.type)] for item in fields(cls)):
            raise malformed("terms")
        if any(type(name) is not str for name in (*terms.metrics, *terms.joined)) or terms.round_number < 0:
            raise malformed("terms")
        if any(type(length) is not float for length in terms.lengths):
            raise malformed("terms")
        return terms


def record_of(
    message: bytes, client: ClientId | None = None, terms: Terms | None = None, signature: bytes = b""
) -> Record:
    """Return the record of one protocol message; an answer names its client, and the newest form that it supports."""
    record: Record = {"message": message}
    if client is not None:
        record |= {"client": client.encode(), "signature": signature, "newest_form": NEWEST_FORM}
    if terms is not None:
        record |= terms.record
    return record


def message_in(record: object) -> bytes:
    """Return the protocol's message."""
    found = _field(record, "message")
    if not isinstance(found, bytes) or not found:
        raise malformed("message")
    return found


def client_in(record: object) -> ClientId:
    """Return the client that an answer names."""
    named = _field(record, "client")
    if not isinstance(named, bytes) or len(named) != CLIENT_ID_BYTES:
        raise malformed("client")
    return ClientId(int.from_bytes(named, "big"))


def newest_form_in(record: object) -> bytes:
    """Return the newest form of messages that an answer's client supports, in one byte; signed with the answer."""
    found = _field(record, "newest_form")
    if not isinstance(found, bytes) or len(found) != 1:
        raise malformed("newest_form")
    return found


def signature_in(record: object) -> bytes:
    """Return the signature of an answer's client; empty if there is none."""
    found = _field(record, "signature")
    return found if isinstance(found, bytes) else b""


def record_bytes(record: object) -> int:
    """Return the number of protocol bytes in a record."""
    fields = cast("Mapping[str, object]", record).values() if isinstance(record, Mapping) else ()
    return sum(len(value) for value in fields if isinstance(value, bytes | str))


def _field(record: object, name: str) -> object:
    return cast("Mapping[str, object]", record).get(name) if isinstance(record, Mapping) else None


def malformed(name: str) -> MalformedMessage:
    """Return the error of a record that lacks a field."""
    return MalformedMessage(
        f"the {RECORD} record lacks {name!r}, or it has another type; use one version of secagg at both ends",
        reason=Reason.NOT_CANONICAL,
    )


COUNTED: Final = frozenset(("num-examples", "num_examples", "NUM_STEPS_CURRENT_ROUND"))
"""Names under which platforms' apps report numbers of examples or steps."""


def require_metrics(terms: Terms) -> None:
    """Refuse a number of examples among the metrics: its exact sums over many cohorts reveal each client's number."""
    if shown := sorted({*terms.metrics} & {*COUNTED, terms.weighted_by}):
        raise InvalidParameters(
            f"the metrics name {shown[0]!r}, a number of examples, which exact sums over several cohorts would "
            "reveal: leave it out; every weighted sum includes the total of rounded numbers",
            reason=Reason.BELOW_FLOOR,
        )
