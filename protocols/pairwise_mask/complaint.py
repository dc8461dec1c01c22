"""A complaint: what a client sends in place of its upload when the seed of an edge that came to it is unusable.

Hybrid suite alone; in the classic one both ends derive the seed and none is sent. A client that lacks a mask cannot
upload, so it leaves. Without a word it would look as if it had dropped out, and the neighbour that drove it out would
stand beside the others. So it says which neighbours' seeds it could not use: a fixed code, which is the kind of the
message, and a set. In active mode it signs.

A complaint alone convicts nobody and excludes only who makes it. The client that complains has dropped out, so its mask
root is recovered, and with it the server opens the very seed and sees who of the two is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from secagg.blame import unverified
from secagg.crypto.labels import Label
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason
from secagg.fields import Placed, fixed
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, SessionContext
from secagg.wire import MessageKind

from .client_set import ClientSet, client_set
from .member import Member
from .roster import Seat, require_context
from .round0_advertise_keys import VerifiedKeySet
from .round1_share_keys import SIGNATURE
from .settled import Settled
from .suites import key_suite

_ROUND = "masked_input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint(Placed):
    """Whose seeds a client could not use."""

    kind: ClassVar = MessageKind.COMPLAINT
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, SIGNATURE]
    """Empty in semi-honest mode."""
    accused: Annotated[ClientSet, client_set(lambda at: len(at.place.roster.graph.neighbours(at.place.position)))]
    """By their places among the neighbours of the client that complains."""

    @classmethod
    def decode(cls, message: bytes, settled: Settled, sender: int) -> Complaint:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage: nobody is accused, or somebody who sent no seed to this client.
        """
        graph, neighbours = settled.roster.graph, settled.roster.graph.neighbours(sender)
        complaint = cls.read_in(Seat(settled.roster, sender), message)
        sent = key_suite(settled.configuration.suite).edge_bytes and all(
            neighbours[place] in settled.sharers and graph.sends_edge_seed(neighbours[place], sender)
            for place in complaint.accused
        )
        if not len(complaint.accused) or not sent:
            raise MalformedMessage("a complaint is about nobody who sent a seed", reason=Reason.NOT_CANONICAL)
        return complaint


def complain(
    member: Member, key_set: VerifiedKeySet, sharers: ClientSet, delivered: bytes, accused: Iterable[int]
) -> Complaint:
    """Say whose seeds are unusable, of the entries under this root."""
    roster, neighbours = key_set.roster, key_set.neighbours
    places = ClientSet.of(len(neighbours), (neighbours.index(position) for position in accused))
    signature = b""
    if roster.configuration.is_active:
        parts = _signed_complaint(roster.context, member.client, sharers, delivered, places)
        signature = member.sign(Label.SIGNED_COMPLAINT, *parts)
    return Complaint(context=roster.context.tag, signature=signature, accused=places)


def check_complaint(settled: Settled, sender: int, delivered: bytes, message: Complaint) -> tuple[int, ...]:
    """Return the positions of those who are accused.

    Raises:
        PeerMisbehaved: made for another session.
        AuthenticationFailed: not signed by its sender, or about other entries than were delivered.
    """
    roster, client = settled.roster, settled.roster.clients[sender]
    require_context(
        message.context, roster.context, f"{client} complains in another session", unverified(client), _ROUND
    )
    if settled.is_active:
        parts = _signed_complaint(roster.context, client, settled.sharers, delivered, message.accused)
        identity = settled.identity_of(sender)
        identity.verify(message.signature, Label.SIGNED_COMPLAINT, *parts, culprits=unverified(client))
    neighbours = roster.graph.neighbours(sender)
    return tuple(neighbours[place] for place in message.accused)


def faults_of(settled: Settled, complaints: dict[int, tuple[int, ...]], sender: int, corrupted: int) -> PeerMisbehaved:
    """Return what the server records of a complaint: one of two lies, until too many name the same one.

    Args:
        complaints: of every client that complained, with this one.
        corrupted: how many clients the session assumes to lie; more of them cannot accuse one honest client.
    """
    clients, accused = settled.roster.clients, complaints[sender]
    accusers = {position: sum(position in others for others in complaints.values()) for position in accused}
    convicted = [position for position in accused if accusers[position] > max(corrupted, 1)]
    culprits = {party for position in accused for party in settled.said_by(position)}
    if len(convicted) < len(accused):
        culprits |= settled.said_by(sender)
    names = ", ".join(str(clients[position]) for position in accused)
    return PeerMisbehaved(
        f"{clients[sender]} leaves: it cannot use the seeds of its edges with {names}; one of the two ends lies",
        reason=Reason.EDGE_UNUSABLE,
        culprits=culprits,
        round_name=_ROUND,
    )


def _signed_complaint(
    context: SessionContext, client: ClientId, sharers: ClientSet, delivered: bytes, accused: ClientSet
) -> tuple[bytes, ...]:
    return context.digest, client.encode(), sharers.digest(context), delivered, accused.encode()
