"""Rounds 3 and 4: a committee certifies one set of survivors, which then reveal one share of each neighbour.

[BIK+17] Fig. 4. Round 3, in active mode only: ``SurvivorSet`` to the committee, ``SurvivorSignature`` back. Round 4:
``UnmaskingRequest`` to each contributor, ``UnmaskingShares`` back.

Each committee member signs only one pair of sets: the sharers, and the contributors among them. A certificate needs
enough signatures that any two certificates share an honest signer, so all honest clients unmask the same sum. For each
neighbour, a client reveals its share of the self-mask seed if that one contributed, otherwise of the mask root.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from secagg.blame import from_server, unverified
from secagg.crypto.labels import Label
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.public_keys import KEY_BYTES
from secagg.crypto.secret import Confined, Secret
from secagg.declared import Field, Message, MessageIn, fixed, nested, repeated, sized, unsigned
from secagg.errors import MalformedMessage, PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, SessionContext
from secagg.parameters import SecurityMode
from secagg.session.certificates import GRANT_BYTES, IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate
from secagg.wire import MessageKind

from .configuration import DIGEST_BYTES, ClientSet, Roster, certain, client_set, require_context
from .graph import MAXIMUM_POPULATION
from .round0_advertise_keys import in_parallel
from .round1_share_keys import SIGNATURE
from .round2_masked_input import Masked, share_place, signed_view
from .suites import COMMITMENT_BYTES, SharedSecret, key_suite

if TYPE_CHECKING:
    from .member import MemberParts

# --- Messages ---------------------------------------------------------------------------------------------------------


def _population(roster: Roster) -> int:
    return roster.population


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorSet(MessageIn[Roster]):
    """The clients that shared keys, and the contributors among them, according to the server."""

    kind: ClassVar = MessageKind.SURVIVOR_SET
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    sharers: Annotated[ClientSet, client_set(_population)]
    contributors: Annotated[ClientSet, client_set(_population)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorSignature(Message):
    """A committee member's signature on the two sets."""

    kind: ClassVar = MessageKind.SURVIVOR_SIGNATURE
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsement:
    """One committee member's signature on the survivors, with the values needed to verify it."""

    position: Annotated[int, unsigned(4)]
    identity_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    certificate: Annotated[bytes, fixed(GRANT_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedView:
    """A neighbour's signature on the sharers that it masked under and on the digest of its upload."""

    upload: Annotated[bytes, fixed(DIGEST_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskingRequest(MessageIn[Roster]):
    """The contributors; in active mode also the committee's certificate and the neighbours' signed views."""

    kind: ClassVar = MessageKind.UNMASKING_REQUEST
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    contributors: Annotated[ClientSet, client_set(_population)]
    endorsements: Annotated[tuple[Endorsement, ...], repeated(nested(Endorsement), MAXIMUM_POPULATION, _population)] = (
        field(repr=False)
    )
    views: Annotated[tuple[SignedView, ...], repeated(nested(SignedView), MAXIMUM_POPULATION, _population)] = field(
        repr=False
    )
    """One for each contributing neighbour, in order."""


class Asked(NamedTuple):
    """Context in which an answer is decoded."""

    roster: Roster
    answered: AnsweredFor


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskingShares(MessageIn[Asked]):
    """One share for each neighbour that shared keys; in the hybrid suite also the edge seeds of dropped neighbours."""

    kind: ClassVar = MessageKind.UNMASKING_SHARES
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, SIGNATURE]
    """Empty in semi-honest mode."""
    held: Annotated[
        ClientSet, client_set(lambda asked: len(asked.answered.neighbours), "one bit for each neighbour that shared")
    ]
    """The neighbours whose shares this client holds, by their place among those that shared."""
    shares: Annotated[
        bytes,
        Field(
            lambda writer, value: writer.borrowed(value),
            lambda reader, at: reader.fixed(len(at.before["held"]) * shown_bytes(at.place.roster)),
            "each share held; in active mode a digest",
        ),
    ] = field(repr=False)
    """The shares; in active mode each is followed by the digest of the other share."""
    edge_seeds: Annotated[bytes, sized(lambda asked: len(asked.answered.edges) * KEY_BYTES, "32 an edge")] = field(
        repr=False
    )


@dataclass(frozen=True, slots=True)
class AnsweredFor:
    """The neighbours that one contributor answers for, and the edges whose seeds it reveals (hybrid suite)."""

    neighbours: array[int]
    edges: array[int]

    @classmethod
    def by(cls, roster: Roster, sharers: ClientSet, contributors: ClientSet, position: int) -> AnsweredFor:
        neighbours = array("I", (n for n in roster.graph.neighbours(position) if n in sharers))
        has_edges = key_suite(roster.configuration.suite).edge_bytes
        return cls(neighbours, array("I", (n for n in neighbours if has_edges and n not in contributors)))


# --- Round 3, consistency check ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Confirmed(Confined):
    """A client that has signed a set of survivors, and will unmask no other set."""

    masked: Masked
    contributors: ClientSet

    def wipe(self) -> None:
        self.masked.wipe()

    def __repr__(self) -> str:
        return f"<Confirmed {len(self.contributors)} contributors>"


def confirm_survivors(member: MemberParts, state: Masked, message: SurvivorSet) -> tuple[Confirmed, SurvivorSignature]:
    """Sign the set of survivors, once, if it is consistent with what this client has seen.

    Implements: [BIK+17] Fig. 4, Round 3, client; with a committee for sparse graphs.
    Raises:
        PeerMisbehaved: the sets contradict each other or what this client masked under, or omit this client.
        ThresholdNotMet: fewer contributed than the minimum cohort.
    Claim PM-3: a member signs the sharers that it masked under, and one set of contributors.
    """
    roster = state.key_set.roster
    check_survivors(state, message.context, message.contributors)
    if message.sharers != state.sharers:
        raise invalid_survivors("the server's list of sharers differs from the one that this client masked under")
    parts = signed_survivors(roster.context, member.client, message.sharers, message.contributors)
    signature = member.sign(Label.SIGNED_SURVIVORS, *parts)
    confirmed = Confirmed(state, message.contributors)
    return confirmed, SurvivorSignature(context=roster.context.tag, signature=signature)


def check_survivors(state: Masked, context: bytes, contributors: ClientSet) -> None:
    """Refuse a set of contributors that this client must not help unmask."""
    roster, position = state.key_set.roster, state.key_set.position
    require_context(context, roster.context, "the survivors belong to another session", from_server())
    if not contributors.issubset(state.sharers):
        raise invalid_survivors("a client is listed as a contributor but did not share keys")
    if position not in contributors:
        raise invalid_survivors("the server asks this client to unmask but lists it as dropped")
    roster.require_cohort(contributors, "upload")


def signed_survivors(
    context: SessionContext, signer: ClientId, sharers: ClientSet, contributors: ClientSet
) -> tuple[bytes, ...]:
    """Return what a member signs."""
    sizes = (len(sharers).to_bytes(4, "big"), len(contributors).to_bytes(4, "big"))
    return context.digest, signer.encode(), sharers.digest(context), contributors.digest(context), *sizes


def invalid_survivors(sentence: str) -> PeerMisbehaved:
    """Return the error for an invalid set from the server."""
    return PeerMisbehaved(sentence, reason=Reason.SURVIVORS_INVALID, culprits=from_server())


# --- Round 4, unmasking -----------------------------------------------------------------------------------------------


def reveal_shares(member: MemberParts, state: Masked | Confirmed, message: UnmaskingRequest) -> UnmaskingShares:
    """Reveal one share of each neighbour; the caller wipes the state before the answer is sent.

    Implements: [BIK+17] Fig. 4, Round 4, client.
    Raises:
        PeerMisbehaved: the contributors differ from those that this client confirmed, lack a certificate, or omit it.
        AuthenticationFailed: a signature of the committee or of a neighbour does not verify.
        ThresholdNotMet: too few clients, or too few neighbours, contributed.
    Claim PM-9: in any number of sessions, a client answers for only one pair of sets.
    Claim PM-5: the certificate and the neighbours' views are verified before any share is revealed.
    """
    masked = state.masked if isinstance(state, Confirmed) else state
    roster, contributors = masked.key_set.roster, message.contributors
    check_survivors(masked, message.context, contributors)
    if isinstance(state, Confirmed) and contributors != state.contributors:
        raise invalid_survivors("the contributors differ from those that this client signed")
    present = [neighbour for neighbour in masked.key_set.neighbours if neighbour in contributors]
    if len(present) < roster.configuration.threshold:
        needed = roster.configuration.threshold
        raise ThresholdNotMet(needed=needed, present=len(present), what="neighbours", must="upload")
    if roster.configuration.mode is SecurityMode.ACTIVE:
        _verify_certificate(member, masked, message)
        _verify_views(member, masked, message, present)
    elif message.endorsements or message.views:
        raise MalformedMessage(
            "a semi_honest request must not contain signatures", reason=Reason.TRAILING_BYTES, culprits=from_server()
        )
    answered = AnsweredFor.by(roster, masked.sharers, contributors, masked.key_set.position)
    held, shown = list[int](), list[bytes]()
    for place, neighbour in enumerate(answered.neighbours):
        both = masked.shares.get(neighbour)
        if both is not None:
            held.append(place)
            shown.append(_show(masked, neighbour, both, revealed_secret(neighbour, contributors)))
    answer = UnmaskingShares(
        context=roster.context.tag,
        signature=b"",
        held=ClientSet.of(len(answered.neighbours), held),
        shares=b"".join(shown),
        edge_seeds=b"".join(bytes(masked.edge_seeds[neighbour].expose()) for neighbour in answered.edges),
    )
    if not roster.configuration.is_active:
        return answer
    parts = signed_unmasking(roster.context, member.client, contributors, masked.delivered, answer)
    return replace(answer, signature=member.sign(Label.SIGNED_UNMASKING, *parts))


def signed_unmasking(
    context: SessionContext, client: ClientId, contributors: ClientSet, delivered: bytes, answer: UnmaskingShares
) -> tuple[bytes, ...]:
    """Return what a client signs about its answer: the sum it is for, and the entries that its shares came from."""
    shown = (answer.held.encode(), answer.shares, answer.edge_seeds)
    return context.digest, client.encode(), contributors.digest(context), delivered, *shown


def revealed_secret(position: int, contributors: ClientSet) -> SharedSecret:
    """Return which of a client's two secrets is recovered; never both, because there is only one set of contributors.

    Claim PM-4: a share of only one of the two is revealed, and the certified set determines which.
    """
    return SharedSecret.SELF_MASK_SEED if position in contributors else SharedSecret.MASK_ROOT


def shown_bytes(roster: Roster) -> int:
    """Return the length of one share in an answer."""
    return ELEMENT_BYTES + (COMMITMENT_BYTES if roster.configuration.mode is SecurityMode.ACTIVE else 0)


def _show(masked: Masked, dealer: int, both: Secret, secret: SharedSecret) -> bytes:
    roster = masked.key_set.roster
    exposed = both.expose()
    root_share, seed_share = exposed[:ELEMENT_BYTES], exposed[ELEMENT_BYTES:]
    share, hidden = (root_share, seed_share) if secret is SharedSecret.MASK_ROOT else (seed_share, root_share)
    if roster.configuration.mode is SecurityMode.SEMI_HONEST:
        return bytes(share)
    other = SharedSecret.MASK_ROOT if secret is SharedSecret.SELF_MASK_SEED else SharedSecret.SELF_MASK_SEED
    place = share_place(roster, dealer, masked.key_set.position)
    return bytes(share) + place.digest_of(hidden, other)


def _verify_certificate(member: MemberParts, masked: Masked, message: UnmaskingRequest) -> None:
    roster = masked.key_set.roster
    positions = [item.position for item in message.endorsements]
    if positions != sorted(set(positions)) or not set(positions) <= set(roster.committee):
        raise _uncertified("the certificate has signatures that are repeated, out of order, or not from the committee")
    if len(positions) < roster.configuration.quorum:
        raise _uncertified(f"the certificate has {len(positions)} of {roster.configuration.quorum} required signatures")

    def check(item: Endorsement) -> None:
        client, culprits = roster.clients[item.position], from_server()
        certificate = Certificate(client, item.identity_key, item.certificate)
        identity = certain(member.authority).verify(certificate, culprits=culprits)
        roster.configuration.standing.require_valid(certificate, culprits=culprits)
        known = masked.key_set.advertisers.get(item.position)
        if known is not None and known.identity != identity:
            raise _uncertified(f"{client} endorses with an identity other than the roster's")
        parts = signed_survivors(roster.context, client, masked.sharers, message.contributors)
        identity.verify(item.signature, Label.SIGNED_SURVIVORS, *parts, culprits=culprits)

    in_parallel(check, message.endorsements, member.threads)


def _verify_views(member: MemberParts, masked: Masked, message: UnmaskingRequest, present: list[int]) -> None:
    roster = masked.key_set.roster
    if len(message.views) != len(present):
        raise _uncertified(f"the request has {len(message.views)} views for {len(present)} contributing neighbours")

    def check(shown: tuple[int, SignedView]) -> None:
        neighbour, view = shown
        identity = certain(masked.key_set.advertisers[neighbour].identity)
        parts = signed_view(roster.context, identity.client, masked.sharers, view.upload)
        identity.verify(view.signature, Label.SIGNED_VIEW, *parts, culprits=unverified(identity.client))

    in_parallel(check, list(zip(present, message.views, strict=True)), member.threads)


def _uncertified(sentence: str) -> PeerError:
    return PeerMisbehaved(sentence, reason=Reason.QUORUM_NOT_MET, culprits=from_server())
