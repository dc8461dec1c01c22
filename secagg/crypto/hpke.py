"""HPKE sealing to the holder of a key pair, in either suite, with a fresh encapsulation for every message.

A receiver's key pair is derived from a root and a context, like every key pair of the library. ``hybrid_key_agreement``
has the hybrid suite; this module has the classic one and selects the suite.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey as BackendPublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM
from cryptography.hazmat.primitives.hpke import Suite as HpkeSuite

from secagg.errors import UNDECIDED
from secagg.identifiers import AttemptContext, Party
from secagg.parameters import Suite

from .key_derivation import expand
from .labels import Label
from .public_keys import X25519_BYTES, KeyRole, OpeningPair, X25519PublicKey, require_derivable, sealed_with
from .secret import Secret

if TYPE_CHECKING:
    from .hybrid_key_agreement import HybridKeyPair, HybridPublicKey

CLASSIC_OVERHEAD_BYTES: Final = X25519_BYTES + 16
"""An X25519 share and a tag."""
_HPKE: Final = HpkeSuite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)


@dataclass(frozen=True, slots=True)
class ClassicSealingKey:
    """The public half: an X25519 key in its one canonical encoding."""

    encoded: bytes
    culprits: InitVar[Iterable[Party]] = UNDECIDED

    def __post_init__(self, culprits: Iterable[Party]) -> None:
        X25519PublicKey(self.encoded, culprits)

    def seal(self, plaintext: Secret, info: bytes) -> bytes:
        """Encrypt to the holder of this key; ``info`` must be the same when it is opened.

        Deviation: HPKE draws the coins of its encapsulation inside the backend, which has no derandomized form; only
        here are coins not an argument.
        """
        return sealed_with(_HPKE, plaintext, BackendPublicKey.from_public_bytes(self.encoded), info)


class ClassicSealingPair(OpeningPair):
    """An X25519 key pair."""

    def __init__(self, root: Secret, attempt: AttemptContext) -> None:
        """Derive the pair from 32 uniform bytes; the caller keeps them and wipes them."""
        require_derivable(root, KeyRole.SEALING, attempt)
        with expand("x25519_private_key", X25519_BYTES, root, Label.SEALING_X25519_KEY, attempt.digest) as scalar:
            private = X25519PrivateKey.from_private_bytes(scalar.expose())
        super().__init__(_HPKE, private, CLASSIC_OVERHEAD_BYTES)
        self.public_key = ClassicSealingKey(private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return "<ClassicSealingPair>"


def sealing_pair(suite: Suite, root: Secret, attempt: AttemptContext) -> ClassicSealingPair | HybridKeyPair:
    """Derive the key pair of a receiver; without ML-KEM in the backend, the hybrid suite is an invalid parameter."""
    match suite:
        case Suite.CLASSIC:
            return ClassicSealingPair(root, attempt)
        case Suite.HYBRID:
            from .hybrid_key_agreement import HybridKeyPair  # noqa: PLC0415 -- its import fails closed

            return HybridKeyPair(root, KeyRole.SEALING, attempt)


def sealing_key(
    suite: Suite, encoded: bytes, *, culprits: Iterable[Party] = UNDECIDED
) -> ClassicSealingKey | HybridPublicKey:
    """Check the encoded public key of a receiver, as the constructors of public keys do."""
    match suite:
        case Suite.CLASSIC:
            return ClassicSealingKey(encoded, culprits)
        case Suite.HYBRID:
            from .hybrid_key_agreement import HybridPublicKey  # noqa: PLC0415 -- its import fails closed

            return HybridPublicKey(encoded, culprits)


def sealing_sizes(suite: Suite) -> tuple[int, int]:
    """Return the size of a receiver's public key, and the bytes that sealing adds to a plaintext."""
    match suite:
        case Suite.CLASSIC:
            return X25519_BYTES, CLASSIC_OVERHEAD_BYTES
        case Suite.HYBRID:
            from .hybrid_key_agreement import HYBRID_PUBLIC_KEY_BYTES, SEALING_OVERHEAD_BYTES  # noqa: PLC0415 -- its import fails closed

            return HYBRID_PUBLIC_KEY_BYTES, SEALING_OVERHEAD_BYTES
