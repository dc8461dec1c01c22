"""The server's part of the five rounds: check the clients' messages, relay them, and keep the results.

The files of the rounds contain the client's part.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate as running_sum

from secagg.blame import disputed, said_by, unverified
from secagg.crypto.labels import Label
from secagg.crypto.merkle import MerkleTree
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.public_keys import KEY_BYTES
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import check_value
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, Party
from secagg.parameters import SecurityMode
from secagg.session.certificates import Authority, VerifiedIdentity

from .configuration import (
    DIGEST_BYTES,
    ClientSet,
    Roster,
    SessionConfiguration,
    certain,
    encode_clients,
    entry_digest,
    require_context,
    roster_of,
)
from .round0_advertise_keys import AdvertisedKeys, KeyAdvertisement, VerifiedAdvertiser, authenticate, verify_keys
from .round1_share_keys import (
    DeliveredEntry,
    DeliveredShares,
    EncryptedShares,
    EntryForm,
    SharesEntry,
    delivered_root,
    entry_leaf,
    signed_entries,
)
from .round2_masked_input import Complaint, MaskedInput, signed_complaint, signed_view, upload_digest
from .rounds3_4_unmasking import (
    AnsweredFor,
    Asked,
    Endorsement,
    SignedView,
    SurvivorSignature,
    UnmaskingRequest,
    UnmaskingShares,
    shown_bytes,
    signed_survivors,
    signed_unmasking,
)
from .suites import key_suite

# --- Settled ----------------------------------------------------------------------------------------------------------

_Signed = MaskedInput | Complaint | SurvivorSignature | UnmaskingShares


@dataclass(frozen=True, slots=True)
class Settled:
    """Results of the closed rounds, which later rounds start from."""

    published: PublishedRoster = field(repr=False)
    advertisers: tuple[VerifiedAdvertiser, ...] = field(repr=False)
    """Advertisers in the order of the roster."""
    known_sharers: ClientSet | None = None
    known_contributors: ClientSet | None = None

    @property
    def roster(self) -> Roster:
        return self.published.roster

    @property
    def configuration(self) -> SessionConfiguration:
        return self.published.roster.configuration

    @property
    def sharers(self) -> ClientSet:
        """The clients that shared keys."""
        return certain(self.known_sharers)

    @property
    def contributors(self) -> ClientSet:
        """The sharers that uploaded."""
        return certain(self.known_contributors)

    @property
    def is_active(self) -> bool:
        return self.configuration.is_active

    def position_of(self, client: ClientId) -> int:
        """Return a client's position on the roster.

        Raises:
            PeerMisbehaved: the client did not advertise.
        """
        position = self.roster.position_of(client)
        if position is None:
            raise PeerMisbehaved(
                f"{client} is not on the roster", reason=Reason.NOT_ELIGIBLE, culprits=unverified(client)
            )
        return position

    def set_of(self, clients: Iterable[ClientId]) -> ClientSet:
        return self.roster.set_of(self.position_of(client) for client in clients)

    def said_by(self, *positions: int) -> frozenset[Party]:
        """Return the parties that are responsible for what these clients sent."""
        clients, mode = self.roster.clients, self.configuration.mode
        return disputed(*(said_by(clients[position], mode) for position in positions))

    def verify(self, sender: int, message: _Signed, label: Label, parts: tuple[bytes, ...], *, act: str) -> None:
        """Check that a message was made for this session, and in active mode that its sender signed it.

        Args:
            act: what the sender did in the other session, for the error message.
        Raises:
            PeerMisbehaved: the message was made for another session.
            AuthenticationFailed: the sender did not sign these parts.
        """
        self.require_own(sender, message, act)
        if self.is_active:
            culprits = unverified(self.roster.clients[sender])
            certain(self.advertisers[sender].identity).verify(message.signature, label, *parts, culprits=culprits)

    def require_own(self, sender: int, message: _Signed, act: str) -> None:
        """Refuse a message that was made for another session, before its signature is checked."""
        client = self.roster.clients[sender]
        sentence = f"{client} {act} another session"
        require_context(message.context, self.roster.context, sentence, unverified(client))


# --- Round 0, advertise keys ------------------------------------------------------------------------------------------


def authenticate_advertisement(
    configuration: SessionConfiguration, message: KeyAdvertisement
) -> VerifiedIdentity | None:
    """Refuse an advertisement that is for another attempt, or that its sender did not sign.

    Implements: [BIK+17] Fig. 4, Round 0, server.
    """
    sentence = f"{message.client} advertises keys for another attempt"
    require_context(message.attempt, configuration.context, sentence, unverified(message.client))
    authority = Authority(configuration.authority) if configuration.mode is SecurityMode.ACTIVE else None
    return authenticate(message, configuration, authority)


def admit_advertisement(
    configuration: SessionConfiguration,
    owners: Mapping[bytes, ClientId],
    message: KeyAdvertisement,
    identity: VerifiedIdentity | None,
) -> VerifiedAdvertiser:
    """Refuse keys that no honest client would advertise, before others receive them.

    Args:
        owners: the client that advertised each earlier key.

    Implements: [BIK+17] Fig. 4, Round 0, server.
    """
    advertiser = verify_keys(message, configuration, identity)
    for key in message.public_keys:
        if other := owners.get(key):
            raise PeerMisbehaved(
                f"{message.client} and {other} advertise the same key",
                reason=Reason.PUBLIC_KEY_REUSED,
                culprits=said_by(message.client, configuration.mode) | said_by(other, configuration.mode),
            )
    return advertiser


class PublishedRoster:
    """The server's copy of the roster, with every entry and the tree over them."""

    def __init__(
        self, configuration: SessionConfiguration, opening: bytes, advertised: Mapping[ClientId, KeyAdvertisement]
    ) -> None:
        self.advertisements = tuple(advertised[client] for client in sorted(advertised))
        self._clients = encode_clients([item.client for item in self.advertisements])
        self._tree = MerkleTree([entry_digest(item.client, item.entry) for item in self.advertisements])
        self.roster = roster_of(configuration, self._clients, self._tree.root, opening)

    def message_to(self, position: int) -> AdvertisedKeys:
        """Return the message for the client at a position.

        Implements: [BIK+17] Fig. 4, Round 0, server, the broadcast; in a sparse graph, each client's part of it.
        """
        roster = self.roster
        neighbours = roster.graph.neighbours(position)
        return AdvertisedKeys(
            attempt=roster.configuration.context.tag,
            clients=self._clients,
            root=roster.root,
            opening=roster.opening,
            entries=tuple(self.advertisements[neighbour].entry for neighbour in neighbours),
            proof=tuple(self._tree.prove((position, *neighbours))),
        )


