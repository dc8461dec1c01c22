"""Round 2, masked input: every client hides its input under its self mask and one mask per neighbour.

[BIK+17] Fig. 4, Round 2. Client to server: ``MaskedInput``, or ``Complaint`` from a client that leaves.

Both ends agree on the edges: exactly the neighbours that shared keys. A client that cannot derive one of these masks
complains and leaves; it never omits a mask. A share that cannot be opened is less serious: no mask depends on it, so
the edge stays and the share counts as missing.

In active mode the client signs its upload and the set of sharers that it masked under. Its neighbours reveal no share
of its self-mask seed without that signature. So a server cannot make it mask under one set and unmask under another,
and nobody in transit can add to its vector. Check words alone would not detect that: anyone can compute them for a
chosen change. They detect wrong seeds and lost uploads, and they reveal nothing that the sum does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hmac import compare_digest
from itertools import accumulate as running_sum
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from secagg.blame import from_server, said_by
from secagg.contract.layout import Payload, RingSegment
from secagg.crypto.check_words import CHECK_KEY_BYTES, check_words
from secagg.crypto.key_derivation import expand as expand_secret
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined, Secret, abandoned_on_error
from secagg.crypto.shamir import check_value
from secagg.declared import MessageIn, buffers, fixed, sized
from secagg.errors import NOBODY, UNDECIDED, Fault, MalformedMessage, PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, SessionContext
from secagg.parameters import SecurityMode
from secagg.wire import MessageKind

from .configuration import ClientSet, Roster, Seat, SessionConfiguration, client_set, require_context
from .round0_advertise_keys import VerifiedKeySet
from .round1_share_keys import (
    SIGNATURE,
    DeliveredEntry,
    DeliveredShares,
    EntryForm,
    Shared,
    SharesEntry,
    delivered_root,
    signature_bytes,
    verify_delivered_entry,
)
from .suites import SharedSecret, SharePlace, key_suite

if TYPE_CHECKING:
    from .member import MemberParts

SignedKey = tuple[bool, Secret]
"""A mask key, and whether to add its mask."""


def self_mask_key(
    seed: Secret, client: ClientId, context: SessionContext, configuration: SessionConfiguration
) -> Secret:
    """Return the key of a client's self mask.

    Implements: [BIK+17] Fig. 4, Round 2, PRG(b_u).
    """
    size = configuration.suite.mask_key_bytes
    return expand_secret("self_mask_key", size, seed, Label.SELF_MASK_KEY, context.digest, client.encode())


def pairwise_mask_key(
    seed: Secret, one: ClientId, other: ClientId, context: SessionContext, configuration: SessionConfiguration
) -> Secret:
    """Return the key of the mask that two clients share, in either order.

    Implements: [BIK+17] Fig. 4, Round 2, PRG(s_{u,v}).
    """
    low, high = sorted((one, other))
    size, parts = configuration.suite.mask_key_bytes, (context.digest, low.encode(), high.encode())
    return expand_secret("pairwise_mask_key", size, seed, Label.PAIRWISE_MASK_KEY, *parts)


def adds_pairwise_mask(client: ClientId, neighbour: ClientId) -> bool:
    """Whether ``client`` adds the mask that it shares with ``neighbour``, which then subtracts it.

    Claim PM-1: of two neighbours one adds and the other subtracts, so their mask cancels in the sum.
    """
    return client > neighbour


class MaskedVector:
    """One vector per segment of a session, with its check words: an input, an upload, or a sum."""

    __slots__ = ("_configuration", "_first_segments", "vectors")

    def __init__(self, configuration: SessionConfiguration, vectors: Sequence[RingVector] | None = None) -> None:
        """Start from zeros, or from vectors of the session's lengths."""
        self._configuration = configuration
        lengths = [_framed_length(configuration, segment) for segment in configuration.segments]
        if vectors is None:
            pairs = zip(configuration.segments, lengths, strict=True)
            vectors = [segment.ring.zeros(length) for segment, length in pairs]
        self.vectors = list(vectors)
        for segment, length, vector in zip(configuration.segments, lengths, self.vectors, strict=True):
            segment.ring.require_form(vector, length)
        used = [segment_count(s.ring, length) for s, length in zip(configuration.segments, lengths, strict=True)]
        self._first_segments = [0, *running_sum(used)][:-1]

    @classmethod
    def of_input(cls, configuration: SessionConfiguration, context: SessionContext, payload: Payload) -> MaskedVector:
        """Encode an input and a count of 1, with their check words, still unmasked."""
        payload.check()
        framed = cls(configuration)
        for segment, values, vector in zip(configuration.segments, payload.values, framed.vectors, strict=False):
            vector[: segment.length] = values
        framed.vectors[-1][0] = 1
        for index, (segment, vector) in enumerate(zip(configuration.segments, framed.vectors, strict=True)):
            vector[segment.length :] = _check_words(segment, vector, index, context)
        return framed

    def apply(self, add: Sequence[Secret], subtract: Sequence[Secret], *, threads: int = 1) -> None:
        for segment, vector, first in zip(
            self._configuration.segments, self.vectors, self._first_segments, strict=True
        ):
            accumulate(vector, segment.ring, add=add, subtract=subtract, first_segment=first, threads=threads)

    def round(self, context: SessionContext) -> None:
        """Round values that were masked on a fine grid, and adjust their check words to the rounded values.

        Check words are linear, so the words of the rounding errors are added to the masked check words.
        """
        for index, (segment, vector) in enumerate(zip(self._configuration.segments, self.vectors, strict=True)):
            if not segment.fine_bits:
                continue
            rounded = segment.rounded(vector[: segment.length])
            vector[: segment.length] = segment.ring.subtract(rounded, vector[: segment.length])
            words = _check_words(segment, vector, index, context)
            vector[: segment.length] = rounded
            vector[segment.length :] = segment.ring.add(
                vector[segment.length :], np.array(words, dtype=segment.ring.word)
            )

    def pack(self) -> tuple[bytes | memoryview, ...]:
        """Return each vector packed to its exact bit width, as a view where possible; together they are the upload."""
        packed = list[bytes | memoryview]()
        for segment, vector in zip(self._configuration.segments, self.vectors, strict=True):
            if segment.fine_bits:
                packed += [segment.pack_sent(vector[: segment.length]), segment.ring.pack(vector[segment.length :])]
            else:
                packed.append(segment.ring.pack_view(vector))
        return tuple(packed)

    def add_packed(self, packed: bytes | memoryview) -> None:
        """Add another client's packed vector; adds nothing unless all of it decodes.

        Raises:
            MalformedMessage: the bytes are not one vector for each segment.
        """
        data = memoryview(packed)
        if data.nbytes != self._configuration.masked_bytes:
            reason = Reason.TRUNCATED if data.nbytes < self._configuration.masked_bytes else Reason.TRAILING_BYTES
            raise MalformedMessage(
                f"a masked input must be {self._configuration.masked_bytes} bytes; got {data.nbytes}", reason=reason
            )
        unpacked, position = list[RingVector](), 0
        for segment, vector in zip(self._configuration.segments, self.vectors, strict=True):
            end = position + self._configuration.sent_bytes(segment)
            unpacked.append(_unpacked(segment, data[position:end], vector.size))
            position = end
        for segment, vector, summand in zip(self._configuration.segments, self.vectors, unpacked, strict=True):
            add_into(vector, summand)
            reduce_into(vector, segment.ring.modulus_bits)

    def check(self, context: SessionContext) -> None:
        """Compare an unmasked sum with its check words.

        Raises:
            PeerMisbehaved: they differ; ``culprits`` is empty, because the sum does not show who caused it.
        """
        for index, (segment, vector) in enumerate(zip(self._configuration.segments, self.vectors, strict=True)):
            if _check_words(segment, vector, index, context) != vector[segment.length :].tolist():
                raise PeerMisbehaved(
                    "the sum does not match its check words: a client masked with seeds that it did not announce, "
                    "or an upload was altered; discard the sum and start another attempt",
                    reason=Reason.CHECK_WORDS_MISMATCH,
                    culprits=NOBODY,
                )

    def inputs(self, contributors: int = 0) -> tuple[RingVector, ...]:
        """Return the values of the layout's segments, without check words and corrected for the bias of rounding."""
        pairs = zip(self._configuration.layout.require_rings(), self.vectors, strict=False)
        return tuple(segment.unbiased(vector[: segment.length], contributors) for segment, vector in pairs)

    @property
    def count(self) -> int:
        return int(self.vectors[-1][0])

    def wipe(self) -> None:
        for vector in self.vectors:
            vector[:] = 0


