"""HKDF-SHA256 and bound strings from their documentation, without code of the library."""

from __future__ import annotations

import hashlib
import hmac

from secagg.crypto.secret import Secret


def framed(label: bytes, *parts: bytes) -> bytes:
    """Return the label, then each part after its length."""
    return label + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def hkdf_extract(salt: bytes, material: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), material, hashlib.sha256)


def hkdf_expand(key: bytes, info: bytes, length: int = 32) -> bytes:
    blocks = [b""]
    while sum(map(len, blocks)) < length:
        blocks.append(hmac.digest(key, blocks[-1] + info + bytes([len(blocks)]), hashlib.sha256))
    return b"".join(blocks)[:length]


def shown(secret: Secret) -> bytes:
    return bytes(secret.expose())
