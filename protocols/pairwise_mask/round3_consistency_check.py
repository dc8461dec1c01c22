"""Round 3, consistency check: a committee certifies that there is one set of survivors.

[BIK+17] Fig. 4, Round 3; active mode only. Server to the committee: ``SurvivorSet``. Member to server:
``SurvivorSignature``. In a full graph everybody is on the committee.

Each member signs one pair of sets in its life: who shared keys, and who of them contributed. A certificate takes so
many signatures that any two certificates have an honest signer in common. So all honest clients unmask the same sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined
from secagg.errors import PeerMisbehaved, Reason, ThresholdNotMet
from secagg.fields import Message, Placed, fixed
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, ServerId, SessionContext
from secagg.session.certificates import SIGNATURE_BYTES
from secagg.wire import MessageKind

from .roster import ClientSet, Roster, client_set, require_context
from .round2_masked_input import Masked

if TYPE_CHECKING:
    from .client import PairwiseMember

ROUND: Final = "consistency_check"


# --- Messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorSet(Placed):
    """The clients that shared keys, and the contributors among them, as the server says."""

    kind: ClassVar = MessageKind.SURVIVOR_SET
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    sharers: Annotated[ClientSet, client_set(lambda at: at.place.population)]
    contributors: Annotated[ClientSet, client_set(lambda at: at.place.population)]

    @classmethod
    def decode(cls, message: bytes, roster: Roster) -> SurvivorSet:
        """Read the canonical encoding back."""
        return cls.read_in(roster, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorSignature(Message):
    """A committee member's signature on the two sets."""

    kind: ClassVar = MessageKind.SURVIVOR_SIGNATURE
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]


# --- Client -----------------------------------------------------------------------------------------------------------


class Confirmed(Confined):
    """A client that has signed a set of survivors, and will unmask no other."""

    __slots__ = ("contributors", "masked")

    def __init__(self, masked: Masked, contributors: ClientSet) -> None:
        self.masked = masked
        self.contributors = contributors

    def wipe(self) -> None:
        """Overwrite the shares."""
        self.masked.wipe()

    def __repr__(self) -> str:
        return f"<Confirmed {len(self.contributors)} contributors>"


def confirm_survivors(
    member: PairwiseMember, state: Masked, message: SurvivorSet
) -> tuple[Confirmed, SurvivorSignature]:
    """Sign the set of survivors, once, if it fits what this client has seen.

    Implements: [BIK+17] Fig. 4, Round 3, client; with a committee for sparse graphs.
    Raises:
        PeerMisbehaved: the sets contradict what this client masked under, or each other, or leave this client out.
        ThresholdNotMet: fewer contributed than the minimum cohort.
    Claim PM-3: a member signs the sharers under which it masked, and one set of contributors.
    """
    roster = state.key_set.roster
    check_survivors(state, message.context, message.contributors, ROUND)
    if message.sharers != state.sharers:
        raise invalid_survivors("the server shows other sharers than it showed before this client masked", ROUND)
    parts = signed_survivors(roster.context, member.client, message.sharers, message.contributors)
    signature = member.sign(Label.SIGNED_SURVIVORS, *parts)
    confirmed = Confirmed(state, message.contributors)
    return confirmed, SurvivorSignature(context=roster.context.tag, signature=signature)


def check_survivors(state: Masked, context: bytes, contributors: ClientSet, round_name: str) -> None:
    """Refuse a set of contributors that this client must not help to unmask."""
    roster, position = state.key_set.roster, state.key_set.position
    require_context(context, roster.context, "the survivors are of another session", {ServerId()}, round_name)
    if not contributors.issubset(state.sharers):
        raise invalid_survivors("somebody contributed without having shared keys", round_name)
    if position not in contributors:
        raise invalid_survivors("the server declares this client dropped, and asks it", round_name)
    needed = roster.configuration.minimum_cohort
    if len(contributors) < needed:
        raise ThresholdNotMet(needed=needed, present=len(contributors), what="contributors", round_name=round_name)


# --- Private ----------------------------------------------------------------------------------------------------------


def signed_survivors(
    context: SessionContext, signer: ClientId, sharers: ClientSet, contributors: ClientSet
) -> tuple[bytes, ...]:
    """Return what a member signs."""
    sizes = (len(sharers).to_bytes(4, "big"), len(contributors).to_bytes(4, "big"))
    return context.digest, signer.encode(), sharers.digest(context), contributors.digest(context), *sizes


def invalid_survivors(sentence: str, round_name: str) -> PeerMisbehaved:
    """Return the error for a set that the server should not have shown."""
    return PeerMisbehaved(sentence, reason=Reason.SURVIVORS_INVALID, culprits={ServerId()}, round_name=round_name)
