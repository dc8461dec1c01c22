"""Round 0, advertise keys: every client publishes two public keys; every client learns its neighbours' and the context.

[BIK+17] Fig. 4, Round 0. Client to server: ``KeyAdvertisement``. Server to each client: ``AdvertisedKeys``.

After this round a client knows that the list of advertisers has no duplicates, that it is on it with its own keys, that
its neighbours are those that the seed gives it and nobody chose for it, and, in active mode, that the authority vouches
for each of them. The session context binds all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Annotated, ClassVar, Final, TypeVar

from secagg.blame import said_by, unverified
from secagg.crypto.key_agreement import KeyRole
from secagg.crypto.merkle import NODE_BYTES, MerkleTree, recover_root
from secagg.crypto.prime_field import random_root
from secagg.crypto.secret import Confined, Secret, abandoned_on_error
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.fields import Placed, fixed, repeated, sized, variable
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId, ServerId
from secagg.parameters import SecurityMode
from secagg.session.certificates import Authority, VerifiedIdentity
from secagg.wire import MessageKind

from .advertisement import (
    KeyAdvertisement,
    VerifiedAdvertiser,
    authenticate,
    entry_bytes,
    sign_advertisement,
    verify_entry,
    verify_keys,
)
from .commitments import commit_to_self_mask
from .configuration import OPENING_BYTES, SessionConfiguration, commit_to_opening
from .graph import MAXIMUM_POPULATION
from .member import Member
from .roster import Roster, encode_clients, entry_digest, require_context, roster_of
from .suites import MaskKeys, OwnKeys, key_suite

ROUND: Final = "advertise_keys"
_MAXIMUM_LIST_BYTES = 10 << 20
_MAXIMUM_ID_BYTES = 10
"""Of an id below 2^64, in groups of 7 bits."""
_ROOT_BYTES = 32
_ENTRY = sized(lambda at: entry_bytes(at.place), "both keys; in active mode commitment and credential")


# --- Messages ---------------------------------------------------------------------------------------------------------

Shown = TypeVar("Shown")
Known = TypeVar("Known")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedKeys(Placed):
    """What one client gets to see of the roster: everybody's id, its neighbours' entries, and their proof."""

    kind: ClassVar = MessageKind.ADVERTISED_KEYS
    attempt: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    clients: Annotated[
        bytes, variable(_MAXIMUM_LIST_BYTES, lambda at: at.place.maximum_population * _MAXIMUM_ID_BYTES)
    ] = field(repr=False)
    """The list of advertisers in its one encoding."""
    root: Annotated[bytes, fixed(NODE_BYTES)]
    opening: Annotated[bytes, fixed(OPENING_BYTES)]
    entries: Annotated[
        tuple[bytes, ...], repeated(_ENTRY, MAXIMUM_POPULATION, lambda at: at.place.maximum_population)
    ] = field(repr=False)
    proof: Annotated[
        tuple[bytes, ...], repeated(fixed(NODE_BYTES), MAXIMUM_POPULATION, lambda at: at.place.maximum_population)
    ] = field(repr=False)

    @classmethod
    def decode(cls, message: bytes, configuration: SessionConfiguration) -> AdvertisedKeys:
        """Read the canonical encoding back."""
        return cls.read_in(configuration, message)


# --- Client -----------------------------------------------------------------------------------------------------------


class Advertised(Confined):
    """A client that has advertised its keys: it holds everything secret that the session rests on."""

    __slots__ = ("advertisement", "configuration", "keys", "self_mask_seed")

    def __init__(
        self,
        configuration: SessionConfiguration,
        keys: OwnKeys,
        self_mask_seed: Secret,
        advertisement: KeyAdvertisement,
    ) -> None:
        self.configuration = configuration
        self.keys = keys
        self.self_mask_seed = self_mask_seed
        self.advertisement = advertisement

    def wipe(self) -> None:
        """Overwrite the secrets."""
        self.keys.wipe()
        self.self_mask_seed.wipe()

    def __repr__(self) -> str:
        return f"<Advertised {self.keys.client}>"


def advertise_keys(member: Member, configuration: SessionConfiguration) -> tuple[Advertised, KeyAdvertisement]:
    """Accept an offer and draw everything secret afresh.

    Implements: [BIK+17] Fig. 4, Round 0, client.
    Raises:
        InvalidParameters: the offer goes below this client's floors; nothing was drawn.
        Misuse: the coins repeat.
    """
    configuration.require_floors(member.floors)
    if configuration.maximum_total_weight > member.capacity:
        raise InvalidParameters(
            f"{configuration.maximum_population} clients of weight up to {configuration.maximum_weight} exceed the "
            f"capacity {member.capacity} of the decoder; offer fewer clients, smaller weights or a wider ring",
            reason=Reason.BELOW_FLOOR,
        )
    if configuration.mode is SecurityMode.ACTIVE:
        if member.authority is None or member.signing_key is None or member.certificate is None:
            raise InvalidParameters("active mode needs an authority, a signing key and a certificate; configure them")
        if configuration.authority != member.authority.public_key:
            raise InvalidParameters("the session names another authority than this client trusts")
    suite, attempt = key_suite(configuration.suite), configuration.context
    # Independent draws: recovering one of them says nothing about the others.
    with Secret.random("channel_root", _ROOT_BYTES, member.coins) as channel_root:
        mask_root = random_root("mask_root", member.coins)
        self_mask_seed = random_root("self_mask_seed", member.coins)
        with abandoned_on_error(mask_root, self_mask_seed):
            _require_fresh(channel_root, mask_root, self_mask_seed)
        channel = suite.key_pair(channel_root, KeyRole.CHANNEL, attempt)
    mask = MaskKeys(member.client, suite.key_pair(mask_root, KeyRole.MASK, attempt), mask_root)
    keys = OwnKeys(member.client, channel, mask)
    unsigned = KeyAdvertisement(
        attempt=attempt.tag,
        client=member.client,
        channel_key=keys.channel.public_key.encoded,
        mask_key=keys.mask.pair.public_key.encoded,
        self_mask_commitment=commit_to_self_mask(self_mask_seed, member.client, attempt),
        credential=None,
    )
    with abandoned_on_error(mask_root, self_mask_seed):
        advertisement = sign_advertisement(unsigned, member, attempt) if configuration.is_active else unsigned
    return Advertised(configuration, keys, self_mask_seed, advertisement), advertisement


@dataclass(frozen=True, slots=True)
class VerifiedKeySet:
    """The roster as one client has checked it: its position, its neighbours' positions, and their keys."""

    roster: Roster
    position: int
    neighbours: tuple[int, ...]
    advertisers: Mapping[int, VerifiedAdvertiser] = field(repr=False)


