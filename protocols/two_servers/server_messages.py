"""Messages between the servers, which start a round, check uploads and release the sum; and their lengths.

Lengths depend only on the configuration; they are used for planning, and for limits that are checked before reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final

from secagg.blame import between_servers
from secagg.contract.layout import IndexSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import RingVector
from secagg.declared import Message, MessageIn, borrowed, encoded, fixed, listed, optional, repeated, unsigned, variable
from secagg.errors import MalformedMessage, Reason, blaming
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import (
    GRANT_BYTES,
    IDENTITY_KEY_BYTES,
    SIGNATURE_BYTES,
    Certificate,
    SigningKey,
    verify_signature,
)
from secagg.tables import joined
from secagg.wire import MessageKind

from .configuration import IndexingConfiguration
from .offers import Due, Entry, RoundStamp, ServerOffer, stamped
from .opened_upload import index_body_bytes, public_bytes, ring_bytes
from .point_functions.lanes import Lanes
from .point_functions.one_hot_check import OneHotCommitment, OneHotOpening
from .point_functions.shape import NONCE_BYTES as SHARE_NONCE_BYTES
from .upload import DIGEST_BYTES, ROUND_BYTES, UPLOAD_SEED_BYTES, SegmentHeader, Upload, UploadHeader

MAXIMUM_BEGINNING_BYTES: Final = 1 << 19
"""Maximum length of a request to start a round; see ``configuration.MAXIMUM_SEGMENTS``."""
_REFUSAL_BYTES: Final = 1 << 16
BATCH: Final = 16
"""Number of uploads in one message between the servers; each server holds the shares of that number."""
MAXIMUM_BATCH: Final = 1 << 16
NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Beginning(Message):
    """Request that server 1 start a round under a configuration."""

    kind: ClassVar = MessageKind.BEGIN_ROUND
    configuration: Annotated[IndexingConfiguration, encoded(IndexingConfiguration, MAXIMUM_BEGINNING_BYTES)]
    round_number: Annotated[int, unsigned(ROUND_BYTES)]


@dataclass(frozen=True, slots=True)
class BatchRequest(Message):
    """Request that server 1 propose these uploads."""

    kind: ClassVar = MessageKind.PROPOSE_UPLOADS
    uploads: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), BATCH)]


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Server 1's confirmation that it holds its half of an upload."""

    kind: ClassVar = MessageKind.INDEXING_DONE
    upload: Annotated[bytes, fixed(DIGEST_BYTES)]


BatchItem = tuple[bytes, bytes | None]
"""An upload's id, and a server's message about it; None if it refuses the upload."""
_STAMP: Final = stamped(lambda stamp: stamp)
_MOST_BYTES: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Batch(MessageIn[RoundStamp]):
    """A server's messages about several different uploads."""

    stamp: Annotated[RoundStamp, _STAMP]
    items: Annotated[
        tuple[BatchItem, ...], repeated(joined(fixed(DIGEST_BYTES), optional(variable(_MOST_BYTES))), MAXIMUM_BATCH)
    ]


class Proposal(Batch):
    """Server 1's commitments and correction words."""

    kind: ClassVar = MessageKind.INDEXING_PROPOSAL


class Answer(Batch):
    """Server 0's commitments and openings."""

    kind: ClassVar = MessageKind.INDEXING_ANSWER


class Conclusion(Batch):
    """Server 1's openings."""

    kind: ClassVar = MessageKind.INDEXING_CONCLUSION


_BATCHES: Final[dict[MessageKind, type[Batch]]] = {batch.kind: batch for batch in (Proposal, Answer, Conclusion)}


def encode_batch(kind: MessageKind, stamp: RoundStamp, items: Sequence[BatchItem]) -> bytes:
    """Encode a server's messages about several uploads."""
    return _BATCHES[kind](stamp, tuple(items)).encode()


