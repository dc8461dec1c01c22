"""Round 1, share keys: every client shares its two secrets among its neighbours, each share encrypted to its holder.

[BIK+17] Fig. 4, Round 1. Client to server: ``EncryptedShares``. Server to each client that shared: ``DeliveredShares``.

In active mode the client commits to every pair of shares and signs a Merkle tree of all its entries. Each neighbour
receives its leaf and path; a share that does not match its commitment then identifies the liar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple

from secagg.blame import unverified
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import NODE_BYTES, MerkleTree, recover_root
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.secret import Confined, Secret
from secagg.crypto.shamir import split_many
from secagg.declared import At, MessageIn, borrowed, fixed, listed, nested, optional, repeated, sized
from secagg.errors import AuthenticationFailed, MalformedMessage
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.session.certificates import SIGNATURE_BYTES, VerifiedIdentity
from secagg.wire import MessageKind

from .configuration import ClientSet, Roster, Seat, certain, client_set
from .round0_advertise_keys import Advertised, VerifiedKeySet
from .suites import COMMITMENT_BYTES, SHARES_BYTES, OwnKeys, SharedSecret, SharePlace, key_suite

if TYPE_CHECKING:
    from .member import MemberParts

_MAXIMUM_PATH = 64


# --- Messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesEntry:
    """One client's message to one neighbour: two sealed shares, and the edge seed if this client sends it."""

    sealed: bytes
    edge: bytes
    commitment: bytes
    """Commitment to both shares; empty in semi-honest mode."""

    def encode(self) -> bytes:
        return self.sealed + self.edge + self.commitment

    @classmethod
    def decode(cls, encoded: bytes, form: EntryForm) -> SharesEntry:
        edge_start, edge_end = form.sealed_bytes, form.sealed_bytes + form.edge_bytes
        return cls(sealed=encoded[:edge_start], edge=encoded[edge_start:edge_end], commitment=encoded[edge_end:])


@dataclass(frozen=True, slots=True)
class EntryForm:
    """Lengths of an entry's parts."""

    sealed_bytes: int
    edge_bytes: int
    commitment_bytes: int

    @classmethod
    def between(cls, roster: Roster, sender: int, receiver: int) -> EntryForm:
        suite = key_suite(roster.configuration.suite)
        sends = bool(suite.edge_bytes) and roster.graph.sends_edge_seed(sender, receiver)
        return _form(roster.configuration.suite, sends, roster.configuration.is_active)

    @property
    def size(self) -> int:
        return self.sealed_bytes + self.edge_bytes + self.commitment_bytes


@cache
def _form(suite: Suite, sends: bool, is_active: bool) -> EntryForm:  # noqa: FBT001 -- what forms differ in
    keys = key_suite(suite)
    return EntryForm(keys.sealed_bytes, keys.edge_bytes if sends else 0, COMMITMENT_BYTES if is_active else 0)


def signature_bytes(roster: Roster) -> int:
    """Return the length of a session's signatures, which is 0 in semi-honest mode."""
    return SIGNATURE_BYTES if roster.configuration.is_active else 0


def _entries_bytes(seat: Seat) -> int:
    roster, sender = seat
    return sum(EntryForm.between(roster, sender, neighbour).size for neighbour in roster.graph.neighbours(sender))


SIGNATURE: Final = sized(lambda place: signature_bytes(place.roster), "64 in active mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedShares(MessageIn[Seat]):
    """A client's entries for all its neighbours, in order, under one signature."""

    kind: ClassVar = MessageKind.ENCRYPTED_SHARES
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, SIGNATURE]
    """Empty in semi-honest mode."""
    entries: Annotated[bytes | memoryview, borrowed(_entries_bytes, "all entries")] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredEntry:
    """One neighbour's entry for this client, with the signature over its tree and the path to the entry."""

    entry: Annotated[bytes, sized(lambda edge: EntryForm.between(*edge).size, "one entry")]
    signature: Annotated[bytes, SIGNATURE]
    path: Annotated[
        tuple[bytes, ...] | None,
        optional(repeated(fixed(NODE_BYTES), _MAXIMUM_PATH, size=1), lambda edge: signature_bytes(edge.roster), "path"),
    ]
    """Only in active mode."""


class _Edge(NamedTuple):
    roster: Roster
    sender: int
    receiver: int


