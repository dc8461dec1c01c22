"""Two servers and their clients in memory, for tests and attacks.

``InsecureIndexingRound`` makes an authority, certified clients with repeatable coins, inputs from a seed, and both
servers of one round. A test gets the halves and messages and may submit any bytes, in any order.

All cryptography is the library's, and nothing here protects data. HPKE draws its own coins, so two rounds of one setup
differ in their sealed messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from secagg.choices import SharingMode
from secagg.contract import Aggregate, Layout, Payload, ideal_aggregate
from secagg.contract.layout import IndexSegment, RingSegment
from secagg.crypto.ring import RingVector, low_bits
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.offers import Invitation, RoundOffers, RoundStamp, UploadHalves
from secagg.protocols.two_servers.opened_upload import index_body_bytes, public_bytes, ring_bytes
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.run import check
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_keys import ServerKeys
from secagg.protocols.two_servers.session import TwoServersMember
from secagg.protocols.two_servers.standing_server import OperatorPolicy, lanes_of
from secagg.protocols.two_servers.upload import HalfForm, Upload
from secagg.session.certificates import Certificate, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import NO_MODEL, SpentUpdates
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.planted import always

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Default time of all events."""
MADE: Final = int(NOW.timestamp())
"""When the authority signed its roster."""
MIXED_LAYOUT: Final = Layout((RingSegment(20, 6), IndexSegment(8, 5), RingSegment(7, 3), IndexSegment(200, 4)))
"""Rings around the indices; at most cohorts the second codebook has a tree, and the first has none."""


def indexing_configuration(**changes: Any) -> IndexingConfiguration:
    """Return a configuration of random keys, for tests without signatures."""
    usual: dict[str, Any] = {
        "task": b"a task",
        "suite": Suite.CLASSIC,
        "authority": b"a" * 32,
        "server_keys": (b"0" * 32, b"1" * 32),
        "minimum_cohort": 2,
        "maximum_cohort": 4,
        "maximum_rejections": 0,
        "expiry": 1 << 31,
    }
    return IndexingConfiguration(**{**usual, **changes})


def framed(label: bytes, *parts: bytes) -> bytes:
    """Return a label's bound bytes, as in the specification."""
    return label + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def flipped(message: bytes, position: int, bit: int = 0) -> bytes:
    altered = bytearray(message)
    altered[position] ^= 1 << bit
    return bytes(altered)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexingSetup:
    """Setup of a round and its clients."""

    population: int = 5
    minimum_cohort: int = 2
    maximum_cohort: int = 20
    maximum_rejections: int = 3
    suite: Suite = Suite.CLASSIC
    layout: Layout = MIXED_LAYOUT
    mode: SharingMode = SharingMode.CHECKED_POINT_FUNCTIONS
    depth: int | None = None
    capacity: int = low_bits(20)
    task: bytes = b"a task"
    round_number: int = 7
    seed: bytes = b"a round"
    """Determines all coins, inputs and identity keys."""

    def coins_of(self, party: str) -> InsecureSeededCoins:
        return InsecureSeededCoins(hashlib.sha256(self.seed + b"/" + party.encode()).digest())

    def signing_key_of(self, party: str) -> SigningKey:
        with Secret.random("signing key", 32, self.coins_of(f"identity of {party}")) as seed:
            return SigningKey(seed)

    def pair_key(self) -> Secret:
        return Secret.random("pair key", 32, self.coins_of("both servers"))

    def keys_of(self, index: int) -> ServerKeys:
        return ServerKeys.random(ServerId(index), self.coins_of(f"identity of server {index}"))

    def standing_policy(self, **changes: Any) -> OperatorPolicy:
        """Return the policy of server 1's operator that this setup just meets."""
        configuration = self.configuration
        weakest = ClientPolicy(
            authority=configuration.authority, server_keys=configuration.server_keys, minimum_cohort=self.minimum_cohort
        )
        met: dict[str, Any] = {
            "weakest": weakest,
            "task_prefix": self.task,
            "maximum_cohort": self.maximum_cohort,
            "maximum_lanes": lanes_of(configuration),
            "maximum_lifetime": timedelta(days=1),
        }
        return OperatorPolicy(**(met | changes))

    def payload_of(self, number: int) -> Payload:
        generator = np.random.default_rng([number, *self.seed])
        values = list[RingVector]()
        for segment in self.layout.segments:
            if isinstance(segment, IndexSegment):
                drawn = generator.integers(0, segment.codewords, segment.blocks)
                values.append(drawn.astype(segment.ring.word))
            else:
                values.append(segment.ring.from_integers(generator.integers(-2, 3, segment.length)))
        return Payload(self.layout, tuple(values))

    @property
    def configuration(self) -> IndexingConfiguration:
        return IndexingConfiguration(
            task=self.task,
            suite=self.suite,
            authority=self.signing_key_of("authority").public_key,
            server_keys=(self.signing_key_of("server 0").public_key, self.signing_key_of("server 1").public_key),
            layout=self.layout,
            mode=self.mode,
            depth=self.depth,
            minimum_cohort=self.minimum_cohort,
            maximum_cohort=self.maximum_cohort,
            maximum_rejections=self.maximum_rejections,
            expiry=int(NOW.timestamp()) + 86400,
            standing=Standing(number=MADE, revoked=(5,)).signed(self.signing_key_of("authority")),
        )


