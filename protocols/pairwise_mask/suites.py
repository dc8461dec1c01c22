"""Commitments to secrets, and the two key-agreement suites behind one interface that the rounds use.

A commitment hashes a uniform value of almost 256 bits and its context, which hides and binds the value.

In the classic suite both ends of an edge derive its seed from their mask keys. In the hybrid suite one end derives the
seed from its root and seals it to the other in round 1, with a commitment; so an end that seals one seed and masks with
another is detected. In both suites the root of either end recovers the seed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final, cast

from secagg.blame import unverified
from secagg.crypto.aead import TAG_BYTES, AeadHeader, SealingKey, open_sealed
from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.labels import Label, bind, frame
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.public_keys import KEY_BYTES, X25519_BYTES, KeyRole, X25519PublicKey
from secagg.crypto.secret import Confined, Secret
from secagg.errors import PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ClientId, Party, SessionContext
from secagg.parameters import Suite
from secagg.wire import MessageKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from secagg.crypto.hybrid_key_agreement import HybridKeyPair, HybridPublicKey


class SharedSecret(Enum):
    """The two secrets that a client shares; only one of them is ever recovered."""

    MASK_ROOT = b"mask root"
    """Recovered if its owner dropped out."""
    SELF_MASK_SEED = b"self-mask seed"
    """Recovered if its owner contributed."""


_SHARE_DIGESTS: Final = {secret: bind(Label.SHARE_DIGEST, secret.value) for secret in SharedSecret}


@dataclass(frozen=True, slots=True)
class SharePlace:
    """Place of a pair of shares: its dealer, holder, evaluation point and session."""

    context: SessionContext
    dealer: ClientId
    holder: ClientId
    point: int
    _framed: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = self.context.digest, self.dealer.encode(), self.holder.encode(), self.point.to_bytes(2, "big")
        object.__setattr__(self, "_framed", frame(*parts))

    def digest_of(self, share: memoryview, secret: SharedSecret) -> bytes:
        digest = hashlib.sha256(_SHARE_DIGESTS[secret] + self._framed)
        digest.update(share)
        return digest.digest()

    def commit_to(self, mask_root_digest: bytes, self_mask_seed_digest: bytes) -> bytes:
        """Return the commitment to both shares.

        Deviation: [BIK+17] has no such commitment, so it cannot tell whether a dealer or a holder lied. The server only
        ever sees one of the two shares. Each share therefore has its own digest, and the commitment covers both
        digests; the holder reveals one share and the digest of the other.
        """
        statement = Label.SHARES_COMMITMENT + self._framed + frame(mask_root_digest, self_mask_seed_digest)
        return hashlib.sha256(statement).digest()

    def fits(self, share: Secret, secret: SharedSecret, other_digest: bytes, commitment: bytes) -> bool:
        """Whether a share and the digest of the other share match the dealer's commitment."""
        own = self.digest_of(share.expose(), secret)
        digests = (own, other_digest) if secret is SharedSecret.MASK_ROOT else (other_digest, own)
        return compare_digest(self.commit_to(*digests), commitment)


def commit_to_self_mask(seed: Secret, client: ClientId, attempt: AttemptContext) -> bytes:
    """Return the commitment that a recovered self-mask seed is checked against."""
    return _hash(seed, Label.SELF_MASK_COMMITMENT, attempt.digest, client.encode())


def commit_to_edge_seed(seed: Secret, sender: ClientId, receiver: ClientId, context: SessionContext) -> bytes:
    """Return the commitment to an edge seed, made by the end that chooses it."""
    return _hash(seed, Label.EDGE_SEED_COMMITMENT, context.digest, sender.encode(), receiver.encode())


def _hash(secret: Secret, label: Label, *parts: bytes) -> bytes:
    digest = hashlib.sha256(bind(label, *parts))
    # The secret comes last, with a fixed length, directly from its own buffer.
    digest.update(secret.expose())
    return digest.digest()


# --- Suites -----------------------------------------------------------------------------------------------------------

SHARES_BYTES: Final = 2 * ELEMENT_BYTES
COMMITMENT_BYTES: Final = 32