def _framed_length(configuration: SessionConfiguration, segment: RingSegment) -> int:
    return segment.length + configuration.check_words_of(segment)


def _unpacked(segment: RingSegment, data: memoryview, size: int) -> RingVector:
    if not segment.fine_bits:
        return segment.ring.unpack(data, size)
    values, words = data[: segment.payload_bytes], data[segment.payload_bytes :]
    return np.concatenate([segment.unpack_sent(values), segment.ring.unpack(words, size - segment.length)])


def _check_words(segment: RingSegment, vector: RingVector, index: int, context: SessionContext) -> list[int]:
    """Compute the check words of a segment, from the public key of this session and segment."""
    # The context is public; it is a Secret only because the key derivation takes one.
    with (
        Secret("session context", context.digest) as source,
        expand_secret("check_key", CHECK_KEY_BYTES, source, Label.CHECK_VECTOR, index.to_bytes(4, "big")) as key,
    ):
        return check_words(segment.ring, vector[: segment.length], vector.size - segment.length, key)


# --- Messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedInput(MessageIn[Roster]):
    """A client's masked vector, and its signature on the set of clients that it masked under."""

    kind: ClassVar = MessageKind.MASKED_INPUT
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, sized(signature_bytes, "64 in active mode")]
    """Empty in semi-honest mode."""
    packed: Annotated[
        tuple[bytes | memoryview, ...], buffers(lambda roster: roster.configuration.masked_bytes, "the masked vector")
    ] = field(repr=False)
    """The vectors in order; a single buffer if they were received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint(MessageIn[Seat]):
    """A client's message in place of its upload, when an edge seed sent to it is unusable (hybrid suite).

    A client without a mask cannot upload, so it leaves. Without a complaint it would seem to have dropped out, and the
    neighbour that caused this would seem honest. A complaint by itself convicts nobody and excludes only its sender.
    The sender counts as dropped, so the server recovers its mask root and opens the disputed seed.
    """

    kind: ClassVar = MessageKind.COMPLAINT
    context: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    signature: Annotated[bytes, SIGNATURE]
    """Empty in semi-honest mode."""
    accused: Annotated[
        ClientSet,
        client_set(lambda seat: len(seat.roster.graph.neighbours(seat.position)), "one bit for each neighbour"),
    ]
    """The accused, by their place among the complaining client's neighbours."""


