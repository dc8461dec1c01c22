"""Round 0, advertise keys: each client publishes two public keys and receives its neighbours' keys and the context.

[BIK+17] Fig. 4, Round 0. Client to server: ``KeyAdvertisement``. Server to each client: ``AdvertisedKeys``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

from secagg.blame import disputed, from_server, said_by, unverified
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.merkle import NODE_BYTES, recover_root
from secagg.crypto.prime_field import random_root
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.secret import Confined, Secret, abandoned_on_error
from secagg.declared import CLIENT, MessageIn, fixed, nested, optional, repeated, sized, variable
from secagg.errors import (
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import CONTEXT_TAG_BYTES, AttemptContext, ClientId
from secagg.parameters import SecurityMode
from secagg.session.certificates import (
    GRANT_BYTES,
    IDENTITY_KEY_BYTES,
    SIGNATURE_BYTES,
    Authority,
    Certificate,
    VerifiedIdentity,
)
from secagg.session.standings import require_standing
from secagg.wire import MessageKind

from .configuration import (
    OPENING_BYTES,
    Roster,
    SessionConfiguration,
    commit_to_opening,
    decode_clients,
    entry_digest,
    require_context,
    roster_of,
)
from .graph import MAXIMUM_POPULATION
from .suites import COMMITMENT_BYTES, MaskKeys, OwnKeys, PublishedKeys, commit_to_self_mask, key_suite

if TYPE_CHECKING:
    from .member import MemberParts


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Proof that a certified client sent an advertisement: its identity key, certificate and signature."""

    identity_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    certificate: Annotated[bytes, fixed(GRANT_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    def encode(self) -> bytes:
        return self.identity_key + self.certificate + self.signature


_KEY = sized(lambda offer: key_suite(offer.suite).public_key_bytes, "32 classic, 1216 hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAdvertisement(MessageIn[SessionConfiguration]):
    """A client's public keys for one attempt, and a commitment to its self-mask seed."""

    kind: ClassVar = MessageKind.KEY_ADVERTISEMENT
    attempt: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    client: Annotated[ClientId, CLIENT]
    channel_key: Annotated[bytes, _KEY]
    mask_key: Annotated[bytes, _KEY]
    self_mask_commitment: Annotated[bytes, fixed(COMMITMENT_BYTES)]
    credential: Annotated[
        Credential | None, optional(nested(Credential), lambda offer: offer.is_active, "168 in active mode")
    ]

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """All keys in the advertisement; no two clients may share one."""
        keys = self.channel_key, self.mask_key
        return keys if self.credential is None else (*keys, self.credential.identity_key)

    @property
    def entry(self) -> bytes:
        """The advertisement's entry in the roster; contains the commitment only if it is signed."""
        keys = self.channel_key + self.mask_key
        return keys if self.credential is None else keys + self.self_mask_commitment + self.credential.encode()


@dataclass(frozen=True, slots=True)
class VerifiedAdvertiser:
    """A client with a verified advertisement; only ``verify_keys`` creates one."""

    keys: PublishedKeys
    identity: VerifiedIdentity | None
    self_mask_commitment: bytes = field(repr=False)

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        keys = self.keys.channel.encoded, self.keys.mask.encoded
        return keys if self.identity is None else (*keys, self.identity.public_key)


def sign_advertisement(unsigned: KeyAdvertisement, member: MemberParts, attempt: AttemptContext) -> KeyAdvertisement:
    """Sign an advertisement with the member's identity key, and attach its certificate."""
    if member.certificate is None:
        raise InvalidParameters("active mode needs a certificate; configure one")
    credential = Credential(
        identity_key=member.certificate.public_key,
        certificate=member.certificate.grant,
        signature=member.sign(Label.SIGNED_ADVERTISEMENT, *_signed_parts(unsigned, attempt)),
    )
    return replace(unsigned, credential=credential)


def authenticate(
    advertisement: KeyAdvertisement, configuration: SessionConfiguration, authority: Authority | None
) -> VerifiedIdentity | None:
    """Verify the certificate and the signature of an advertisement; in semi_honest mode there are none."""
    if configuration.mode is not SecurityMode.ACTIVE:
        return None
    client, credential = advertisement.client, advertisement.credential
    if authority is None or credential is None:
        raise InternalError("cannot verify an active session's advertisement without an authority and a credential")
    certificate = Certificate(client, credential.identity_key, credential.certificate)
    identity = authority.verify(certificate, culprits=unverified(client))
    configuration.standing.require_valid(certificate, culprits=unverified(client))
    parts = _signed_parts(advertisement, configuration.context)
    identity.verify(credential.signature, Label.SIGNED_ADVERTISEMENT, *parts, culprits=unverified(client))
    return identity


def verify_keys(
    advertisement: KeyAdvertisement, configuration: SessionConfiguration, identity: VerifiedIdentity | None
) -> VerifiedAdvertiser:
    """Check the keys of an advertisement; a sender that signed it is solely to blame."""
    client, suite = advertisement.client, key_suite(configuration.suite)
    culprits = said_by(client, configuration.mode)
    keys = PublishedKeys(
        client,
        suite.public_key(advertisement.channel_key, culprits),
        suite.public_key(advertisement.mask_key, culprits),
    )
    if keys.channel == keys.mask:
        raise PeerMisbehaved(
            f"{client} advertises one key for two roles", reason=Reason.PUBLIC_KEY_REUSED, culprits=culprits
        )
    return VerifiedAdvertiser(keys, identity, advertisement.self_mask_commitment)


def verify_entry(
    entry: bytes, client: ClientId, configuration: SessionConfiguration, authority: Authority | None
) -> VerifiedAdvertiser:
    """Verify the certificate, signature and keys of a client's roster entry, as the server did before."""
    key_bytes = key_suite(configuration.suite).public_key_bytes
    channel_key, mask_key, rest = entry[:key_bytes], entry[key_bytes : 2 * key_bytes], entry[2 * key_bytes :]
    commitment, credential = b"", None
    if configuration.mode is SecurityMode.ACTIVE:
        commitment, rest = rest[:COMMITMENT_BYTES], rest[COMMITMENT_BYTES:]
        credential = Credential(
            identity_key=rest[:IDENTITY_KEY_BYTES],
            certificate=rest[IDENTITY_KEY_BYTES:-SIGNATURE_BYTES],
            signature=rest[-SIGNATURE_BYTES:],
        )
    advertisement = KeyAdvertisement(
        attempt=configuration.context.tag,
        client=client,
        channel_key=channel_key,
        mask_key=mask_key,
        self_mask_commitment=commitment,
        credential=credential,
    )
    return verify_keys(advertisement, configuration, authenticate(advertisement, configuration, authority))


def entry_bytes(configuration: SessionConfiguration) -> int:
    """Return the length of one client's roster entry."""
    keys = 2 * key_suite(configuration.suite).public_key_bytes
    if configuration.mode is SecurityMode.ACTIVE:
        return keys + COMMITMENT_BYTES + IDENTITY_KEY_BYTES + GRANT_BYTES + SIGNATURE_BYTES
    return keys


def _signed_parts(advertisement: KeyAdvertisement, attempt: AttemptContext) -> tuple[bytes, ...]:
    return (
        attempt.digest,
        advertisement.client.encode(),
        advertisement.channel_key,
        advertisement.mask_key,
        advertisement.self_mask_commitment,
    )


# --- The roster, as a client is shown it ------------------------------------------------------------------------------

_MAXIMUM_LIST_BYTES = 10 << 20
_MAXIMUM_ID_BYTES = 10
"""Length of an id below 2^64, in groups of 7 bits."""
_ROOT_BYTES = 32


def _most(configuration: SessionConfiguration) -> int:
    return configuration.maximum_population


_ENTRY = sized(entry_bytes, "both keys; in active mode commitment and credential")
Shown = TypeVar("Shown")
Known = TypeVar("Known")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvertisedKeys(MessageIn[SessionConfiguration]):
    """One client's view of the roster: all ids, its neighbours' entries, and a proof of them."""

    kind: ClassVar = MessageKind.ADVERTISED_KEYS
    attempt: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    clients: Annotated[
        bytes, variable(_MAXIMUM_LIST_BYTES, lambda offer: offer.maximum_population * _MAXIMUM_ID_BYTES)
    ] = field(repr=False)
    """The advertisers, canonically encoded."""
    root: Annotated[bytes, fixed(NODE_BYTES)]
    opening: Annotated[bytes, fixed(OPENING_BYTES)]
    entries: Annotated[tuple[bytes, ...], repeated(_ENTRY, MAXIMUM_POPULATION, _most)] = field(repr=False)
    proof: Annotated[tuple[bytes, ...], repeated(fixed(NODE_BYTES), MAXIMUM_POPULATION, _most)] = field(repr=False)


# --- Client -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class Advertised(Confined):
    """A client that has advertised its keys; holds all secrets that it contributes to the session."""

    configuration: SessionConfiguration
    keys: OwnKeys
    self_mask_seed: Secret
    advertisement: KeyAdvertisement

    def wipe(self) -> None:
        self.keys.wipe()
        self.self_mask_seed.wipe()

    def __repr__(self) -> str:
        return f"<Advertised {self.keys.client}>"


def advertise_keys(
    member: MemberParts, configuration: SessionConfiguration, coins: Coins
) -> tuple[Advertised, KeyAdvertisement]:
    """Accept an offer and draw fresh secrets.

    Implements: [BIK+17] Fig. 4, Round 0, client.
    Raises:
        InvalidParameters: the offer is weaker than this client's policy; nothing was drawn.
        Misuse: the signing key was wiped, and nothing was drawn; or the coins repeat.
    """
    configuration.require_accepted(member.policy)
    if configuration.mode is SecurityMode.ACTIVE:
        if member.authority is None or member.signing_key is None or member.certificate is None:
            raise InvalidParameters("active mode needs an authority, a signing key and a certificate; configure them")
        if configuration.authority != member.authority.public_key:
            raise InvalidParameters(
                "the session names an authority that this client does not trust; if the authority has rotated its "
                "key, update this client (`secagg keys follow`)"
            )
        member.require_signing()
        require_standing(configuration.standing, member, configuration.authority)
    suite, attempt = key_suite(configuration.suite), configuration.context
    # Independent draws: recovering one secret reveals nothing about the others.
    with Secret.random("channel_root", _ROOT_BYTES, coins) as channel_root:
        mask_root = random_root("mask_root", coins)
        self_mask_seed = random_root("self_mask_seed", coins)
        with abandoned_on_error(mask_root, self_mask_seed):
            _require_fresh(channel_root, mask_root, self_mask_seed)
            channel = suite.key_pair(channel_root, KeyRole.CHANNEL, attempt)
            mask = MaskKeys(member.client, suite.key_pair(mask_root, KeyRole.MASK, attempt), mask_root)
            keys = OwnKeys(member.client, channel, mask)
            advertisement = KeyAdvertisement(
                attempt=attempt.tag,
                client=member.client,
                channel_key=keys.channel.public_key.encoded,
                mask_key=keys.mask.pair.public_key.encoded,
                self_mask_commitment=commit_to_self_mask(self_mask_seed, member.client, attempt),
                credential=None,
            )
            if configuration.is_active:
                advertisement = sign_advertisement(advertisement, member, attempt)
    return Advertised(configuration, keys, self_mask_seed, advertisement), advertisement


@dataclass(frozen=True, slots=True)
class VerifiedKeySet:
    """The roster as one client verified it: its position, its neighbours' positions, and their keys."""

    roster: Roster
    position: int
    neighbours: tuple[int, ...]
    advertisers: Mapping[int, VerifiedAdvertiser] = field(repr=False)


def accept_advertised_keys(member: MemberParts, state: Advertised, message: AdvertisedKeys) -> VerifiedKeySet:
    """Verify the roster, find this client's neighbours, and derive the session context.

    Implements: [BIK+17] Fig. 4, Round 1, client, steps 1 and 2.
    Raises:
        ThresholdNotMet: fewer advertised than the minimum cohort.
        PeerMisbehaved: the roster is invalid, or its parameters do not protect this client.
        AuthenticationFailed: a neighbour's advertisement is not certified or not signed.
    Claim PM-8: later messages use keys that their owners advertised for this attempt, and one context.
    """
    configuration = state.configuration
    roster = _checked_roster(member, configuration, message)
    position = roster.position_of(member.client)
    if position is None:
        raise _invalid_roster(f"{member.client} is not on the roster")
    neighbours = roster.graph.neighbours(position)
    if len(message.entries) != len(neighbours):
        raise _invalid_roster(f"the roster has {len(message.entries)} entries for {len(neighbours)} neighbours")
    leaves = {position: entry_digest(member.client, state.advertisement.entry)}
    for neighbour, entry in zip(neighbours, message.entries, strict=True):
        leaves[neighbour] = entry_digest(roster.clients[neighbour], entry)
    try:
        proven = compare_digest(recover_root(roster.population, leaves, message.proof), message.root)
    except MalformedMessage:
        proven = False
    if not proven:
        raise _invalid_roster("the entries of this client and its neighbours do not match the roster's root")
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


# --- Private ----------------------------------------------------------------------------------------------------------


def _checked_roster(member: MemberParts, configuration: SessionConfiguration, message: AdvertisedKeys) -> Roster:
    """Derive the roster; refuse a size or parameters that do not protect this client."""
    require_context(message.attempt, configuration.context, "the roster belongs to another attempt", from_server())
    if not compare_digest(commit_to_opening(message.opening), configuration.graph_commitment):
        raise _invalid_roster("the graph seed does not match the offer's commitment")
    try:
        present = len(decode_clients(message.clients, configuration.maximum_population))
    except MalformedMessage as error:
        raise _invalid_roster(f"the list of clients is malformed: {error}") from None
    if present < configuration.minimum_cohort:
        needed = configuration.minimum_cohort
        raise ThresholdNotMet(needed=needed, present=present, what="clients", must="complete the key exchange")
    try:
        configuration.require_protected(member.policy, present)
    except InvalidParameters as error:
        raise PeerMisbehaved(
            f"the session uses parameters that do not protect this client: {error}",
            reason=Reason.BELOW_FLOOR,
            culprits=from_server(),
        ) from None
    return roster_of(configuration, message.clients, message.root, message.opening)


def _require_fresh(*drawn: Secret) -> None:
    """Refuse coins that repeat, such as all zeros; uniform coins do so with probability 2^-254."""
    for index, secret in enumerate(drawn):
        if secret in drawn[:index]:
            raise Misuse("the coins repeat, so one secret would reveal another; pass SystemCoins()")


def _require_distinct_keys(
    client: ClientId, own_keys: Iterable[bytes], neighbours: Iterable[VerifiedAdvertiser]
) -> None:
    owner = dict.fromkeys(own_keys, client)
    for neighbour in neighbours:
        for key in neighbour.public_keys:
            other = owner.setdefault(key, neighbour.keys.client)
            if other != neighbour.keys.client:
                others = {other, neighbour.keys.client} - {client}
                raise PeerMisbehaved(
                    f"{other} and {neighbour.keys.client} have the same key",
                    reason=Reason.PUBLIC_KEY_REUSED,
                    culprits=disputed(*(unverified(party) for party in others)),
                )


def _invalid_roster(sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=Reason.ROSTER_INVALID, culprits=from_server())


def in_parallel(check: Callable[[Shown], Known], shown: Sequence[Shown], threads: int = 1) -> list[Known]:
    """Apply a check to each item, in threads; return the results, or raise the first error.

    The crypto backend releases the GIL while it verifies.
    """

    def checked(some: Sequence[Shown]) -> list[Known]:
        return [check(one) for one in some]

    if threads == 1 or len(shown) < threads:
        return checked(shown)
    size = -(-len(shown) // threads)
    parts = [shown[start : start + size] for start in range(0, len(shown), size)]
    with ThreadPoolExecutor(len(parts)) as pool:
        return [known for part in pool.map(checked, parts) for known in part]
