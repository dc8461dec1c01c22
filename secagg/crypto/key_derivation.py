"""HKDF-SHA256 with a label in every call."""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from secagg.errors import InvalidParameters

from .labels import Label, bind
from .secret import Secret, overwrite, require_secret

_HASH = hashes.SHA256()
_HASH_BYTES = 32
_LIMIT_BYTES = 255 * _HASH_BYTES


def derive(kind: str, length: int, source: Secret, salt: bytes, label: Label, *parts: bytes) -> Secret:
    """Derive a secret from one that may not be uniform, such as a Diffie-Hellman output.

    Implements: [RFC 5869] §2.2 and §2.3, with the label and the parts as ``info``.
    """
    require_secret(source)
    _require_length(length)
    derived = bytearray(length)
    HKDF(_HASH, length, salt, bind(label, *parts)).derive_into(source.expose(), derived)
    return _owned(kind, derived)


def expand(kind: str, length: int, source: Secret, label: Label, *parts: bytes) -> Secret:
    """Derive a secret from a uniform one of at least 32 bytes.

    Implements: [RFC 5869] §2.3, with the label and the parts as ``info``.
    """
    require_secret(source)
    _require_length(length)
    if len(source) < _HASH_BYTES:
        raise InvalidParameters(f"{source!r} is too short to expand; {_HASH_BYTES} bytes are needed")
    derived = bytearray(length)
    HKDFExpand(_HASH, length, bind(label, *parts)).derive_into(source.expose(), derived)
    return _owned(kind, derived)


def _require_length(length: int) -> None:
    if not 1 <= length <= _LIMIT_BYTES:
        raise InvalidParameters(f"a derived secret must have 1 to {_LIMIT_BYTES} bytes; got {length}")


def _owned(kind: str, derived: bytearray) -> Secret:
    secret = Secret(kind, derived)
    overwrite(derived)
    return secret
