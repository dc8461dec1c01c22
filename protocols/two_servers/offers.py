"""What passes between servers and clients: offers, the invitation that shows both, and two halves in one message.

Both halves of an upload may travel through server 0. That of server 1 is sealed to server 1's key of the round, which
server 1 signed, so whoever relays it reads what server 0 is told anyway; and it is bound to the header that the client
signed, so whoever alters it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, NamedTuple

from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label
from secagg.errors import PeerMisbehaved, Reason, blaming
from secagg.fields import (
    CONTEXT,
    FLAG,
    SERVER,
    Field,
    Message,
    Placed,
    encoded,
    fixed,
    listed,
    sized,
    unsigned,
    variable,
    write_fields,
)
from secagg.identifiers import CONTEXT_BYTES, AttemptContext, ServerId
from secagg.session.certificates import SIGNATURE_BYTES, SigningKey, verify_signature
from secagg.wire import MessageKind, Reader, Writer

from .configuration import IndexingConfiguration
from .upload import ROUND_BYTES, Upload

_LENGTH_BYTES: Final = 8
_MAXIMUM_OFFER_BYTES: Final = 1 << 14
_MOST_BYTES: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStamp:
    """Which round of which task a message is of, and from which server."""

    context: Annotated[AttemptContext, CONTEXT]
    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    server: Annotated[ServerId, SERVER]

    def parts(self) -> tuple[bytes, ...]:
        """Return the parts that labels bind."""
        return self.context.digest, self.round_number.to_bytes(ROUND_BYTES, "big"), bytes([self.server.index])

    def write(self, kind: MessageKind) -> Writer:
        """Begin a message of this round."""
        writer = Writer(kind)
        write_fields(writer, self)
        return writer

    def read(self, message: bytes, kind: MessageKind) -> Reader:
        """Begin to read a message that is due from this server in this round.

        Raises:
            PeerMisbehaved: it is of another task or round, or from another server.
            MalformedMessage, UnexpectedMessage: it is no such message.
        """
        reader = Reader(message, kind)
        self.require(reader)
        return reader

    def require(self, reader: Reader) -> RoundStamp:
        """Read the stamp of a message that is due with this one."""
        if (reader.fixed(CONTEXT_BYTES), reader.fixed(ROUND_BYTES), reader.fixed(1)) != self.parts():
            raise PeerMisbehaved(
                "a message belongs to another configuration, round or server",
                reason=Reason.WRONG_SESSION,
                culprits=[self.server],
            )
        return self


class Due(NamedTuple):
    """Which stamp a message is due with, under which configuration."""

    stamp: RoundStamp
    configuration: IndexingConfiguration


STAMP: Final = Field(write_fields, lambda reader, at: at.place.stamp.require(reader), "32, 8, 1: the round's stamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOffer(Placed):
    """One server's key for one round, signed with the key that the configuration names."""

    kind: ClassVar = MessageKind.INDEXING_OFFER
    stamp: Annotated[RoundStamp, STAMP]
    sealing_key: Annotated[
        bytes, sized(lambda at: sealing_sizes(at.place.configuration.suite)[0], "32 classic, 1216 hybrid")
    ]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    @classmethod
    def signed(cls, stamp: RoundStamp, sealing_key: bytes, signing_key: SigningKey) -> ServerOffer:
        """Sign a key for one round."""
        signature = signing_key.sign(Label.INDEXING_OFFER, *stamp.parts(), sealing_key)
        return cls(stamp=stamp, sealing_key=sealing_key, signature=signature)

    @classmethod
    def decode(cls, message: bytes, configuration: IndexingConfiguration, stamp: RoundStamp) -> ServerOffer:
        """Read the offer of one server for one round, and check its signature.

        Raises:
            PeerMisbehaved: it is of another configuration, round or server.
            AuthenticationFailed: the server that the configuration names did not sign it.
            MalformedMessage: anything that ``encode`` would not have written.
        """
        with blaming(stamp.server):
            offer = cls.read_in(Due(stamp, configuration), message)
        key = configuration.server_keys[stamp.server.index]
        parts = (*stamp.parts(), offer.sealing_key)
        verify_signature(key, offer.signature, Label.INDEXING_OFFER, *parts, culprits={stamp.server})
        return offer


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOffers(Message):
    """Both servers' offers as server 0 shows them to a client, and whether it says that server 1 is simulated."""

    kind: ClassVar = MessageKind.ROUND_OFFERS
    is_simulated: Annotated[bool, FLAG]
    offers: Annotated[
        tuple[bytes, bytes], listed(variable(_MAXIMUM_OFFER_BYTES), lambda _: range(2), "twice 4 + an offer")
    ]


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The one message of a round to its clients."""

    kind: ClassVar = MessageKind.TWO_SERVERS_INVITATION
    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    configuration: Annotated[IndexingConfiguration, encoded(IndexingConfiguration, _MOST_BYTES)]
    shown: Annotated[RoundOffers, encoded(RoundOffers, _MOST_BYTES)]


def simulated_servers(invitation: bytes) -> tuple[bytes, bytes] | None:
    """Return the keys in an invitation that says itself that the second server is simulated; nothing of others.

    Only for a member that ``accepts_simulated``: whoever made the invitation holds both keys.
    """
    invited = Invitation.decode(invitation)
    return invited.configuration.server_keys if invited.shown.is_simulated else None


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
