"""Length-prefixed messages between processes on one machine, over Unix sockets that only one user can connect to.

A refused request is answered with its error: class, reason, sentence and culprits, but no traceback or cause.
"""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final, Protocol

from secagg.declared import Message, fixed, repeated, unsigned, variable
from secagg.errors import (
    AuthenticationFailed,
    CapacityExceeded,
    ContractViolation,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
    named,
)
from secagg.identifiers import CLIENT_ID_BYTES, ClientId, HolderId, Party, ServerId
from secagg.wire import MessageKind

# --- Frames -----------------------------------------------------------------------------------------------------------

PARTY_BYTES: Final = 1 + CLIENT_ID_BYTES
MAXIMUM_TEXT_CHARACTERS: Final = 1 << 10
MAXIMUM_TEXT_BYTES: Final = 4 * MAXIMUM_TEXT_CHARACTERS
REFUSALS: Final = (
    InvalidParameters,
    Misuse,
    MalformedMessage,
    UnexpectedMessage,
    AuthenticationFailed,
    PeerMisbehaved,
    ThresholdNotMet,
    CapacityExceeded,
    ContractViolation,
    InternalError,
)
"""Errors that are sent to another process, each identified by its position."""
_LENGTH_BYTES: Final = 8
_PIECE_BYTES: Final = 1 << 20
_OWNER_ONLY: Final = 0o600
_REASONS: Final[dict[type[SecAggError], Reason]] = {
    AuthenticationFailed: Reason.AUTHENTICATION_FAILED,
    ThresholdNotMet: Reason.THRESHOLD_NOT_MET,
    InternalError: Reason.INTERNAL_ERROR,
}
"""Errors that are only raised for one reason."""


# --- The socket -------------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """Destination of bytes: a socket, or a machine's port."""

    def sendall(self, data: bytes, /) -> None: ...


def send_frame(connection: Sink, message: bytes) -> None:
    """Send a message with its length prefix."""
    connection.sendall(len(message).to_bytes(_LENGTH_BYTES, "big"))
    connection.sendall(message)


class Source(Protocol):
    """Source of bytes: a socket, possibly with a timeout."""

    def recv(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; an empty result means that the other end has closed."""
        ...


def receive_frame(connection: Source, limit: int, begun: bytes = b"") -> bytes:
    """Receive a message of at most ``limit`` bytes; allocates little more than what has arrived.

    ``begun`` is the part that was already received.

    Raises:
        MalformedMessage: the declared length exceeds the limit; none of it was read.
        ConnectionResetError: the other end closed the connection.
    """
    length = int.from_bytes(begun + _receive(connection, _LENGTH_BYTES - len(begun)), "big")
    if length > limit:
        sentence = f"a frame declares {length} bytes, but the limit is {limit}"
        raise MalformedMessage(sentence, reason=Reason.LENGTH_OVER_LIMIT)
    return _receive(connection, length)


def _receive(connection: Source, size: int) -> bytes:
    pieces = list[bytes]()
    while size:
        piece = connection.recv(min(size, _PIECE_BYTES))
        if not piece:
            raise ConnectionResetError("the other end closed the connection")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


@contextmanager
def listening(path: Path, *, replaces_dead: bool = False) -> Generator[socket.socket]:
    """Listen at an unused path, for this user only; remove the socket at the end.

    Args:
        replaces_dead: whether to replace a socket that nobody listens to any more, such as one of a killed process. The
            caller must ensure that no other process is about to listen there.
    Raises:
        InvalidParameters: something else is at the path, or a socket cannot be created there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            if replaces_dead and _is_dead(path):
                path.unlink(missing_ok=True)
            listener.bind(str(path))
        except OSError as error:
            raise InvalidParameters(
                f"cannot create a socket at {path} ({error}); remove an old socket, or use another path"
            ) from None
        try:
            # Nobody can connect before ``listen``, so the mode that ``bind`` sets is never used.
            path.chmod(_OWNER_ONLY)
            listener.listen()
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _is_dead(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        return False


# --- Refusals ---------------------------------------------------------------------------------------------------------

_TEXT: Final = variable(MAXIMUM_TEXT_BYTES)
_PARTIES: Final = (ClientId, ServerId, HolderId)


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """An error as sent to another process."""

    kind: ClassVar = MessageKind.REFUSAL
    error: Annotated[int, unsigned(1)]
    """Its class, by position in ``REFUSALS``."""
    reason: Annotated[bytes, _TEXT]
    sentence: Annotated[bytes, _TEXT]
    expected: Annotated[bytes, _TEXT]
    received: Annotated[bytes, _TEXT]
    needed: Annotated[int, unsigned(8)]
    present: Annotated[int, unsigned(8)]
    culprits: Annotated[tuple[bytes, ...], repeated(fixed(PARTY_BYTES), 255, size=1)]


def encode_refusal(error: SecAggError) -> bytes:
    """Encode an error: its class, reason, sentence and culprits, and the extra fields of two classes."""
    needed, present, expected, received = 0, 0, "", ""
    if isinstance(error, ThresholdNotMet):
        needed, present = error.needed, error.present
    if isinstance(error, UnexpectedMessage):
        expected, received = error.expected, error.received
    culprits = error.culprits if isinstance(error, PeerError) else frozenset[Party]()
    return Refusal(
        error=REFUSALS.index(type(error)),
        reason=_cut(error.reason.value),
        sentence=_cut(str(error)),
        expected=_cut(expected),
        received=_cut(received),
        needed=needed,
        present=present,
        culprits=tuple(sorted(map(_encode_party, culprits))),
    ).encode()


def _cut(text: str) -> bytes:
    return text[:MAXIMUM_TEXT_CHARACTERS].encode(errors="replace")


def _encode_party(party: Party) -> bytes:
    match party:
        case ClientId(number):
            return b"\0" + number.to_bytes(PARTY_BYTES - 1, "big")
        case ServerId(number):
            return b"\1" + number.to_bytes(PARTY_BYTES - 1, "big")
        case HolderId(number):
            return b"\2" + number.to_bytes(PARTY_BYTES - 1, "big")
        case _:
            raise InternalError(f"a refusal names {party}, which cannot be encoded")


def decode_refusal(message: bytes) -> SecAggError:
    """Decode the error that another process refused with.

    Raises:
        MalformedMessage: anything that ``encode_refusal`` would not produce.
    """
    refusal = Refusal.decode(message)
    try:
        kind = REFUSALS[refusal.error]
        # As in unpickling: the constructors would compose the sentence again.
        error = kind.__new__(kind, refusal.sentence.decode())
        error.reason = Reason(refusal.reason.decode())
        culprits = frozenset(_PARTIES[party[0]](int.from_bytes(party[1:], "big")) for party in refusal.culprits)
        expected, received = refusal.expected.decode(), refusal.received.decode()
    except (IndexError, ValueError):
        raise MalformedMessage("this is not a refusal", reason=Reason.NOT_CANONICAL) from None
    if isinstance(error, PeerError):
        error.culprits = named(culprits)
    if isinstance(error, UnexpectedMessage):
        error.expected, error.received = expected, received
    if isinstance(error, ThresholdNotMet):
        error.needed, error.present = refusal.needed, refusal.present
    if encode_refusal(error) != message or _REASONS.get(kind, error.reason) is not error.reason:
        raise MalformedMessage("the refusal has fields that its class does not have", reason=Reason.NOT_CANONICAL)
    return error
