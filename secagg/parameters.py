"""Configuration values that every protocol shares."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final, cast

from .errors import InvalidParameters

ATTEMPTS: Final = 3
"""Default number of uploads for one model: a failed round is tried again with the same model."""
LEAST_COHORT: Final = 2
LEAST_THRESHOLD: Final = 2
_NAMED_LIMITS: Final = {(1 << bits) - 1: f"2^{bits} - 1" for bits in (32, 64)}
_CORRUPTED_IN, _DROPPED_IN = 10, 10
_DROPPED_IN_A_FEW, _DROPPED_OF_A_FEW, _LEAST_WITH_DROPPED = 3, 10, 4


def usual_corrupted(clients: int) -> int:
    """Default number of clients assumed to collude with the server: one in ten, rounded up.

    Plans and client policies share this default, so that a default plan satisfies a default policy.
    """
    return -(-clients // _CORRUPTED_IN)


def usual_dropped(clients: int) -> int:
    """Default number of clients that may drop out: one in three of up to 30, 10 of up to 100, one in ten of more.

    Small cohorts lose a larger share by chance; in large ones each tolerated dropout costs neighbours. A protocol that
    cannot tolerate this number uses its maximum.
    """
    few = min(clients // _DROPPED_IN_A_FEW, _DROPPED_OF_A_FEW) if clients >= _LEAST_WITH_DROPPED else 0
    return max(few, clients // _DROPPED_IN)


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


def require_members(name: str, members: object, kind: type[Enum]) -> None:
    """Require a frozenset of some members of an enumeration; ``in`` would find any part of a string."""
    if type(members) is not frozenset or not members or {type(m) for m in cast("frozenset[object]", members)} != {kind}:
        raise InvalidParameters(f"{name} must be a frozenset of at least one {kind.__name__}; got {members!r:.60}")