def decode_batch(message: bytes, kind: MessageKind, stamp: RoundStamp) -> list[BatchItem]:
    """Decode a batch of the other server."""
    with blaming(*between_servers()):
        items = list(_BATCHES[kind].decode(message, stamp).items)
        if len({upload_id for upload_id, _ in items}) != len(items):
            raise MalformedMessage("a batch names one upload twice", reason=Reason.NOT_CANONICAL)
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedList(MessageIn[RoundStamp]):
    """The list that a server signs in a round: the uploads in the sum."""

    kind: ClassVar = MessageKind.ACCEPTED_LIST
    stamp: Annotated[RoundStamp, _STAMP]
    entries_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    contributors: Annotated[int, unsigned(4)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    @classmethod
    def signed(cls, stamp: RoundStamp, entries: Sequence[Entry], signing_key: SigningKey) -> AcceptedList:
        digest = entries_digest(entries)
        signature = signing_key.sign(Label.INDEXING_SIGNED_LIST, *cls._parts(stamp, digest, len(entries)))
        return cls(stamp=stamp, entries_digest=digest, contributors=len(entries), signature=signature)

    @staticmethod
    def _parts(stamp: RoundStamp, digest: bytes, contributors: int) -> tuple[bytes, ...]:
        return (*stamp.parts(), digest, contributors.to_bytes(4, "big"))

    @classmethod
    def verified(cls, message: bytes, configuration: IndexingConfiguration, stamp: RoundStamp) -> AcceptedList:
        """Decode the other server's list, and verify its signature."""
        with blaming(*between_servers()):
            decoded = cls.decode(message, stamp)
        key = configuration.server_keys[stamp.server.index]
        parts = cls._parts(stamp, decoded.entries_digest, decoded.contributors)
        verify_signature(key, decoded.signature, Label.INDEXING_SIGNED_LIST, *parts, culprits=between_servers())
        return decoded


def entries_digest(entries: Sequence[Entry]) -> bytes:
    """Return the digest of a list of uploads, in ascending order, each with its client."""
    parts = list[bytes]()
    for entry in sorted(entries):
        parts += (entry.client.encode(), entry.upload_id)
    return hashlib.sha256(bind(Label.INDEXING_ACCEPTED, *parts)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCommitment(MessageIn[RoundStamp]):
    """A server's commitment, sent before it sees any of the other server's share of the sum."""

    kind: ClassVar = MessageKind.OUTPUT_COMMITMENT
    stamp: Annotated[RoundStamp, _STAMP]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    @classmethod
    def to(cls, stamp: RoundStamp, list_digest: bytes, share: bytes) -> OutputCommitment:
        """Commit to an encoded share, which begins with the nonce that hides it."""
        digest = hashlib.sha256(bind(Label.INDEXING_OUTPUT, *stamp.parts(), list_digest))
        digest.update(share)
        return cls(stamp=stamp, digest=digest.digest())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputShare(MessageIn[Due]):
    """One server's share of the sum, and the nonce that hid it in the commitment."""

    kind: ClassVar = MessageKind.OUTPUT_SHARE
    stamp: Annotated[RoundStamp, stamped(lambda due: due.stamp)]
    nonce: Annotated[bytes, fixed(NONCE_BYTES)] = field(repr=False)
    packed: Annotated[
        tuple[bytes | memoryview, ...],
        listed(borrowed(lambda size: size, "values"), lambda at: _value_bytes(at.place.configuration), "packed values"),
    ] = field(repr=False)
    """Values of each segment."""

    @classmethod
    def of(
        cls, configuration: IndexingConfiguration, stamp: RoundStamp, nonce: bytes, values: Sequence[Lanes | RingVector]
    ) -> OutputShare:
        packed = tuple(
            configuration.group.pack(value) if isinstance(segment, IndexSegment) else segment.ring.pack_view(value)
            for segment, value in zip(configuration.layout.segments, values, strict=True)
        )
        return cls(stamp=stamp, nonce=nonce, packed=packed)

    def values(self, configuration: IndexingConfiguration) -> tuple[Lanes | RingVector, ...]:
        """Return the unpacked values.

        Raises:
            MalformedMessage: a lane is not an element of the group.
        """
        return tuple(
            configuration.group.unpack(memoryview(packed), segment.blocks * segment.codewords)
            if isinstance(segment, IndexSegment)
            else segment.ring.unpack(packed, segment.length)
            for segment, packed in zip(configuration.layout.segments, self.packed, strict=True)
        )


def _value_bytes(configuration: IndexingConfiguration) -> list[int]:
    bits = configuration.group.bits
    return [
        (segment.blocks * segment.codewords * bits + 7) // 8
        if isinstance(segment, IndexSegment)
        else segment.payload_bytes
        for segment in configuration.layout.segments
    ]


# --- Lengths ----------------------------------------------------------------------------------------------------------


def half_bytes(configuration: IndexingConfiguration, server: ServerId) -> int:
    """Return the number of bytes that a client uploads to one server."""
    sealed = bytes(UPLOAD_SEED_BYTES + sealing_sizes(configuration.suite)[1])
    place = SegmentHeader(bytes(SHARE_NONCE_BYTES), bytes(DIGEST_BYTES))
    header = UploadHeader(
        round_number=0,
        certificate=Certificate(ClientId(0), bytes(IDENTITY_KEY_BYTES), bytes(GRANT_BYTES)),
        segments=(place,) * len(configuration.index_segments),
    )
    fixed = len(Upload(header=header, server=server, sealed_seeds=(sealed, sealed), body=b"").encode())
    body = index_body_bytes(configuration, server) + TAG_BYTES
    return fixed + body + (ring_bytes(configuration) + public_bytes(configuration) if server.index else 0)


def offers_bytes(configuration: IndexingConfiguration) -> int:
    """Return the number of bytes that a client receives: both servers' offers."""
    stamp, key = _stamp(configuration), bytes(sealing_sizes(configuration.suite)[0])
    offer = ServerOffer(stamp=stamp, sealing_key=key, signature=bytes(SIGNATURE_BYTES))
    return 2 * len(offer.encode())


def batch_bytes(configuration: IndexingConfiguration, uploads: int) -> tuple[int, int, int]:
    """Return the lengths of proposal, answer and conclusion for a batch of accepted uploads."""
    stamp, kind = _stamp(configuration), MessageKind.INDEXING_PROPOSAL
    head = len(encode_batch(kind, stamp, []))
    item = len(encode_batch(kind, stamp, [(bytes(DIGEST_BYTES), b"")])) - head
    commitments = openings = 0
    if configuration.is_checked:
        for _, segment in configuration.index_segments:
            commitments += OneHotCommitment.encoded_bytes()
            openings += OneHotOpening.encoded_bytes(configuration.check_shape(segment))
    said = (public_bytes(configuration) + commitments, commitments + openings, openings)
    proposal, answer, conclusion = (head + uploads * (item + one) for one in said)
    return proposal, answer, conclusion


def release_bytes(configuration: IndexingConfiguration) -> int:
    """Return the number of bytes between the servers to release the sum: lists, commitments and shares."""
    stamp = _stamp(configuration)
    signed = AcceptedList(
        stamp=stamp, entries_digest=bytes(DIGEST_BYTES), contributors=0, signature=bytes(SIGNATURE_BYTES)
    )
    committed = OutputCommitment(stamp=stamp, digest=bytes(DIGEST_BYTES))
    return 2 * (len(signed.encode()) + len(committed.encode()) + share_bytes(configuration))


def share_bytes(configuration: IndexingConfiguration) -> int:
    """Return the number of bytes of one server's share of the sum."""
    head = OutputShare(stamp=_stamp(configuration), nonce=bytes(NONCE_BYTES), packed=())
    return len(head.encode()) + sum(_value_bytes(configuration))


def exchange_bytes(configuration: IndexingConfiguration) -> int:
    """Return the length of the longest message that one server sends or relays to the other in a round."""
    said = (*batch_bytes(configuration, BATCH), release_bytes(configuration))
    return max(_REFUSAL_BYTES, half_bytes(configuration, ServerId(1)), *said)


def _stamp(configuration: IndexingConfiguration) -> RoundStamp:
    return RoundStamp(context=configuration.context, round_number=0, server=ServerId(0))
