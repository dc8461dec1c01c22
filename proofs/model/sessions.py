"""The clients of a session, as implemented by the library, and their answers to each message sequence.

A client that has received a message sequence is the same in every schedule with that sequence, because it has no other
input. So each sequence is sent once to a new object of the library's own ``Client``, and its answers are kept. The
masks in an upload are observed where the library expands them, not assumed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property

import numpy as np

import ideal
from duplicates import duplicate
from secagg.choices import Topology
from secagg.contract import Payload
from secagg.crypto.secret import Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import round2_masked_input
from secagg.protocols.pairwise_mask.client import Client, PairwiseMember
from secagg.protocols.pairwise_mask.client_record import Recorder
from secagg.protocols.pairwise_mask.configuration import (
    NO_AUTHORITY,
    NO_DIGEST,
    OPENING_BYTES,
    SessionConfiguration,
    commit_to_opening,
)
from secagg.protocols.pairwise_mask.round0_advertise_keys import Advertised
from secagg.protocols.pairwise_mask.round1_share_keys import Shared
from secagg.protocols.pairwise_mask.suites import key_suite
from secagg.session.certificates import NO_STANDING, Authority, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import uncharged
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.sealed_state import MemoryLatch
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from setups import GENUINE, LAYOUT, Party, Setup

MADE = 1_800_000_000
NOW = datetime.fromtimestamp(MADE, UTC)
AGAIN = b""
"""In place of a message: the process ends, and is resumed from its record before the last message."""
SELF, PAIR = "self mask", "pairwise mask"
KeyOwner = tuple[int, str, int]
"""Owner of keys: a client or its impostor, in an attempt."""
MaskName = tuple[str, frozenset[KeyOwner]]
Mask = tuple[bytes, int]
"""The key that a mask was expanded from, and its sign in the upload."""


@dataclass(frozen=True, slots=True)
class Suspended:
    """A client whose process has ended: its records, newest last, and the position of its latch."""

    records: tuple[bytes, ...]
    numbers: tuple[tuple[bytes, int], ...]


@dataclass(frozen=True, slots=True)
class Answers:
    """A client's answers to the messages of a sequence, up to the first that it refused."""

    replies: tuple[bytes, ...]
    client: Client | Suspended | None
    """The client afterwards; nothing if it refused a message."""
    masks: frozenset[Mask] = frozenset()
    """The masks that were expanded for its upload."""

    @property
    def accepted(self) -> bool:
        """Whether it accepted every message."""
        return self.client is not None


