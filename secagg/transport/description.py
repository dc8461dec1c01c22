"""What both ends of a wire know: the session description, the limits of its server, and how events are logged."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.session.run import Limits

NAME_BYTES: Final = 16
DESCRIPTION_BYTES: Final = 1 << 20
_NUMBERS: Final = 1 << 63
STAGE_HEADER: Final = "secagg-stage"
BACK_SECONDS: Final = 10.0
"""Within which a client comes back that lost its server; so long a server waits for it, and tells how a sum ended."""
COPIES: Final = 2
"""Times that an answer is in memory while it is read: as it came, and as it is handed on."""
LONGEST_PAUSE: Final = BACK_SECONDS / 2
"""Pause of a client between two tries. Each client's pauses are half to one and a half times as long as another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """Limits that a server holds clients to; times are seconds."""

    stages: Limits = field(default_factory=lambda: Limits(exchange=60.0, training=600.0, least=BACK_SECONDS))
    """Times for which each stage is open."""
    answer_bytes: int = 1 << 28
    """No answer is longer."""
    memory: int = 1 << 30
    """Bytes for the answers that are being read or judged, with their copies; others wait in their connections."""
    grace: float = 10.0
    """Seconds for an answer, in addition to its length at ``slowest``; and for the head of a request."""
    slowest: float = 1 << 14
    """Bytes each second of an answer, at least."""
    poll: float = 25.0
    """Seconds that a request for a message waits for one."""
    connections: int = 2000
    """Greatest number of connections; beyond it the one that has been idle longest is closed."""

    def __post_init__(self) -> None:
        numbers = (self.answer_bytes, self.memory, self.grace, self.slowest, self.poll, self.connections)
        # Written so that NaN is refused too.
        if not all(number > 0 for number in numbers):
            raise InvalidParameters("the limits of a wire are positive numbers")
        if COPIES * self.answer_bytes > self.memory:
            raise InvalidParameters(
                f"an answer of {self.answer_bytes:,} bytes is held twice while it is read, and memory is "
                f"{self.memory:,} bytes; give {COPIES * self.answer_bytes:,} bytes or more"
            )

    def seconds_for(self, length: int) -> float:
        """Return how long an answer may take to arrive."""
        return self.grace + length / self.slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDescription:
    """One session, as clients are told of it. They hold its server to nothing here but ``terms``."""

    session: str
    """Its name: 32 hexadecimal digits, drawn for it."""
    protocol: str
    task: str
    round_number: int
    answer_bytes: int
    mode: str = "semi_honest"
    """Whether clients trust the server to follow the protocol, or, in ``active`` mode, keys that others certified."""
    terms: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further terms of the application, as JSON; bind their ``terms_digest`` to the subject."""
    must_know: tuple[str, ...] = ()
    """Fields that a client of another version may not pass over; it passes over all others that it does not know."""

    def __post_init__(self) -> None:
        texts, numbers = ("session", "protocol", "task", "mode"), ("round_number", "answer_bytes")
        kinds = dict.fromkeys(texts, str) | dict.fromkeys(numbers, int) | {"terms": dict}
        for name, kind in kinds.items():
            if type(getattr(self, name)) is not kind:
                raise InvalidParameters(f"{name} of a session description is of another type")
        if not all(getattr(self, name).isprintable() for name in texts):
            raise InvalidParameters(
                "the texts of a session description are shown to people; leave control characters out"
            )
        is_name = len(self.session) == 2 * NAME_BYTES and set(self.session) <= set("0123456789abcdef")
        if not is_name or not 0 <= self.round_number < _NUMBERS or not 0 < self.answer_bytes < _NUMBERS:
            raise InvalidParameters("a session description has a session's name, and numbers that are not negative")

    def encode(self) -> bytes:
        """Return it as JSON; terms are a text in it and the round is digits, so that every reader keeps them."""
        said = asdict(self) | {"round_number": str(self.round_number), "terms": _text(self.terms)}
        if not self.must_know:
            del said["must_know"]
        return json.dumps(said).encode()

    @classmethod
    def decode(cls, encoded: bytes) -> SessionDescription:
        """Read one; fields that this version does not know are passed over, unless it must know them."""
        try:
            given = cast("dict[str, Any]", json.loads(encoded))
            needed = tuple(given.get("must_know", ()))
            if strange := [repr(name) for name in needed if name not in cls.__slots__]:
                raise MalformedMessage(
                    f"this session takes a client that knows {', '.join(strange)}; install the server's "
                    "version of secagg",
                    reason=Reason.WRONG_VERSION,
                )
            known: dict[str, Any] = {name: given[name] for name in cls.__slots__ if name in given}
            known["round_number"], known["terms"] = int(given["round_number"]), json.loads(given["terms"])
            known["must_know"] = needed
            description = cls(**known)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MalformedMessage(
                f"this is not a session description ({error})", reason=Reason.NOT_CANONICAL
            ) from None
        if (given["round_number"], given["terms"]) != (str(description.round_number), _text(description.terms)):
            raise MalformedMessage("this is not a session description (another form)", reason=Reason.NOT_CANONICAL)
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


def say(event: str, level: int = logging.INFO, **fields: str | float) -> None:
    """Log an event with its fields."""
    _LOG.log(level, event, extra={"fields": fields})
