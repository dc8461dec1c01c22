"""Messages between the servers, which begin a round, ask about uploads, hold and release; and their lengths.

Lengths follow from the configuration alone, for limits that are checked before anything is read, and for planning.
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
from secagg.declared import Message, Placed, encoded, fixed, repeated, unsigned
from secagg.errors import MalformedMessage, Reason, blaming
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import (
    IDENTITY_KEY_BYTES,
    SIGNATURE_BYTES,
    Certificate,
    SigningKey,
    verify_signature,
)
from secagg.wire import MessageKind, Reader

from .configuration import IndexingConfiguration
from .offers import STAMP, Due, Entry, RoundStamp, ServerOffer
from .point_functions.lanes import Lanes
from .point_functions.one_hot_check import OneHotCommitment, OneHotOpening
from .point_functions.shape import NONCE_BYTES as SHARE_NONCE_BYTES
from .upload import (
    DIGEST_BYTES,
    ROUND_BYTES,
    UPLOAD_SEED_BYTES,
    SegmentHeader,
    Upload,
    UploadHeader,
    index_body_bytes,
    public_bytes,
    ring_bytes,
)

MAXIMUM_BEGINNING_BYTES: Final = 1 << 16
"""No request to begin a round is longer; see ``configuration.MAXIMUM_SEGMENTS``."""
_REFUSAL_BYTES: Final = 1 << 16
BATCH: Final = 16
"""Number of uploads in one message between the servers; each server holds the shares of as many."""
MAXIMUM_BATCH: Final = 1 << 16
NONCE_BYTES: Final = 32


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


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Server 1's word that it holds its half of an upload."""

    kind: ClassVar = MessageKind.INDEXING_DONE
    upload: Annotated[bytes, fixed(DIGEST_BYTES)]


BatchItem = tuple[bytes, bytes | None]
"""An upload's id, and what a server says of it; None if it refuses the upload."""


def encode_batch(kind: MessageKind, stamp: RoundStamp, items: Sequence[BatchItem]) -> bytes:
    """Return what a server says of several uploads at once."""
    writer = stamp.write(kind).integer(len(items), 4)
    for upload_id, said in items:
        writer.fixed(upload_id, DIGEST_BYTES).integer(said is not None, 1)
        if said is not None:
            writer.integer(len(said), 4).borrowed(said)
    return writer.finish()


def decode_batch(message: bytes, kind: MessageKind, stamp: RoundStamp) -> list[BatchItem]:
    """Read a batch of the other server back, in which no upload stands twice."""
    with blaming(*between_servers()):
        reader = stamp.read(message, kind)
        count = reader.integer(4)
        if count > MAXIMUM_BATCH:
            raise MalformedMessage(
                f"a batch declares {count} uploads and {MAXIMUM_BATCH} is the limit", reason=Reason.LENGTH_OVER_LIMIT
            )
        items = [_read_item(reader) for _ in range(count)]
        reader.finish()
        if len({upload_id for upload_id, _ in items}) != count:
            raise MalformedMessage("a batch names one upload twice", reason=Reason.NOT_CANONICAL)
    return items


