"""Keys from the one seed that a client seals: the mask of its vector, and the key of its indices.

A seed belongs to one upload. Everything that is derived from it is bound to the configuration, to the epoch, to the
client and to the model, so that a seed that is sealed twice still gives no stream twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import UNDECIDED, AuthenticationFailed
from secagg.identifiers import AttemptContext, ClientId, Party
from secagg.parameters import Suite
from secagg.session.certificates import SigningKey

PROOF_BYTES: Final = 16
TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
_NONCE_BYTES = 12


def mask_key(  # noqa: PLR0913, PLR0917 -- what a mask is bound to
    seed: Secret, suite: Suite, context: AttemptContext, epoch: bytes, client: ClientId, version: int
) -> Secret:
    """Return the key that expands into the mask of an upload's ring segments."""
    parts = (context.digest, epoch, client.encode(), version.to_bytes(8, "big"))
    return expand("mask_key", suite.mask_key_bytes, seed, Label.ENCLAVE_MASK_KEY, *parts)


def sealing_info(header_digest: bytes) -> bytes:
    """Return what the sealed seed is bound to."""
    return bind(Label.ENCLAVE_SEALING, header_digest)


def proof_of(
    own_key: SigningKey, peer_key: bytes, header_digest: bytes, *, culprits: Iterable[Party] = UNDECIDED
) -> Secret:
    """Return what only the client and the enclave of a header can make, and a client seals with its seed.

    It takes the place of a signature, and is nobody's evidence: the enclave could have made it too. It is of one
    header, so that knowing it is worth nothing for another one.
    """
    return own_key.agreed(peer_key, PROOF_BYTES, Label.ENCLAVE_PROOF, header_digest, culprits=culprits)


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
    return expand("indices_key", _KEY_BYTES, seed, Label.ENCLAVE_INDICES_KEY, header_digest)
