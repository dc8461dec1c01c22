"""Masked vectors in pieces, and what ties them to the sealed part of their upload: a commitment in its header."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from secagg.contract.layout import RingSegment
from secagg.contract.pieces import piece_digests
from secagg.contract.ring_cut import RingCut
from secagg.crypto.labels import Label, bind
from secagg.errors import MalformedMessage, Reason
from secagg.identifiers import AttemptContext, ClientId
from secagg.wire import Reader, Writer

from .trusted.messages import DIGEST_BYTES, ModelStamp

VECTOR_NONCE_BYTES: Final = 32


def cut_of(context: AttemptContext, segments: Sequence[RingSegment], epoch: bytes, model: ModelStamp) -> RingCut:
    """Return how the masked vectors of updates of one model are cut, in one epoch."""
    parts = (context.digest, epoch, model.version.to_bytes(8, "big"), model.digest)
    bound = hashlib.sha256(bind(Label.ENCLAVE_PIECES, *parts)).digest()
    return RingCut(bound, tuple((segment, 0) for segment in segments))


def vector_digest(nonce: bytes, pieces: Iterable[bytes]) -> bytes:
    """Return the digest of a masked vector under a nonce, from those of its pieces.

    The nonce travels with the vectors. Where another protocol masks and sums them it stays with the client, so that
    nobody can try out updates against the digest.
    """
    return hashlib.sha256(bind(Label.ENCLAVE_VECTOR_DIGEST, nonce, *pieces)).digest()


@dataclass(frozen=True, slots=True)
class SentVectors:
    """What a host gets of an upload beside the enclave's part."""

    context: bytes
    """That of the cut: what the upload says it is for."""
    nonce: bytes
    pieces: tuple[bytes, ...]
    """Their digests."""
    packed: bytes | memoryview = field(repr=False)
    """Empty where a storage has the pieces."""

    @property
    def digest(self) -> bytes:
        """What the client has committed to."""
        return vector_digest(self.nonce, self.pieces)


def write_vectors(writer: Writer, pieces: Sequence[bytes], packed: Iterable[bytes | memoryview]) -> None:
    """Append the packed vectors, or the digests of their pieces, which a storage has; nothing where there are none.

    Args:
        pieces: empty, unless a storage has them.
    """
    writer.integer(bool(pieces), 1)
    for digest in pieces:
        writer.fixed(digest, DIGEST_BYTES)
    for vector in packed if not pieces else ():
        writer.borrowed(vector)


def read_vectors(reader: Reader, nonce: bytes, cut: RingCut, client: ClientId) -> SentVectors:
    """Read the same back, to the end of the message.

    Raises:
        MalformedMessage: it has another length, or says neither that vectors follow nor that digests do.
    """
    pieces, packed = tuple[bytes, ...](), memoryview(b"")
    if cut.lengths:
        if (flag := reader.integer(1)) > 1:
            raise MalformedMessage(f"{flag} says neither that vectors follow nor digests", reason=Reason.NOT_CANONICAL)
        if flag:
            pieces = tuple(reader.fixed(DIGEST_BYTES) for _ in cut.lengths)
        else:
            packed = reader.view(sum(cut.lengths))
    reader.finish()
    return SentVectors(cut.context, nonce, pieces or piece_digests(cut.context, client, cut.lengths, packed), packed)