# --- Client -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Masked(Confined):
    """A client that has uploaded; it has wiped its own secrets and holds only its neighbours' shares and edge seeds."""

    key_set: VerifiedKeySet
    sharers: ClientSet
    delivered: bytes
    """Root over the entries that contained the shares."""
    shares: dict[int, Secret]
    """Each neighbour's shares of the mask root and of the self-mask seed, concatenated."""
    edge_seeds: dict[int, Secret]
    """Seeds of this client's edges (hybrid suite); a seed is revealed if the other end drops out."""

    def wipe(self) -> None:
        for secret in (*self.shares.values(), *self.edge_seeds.values()):
            secret.wipe()

    def __repr__(self) -> str:
        return f"<Masked, holding {len(self.shares)} pairs of shares>"


def mask_input(
    member: MemberParts, state: Shared, message: DeliveredShares, take: Callable[[], Payload]
) -> tuple[Masked | None, MaskedInput | Complaint, list[Fault]]:
    """Derive all masks, and upload the input under them.

    Implements: [BIK+17] Fig. 4, Round 2, client.
    Returns:
        The next state, the upload, and faults of single shares that do not end the session. If an edge seed is
        unusable: no state, a complaint instead of the upload, and all faults; the input is not spent.
    Raises:
        ThresholdNotMet: too few clients, or too few neighbours, shared keys.
        PeerMisbehaved: the set of sharers does not contain this client.
        AuthenticationFailed: an entry is not signed by its sender.
    """
    key_set, roster = state.key_set, state.key_set.roster
    _check_sharers(message, key_set)
    neighbours = [neighbour for neighbour in key_set.neighbours if neighbour in message.sharers]
    delivered = dict(zip(neighbours, message.entries, strict=True))
    root = delivered_root(member.client, (item.entry for item in message.entries))
    seeds, shares = dict[int, Secret](), dict[int, Secret]()
    vector: MaskedVector | None = None
    try:
        entries, complaints = _open_entries(state, delivered, shares)
        unusable = _collect_seeds(state, entries, seeds)
        if unusable:
            wipe_all((*seeds.values(), *shares.values()))
            complaint = complain(member, key_set, message.sharers, root, unusable)
            return None, complaint, [*complaints, *unusable.values()]
        # Checked before the input is taken, so that an unusable signing key does not spend it.
        member.require_signing()
        vector = MaskedVector.of_input(roster.configuration, roster.context, take())
        _apply_masks(vector, state, seeds, member.threads)
        vector.round(roster.context)
        packed, signature = vector.pack(), b""
        if roster.configuration.is_active:
            parts = signed_view(roster.context, member.client, message.sharers, upload_digest(packed))
            signature = member.sign(Label.SIGNED_VIEW, *parts)
    except BaseException:
        wipe_all((*seeds.values(), *shares.values()))
        if vector is not None:
            vector.wipe()
        raise
    if not key_suite(roster.configuration.suite).edge_bytes:
        wipe_all(seeds.values())
        seeds.clear()
    # The client no longer needs its own secrets; its neighbours hold the shares needed for recovery.
    state.wipe()
    upload = MaskedInput(context=roster.context.tag, signature=signature, packed=packed)
    return Masked(key_set, message.sharers, root, shares, seeds), upload, complaints


