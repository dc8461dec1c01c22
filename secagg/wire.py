"""Canonical bytes: one encoding per value, lengths checked before anything is read or allocated.

Integers have a fixed length and are big-endian; whether a field is there follows from the session or from a flag; a
decoder refuses bytes that it does not consume. Decoding and encoding again gives the same bytes; each message has a
test of this.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any, Final

from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason, UnexpectedMessage

WIRE_VERSION: Final = 1
FORM: Final = 3
"""Form of this version's messages; any change of their bytes raises it."""
CHECKED_FORM: Final = 3
"""The newest form that came with a check. Sessions of earlier forms lack the check, so they are not used."""
FORMS: Final = range(max(CHECKED_FORM, FORM - 1), FORM + 1)
"""Forms that this version supports: its own and the previous one, unless that lacks a check."""
_HEADER = struct.Struct(">4sBH")
HEADER_BYTES: Final = _HEADER.size
_MAGIC = b"SAGG"


class MessageKind(IntEnum):
    """All kinds of messages; bytes of one kind never decode as another."""

    LAYOUT = 1
    PAYLOAD = 2
    AGGREGATE = 3
    PUBLIC_PARAMETERS = 4
    HELD_MODEL = 5
    DOWNLINK_SUM = 6
    SESSION_OFFER = 16
    KEY_ADVERTISEMENT = 17
    ADVERTISED_KEYS = 18
    ENCRYPTED_SHARES = 19
    DELIVERED_SHARES = 20
    MASKED_INPUT = 21
    SURVIVOR_SET = 22
    SURVIVOR_SIGNATURE = 23
    UNMASKING_REQUEST = 24
    UNMASKING_SHARES = 25
    SERVER_SNAPSHOT = 26
    CLIENT_SNAPSHOT = 27
    COMPLAINT = 28
    ENCLAVE_CONFIGURATION = 32
    ENCLAVE_OFFER = 33
    ENCLAVE_UPLOAD = 34
    SEALED_UPLOAD = 35
    BUFFER_RELEASE = 36
    RELEASE_RECEIPT = 37
    ANNOUNCE_MODEL = 38
    SHORT_UPLOAD = 39
    START_ENCLAVE = 40
    ATTESTED_OFFER = 41
    OPEN_BUFFER = 42
    RELEASE_BUFFER = 43
    GIVE_UP_BUFFER = 44
    DESTROY_ENCLAVE = 45
    ENCLAVE_DONE = 46
    REFUSAL = 47
    ENCLAVE_INVITATION = 48
    TWO_SERVERS_INVITATION = 49
    ONE_HOT_PROOF = 64
    ONE_HOT_COMMITMENT = 65
    ONE_HOT_OPENING = 66
    INDEXING_CONFIGURATION = 67
    INDEXING_OFFER = 68
    INDEXING_UPLOAD = 69
    INDEXING_PROPOSAL = 70
    INDEXING_ANSWER = 71
    INDEXING_CONCLUSION = 72
    ACCEPTED_LIST = 73
    OUTPUT_COMMITMENT = 74
    OUTPUT_SHARE = 75
    INDEXING_KEYS = 80
    INDEXING_DONE = 84
    BEGIN_ROUND = 86
    PROPOSE_UPLOADS = 87
    UPLOAD_HALVES = 88
    ROUND_OFFERS = 89
    OPERATOR_KEYS = 90
    ONE_MESSAGE_RECORD = 100
    ONE_MESSAGE_HOLDER_KEYS = 101
    ONE_MESSAGE_OFFER = 102
    ONE_MESSAGE_UPLOAD = 103
    ONE_MESSAGE_DELIVERY = 104
    ONE_MESSAGE_RECEIPT = 105
    ONE_MESSAGE_LIST = 106
    ONE_MESSAGE_LIST_SIGNATURE = 107
    ONE_MESSAGE_CERTIFIED_LIST = 108
    ONE_MESSAGE_ANSWER = 109
    ONE_MESSAGE_CONFIGURATION = 110
    ONE_MESSAGE_OFFER_RECEIPT = 111
    ONE_MESSAGE_CLIENT_RECORD = 112
    LIGHT_SECAGG_OFFER = 120
    LIGHT_SECAGG_KEY = 121
    LIGHT_SECAGG_ROSTER = 122
    LIGHT_SECAGG_PIECES = 123
    LIGHT_SECAGG_DELIVERY = 124
    LIGHT_SECAGG_INPUT = 125
    LIGHT_SECAGG_SURVIVORS = 126
    LIGHT_SECAGG_ANSWER = 127
    HTTP_SERVER_RECORD = 130
    HTTP_CLIENT_RECORD = 131
    GROUP_SUM = 146
    ENCLAVE_COLLATERAL = 147
    ENCLAVE_ENDORSEMENT = 148


