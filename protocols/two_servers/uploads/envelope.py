"""Sealing one server's half of an upload: HPKE for a seed, and AES-256-GCM under a key that follows from it.

The seed is also what server 0's masks of ring segments are expanded from, so a half of any size costs one
encapsulation. Everything is bound to the header's digest and to which server it is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.aead import AEAD_KEY_BYTES, TAG_BYTES
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import AuthenticationFailed
from secagg.identifiers import Party, ServerId
from secagg.parameters import Suite

SEED_BYTES: Final = 32
_NONCE: Final = bytes(12)


def sealing_info(server: ServerId, header_digest: bytes) -> bytes:
    """Return what a sealed seed is bound to."""
    return bind(Label.INDEXING_SEALING, bytes([server.index]), header_digest)


def seal_body(seed: Secret, server: ServerId, header_digest: bytes, body: bytes | bytearray) -> memoryview:
    """Encrypt what one server is sent, under a key that follows from its seed.

    Implements: [SP 800-38D] §7.1.
    """
    sealed = np.empty(len(body) + TAG_BYTES, dtype=np.uint8).data
    with _body_key(seed, server, header_digest) as key:
        # Safe because: the nonce is fixed, and the key follows from the seed and the header of one upload.
        AESGCM(key.expose()).encrypt_into(_NONCE, body, header_digest, sealed)
    return sealed


def open_body(
    seed: Secret, server: ServerId, header_digest: bytes, sealed: bytes | memoryview, *, culprits: Iterable[Party]
) -> bytearray:
    """Decrypt what ``seal_body`` made; the caller overwrites it.

    Implements: [SP 800-38D] §7.2.
    Raises:
        AuthenticationFailed: it was altered, or belongs to another upload or server.
    """
    opened = bytearray(len(sealed) - TAG_BYTES)
    try:
        with _body_key(seed, server, header_digest) as key:
            AESGCM(key.expose()).decrypt_into(_NONCE, sealed, header_digest, opened)
    except InvalidTag:
        overwrite(opened)
        raise AuthenticationFailed(culprits=culprits) from None
    return opened


def ring_mask_key(seed: Secret, suite: Suite, header_digest: bytes) -> Secret:
    """Return the key that expands into server 0's share of all ring segments."""
    return expand("ring_mask_key", suite.mask_key_bytes, seed, Label.INDEXING_RING_MASK, header_digest)


def _body_key(seed: Secret, server: ServerId, header_digest: bytes) -> Secret:
    return expand("body_key", AEAD_KEY_BYTES, seed, Label.INDEXING_BODY_KEY, bytes([server.index]), header_digest)