class UnboundMember(TwoServersMember):
    """A client whose servers count its layout, for any model."""

    def layout_for(self, subject: Subject, model: bytes) -> Layout:  # noqa: ARG002 -- the method's
        return subject.layout


@dataclass(slots=True, kw_only=True)
class SharingClient:
    """A client over several rounds; servers count its layout, for any model."""

    certificate: Certificate
    signing_key: SigningKey
    policy: ClientPolicy
    layout: Layout
    capacity: int
    coins: Any
    ledger: SpentUpdates = field(default_factory=SpentUpdates)
    threads: int = 1
    kind: type[Client] = Client

    @property
    def client(self) -> ClientId:
        return self.certificate.client

    def session(
        self, payload: Payload, *, task: bytes, round_number: int, now: datetime = NOW, model_digest: bytes = NO_MODEL
    ) -> Client:
        """Join a round with an update."""
        member = UnboundMember(
            certificate=self.certificate,
            signing_key=self.signing_key,
            policy=self.policy,
            charge=self.ledger.charge,
            clock=always(now),
            coins=self.coins,
            threads=self.threads,
            kind=self.kind,
        )
        return member.join(
            Subject(task=task, round_number=round_number, layout=self.layout, capacity=self.capacity),
            LazyUpdate(always(Update(payload, model_digest)), model_digest),
        )

    def share(  # noqa: PLR0913 -- what the round is
        self,
        payload: Payload,
        *,
        configuration: IndexingConfiguration,
        round_number: int,
        offers: tuple[bytes, bytes],
        now: datetime = NOW,
        model_digest: bytes = NO_MODEL,
    ) -> tuple[Upload, Upload]:
        """Upload once, and return the halves for servers 0 and 1."""
        session = self.session(
            payload, task=configuration.task, round_number=round_number, now=now, model_digest=model_digest
        )
        return halves_in(configuration, session.answer(invitation_of(configuration, round_number, offers)))


def invitation_of(configuration: IndexingConfiguration, round_number: int, offers: tuple[bytes, bytes]) -> bytes:
    return Invitation(round_number, configuration, RoundOffers(is_simulated=False, offers=offers)).encode()


def halves_in(configuration: IndexingConfiguration, answer: bytes) -> tuple[Upload, Upload]:
    found = list[Upload]()
    for index, half in enumerate(UploadHalves.decode(answer).both):
        body = index_body_bytes(configuration, ServerId(index)) + (ring_bytes(configuration) if index else 0)
        public = public_bytes(configuration) if index else 0
        found.append(Upload.decode(half, HalfForm(configuration, ServerId(index), body, public)))
    return found[0], found[1]