# --- Round 1, share keys ----------------------------------------------------------------------------------------------


class RelayedShares:
    """One client's entries, which the server keeps for relaying and for recovery."""

    __slots__ = ("_neighbours", "_roster", "_sender", "_starts", "_tree", "message")

    def __init__(
        self, roster: Roster, sender: int, message: EncryptedShares, identity: VerifiedIdentity | None
    ) -> None:
        """Check the signature; entries are split later.

        Implements: [BIK+17] Fig. 4, Round 1, server.
        Raises:
            PeerMisbehaved: the message was made for another session.
            AuthenticationFailed: the sender did not sign it.
        """
        client = roster.clients[sender]
        sentence = f"{client} shared keys for another session"
        require_context(message.context, roster.context, sentence, unverified(client))
        self.message = message
        self._roster, self._sender = roster, sender
        self._neighbours = array("I", roster.graph.neighbours(sender))
        sizes = (EntryForm.between(roster, sender, neighbour).size for neighbour in self._neighbours)
        self._starts = array("I", running_sum(sizes, initial=0))
        self._tree: MerkleTree | None = None
        if identity is not None:
            tree = self._make_tree()
            parts = signed_entries(roster.context, identity.client, len(self._neighbours), tree.root)
            culprits = unverified(identity.client)
            identity.verify(message.signature, Label.SIGNED_SHARES, *parts, culprits=culprits)

    def entry_to(self, receiver: int) -> SharesEntry:
        return SharesEntry.decode(self.bytes_to(receiver), EntryForm.between(self._roster, self._sender, receiver))

    def deliver_to(self, receiver: int) -> DeliveredEntry:
        entry = self.bytes_to(receiver)
        if not self.message.signature:
            return DeliveredEntry(entry=entry, signature=b"", path=None)
        path = self._make_tree().path_of(bisect_left(self._neighbours, receiver))
        return DeliveredEntry(entry=entry, signature=self.message.signature, path=path)

    def bytes_to(self, receiver: int) -> bytes:
        place = bisect_left(self._neighbours, receiver)
        return bytes(self.message.entries[self._starts[place] : self._starts[place + 1]])

    def _make_tree(self) -> MerkleTree:
        if self._tree is None:
            clients = self._roster.clients
            self._tree = MerkleTree(
                [entry_leaf(clients[receiver], self.bytes_to(receiver)) for receiver in self._neighbours]
            )
        return self._tree