PublicKey = Any
KeyPair = Any
"""Key pair of either suite; a session uses only one suite."""


@dataclass(frozen=True, slots=True)
class PublishedKeys:
    """The two public keys that a client advertised."""

    client: ClientId
    channel: PublicKey
    mask: PublicKey


@dataclass(slots=True, eq=False, repr=False)
class MaskKeys(Confined):
    """The key pair that a client masks with, and the root it was derived from; its own, or recovered by the server."""

    client: ClientId
    pair: KeyPair
    root: Secret

    def wipe(self) -> None:
        self.pair.wipe()
        self.root.wipe()

    def __repr__(self) -> str:
        return f"<MaskKeys of {self.client}>"


@dataclass(slots=True, eq=False, repr=False)
class OwnKeys(Confined):
    """One client's two key pairs in one attempt."""

    client: ClientId
    channel: KeyPair
    mask: MaskKeys

    @property
    def published(self) -> PublishedKeys:
        return PublishedKeys(self.client, self.channel.public_key, self.mask.pair.public_key)

    def wipe(self) -> None:
        self.channel.wipe()
        self.mask.wipe()

    def __repr__(self) -> str:
        return f"<OwnKeys of {self.client}>"


class ClassicSuite:
    """X25519: a pairwise seed is derived from two public keys. ``HybridSuite`` overrides each step."""

    public_key_bytes: int = X25519_BYTES
    sealed_bytes: int = SHARES_BYTES + TAG_BYTES
    """Length of the two sealed shares for one neighbour."""
    edge_bytes: int = 0
    """Length of what the sending end of an edge adds in round 1; 0 if both ends derive the seed."""

    def key_pair(self, root: Secret, role: KeyRole, attempt: AttemptContext) -> KeyPair:
        return X25519KeyPair(root, role, attempt)

    def public_key(self, encoded: bytes, culprits: Iterable[Party]) -> PublicKey:
        return X25519PublicKey(encoded, culprits)

    def seal_shares(self, own: OwnKeys, peer: PublishedKeys, context: SessionContext, shares: Secret) -> bytes:
        """Encrypt two shares to a neighbour; call it once for each neighbour."""
        key = SealingKey(own.channel.channel_key_to(own.client, (peer.client, peer.channel), context))
        return key.seal(_header(context, own.client, peer.client), shares)

    def open_shares(self, own: OwnKeys, peer: PublishedKeys, context: SessionContext, sealed: bytes) -> Secret:
        with own.channel.channel_key_from(own.client, (peer.client, peer.channel), context) as key:
            header = _header(context, peer.client, own.client)
            return open_sealed(key, header, sealed, kind="shares", length=SHARES_BYTES)

    def offer_edge(self, own: MaskKeys, peer: PublishedKeys, context: SessionContext) -> bytes:
        """Return the message by which the sending end of an edge gives the other end the seed."""
        del own, peer, context
        return b""

    def seed_of_sent_edge(self, own: MaskKeys, peer: PublishedKeys, context: SessionContext, edge: bytes) -> Secret:
        """Return the pairwise seed at the sending end; ``edge`` is the sent message."""
        del edge
        seed: Secret = own.pair.pairwise_seed(own.client, (peer.client, peer.mask), context)
        return seed

    def seed_of_received_edge(self, own: MaskKeys, peer: PublishedKeys, context: SessionContext, edge: bytes) -> Secret:
        """Return the pairwise seed at the receiving end; ``edge`` is the received message."""
        return self.seed_of_sent_edge(own, peer, context, edge)

    def check_revealed_seed(
        self, seed: Secret, sender: ClientId, receiver: ClientId, context: SessionContext, edge: bytes
    ) -> bool:
        """Whether the sending end committed to this seed; always false if the suite has no commitments."""
        del seed, sender, receiver, context, edge
        return False


