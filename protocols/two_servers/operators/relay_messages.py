"""What a relaying server 0 says besides what servers say anyway: it begins a round, names a batch, carries two halves.

Both halves of an upload may travel through server 0. That of server 1 is sealed to server 1's key of the round, which
server 1 signed, so whoever relays it reads what server 0 is told anyway; and it is bound to the header that the client
signed, so whoever alters it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from secagg.fields import FLAG, Message, encoded, fixed, listed, repeated, unsigned, variable
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.server_messages import BATCH
from secagg.protocols.two_servers.upload import DIGEST_BYTES, ROUND_BYTES, Upload
from secagg.wire import MessageKind, Reader, Writer

_LENGTH_BYTES = 8
MAXIMUM_BEGINNING_BYTES = 1 << 16
"""No request to begin a round is longer; see ``configuration.MAXIMUM_SEGMENTS``."""
_MAXIMUM_OFFER_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Beginning(Message):
    """The request that server 1 begins a round under a configuration."""

    kind: ClassVar = MessageKind.BEGIN_ROUND
    configuration: Annotated[IndexingConfiguration, encoded(IndexingConfiguration, MAXIMUM_BEGINNING_BYTES)]
    round_number: Annotated[int, unsigned(ROUND_BYTES)]


@dataclass(frozen=True, slots=True)
class BatchRequest(Message):
    """The request that server 1 proposes these uploads."""

    kind: ClassVar = MessageKind.PROPOSE_UPLOADS
    uploads: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), BATCH)]


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