def complain(
    member: MemberParts, key_set: VerifiedKeySet, sharers: ClientSet, delivered: bytes, accused: Iterable[int]
) -> Complaint:
    """Return a signed complaint about unusable seeds; the root identifies the entries that contained them."""
    roster, neighbours = key_set.roster, key_set.neighbours
    places = ClientSet.of(len(neighbours), (neighbours.index(position) for position in accused))
    signature = b""
    if roster.configuration.is_active:
        parts = signed_complaint(roster.context, member.client, sharers, delivered, places)
        signature = member.sign(Label.SIGNED_COMPLAINT, *parts)
    return Complaint(context=roster.context.tag, signature=signature, accused=places)


def upload_digest(packed: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of a masked vector, for signatures; the session fixes its length."""
    hashed = hashlib.sha256(bind(Label.UPLOAD_DIGEST))
    for run in packed:
        hashed.update(run)
    return hashed.digest()


def signed_view(context: SessionContext, client: ClientId, sharers: ClientSet, upload: bytes) -> tuple[bytes, ...]:
    """Return what a client signs: the set of clients that it masked under, and the digest of its upload."""
    return context.digest, client.encode(), sharers.digest(context), upload


def signed_complaint(
    context: SessionContext, client: ClientId, sharers: ClientSet, delivered: bytes, accused: ClientSet
) -> tuple[bytes, ...]:
    """Return what a client signs about its complaint."""
    return context.digest, client.encode(), sharers.digest(context), delivered, accused.encode()


# --- Private ----------------------------------------------------------------------------------------------------------


def _check_sharers(message: DeliveredShares, key_set: VerifiedKeySet) -> None:
    configuration = key_set.roster.configuration
    require_context(message.context, key_set.roster.context, "the shares belong to another session", from_server())
    if key_set.position not in message.sharers:
        raise PeerMisbehaved(
            "the server delivers shares but says that this client shared nothing",
            reason=Reason.SURVIVORS_INVALID,
            culprits=from_server(),
        )
    key_set.roster.require_cohort(message.sharers, "share keys", of=key_set.position)
    holders = sum(neighbour in message.sharers for neighbour in key_set.neighbours)
    if holders < configuration.threshold:
        raise ThresholdNotMet(needed=configuration.threshold, present=holders, what="neighbours", must="share keys")


def _collect_seeds(state: Shared, entries: Mapping[int, SharesEntry], seeds: dict[int, Secret]) -> dict[int, Fault]:
    """Fill in the edge seeds, and return the faults of the unusable ones."""
    context, suite = state.key_set.roster.context, key_suite(state.key_set.roster.configuration.suite)
    unusable = dict[int, Fault]()
    for neighbour, entry in entries.items():
        peer = state.key_set.advertisers[neighbour].keys
        if neighbour in state.edges:
            seeds[neighbour] = suite.seed_of_sent_edge(state.keys.mask, peer, context, state.edges[neighbour])
            continue
        try:
            seeds[neighbour] = suite.seed_of_received_edge(state.keys.mask, peer, context, entry.edge)
        except PeerError as error:
            unusable[neighbour] = _recorded(error, peer.client, state.key_set.roster.configuration.mode)
    return unusable


def _recorded(error: PeerError, sender: ClientId, mode: SecurityMode) -> Fault:
    """Record an entry's fault: blame its sender if it signed the entry, otherwise also the server and the network."""
    return Fault(error.reason, str(error), said_by(sender, mode), sender=sender)


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
        wipe_all((*add, *subtract))


def _open_entries(
    state: Shared, delivered: Mapping[int, DeliveredEntry], shares: dict[int, Secret]
) -> tuple[dict[int, SharesEntry], list[Fault]]:
    """Open the shares; one that does not open counts as missing and is recorded, and excludes nobody.

    Raises:
        AuthenticationFailed: an entry is not signed by its sender (Claim PM-8).
    Claim PM-12: a pair of the classic suite comes from its sender, for this receiver and this context.
    """
    roster, keys, key_set = state.key_set.roster, state.keys, state.key_set
    suite = key_suite(roster.configuration.suite)
    entries, complaints = dict[int, SharesEntry](), list[Fault]()
    for neighbour, item in delivered.items():
        advertiser = key_set.advertisers[neighbour]
        verify_delivered_entry(roster, neighbour, key_set.position, item, advertiser.identity)
        entry = SharesEntry.decode(item.entry, EntryForm.between(roster, neighbour, key_set.position))
        entries[neighbour] = entry
        try:
            both = suite.open_shares(keys, advertiser.keys, roster.context, entry.sealed)
            with abandoned_on_error(both):
                _check_shares(both, share_place(roster, neighbour, key_set.position), entry.commitment)
        except PeerError as error:
            complaints.append(_recorded(error, advertiser.keys.client, roster.configuration.mode))
            continue
        shares[neighbour] = both
    return entries, complaints


def _check_shares(both: Secret, place: SharePlace, commitment: bytes) -> None:
    """Refuse shares that would make this client look like a liar if it revealed them later."""
    exposed = both.expose()
    root_share, seed_share = exposed[:ELEMENT_BYTES], exposed[ELEMENT_BYTES:]
    check_value(place.point, root_share)
    check_value(place.point, seed_share)
    if not commitment:
        return
    digests = (
        place.digest_of(root_share, SharedSecret.MASK_ROOT),
        place.digest_of(seed_share, SharedSecret.SELF_MASK_SEED),
    )
    if not compare_digest(place.commit_to(*digests), commitment):
        raise PeerMisbehaved(
            f"{place.dealer} sealed shares that do not match its commitment",
            reason=Reason.COMMITMENT_MISMATCH,
            culprits=UNDECIDED,
        )


def wipe_all(secrets: Iterable[Secret]) -> None:
    """Overwrite several secrets."""
    for secret in secrets:
        secret.wipe()


def share_place(roster: Roster, dealer: int, holder: int) -> SharePlace:
    """Return the place of one client's shares at one of its neighbours."""
    point = roster.graph.point_of(holder, dealer)
    return SharePlace(roster.context, roster.clients[dealer], roster.clients[holder], point)
