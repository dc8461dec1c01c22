"""Long-term identities: keys certified by an authority outside the server, and their signatures.

Without an authority an active server can invent or impersonate clients. Signatures are Ed25519 over a label and
length-framed parts, so no signature can be taken for one on anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret, require_secret
from secagg.declared import CLIENT, fixed, repeated, unsigned
from secagg.errors import UNDECIDED, AuthenticationFailed, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId, Party

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

IDENTITY_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
GRANT_BYTES: Final = 8 + SIGNATURE_BYTES
"""Length of an authority's grant for a key: certificate number, expiry hour and signature."""
HOUR: Final = 3600
NO_EXPIRY: Final = (1 << 32) - 1
FIELD_PRIME: Final = 2**255 - 19
_ORDER_EIGHT: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = frozenset({0, 1, FIELD_PRIME - 1, _ORDER_EIGHT, FIELD_PRIME - _ORDER_EIGHT})
"""y-coordinates of the eight points whose order divides 8: with such a key one signature fits many messages."""
CACHED_CERTIFICATES: Final = 1 << 14
DIGEST_BYTES: Final = 32
MOST_REVOKED: Final = 1 << 16
_CACHED_STANDINGS: Final = 64


class SigningKey(Confined):
    """Private signing key of a client or an authority."""

    def __init__(self, seed: Secret) -> None:
        """Make the key from 32 uniform bytes, which the caller keeps and wipes.

        Implements: [RFC 8032] §5.1.5.
        """
        require_secret(seed)
        if len(seed) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"a signing key's seed must be {IDENTITY_KEY_BYTES} bytes; got {seed!r}")
        private = Ed25519PrivateKey.from_private_bytes(seed.expose())
        self._private: Ed25519PrivateKey | None = private
        self.agreeing: X25519PrivateKey | None = None
        """The same key for X25519, once ``signing_keys.agreed`` has used it."""
        self.public_key = private.public_key().public_bytes_raw()

    def sign(self, label: Label, *parts: bytes) -> bytes:
        """Sign the parts under a label; signatures are deterministic.

        Implements: [RFC 8032] §5.1.6.
        """
        return self.require_usable().sign(bind(label, *parts))

    def require_usable(self) -> Ed25519PrivateKey:
        """Return the backend's key, unless it was wiped."""
        if self._private is None:
            raise Misuse(f"{self!r} was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)
        return self._private

    def wipe(self) -> None:
        """Drop the private key; the backend frees it."""
        self._private = self.agreeing = None

    def __repr__(self) -> str:
        return "<SigningKey>"


@dataclass(frozen=True, slots=True)
class Certificate:
    """An authority's statement that a key belongs to a client."""

    client: Annotated[ClientId, CLIENT]
    public_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    grant: Annotated[bytes, fixed(GRANT_BYTES)]
    """Its number on the roster (4), its expiry in hours since 1970 (4), and the authority's signature (64)."""

    def __post_init__(self) -> None:
        if type(self.client) is not ClientId or type(self.public_key) is not bytes or type(self.grant) is not bytes:
            raise Misuse("a certificate needs a ClientId, a public key and a grant")
        if (len(self.public_key), len(self.grant)) != (IDENTITY_KEY_BYTES, GRANT_BYTES):
            raise InvalidParameters(
                f"a certificate needs a key of {IDENTITY_KEY_BYTES} bytes and a grant of {GRANT_BYTES}"
            )

    @property
    def number(self) -> int:
        """Its number, used to revoke it; an authority gives each number to only one certificate."""
        return int.from_bytes(self.grant[:4], "big")

    @property
    def expiry(self) -> int:
        """When it expires, in seconds since 1970."""
        return int.from_bytes(self.grant[4:8], "big") * HOUR


@dataclass(frozen=True, slots=True)
class VerifiedIdentity:
    """A client and its certified key; only ``Authority.verify`` creates one."""

    client: ClientId
    public_key: bytes

    def verify(self, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED) -> None:
        """Verify this client's signature, as ``verify_signature`` does."""
        verify_signature(self.public_key, signature, label, *parts, culprits=culprits)


@dataclass(frozen=True, slots=True)
class Authority:
    """Authority that certifies the clients' identity keys; every client knows its public key beforehand."""

    public_key: bytes

    def __post_init__(self) -> None:
        if type(self.public_key) is not bytes or len(self.public_key) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"an authority's public key must be {IDENTITY_KEY_BYTES} bytes")
        if not is_strong_key(self.public_key):
            raise InvalidParameters("the authority's key has small order or is not canonical; anybody can sign with it")

    def verify(self, certificate: Certificate, *, culprits: Iterable[Party] = UNDECIDED) -> VerifiedIdentity:
        """Check that this authority issued the certificate, for a secure key.

        Raises:
            AuthenticationFailed: it did not, or the key has small order or is not canonical.
        """
        if not is_strong_key(certificate.public_key):
            raise AuthenticationFailed(culprits=culprits)
        try:
            return _certified(self.public_key, certificate)
        except AuthenticationFailed:
            raise AuthenticationFailed(culprits=culprits) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Head of an authority's roster: a time, the digest of everything before it, and the revoked numbers."""

    number: Annotated[int, unsigned(8)] = 0
    """Time of creation, in seconds since 1970; higher than in all earlier standings of the authority."""
    digest: Annotated[bytes, fixed(DIGEST_BYTES)] = bytes(DIGEST_BYTES)
    revoked: Annotated[tuple[int, ...], repeated(unsigned(4), MOST_REVOKED)] = ()
    """Revoked certificates that have not expired, in increasing order."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = field(default=bytes(SIGNATURE_BYTES), repr=False)

    def __post_init__(self) -> None:
        if list(self.revoked) != sorted({*self.revoked}) or len(self.revoked) > MOST_REVOKED:
            raise InvalidParameters(f"a standing must list at most {MOST_REVOKED} revoked numbers, in increasing order")

    @property
    def parts(self) -> tuple[bytes, ...]:
        """The signed parts, in addition to the authority's key."""
        return self.number.to_bytes(8, "big"), self.digest, *(each.to_bytes(4, "big") for each in self.revoked)

    def signed(self, authority: SigningKey) -> Standing:
        """Return a copy with the authority's signature."""
        return replace(self, signature=authority.sign(Label.STANDING, authority.public_key, *self.parts))

    def verify(self, authority: bytes) -> None:
        """Refuse a standing that the authority has not signed."""
        _require_signed(authority, self)

    def require_valid(self, certificate: Certificate, *, culprits: Iterable[Party] = UNDECIDED) -> None:
        """Refuse a certificate that was revoked or had expired when the standing was made.

        Raises:
            AuthenticationFailed: names the culprits.
        """
        if certificate.number in self.revoked or certificate.expiry <= self.number:
            raise AuthenticationFailed(culprits=culprits)


NO_STANDING: Final = Standing()
"""Used if nobody certifies clients; a client of an authority refuses it as too old."""


def is_strong_key(public_key: bytes) -> bool:
    """Whether an Ed25519 key is canonically encoded and not one of the eight points of small order.

    Deviation: [RFC 8032] §5.1.7 accepts keys of small order. With such a key, signatures verify that nobody made, so it
    must not certify anyone.
    """
    height = int.from_bytes(public_key, "little") & ((1 << 255) - 1)
    return height < FIELD_PRIME and height not in _SMALL_ORDER


def verify_signature(
    public_key: bytes, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
) -> None:
    """Verify a signature of a key that was authenticated otherwise, by a certificate or an enclave's evidence.

    Implements: [RFC 8032] §5.1.7.
    Raises:
        AuthenticationFailed: the signature does not match this key, these parts and this label.
    """
    _verify(public_key, signature, bind(label, *parts), culprits)


@lru_cache(maxsize=CACHED_CERTIFICATES)
def _certified(authority: bytes, certificate: Certificate) -> VerifiedIdentity:
    """Verify a certificate; cached, because a client meets the same peers in every round."""
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
"""Raises unless a key made a signature; a rehearsal replaces it with a version that caches results."""
