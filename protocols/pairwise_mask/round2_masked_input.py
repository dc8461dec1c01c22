"""Round 2, masked input: every client hides its input under its self mask and one mask for each neighbour.

[BIK+17] Fig. 4, Round 2. Client to server: ``MaskedInput``.

The set of edges is exactly the neighbours that shared keys, for both ends. A client that cannot derive the mask of one
of them leaves the session; it never leaves out a mask. A share that does not open is another matter: nothing is masked
with it, so the edge stays and the share is recorded as missing.

In active mode the client signs the set of sharers under which it masked. Its neighbours show no share of its self-mask
seed without that signature, so a server cannot have it mask under one set and unmask under another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from secagg.crypto.labels import Label
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.secret import Confined, Secret, abandoned_on_error
from secagg.crypto.shamir import Share
from secagg.errors import PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import CONTEXT_BYTES, ClientId, Party, ServerId, SessionContext
from secagg.parameters import SecurityMode
from secagg.session.certificates import VerifiedIdentity
from secagg.wire import MessageKind, Reader, Writer

from .client_set import ClientSet
from .commitments import SharedSecret, SharePlace
from .masking import MaskedVector, adds_pairwise_mask, pairwise_mask_key, self_mask_key
from .member import ClientInput, Member
from .roster import Roster
from .round0_advertise_keys import VerifiedKeySet
from .round1_share_keys import DeliveredShares, Shared, SharesEntry, signature_bytes, verify_delivered_entry
from .suites import key_suite

ROUND: Final = "masked_input"


# --- Messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedInput:
    """A client's masked vector, and its signature on the set of clients under which it masked."""

    context: bytes
    signature: bytes
    """Empty in semi-honest mode."""
    packed: tuple[bytes | memoryview, ...] = field(repr=False)
    """The vectors, one after another; in one piece when they were received."""

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer(MessageKind.MASKED_INPUT).fixed(self.context, CONTEXT_BYTES)
        writer.fixed(self.signature, len(self.signature))
        for vector in self.packed:
            writer.borrowed(vector)
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes, roster: Roster) -> MaskedInput:
        """Read the canonical encoding back."""
        reader = Reader(message, MessageKind.MASKED_INPUT)
        masked = cls(
            context=reader.fixed(CONTEXT_BYTES),
            signature=reader.fixed(signature_bytes(roster)),
            packed=(reader.fixed(roster.configuration.masked_bytes),),
        )
        reader.finish()
        return masked


# --- Client -----------------------------------------------------------------------------------------------------------


class Masked(Confined):
    """A client that has uploaded: of its own secrets nothing is left, of its neighbours' it holds shares."""

    __slots__ = ("edge_seeds", "key_set", "sharers", "shares")

    def __init__(
        self, key_set: VerifiedKeySet, sharers: ClientSet, shares: dict[int, Secret], edge_seeds: dict[int, Secret]
    ) -> None:
        self.key_set = key_set
        self.sharers = sharers
        self.shares = shares
        """For each neighbour, its share of the mask root and of the self-mask seed, one after the other."""
        self.edge_seeds = edge_seeds
        """The seeds that neighbours chose and committed to (hybrid suite)."""

    def wipe(self) -> None:
        """Overwrite the shares."""
        for secret in (*self.shares.values(), *self.edge_seeds.values()):
            secret.wipe()
        self.shares.clear()
        self.edge_seeds.clear()

    def __repr__(self) -> str:
        return f"<Masked, holding {len(self.shares)} pairs of shares>"


