"""Which parties each kind of evidence names: one table for all protocols.

A client cannot distinguish the server from the network in between, so ``ServerId`` means the server and the network.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from secagg.errors import NOBODY, Misuse, Party
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode


class Evidence(Enum):
    """Kind of evidence of a fault."""

    UNVERIFIED_BYTES = auto()
    """Bytes are wrong before or without verification. The transport names the sender, not a header."""
    VERIFIED_CONTENT = auto()
    """Signed content is wrong."""
    SECOND_ANSWER = auto()
    """Two verified answers of a client differ: it lied, or lost its state in a restart and joined again."""
    REFUSED_HALF = auto()
    """One of two servers cannot use a client's half or proof."""
    DIFFERENT_LISTS = auto()
    """Two servers hold different lists."""
    BETWEEN_SERVERS = auto()
    """An unsigned message between two servers does not decode, or contradicts an earlier one."""
    REFUSED_REQUEST = auto()
    """A client or a helper refuses a message or request of a server, which the network may have forged."""
    UNOPENED_UPLOAD = auto()
    """An enclave cannot open an upload whose client is verified."""
    CIRCUMSTANCE = auto()
    """Storage failed, a process ended or time ran out."""


_NAMED_BESIDES: Final[dict[Evidence, frozenset[Party]]] = {
    Evidence.UNVERIFIED_BYTES: frozenset({ServerId()}),
    Evidence.VERIFIED_CONTENT: frozenset(),
    Evidence.REFUSED_HALF: frozenset({ServerId(), ServerId(1)}),
    Evidence.UNOPENED_UPLOAD: frozenset({ServerId()}),
}
"""Parties named in addition to the sender."""
_NAMED_ALONE: Final[dict[Evidence, frozenset[Party]]] = {
    Evidence.DIFFERENT_LISTS: frozenset({ServerId(), ServerId(1)}),
    Evidence.BETWEEN_SERVERS: frozenset({ServerId(), ServerId(1)}),
    Evidence.REFUSED_REQUEST: frozenset({ServerId()}),
    Evidence.SECOND_ANSWER: NOBODY,
    Evidence.CIRCUMSTANCE: NOBODY,
}
"""Parties named without a sender."""


def culprits(evidence: Evidence, *, sender: Party | None = None) -> frozenset[Party]:
    """Return the parties that the evidence names; the transport or a signature identifies the sender."""
    if evidence in _NAMED_ALONE:
        return _NAMED_ALONE[evidence]
    if sender is None:
        raise Misuse(f"{evidence.name} names its sender; say who that is")
    return _NAMED_BESIDES[evidence] | {sender}


def unverified(sender: Party) -> frozenset[Party]:
    """Return the parties that may have written unauthenticated bytes: their sender, or the server and the network."""
    return culprits(Evidence.UNVERIFIED_BYTES, sender=sender)


def signed_by(sender: Party) -> frozenset[Party]:
    """Return the party responsible for signed content: its signer."""
    return culprits(Evidence.VERIFIED_CONTENT, sender=sender)


def answered_twice(sender: Party, *, is_signed: bool) -> frozenset[Party]:
    """Return the parties named where a second answer differs from the first, signed or not."""
    return culprits(Evidence.SECOND_ANSWER) if is_signed else unverified(sender)


def from_server() -> frozenset[Party]:
    """Return the party that may have written what a client or helper received: the server, for the network too."""
    return culprits(Evidence.REFUSED_REQUEST)


def between_servers() -> frozenset[Party]:
    """Return the parties that may have written an unsigned message between two servers: both, including the network."""
    return culprits(Evidence.BETWEEN_SERVERS)


def disputed(*named: frozenset[Party]) -> frozenset[Party]:
    """Return all parties that any of several accounts names; the evidence does not decide which account is true."""
    return frozenset[Party]().union(*named)


def said_by(sender: Party, mode: SecurityMode) -> frozenset[Party]:
    """Return the party responsible for content that passed its mode's checks: in ``active`` its sender signed it."""
    return signed_by(sender) if mode is SecurityMode.ACTIVE else unverified(sender)


def any_of(evidence: Evidence, senders: Iterable[ClientId]) -> frozenset[Party]:
    """Return the parties named by the same evidence about several senders."""
    return frozenset[Party]().union(*(culprits(evidence, sender=sender) for sender in senders))
