"""The clients of a session, as the library has them, and every message that a server could show to one.

A client that took a sequence of messages is what it would be in any schedule with that sequence, because it has no
other input; so each sequence is given once to a fresh object of the library's own ``Client``, and its answers are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

import ideal
from duplicates import duplicate
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import MerkleTree
from secagg.crypto.secret import Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import round2_masked_input, round3_consistency_check, round4_unmasking
from secagg.protocols.pairwise_mask.advertisement import KeyAdvertisement
from secagg.protocols.pairwise_mask.client import Client
from secagg.protocols.pairwise_mask.client_set import ClientSet
from secagg.protocols.pairwise_mask.configuration import (
    NO_AUTHORITY,
    NO_DIGEST,
    OPENING_BYTES,
    SessionConfiguration,
    commit_to_opening,
)
from secagg.protocols.pairwise_mask.floors import ClientFloors
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.member import ClientInput, SessionTerms
from secagg.protocols.pairwise_mask.roster import Roster
from secagg.protocols.pairwise_mask.round0_advertise_keys import PublishedRoster
from secagg.protocols.pairwise_mask.round1_share_keys import (
    DeliveredEntry,
    DeliveredShares,
    EncryptedShares,
    EntryForm,
    RelayedShares,
    signature_bytes,
)
from secagg.session.certificates import Authority, SigningKey, issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins

LAYOUT = Layout((RingSegment(8, 1),))
Set = frozenset[int]
GENUINE, REPLAYED, IMPOSTOR, TRANSPLANTED = "genuine", "replayed", "impostor", "transplanted"


@dataclass(frozen=True, slots=True)
class Setup:
    """A session's size and parameters, and who is corrupted."""

    population: int
    threshold: int
    quorum: int = 0
    cohort: int = 2
    committee: int = 0
    corrupted: Set = frozenset()
    attempts: int = 1

    @property
    def everyone(self) -> Set:
        """All clients, by number."""
        return frozenset(range(self.population))

    @property
    def honest(self) -> tuple[int, ...]:
        """Those who follow the protocol."""
        return tuple(sorted(self.everyone - self.corrupted))

    @property
    def mode(self) -> SecurityMode:
        """The mode: there is a quorum in one of them only."""
        return SecurityMode.ACTIVE if self.quorum else SecurityMode.SEMI_HONEST


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A roster as the server shows it: in which attempt, who is on it, and whose keys stand beside each name."""

    attempt: int
    keys: tuple[tuple[int, str], ...]

    clients: Set = field(init=False)
    """Who is on it."""
    genuine: Set = field(init=False)
    """Those whose own keys stand there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", frozenset(client for client, _ in self.keys))
        object.__setattr__(self, "genuine", frozenset(client for client, kind in self.keys if kind == GENUINE))

    def kind(self, client: int) -> str:
        """Return whose keys stand beside a client's name."""
        return GENUINE if client in self.genuine else dict(self.keys)[client]


@cache
def shown_as(attempt: int, keys: tuple[tuple[int, str], ...]) -> Shown:
    """Return the one object for a roster."""
    return Shown(attempt, keys)


Party = tuple[int, str]
"""A client, or whoever the server puts into its place."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a client answered to the messages of a sequence, up to the first that it refused."""

    replies: tuple[bytes, ...]
    client: Client | None
    """The client afterwards; nothing if it refused a message."""

    @property
    def accepted(self) -> bool:
        """Whether it refused none."""
        return self.client is not None


