"""In-memory one-message sums: an authority, certified clients and holders, and inputs from a seed.

All cryptography is the library's, and nothing here protects data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from secagg.contract import Aggregate, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS, SecurityMode, Suite
from secagg.protocols.one_message.client import Client, ClientRecord, Ledger, OneMessageMember
from secagg.protocols.one_message.configuration import NO_KEY, EpochRecord, HolderIdentity, HolderSignature, Offer
from secagg.protocols.one_message.decoding import Recovered, SumOfSecrets, recovered
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.opening import Accumulator, OpenedSum, Opening
from secagg.protocols.one_message.parameters import Parameters
from secagg.protocols.one_message.requests import Answer, CertifiedList, Delivery, ListSignature, Receipt, UploadList
from secagg.protocols.one_message.session import (
    Bounds,
    OneMessageHelpers,
    OneMessageOptions,
    Server,
    open_session,
    plan_epoch,
    plan_offer,
)
from secagg.protocols.one_message.tally import Tally
from secagg.session.certificates import NO_STANDING, Certificate, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.session.sockets import AskAll
from secagg.simulation.insecure_coins import InsecureSeededCoins

NOW: Final = 1_800_000_000
MADE: Final = NOW
"""When the authority signed its roster."""
TASK: Final = b"a task"
MODEL: Final = hashlib.sha256(b"a model").digest()
SMALL_LAYOUT: Final = Layout((RingSegment(20, 6), RingSegment(9, 3)))
COINS: Final = InsecureSeededCoins(bytes(32))
"""Coins of a server."""
MESSAGES: Final = (Upload, Delivery, Receipt, UploadList, ListSignature, CertifiedList, Answer)
"""Messages of a sum after its offer."""


def recover(parameters: Parameters, answers: Mapping[int, bytes]) -> Recovered:
    """Decode answers, without the search for short sums."""
    return next(recovered(parameters, answers, 0, COINS))


class Total(Accumulator):
    """A sum of uploads that counts them."""

    count = 0

    def add(self, upload: bytes | bytearray | memoryview) -> None:
        super().add(upload)
        self.count += 1


def opened_by(ring: EpochRing, total: Any, secret: SumOfSecrets) -> OpenedSum:
    """Open a ``Total`` or similar, like a server whose uploads have one piece."""
    opening = Opening(ring)
    opening.require_plausible(secret, total.count)
    return opening.opened([opening.unmasked(total, secret)], total.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSetup:
    """Setup of a sum; two sums of one setup are identical except for HPKE's coins."""

    population: int = 5
    capacity: int = 16
    holders: int = 5
    corrupted: int = 1
    absent: int = 0
    threshold: int | None = None
    """Overrides the default threshold: the largest that tolerates the planned absences."""
    mode: SecurityMode = SecurityMode.ACTIVE
    suite: Suite = Suite.CLASSIC
    layout: Layout = SMALL_LAYOUT
    bounds: tuple[Bounds, ...] | None = None
    minimum_cohort: int = 3
    corrupted_clients: int = 1
    round_number: int = 0
    number: int = 1
    model: bytes = MODEL
    seed: bytes = b"a sum"

    def coins_of(self, party: str) -> InsecureSeededCoins:
        return InsecureSeededCoins(hashlib.sha256(self.seed + b"/" + party.encode()).digest())

    def key_of(self, party: str) -> SigningKey:
        with Secret.random("signing key", 32, self.coins_of(f"identity of {party}")) as seed:
            return SigningKey(seed)

    @property
    def is_active(self) -> bool:
        return self.mode is SecurityMode.ACTIVE

    @property
    def subject(self) -> Subject:
        return Subject(
            task=TASK,
            round_number=self.round_number,
            layout=self.layout,
            capacity=self.capacity,
            model_digest=self.model,
        )

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return tuple(ClientId(1000 + 7 * index) for index in range(self.population))

    def values_of(self, client: ClientId) -> Payload:
        generator = np.random.default_rng([client.value, self.round_number])
        bounds = self.bounds or (None,) * len(self.layout.segments)
        vectors = list[np.ndarray]()
        for segment, bound in zip(self.layout.require_rings(), bounds, strict=True):
            low, high = bound or (0, 1 << (segment.modulus_bits - 5))
            vectors.append(segment.ring.from_integers(generator.integers(low, high + 1, segment.length)))
        return Payload(self.layout, tuple(vectors))