def accept_advertised_keys(member: Member, state: Advertised, message: AdvertisedKeys) -> VerifiedKeySet:
    """Check the roster, find one's own neighbours, and derive the session context.

    Implements: [BIK+17] Fig. 4, Round 1, client, steps 1 and 2.
    Raises:
        ThresholdNotMet: fewer advertised than the minimum cohort.
        PeerMisbehaved: the roster is not what it must be, or its parameters do not protect this client.
        AuthenticationFailed: a neighbour's advertisement is not certified or not signed.
    Claim PM-8: what follows is under keys that their owners advertised for this attempt, and under one context.
    """
    configuration = state.configuration
    roster = _checked_roster(member, configuration, message)
    position = roster.position_of(member.client)
    if position is None:
        raise _invalid_roster(f"{member.client} is not on the roster")
    neighbours = roster.graph.neighbours(position)
    if len(message.entries) != len(neighbours):
        raise _invalid_roster(f"{len(neighbours)} neighbours have {len(message.entries)} entries")
    leaves = {position: entry_digest(member.client, state.advertisement.entry)}
    for neighbour, entry in zip(neighbours, message.entries, strict=True):
        leaves[neighbour] = entry_digest(roster.clients[neighbour], entry)
    try:
        proven = compare_digest(recover_root(roster.population, leaves, message.proof), message.root)
    except MalformedMessage:
        proven = False
    if not proven:
        raise _invalid_roster("the entries of this client and of its neighbours are not those of the roster's root")
    listed = [(roster.clients[at], entry) for at, entry in zip(neighbours, message.entries, strict=True)]
    verified = in_parallel(
        lambda one: verify_entry(one[1], one[0], configuration, member.authority), listed, member.threads
    )
    advertisers = dict(zip(neighbours, verified, strict=True))
    own = state.keys.published
    own_keys = [own.channel.encoded, own.mask.encoded]
    if member.certificate is not None:
        own_keys.append(member.certificate.public_key)
    _require_distinct_keys(own.client, own_keys, advertisers.values())
    return VerifiedKeySet(roster, position, neighbours, advertisers)


# --- Server -----------------------------------------------------------------------------------------------------------


def authenticate_advertisement(
    configuration: SessionConfiguration, message: KeyAdvertisement
) -> VerifiedIdentity | None:
    """Refuse an advertisement for another attempt, or that its sender did not sign.

    Implements: [BIK+17] Fig. 4, Round 0, server.
    """
    require_context(
        message.attempt,
        configuration.context,
        f"{message.client} advertises keys for another attempt",
        unverified(message.client),
        ROUND,
    )
    authority = Authority(configuration.authority) if configuration.mode is SecurityMode.ACTIVE else None
    return authenticate(message, configuration, authority)


