"""Messages of one sum; each begins with T0, so none is taken for another sum's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from secagg.crypto.labels import Label, bind
from secagg.errors import UNDECIDED, MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.wire import MessageKind, Reader, Writer

from .configuration import Configuration

_MAXIMUM_BYTES: Final = (1 << 32) - 1
Entries = Mapping[ClientId, bytes]


def encode_body(kind: MessageKind, configuration: Configuration, body: bytes) -> bytes:
    """Return a message of one field: a key, a masked input, or the sum of pieces."""
    return Writer(kind).fixed(configuration.context.digest, 32).variable(body, _MAXIMUM_BYTES).finish()


def decode_body(kind: MessageKind, configuration: Configuration, message: bytes) -> bytes:
    """Read a message of one field back.

    Raises:
        MalformedMessage, PeerMisbehaved: it is not canonical, or another sum's.
    """
    reader = _begun(kind, configuration, message)
    body = reader.variable(_MAXIMUM_BYTES)
    reader.finish()
    return body


def encode_entries(kind: MessageKind, configuration: Configuration, entries: Entries) -> bytes:
    """Return a message of one field for each client: keys, or sealed pieces; nothing but the clients in a set."""
    writer = Writer(kind).fixed(configuration.context.digest, 32).integer(len(entries), 4)
    for client in sorted(entries):
        writer.fixed(client.encode(), CLIENT_ID_BYTES).variable(entries[client], _MAXIMUM_BYTES)
    return writer.finish()


def decode_entries(kind: MessageKind, configuration: Configuration, message: bytes) -> dict[ClientId, bytes]:
    """Read a message of entries back, by increasing client.

    Raises:
        MalformedMessage, PeerMisbehaved: it is not canonical, or another sum's.
    """
    reader = _begun(kind, configuration, message)
    count = reader.integer(4)
    if count > configuration.population:
        raise MalformedMessage("more entries than clients", reason=Reason.LENGTH_OVER_LIMIT)
    entries, clients = dict[ClientId, bytes](), list[ClientId]()
    for _ in range(count):
        clients.append(ClientId(reader.integer(CLIENT_ID_BYTES)))
        entries[clients[-1]] = reader.variable(_MAXIMUM_BYTES)
    reader.finish()
    if clients != sorted(set(clients)):
        raise MalformedMessage("entries have increasing clients", reason=Reason.NOT_CANONICAL)
    return entries


def _begun(kind: MessageKind, configuration: Configuration, message: bytes) -> Reader:
    reader = Reader(message, kind)
    if reader.fixed(32) != configuration.context.digest:
        raise PeerMisbehaved("the message was made for another sum", reason=Reason.WRONG_SESSION, culprits=UNDECIDED)
    return reader


def roster_digest(configuration: Configuration, keys: Entries) -> bytes:
    """Return what pieces are sealed under: every client's key, in order."""
    parts = [part for client in sorted(keys) for part in (client.encode(), keys[client])]
    return hashlib.sha256(bind(Label.CODED_MASK_ROSTER, configuration.context.digest, *parts)).digest()


def sealing_info(roster: bytes, sender: ClientId, receiver: ClientId) -> bytes:
    """Return what one piece is sealed under."""
    return bind(Label.CODED_MASK_SEALING, roster, sender.encode(), receiver.encode())
