"""Long-term identities: keys that an authority outside the server vouches for, and their signatures.

Without an authority an active server can invent clients, or put itself in the place of one. Signatures are Ed25519 over
a label and length-framed parts, so that none can be taken for a signature on anything else. Two keys also agree on
secrets, by X25519 over the same points; under labels of their own, one key serves both [Tho21].
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret, require_secret
from secagg.declared import CLIENT, fixed, repeated, unsigned
from secagg.errors import UNDECIDED, AuthenticationFailed, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId, Party

IDENTITY_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
GRANT_BYTES: Final = 8 + SIGNATURE_BYTES
"""Bytes of what an authority says of a key: the certificate's number, the hour of its expiry, and its signature."""
HOUR: Final = 3600
NO_EXPIRY: Final = (1 << 32) - 1
_FIELD_PRIME: Final = 2**255 - 19
_ORDER_EIGHT: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = frozenset({0, 1, _FIELD_PRIME - 1, _ORDER_EIGHT, _FIELD_PRIME - _ORDER_EIGHT})
"""The y-coordinates of the eight points whose order divides 8: under such a key one signature fits many messages."""
_CACHED_CERTIFICATES: Final = 1 << 14
DIGEST_BYTES: Final = 32
MOST_REVOKED: Final = 1 << 16
_CACHED_STANDINGS: Final = 64