class World:
    """Everybody who takes part in the attempts of a case, and what each of them answers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.authority = _signing_key(b"authority")
        self.rogue = _signing_key(b"rogue authority")
        self.keys = {client: _signing_key(b"client %d" % client) for client in setup.everyone}
        self.impostor_keys = {client: _signing_key(b"impostor %d" % client) for client in setup.everyone}
        self._ran = dict[tuple[Party, int, tuple[bytes, ...]], Answers]()
        self._published = dict[Shown, PublishedRoster]()
        self._dealt = dict[tuple[Shown, int], dict[int, bytes]]()
        self._openings = [0] * setup.attempts
        self.runs = 0

    # --- What the library's clients do ------------------------------------------------------------------------------

    def run(self, party: Party, attempt: int, messages: tuple[bytes, ...]) -> Answers:
        """Return what a party answers to a sequence that begins with the attempt's offer."""
        key = (party, attempt, messages)
        if key not in self._ran:
            self._ran[key] = self._run(party, attempt, messages)
        return self._ran[key]

    def _run(self, party: Party, attempt: int, messages: tuple[bytes, ...]) -> Answers:
        self.runs += 1
        if messages:
            before = self.run(party, attempt, messages[:-1])
            if not before.accepted or before.client is None:
                return before
            client, replies, message = duplicate(before.client), before.replies, messages[-1]
        else:
            client, replies, message = self.client(party, attempt), (), self.offers[attempt]
        try:
            return Answers((*replies, *client.receive(message)), client)
        except SecAggError:
            return Answers(replies, None)

    def client(self, party: Party, attempt: int, client_input: ClientInput | None = None) -> Client:
        """Return a client at the beginning of an attempt, with coins that are its own in this attempt."""
        number, kind = party
        active = self.setup.mode is SecurityMode.ACTIVE
        signing_key = self.keys[number] if kind == GENUINE else self.impostor_keys[number]
        issuer = self.authority if kind == GENUINE else self.rogue
        return Client(
            client_id(number),
            client_input or new_input(),
            floors=self.floors,
            capacity=1 << 30,
            coins=InsecureSeededCoins(hashlib.sha256(repr((party, attempt)).encode()).digest()),
            authority=Authority(self.authority.public_key) if active else None,
            signing_key=signing_key if active else None,
            certificate=issue_certificate(issuer, client_id(number), signing_key.public_key) if active else None,
            terms=SessionTerms.of(self.configurations[attempt]),
        )

    @cached_property
    def floors(self) -> ClientFloors:
        """What the clients insist on: what the case offers."""
        return ClientFloors(
            suites=frozenset({Suite.CLASSIC}),
            modes=frozenset({self.setup.mode}),
            minimum_cohort=self.setup.cohort,
            minimum_threshold=2,
            minimum_modulus_bits=1,
            maximum_length=10,
            maximum_population=self.setup.population,
            assumed_corrupted=len(self.setup.corrupted),
            privacy_bits=40,
        )

    @cached_property
    def configurations(self) -> tuple[SessionConfiguration, ...]:
        """What each attempt agrees on."""
        setup, made = self.setup, list[SessionConfiguration]()
        for attempt in range(setup.attempts):
            made.append(
                SessionConfiguration(
                    task=b"model",
                    model_digest=NO_DIGEST,
                    round_number=0,
                    attempt=attempt,
                    mode=setup.mode,
                    suite=Suite.CLASSIC,
                    topology=Topology.FULL,
                    degree=0,
                    threshold=setup.threshold,
                    committee_size=setup.committee,
                    quorum=setup.quorum,
                    minimum_cohort=setup.cohort,
                    maximum_population=setup.population,
                    maximum_weight=1,
                    layout=LAYOUT,
                    check_words=8,
                    application_digest=NO_DIGEST,
                    authority=self.authority.public_key if setup.quorum else NO_AUTHORITY,
                    graph_commitment=commit_to_opening(self.opening(attempt)),
                    server_nonce=bytes(32),
                )
            )
        return tuple(made)

    def draw_committee(self, wanted: Set) -> None:
        """Let the server be lucky: choose openings under which these clients are the committee."""
        for attempt in range(self.setup.attempts):
            while self.committee(self.whole_roster(attempt)) != wanted:
                self._openings[attempt] += 1
                self._ran.clear()
                self._published.clear()
                del self.configurations, self.offers

    def opening(self, attempt: int) -> bytes:
        """Return the server's share in the seed of the graph, such that the same committee is drawn in each attempt."""
        return self._openings[attempt].to_bytes(OPENING_BYTES, "big")

    @cached_property
    def offers(self) -> tuple[bytes, ...]:
        """The first message of each attempt."""
        return tuple(configuration.encode() for configuration in self.configurations)

    def keeps_its_input(self, client: int) -> bool:
        """Whether an input that was uploaded in the first attempt can be uploaded again in the second."""
        kept, shown = new_input(), self.whole_roster(0)
        first = self.client((client, GENUINE), 0, kept)
        messages = (self.roster_message(shown, client), self.shares_message(shown, client, self.setup.everyone))
        for message in (self.offers[0], *messages):
            first.receive(message)
        try:
            self.client((client, GENUINE), 1, kept).receive(self.offers[1])
        except SecAggError:
            return False
        return True

    # --- What the server shows --------------------------------------------------------------------------------------

    def whole_roster(self, attempt: int) -> Shown:
        """Return the roster of everybody, with everybody's own keys."""
        return shown_as(attempt, tuple((client, GENUINE) for client in sorted(self.setup.everyone)))

    def published(self, shown: Shown) -> PublishedRoster:
        """Return a roster with every entry, and the tree over them."""
        if shown not in self._published:
            configuration = self.configurations[shown.attempt]
            advertised = {client_id(number): self._advertisement(shown, number, kind) for number, kind in shown.keys}
            self._published[shown] = PublishedRoster(configuration, self.opening(shown.attempt), advertised)
        return self._published[shown]

    def roster(self, shown: Shown) -> Roster:
        """Return what follows from it."""
        return self.published(shown).roster

    def committee(self, shown: Shown) -> Set:
        """Return who certifies; nobody in semi-honest mode."""
        if not self.setup.quorum:
            return frozenset()
        numbers = sorted(shown.clients)
        return frozenset(numbers[position] for position in self.roster(shown).committee)

    def roster_message(self, shown: Shown, client: int) -> bytes:
        """Return what a client gets to see of it."""
        return self.published(shown).message_to(_place(shown, client)).encode()

    def shares_message(self, shown: Shown, client: int, sharers: Set, junk: Set = frozenset()) -> bytes:
        """Return the neighbours' entries for a client; junk where an entry does not exist or is to be replaced."""
        roster, receiver = self.roster(shown), _place(shown, client)
        entries = list[DeliveredEntry]()
        for number in sorted((sharers & shown.clients) - {client}):
            relayed = None if number in junk else self.relayed(shown, number)
            entries.append(
                _junk(roster, _place(shown, number), receiver) if relayed is None else relayed.deliver_to(receiver)
            )
        return DeliveredShares(
            context=roster.context.digest, sharers=set_on(shown, sharers), entries=tuple(entries)
        ).encode()

    def relayed(self, shown: Shown, number: int) -> RelayedShares | None:
        """Return what the holder of the keys beside a name shares under this roster; nothing if it refuses it."""
        kind = shown.kind(number)
        if kind not in {GENUINE, IMPOSTOR}:
            return None
        answers = self.run((number, kind), shown.attempt, (self.roster_message(shown, number),))
        if not answers.accepted:
            return None
        roster, place = self.roster(shown), _place(shown, number)
        return RelayedShares(roster, place, EncryptedShares.decode(answers.replies[1], roster, place), None)

    def dealt(self, shown: Shown, number: int) -> dict[int, bytes]:
        """Return the two shares, one after the other, that a client sealed to each neighbour."""
        if (shown, number) not in self._dealt:
            self._dealt[shown, number] = self._opened(shown, number)
        return self._dealt[shown, number]

    def _opened(self, shown: Shown, number: int) -> dict[int, bytes]:
        relayed, roster = self.relayed(shown, number), self.roster(shown)
        if relayed is None:
            return {}
        size = EntryForm.between(roster, _place(shown, number), 0 if _place(shown, number) else 1).sealed_bytes
        return {
            other: ideal.sealed_plaintext(relayed.entry_to(_place(shown, other)).sealed[:size])
            for other in shown.clients - {number}
        }

    def survivors_message(self, shown: Shown, sharers: Set, contributors: Set) -> bytes:
        """Return the two sets that a member of the committee is to sign."""
        return round3_consistency_check.SurvivorSet(
            context=self.roster(shown).context.digest,
            sharers=set_on(shown, sharers),
            contributors=set_on(shown, contributors),
        ).encode()

    def request_message(
        self, shown: Shown, contributors: Set, endorsements: Mapping[int, bytes], views: Iterable[bytes]
    ) -> bytes:
        """Return a request for shares."""
        published = self.published(shown)
        listed = list[round4_unmasking.Endorsement]()
        for number, signature in sorted(endorsements.items()):
            credential = published.advertisements[_place(shown, number)].credential
            if credential is not None:
                listed.append(
                    round4_unmasking.Endorsement(
                        position=_place(shown, number),
                        identity_key=credential.identity_key,
                        certificate=credential.certificate,
                        signature=signature,
                    )
                )
        return round4_unmasking.UnmaskingRequest(
            context=published.roster.context.digest,
            contributors=set_on(shown, contributors),
            endorsements=tuple(listed),
            views=tuple(round4_unmasking.SignedView(upload=ideal.UPLOADED, signature=view) for view in views),
        ).encode()

    # --- Signatures -------------------------------------------------------------------------------------------------

    def endorsement_statement(self, shown: Shown, signer: int, sharers: Set, contributors: Set) -> bytes:
        """Return what a member of the committee signs, as the library puts it."""
        parts = round4_unmasking.signed_survivors(
            self.roster(shown).context, client_id(signer), set_on(shown, sharers), set_on(shown, contributors)
        )
        return bind(Label.SIGNED_SURVIVORS, *parts)

    def view_statement(self, shown: Shown, signer: int, sharers: Set) -> bytes:
        """Return what a client signs about the sharers under which it masked."""
        parts = round2_masked_input.signed_view(
            self.roster(shown).context, client_id(signer), set_on(shown, sharers), ideal.UPLOADED
        )
        return bind(Label.SIGNED_VIEW, *parts)

    def sign(self, signer: int, statement: bytes) -> bytes:
        """Sign anything: what the adversary does with a corrupted client's key."""
        return ideal.IdealSignatureKey(self.keys[signer].public_key).sign(statement)

    def sign_as_impostor(self, signer: int, statement: bytes) -> bytes:
        """Sign anything with the key that stands beside the name of one whom the server has replaced."""
        return ideal.IdealSignatureKey(self.impostor_keys[signer].public_key).sign(statement)

    # --- Private ----------------------------------------------------------------------------------------------------

    def _advertisement(self, shown: Shown, number: int, kind: str) -> KeyAdvertisement:
        def own(party: Party, attempt: int) -> KeyAdvertisement:
            answers = self.run(party, attempt, ())
            return KeyAdvertisement.decode(answers.replies[0], self.configurations[attempt])

        genuine = own((number, GENUINE), shown.attempt)
        match kind:
            case "genuine":
                return genuine
            case "replayed":
                return own((number, GENUINE), 1 - shown.attempt)
            case "impostor":
                return own((number, IMPOSTOR), shown.attempt)
            case _:
                false = own((number, IMPOSTOR), shown.attempt)
                return KeyAdvertisement(
                    attempt=genuine.attempt,
                    client=genuine.client,
                    channel_key=false.channel_key,
                    mask_key=false.mask_key,
                    self_mask_commitment=genuine.self_mask_commitment,
                    credential=genuine.credential,
                )


def client_id(number: int) -> ClientId:
    """Return the library's name of a client."""
    return ClientId(number + 1)


def new_input() -> ClientInput:
    """Return an input that was never uploaded."""
    return ClientInput(Payload(LAYOUT, (np.zeros(1, np.uint8),)))


@cache
def set_on(shown: Shown, members: Set) -> ClientSet:
    """Return a set of clients as those on a roster write it; whoever is not on it is left out."""
    return ClientSet.of(len(shown.keys), [_place(shown, number) for number in members & shown.clients])


def _place(shown: Shown, number: int) -> int:
    return sorted(shown.clients).index(number)


def _junk(roster: Roster, sender: int, receiver: int) -> DeliveredEntry:
    count, place = roster.graph.degree, roster.graph.point_of(receiver, sender) - 1
    signed = signature_bytes(roster)
    path = tuple(MerkleTree([bytes(32)] * count).prove([place])) if signed else ()
    size = EntryForm.between(roster, sender, receiver).size
    return DeliveredEntry(entry=bytes(size), signature=bytes(signed), path=path)


@cache
def _signing_key(name: bytes) -> SigningKey:
    with Secret("identity_seed", hashlib.sha256(name).digest()) as seed:
        return SigningKey(seed)
