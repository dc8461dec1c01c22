"""Parties that evidence names: one table for all protocols.

Between a client and the server lies a network, and neither end can tell it from the other end, so ``ServerId`` stands
for the server and everything on the way to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from secagg.errors import NOBODY, Misuse, Party
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode


class Evidence(Enum):
    """Evidence about something that is wrong."""

    UNVERIFIED_BYTES = auto()
    """Bytes fail before they are verified, or nothing verifies them. The sender is the transport's, not a header's."""
    VERIFIED_CONTENT = auto()
    """Content that a signature vouches for is wrong."""
    SECOND_ANSWER = auto()
    """Two verified answers of a client differ: it lied, or lost its state in a restart and joined again."""
    REFUSED_HALF = auto()
    """One of two servers cannot use the half or the proof of a client."""
    DIFFERENT_LISTS = auto()
    """Two servers hold different lists."""
    BETWEEN_SERVERS = auto()
    """What one of two servers sent the other does not read, or contradicts what it sent before; nothing was signed."""
    REFUSED_REQUEST = auto()
    """A client or a helper refuses what a server, or the network in its name, shows it or asks of it."""
    UNOPENED_UPLOAD = auto()
    """An enclave cannot open an upload whose client is verified."""
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
    Evidence.BETWEEN_SERVERS: frozenset({ServerId(), ServerId(1)}),
    Evidence.REFUSED_REQUEST: frozenset({ServerId()}),
    Evidence.SECOND_ANSWER: NOBODY,
    Evidence.CIRCUMSTANCE: NOBODY,
}
"""Parties that are named without a sender."""


def culprits(evidence: Evidence, *, sender: Party | None = None) -> frozenset[Party]:
    """Return the parties that the evidence names; the transport or a signature identifies the sender."""
    if evidence in _NAMED_ALONE:
        return _NAMED_ALONE[evidence]
    if sender is None:
        raise Misuse(f"{evidence.name} names its sender; say who that is")
    return _NAMED_BESIDES[evidence] | {sender}


def unverified(sender: Party) -> frozenset[Party]:
    """Return who may have written bytes that nothing vouches for: their sender, or the server and the way to it."""
    return culprits(Evidence.UNVERIFIED_BYTES, sender=sender)


def signed_by(sender: Party) -> frozenset[Party]:
    """Return who answers for content that a signature vouches for: its signer."""
    return culprits(Evidence.VERIFIED_CONTENT, sender=sender)


def answered_twice(sender: Party, *, is_signed: bool) -> frozenset[Party]:
    """Return who is named where a second answer differs from the first, whether or not a signature vouches for both."""
    return culprits(Evidence.SECOND_ANSWER) if is_signed else unverified(sender)


def from_server() -> frozenset[Party]:
    """Return who may have written what a client or a helper was sent: the server, which stands for the network too."""
    return culprits(Evidence.REFUSED_REQUEST)


def between_servers() -> frozenset[Party]:
    """Return who may have written what passes between two servers without a signature: either, for the network too."""
    return culprits(Evidence.BETWEEN_SERVERS)


def disputed(*named: frozenset[Party]) -> frozenset[Party]:
    """Return everybody that one of several accounts names: the evidence does not decide which of them is true."""
    return frozenset[Party]().union(*named)


def said_by(sender: Party, mode: SecurityMode) -> frozenset[Party]:
    """Return who answers for content that passed the checks of its mode: in ``active`` its sender signed it."""
    return signed_by(sender) if mode is SecurityMode.ACTIVE else unverified(sender)


def any_of(evidence: Evidence, senders: Iterable[ClientId]) -> frozenset[Party]:
    """Return who the same evidence about several senders names."""
    return frozenset[Party]().union(*(culprits(evidence, sender=sender) for sender in senders))
