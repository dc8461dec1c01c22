"""Parties that evidence names: one table for all protocols.

Between a client and the server lies a network, and neither end can tell it from the other end, so ``ServerId`` stands
for the server and everything on the way to it.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    SIGNED_SHARE = auto()
    """A share contradicts its commitment, and the holder that revealed it signed it."""
    UNSIGNED_SHARE = auto()
    """A share contradicts its commitment, and nothing proves that its holder revealed that share."""
    DEALT_SHARE = auto()
    """A share that fits its commitment is off the dealer's polynomial."""
    RELAYED_ENTRY = auto()
    """An entry that the server relayed from a dealer to a holder was not verified."""
    FEW_REFUSALS = auto()
    """The holders that refuse a client are no more than may be corrupted."""
    MANY_REFUSALS = auto()
    """More holders refuse a client than may be corrupted."""
    DEVIATING_ANSWER = auto()
    """A holder's answer is off a polynomial on which T + c answers agree."""
    NO_SUM = auto()
    """Too few answers agree, nothing opens, or the check words of a sum fail."""
    REFUSED_HALF = auto()
    """One of two servers cannot use the half or the proof of a client."""
    DIFFERENT_LISTS = auto()
    """Two servers hold different lists."""
    BROKEN_COMMITMENT = auto()
    """A server opens something else than it committed to."""
    UNOPENED_UPLOAD = auto()
    """An enclave cannot open an upload whose client is verified."""
    CIRCUMSTANCE = auto()
    """A storage failed, a process ended or time ran out."""


_NAMED: Final[dict[Evidence, tuple[str, ...]]] = {
    Evidence.UNVERIFIED_BYTES: ("sender", "server"),
    Evidence.VERIFIED_CONTENT: ("sender",),
    Evidence.SIGNED_SHARE: ("holder",),
    Evidence.UNSIGNED_SHARE: ("holder", "server"),
    Evidence.DEALT_SHARE: ("dealer",),
    Evidence.RELAYED_ENTRY: ("dealer", "holder", "server"),
    Evidence.FEW_REFUSALS: ("sender",),
    Evidence.MANY_REFUSALS: ("sender",),
    Evidence.DEVIATING_ANSWER: ("holder",),
    Evidence.NO_SUM: (),
    Evidence.REFUSED_HALF: ("sender", "server", "other server"),
    Evidence.DIFFERENT_LISTS: ("server", "other server"),
    Evidence.BROKEN_COMMITMENT: ("sender",),
    Evidence.UNOPENED_UPLOAD: ("sender", "server"),
    Evidence.CIRCUMSTANCE: (),
}


def culprits(
    evidence: Evidence,
    *,
    sender: Party | None = None,
    dealer: Party | None = None,
    holder: Party | None = None,
    refusers: Iterable[Party] = (),
) -> frozenset[Party]:
    """Return whom the evidence names.

    Args:
        sender: who sent it, as the transport or a signature says; of a commitment, the committer.
        refusers: the holders that refuse a client.
    """
    parties: dict[str, Party | None] = {
        "sender": sender,
        "dealer": dealer,
        "holder": holder,
        "server": ServerId(),
        "other server": ServerId(1),
    }
    found = {parties[role] for role in _NAMED[evidence]}
    if evidence is Evidence.FEW_REFUSALS:
        found.update(refusers)
    if missing := [role for role in _NAMED[evidence] if parties[role] is None]:
        raise Misuse(f"{evidence.name} names {', '.join(missing)}; say who that is")
    return frozenset(party for party in found if party is not None) or NOBODY


def unverified(sender: Party) -> frozenset[Party]:
    """Return who may have written bytes that nothing vouches for: their sender, or the server and the way to it."""
    return culprits(Evidence.UNVERIFIED_BYTES, sender=sender)


def said_by(sender: Party, mode: SecurityMode) -> frozenset[Party]:
    """Return who answers for content that passed the checks of its mode: in ``active`` its sender signed it."""
    return culprits(Evidence.VERIFIED_CONTENT, sender=sender) if mode is SecurityMode.ACTIVE else unverified(sender)
