"""Configuration values that every protocol shares."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from .errors import InvalidParameters

ATTEMPTS: Final = 3
"""Default number of uploads for one model: a failed round is tried again with the same model."""
LEAST_COHORT: Final = 2
LEAST_THRESHOLD: Final = 2
_NAMED_LIMITS: Final = {(1 << bits) - 1: f"2^{bits} - 1" for bits in (32, 64)}


class Suite(StrEnum):
    """Algorithms of a session for key agreement and for masks."""

    CLASSIC = "x25519-aes128"
    HYBRID = "mlkem768x25519-aes256"

    @property
    def mask_key_bytes(self) -> int:
        """Length of the AES key that expands into a mask."""
        return {Suite.CLASSIC: 16, Suite.HYBRID: 32}[self]


class SecurityMode(StrEnum):
    """Trust in the server; there is no setting in between."""

    SEMI_HONEST = "semi_honest"
    """The server follows the protocol but is curious (semi-honest)."""
    ACTIVE = "active"
    """The server may deviate arbitrarily (malicious); an authority that it does not control certifies identities."""


def require_integer(name: str, value: int, least: int, greatest: int | None = None) -> None:
    """Require an int in this range; a bool or a NumPy integer is refused."""
    if type(value) is not int or value < least or (greatest is not None and value > greatest):
        limits = f"of at least {least}" if greatest is None else f"in {least}..{_NAMED_LIMITS.get(greatest, greatest)}"
        raise InvalidParameters(f"{name} must be an integer {limits}; got {value!r}")