def _read_item(reader: Reader) -> BatchItem:
    upload_id, has_said = reader.fixed(DIGEST_BYTES), reader.integer(1)
    if has_said not in (0, 1):
        raise MalformedMessage("an upload is refused or spoken of", reason=Reason.NOT_CANONICAL)
    return upload_id, bytes(reader.view(reader.integer(4))) if has_said else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedList(Placed):
    """One list of a round that a server signs: the uploads in the sum."""

    kind: ClassVar = MessageKind.ACCEPTED_LIST
    stamp: Annotated[RoundStamp, STAMP]
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
    def decode(cls, message: bytes, configuration: IndexingConfiguration, stamp: RoundStamp) -> AcceptedList:
        """Read the other server's list back, and check its signature."""
        with blaming(*between_servers()):
            decoded = cls.read_in(Due(stamp, configuration), message)
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
class OutputCommitment(Placed):
    """A server's commitment, sent before it has seen any of the other server's share of the sum."""

    kind: ClassVar = MessageKind.OUTPUT_COMMITMENT
    stamp: Annotated[RoundStamp, STAMP]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    @classmethod
    def to(cls, stamp: RoundStamp, list_digest: bytes, share: bytes) -> OutputCommitment:
        """Commit to an encoded share, which begins with the nonce that hides it."""
        digest = hashlib.sha256(bind(Label.INDEXING_OUTPUT, *stamp.parts(), list_digest))
        digest.update(share)
        return cls(stamp=stamp, digest=digest.digest())

    @classmethod
    def decode(cls, message: bytes, configuration: IndexingConfiguration, stamp: RoundStamp) -> OutputCommitment:
        with blaming(*between_servers()):
            return cls.read_in(Due(stamp, configuration), message)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputShare:
    """One server's share of the sum, and the nonce that its commitment was hidden by."""

    stamp: RoundStamp
    nonce: bytes = field(repr=False)
    values: tuple[Lanes | RingVector, ...] = field(repr=False)

    def encode(self, configuration: IndexingConfiguration) -> bytes:
        writer = self.stamp.write(MessageKind.OUTPUT_SHARE).fixed(self.nonce, NONCE_BYTES)
        for segment, value in zip(configuration.layout.segments, self.values, strict=True):
            if isinstance(segment, IndexSegment):
                writer.borrowed(configuration.group.pack(value))
            else:
                writer.borrowed(segment.ring.pack_view(value))
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes, configuration: IndexingConfiguration, stamp: RoundStamp) -> OutputShare:
        reader = stamp.read(message, MessageKind.OUTPUT_SHARE)
        nonce, values = reader.fixed(NONCE_BYTES), list[Lanes | RingVector]()
        for segment in configuration.layout.segments:
            if isinstance(segment, IndexSegment):
                count, bits = segment.blocks * segment.codewords, configuration.group.bits
                values.append(configuration.group.unpack(reader.view((count * bits + 7) // 8), count))
            else:
                values.append(segment.ring.unpack(reader.view(segment.payload_bytes), segment.length))
        reader.finish()
        return cls(stamp=stamp, nonce=nonce, values=tuple(values))


# --- Lengths ----------------------------------------------------------------------------------------------------------


def half_bytes(configuration: IndexingConfiguration, server: ServerId) -> int:
    """Return how many bytes a client uploads to one server."""
    sealed = bytes(UPLOAD_SEED_BYTES + sealing_sizes(configuration.suite)[1])
    place = SegmentHeader(bytes(SHARE_NONCE_BYTES), bytes(DIGEST_BYTES))
    header = UploadHeader(
        round_number=0,
        certificate=Certificate(ClientId(0), bytes(IDENTITY_KEY_BYTES), bytes(SIGNATURE_BYTES)),
        segments=(place,) * len(configuration.index_segments),
    )
    fixed = len(Upload(header=header, server=server, sealed_seeds=(sealed, sealed), body=b"").encode())
    body = index_body_bytes(configuration, server) + TAG_BYTES
    return fixed + body + (ring_bytes(configuration) + public_bytes(configuration) if server.index else 0)


def offers_bytes(configuration: IndexingConfiguration) -> int:
    """Return how many bytes a client receives: both servers' offers."""
    stamp, key = _stamp(configuration), bytes(sealing_sizes(configuration.suite)[0])
    offer = ServerOffer(stamp=stamp, sealing_key=key, signature=bytes(SIGNATURE_BYTES))
    return 2 * len(offer.encode())


def batch_bytes(configuration: IndexingConfiguration, uploads: int) -> tuple[int, int, int]:
    """Return the lengths of proposal, answer and conclusion about so many uploads at once, all of them taken."""
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
    """Return how many bytes the servers send each other to release the sum: lists, commitments and shares."""
    stamp = _stamp(configuration)
    signed = AcceptedList(
        stamp=stamp, entries_digest=bytes(DIGEST_BYTES), contributors=0, signature=bytes(SIGNATURE_BYTES)
    )
    committed = OutputCommitment(stamp=stamp, digest=bytes(DIGEST_BYTES))
    return 2 * (len(signed.encode()) + len(committed.encode()) + share_bytes(configuration))


def share_bytes(configuration: IndexingConfiguration) -> int:
    """Return how many bytes one server's share of the sum has."""
    head = len(_stamp(configuration).write(MessageKind.OUTPUT_SHARE).finish()) + NONCE_BYTES
    bits = configuration.group.bits
    lanes = sum((segment.blocks * segment.codewords * bits + 7) // 8 for _, segment in configuration.index_segments)
    return head + lanes + ring_bytes(configuration)


def exchange_bytes(configuration: IndexingConfiguration) -> int:
    """Return how long the longest message is that one server sends the other in a round, or relays to it."""
    said = (*batch_bytes(configuration, BATCH), release_bytes(configuration))
    return max(_REFUSAL_BYTES, half_bytes(configuration, ServerId(1)), *said)


def _stamp(configuration: IndexingConfiguration) -> RoundStamp:
    return RoundStamp(context=configuration.context, round_number=0, server=ServerId(0))