def deliver_shares(settled: Settled, relayed: Mapping[int, RelayedShares], receiver: int) -> DeliveredShares:
    """Collect what a client's neighbours sent to it.

    Implements: [BIK+17] Fig. 4, Round 1, server, the last step.
    """
    roster, sharers = settled.roster, settled.sharers
    senders = (neighbour for neighbour in roster.graph.neighbours(receiver) if neighbour in sharers)
    entries = tuple(relayed[sender].deliver_to(receiver) for sender in senders)
    return DeliveredShares(context=roster.context.tag, sharers=sharers, entries=entries)


def relayed_root(settled: Settled, relayed: Mapping[int, RelayedShares], receiver: int) -> bytes:
    """Return the ``delivered_root`` of a client that received what its neighbours sent."""
    roster, sharers = settled.roster, settled.sharers
    senders = (neighbour for neighbour in roster.graph.neighbours(receiver) if neighbour in sharers)
    return delivered_root(roster.clients[receiver], (relayed[sender].bytes_to(receiver) for sender in senders))


# --- Round 2, masked input --------------------------------------------------------------------------------------------


def check_masked_input(settled: Settled, sender: int, message: MaskedInput) -> bytes:
    """Check the sender and the session of an upload; the vector is only decoded when it is added.

    Implements: [BIK+17] Fig. 4, Round 2, server.
    Returns:
        In active mode, evidence of what the client sent: the digest of the vector, and its signature. Otherwise nothing
        is hashed, and the evidence is empty.
    Raises:
        AuthenticationFailed: the sender did not send this vector, or masked under other sharers.
    """
    act = "masked its input for"
    settled.require_own(sender, message, act)
    if not settled.is_active:
        return b""
    roster, digest = settled.roster, upload_digest(message.packed)
    parts = signed_view(roster.context, roster.clients[sender], settled.sharers, digest)
    settled.verify(sender, message, Label.SIGNED_VIEW, parts, act=act)
    return digest + message.signature


def check_complaint(
    settled: Settled, relayed: Mapping[int, RelayedShares], sender: int, message: Complaint
) -> tuple[int, ...]:
    """Return the positions of the accused clients.

    Raises:
        MalformedMessage: the complaint accuses nobody, or a client that sent no seed to this one.
        AuthenticationFailed: the sender did not sign it, or signed it for entries that were not delivered.
    """
    roster, act = settled.roster, "complains in"
    graph, neighbours = roster.graph, roster.graph.neighbours(sender)
    accused = tuple(neighbours[place] for place in message.accused)
    sent = key_suite(roster.configuration.suite).edge_bytes and all(
        position in settled.sharers and graph.sends_edge_seed(position, sender) for position in accused
    )
    if not accused or not sent:
        raise MalformedMessage("a complaint names no client, or one that sent no seed", reason=Reason.NOT_CANONICAL)
    settled.require_own(sender, message, act)
    if settled.is_active:
        delivered = relayed_root(settled, relayed, sender)
        parts = signed_complaint(roster.context, roster.clients[sender], settled.sharers, delivered, message.accused)
        settled.verify(sender, message, Label.SIGNED_COMPLAINT, parts, act=act)
    return accused


def faults_of(settled: Settled, complaints: dict[int, tuple[int, ...]], sender: int, corrupted: int) -> PeerMisbehaved:
    """Return the fault that a complaint records: either end may be lying, until too many complaints name the same one.

    Args:
        complaints: of every client that complained, including this one.
        corrupted: number of clients that the session assumes to lie; only more than these convict a client.
    """
    clients, accused = settled.roster.clients, complaints[sender]
    accusers = {position: sum(position in others for others in complaints.values()) for position in accused}
    convicted = [position for position in accused if accusers[position] > max(corrupted, 1)]
    culprits = settled.said_by(*accused)
    if len(convicted) < len(accused):
        culprits |= settled.said_by(sender)
    names = ", ".join(str(clients[position]) for position in accused)
    return PeerMisbehaved(
        f"{clients[sender]} leaves: it cannot use the seeds of its edges with {names}; one end of each edge lies",
        reason=Reason.EDGE_UNUSABLE,
        culprits=culprits,
    )