def mask_input(
    member: Member, state: Shared, message: DeliveredShares, client_input: ClientInput
) -> tuple[Masked, MaskedInput, list[PeerError]]:
    """Derive every mask, and upload the input under all of them.

    Implements: [BIK+17] Fig. 4, Round 2, client.
    Returns:
        The next state, the upload, and what was wrong with single shares without ending the session.
    Raises:
        ThresholdNotMet: fewer shared keys than are needed, among all or among the neighbours.
        PeerMisbehaved: the set of sharers does not hold this client, or a neighbour's edge is unusable.
        AuthenticationFailed: an entry is not signed by its sender, or the seed of an edge does not open.
    """
    key_set, roster = state.key_set, state.key_set.roster
    configuration = roster.configuration
    _check_sharers(message, key_set)
    neighbours = [neighbour for neighbour in key_set.neighbours if neighbour in message.sharers]
    entries = {
        neighbour: verify_delivered_entry(
            roster, neighbour, key_set.position, item, key_set.advertisers[neighbour].identity
        )
        for neighbour, item in zip(neighbours, message.entries, strict=True)
    }
    # Signed before anything is derived or spent, so that a key that cannot sign costs nothing but the session.
    signature = b""
    if configuration.mode is SecurityMode.ACTIVE:
        parts = signed_view(roster.context, member.client, message.sharers)
        signature = member.sign(Label.SIGNED_VIEW, *parts)
    seeds = dict[int, Secret]()
    try:
        for neighbour, entry in entries.items():
            seeds[neighbour] = _edge_seed(state, neighbour, entry)
        payload, weight = client_input.spend()
        vector = MaskedVector.of_input(configuration, roster.context, payload, weight)
        _apply_masks(vector, state, seeds, member.threads)
    except BaseException:
        for seed in seeds.values():
            seed.wipe()
        raise
    shares, complaints = _open_shares(state, entries)
    suite = key_suite(configuration.suite)
    kept = dict[int, Secret]()
    for neighbour, seed in seeds.items():
        if suite.edge_bytes and neighbour not in state.edges:
            kept[neighbour] = seed
        else:
            seed.wipe()
    upload = MaskedInput(context=roster.context.digest, signature=signature, packed=vector.pack())
    # Nothing of this client's own is needed any more; its neighbours hold what recovery takes.
    state.wipe()
    return Masked(key_set, message.sharers, shares, kept), upload, complaints


# --- Server -----------------------------------------------------------------------------------------------------------


def accept_masked_input(  # noqa: PLR0913, PLR0917 -- what the session has agreed on, and the upload
    roster: Roster,
    sharers: ClientSet,
    sender: int,
    message: MaskedInput,
    identity: VerifiedIdentity | None,
    total: MaskedVector,
) -> None:
    """Check an upload and add it to the sum; it is not kept.

    Implements: [BIK+17] Fig. 4, Round 2, server.
    Raises:
        PeerMisbehaved: made for another session.
        AuthenticationFailed: its sender did not mask under the sharers of this session.
        MalformedMessage: it does not unpack.
    """
    client = roster.clients[sender]
    if message.context != roster.context.digest:
        raise PeerMisbehaved(
            f"{client} masked its input for another session",
            reason=Reason.WRONG_SESSION,
            culprits={client},
            round_name=ROUND,
        )
    if identity is not None:
        parts = signed_view(roster.context, client, sharers)
        identity.verify(message.signature, Label.SIGNED_VIEW, *parts, culprits={client})
    total.add_packed(b"".join(message.packed))


def signed_view(context: SessionContext, client: ClientId, sharers: ClientSet) -> tuple[bytes, ...]:
    """Return what a client signs about the set of clients under which it masked."""
    return context.digest, client.encode(), sharers.digest(context)


# --- Private ----------------------------------------------------------------------------------------------------------


def _check_sharers(message: DeliveredShares, key_set: VerifiedKeySet) -> None:
    configuration = key_set.roster.configuration
    if message.context != key_set.roster.context.digest:
        raise PeerMisbehaved("the shares are of another session", reason=Reason.WRONG_SESSION, culprits={ServerId()})
    if key_set.position not in message.sharers:
        raise PeerMisbehaved(
            "the server delivers shares and says that this client shared nothing",
            reason=Reason.SURVIVORS_INVALID,
            culprits={ServerId()},
            round_name=ROUND,
        )
    holders = sum(neighbour in message.sharers for neighbour in key_set.neighbours)
    for needed, present, what in (
        (configuration.minimum_cohort, len(message.sharers), "clients that shared keys"),
        (configuration.threshold, holders, "neighbours that shared keys"),
    ):
        if present < needed:
            raise ThresholdNotMet(needed=needed, present=present, what=what, round_name=ROUND)