def for_any_task(ledger: Ledger) -> Callable[[bytes], Ledger]:
    return lambda _: ledger


@dataclass
class InsecureSum:
    """All parties of sums in one epoch."""

    setup: SumSetup = field(default_factory=SumSetup)
    now: int = NOW
    salt: str = ""
    """Clients with another salt draw other coins."""
    attempts: int | None = ATTEMPTS
    stood_still: float = 0.0
    """Seconds for which the holders' machines were suspended."""

    def __post_init__(self) -> None:
        self.begin([50 + position for position in range(self.setup.holders)])

    def begin(self, numbers: Sequence[int]) -> None:
        setup = self.setup
        self.authority = setup.key_of("the authority")
        self.holder_keys = [setup.key_of(f"holder {position}") for position in range(setup.holders)]
        record = plan_epoch(
            [
                HolderIdentity(number=number, public_key=key.public_key if setup.is_active else NO_KEY)
                for number, key in zip(numbers, self.holder_keys, strict=True)
            ],
            number=setup.number,
            expiry=NOW + 3600,
            corrupted=setup.corrupted,
            absent=setup.absent,
            suite=setup.suite,
            authority=self.authority.public_key if setup.is_active else NO_KEY,
        )
        if setup.threshold is not None:
            record = replace(record, threshold=setup.threshold, packing=1)
        self.record: EpochRecord = record.signed(self.authority) if setup.is_active else record
        self.holders = {position: self.holder(position) for position in range(setup.holders)}
        self.stored = dict[ClientId, bytes]()

    @property
    def standing(self) -> Standing:
        return Standing(number=MADE, revoked=(5,)).signed(self.authority) if self.setup.is_active else NO_STANDING

    @property
    def policy(self) -> ClientPolicy:
        setup = self.setup
        return ClientPolicy(
            authority=self.record.authority if setup.is_active else None,
            suites=frozenset({setup.suite}),
            modes=frozenset({setup.mode}),
            minimum_holders=setup.holders,
            assumed_corrupted_holders=setup.corrupted,
            assumed_corrupted=setup.corrupted_clients,
            minimum_cohort=setup.minimum_cohort,
            minimum_modulus_bits=1,
            maximum_length=1 << 20,
            maximum_population=setup.capacity,
        )

    def clock(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    def holder(self, position: int) -> Holder:
        return self._holder(position, "")

    def holder_of_other_coins(self, position: int) -> Holder:
        """Return a second holder at a position, with other keys."""
        return self._holder(position, " again")

    def _holder(self, position: int, salt: str) -> Holder:
        key = self.holder_keys[position] if self.setup.is_active else None
        return self.holder_with(self.record, position, key=key, coins=self.setup.coins_of(f"holder {position}{salt}"))

    def holder_with(
        self, record: EpochRecord, position: int, *, key: SigningKey | None, coins: Coins | None = None
    ) -> Holder:
        return Holder(
            record,
            position,
            coins=coins or COINS,
            policy=self.policy,
            clock=self.clock,
            signing_key=key,
            ticks=lambda: self.now - self.stood_still,
        )

    def offer(self, setup: SumSetup | None = None) -> Offer:
        setup = setup or self.setup
        offer = plan_offer(
            self.record,
            [self.holders[position].keys for position in sorted(self.holders)],
            setup.subject,
            capacity=setup.capacity,
            minimum_cohort=setup.minimum_cohort,
            corrupted_clients=setup.corrupted_clients,
            bounds=setup.bounds,
            standing=self.standing,
        )
        return self.with_receipts(offer)

    def with_receipts(self, offer: Offer, positions: Iterable[int] | None = None) -> Offer:
        """Return an offer with receipts of some or all holders, regardless of its content."""
        agreement, found = offer.agree(), list[HolderSignature]()
        for position in sorted(self.holders) if positions is None else positions:
            key = self.holder_keys[position] if self.setup.is_active else None
            parts = position.to_bytes(2, "big"), offer.terms.digest
            signature = agreement.sign(key, Label.ONE_MESSAGE_OFFER_RECEIPT, *parts)
            found.append(HolderSignature(holder=position, signature=signature))
        return replace(offer, receipts=tuple(found))

    def certified(self, client: ClientId) -> tuple[SigningKey, Certificate]:
        key = self.setup.key_of(str(client))
        return key, issue_certificate(self.authority, client, key.public_key)

    def member(self, client: ClientId, **brought: Any) -> OneMessageMember:
        key, certificate = self.certified(client) if self.setup.is_active else (None, None)

        def store(record: bytes) -> None:
            self.stored[client] = record

        ledger = Ledger(TASK, store, self.stored.get(client), attempts=self.attempts)
        usual: dict[str, Any] = {
            "policy": self.policy,
            "ledger": for_any_task(ledger),
            "coins": self.setup.coins_of(f"{client} in round {self.setup.round_number}{self.salt}"),
            "clock": self.clock,
            "signing_key": key,
            "certificate": certificate,
        }
        return OneMessageMember(client, **{**usual, **brought})

    def update(self, client: ClientId, setup: SumSetup | None = None) -> LazyUpdate:
        setup = setup or self.setup
        return LazyUpdate(lambda: Update(setup.values_of(client), setup.model))

    def parts(self, clients: Iterable[ClientId] | None = None) -> list[Client]:
        chosen = self.setup.clients if clients is None else clients
        return [self.member(client).join(self.setup.subject, self.update(client)) for client in chosen]

    def upload(self, client: ClientId, offer: Offer | None = None, setup: SumSetup | None = None) -> bytes:
        setup = setup or self.setup
        encoded = (offer or self.offer()).encode()
        return self.member(client).join(setup.subject, self.update(client, setup)).answer(encoded)

    def stored_upload(self, client: ClientId) -> bytes:
        return ClientRecord.decode(self.stored[client]).upload

    def ideal(self, clients: Iterable[ClientId]) -> Aggregate:
        chosen = list(clients)
        return ideal_aggregate(self.setup.layout, [self.setup.values_of(client) for client in chosen])

    def server(
        self,
        offer: Offer | None = None,
        clients: Iterable[ClientId] | None = None,
        uploads: Mapping[ClientId, bytes] | None = None,
        setup: SumSetup | None = None,
    ) -> Tally:
        """Return a server that has accepted uploads, and delivered none."""
        setup = setup or self.setup
        offer, uploads = offer or self.offer(setup=setup), uploads or {}
        server = Tally(offer, COINS)
        self.ask(server, server.introduce())
        for client in setup.clients if clients is None else clients:
            server.receive_upload(client, uploads.get(client) or self.upload(client, offer, setup))
        return server

    def settled(self, server: Tally) -> Tally:
        self.ask(server, server.deliver())
        server.settle()
        return server

    def collected(self, *arguments: Any, **named: Any) -> Tally:
        """Return a server whose uploads were delivered to every holder; the arguments are those of ``server``."""
        return self.settled(self.server(*arguments, **named))

    def listed(self, server: Tally | None = None) -> Tally:
        """Return a server whose list is fixed and certified."""
        server = server or self.collected()
        server.fix_list()
        self.ask(server, server.requests())
        server.certify()
        return server

    def answered(self, server: Tally | None = None) -> Tally:
        server = self.listed(server)
        self.ask(server, server.requests())
        return server

    def session(
        self,
        ask_all: AskAll = lambda _: (),
        *,
        setup: SumSetup | None = None,
        helpers: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Server:
        """Open a session."""
        setup = setup or self.setup
        usual: dict[str, Any] = {
            "suite": setup.suite,
            "corrupted_holders": setup.corrupted,
            "absent_holders": setup.absent,
            "minimum_cohort": setup.minimum_cohort,
            "corrupted": setup.corrupted_clients,
            "bounds": setup.bounds,
        }
        brought: dict[str, Any] = {
            "record": self.record,
            "keys": tuple(self.holders[position].keys for position in sorted(self.holders)),
            "coins": setup.coins_of("the server"),
            "ask_all": ask_all,
            "standing": self.standing,
        }
        return open_session(
            setup.subject,
            OneMessageOptions(**{**usual, **settings}),
            frozenset(setup.clients),
            OneMessageHelpers(**{**brought, **(helpers or {})}),
        )

    def ask(self, server: Tally, requests: dict[int, bytes], absent: Iterable[int] = ()) -> None:
        for position, request in requests.items():
            if position in absent:
                server.lose(position)
            else:
                server.receive(position, self.holders[position].respond(request))
