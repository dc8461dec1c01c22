"""Hashing, keys, ciphers and signatures, from the published standards; nothing here depends on messages."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

STREAM_SEGMENT = 1 << 20
_BLOCK = 16
_GHASH_CONSTANT = 0xE1 << 120


def bind(label: str, *parts: bytes) -> bytes:
    """Return a label followed by each part, prefixed with its length."""
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return b"secagg/1/" + label.encode("ascii") + framed


def digest(label: str, *parts: bytes) -> bytes:
    """Hash a label and parts."""
    return hashlib.sha256(bind(label, *parts)).digest()


def hash_secret(secret: bytes, label: str, *parts: bytes) -> bytes:
    """Hash a label and parts, and then a secret without its length."""
    return hashlib.sha256(bind(label, *parts) + secret).digest()


# --- Keys -------------------------------------------------------------------------------------------------------------


def extract(salt: bytes, source: bytes) -> bytes:
    """Return the pseudo-random key of RFC 5869, section 2.2."""
    return hmac.digest(salt, source, "sha256")


def expand(key: bytes, length: int, label: str, *parts: bytes) -> bytes:
    """Return the output key of RFC 5869, section 2.3."""
    info, block, made, counter = bind(label, *parts), b"", b"", 1
    while len(made) < length:
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        made, counter = made + block, counter + 1
    return made[:length]


def x25519_public(scalar: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()


def x25519(scalar: bytes, peer: bytes) -> bytes:
    """Return the shared secret."""
    return X25519PrivateKey.from_private_bytes(scalar).exchange(X25519PublicKey.from_public_bytes(peer))


def mlkem768_public(seed: bytes) -> bytes:
    """Return the encapsulation key of a seed."""
    return MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()


def hpke_open(mlkem_seed: bytes, scalar: bytes, sealed: bytes, info: bytes) -> bytes:
    """Open a message sealed in base mode, with ML-KEM-768 and X25519, HKDF-SHA256 and AES-256-GCM."""
    private = MLKEM768X25519PrivateKey(
        MLKEM768PrivateKey.from_seed_bytes(mlkem_seed), X25519PrivateKey.from_private_bytes(scalar)
    )
    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM).decrypt(sealed, private, info)


def ed25519_public(seed: bytes) -> bytes:
    """Return the public key of a signing seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed: bytes, label: str, *parts: bytes) -> bytes:
    """Sign a label and parts."""
    return Ed25519PrivateKey.from_private_bytes(seed).sign(bind(label, *parts))


# --- Ciphers ----------------------------------------------------------------------------------------------------------


def aes(key: bytes, blocks: bytes) -> bytes:
    """Encrypt blocks separately: the bare permutation, on which the modes below are built."""
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks)  # noqa: S305 -- the bare block cipher


def stream(key: bytes, start: int, length: int) -> bytes:
    """Return ``length`` bytes of a mask stream from byte ``start``, block by block."""
    first, last = start // _BLOCK, -(-(start + length) // _BLOCK)
    per_segment = STREAM_SEGMENT // _BLOCK
    counters = b"".join(
        (block // per_segment).to_bytes(12, "big") + (block % per_segment + 2).to_bytes(4, "big")
        for block in range(first, last)
    )
    return aes(key, counters)[start % _BLOCK :][:length]


def gcm_seal(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """Return ciphertext and tag of AES-GCM, SP 800-38D, section 7.1."""
    count = -(-len(plaintext) // _BLOCK)
    keystream = aes(key, b"".join(nonce + (counter + 2).to_bytes(4, "big") for counter in range(count)))
    ciphertext = bytes(a ^ b for a, b in zip(plaintext, keystream, strict=False))
    hash_key = int.from_bytes(aes(key, bytes(_BLOCK)), "big")
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(ciphertext)).to_bytes(8, "big")
    tag = 0
    for block in (*_blocks(associated), *_blocks(ciphertext), lengths):
        tag = _multiply(tag ^ int.from_bytes(block, "big"), hash_key)
    tag ^= int.from_bytes(aes(key, nonce + (1).to_bytes(4, "big")), "big")
    return ciphertext + tag.to_bytes(_BLOCK, "big")


def _blocks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), _BLOCK):
        yield data[start : start + _BLOCK].ljust(_BLOCK, b"\0")


def _multiply(left: int, right: int) -> int:
    """Multiply in the field of GCM, SP 800-38D, section 6.3."""
    product = 0
    for bit in range(127, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (_GHASH_CONSTANT if right & 1 else 0)
    return product
