"""What the servers offer to clients: a key for one round, stamped with the round and signed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, NamedTuple

from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label
from secagg.errors import PeerMisbehaved, Reason, blaming
from secagg.fields import CONTEXT, SERVER, Field, Placed, fixed, sized, unsigned, write_fields
from secagg.identifiers import CONTEXT_BYTES, AttemptContext, ServerId
from secagg.session.certificates import SIGNATURE_BYTES, SigningKey, verify_signature
from secagg.wire import MessageKind, Reader, Writer

from .configuration import IndexingConfiguration
from .upload import ROUND_BYTES


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