class SigningKey(Confined):
    """A private signing key, of a client or of an authority."""

    def __init__(self, seed: Secret) -> None:
        """Make the key from 32 uniform bytes; the caller keeps them and wipes them.

        Implements: [RFC 8032] §5.1.5.
        """
        require_secret(seed)
        if len(seed) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"a signing key is made from {IDENTITY_KEY_BYTES} bytes; got {seed!r}")
        private = Ed25519PrivateKey.from_private_bytes(seed.expose())
        self._private: Ed25519PrivateKey | None = private
        self._agreeing: X25519PrivateKey | None = None
        """The same key on the other curve, once it was asked for."""
        self.public_key = private.public_key().public_bytes_raw()

    def sign(self, label: Label, *parts: bytes) -> bytes:
        """Sign the parts under a label; signing again gives the same bytes.

        Implements: [RFC 8032] §5.1.6.
        """
        return self.require_usable().sign(bind(label, *parts))

    def agreed(
        self, peer: bytes, length: int, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
    ) -> Secret:
        """Return bytes that only the holders of this key and of the peer's key can derive.

        Implements: [RFC 8032] §5.1.5, the private scalar; [RFC 7748] §4.1, the map between the curves, and §6.1.
        Raises:
            AuthenticationFailed: the peer's key is of small order or not canonical.
        Security: who holds either of both keys can be the other one to it. That is proof enough between two who trust
            their own keys, and none for anybody else.
        """
        if not is_strong_key(peer):
            raise AuthenticationFailed(culprits=culprits)
        seed = self.require_usable().private_bytes_raw()
        if self._agreeing is None:
            self._agreeing = X25519PrivateKey.from_private_bytes(hashlib.sha512(seed).digest()[:IDENTITY_KEY_BYTES])
        both = sorted((self.public_key, peer))
        # Safe because: a key of small order was refused, and so the backend refuses no output.
        theirs = X25519PublicKey.from_public_bytes(_montgomery(peer))
        with Secret("shared_secret", self._agreeing.exchange(theirs)) as source:
            return derive("agreed", length, source, b"", label, *both, *parts)

    def require_usable(self) -> Ed25519PrivateKey:
        """Return the backend's key, unless it was wiped."""
        if self._private is None:
            raise Misuse(f"{self!r} was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)
        return self._private

    def wipe(self) -> None:
        """Give up the private key; the backend frees it."""
        self._private = self._agreeing = None

    def __repr__(self) -> str:
        return "<SigningKey>"


def new_signing_key(coins: Coins) -> SigningKey:
    """Draw a signing key."""
    with Secret.random("signing key", IDENTITY_KEY_BYTES, coins) as seed:
        return SigningKey(seed)


@dataclass(frozen=True, slots=True)
class Certificate:
    """An authority's word that a key belongs to a client."""

    client: Annotated[ClientId, CLIENT]
    public_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    grant: Annotated[bytes, fixed(GRANT_BYTES)]
    """Its number on the roster (4), the hour of its expiry since 1970 (4), and the authority's signature (64)."""

    def __post_init__(self) -> None:
        if type(self.client) is not ClientId or type(self.public_key) is not bytes or type(self.grant) is not bytes:
            raise Misuse("a certificate is made from a ClientId, a public key and a grant")
        if (len(self.public_key), len(self.grant)) != (IDENTITY_KEY_BYTES, GRANT_BYTES):
            raise InvalidParameters(
                f"a certificate has a key of {IDENTITY_KEY_BYTES} bytes and a grant of {GRANT_BYTES}"
            )

    @property
    def number(self) -> int:
        """Its number, by which it can be revoked; an authority gives each to one certificate."""
        return int.from_bytes(self.grant[:4], "big")

    @property
    def expiry(self) -> int:
        """When it expires, in seconds since 1970."""
        return int.from_bytes(self.grant[4:8], "big") * HOUR


@dataclass(frozen=True, slots=True)
class VerifiedIdentity:
    """A client and the key that the authority vouches for; only ``Authority.verify`` makes one."""

    client: ClientId
    public_key: bytes

    def verify(self, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED) -> None:
        """Check a signature of this client, as ``verify_signature`` does."""
        verify_signature(self.public_key, signature, label, *parts, culprits=culprits)


@dataclass(frozen=True, slots=True)
class Authority:
    """Authority that certifies the identity keys of clients; every client knows its public key beforehand."""

    public_key: bytes

    def __post_init__(self) -> None:
        if type(self.public_key) is not bytes or len(self.public_key) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"an authority is known by a public key of {IDENTITY_KEY_BYTES} bytes")
        if not is_strong_key(self.public_key):
            raise InvalidParameters("the authority's key is of small order or not canonical; anybody signs under it")

    def verify(self, certificate: Certificate, *, culprits: Iterable[Party] = UNDECIDED) -> VerifiedIdentity:
        """Check that this authority issued the certificate, for a key that somebody has to have drawn.

        Raises:
            AuthenticationFailed: it did not, or the key is of small order or not canonical.
        """
        if not is_strong_key(certificate.public_key):
            raise AuthenticationFailed(culprits=culprits)
        try:
            return _certified(self.public_key, certificate)
        except AuthenticationFailed:
            raise AuthenticationFailed(culprits=culprits) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Head of an authority's roster: a time, the digest of all before it, and the numbers that were revoked."""

    number: Annotated[int, unsigned(8)] = 0
    """When it was made, in seconds since 1970; each standing of an authority has a higher one than those before."""
    digest: Annotated[bytes, fixed(DIGEST_BYTES)] = bytes(DIGEST_BYTES)
    revoked: Annotated[tuple[int, ...], repeated(unsigned(4), MOST_REVOKED)] = ()
    """Revoked certificates that have not expired, increasing."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = field(default=bytes(SIGNATURE_BYTES), repr=False)

    def __post_init__(self) -> None:
        if list(self.revoked) != sorted({*self.revoked}) or len(self.revoked) > MOST_REVOKED:
            raise InvalidParameters(f"a standing lists at most {MOST_REVOKED} revoked numbers, once each, increasing")

    @property
    def parts(self) -> tuple[bytes, ...]:
        """What is signed besides the authority's key."""
        return self.number.to_bytes(8, "big"), self.digest, *(each.to_bytes(4, "big") for each in self.revoked)

    def signed(self, authority: SigningKey) -> Standing:
        """Return it with the authority's signature."""
        return replace(self, signature=authority.sign(Label.STANDING, authority.public_key, *self.parts))

    def verify(self, authority: bytes) -> None:
        """Refuse a standing that the authority has not signed."""
        _require_signed(authority, self)

    def require_valid(self, certificate: Certificate, *, culprits: Iterable[Party] = UNDECIDED) -> None:
        """Refuse a certificate that was revoked or had expired when the standing was made.

        Raises:
            AuthenticationFailed: naming the culprits.
        """
        if certificate.number in self.revoked or certificate.expiry <= self.number:
            raise AuthenticationFailed(culprits=culprits)


