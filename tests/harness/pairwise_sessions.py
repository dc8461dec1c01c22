"""In-memory sessions of the pairwise-mask protocol, on a network that an adversary controls.

``InsecurePairwiseSession`` makes all parties: an authority, certified clients with repeatable coins, inputs from a
seed, and a server. Every message between them goes through ``route``, which first shows it to the adversary. The
adversary returns the messages to deliver: the message itself, an altered one, none, several, or earlier ones.

All cryptography is the library's, and nothing here protects data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from secagg.choices import Topology
from secagg.contract import Aggregate, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.ring import RingVector, low_bits
from secagg.crypto.secret import Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId, Party, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import Client, PairwiseMember
from secagg.protocols.pairwise_mask.client_record import Recorder
from secagg.protocols.pairwise_mask.configuration import (
    LEAST_CHECK_WORDS,
    NO_AUTHORITY,
    NO_DIGEST,
    Seat,
    SessionConfiguration,
)
from secagg.protocols.pairwise_mask.member import ClientState
from secagg.protocols.pairwise_mask.plan import PairwiseOptions, SessionPlan, plan_session
from secagg.protocols.pairwise_mask.relay import RelayedShares, Settled, deliver_shares
from secagg.protocols.pairwise_mask.round1_share_keys import EncryptedShares
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import AnsweredFor, Asked, UnmaskingShares, signed_unmasking
from secagg.protocols.pairwise_mask.session import Server, ServerState
from secagg.session.certificates import NO_STANDING, Authority, Certificate, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import uncharged
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, message_kind

SMALL_LAYOUT: Final = Layout((RingSegment(20, 6), RingSegment(7, 3)))
MUCH: Final = 1 << 40
"""Capacity of a decoder that accepts every sum."""


class OfferedSubject(Subject):
    """A subject with the terms digest of any offer."""

    @property
    def terms_digest(self) -> bytes:
        return self.terms

    @classmethod
    def of(cls, configuration: SessionConfiguration, capacity: int = MUCH) -> OfferedSubject:
        """Return the subject of an offer, which accepts all of it."""
        return cls(
            task=configuration.task,
            round_number=configuration.round_number,
            layout=configuration.layout,
            capacity=capacity,
            terms=configuration.application_digest,
            model_digest=configuration.model_digest,
        )


def plan_of(
    layout: Layout,
    coins: Coins,
    *,
    population: int,
    authority: bytes = NO_AUTHORITY,
    standing: Standing = NO_STANDING,
    **asked: Any,
) -> SessionPlan:
    """Plan a session for a layout, as a server does with these settings, or for another subject."""
    subject = OfferedSubject(
        task=asked.pop("task", b"federated training"),
        round_number=asked.pop("round_number", 0),
        layout=layout,
        capacity=1 << 62,
        terms=asked.pop("application_digest", NO_DIGEST),
        model_digest=asked.pop("model_digest", NO_DIGEST),
    )
    return plan_session(subject, PairwiseOptions(**asked), population, coins, authority, standing=standing)


MADE = 1_800_000_000
"""Time when the authority signed its roster, and the clients' time."""
NOW = datetime.fromtimestamp(MADE, UTC)


def is_spent(update: LazyUpdate) -> bool:
    return vars(update)["_make"] is None


