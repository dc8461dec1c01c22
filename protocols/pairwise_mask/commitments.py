"""Commitments to secrets, so that what is revealed later can be compared with what was meant.

Each is a hash of a uniform value of almost 256 bits with where it belongs, which hides the value and fixes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from hmac import compare_digest
from typing import Final

from secagg.crypto.labels import Label, bind, frame
from secagg.crypto.secret import Secret
from secagg.identifiers import AttemptContext, ClientId, SessionContext


class SharedSecret(Enum):
    """The two secrets that a client shares; one of them is ever recovered."""

    MASK_ROOT = b"mask root"
    """Recovered when its owner dropped out."""
    SELF_MASK_SEED = b"self-mask seed"
    """Recovered when its owner contributed."""


_SHARE_DIGESTS: Final = {secret: bind(Label.SHARE_DIGEST, secret.value) for secret in SharedSecret}


@dataclass(frozen=True, slots=True)
class SharePlace:
    """Where a pair of shares belongs: whose secrets, held by whom, at which point, in which session."""

    context: SessionContext
    dealer: ClientId
    holder: ClientId
    point: int
    _framed: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.context.digest, self.dealer.encode(), self.holder.encode(), self.point.to_bytes(2, "big")
        object.__setattr__(self, "_framed", frame(*parts))

    def digest_of(self, share: Secret, secret: SharedSecret) -> bytes:
        """Return the digest of one share."""
        return self.digest_of_view(share.expose(), secret)

    def digest_of_view(self, share: memoryview, secret: SharedSecret) -> bytes:
        """Return the digest of one share, from a view of its bytes."""
        digest = hashlib.sha256(_SHARE_DIGESTS[secret] + self._framed)
        digest.update(share)
        return digest.digest()

    def commit_to(self, mask_root_digest: bytes, self_mask_seed_digest: bytes) -> bytes:
        """Return the commitment to both shares.

        Deviation: [BIK+17] commits to nothing, so it cannot say whether a dealer or a holder lied. Only one of the two
        shares is ever shown to the server, so each has a digest of its own and the commitment is to both digests; the
        holder shows one share and the digest of the other.
        """
        statement = Label.SHARES_COMMITMENT + self._framed + frame(mask_root_digest, self_mask_seed_digest)
        return hashlib.sha256(statement).digest()

    def fits(self, share: Secret, secret: SharedSecret, other_digest: bytes, commitment: bytes) -> bool:
        """Whether one share and the digest of the other are what the dealer committed to."""
        own = self.digest_of(share, secret)
        digests = (own, other_digest) if secret is SharedSecret.MASK_ROOT else (other_digest, own)
        return compare_digest(self.commit_to(*digests), commitment)


def commit_to_self_mask(seed: Secret, client: ClientId, attempt: AttemptContext) -> bytes:
    """Return the commitment by which a reconstructed self-mask seed is recognised."""
    return _hash(seed, Label.SELF_MASK_COMMITMENT, attempt.digest, client.encode())


def commit_to_edge_seed(seed: Secret, sender: ClientId, receiver: ClientId, context: SessionContext) -> bytes:
    """Return the commitment to the seed of an edge, by the end that chooses it."""
    return _hash(seed, Label.EDGE_SEED_COMMITMENT, context.digest, sender.encode(), receiver.encode())


def _hash(secret: Secret, label: Label, *parts: bytes) -> bytes:
    digest = hashlib.sha256(bind(label, *parts))
    # The secret comes last, at a fixed length, straight from its own buffer.
    digest.update(secret.expose())
    return digest.digest()
