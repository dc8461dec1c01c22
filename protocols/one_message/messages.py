"""A client's messages and the digest that it signs.

A client signs the digest of its upload, which covers everything: T0, the client's identity, the sum, the masked vector,
the polynomial of the dealer check and the tree over the sealed shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import MerkleTree
from secagg.declared import CLIENT, Message, fixed, nested, repeated, variable
from secagg.identifiers import ClientId
from secagg.session.certificates import GRANT_BYTES, IDENTITY_KEY_BYTES, SIGNATURE_BYTES
from secagg.wire import MessageKind

from .configuration import DIGEST_BYTES, NONCE_BYTES, Agreement, SumTerms
from .parameters import MAXIMUM_COEFFICIENTS, MAXIMUM_HOLDERS, PIECE_COEFFICIENTS, pieces_of

IDENTITY_BYTES: Final = IDENTITY_KEY_BYTES + GRANT_BYTES
MAXIMUM_VECTOR_BYTES: Final = (1 << 32) - 1
_MAXIMUM_PIECES: Final = MAXIMUM_COEFFICIENTS // PIECE_COEFFICIENTS
MAXIMUM_SHARE_BYTES: Final = 1 << 18
_NUMBER_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """Sender and sum of an upload."""

    client: Annotated[ClientId, CLIENT]
    identity: Annotated[bytes, variable(IDENTITY_BYTES)]
    """The client's key and the authority's signature on it; empty in ``semi_honest`` mode."""
    terms: Annotated[SumTerms, nested(SumTerms)]
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]
    """Fresh in every upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload(Message):
    """The single message that a client sends."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_UPLOAD
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    header: Annotated[UploadHeader, nested(UploadHeader)]
    pieces: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), _MAXIMUM_PIECES)]
    """Digests of the pieces of the masked vector."""
    vector: Annotated[bytes, variable(MAXIMUM_VECTOR_BYTES)]
    polynomial: Annotated[bytes, variable(MAXIMUM_SHARE_BYTES)]
    sealed: Annotated[tuple[bytes, ...], repeated(variable(MAXIMUM_SHARE_BYTES), MAXIMUM_HOLDERS)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)]


# --- What a client signs ----------------------------------------------------------------------------------------------


def vector_digest(pieces: Sequence[bytes]) -> bytes:
    """Return the digest of the masked vector, from those of its pieces."""
    return hashlib.sha256(bind(Label.ONE_MESSAGE_VECTOR, *pieces)).digest()


def share_context(agreement: Agreement, header: UploadHeader, position: int) -> bytes:
    """Return the context under which a holder's seed is expanded."""
    return _bound(Label.ONE_MESSAGE_DEALT, agreement, header, position)


def sealing_info(agreement: Agreement, header: UploadHeader, position: int) -> bytes:
    """Return the context of a sealed share; a share copied into another upload or sum does not open."""
    return _bound(Label.ONE_MESSAGE_SEALING, agreement, header, position)


def _bound(label: Label, agreement: Agreement, header: UploadHeader, position: int) -> bytes:
    holder = agreement.holder(position)
    return bind(label, agreement.t0, header.client.encode(), holder, header.terms.digest, header.nonce)


def leaf(agreement: Agreement, position: int, sealed: bytes) -> bytes:
    """Return the leaf of a sealed share, which is bound to its holder."""
    return hashlib.sha256(bind(Label.ONE_MESSAGE_LEAF, agreement.holder(position), sealed)).digest()


def share_tree(agreement: Agreement, sealed: Sequence[bytes]) -> MerkleTree:
    """Return the tree over the sealed shares, in the order of their holders."""
    return MerkleTree([leaf(agreement, position, share) for position, share in enumerate(sealed)])


def challenge_of(agreement: Agreement, header: UploadHeader, vector: bytes, root: bytes) -> bytes:
    """Return the challenge of the dealer check: a digest of everything else that the client signs."""
    parts = (agreement.t0, header.client.encode(), header.terms.digest, header.nonce, vector, root)
    return hashlib.sha256(bind(Label.ONE_MESSAGE_STATEMENT, *parts)).digest()


def upload_digest(challenge: bytes, polynomial: bytes) -> bytes:
    """Return the digest that the client signs, and that identifies an upload."""
    return hashlib.sha256(bind(Label.ONE_MESSAGE_SIGNED_UPLOAD, challenge, polynomial)).digest()


def piece_digests(
    context: bytes, client: ClientId, lengths: Sequence[int], vector: bytes | memoryview
) -> tuple[bytes, ...]:
    """Return the digests of all pieces of a vector, each bound to the client, session and place."""
    digests = list[bytes]()
    for number, piece in enumerate(pieces_of(vector, lengths)):
        bound = bind(Label.UPLOAD_PIECE, context, client.encode(), number.to_bytes(_NUMBER_BYTES, "big"))
        hashed = hashlib.sha256(bound)
        hashed.update(piece)
        digests.append(hashed.digest())
    return tuple(digests)
