"""What a relaying server 0 says besides what servers say anyway: it begins a round, names a batch, carries two halves.

Both halves of an upload may travel through server 0. That of server 1 is sealed to server 1's key of the round, which
server 1 signed, so whoever relays it reads what server 0 is told anyway; and it is bound to the header that the client
signed, so whoever alters it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from secagg.errors import MalformedMessage, Reason
from secagg.fields import FLAG, Message, listed, variable
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.server_messages import BATCH
from secagg.protocols.two_servers.uploads.upload import DIGEST_BYTES, ROUND_BYTES, Upload
from secagg.wire import MessageKind, Reader, Writer

_LENGTH_BYTES = 8
MAXIMUM_BEGINNING_BYTES = 1 << 16
"""No request to begin a round is longer; see ``configuration.MAXIMUM_SEGMENTS``."""
_MAXIMUM_OFFER_BYTES = 1 << 14


def encode_beginning(configuration: IndexingConfiguration, round_number: int) -> bytes:
    """Return the request that server 1 begins a round under a configuration."""
    writer = Writer(MessageKind.BEGIN_ROUND).integer(round_number, ROUND_BYTES)
    return writer.borrowed(configuration.encode()).finish()


def decode_beginning(message: bytes) -> tuple[IndexingConfiguration, int]:
    """Read the request to begin a round back.

    Raises:
        MalformedMessage, UnexpectedMessage: anything that ``encode_beginning`` would not have written.
    """
    reader = Reader(message, MessageKind.BEGIN_ROUND)
    round_number = reader.integer(ROUND_BYTES)
    return IndexingConfiguration.decode(bytes(reader.rest())), round_number


def encode_batch_request(uploads: list[bytes]) -> bytes:
    """Return the request that server 1 proposes these uploads."""
    writer = Writer(MessageKind.PROPOSE_UPLOADS).integer(len(uploads), 4)
    for upload_id in uploads:
        writer.fixed(upload_id, DIGEST_BYTES)
    return writer.finish()


def decode_batch_request(message: bytes) -> list[bytes]:
    """Read the request for a proposal back.

    Raises:
        MalformedMessage, UnexpectedMessage: anything that ``encode_batch_request`` would not have written.
    """
    reader = Reader(message, MessageKind.PROPOSE_UPLOADS)
    count = reader.integer(4)
    if count > BATCH:
        raise MalformedMessage(
            f"a batch names {count} uploads and {BATCH} is the limit", reason=Reason.LENGTH_OVER_LIMIT
        )
    uploads = [reader.fixed(DIGEST_BYTES) for _ in range(count)]
    reader.finish()
    return uploads


def encode_halves(zero: Upload, one: Upload) -> bytes:
    """Return both halves of an upload as the one message that a client sends to server 0."""
    first = zero.encode()
    writer = Writer(MessageKind.UPLOAD_HALVES).integer(len(first), _LENGTH_BYTES)
    return writer.borrowed(first).borrowed(one.encode()).finish()


def decode_halves(message: bytes) -> tuple[bytes, bytes]:
    """Take both halves apart; neither is looked at.

    Raises:
        MalformedMessage, UnexpectedMessage: anything that ``encode_halves`` would not have written.
    """
    reader = Reader(message, MessageKind.UPLOAD_HALVES)
    first = bytes(reader.view(reader.integer(_LENGTH_BYTES)))
    return first, bytes(reader.rest())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOffers(Message):
    """Both servers' offers as server 0 shows them to a client, and whether it says that server 1 is simulated."""

    kind: ClassVar = MessageKind.ROUND_OFFERS
    is_simulated: Annotated[bool, FLAG]
    offers: Annotated[
        tuple[bytes, bytes], listed(variable(_MAXIMUM_OFFER_BYTES), lambda _: range(2), "twice 4 + an offer")
    ]
