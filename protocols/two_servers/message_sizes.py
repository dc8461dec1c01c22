"""How long the messages of a round are, computed from the configuration alone.

For limits that are checked before anything is read, and for planning. Nothing of the size of a model is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate
from secagg.wire import MessageKind

from .configuration import IndexingConfiguration
from .offers import RoundStamp, ServerOffer
from .one_hot.check import OneHotCommitment, OneHotOpening
from .point_functions.shape import NONCE_BYTES
from .server_messages import BATCH, AcceptedList, OutputCommitment, encode_batch
from .server_messages import NONCE_BYTES as COMMITMENT_NONCE_BYTES
from .upload import (
    DIGEST_BYTES,
    UPLOAD_SEED_BYTES,
    SegmentHeader,
    Upload,
    UploadHeader,
    index_body_bytes,
    public_bytes,
    ring_bytes,
)


def half_bytes(configuration: IndexingConfiguration, server: ServerId) -> int:
    """Return how many bytes a client uploads to one server."""
    sealed = bytes(UPLOAD_SEED_BYTES + sealing_sizes(configuration.suite)[1])
    place = SegmentHeader(bytes(NONCE_BYTES), bytes(DIGEST_BYTES))
    header = UploadHeader(
        round_number=0,
        certificate=Certificate(ClientId(0), bytes(IDENTITY_KEY_BYTES), bytes(SIGNATURE_BYTES)),
        weight=0,
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


_REFUSAL_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class BatchBytes:
    """How many bytes the servers send each other to decide about uploads."""

    proposal: int
    answer: int
    conclusion: int

    @property
    def total(self) -> int:
        """All three."""
        return self.proposal + self.answer + self.conclusion


def batch_bytes(configuration: IndexingConfiguration, uploads: int) -> BatchBytes:
    """Return how many bytes the servers send each other about so many uploads at once, all of which are taken."""
    stamp, kind = _stamp(configuration), MessageKind.INDEXING_PROPOSAL
    head = len(encode_batch(kind, stamp, []))
    item = len(encode_batch(kind, stamp, [(bytes(DIGEST_BYTES), b"")])) - head
    proposed, answered, concluded = _said_bytes(configuration)
    return BatchBytes(
        proposal=head + uploads * (item + proposed),
        answer=head + uploads * (item + answered),
        conclusion=head + uploads * (item + concluded),
    )


def _said_bytes(configuration: IndexingConfiguration) -> tuple[int, int, int]:
    """Return how long the proposal, the answer and the conclusion are about one upload."""
    commitments = openings = 0
    if configuration.is_checked:
        for _, segment in configuration.index_segments:
            commitments += OneHotCommitment.encoded_bytes()
            openings += OneHotOpening.encoded_bytes(configuration.check_shape(segment))
    return public_bytes(configuration) + commitments, commitments + openings, openings


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
    head = len(_stamp(configuration).write(MessageKind.OUTPUT_SHARE).finish()) + COMMITMENT_NONCE_BYTES
    bits = configuration.group.bits
    lanes = sum((segment.blocks * segment.codewords * bits + 7) // 8 for _, segment in configuration.index_segments)
    return head + lanes + ring_bytes(configuration)


def exchange_bytes(configuration: IndexingConfiguration) -> int:
    """Return how long the longest message is that one server sends the other in a round, or relays to it."""
    largest = batch_bytes(configuration, BATCH)
    said = (largest.proposal, largest.answer, largest.conclusion, release_bytes(configuration))
    return max(_REFUSAL_BYTES, half_bytes(configuration, ServerId(1)), *said)


def _stamp(configuration: IndexingConfiguration) -> RoundStamp:
    return RoundStamp(context=configuration.context, round_number=0, server=ServerId(0))
