"""X25519 key pairs, and the keys that two clients derive from them.

A raw Diffie-Hellman output is never a key: it goes through HKDF with the session context as salt and with the label,
the roles and both public keys as info, so a client with another roster, peer key or direction derives another key.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey as BackendPublicKey

from secagg.blame import unverified
from secagg.errors import Misuse, PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ClientId, SessionContext

from .key_derivation import derive, expand
from .labels import Label
from .public_keys import KEY_BYTES, X25519_BYTES, KeyRole, X25519PublicKey, require_derivable
from .secret import Confined, Secret

_X25519_LABELS = {
    KeyRole.CHANNEL: Label.CHANNEL_X25519_KEY,
    KeyRole.MASK: Label.MASK_X25519_KEY,
    KeyRole.SEALING: Label.SEALING_X25519_KEY,
}

RosterEntry = tuple[ClientId, X25519PublicKey]
"""A client and its public key in the session's roster."""


class X25519KeyPair(Confined):
    """A key pair derived from a root; recovering the root recovers the pair."""

    def __init__(self, root: Secret, role: KeyRole, attempt: AttemptContext) -> None:
        """Derive the pair from a root of 32 uniform bytes, which the caller owns and wipes.

        Deviation: [BIK+17] shares the private key; here clients share a root from which the key pair is derived, so
        that one share format serves every suite. The derivation is bound to the attempt, not to the session, because
        the session's context includes the roster and so this public key.
        """
        require_derivable(root, role, attempt)
        self.role = role
        with expand("x25519_private_key", X25519_BYTES, root, _X25519_LABELS[role], attempt.digest) as scalar:
            private = X25519PrivateKey.from_private_bytes(scalar.expose())
        self._private: X25519PrivateKey | None = private
        self._sealed_for = set[tuple[RosterEntry, SessionContext]]()
        self._incoming = dict[tuple[ClientId, RosterEntry, SessionContext], Secret]()
        """Channel keys of the other direction, from the same key agreement, kept until they are requested."""
        self.public_key = X25519PublicKey(private.public_key().public_bytes_raw())

    def pairwise_seed(self, own_id: ClientId, peer: RosterEntry, context: SessionContext) -> Secret:
        """Return the seed that both clients of a pair derive.

        Implements: [BIK+17] Fig. 4, Round 2, the key agreement of s_{u,v}.
        """
        low, high = sorted([(own_id, self.public_key), peer], key=lambda entry: entry[0])
        self._check(KeyRole.MASK, own_id, peer, context)
        with self._exchange(*peer) as shared_secret:
            return _derived("pairwise_seed", shared_secret, context, Label.PAIRWISE_SEED, low, high)

    def channel_key_to(self, own_id: ClientId, peer: RosterEntry, context: SessionContext) -> Secret:
        """Return the key for this client's one message to the peer; sealing a second one would break both.

        Security: a pair derived again from its root has no memory of it. Store a sealed message before sending it.
        """
        if (peer, context) in self._sealed_for:
            raise Misuse(
                f"the key for the one message to {peer[0]} was already used; send the same bytes again",
                reason=Reason.ALREADY_SPENT,
            )
        self._check(KeyRole.CHANNEL, own_id, peer, context)
        own = (own_id, self.public_key)
        with self._exchange(*peer) as shared_secret:
            outgoing = _derived("channel_key", shared_secret, context, Label.CHANNEL_KEY, own, peer)
            self._incoming[own_id, peer, context] = _derived(
                "channel_key", shared_secret, context, Label.CHANNEL_KEY, peer, own
            )
        self._sealed_for.add((peer, context))
        return outgoing

    def channel_key_from(self, own_id: ClientId, peer: RosterEntry, context: SessionContext) -> Secret:
        self._check(KeyRole.CHANNEL, own_id, peer, context)
        if incoming := self._incoming.pop((own_id, peer, context), None):
            return incoming
        with self._exchange(*peer) as shared_secret:
            own = (own_id, self.public_key)
            return _derived("channel_key", shared_secret, context, Label.CHANNEL_KEY, peer, own)

    def wipe(self) -> None:
        """Release the private key, which the backend frees, and overwrite the derived secrets."""
        self._private = None
        for key in self._incoming.values():
            key.wipe()
        self._incoming.clear()

    def _check(self, role: KeyRole, own_id: ClientId, peer: RosterEntry, context: SessionContext) -> None:
        if self._private is None:
            raise Misuse(f"{self!r} was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)
        if self.role is not role:
            raise Misuse(f"this key pair is for the {self.role.value} role; use the {role.value} key pair here")
        if type(context) is not SessionContext:
            raise Misuse("a key agreement needs a SessionContext")
        if own_id == peer[0]:
            raise Misuse(f"{own_id} cannot agree on a key with itself; remove it from its own neighbours")

    def _exchange(self, peer_id: ClientId, peer_key: X25519PublicKey) -> Secret:
        if self._private is None:
            raise Misuse(f"{self!r} was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)
        culprits = unverified(peer_id)
        if peer_key == self.public_key:
            raise PeerMisbehaved(
                f"{peer_id} presents this client's own public key; leave it out of the session",
                reason=Reason.PUBLIC_KEY_REUSED,
                culprits=culprits,
            )
        try:
            return Secret("shared_secret", self._private.exchange(BackendPublicKey.from_public_bytes(peer_key.encoded)))
        except ValueError:
            # The backend refuses an all-zero output; the peer key's constructor has already refused low-order points.
            raise PeerMisbehaved(
                f"the public key of {peer_id} is a point of low order",
                reason=Reason.PUBLIC_KEY_LOW_ORDER,
                culprits=culprits,
            ) from None

    def __repr__(self) -> str:
        return f"<X25519KeyPair {self.role.value}>"


def _derived(  # noqa: PLR0913, PLR0917 -- all that the key is bound to
    kind: str, shared_secret: Secret, context: SessionContext, label: Label, first: RosterEntry, second: RosterEntry
) -> Secret:
    (first_id, first_key), (second_id, second_key) = first, second
    parts = (first_id.encode(), second_id.encode(), first_key.encoded, second_key.encoded)
    return derive(kind, KEY_BYTES, shared_secret, context.digest, label, *parts)