def _edge_seed(state: Shared, neighbour: int, entry: SharesEntry) -> Secret:
    context, peer = state.key_set.roster.context, state.key_set.advertisers[neighbour].keys
    suite = key_suite(state.key_set.roster.configuration.suite)
    if neighbour in state.edges:
        return suite.seed_of_sent_edge(state.keys.mask, peer, context, state.edges[neighbour])
    try:
        return suite.seed_of_received_edge(state.keys.mask, peer, context, entry.edge)
    except PeerError as error:
        if entry.commitment:
            # The signature covers the entry, so what it holds is its sender's doing and not the server's.
            error.culprits = frozenset({peer.client})
        error.round_name = ROUND
        raise


def _apply_masks(vector: MaskedVector, state: Shared, seeds: Mapping[int, Secret], threads: int) -> None:
    roster, own = state.key_set.roster, state.keys.client
    add = [self_mask_key(state.self_mask_seed, own, roster.context, roster.configuration)]
    subtract = list[Secret]()
    try:
        for neighbour, seed in seeds.items():
            peer = roster.clients[neighbour]
            key = pairwise_mask_key(seed, own, peer, roster.context, roster.configuration)
            (add if adds_pairwise_mask(own, peer) else subtract).append(key)
        vector.apply(add, subtract, threads=threads)
    finally:
        for key in (*add, *subtract):
            key.wipe()


def _open_shares(state: Shared, entries: Mapping[int, SharesEntry]) -> tuple[dict[int, Secret], list[PeerError]]:
    """Open what opens; what does not is a missing share and a complaint, and excludes nobody."""
    roster, keys = state.key_set.roster, state.keys
    suite = key_suite(roster.configuration.suite)
    shares, complaints = dict[int, Secret](), list[PeerError]()
    for neighbour, entry in entries.items():
        peer = state.key_set.advertisers[neighbour].keys
        # A signature covers the entry, so it is its sender's doing; without one the server may have sealed it.
        culprits: set[Party] = {peer.client} if entry.commitment else {peer.client, ServerId()}
        try:
            both = suite.open_shares(keys, peer, roster.context, entry.sealed)
            with abandoned_on_error(both):
                _check_shares(both, share_place(roster, neighbour, state.key_set.position), entry.commitment)
        except PeerError as error:
            error.culprits, error.round_name = frozenset(culprits), ROUND
            # A traceback would keep the frames alive in which the input and the seeds are.
            error.__context__ = error.__cause__ = None
            complaints.append(error.with_traceback(None))
            continue
        shares[neighbour] = both
    return shares, complaints


def _check_shares(both: Secret, place: SharePlace, commitment: bytes) -> None:
    """Refuse shares that this client could not show later without being taken for a liar."""
    root_share, seed_share = share_of(both, SharedSecret.MASK_ROOT), share_of(both, SharedSecret.SELF_MASK_SEED)
    with root_share, seed_share:
        for share in (root_share, seed_share):
            Share(place.point, share).check()
        digests = (
            place.digest_of(root_share, SharedSecret.MASK_ROOT),
            place.digest_of(seed_share, SharedSecret.SELF_MASK_SEED),
        )
    if commitment and place.commit_to(*digests) != commitment:
        raise PeerMisbehaved(
            f"{place.dealer} sealed other shares than it committed to", reason=Reason.COMMITMENT_MISMATCH
        )


def share_place(roster: Roster, dealer: int, holder: int) -> SharePlace:
    """Return where the shares of one client at one of its neighbours belong."""
    point = roster.graph.point_of(holder, dealer)
    return SharePlace(roster.context, roster.clients[dealer], roster.clients[holder], point)


def share_of(both: Secret, secret: SharedSecret) -> Secret:
    """Return the share of one secret from a pair of shares."""
    exposed = both.expose()
    part = exposed[:ELEMENT_BYTES] if secret is SharedSecret.MASK_ROOT else exposed[ELEMENT_BYTES:]
    return Secret("share", part)