# --- Round 3, consistency check ---------------------------------------------------------------------------------------


def check_survivor_signature(settled: Settled, sender: int, message: SurvivorSignature) -> None:
    """Check a committee member's signature.

    Implements: [BIK+17] Fig. 4, Round 3, server.
    """
    roster = settled.roster
    parts = signed_survivors(roster.context, roster.clients[sender], settled.sharers, settled.contributors)
    settled.verify(sender, message, Label.SIGNED_SURVIVORS, parts, act="signed for")


# --- Round 4, unmasking -----------------------------------------------------------------------------------------------


def endorsements_of(published: PublishedRoster, signatures: Mapping[int, bytes]) -> tuple[Endorsement, ...]:
    """Return a certificate: a quorum of the committee's signatures, with the values needed to verify them."""
    quorum, endorsements = published.roster.configuration.quorum, list[Endorsement]()
    for position, signature in sorted(signatures.items())[:quorum]:
        credential = certain(published.advertisements[position].credential)
        endorsements.append(
            Endorsement(
                position=position,
                identity_key=credential.identity_key,
                certificate=credential.certificate,
                signature=signature,
            )
        )
    return tuple(endorsements)


def request_unmasking(
    settled: Settled, views: Mapping[ClientId, bytes], endorsements: tuple[Endorsement, ...], position: int
) -> UnmaskingRequest:
    """Return the request to one contributor, in active mode with its neighbours' signed views.

    Implements: [BIK+17] Fig. 4, Round 4, server, the first step.
    """
    roster, contributors = settled.roster, settled.contributors
    signed = tuple[SignedView, ...]()
    if settled.is_active:
        present = (views[roster.clients[n]] for n in roster.graph.neighbours(position) if n in contributors)
        signed = tuple(SignedView(upload=view[:DIGEST_BYTES], signature=view[DIGEST_BYTES:]) for view in present)
    return UnmaskingRequest(
        context=roster.context.tag, contributors=contributors, endorsements=endorsements, views=signed
    )


class RevealedShares:
    """One contributor's answer, as the server stores it."""

    __slots__ = ("_answered", "_message", "_roster", "sender")

    def __init__(self, settled: Settled, relayed: Mapping[int, RelayedShares], sender: int, message: bytes) -> None:
        """Decode an answer, then check its signature, which costs more.

        Implements: [BIK+17] Fig. 4, Round 4, server, the collection.
        Raises:
            AuthenticationFailed: the sender did not sign it, or signed it for entries that were not delivered.
            MalformedMessage: the answer cannot be decoded.
        """
        roster = settled.roster
        self._roster, self.sender = roster, sender
        self._answered = AnsweredFor.by(roster, settled.sharers, settled.contributors, sender)
        self._message = UnmaskingShares.decode(message, Asked(roster, self._answered))
        act = "reveals shares of"
        settled.require_own(sender, self._message, act)
        if settled.is_active:
            delivered, client = relayed_root(settled, relayed, sender), roster.clients[sender]
            parts = signed_unmasking(roster.context, client, settled.contributors, delivered, self._message)
            settled.verify(sender, self._message, Label.SIGNED_UNMASKING, parts, act=act)

    def require_in_range(self, culprits: Iterable[Party]) -> None:
        """Refuse shares that are not field elements."""
        for start in range(0, len(self._message.shares), shown_bytes(self._roster)):
            check_value(1, memoryview(self._message.shares)[start : start + ELEMENT_BYTES], culprits=culprits)

    def share_of(self, dealer: int) -> tuple[Secret, bytes] | None:
        """Return the share of a neighbour's secret, and the digest of the other share, if this client holds them."""
        place = bisect_left(self._answered.neighbours, dealer)
        if place not in self._message.held:
            return None
        before = (self._message.held.bits & ((1 << place) - 1)).bit_count()
        start, step = before * shown_bytes(self._roster), shown_bytes(self._roster)
        shown = self._message.shares[start : start + step]
        return Secret("share", shown[:ELEMENT_BYTES]), shown[ELEMENT_BYTES:]

    def edge_seed_with(self, dropped: int) -> Secret:
        """Return the seed of this client's edge with a dropped neighbour; only in the hybrid suite."""
        place = self._answered.edges.index(dropped)
        return Secret("pairwise_seed", self._message.edge_seeds[place * KEY_BYTES : (place + 1) * KEY_BYTES])