def _edges(at: At) -> Iterable[_Edge]:
    """Return the edges that have entries: those from neighbours that shared."""
    seat: Seat = at.place
    neighbours = seat.roster.graph.neighbours(seat.position)
    return (_Edge(seat.roster, each, seat.position) for each in neighbours if each in at.before["sharers"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredShares(MessageIn[Seat]):
    """The clients that shared keys, and the entries from the receiver's neighbours among them."""

    kind: ClassVar = MessageKind.DELIVERED_SHARES
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    sharers: Annotated[ClientSet, client_set(lambda seat: seat.roster.population)]
    entries: Annotated[
        tuple[DeliveredEntry, ...], listed(nested(DeliveredEntry), _edges, "entries, in active mode with their proofs")
    ] = field(repr=False)
    """One for each neighbour that shared, in order."""


# --- Client -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Shared(Confined):
    """A client that has shared its secrets; its keys now only serve to open the others' shares."""

    key_set: VerifiedKeySet
    keys: OwnKeys
    self_mask_seed: Secret
    edges: dict[int, bytes]

    def wipe(self) -> None:
        self.keys.wipe()
        self.self_mask_seed.wipe()

    def __repr__(self) -> str:
        return f"<Shared {self.keys.client}>"


def share_keys(
    member: MemberParts, state: Advertised, key_set: VerifiedKeySet, coins: Coins
) -> tuple[Shared, EncryptedShares]:
    """Share the two secrets among the neighbours, and seal each neighbour's pair of shares.

    Implements: [BIK+17] Fig. 4, Round 1, client, steps 3 to 6; [BBG+20] for the neighbours.
    Security: the coefficients are drawn once. Send the same bytes again rather than sharing again: two sharings of one
        secret under the same key and nonce would reveal both.
    """
    roster, keys, suite = key_set.roster, state.keys, key_suite(state.configuration.suite)
    dealt = split_many(
        [keys.mask.root, state.self_mask_seed],
        threshold=state.configuration.threshold,
        holders=len(key_set.neighbours),
        coins=coins,
    )
    entries, edges = list[bytes](), dict[int, bytes]()
    for neighbour, root_share, seed_share in zip(key_set.neighbours, *dealt, strict=True):
        peer = key_set.advertisers[neighbour].keys
        form = EntryForm.between(roster, key_set.position, neighbour)
        if form.edge_bytes:
            edges[neighbour] = suite.offer_edge(keys.mask, peer, roster.context)
        with root_share.value as mask_share, seed_share.value as self_share:
            commitment = b""
            if form.commitment_bytes:
                place = SharePlace(roster.context, keys.client, peer.client, root_share.point)
                commitment = place.commit_to(
                    place.digest_of(mask_share.expose(), SharedSecret.MASK_ROOT),
                    place.digest_of(self_share.expose(), SharedSecret.SELF_MASK_SEED),
                )
            both = bytearray(SHARES_BYTES)
            both[:ELEMENT_BYTES], both[ELEMENT_BYTES:] = mask_share.expose(), self_share.expose()
            with Secret("shares", both) as plaintext:
                both[:] = bytes(SHARES_BYTES)
                sealed = suite.seal_shares(keys, peer, roster.context, plaintext)
        entry = SharesEntry(sealed=sealed, edge=edges.get(neighbour, b""), commitment=commitment)
        entries.append(entry.encode())
    signature = b""
    if state.configuration.mode is SecurityMode.ACTIVE:
        receivers = [roster.clients[neighbour] for neighbour in key_set.neighbours]
        root = MerkleTree([entry_leaf(client, entry) for client, entry in zip(receivers, entries, strict=True)]).root
        signature = member.sign(Label.SIGNED_SHARES, *signed_entries(roster.context, keys.client, len(entries), root))
    message = EncryptedShares(context=roster.context.tag, signature=signature, entries=b"".join(entries))
    return Shared(key_set, keys, state.self_mask_seed, edges), message


def verify_delivered_entry(
    roster: Roster, sender: int, receiver: int, item: DeliveredEntry, identity: VerifiedIdentity | None
) -> None:
    """Check that the sender signed this entry for this receiver; in semi-honest mode there is no signature.

    Raises:
        AuthenticationFailed: the leaf, path and signature do not match.
    """
    if roster.configuration.mode is not SecurityMode.ACTIVE:
        return
    identity = certain(identity)
    leaf = entry_leaf(roster.clients[receiver], item.entry)
    count, place = roster.graph.degree, roster.graph.point_of(receiver, sender) - 1
    try:
        root = recover_root(count, {place: leaf}, item.path or ())
    except MalformedMessage:
        raise AuthenticationFailed(culprits=unverified(identity.client)) from None
    parts = signed_entries(roster.context, identity.client, count, root)
    identity.verify(item.signature, Label.SIGNED_SHARES, *parts, culprits=unverified(identity.client))


def delivered_root(receiver: ClientId, entries: Iterable[bytes]) -> bytes:
    """Return the root over all entries delivered to a client; the client signs it with its statements about them.

    A dealer may sign two trees, and the network may deliver the one that the server does not have. The server then
    rejects the client's signature instead of judging the statement by entries that the client never saw.
    """
    return MerkleTree([entry_leaf(receiver, entry) for entry in entries]).root


# --- Private ----------------------------------------------------------------------------------------------------------


def entry_leaf(receiver: ClientId, entry: bytes) -> bytes:
    """Return the leaf of one entry in its sender's tree."""
    return hashlib.sha256(bind(Label.SHARES_ENTRY, receiver.encode(), entry)).digest()


def signed_entries(context: SessionContext, sender: ClientId, count: int, root: bytes) -> tuple[bytes, ...]:
    """Return what a sender signs about its entries."""
    return context.digest, sender.encode(), count.to_bytes(4, "big"), root
