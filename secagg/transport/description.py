"""Session description, server limits, and event logging, shared by client and server."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.session.run import Limits
from secagg.wire import FORMS

NAME_BYTES: Final = 16
DESCRIPTION_BYTES: Final = 1 << 20
_NUMBERS: Final = 1 << 63
STAGE_HEADER: Final = "secagg-stage"
BACK_SECONDS: Final = 10.0
"""Seconds within which a client that lost its server returns; the server waits this long to report the outcome."""
COPIES: Final = 2
"""Number of copies of an answer in memory while it is read: as received and as passed on."""
LONGEST_PAUSE: Final = BACK_SECONDS / 2
"""Pause of a client between two attempts, times a random factor between 0.5 and 1.5 per client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """Limits that a server enforces on clients; times are in seconds."""

    stages: Limits = field(default_factory=lambda: Limits(exchange=60.0, training=600.0, least=BACK_SECONDS))
    """Times for which each stage is open."""
    answer_bytes: int = 1 << 28
    """Maximum length of an answer."""
    memory: int = 1 << 30
    """Bytes of memory for answers that are read or judged, with copies; others wait in their connections."""
    grace: float = 10.0
    """Seconds for an answer, in addition to its length divided by ``slowest``; also for the head of a request."""
    slowest: float = 1 << 14
    """Minimum bytes per second of an answer."""
    poll: float = 25.0
    """Seconds that a request for a message waits for one."""
    connections: int = 2000
    """Maximum number of connections; beyond it the longest idle one is closed."""

    def __post_init__(self) -> None:
        numbers = (self.answer_bytes, self.memory, self.grace, self.slowest, self.poll, self.connections)
        # This form also refuses NaN.
        if not all(number > 0 for number in numbers):
            raise InvalidParameters("all limits must be positive numbers")
        if COPIES * self.answer_bytes > self.memory:
            raise InvalidParameters(
                f"an answer of {self.answer_bytes:,} bytes is held twice while it is read, but memory is "
                f"{self.memory:,} bytes; set it to {COPIES * self.answer_bytes:,} bytes or more"
            )

    def seconds_for(self, length: int) -> float:
        """Return the maximum time for an answer to arrive."""
        return self.grace + length / self.slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDescription:
    """A server's description of one session for clients. Only ``terms`` bind the server."""

    session: str
    """Its name: 32 hexadecimal digits, drawn for it."""
    protocol: str
    task: str
    round_number: int
    answer_bytes: int
    mode: str = "semi_honest"
    """Whether clients trust the server to follow the protocol or, in ``active`` mode, keys certified by others."""
    terms: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further terms of the application, as JSON; bind their ``terms_digest`` to the subject."""
    form: int = FORMS[0]
    """Form of the session's messages, as in its offer; clients that do not support it report this and leave."""
    must_know: tuple[str, ...] = ()
    """Fields that a client of another version must not ignore; it ignores all other unknown fields."""
    _decoded: bytes = field(default=b"", init=False, repr=False, compare=False)
    """What it was decoded from; another version may encode it differently, and clients sign these bytes."""

    def __post_init__(self) -> None:
        texts, numbers = ("session", "protocol", "task", "mode"), ("round_number", "answer_bytes", "form")
        kinds = dict.fromkeys(texts, str) | dict.fromkeys(numbers, int) | {"terms": dict}
        for name, kind in kinds.items():
            if type(getattr(self, name)) is not kind:
                raise InvalidParameters(f"{name} in a session description has the wrong type")
        if not all(getattr(self, name).isprintable() for name in texts):
            raise InvalidParameters(
                "the texts of a session description must have no control characters, because they are shown to people"
            )
        is_name = len(self.session) == 2 * NAME_BYTES and set(self.session) <= set("0123456789abcdef")
        if not is_name or not 0 <= self.round_number < _NUMBERS or not 0 < self.answer_bytes < _NUMBERS:
            raise InvalidParameters("a session description needs a session's name and no negative numbers")

    def encode(self) -> bytes:
        """Return it as JSON, with the terms as a text and the round as digits, which every reader preserves."""
        said = asdict(self) | {"round_number": str(self.round_number), "terms": _text(self.terms)}
        for name in ("_decoded", *([] if self.must_know else ["must_know"])):
            del said[name]
        return self._decoded or json.dumps(said).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> SessionDescription:
        """Decode a description; ignores fields that this version does not know, unless it must know them."""
        try:
            given = cast("dict[str, Any]", json.loads(encoded))
            needed, fields = tuple(given.get("must_know", ())), [each for each in cls.__slots__ if each[0] != "_"]
            if strange := [repr(name) for name in needed if name not in fields]:
                raise MalformedMessage(
                    f"this session requires support for {', '.join(strange)}; install the server's version of secagg",
                    reason=Reason.WRONG_VERSION,
                )
            known: dict[str, Any] = {name: given[name] for name in fields if name in given}
            known["round_number"], known["terms"] = int(given["round_number"]), json.loads(given["terms"])
            known["must_know"], known["form"] = needed, given["form"]
            description = cls(**known)
            object.__setattr__(description, "_decoded", encoded)
            canonical = str(description.round_number), _text(description.terms)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MalformedMessage(
                f"this is not a session description ({error})", reason=Reason.NOT_CANONICAL
            ) from None
        if (given["round_number"], given["terms"]) != canonical:
            raise MalformedMessage("this is not a session description (unknown form)", reason=Reason.NOT_CANONICAL)
        return description


def new_name(coins: Coins) -> str:
    """Draw the name of a session."""
    return bytes(coins.draw(NAME_BYTES)).hex()


def terms_digest(terms: Mapping[str, Any]) -> bytes:
    """Return the digest of an application's terms."""
    return hashlib.sha256(bind(Label.HTTP_TERMS, _text(terms).encode())).digest()


def _text(terms: Mapping[str, Any]) -> str:
    return json.dumps(terms, sort_keys=True)


# --- The log ----------------------------------------------------------------------------------------------------------

_LOG: Final = logging.getLogger("secagg.transport")
TASK: Final = ContextVar("task", default="")
"""The current task; each line of a server's log names it."""


def say(event: str, level: int = logging.INFO, **fields: str | float) -> None:
    """Log an event with its fields."""
    _LOG.log(level, event, extra={"fields": fields})
