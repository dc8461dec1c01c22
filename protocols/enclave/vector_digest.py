"""What ties a masked vector to the sealed part of its upload: a hiding commitment in its header."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from secagg.crypto.labels import Label, bind

VECTOR_NONCE_BYTES: Final = 32


def vector_digest(nonce: bytes, packed: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of packed masked vectors under a nonce.

    The nonce travels with the vectors. Where another protocol masks and sums them it stays with the client, so that
    nobody can try out updates against the digest.
    """
    digests = [hashlib.sha256(vector).digest() for vector in packed]
    return hashlib.sha256(bind(Label.ENCLAVE_VECTOR_DIGEST, nonce, *digests)).digest()