NO_STANDING: Final = Standing()
"""In place of a standing where nobody certifies clients; a client of an authority refuses it as too old."""


def issue_certificate(
    authority: SigningKey, client: ClientId, public_key: bytes, *, number: int = 0, until: int = NO_EXPIRY
) -> Certificate:
    """Vouch for a client's identity key, as the authority.

    Args:
        number: its place on the roster; 0 for a key that no roster lists and that nothing revokes.
        until: hour of its expiry since 1970.
    Security: an authority checks first that the key is the client's, and gives one client one key. A client that
        holds two certified identities counts as two.
    """
    if type(authority) is not SigningKey:
        raise Misuse(f"an authority issues with its SigningKey; got {type(authority).__name__}")
    if not is_strong_key(public_key):
        raise InvalidParameters(f"the key of {client} is of small order or not canonical; certify one that was drawn")
    about = number.to_bytes(4, "big") + until.to_bytes(4, "big")
    signature = authority.sign(Label.CERTIFICATE, authority.public_key, client.encode(), public_key, about)
    return Certificate(client, public_key, about + signature)


def is_strong_key(public_key: bytes) -> bool:
    """Whether an Ed25519 key has the one encoding of its point, and is none of the eight points of small order.

    Deviation: [RFC 8032] §5.1.7 accepts keys of small order. Under such a key signatures verify that nobody made with
    it, so a key of that kind certifies no one.
    """
    height = int.from_bytes(public_key, "little") & ((1 << 255) - 1)
    return height < _FIELD_PRIME and height not in _SMALL_ORDER


@lru_cache(maxsize=_CACHED_CERTIFICATES)
def _montgomery(public_key: bytes) -> bytes:
    """Return the same point as an X25519 key; its sign is lost, and with it nothing that X25519 looks at."""
    height = int.from_bytes(public_key, "little") & ((1 << 255) - 1)
    return ((1 + height) * pow(1 - height, -1, _FIELD_PRIME) % _FIELD_PRIME).to_bytes(IDENTITY_KEY_BYTES, "little")


def verify_signature(
    public_key: bytes, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
) -> None:
    """Check a signature under a key that something else vouches for: a certificate, or an enclave's evidence.

    Implements: [RFC 8032] §5.1.7.
    Raises:
        AuthenticationFailed: it is not a signature of this key on these parts under this label.
    """
    _verify(public_key, signature, bind(label, *parts), culprits)


@lru_cache(maxsize=_CACHED_CERTIFICATES)
def _certified(authority: bytes, certificate: Certificate) -> VerifiedIdentity:
    """Verify a certificate; it is remembered, because a client meets the same peers round after round."""
    about, signature = certificate.grant[:-SIGNATURE_BYTES], certificate.grant[-SIGNATURE_BYTES:]
    statement = bind(Label.CERTIFICATE, authority, certificate.client.encode(), certificate.public_key, about)
    _verify(authority, signature, statement, UNDECIDED)
    return VerifiedIdentity(certificate.client, certificate.public_key)


@lru_cache(maxsize=_CACHED_STANDINGS)
def _require_signed(authority: bytes, standing: Standing) -> None:
    verify_signature(authority, standing.signature, Label.STANDING, authority, *standing.parts)


def _verify(public_key: bytes, signature: bytes, statement: bytes, culprits: Iterable[Party]) -> None:
    if not is_strong_key(public_key):
        raise AuthenticationFailed(culprits=culprits)
    try:
        verified_by(public_key, signature, statement)
    except (InvalidSignature, ValueError):
        raise AuthenticationFailed(culprits=culprits) from None


def _verified(public_key: bytes, signature: bytes, statement: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(public_key).verify(signature, statement)


verified_by: Callable[[bytes, bytes, bytes], None] = _verified
"""Raises unless a signature is a key's; a rehearsal puts one in its place that remembers what it verified."""