def update_of(payload: Payload, model_digest: bytes = NO_DIGEST) -> LazyUpdate:
    return LazyUpdate(lambda: Update(payload, model_digest))


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSetup:
    """Setup of a session; two sessions of one setup are identical (in the classic suite)."""

    population: int = 8
    corrupted: int = 1
    dropped: int = 1
    late: int = 0
    mode: SecurityMode = SecurityMode.ACTIVE
    suite: Suite = Suite.CLASSIC
    topology: Topology = Topology.FULL
    layout: Layout = SMALL_LAYOUT
    minimum_cohort: int = 3
    privacy_bits: int = 100
    check_words: int = LEAST_CHECK_WORDS
    model_digest: bytes = NO_DIGEST
    round_number: int = 0
    attempt: int = 0
    seed: bytes = b"a session"
    """Determines all coins, inputs and identity keys."""

    @property
    def client_ids(self) -> tuple[ClientId, ...]:
        """Return the invited clients: increasing, with gaps, without zero."""
        return tuple(ClientId(1000 + 7 * index) for index in range(self.population))

    @property
    def policy(self) -> ClientPolicy:
        return ClientPolicy(
            suites=frozenset({self.suite}),
            modes=frozenset({self.mode}),
            minimum_cohort=self.minimum_cohort,
            minimum_threshold=2,
            minimum_modulus_bits=min(segment.modulus_bits for segment in self.layout.require_rings()),
            maximum_length=sum(segment.length for segment in self.layout.segments),
            maximum_population=self.population,
            assumed_corrupted=self.corrupted,
            privacy_bits=self.privacy_bits,
        )

    @property
    def subject(self) -> OfferedSubject:
        """Return the session's subject, as every client knows it."""
        return OfferedSubject(
            task=b"federated training",
            round_number=self.round_number,
            layout=self.layout,
            capacity=MUCH,
            terms=NO_DIGEST,
            model_digest=self.model_digest,
        )

    def next_attempt(self) -> SessionSetup:
        """Return the setup of a retry: the same clients, inputs and coins in another attempt."""
        return replace(self, attempt=self.attempt + 1)

    def coins_of(self, party: str) -> InsecureSeededCoins:
        """Return the coins of a party, from the start."""
        return InsecureSeededCoins(hashlib.sha256(self.seed + b"/" + party.encode()).digest())

    def plan(self, authority: bytes = NO_AUTHORITY) -> SessionPlan:
        """Choose safe parameters, as a server would."""
        settings = PairwiseOptions(
            corrupted=self.corrupted,
            dropped=self.dropped,
            late=self.late,
            mode=self.mode,
            suite=self.suite,
            topology=self.topology,
            minimum_cohort=self.minimum_cohort,
            privacy_bits=self.privacy_bits,
            check_words=self.check_words,
            attempt=self.attempt,
        )
        key = insecure_signing_key("authority", self.seed)
        standing = Standing(number=MADE, revoked=(5,)).signed(key) if authority == key.public_key else NO_STANDING
        return plan_session(
            self.subject, settings, self.population, self.coins_of("plan"), authority, standing=standing
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message in transit, as the network sees it."""

    state: ServerState
    """The round, in the server's numbering."""
    sender: Party
    receiver: Party
    message: bytes = field(repr=False)

    @property
    def kind(self) -> MessageKind:
        return message_kind(self.message)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for one client."""

    receiver: ClientId
    message: bytes


def outgoing(server: Server) -> list[Outgoing]:
    """Return a server's messages to all clients that may still answer, once it knows them."""
    messages = [(client, server.message_to(client)) for client in sorted(server.awaited or ())]
    return [Outgoing(client, message) for client, message in messages if message is not None]


def close_round(server: Server) -> list[Outgoing]:
    server.close_stage()
    return outgoing(server)


def unmask(server: Server, progress: Callable[[int, int], None] | None = None) -> Aggregate:
    """Close the last round if it is open, and return the sum."""
    if server.state is ServerState.AWAITING_UNMASKING_SHARES and server.stage is not None:
        server.close_stage()
    return server.release(progress).aggregate


def stored(server: Server) -> bytes:
    snapshot = server.snapshot()
    assert snapshot is not None
    return bytes(snapshot.expose())


def restored(snapshot: bytes, *, threads: int = 1) -> Server:
    return Server.restore(Secret("server session", snapshot), threads=threads)


Adversary = Callable[[Delivery], Iterable[Delivery]]
"""Called with each message before its delivery; returns the messages to deliver."""


def pass_on(delivery: Delivery) -> tuple[Delivery, ...]:
    return (delivery,)


class InsecurePairwiseSession:
    """All parties of one session, on a network that the adversary controls.

    Errors do not stop the session: those of clients are stored in ``errors``, those of the server in ``refusals``.
    """

    def __init__(
        self,
        setup: SessionSetup | None = None,
        *,
        adversary: Adversary = pass_on,
        policy: ClientPolicy | None = None,
        payload_of: Callable[[ClientId], Payload] | None = None,
    ) -> None:
        """Certify and enrol the clients, and start the server.

        Args:
            policy: of every client; by default those that the setup just meets.
            payload_of: the input of a client; by default uniform, from the setup's seed.
        """
        self.setup = setup or SessionSetup()
        self.adversary = adversary
        self.policy = policy or self.setup.policy
        self.authority_key = insecure_signing_key("authority", self.setup.seed)
        self.authority = Authority(self.authority_key.public_key)
        self.signing_keys = {
            client: insecure_signing_key(str(client), self.setup.seed) for client in self.setup.client_ids
        }
        self.payloads = {client: (payload_of or self._payload_of)(client) for client in self.setup.client_ids}
        self.server = Server(self.setup.plan(self.authority.public_key))
        self.clients = {client: self.enrol(client) for client in self.setup.client_ids}
        """Online clients. Remove a client with ``drop``; one that raised an error stays, but does not answer."""
        self.pending = [Outgoing(client, self.server.invitation) for client in self.clients]
        """The server's next messages, not yet delivered."""
        self.log = list[Delivery]()
        """All delivered messages, in order."""
        self._uploads = dict[tuple[ClientId, bytes], bytes]()
        self.errors = dict[ClientId, list[SecAggError]]()
        self.refusals = list[tuple[ClientId, SecAggError]]()

    # --- Who takes part -----------------------------------------------------------------------------------------------

    @property
    def client_ids(self) -> tuple[ClientId, ...]:
        """All invited clients."""
        return self.setup.client_ids

    def enrol(  # noqa: PLR0913 -- all but the first have defaults
        self,
        client: ClientId,
        *,
        policy: ClientPolicy | None = None,
        update: LazyUpdate | None = None,
        capacity: int = MUCH,
        coins: Coins | None = None,
        certificate: Certificate | None = None,
    ) -> Client:
        """Make a client like the session's, except for the given arguments; it starts offline."""
        member = self.member(client, policy=policy, coins=coins, certificate=certificate)
        return Client(member, replace(self.setup.subject, capacity=capacity), update or self.update_of(client))

    def update_of(self, client: ClientId) -> LazyUpdate:
        return update_of(self.payloads[client], self.setup.model_digest)

    def drop(self, *clients: ClientId) -> None:
        for client in clients:
            self.clients.pop(client, None)

    # --- The network --------------------------------------------------------------------------------------------------

    def deliver(self, messages: Iterable[Outgoing]) -> None:
        for outgoing in messages:
            self.route(
                Delivery(
                    state=self.server.state, sender=ServerId(), receiver=outgoing.receiver, message=outgoing.message
                )
            )

    def route(self, delivery: Delivery) -> None:
        """Show a message to the adversary, and deliver its result, with the following answers."""
        for altered in self.adversary(delivery):
            match altered.receiver:
                case ServerId():
                    self._hand_to_server(altered)
                case _:
                    self._hand_to_client(altered)

    def _hand_to_server(self, delivery: Delivery) -> None:
        if not isinstance(delivery.sender, ClientId):
            return
        self.log.append(delivery)
        try:
            self.server.receive(delivery.sender, delivery.message)
        except SecAggError as error:
            self.refusals.append((delivery.sender, error))

    def _hand_to_client(self, delivery: Delivery) -> None:
        client = self.clients.get(delivery.receiver) if isinstance(delivery.receiver, ClientId) else None
        if client is None:
            return
        self.log.append(delivery)
        try:
            # A platform keeps a message until it has arrived; the client itself returns its upload once.
            kept = self._uploads.get((client.client, delivery.message))
            answer = kept if kept and client.state is not ClientState.ABORTED else client.answer(delivery.message)
        except SecAggError as error:
            self.errors.setdefault(client.client, []).append(error)
            return
        if delivery.kind is MessageKind.DELIVERED_SHARES:
            self._uploads[client.client, delivery.message] = answer
        self.route(Delivery(state=self.server.state, sender=client.client, receiver=ServerId(), message=answer))

    # --- The rounds ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.deliver(self.pending)
        self.pending = close_round(self.server)

    def replan(self, configuration: SessionConfiguration) -> None:
        """Restart with an unplanned configuration."""
        self.server = Server(replace(self.setup.plan(self.authority.public_key), configuration=configuration))
        self.pending = [Outgoing(client, self.server.invitation) for client in self.clients]

    def reach(self, state: ServerState) -> None:
        """Continue until the server awaits this state's messages; the requests for them are ``pending``."""
        while self.server.state is not state:
            self.step()

    def finish(self) -> Aggregate:
        """Run to the end, and return the sum.

        Raises:
            ThresholdNotMet, PeerMisbehaved: as the server does.
        """
        self.reach(ServerState.AWAITING_UNMASKING_SHARES)
        self.deliver(self.pending)
        self.pending = []
        return unmask(self.server)

    def take(self, client: ClientId) -> bytes:
        for outgoing in self.pending:
            if outgoing.receiver == client:
                self.pending.remove(outgoing)
                return outgoing.message
        raise KeyError(client)

    def sent_by(self, client: ClientId, kind: MessageKind) -> bytes:
        return [d.message for d in self.log if d.sender == client and d.kind is kind][-1]

    def sent_to(self, client: ClientId, kind: MessageKind) -> bytes:
        return [d.message for d in self.log if d.receiver == client and d.kind is kind][-1]

    def member(  # noqa: PLR0913 -- all but the first have defaults
        self,
        client: ClientId,
        *,
        policy: ClientPolicy | None = None,
        coins: Coins | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        recording: Callable[[Coins], Recorder] | None = None,
    ) -> PairwiseMember:
        """Return a client's member object, with its identity key, for an adversary that corrupts it."""
        key, active = signing_key or self.signing_keys[client], self.setup.mode is SecurityMode.ACTIVE
        certified = certificate or issue_certificate(self.authority_key, client, key.public_key)
        return PairwiseMember(
            client,
            policy=policy or self.policy,
            coins=coins or self.setup.coins_of(str(client)),
            authority=self.authority if active else None,
            signing_key=key if active else None,
            certificate=certified if active else None,
            charge=uncharged,
            recording=recording,
            clock=lambda: NOW,
        )

    def settled(self, sharers: Iterable[int] | None = None) -> Settled:
        """Return the result of the server's closed rounds, or the result with other sharers."""
        settled = self.server.settled
        return settled if sharers is None else replace(settled, known_sharers=settled.roster.set_of(sharers))

    def relayed_root(self, client: ClientId) -> bytes:
        return self.server.relayed_root(client)

    def delivery(
        self, receiver: int, sharers: Iterable[int] | None = None, sent: Mapping[int, bytes] = MappingProxyType({})
    ) -> bytes:
        """Return a consistent delivery of shares, for sharers or with the server's choice of messages."""
        roster, kind = self.server.roster, MessageKind.ENCRYPTED_SHARES
        relayed = {
            position: RelayedShares(roster, position, EncryptedShares.decode(message, Seat(roster, position)), None)
            for position, client in enumerate(roster.clients)
            for message in [sent.get(position) or self.sent_by(client, kind)]
        }
        chosen = range(roster.population) if sharers is None else sharers
        return deliver_shares(self.settled(chosen), relayed, receiver).encode()

    def signed_again(self, client: ClientId, answer: bytes) -> bytes:
        """Sign an altered answer, like a lying sender; in semi_honest mode nothing is signed."""
        settled = self.settled()
        answered = AnsweredFor.by(settled.roster, settled.sharers, settled.contributors, settled.position_of(client))
        decoded = UnmaskingShares.decode(answer, Asked(settled.roster, answered))
        if not settled.is_active:
            return answer
        parts = signed_unmasking(
            settled.roster.context, client, settled.contributors, self.relayed_root(client), decoded
        )
        return replace(decoded, signature=self.signing_keys[client].sign(Label.SIGNED_UNMASKING, *parts)).encode()

    def sum_of(self, clients: Iterable[ClientId]) -> Aggregate:
        """Return the sum of these clients' inputs, computed from the inputs."""
        chosen = sorted(clients)
        return ideal_aggregate(self.setup.layout, [self.payloads[client] for client in chosen], [1] * len(chosen))

    def _payload_of(self, client: ClientId) -> Payload:
        return insecure_payload(self.setup.layout, self.setup.seed + client.encode())


def insecure_signing_key(owner: str, seed: bytes) -> SigningKey:
    with Secret("signing key", hashlib.sha256(b"identity/" + owner.encode() + b"/" + seed).digest()) as secret:
        return SigningKey(secret)


def insecure_payload(layout: Layout, seed: bytes) -> Payload:
    """Return an input that is uniform over the layout's rings, from a public seed."""
    values = list[RingVector]()
    for index, segment in enumerate(layout.require_rings()):
        stream = hashlib.shake_256(seed + index.to_bytes(4, "big")).digest(8 * segment.length)
        words = np.frombuffer(stream, dtype="<u8") & np.uint64(low_bits(segment.modulus_bits))
        values.append(words.astype(segment.ring.word))
    return Payload(layout, tuple(values))


def same_sum(one: Aggregate, other: Aggregate) -> bool:
    counts = one.contributors == other.contributors
    pairs: Sequence[tuple[RingVector, RingVector]] = list(zip(one.values, other.values, strict=True))
    return counts and all(np.array_equal(left, right) for left, right in pairs)
