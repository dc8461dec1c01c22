"""Ideal signatures, key agreement and encryption that replace the library's backends while a case runs.

The library calls its backends by a few names in a few modules; ``installed`` replaces these and changes nothing else. A
signature is valid if it was made, a ciphertext opens if it was sealed, and a key agreement gives both ends the same
value; nothing can be computed from a public key. Hashes and key derivation are the library's own, because a server that
only handles given values can treat them as names for their arguments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from cryptography.exceptions import InvalidSignature, InvalidTag

from secagg.crypto import aead, hybrid_key_agreement, key_agreement
from secagg.crypto.hpke import CLASSIC_OVERHEAD_BYTES
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, AuthenticationFailed
from secagg.identifiers import AttemptContext
from secagg.parameters import Suite
from secagg.protocols.pairwise_mask import relay, round2_masked_input
from secagg.protocols.pairwise_mask import session as pairwise_session
from secagg.protocols.two_servers import client as indexing_client
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers import upload as upload_module
from secagg.session import certificates as identity

UPLOADED = bytes(32)
"""The digest of every upload; the content of a vector decides nothing."""
_SIGNED = set[tuple[bytes, bytes, bytes]]()
_SEALED = dict[tuple[bytes, bytes, bytes, bytes], bytes]()
_PLAINTEXTS = dict[bytes, bytes]()
_SEALED_TO = dict[tuple[bytes, bytes, bytes], bytes]()
_EXPANDED = set[tuple[bytes, int]]()


class IdealSignatureKey:
    """A signing key: a signature is a name for the signer and the signed bytes."""

    def __init__(self, public: bytes) -> None:
        self.public = public

    @classmethod
    def from_private_bytes(cls, seed: bytes) -> IdealSignatureKey:
        return cls(_name(b"identity", bytes(seed)))

    def public_key(self) -> IdealVerificationKey:
        return IdealVerificationKey(self.public)

    def sign(self, statement: bytes) -> bytes:
        signature = _name(b"signature", self.public, statement) * 2
        _SIGNED.add((self.public, signature, statement))
        return signature


class IdealVerificationKey:
    """A verification key: it looks up whether the bytes were signed."""

    def __init__(self, public: bytes) -> None:
        self.public = public

    @classmethod
    def from_public_bytes(cls, public: bytes) -> IdealVerificationKey:
        return cls(public)

    def public_bytes_raw(self) -> bytes:
        return self.public

    def verify(self, signature: bytes, statement: bytes) -> None:
        if (self.public, signature, statement) not in _SIGNED:
            raise InvalidSignature


class IdealExchangeKey:
    """One end of a key agreement."""

    def __init__(self, public: bytes) -> None:
        self.public = public

    @classmethod
    def from_private_bytes(cls, scalar: bytes) -> IdealExchangeKey:
        # The top byte is zero, so the encoding is canonical.
        return cls(_name(b"exchange", bytes(scalar))[:31] + b"\0")

    @classmethod
    def from_public_bytes(cls, public: bytes) -> IdealExchangeKey:
        return cls(public)

    def public_key(self) -> IdealExchangeKey:
        return self

    def public_bytes_raw(self) -> bytes:
        return self.public

    def exchange(self, other: IdealExchangeKey) -> bytes:
        return _name(b"agreed", *sorted((self.public, other.public)))


class IdealSealing:
    """Encryption: a ciphertext is a name for the plaintext, and opens under the same key, nonce and associated data."""

    def __init__(self, key: bytes) -> None:
        self.key = bytes(key)

    def encrypt(self, nonce: bytes, plaintext: bytes, data: bytes) -> bytes:
        name = _name(b"sealed", self.key, nonce, data, bytes(plaintext))
        sealed = (name * (len(plaintext) // len(name) + 2))[: len(plaintext) + aead.TAG_BYTES]
        _SEALED[self.key, nonce, data, sealed] = _PLAINTEXTS[sealed] = bytes(plaintext)
        return sealed

    def encrypt_into(self, nonce: bytes, plaintext: bytes, data: bytes, buffer: memoryview) -> None:
        buffer[:] = self.encrypt(nonce, plaintext, data)

    def decrypt_into(self, nonce: bytes, sealed: bytes, data: bytes, buffer: bytearray) -> int:
        plaintext = _SEALED.get((self.key, nonce, data, bytes(sealed)))
        if plaintext is None:
            raise InvalidTag
        buffer[:] = plaintext
        return len(plaintext)


class IdealSealingKey:
    """Seals to one receiver: a sealed seed is a name for the seed, the receiver and the bound context."""

    def __init__(self, suite: Suite, encoded: bytes, **_: object) -> None:
        self.encoded = encoded
        is_hybrid = suite is Suite.HYBRID
        self.overhead = hybrid_key_agreement.SEALING_OVERHEAD_BYTES if is_hybrid else CLASSIC_OVERHEAD_BYTES

    def seal(self, plaintext: Secret, info: bytes) -> bytes:
        seed = bytes(plaintext.expose())
        name = _name(b"sealed to", self.encoded, info, seed)
        length = len(seed) + self.overhead
        sealed = (name * (length // len(name) + 1))[:length]
        _SEALED_TO[self.encoded, info, sealed] = _PLAINTEXTS[sealed] = seed
        return sealed


class IdealSealingPair:
    """The receiver, who opens seeds that were sealed to it with the same context."""

    def __init__(self, suite: Suite, root: Secret, attempt: AttemptContext) -> None:
        self.public_key = IdealSealingKey(suite, _name(b"sealing", bytes(root.expose()), attempt.digest)[:31] + b"\0")
        self.is_wiped = False

    def open(self, kind: str, sealed: bytes, _: int, info: bytes, **__: object) -> Secret:
        seed = _SEALED_TO.get((self.public_key.encoded, info, bytes(sealed)))
        if self.is_wiped or seed is None:
            raise AuthenticationFailed(culprits=UNDECIDED)
        return Secret(kind, seed)

    def wipe(self) -> None:
        self.is_wiped = True


class IdealHybridKey(IdealSealingKey):
    """A public key of the hybrid suite."""

    def __init__(self, encoded: bytes, _: object = ()) -> None:
        super().__init__(Suite.HYBRID, encoded)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdealHybridKey) and self.encoded == other.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)


class IdealHybridPair(IdealSealingPair):
    """A key pair of the hybrid suite, which opens what was sealed to it."""

    def __init__(self, root: Secret, role: KeyRole, attempt: AttemptContext) -> None:
        super().__init__(Suite.HYBRID, root, attempt)
        self.role = role
        name = _name(b"hybrid", role.value.encode(), bytes(root.expose()), attempt.digest)
        self.public_key: IdealSealingKey = IdealHybridKey(name * (hybrid_key_agreement.HYBRID_PUBLIC_KEY_BYTES // 32))


@contextmanager
def masks_expanded() -> Iterator[set[tuple[bytes, int]]]:
    """Record the key and the sign of every mask that is expanded in the meantime."""
    _EXPANDED.clear()
    yield _EXPANDED


def _expand(_: object, __: object, *, add: Iterable[Secret], subtract: Iterable[Secret], **___: object) -> None:
    """Replace mask expansion: a mask is a name for its key, and adding it records its sign."""
    for sign, keys in ((1, add), (-1, subtract)):
        _EXPANDED.update((bytes(key.expose()), sign) for key in keys)


@contextmanager
def installed(*, with_masks: bool = False) -> Iterator[None]:
    """Let the library use ideal cryptography; earlier signatures and ciphertexts are forgotten.

    Args:
        with_masks: expand masks as the library does, so that sums are computed.
    """
    _SIGNED.clear()
    _SEALED.clear()
    _PLAINTEXTS.clear()
    _SEALED_TO.clear()
    places = (
        (identity, "Ed25519PrivateKey", IdealSignatureKey),
        (identity, "Ed25519PublicKey", IdealVerificationKey),
        (key_agreement, "X25519PrivateKey", IdealExchangeKey),
        (key_agreement, "BackendPublicKey", IdealExchangeKey),
        (aead, "AESGCM", IdealSealing),
        (upload_module, "AESGCM", IdealSealing),
        (opened_upload, "AESGCM", IdealSealing),
        (round2_masked_input, "upload_digest", lambda _: UPLOADED),
        (relay, "upload_digest", lambda _: UPLOADED),
        (pairwise_session, "upload_digest", lambda _: UPLOADED),
        (indexing_client, "sealing_key", IdealSealingKey),
        (opened_upload, "sealing_pair", IdealSealingPair),
        (hybrid_key_agreement, "HybridKeyPair", IdealHybridPair),
        (hybrid_key_agreement, "HybridPublicKey", IdealHybridKey),
        *(() if with_masks else ((round2_masked_input, "accumulate", _expand),)),
    )
    with ExitStack() as stack:
        for module, name, ideal in places:
            stack.enter_context(mock.patch.object(module, name, ideal))
        identity._certified.cache_clear()  # noqa: SLF001 -- the cache was filled by other means
        try:
            yield
        finally:
            identity._certified.cache_clear()  # noqa: SLF001


def sealed_plaintext(sealed: bytes) -> bytes:
    """Return the plaintext of a ciphertext, to record who received which share."""
    return _PLAINTEXTS[sealed]


def _name(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()
