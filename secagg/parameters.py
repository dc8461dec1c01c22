"""Configuration values that every protocol shares."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

LEAST_COHORT: Final = 2
LEAST_THRESHOLD: Final = 2
_CORRUPTED_IN, _DROPPED_IN, _LEAST_WITH_DROPPED = 10, 20, 4


def usual_corrupted(clients: int) -> int:
    """How many of so many clients work with the server where nobody says: one in ten, rounded up.

    Plans and floors ask here, so that a plan without numbers is not below floors without numbers.
    """
    return -(-clients // _CORRUPTED_IN)


def usual_dropped(clients: int) -> int:
    """How many of so many clients leave on the way where nobody says: one in twenty, and one of a few."""
    return max(clients // _DROPPED_IN, int(clients >= _LEAST_WITH_DROPPED))


class Suite(StrEnum):
    """Which algorithms a session uses for key agreement and for masks."""

    CLASSIC = "x25519-aes128"
    HYBRID = "mlkem768x25519-aes256"

    @property
    def mask_key_bytes(self) -> int:
        """The length of an AES key that expands into a mask."""
        match self:
            case Suite.CLASSIC:
                return 16
            case Suite.HYBRID:
                return 32


class SecurityMode(StrEnum):
    """What the server is trusted with; there is no setting in between."""

    SEMI_HONEST = "semi_honest"
    """The server follows the protocol and is curious."""
    ACTIVE = "active"
    """The server may deviate at will; identities are certified by an authority that it does not control."""
