"""What a session is about, besides what the protocol's own invitation holds, as both ends of a platform have it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from typing import Final, cast

from secagg.crypto.labels import Label, bind
from secagg.errors import MalformedMessage, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId

RECORD: Final = "secagg"
"""The name under which both ends of a platform keep what is the protocol's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a session is about; the digest is bound to the protocol's invitation."""

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
    lengths: tuple[float, ...]
    """What is known of the joined tensors' lengths from the round before, which clients tell theirs relative to."""
    round_number: int
    task: str
    parameters: bytes = field(repr=False)
    """The public parameters of every tensor's scheme, whose digest is the version of the layout."""

    @property
    def small(self) -> str:
        """All but the parameters, as text."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "parameters"})

    @property
    def digest(self) -> bytes:
        """The digest of all but the parameters."""
        return hashlib.sha256(bind(Label.PLATFORM_TERMS, self.small.encode())).digest()

    @classmethod
    def parsed(cls, small: object, parameters: object) -> Terms | None:
        """Read the terms of another party, if there are any.

        Raises:
            MalformedMessage: a field is missing or of another type.
        """
        if not small:
            return None
        try:
            given = cast("dict[str, object]", json.loads(str(small)))
            for name in ("metrics", "joined", "lengths"):
                given[name] = tuple(cast("list[object]", given[name]))
            terms = cls(**given, parameters=parameters)  # type: ignore[arg-type]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise malformed("terms") from None
        kinds = {
            "str": str,
            "int": int,
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


def parsed_client(named: object) -> ClientId:
    """Read which client an answer says it is of.

    Raises:
        MalformedMessage: it does not say so.
    """
    if not isinstance(named, bytes) or len(named) != CLIENT_ID_BYTES:
        raise malformed("client")
    return ClientId(int.from_bytes(named, "big"))


def malformed(name: str) -> MalformedMessage:
    """Return what is wrong with a record that lacks something."""
    return MalformedMessage(
        f"the {RECORD} record lacks {name!r}, or it is of another type; use one version of secagg at both ends",
        reason=Reason.NOT_CANONICAL,
    )