class HybridSuite(ClassicSuite):
    """ML-KEM-768 with X25519: the sending end of an edge chooses its seed, seals it and commits to it."""

    def __init__(self) -> None:
        """Import the hybrid key agreement, which raises an error if the backend lacks ML-KEM."""
        from secagg.crypto import hybrid_key_agreement as backend  # noqa: PLC0415 -- its import fails closed

        self._backend = backend
        self.public_key_bytes = backend.HYBRID_PUBLIC_KEY_BYTES
        self.sealed_bytes = SHARES_BYTES + backend.SEALING_OVERHEAD_BYTES
        self.edge_bytes = COMMITMENT_BYTES + KEY_BYTES + backend.SEALING_OVERHEAD_BYTES

    def key_pair(self, root: Secret, role: KeyRole, attempt: AttemptContext) -> HybridKeyPair:
        return self._backend.HybridKeyPair(root, role, attempt)

    def public_key(self, encoded: bytes, culprits: Iterable[Party]) -> HybridPublicKey:
        return self._backend.HybridPublicKey(encoded, culprits)

    def seal_shares(self, own: OwnKeys, peer: PublishedKeys, context: SessionContext, shares: Secret) -> bytes:
        return cast("HybridPublicKey", peer.channel).seal(shares, _sealing_info(context, own.client, peer.client))

    def open_shares(self, own: OwnKeys, peer: PublishedKeys, context: SessionContext, sealed: bytes) -> Secret:
        info = _sealing_info(context, peer.client, own.client)
        pair = cast("HybridKeyPair", own.channel)
        return pair.open("shares", sealed, SHARES_BYTES, info, culprits=unverified(peer.client))

    def offer_edge(self, own: MaskKeys, peer: PublishedKeys, context: SessionContext) -> bytes:
        """Seal the seed of an edge, after a commitment to it."""
        with self._backend.edge_seed(own.root, own.client, peer.client, context) as seed:
            sealed = self._backend.seal_edge_seed(seed, peer.mask, own.client, peer.client, context)
            return commit_to_edge_seed(seed, own.client, peer.client, context) + sealed

    def seed_of_sent_edge(self, own: MaskKeys, peer: PublishedKeys, context: SessionContext, edge: bytes) -> Secret:
        """Derive the seed from the root, which the server may have recovered, and check it against the commitment."""
        seed = self._backend.edge_seed(own.root, own.client, peer.client, context)
        return self._require_committed(seed, own.client, peer.client, context, edge)

    def seed_of_received_edge(self, own: MaskKeys, peer: PublishedKeys, context: SessionContext, edge: bytes) -> Secret:
        """Open the sealed seed and check it against the commitment."""
        sealed = edge[COMMITMENT_BYTES:]
        seed = self._backend.open_edge_seed(own.pair, sealed, peer.client, own.client, context)
        return self._require_committed(seed, peer.client, own.client, context, edge)

    def check_revealed_seed(
        self, seed: Secret, sender: ClientId, receiver: ClientId, context: SessionContext, edge: bytes
    ) -> bool:
        return compare_digest(commit_to_edge_seed(seed, sender, receiver, context), edge[:COMMITMENT_BYTES])

    def _require_committed(
        self, seed: Secret, sender: ClientId, receiver: ClientId, context: SessionContext, edge: bytes
    ) -> Secret:
        if not self.check_revealed_seed(seed, sender, receiver, context, edge):
            seed.wipe()
            raise PeerMisbehaved(
                f"the seed of the edge from {sender} to {receiver} does not match {sender}'s commitment",
                reason=Reason.COMMITMENT_MISMATCH,
                culprits=unverified(sender),
            )
        return seed


@cache
def key_suite(suite: Suite) -> ClassicSuite:
    """Return the implementation of a suite; raises ``InvalidParameters`` if the backend lacks one of its algorithms."""
    return ClassicSuite() if suite is Suite.CLASSIC else HybridSuite()


def _header(context: SessionContext, sender: ClientId, receiver: ClientId) -> AeadHeader:
    return AeadHeader(message_kind=int(MessageKind.ENCRYPTED_SHARES), context=context, sender=sender, receiver=receiver)


def _sealing_info(context: SessionContext, sender: ClientId, receiver: ClientId) -> bytes:
    return bind(Label.SHARES_SEALING, context.digest, sender.encode(), receiver.encode())