@dataclass(slots=True)
class InsecureIndexingRound:
    """An authority, clients and both servers of one round; the caller is the network."""

    setup: IndexingSetup
    configuration: IndexingConfiguration = field(init=False)
    servers: list[IndexingServer] = field(init=False)
    clients: list[SharingClient] = field(init=False)

    def __post_init__(self) -> None:
        self.configuration = self.setup.configuration
        self.servers = [self.new_server(index) for index in (0, 1)]
        self.clients = [self.new_client(number) for number in range(1, self.setup.population + 1)]

    @property
    def zero(self) -> IndexingServer:
        return self.servers[0]

    @property
    def one(self) -> IndexingServer:
        return self.servers[1]

    def new_server(
        self,
        index: int,
        configuration: IndexingConfiguration | None = None,
        *,
        pair_key: Secret | None = None,
        **named: Any,
    ) -> IndexingServer:
        """Start a server, or another one with the same coins or the given arguments."""
        setup = self.setup
        usual: dict[str, Any] = {
            "round_number": setup.round_number,
            "signing_key": setup.signing_key_of(f"server {index}"),
            "coins": setup.coins_of(f"server {index}"),
        }
        with pair_key or setup.pair_key() as key:
            return IndexingServer(configuration or self.configuration, ServerId(index), pair_key=key, **(usual | named))

    def new_client(self, number: int, ledger: SpentUpdates | None = None) -> SharingClient:
        """Make a client with this number and its own ledger."""
        setup = self.setup
        signing_key = setup.signing_key_of(f"client {number}")
        authority = setup.signing_key_of("authority")
        return SharingClient(
            certificate=issue_certificate(authority, ClientId(number), signing_key.public_key),
            signing_key=signing_key,
            policy=self.policy,
            layout=setup.layout,
            capacity=setup.capacity,
            ledger=ledger or SpentUpdates(),
            coins=setup.coins_of(f"client {number}"),
        )

    @property
    def policy(self) -> ClientPolicy:
        configuration = self.setup.configuration
        return ClientPolicy(
            suites=frozenset({configuration.suite}),
            authority=configuration.authority,
            server_keys=configuration.server_keys,
            minimum_cohort=configuration.minimum_cohort,
            maximum_length=sum(segment.length for segment in configuration.layout.segments),
            sharings=frozenset({configuration.mode}),
        )

    def share(
        self,
        number: int,
        *,
        payload: Payload | None = None,
        configuration: IndexingConfiguration | None = None,
        round_number: int | None = None,
    ) -> tuple[Upload, Upload]:
        """Let a client share its input between the two servers."""
        return self.clients[number - 1].share(
            payload or self.setup.payload_of(number),
            configuration=configuration or self.configuration,
            round_number=self.setup.round_number if round_number is None else round_number,
            offers=(self.zero.offer, self.one.offer),
            now=NOW,
        )

    def upload(self, *numbers: int, payload: Payload | None = None) -> None:
        for number in numbers:
            self.deliver(self.share(number, payload=payload))

    def deliver(self, halves: Sequence[Upload]) -> None:
        for server, half in zip(self.servers, halves, strict=True):
            server.receive(half.encode())

    def check(self) -> None:
        check(self.zero, self.one, self.one.waiting())

    def lists(self) -> tuple[bytes, bytes]:
        return self.zero.close(), self.one.close()

    def agreed(self) -> tuple[bytes, bytes]:
        lists = self.lists()
        return self.zero.agree(lists[1]), self.one.agree(lists[0])

    def finish(self) -> tuple[RoundResult, RoundResult]:
        commitments = self.agreed()
        shares = self.zero.open(commitments[1]), self.one.open(commitments[0])
        return self.zero.combine(shares[1]), self.one.combine(shares[0])

    def stamp(self, index: int, **changes: Any) -> RoundStamp:
        stamp = RoundStamp(
            context=self.configuration.context, round_number=self.setup.round_number, server=ServerId(index)
        )
        return replace(stamp, **changes)

    def ideal(self, numbers: Iterable[int]) -> Aggregate:
        return ideal_aggregate(self.setup.layout, [self.setup.payload_of(number) for number in numbers])

    @classmethod
    def of(cls, setup: IndexingSetup, *numbers: int, checked: bool = False) -> InsecureIndexingRound:
        """Return a round that has counted the uploads of these clients."""
        made = cls(setup)
        made.upload(*numbers)
        if checked:
            made.check()
        return made
