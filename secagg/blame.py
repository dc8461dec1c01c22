"""Parties that evidence names: one table for all protocols.

Between a client and the server lies a network, and neither end can tell it from the other end, so ``ServerId`` stands
for the server and everything on the way to it.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from secagg.errors import NOBODY, Misuse, Party
from secagg.identifiers import ServerId
from secagg.parameters import SecurityMode


class Evidence(Enum):
    """Evidence about something that is wrong."""

    UNVERIFIED_BYTES = auto()
    """Bytes fail before they are verified, or nothing verifies them. The sender is the transport's, not a header's."""
    VERIFIED_CONTENT = auto()
    """Verified content is wrong, or two verified answers differ."""
    REFUSED_HALF = auto()
    """One of two servers cannot use the half or the proof of a client."""
    DIFFERENT_LISTS = auto()
    """Two servers hold different lists."""
    UNOPENED_UPLOAD = auto()
    """An enclave cannot open an upload whose client is verified."""
    REFUSED_REQUEST = auto()
    """A helper refuses what a server, or what stands for one, asks of it."""
    CIRCUMSTANCE = auto()
    """A storage failed, a process ended or time ran out."""


_NAMED_BESIDES: Final[dict[Evidence, frozenset[Party]]] = {
    Evidence.UNVERIFIED_BYTES: frozenset({ServerId()}),
    Evidence.VERIFIED_CONTENT: frozenset(),
    Evidence.REFUSED_HALF: frozenset({ServerId(), ServerId(1)}),
    Evidence.UNOPENED_UPLOAD: frozenset({ServerId()}),
}
"""Parties that are named in addition to the sender."""
_NAMED_ALONE: Final[dict[Evidence, frozenset[Party]]] = {
    Evidence.DIFFERENT_LISTS: frozenset({ServerId(), ServerId(1)}),
    Evidence.REFUSED_REQUEST: frozenset({ServerId()}),
    Evidence.CIRCUMSTANCE: NOBODY,
}
"""Parties that are named without a sender."""


def culprits(evidence: Evidence, *, sender: Party | None = None) -> frozenset[Party]:
    """Return whom the evidence names; the transport or a signature says who the sender is."""
    if evidence in _NAMED_ALONE:
        return _NAMED_ALONE[evidence]
    if sender is None:
        raise Misuse(f"{evidence.name} names its sender; say who that is")
    return _NAMED_BESIDES[evidence] | {sender}


def unverified(sender: Party) -> frozenset[Party]:
    """Return who may have written bytes that nothing vouches for: their sender, or the server and the way to it."""
    return culprits(Evidence.UNVERIFIED_BYTES, sender=sender)


def disputed(*parties: Party) -> frozenset[Party]:
    """Return all between whom the evidence does not decide: each says that another lies."""
    return frozenset(parties)


def said_by(sender: Party, mode: SecurityMode) -> frozenset[Party]:
    """Return who answers for content that passed the checks of its mode: in ``active`` its sender signed it."""
    return culprits(Evidence.VERIFIED_CONTENT, sender=sender) if mode is SecurityMode.ACTIVE else unverified(sender)