def admit_advertisement(
    configuration: SessionConfiguration,
    owners: Mapping[bytes, ClientId],
    message: KeyAdvertisement,
    identity: VerifiedIdentity | None,
) -> VerifiedAdvertiser:
    """Refuse keys that no honest client would have advertised, so that they never reach the others.

    Args:
        owners: who advertised which key before.

    Implements: [BIK+17] Fig. 4, Round 0, server.
    """
    advertiser = verify_keys(message, configuration, identity)
    for key in message.public_keys:
        if other := owners.get(key):
            raise PeerMisbehaved(
                f"{message.client} and {other} advertise one and the same key",
                reason=Reason.PUBLIC_KEY_REUSED,
                culprits=said_by(message.client, configuration.mode) | {other},
            )
    return advertiser


class PublishedRoster:
    """The roster as the server holds it: with every entry, and the tree over them."""

    def __init__(
        self, configuration: SessionConfiguration, opening: bytes, advertised: Mapping[ClientId, KeyAdvertisement]
    ) -> None:
        """Fix the roster; nobody joins it afterwards."""
        self.advertisements = tuple(advertised[client] for client in sorted(advertised))
        self._clients = encode_clients([item.client for item in self.advertisements])
        self._tree = MerkleTree([entry_digest(item.client, item.entry) for item in self.advertisements])
        self.roster = roster_of(configuration, self._clients, self._tree.root, opening)

    def message_to(self, position: int) -> AdvertisedKeys:
        """Return what the client at a position gets to see.

        Implements: [BIK+17] Fig. 4, Round 0, server, the broadcast; for a sparse graph each client's part of it.
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


# --- Private ----------------------------------------------------------------------------------------------------------


def _checked_roster(member: Member, configuration: SessionConfiguration, message: AdvertisedKeys) -> Roster:
    """Derive the roster, and refuse it where its size or its parameters do not protect this client."""
    require_context(message.attempt, configuration.context, "the roster is of another attempt", {ServerId()}, ROUND)
    if not compare_digest(commit_to_opening(message.opening), configuration.graph_commitment):
        raise _invalid_roster("the seed of the graph is not the one that the offer commits to")
    try:
        roster = roster_of(configuration, message.clients, message.root, message.opening)
    except (MalformedMessage, InvalidParameters) as error:
        raise _invalid_roster(f"the list of advertisers is no roster: {error}") from None
    needed = configuration.minimum_cohort
    if roster.population < needed:
        raise ThresholdNotMet(needed=needed, present=roster.population, what="advertisers", round_name=ROUND)
    try:
        configuration.require_population(
            roster.population,
            corrupted=member.floors.assumed_corrupted,
            privacy_bits=member.floors.privacy_bits_in(configuration.mode),
        )
    except InvalidParameters as error:
        raise PeerMisbehaved(
            f"the session goes on with parameters that do not protect this client: {error}",
            reason=Reason.BELOW_FLOOR,
            culprits={ServerId()},
            round_name=ROUND,
        ) from None
    return roster


def _require_fresh(*drawn: Secret) -> None:
    """Refuse coins that repeat, such as nothing but zeros; uniform ones do so with probability 2^-254."""
    for index, secret in enumerate(drawn):
        if secret in drawn[:index]:
            raise Misuse("the coins repeat, so that one secret would give another; pass SystemCoins()")


def _require_distinct_keys(
    client: ClientId, own_keys: Iterable[bytes], neighbours: Iterable[VerifiedAdvertiser]
) -> None:
    owner = dict.fromkeys(own_keys, client)
    for neighbour in neighbours:
        for key in neighbour.public_keys:
            other = owner.setdefault(key, neighbour.keys.client)
            if other != neighbour.keys.client:
                raise PeerMisbehaved(
                    f"one key stands for {other} and for {neighbour.keys.client}",
                    reason=Reason.PUBLIC_KEY_REUSED,
                    culprits=(unverified(neighbour.keys.client) | {other}) - {client},
                )


def _invalid_roster(sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=Reason.ROSTER_INVALID, culprits={ServerId()}, round_name=ROUND)


def in_parallel(check: Callable[[Shown], Known], shown: Sequence[Shown], threads: int = 1) -> list[Known]:
    """Return what a check says of each, or raise what it raises of the first, made in threads.

    The backend lets others run while it verifies.
    """

    def checked(some: Sequence[Shown]) -> list[Known]:
        return [check(one) for one in some]

    if threads == 1 or len(shown) < threads:
        return checked(shown)
    size = -(-len(shown) // threads)
    parts = [shown[start : start + size] for start in range(0, len(shown), size)]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [known for part in pool.map(checked, parts) for known in part]
