"""Key agreement of two clients, in both suites."""

from __future__ import annotations

from dataclasses import dataclass

from .encoding import SHARES, client_id, number
from .primitives import bind, expand, extract, gcm_seal, hpke_open, mlkem768_public, x25519, x25519_public

SHARES_BYTES = 64
HPKE_OVERHEAD = 1088 + 32 + 16


@dataclass
class Pair:
    """A key pair; the classic suite has no part from ML-KEM."""

    scalar: bytes
    mlkem_seed: bytes
    public: bytes


End = tuple[int, Pair]
"""A client, and its key pair for the current role."""


class Keys:
    """The classic suite: two key pairs determine a seed."""

    has_edges = False
    sealed_shares_bytes = SHARES_BYTES + 16

    def __init__(self, attempt: bytes) -> None:
        self._attempt = attempt

    def pair(self, role: str, root: bytes) -> Pair:
        """Derive a key pair for the role "channel" or "mask"."""
        scalar = expand(root, 32, f"{role}-x25519-key", self._attempt)
        return Pair(scalar, b"", x25519_public(scalar))

    def agreed_seed(self, context: bytes, own: End, peer: tuple[int, bytes]) -> bytes:
        """Return the pairwise seed of two clients, from one private key and one public key."""
        client, pair = own
        low, high = sorted([(client, pair.public), peer])
        ends = (client_id(low[0]), client_id(high[0]), low[1], high[1])
        return expand(extract(context, x25519(pair.scalar, peer[1])), 32, "pairwise-seed", *ends)

    def seal_shares(
        self, context: bytes, sender: End, receiver: End, shares: tuple[bytes, bytes], recorded: bytes
    ) -> bytes:
        """Seal two shares; ``recorded`` begins with the vector's sealed shares."""
        del recorded
        ends = (client_id(sender[0]), client_id(receiver[0]))
        source = extract(context, x25519(sender[1].scalar, receiver[1].public))
        key = expand(source, 32, "channel-aead-key", *ends, sender[1].public, receiver[1].public)
        associated = bind("aead-header", number(SHARES, 2), context, *ends)
        return gcm_seal(key, number(SHARES, 12), b"".join(shares), associated)

    def sent_seed(self, context: bytes, root: bytes, sender: int, receiver: int) -> bytes:
        """Return the seed that the sending end of an edge chooses (hybrid suite)."""
        raise NotImplementedError

    def seal_edge(self, context: bytes, seed: bytes, sender: int, receiver: End, recorded: bytes) -> bytes:
        """Return the sealed seed of an edge (hybrid suite)."""
        raise NotImplementedError

    def open_edge(self, context: bytes, sender: int, receiver: End, sealed: bytes) -> bytes:
        """Return the seed sealed to the receiving end (hybrid suite)."""
        raise NotImplementedError


class HybridKeys(Keys):
    """The hybrid suite; sealed data contains an encapsulation's own coins, so it is opened and compared."""

    has_edges = True
    sealed_shares_bytes = SHARES_BYTES + HPKE_OVERHEAD

    def pair(self, role: str, root: bytes) -> Pair:
        """Derive both halves of a key pair."""
        mlkem_seed = expand(root, 64, f"{role}-hybrid-mlkem768-seed", self._attempt)
        scalar = expand(root, 32, f"{role}-hybrid-x25519-key", self._attempt)
        return Pair(scalar, mlkem_seed, mlkem768_public(mlkem_seed) + x25519_public(scalar))

    def seal_shares(
        self, context: bytes, sender: End, receiver: End, shares: tuple[bytes, bytes], recorded: bytes
    ) -> bytes:
        """Return the recorded data, which must open to the shares."""
        info = bind("shares-sealing", context, client_id(sender[0]), client_id(receiver[0]))
        return _recorded(receiver[1], recorded, info, b"".join(shares))

    def sent_seed(self, context: bytes, root: bytes, sender: int, receiver: int) -> bytes:
        """Return the seed that the sending end of an edge chooses."""
        return expand(root, 32, "edge-seed", context, client_id(sender), client_id(receiver))

    def seal_edge(self, context: bytes, seed: bytes, sender: int, receiver: End, recorded: bytes) -> bytes:
        """Return the recorded data, which must open to the seed."""
        info = bind("edge-sealing", context, client_id(sender), client_id(receiver[0]))
        return _recorded(receiver[1], recorded, info, seed)

    def open_edge(self, context: bytes, sender: int, receiver: End, sealed: bytes) -> bytes:
        """Open the sealed seed of an edge."""
        info = bind("edge-sealing", context, client_id(sender), client_id(receiver[0]))
        sealed = sealed[: 32 + HPKE_OVERHEAD]
        return hpke_open(receiver[1].mlkem_seed, receiver[1].scalar, sealed, info)


def keys_of(suite: str, attempt: bytes) -> Keys:
    """Return the keys of a suite."""
    return Keys(attempt) if suite == "x25519-aes128" else HybridKeys(attempt)


def _recorded(receiver: Pair, recorded: bytes, info: bytes, plaintext: bytes) -> bytes:
    sealed = recorded[: len(plaintext) + HPKE_OVERHEAD]
    if hpke_open(receiver.mlkem_seed, receiver.scalar, sealed, info) != plaintext:
        raise ValueError("what is recorded opens to something else")
    return sealed