def require_spoken(form: int, error: type[MalformedMessage | InvalidParameters] = MalformedMessage) -> int:
    """Return a form of messages if this version supports it.

    Raises:
        MalformedMessage: it does not; or the error that the caller names.
    """
    if form not in FORMS:
        raise error(
            f"the session has form {form} of secagg's messages, but this version supports form "
            f"{' and '.join(map(str, FORMS))}; use versions of secagg with a common form",
            reason=Reason.WRONG_VERSION,
        )
    return form


class Writer:
    """Builds one message; refuses values that do not fit their fields."""

    def __init__(self, kind: int) -> None:
        if not 0 <= kind < 1 << 16:
            raise InvalidParameters(f"a message kind must be an integer below 2^16; got {kind}")
        self._parts: list[bytes | memoryview] = [_HEADER.pack(_MAGIC, WIRE_VERSION, kind)]

    def integer(self, value: int, size: int) -> Writer:
        if size < 0 or not 0 <= value < 1 << (8 * size):
            raise InvalidParameters(f"{value} does not fit a field of {size} bytes")
        self._parts.append(value.to_bytes(size, "big"))
        return self

    def fixed(self, data: bytes, size: int) -> Writer:
        """Append bytes whose length the reader knows."""
        copied = bytes(data)
        if len(copied) != size:
            raise InvalidParameters(f"a field of {size} bytes got {len(copied)}")
        self._parts.append(copied)
        return self

    def borrowed(self, data: bytes | memoryview) -> Writer:
        """Append a large field without a copy; its memory must not change until the message is finished."""
        self._parts.append(data)
        return self

    def variable(self, data: bytes, limit: int) -> Writer:
        """Append bytes preceded by their length, at most ``limit``."""
        if len(data) > limit:
            raise InvalidParameters(f"a field of at most {limit} bytes got {len(data)}")
        return self.integer(len(data), 4).fixed(data, len(data))

    def finish(self) -> bytes:
        return b"".join(self._parts)


class Reader:
    """Decodes one message; refuses anything that ``Writer`` would not have written."""

    def __init__(self, message: bytes, kind: int) -> None:
        """Check the header: this version and this kind."""
        try:
            view = memoryview(message)
        except TypeError:
            raise Misuse(f"a message must be bytes; got {type(message).__name__}") from None
        if not view.c_contiguous:
            raise Misuse("a message must be contiguous; pass a copy of the view")
        self._view = view.cast("B").toreadonly()
        self._position = 0
        magic, version, received = _HEADER.unpack(self._take(_HEADER.size))
        if magic != _MAGIC:
            raise MalformedMessage("the bytes are not a secagg message", reason=Reason.NOT_CANONICAL)
        if version != WIRE_VERSION:
            raise MalformedMessage(
                f"wire version {version} is not {WIRE_VERSION}; both ends need the same", reason=Reason.WRONG_VERSION
            )
        if received != kind:
            raise UnexpectedMessage(expected=f"message kind {kind}", received=f"message kind {received}")

    def integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def fixed(self, size: int) -> bytes:
        return bytes(self._take(size))

    def variable(self, limit: int) -> bytes:
        """Read bytes preceded by their length; a length over ``limit`` is refused before anything is copied."""
        length = self.integer(4)
        if length > limit:
            raise MalformedMessage(
                f"a field declares {length} bytes, but the limit is {limit}", reason=Reason.LENGTH_OVER_LIMIT
            )
        return self.fixed(length)

    def view(self, size: int) -> memoryview:
        """Read exactly ``size`` bytes without a copy; the returned view keeps the message alive."""
        return self._take(size)

    def rest(self) -> memoryview:
        """Read the remaining bytes without a copy, for a message that ends in another encoding."""
        return self._take(len(self._view) - self._position)

    def finish(self) -> None:
        """Refuse bytes after the last field."""
        left = len(self._view) - self._position
        if left:
            raise MalformedMessage(f"{left} bytes follow the end of the message", reason=Reason.TRAILING_BYTES)

    def _take(self, size: int) -> memoryview:
        if size < 0:
            raise Misuse(f"a field's size must not be negative; got {size}")
        left = len(self._view) - self._position
        if size > left:
            raise MalformedMessage(f"expected {size} more bytes; {left} are left", reason=Reason.TRUNCATED)
        taken = self._view[self._position : self._position + size]
        self._position += size
        return taken


def owned_bytes(message: Any) -> bytes:  # noqa: ANN401 -- checked here
    """Return a message as bytes that no caller can change; copies it unless it is ``bytes``."""
    if type(message) is bytes:
        return message
    try:
        return bytes(memoryview(message))
    except TypeError:
        raise Misuse(f"a message must be bytes; got {type(message).__name__}") from None


def message_kind(message: bytes) -> MessageKind:
    """Return the kind of a message; reads only its header."""
    try:
        header = bytes(memoryview(message)[: _HEADER.size])
    except TypeError:
        raise Misuse(f"a message must be bytes; got {type(message).__name__}") from None
    received = int.from_bytes(header[-2:], "big")
    Reader(header, received)
    try:
        return MessageKind(received)
    except ValueError:
        raise MalformedMessage(f"{received} is not a message kind", reason=Reason.NOT_CANONICAL) from None
