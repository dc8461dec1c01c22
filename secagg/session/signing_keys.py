"""What a signing key is for besides signatures: to draw it, to certify others', and to agree on a secret.

A client verifies certificates and signs; these functions are for authorities and for parties that trust each other's
keys. Two Ed25519 keys agree by X25519 over the same points; with separate labels, one key safely serves both purposes
[Tho21].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, AuthenticationFailed, InvalidParameters, Misuse
from secagg.identifiers import ClientId, Party

from .certificates import (
    CACHED_CERTIFICATES,
    FIELD_PRIME,
    IDENTITY_KEY_BYTES,
    NO_EXPIRY,
    Certificate,
    SigningKey,
    is_strong_key,
)


def new_signing_key(coins: Coins) -> SigningKey:
    """Draw a signing key."""
    with Secret.random("signing key", IDENTITY_KEY_BYTES, coins) as seed:
        return SigningKey(seed)


def issue_certificate(
    authority: SigningKey, client: ClientId, public_key: bytes, *, number: int = 0, until: int = NO_EXPIRY
) -> Certificate:
    """Certify a client's identity key, as the authority.

    Args:
        number: its place on the roster; 0 for a key that no roster lists and nothing can revoke.
        until: its expiry, in hours since 1970.
    Security: an authority must first check that the key belongs to the client, and give each client only one key. A
        client that holds two certified identities counts as two.
    """
    if type(authority) is not SigningKey:
        raise Misuse(f"issuing a certificate needs the authority's SigningKey; got {type(authority).__name__}")
    if not is_strong_key(public_key):
        raise InvalidParameters(f"the key of {client} has small order or is not canonical; certify a random key")
    about = number.to_bytes(4, "big") + until.to_bytes(4, "big")
    signature = authority.sign(Label.CERTIFICATE, authority.public_key, client.encode(), public_key, about)
    return Certificate(client, public_key, about + signature)


def agreed(
    own: SigningKey, peer: bytes, length: int, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
) -> Secret:
    """Return bytes that only the holders of a key and of the peer's key can derive.

    Implements: [RFC 8032] §5.1.5, the private scalar; [RFC 7748] §4.1, the map between the curves, and §6.1.
    Raises:
        AuthenticationFailed: the peer's key is of small order or not canonical.
    Security: the holder of either key can impersonate the other to it. This authenticates two parties that trust
        their own keys, but proves nothing to anyone else.
    """
    if not is_strong_key(peer):
        raise AuthenticationFailed(culprits=culprits)
    seed = own.require_usable().private_bytes_raw()
    if own.agreeing is None:
        own.agreeing = X25519PrivateKey.from_private_bytes(hashlib.sha512(seed).digest()[:IDENTITY_KEY_BYTES])
    both = sorted((own.public_key, peer))
    # Safe because: small-order keys were refused, so the backend refuses no output.
    theirs = X25519PublicKey.from_public_bytes(_montgomery(peer))
    with Secret("shared_secret", own.agreeing.exchange(theirs)) as source:
        return derive("agreed", length, source, b"", label, *both, *parts)


@lru_cache(maxsize=CACHED_CERTIFICATES)
def _montgomery(public_key: bytes) -> bytes:
    """Return the same point as an X25519 key; this loses the sign, which X25519 ignores."""
    height = int.from_bytes(public_key, "little") & ((1 << 255) - 1)
    return ((1 + height) * pow(1 - height, -1, FIELD_PRIME) % FIELD_PRIME).to_bytes(IDENTITY_KEY_BYTES, "little")