class Clients:
    """All clients of a setup, and the impostors that the server uses in their place."""

    def __init__(self, setup: Setup) -> None:
        """Make identities, which last through all attempts."""
        self.setup = setup
        self.authority, self.rogue = _signing_key(b"authority"), _signing_key(b"rogue authority")
        self.keys = {client: _signing_key(b"client %d" % client) for client in setup.everyone}
        self.impostor_keys = {client: _signing_key(b"impostor %d" % client) for client in setup.everyone}
        self.mask_names = dict[bytes, MaskName]()
        """The owner of each key from which a mask can be expanded."""
        self._ran = dict[tuple[Party, int, tuple[bytes, ...]], Answers]()
        self._owners = dict[bytes, KeyOwner]()
        self._openings = [0] * setup.attempts
        self.runs = 0

    def run(self, party: Party, attempt: int, messages: tuple[bytes, ...]) -> Answers:
        """Return a party's answers to a sequence that starts with the attempt's offer."""
        key = (party, attempt, messages)
        if key not in self._ran:
            self._ran[key] = self._run(party, attempt, messages)
        return self._ran[key]

    def _run(self, party: Party, attempt: int, messages: tuple[bytes, ...]) -> Answers:
        self.runs += 1
        latch, before, message = MemoryLatch(), Answers((), None), self.offers[attempt]
        if messages:
            before, message = self.run(party, attempt, messages[:-1]), messages[-1]
            if before.client is None:
                return before
        try:
            if message == AGAIN:
                return replace(before, client=_before_the_last(before.client))
            client = self._awake(party, attempt, before.client, latch)
            with ideal.masks_expanded() as expanded:
                replies = (*before.replies, client.answer(message))
        except SecAggError:
            return Answers(before.replies, None, before.masks)
        self._name_masks((*party, attempt), client)
        return Answers(replies, self._asleep(client, before.client, latch), before.masks | frozenset(expanded))

    def _awake(self, party: Party, attempt: int, before: Client | Suspended | None, latch: MemoryLatch) -> Client:
        """Return the client that receives the next message: a new one, a copy, or a resumed one."""
        match before:
            case None:
                return self.client(party, attempt, latch=latch if self.setup.restarts else None)
            case Client():
                return duplicate(before)
            case Suspended():
                latch._numbers.update(before.numbers)  # noqa: SLF001
                record = Secret("client record", before.records[-1])
                client = self.client(party, attempt, latch=latch, restarts=len(before.records))
                client.resume(record)
                return client

    def _asleep(self, client: Client, before: Client | Suspended | None, latch: MemoryLatch) -> Client | Suspended:
        if not self.setup.restarts:
            return client
        records = before.records if isinstance(before, Suspended) else ()
        record = client.suspend()
        # A client that is done has no state to resume.
        kept = AGAIN if record is None else bytes(record.expose())
        return Suspended((*records, kept), tuple(latch._numbers.items()))  # noqa: SLF001

    def client(
        self,
        party: Party,
        attempt: int,
        update: LazyUpdate | None = None,
        latch: MemoryLatch | None = None,
        restarts: int = 0,
    ) -> Client:
        """Return a client at the start of an attempt, with coins for this attempt."""
        member = self._member(party, attempt, restarts)
        recording = None if latch is None else Recorder(latch, member.coins)
        return Client(member, self.subjects[attempt], update or new_update(), recording)

    def _member(self, party: Party, attempt: int, restarts: int) -> PairwiseMember:
        """Return a client's arguments for a session, also when it is resumed."""
        number, kind = party
        active = self.setup.mode is SecurityMode.ACTIVE
        signing_key = self.keys[number] if kind == GENUINE else self.impostor_keys[number]
        issuer = self.authority if kind == GENUINE else self.rogue
        return PairwiseMember(
            client_id(number),
            policy=self.policy,
            coins=InsecureSeededCoins(hashlib.sha256(repr((party, attempt, restarts)).encode()).digest()),
            authority=Authority(self.authority.public_key) if active else None,
            signing_key=signing_key if active else None,
            certificate=issue_certificate(issuer, client_id(number), signing_key.public_key) if active else None,
            charge=uncharged,
            clock=lambda: NOW,
        )

    def _name_masks(self, owner: KeyOwner, client: Client) -> None:
        """Compute the keys of all masks that a client may need, with the library's functions."""
        match client._step:  # noqa: SLF001
            case Advertised() as step:
                self._owners[step.keys.mask.pair.public_key.encoded] = owner
            case Shared() as step:
                roster, own, suite = step.key_set.roster, step.keys, key_suite(self.setup.suite)
                context, configuration = roster.context, roster.configuration
                with round2_masked_input.self_mask_key(step.self_mask_seed, own.client, context, configuration) as key:
                    self.mask_names[bytes(key.expose())] = SELF, frozenset({owner})
                for neighbour, advertiser in step.key_set.advertisers.items():
                    if suite.edge_bytes and neighbour not in step.edges:
                        continue  # Its other end names this one.
                    peer = advertiser.keys
                    edge = step.edges.get(neighbour, b"")
                    with (
                        suite.seed_of_sent_edge(own.mask, peer, context, edge) as seed,
                        round2_masked_input.pairwise_mask_key(
                            seed, own.client, peer.client, context, configuration
                        ) as key,
                    ):
                        ends = frozenset({owner, self._owners[peer.mask.encoded]})
                        self.mask_names[bytes(key.expose())] = PAIR, ends
            case _:
                pass

    @cached_property
    def policy(self) -> ClientPolicy:
        """The policy of the clients: what the case offers."""
        return ClientPolicy(
            suites=frozenset({self.setup.suite}),
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
    def subjects(self) -> tuple[Subject, ...]:
        """The subject of each attempt."""
        return tuple(
            Subject(
                task=b"model",
                round_number=attempt if self.setup.rounds else 0,
                layout=LAYOUT,
                capacity=1 << 30,
                model_digest=NO_DIGEST,
            )
            for attempt in range(self.setup.attempts)
        )

    @cached_property
    def configurations(self) -> tuple[SessionConfiguration, ...]:
        """The configuration of each attempt."""
        setup, made = self.setup, list[SessionConfiguration]()
        for attempt in range(setup.attempts):
            made.append(
                SessionConfiguration(
                    task=self.subjects[attempt].task,
                    model_digest=NO_DIGEST,
                    round_number=self.subjects[attempt].round_number,
                    attempt=0 if setup.rounds else attempt,
                    mode=setup.mode,
                    suite=setup.suite,
                    topology=Topology.FULL,
                    degree=0,
                    threshold=setup.threshold,
                    committee_size=setup.committee,
                    quorum=setup.quorum,
                    minimum_cohort=setup.cohort,
                    maximum_population=setup.population,
                    layout=LAYOUT,
                    check_words=8,
                    application_digest=self.subjects[attempt].terms_digest,
                    authority=self.authority.public_key if setup.quorum else NO_AUTHORITY,
                    standing=Standing(number=MADE).signed(self.authority) if setup.quorum else NO_STANDING,
                    graph_commitment=commit_to_opening(self.opening(attempt)),
                    server_nonce=bytes(32),
                )
            )
        return tuple(made)

    def opening(self, attempt: int) -> bytes:
        """Return a server's share in the seed of the graph for which every attempt draws the same committee."""
        return self._openings[attempt].to_bytes(OPENING_BYTES, "big")

    @cached_property
    def offers(self) -> tuple[bytes, ...]:
        """The first message of each attempt."""
        return tuple(configuration.encode() for configuration in self.configurations)

    def forget(self, attempt: int) -> None:
        """Let the server choose another share in the seed; earlier answers do not count."""
        self._openings[attempt] += 1
        self._ran.clear()
        self._owners.clear()
        del self.configurations, self.offers


def client_id(number: int) -> ClientId:
    """Return the library's identifier of a client."""
    return ClientId(number + 1)


def new_update(value: int = 0) -> LazyUpdate:
    """Return an update that was never uploaded."""
    return LazyUpdate(lambda: Update(Payload(LAYOUT, (np.full(1, value, np.uint8),)), NO_DIGEST))


def _before_the_last(kept: Client | Suspended) -> Suspended | None:
    if not isinstance(kept, Suspended) or len(kept.records) < 2:  # noqa: PLR2004 -- there is one to go back to
        return None
    return Suspended(kept.records[:-1], kept.numbers)


@cache
def _signing_key(name: bytes) -> SigningKey:
    with Secret("identity_seed", hashlib.sha256(name).digest()) as seed:
        return SigningKey(seed)
