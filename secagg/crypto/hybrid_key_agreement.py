"""The hybrid suite: ML-KEM-768 and X25519 combined in HPKE; an attacker must break both.

A key encapsulation is not a key agreement: two public keys alone do not determine a secret. So one end of an edge
chooses a pairwise seed, as a pseudorandom function of its root, and seals it to the other end's mask key; the shares of
either root recover it.

Importing this module fails if the backend has no ML-KEM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey as BackendX25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey, Suite

from secagg.blame import unverified
from secagg.errors import UNDECIDED, InvalidParameters, MalformedMessage, Misuse, Reason, require_length
from secagg.identifiers import AttemptContext, ClientId, Party, SessionContext

from .key_derivation import expand
from .labels import Label, bind
from .public_keys import KEY_BYTES, X25519_BYTES, KeyRole, OpeningPair, X25519PublicKey, require_derivable, sealed_with
from .secret import Secret, require_secret

MLKEM768_BYTES: Final = 1184
HYBRID_PUBLIC_KEY_BYTES: Final = MLKEM768_BYTES + X25519_BYTES
SEALING_OVERHEAD_BYTES: Final = 1088 + X25519_BYTES + 16
"""An ML-KEM-768 ciphertext, an X25519 share and a tag."""
_MLKEM_SEED_BYTES = 64
_LABELS = {
    KeyRole.CHANNEL: (Label.CHANNEL_HYBRID_MLKEM_SEED, Label.CHANNEL_HYBRID_X25519_KEY),
    KeyRole.MASK: (Label.MASK_HYBRID_MLKEM_SEED, Label.MASK_HYBRID_X25519_KEY),
    KeyRole.SEALING: (Label.SEALING_HYBRID_MLKEM_SEED, Label.SEALING_HYBRID_X25519_KEY),
}


def require_mlkem() -> None:
    """Refuse a backend without ML-KEM keys."""
    try:
        MLKEM768PrivateKey.from_seed_bytes(bytes(_MLKEM_SEED_BYTES))
    except UnsupportedAlgorithm:
        raise InvalidParameters(
            "the hybrid suite needs ML-KEM-768, which this build of the cryptography package lacks; install a wheel "
            "from its publisher (48 or newer), or configure Suite.CLASSIC on every party",
            reason=Reason.BACKEND_MISSING,
        ) from None


require_mlkem()
# Deviation: HPKE draws the coins of its encapsulation inside the backend, which has no derandomized form.
_HPKE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclass(frozen=True, slots=True)
class HybridPublicKey:
    """An ML-KEM-768 encapsulation key followed by an X25519 key, both checked."""

    encoded: bytes
    culprits: InitVar[Iterable[Party]] = UNDECIDED
    """Parties to name if the key is refused: its sender, and the relay if it is unsigned."""

    def __post_init__(self, culprits: Iterable[Party]) -> None:
        """Refuse a key of the wrong length, not canonical, or of low order.

        Implements: [FIPS 203] §7.2, the modulus check, through the backend; [RFC 7748] §6.1.
        """
        require_length("a hybrid public key", len(self.encoded), HYBRID_PUBLIC_KEY_BYTES, culprits)
        X25519PublicKey(self.encoded[MLKEM768_BYTES:], culprits)
        try:
            MLKEM768PublicKey.from_public_bytes(self.encoded[:MLKEM768_BYTES])
        except ValueError:
            raise MalformedMessage(
                "the ML-KEM part of the public key is not in canonical form; reduce its coefficients modulo 3329",
                reason=Reason.PUBLIC_KEY_NOT_CANONICAL,
                culprits=culprits,
            ) from None

    def seal(self, plaintext: Secret, info: bytes) -> bytes:
        """Encrypt to the holder of this key; ``info`` must be the same when it is opened.

        Claim PM-10: either half keeps the plaintext secret, and ``info`` keeps contexts apart.
        """
        backend_key = MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(self.encoded[:MLKEM768_BYTES]),
            BackendX25519PublicKey.from_public_bytes(self.encoded[MLKEM768_BYTES:]),
        )
        return sealed_with(_HPKE, plaintext, backend_key, info)


class HybridKeyPair(OpeningPair):
    """A hybrid key pair derived from a root; recovering the root recovers the pair."""

    def __init__(self, root: Secret, role: KeyRole, attempt: AttemptContext) -> None:
        """Derive both halves of the pair from one root, under separate labels."""
        require_derivable(root, role, attempt)
        self.role = role
        seed_label, x25519_label = _LABELS[role]
        with (
            expand("mlkem768_seed", _MLKEM_SEED_BYTES, root, seed_label, attempt.digest) as seed,
            expand("x25519_private_key", X25519_BYTES, root, x25519_label, attempt.digest) as scalar,
        ):
            mlkem = MLKEM768PrivateKey.from_seed_bytes(seed.expose())
            x25519 = X25519PrivateKey.from_private_bytes(scalar.expose())
        super().__init__(_HPKE, MLKEM768X25519PrivateKey(mlkem, x25519), SEALING_OVERHEAD_BYTES)
        self.public_key = HybridPublicKey(
            mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        )

    def __repr__(self) -> str:
        return f"<HybridKeyPair {self.role.value}>"


def edge_seed(root: Secret, sender: ClientId, receiver: ClientId, context: SessionContext) -> Secret:
    """Return the pairwise seed that the sending end of an edge chooses; its root determines it."""
    return expand("pairwise_seed", KEY_BYTES, root, Label.EDGE_SEED, *_edge(sender, receiver, context))


def seal_edge_seed(
    seed: Secret, receiver_key: HybridPublicKey, sender: ClientId, receiver: ClientId, context: SessionContext
) -> bytes:
    """Seal an edge's seed to the receiving end's mask key."""
    require_secret(seed)
    if len(seed) != KEY_BYTES:
        raise Misuse(f"an edge seed must be {KEY_BYTES} bytes; got {seed!r}")
    return receiver_key.seal(seed, _edge_info(sender, receiver, context))


def open_edge_seed(
    receiver_pair: HybridKeyPair, sealed: bytes, sender: ClientId, receiver: ClientId, context: SessionContext
) -> Secret:
    """Open an edge's seed with the receiving end's mask key pair."""
    if receiver_pair.role is not KeyRole.MASK:
        raise Misuse(f"{receiver_pair!r} cannot open an edge seed; use the client's mask key pair")
    info = _edge_info(sender, receiver, context)
    return receiver_pair.open("pairwise_seed", sealed, KEY_BYTES, info, culprits=unverified(sender))


def _edge_info(sender: ClientId, receiver: ClientId, context: SessionContext) -> bytes:
    return bind(Label.EDGE_SEALING, *_edge(sender, receiver, context))


def _edge(sender: ClientId, receiver: ClientId, context: SessionContext) -> tuple[bytes, bytes, bytes]:
    if type(context) is not SessionContext:
        raise Misuse("an edge needs a SessionContext")
    if sender == receiver:
        raise Misuse(f"{sender} has no edge to itself; remove it from its own neighbours")
    return context.digest, sender.encode(), receiver.encode()
