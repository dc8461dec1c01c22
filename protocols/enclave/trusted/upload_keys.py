"""What follows from the one seed that a client seals: the mask of its vector, the key of its indices, and a digest.

A seed belongs to one upload. Everything that is derived from it is bound to the configuration, to the epoch and to the
upload's id, so that a seed that is sealed twice still gives no stream twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.aead import AEAD_KEY_BYTES, TAG_BYTES
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import AuthenticationFailed
from secagg.identifiers import AttemptContext, Party
from secagg.parameters import Suite

_NONCE_BYTES = 12
_PIECE_BYTES = 1 << 30


def mask_key(seed: Secret, suite: Suite, context: AttemptContext, epoch: bytes, upload_id: bytes) -> Secret:
    """Return the key that expands into the mask of an upload's ring segments."""
    return expand("mask_key", suite.mask_key_bytes, seed, Label.ENCLAVE_MASK_KEY, context.digest, epoch, upload_id)


def vector_digest(
    seed: Secret, context: AttemptContext, epoch: bytes, upload_id: bytes, packed: Iterable[bytes | memoryview]
) -> bytes:
    """Return the digest of a masked vector under a key that only its client and the enclave can derive.

    Deviation: the design has a hash of the masked vector. A hash in the clear takes longer than the mask itself. It
    would stop nobody but a host, which knows neither this key nor two vectors with one digest under it, and the digest
    is compared by nobody else: what it binds is which vector the client sealed the seed for.

    Implements: [SP 800-38D] §7.1, GMAC of each piece under a nonce of its own; the tags are hashed together.
    """
    tags = list[bytes]()
    with expand("vector_key", AEAD_KEY_BYTES, seed, Label.ENCLAVE_VECTOR_KEY, context.digest, epoch, upload_id) as key:
        cipher = AESGCM(key.expose())
        for vector in packed:
            for start in range(0, len(vector), _PIECE_BYTES):
                # Safe because: the key is derived for this one digest, and no two of its pieces have one number.
                nonce = len(tags).to_bytes(_NONCE_BYTES, "big")
                tags.append(cipher.encrypt(nonce, b"", memoryview(vector)[start : start + _PIECE_BYTES]))
    return hashlib.sha256(bind(Label.ENCLAVE_VECTOR_DIGEST, *tags)).digest()


def sealing_info(header_digest: bytes) -> bytes:
    """Return what the sealed seed is bound to."""
    return bind(Label.ENCLAVE_SEALING, header_digest)


def seal_indices(seed: Secret, header_digest: bytes, packed: bytes | memoryview) -> memoryview:
    """Encrypt packed indices under a key that follows from the sealed seed; bound to the header like the seed itself.

    Implements: [SP 800-38D] §7.1.
    """
    sealed = np.empty(len(packed) + TAG_BYTES, dtype=np.uint8).data
    with _indices_key(seed, header_digest) as key:
        # Safe because: the nonce is fixed, and the key follows from the seed and the header of one upload.
        AESGCM(key.expose()).encrypt_into(bytes(_NONCE_BYTES), packed, header_digest, sealed)
    return sealed


def open_indices(
    seed: Secret, header_digest: bytes, sealed: bytes | memoryview, *, culprits: Iterable[Party]
) -> bytearray:
    """Decrypt what ``seal_indices`` made; the caller overwrites it.

    Implements: [SP 800-38D] §7.2.
    Raises:
        AuthenticationFailed: the indices were altered, or belong to another upload.
    """
    opened = bytearray(len(sealed) - TAG_BYTES)
    try:
        with _indices_key(seed, header_digest) as key:
            AESGCM(key.expose()).decrypt_into(bytes(_NONCE_BYTES), sealed, header_digest, opened)
    except InvalidTag:
        overwrite(opened)
        raise AuthenticationFailed(culprits=culprits) from None
    return opened


def _indices_key(seed: Secret, header_digest: bytes) -> Secret:
    return expand("indices_key", AEAD_KEY_BYTES, seed, Label.ENCLAVE_INDICES_KEY, header_digest)
