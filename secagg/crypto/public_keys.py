"""X25519 public keys, and the key derivation shared by both suites."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import InitVar, dataclass
from enum import Enum
from typing import Any, Final

from cryptography.exceptions import InvalidTag

from secagg.errors import (
    UNDECIDED,
    AuthenticationFailed,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    require_length,
)
from secagg.identifiers import AttemptContext, Party

from .secret import Confined, Secret, require_secret

ROOT_BYTES: Final = 32
X25519_BYTES: Final = 32
KEY_BYTES: Final = 32
"""The length of a pairwise seed and of a channel key."""
_FIELD = 2**255 - 19
_LOW_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _FIELD - 1,
    }
)
"""The u-coordinates of the points of order 1, 2, 4 and 8 on the curve and on its twist [RFC 7748] §7."""


class KeyRole(Enum):
    """Purpose of a key pair; a client has one pair for each, from independent roots."""

    CHANNEL = "channel"
    """Carries shares from client to client."""
    MASK = "mask"
    """Agrees on pairwise masks; shares recover its root after a dropout."""
    SEALING = "sealing"
    """Receives messages sealed only to its holder: an enclave, or one of two servers."""


@dataclass(frozen=True, slots=True)
class X25519PublicKey:
    """A canonically encoded public key, not of low order."""

    encoded: bytes
    culprits: InitVar[Iterable[Party]] = UNDECIDED
    """Parties to name if the key is refused: its sender, and the relay if it is unsigned."""

    def __post_init__(self, culprits: Iterable[Party]) -> None:
        """Refuse a key that is not 32 bytes, not canonical, or of low order.

        Implements: [RFC 7748] §5 and §6.1.
        Raises:
            MalformedMessage: the wrong length, or a second encoding of a key: u + p, or with the top bit set. The
            backend accepts all three encodings, which would defeat any check that keys are distinct. PeerMisbehaved: a
            low-order point, which makes the shared secret a constant.
        """
        if type(self.encoded) is not bytes:
            raise Misuse(f"a public key must be bytes; got {type(self.encoded).__name__}")
        require_length("a public key", len(self.encoded), X25519_BYTES, culprits)
        coordinate = int.from_bytes(self.encoded, "little")
        if coordinate >= _FIELD:
            raise MalformedMessage(
                "the public key is not in canonical form; encode u below 2^255 - 19 with the top bit clear",
                reason=Reason.PUBLIC_KEY_NOT_CANONICAL,
                culprits=culprits,
            )
        if coordinate in _LOW_ORDER:
            raise PeerMisbehaved(
                "the public key is a point of low order", reason=Reason.PUBLIC_KEY_LOW_ORDER, culprits=culprits
            )


def require_derivable(root: Secret, role: KeyRole, attempt: AttemptContext) -> None:
    """Refuse invalid inputs to the derivation of a key pair, in either suite."""
    require_secret(root)
    if type(role) is not KeyRole or type(attempt) is not AttemptContext:
        raise Misuse("deriving a key pair needs a KeyRole and an AttemptContext")
    if len(root) != ROOT_BYTES:
        raise Misuse(f"a key pair's root must be {ROOT_BYTES} bytes; got {root!r}")


def sealed_with(suite: Any, plaintext: Secret, key: Any, info: bytes) -> bytes:  # noqa: ANN401 -- the backend's
    """Encrypt to the holder of a public key.

    Implements: [RFC 9180] §6.1, base mode, single shot.
    Security: base mode does not authenticate the sender: anyone who knows the public key can seal. A protocol signs
        what is sealed, or commits to it.
    """
    require_secret(plaintext)
    if type(info) is not bytes:
        raise Misuse(f"info must be bytes, or nothing would be bound; got {type(info).__name__}")
    sealed: bytes = suite.encrypt(plaintext.expose(), key, info)
    return sealed


class OpeningPair(Confined):
    """A key pair of either suite, which opens messages sealed to it."""

    def __init__(self, suite: Any, private: Any, overhead: int) -> None:  # noqa: ANN401 -- the backend's
        self._suite, self._private, self._overhead = suite, private, overhead

    def open(
        self, kind: str, sealed: bytes, length: int, info: bytes, *, culprits: Iterable[Party] = UNDECIDED
    ) -> Secret:
        """Decrypt a message sealed to this pair; ``culprits`` are its sender and its relay.

        Raises:
            MalformedMessage: the ciphertext does not have the length for a plaintext of ``length`` bytes.
            AuthenticationFailed: it was altered, or sealed to another key or with another info.
        """
        require_length(f"a sealed {kind}", len(sealed), length + self._overhead, culprits)
        if self._private is None:
            raise Misuse(f"{self!r} was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)
        try:
            return Secret(kind, self._suite.decrypt(sealed, self._private, info))
        except InvalidTag:
            raise AuthenticationFailed(culprits=culprits) from None

    def wipe(self) -> None:
        """Release the private key; the backend frees it."""
        self._private = None
