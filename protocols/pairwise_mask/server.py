"""The server of one attempt: it relays, it adds, and it removes what masks are left; it never holds an input.

The platform delivers messages with ``receive`` and decides with ``close_round`` when to wait no longer; there is no
clock here. A message that is wrong excludes its sender and not the session. Uploads are added as they arrive, so memory
is a few vectors however many clients there are.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from threading import RLock
from typing import TypeVar

from secagg.contract import Aggregate
from secagg.crypto.secret import Confined
from secagg.errors import (
    AuthenticationFailed,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.session.certificates import VerifiedIdentity
from secagg.session.roles import Turnout
from secagg.wire import MessageKind, message_kind, owned_bytes

from .advertisement import KeyAdvertisement, VerifiedAdvertiser
from .client_set import ClientSet
from .configuration import SessionConfiguration
from .masking import MaskedVector
from .open_round import OpenRound
from .plan import SessionPlan
from .recovery import Recovery, remove_masks, transcript_of
from .revealed_sets import revealed_sets
from .roster import Roster
from .round0_advertise_keys import PublishedRoster, check_advertisement
from .round1_share_keys import EncryptedShares, RelayedShares, deliver_shares
from .round2_masked_input import MaskedInput, accept_masked_input
from .round3_consistency_check import SurvivorSet, SurvivorSignature, check_survivor_signature
from .round4_unmasking import RevealedShares, endorsements_of, request_unmasking
from .server_record import ServerRecord
from .transitions import SERVER_TRANSITIONS, ServerState

_LOG = logging.getLogger(__name__)
_FINAL = frozenset({ServerState.COMPLETED, ServerState.ABORTED})
Known = TypeVar("Known")
"""Whatever a closed round has fixed."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for one client."""

    receiver: ClientId
    message: bytes = field(repr=False)


class Server(Confined):
    """The server of a session, without input or output of its own."""

    def __init__(self, plan: SessionPlan, *, threads: int = 1) -> None:
        """Start a session; send ``offer`` to every client that is invited."""
        self._record = ServerRecord(plan)
        self._threads = threads
        self._owners = dict[bytes, ClientId]()
        self._verified = dict[ClientId, VerifiedAdvertiser]()
        self._committee = frozenset[int]()
        self._published: PublishedRoster | None = None
        self._advertisers = list[VerifiedAdvertiser]()
        self._relayed = dict[int, RelayedShares]()
        self._sharers: ClientSet | None = None
        self._contributors: ClientSet | None = None
        self._answers = dict[int, RevealedShares]()
        self._open: OpenRound | None = None
        self._judged = 0, False
        """The number of advertisers that was judged last, and whether they are enough."""
        self._lock = RLock()
        self.faults = list[PeerError]()
        """What clients did wrong without ending the session, each with its culprits."""
        self.revealed: frozenset[frozenset[ClientId]] = frozenset()
        """The sets of clients whose sums the finished session reveals; one set, if all went well."""

    # --- The session --------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> SessionConfiguration:
        """What the session agrees on."""
        return self._record.plan.configuration

    @property
    def offer(self) -> bytes:
        """The first message, the same for every client."""
        return self.configuration.encode()

    @property
    def state(self) -> ServerState:
        """What is awaited."""
        return self._record.state

    @property
    def roster(self) -> Roster:
        """Who advertised, once that round is closed."""
        if self._published is None:
            raise Misuse("there is no roster before the first round is closed")
        return self._published.roster

    @property
    def awaited(self) -> frozenset[ClientId]:
        """Who may still send the message that is due; before the roster is fixed nobody knows."""
        with self._lock:
            if self._open is None:
                return frozenset()
            return frozenset(self.roster.clients[position] for position in self._open.awaited)

    @property
    def turnout(self) -> Turnout:
        """Whether closing the round now can succeed; counted, and asked after each answer.

        In the first round it is never complete, because the platform alone knows whom it invited.
        """
        with self._lock:
            if self._open is not None:
                return self._open.turnout
            heard = len(self._record.advertisements)
            if heard >= self.configuration.maximum_population or self.state in _FINAL:
                return Turnout.COMPLETE
            return Turnout.ENOUGH if self._is_population(heard) else Turnout.TOO_FEW

    def _is_population(self, advertised: int) -> bool:
        """Whether a roster of so many clients is safe; asked for each count once."""
        if advertised < self.configuration.minimum_cohort:
            return False
        if advertised != self._judged[0]:
            plan = self._record.plan
            try:
                self.configuration.require_population(
                    advertised, corrupted=plan.corrupted, privacy_bits=plan.privacy_bits, dropped=plan.dropped
                )
            except InvalidParameters:
                self._judged = advertised, False
            else:
                self._judged = advertised, True
        return self._judged[1]

    def has_settled(self, client: ClientId) -> bool:
        """Whether a client sent what is due, or may send nothing more."""
        return client in self._record.heard or client in self._record.excluded

    @property
    def contributors(self) -> frozenset[ClientId]:
        """Whose uploads were taken so far."""
        return frozenset(self._record.views)

    def drop(self, client: ClientId) -> None:
        """Await a client no more and take nothing more from it; what it uploaded stays in the sum."""
        with self._lock:
            self._record.excluded.add(client)
            self._settle(client)

    def _settle(self, client: ClientId) -> None:
        """Count a client out that has sent what is due, or may not send it any more."""
        if self._open is not None and (position := self.roster.position_of(client)) is not None:
            self._open.settle(position, has_answered=client in self._record.heard)

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take a message from a client that the transport has authenticated.

        Raises:
            UnexpectedMessage: it is not due now; nothing has changed.
            MalformedMessage: its header does not read; nothing has changed. If the rest does not read, as below.
            PeerError: it is wrong. Its sender is excluded from what follows, and nothing else has changed; for a second
                message that differs from the first, nothing at all has, and the first one counts.
        """
        if type(sender) is not ClientId:
            raise Misuse(f"a sender is a ClientId, as the transport authenticated it; got {type(sender).__name__}")
        with self._lock, blaming(sender):
            self._receive(sender, owned_bytes(message))

    def _receive(self, sender: ClientId, message: bytes) -> None:
        kind = message_kind(message)
        digest = hashlib.sha256(message).digest()
        before = self._record.seen.get(sender, {}).get(kind)
        if before is not None:
            if compare_digest(before, digest):
                return
            raise PeerMisbehaved(
                f"{sender} sent a second {kind.name} that differs from the first; the first one counts",
                reason=Reason.ALREADY_ANSWERED,
                culprits={sender},
            )
        due = SERVER_TRANSITIONS.get(self.state)
        if due is None or kind is not due[0]:
            raise UnexpectedMessage(
                expected=due[0].name if due else f"nothing, because the session is {self.state}",
                received=kind.name,
            )
        if sender in self._record.excluded or not self._may_send(sender):
            raise PeerMisbehaved(
                f"{sender} is not, or no longer, part of this round", reason=Reason.NOT_ELIGIBLE, culprits={sender}
            )
        try:
            self._accept(kind, sender, message)
        except PeerError as error:
            self._record.excluded.add(sender)
            self._settle(sender)
            self.faults.append(error)
            _LOG.warning("%s is excluded: %s", sender, error)
            raise
        self._record.seen.setdefault(sender, {})[kind] = digest
        self._settle(sender)

    def close_round(self) -> Iterator[Outgoing]:
        """Wait for nobody else, and return the messages of the next round, made one at a time.

        Take a snapshot before the first of them is sent; ``outgoing`` gives them again.

        Raises:
            ThresholdNotMet: too few clients are left; the session is over and nothing is released.
            Misuse: there is no round to close; the last one is closed by ``unmask``.
        """
        with self._lock:
            self._close()
            self._open = self._opened()
            return self.outgoing()

    def _close(self) -> None:
        match self.state:
            case ServerState.AWAITING_KEY_ADVERTISEMENTS:
                self._publish_roster()
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                self._require(len(self._relayed), "clients that shared keys")
                self._sharers = self.roster.set_of(self._relayed)
                self._record.state = ServerState.AWAITING_MASKED_INPUTS
            case ServerState.AWAITING_MASKED_INPUTS:
                self._require(len(self._record.views), "contributors")
                self._contributors = self._set_of_clients(self._record.views)
                active = self.configuration.mode is SecurityMode.ACTIVE
                self._record.state = (
                    ServerState.AWAITING_SURVIVOR_SIGNATURES if active else ServerState.AWAITING_UNMASKING_SHARES
                )
            case ServerState.AWAITING_SURVIVOR_SIGNATURES:
                self._require(len(self._record.signatures), "signatures of the committee", self.configuration.quorum)
                self._record.state = ServerState.AWAITING_UNMASKING_SHARES
            case ServerState.AWAITING_UNMASKING_SHARES:
                raise Misuse("this is the last round; call unmask()")
            case _:
                raise Misuse(f"the session is {self.state}")

    def outgoing(self) -> Iterator[Outgoing]:
        """Return the messages of the open round, made one at a time; as often as asked, always the same bytes."""
        if self._open is None:
            return iter(())
        clients, opened = self.roster.clients, self._open
        return (Outgoing(clients[position], opened.message(position)) for position in opened.members)

    def message_to(self, client: ClientId) -> bytes | None:
        """Return the open round's message for one client; None if it has no part in the round, or was excluded."""
        with self._lock:
            if client in self._record.excluded or self.state in _FINAL:
                return None
            if self._open is None:
                return self.offer
            position = self.roster.position_of(client)
            return self._open.message(position) if position is not None and position in self._open else None

    def _opened(self) -> OpenRound | None:
        """Return who takes part in the open round, how many answers are enough, and what its messages are."""
        needed = self.configuration.minimum_cohort
        match self.state:
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                published = self._agreed(self._published)
                everybody = range(self.roster.population)
                return self._round_of(
                    everybody, needed, lambda position: published.message_to(position).encode(), due=None
                )
            case ServerState.AWAITING_MASKED_INPUTS:
                sharers = self._agreed(self._sharers)
                relayed = dict(self._relayed)
                return self._round_of(
                    sharers,
                    needed,
                    lambda position: deliver_shares(self.roster, sharers, relayed, position).encode(),
                    # Who uploads is who can show shares later, of everybody who shared.
                    due=tuple(sharers),
                )
            case ServerState.AWAITING_SURVIVOR_SIGNATURES:
                sharers, contributors = self._agreed(self._sharers), self._agreed(self._contributors)
                context = self.roster.context.digest
                survivors = SurvivorSet(context=context, sharers=sharers, contributors=contributors).encode()
                committee = sorted(self._committee.intersection(contributors))
                return self._round_of(committee, self.configuration.quorum, lambda _: survivors)
            case ServerState.AWAITING_UNMASKING_SHARES:
                return self._unmasking_round(self._agreed(self._sharers), self._agreed(self._contributors))
            case _:
                return None

    def _round_of(
        self, members: Iterable[int], needed: int, message: Callable[[int], bytes], due: Collection[int] | None = ()
    ) -> OpenRound:
        threshold = self.configuration.threshold
        opened = OpenRound(
            tuple(members), message, needed=needed, due=due, threshold=threshold, graph=self.roster.graph
        )
        for client in {*self._record.heard, *self._record.excluded}:
            if (position := self.roster.position_of(client)) is not None:
                opened.settle(position, has_answered=client in self._record.heard)
        return opened

    def unmask(self, progress: Callable[[int, int], None] | None = None) -> Aggregate:
        """Recover the masks that are left, remove them, and return the sum.

        Implements: [BIK+17] Fig. 4, Round 4, server.
        Args:
            progress: called with how many masks are removed and how many there are.
        Raises:
            ThresholdNotMet: too few answered; nothing is released.
            PeerMisbehaved: wrong shares, or a sum that does not agree with its check words; nothing is released.
        Security: once for each session, whose one set of survivors the clients agreed on.
        """
        with self._lock:
            if self.state is not ServerState.AWAITING_UNMASKING_SHARES:
                raise Misuse(f"there is nothing to unmask yet; the session is {self.state}")
            try:
                aggregate = self._unmask(progress or _ignore)
            except BaseException:
                self._abort()
                raise
            self._record.state = ServerState.COMPLETED
            self._forget()
            return aggregate

    def abort(self) -> None:
        """End the session without a result."""
        self._abort()

    # --- Serialisation ------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<Server, {self.state}>"

    def snapshot(self) -> bytes:
        """Return all that ``restore`` takes to make a server that goes on from here; ``faults`` are left out.

        Security: see ``server_record``. The sum of the uploads in it is masked; the answers of the last round are not.
        """
        with self._lock:
            return self._record.encode()

    @classmethod
    def restore(cls, snapshot: bytes, *, threads: int = 1) -> Server:
        """Go on from a snapshot, in whichever process."""
        record = ServerRecord.decode(snapshot)
        server = cls(record.plan, threads=threads)
        server._record = record
        try:
            server._rebuild()
        except (PeerMisbehaved, AuthenticationFailed) as error:
            raise MalformedMessage(f"the snapshot contradicts itself: {error}", reason=Reason.NOT_CANONICAL) from None
        return server

    def _rebuild(self) -> None:
        record, order = self._record, list(ServerState)
        reached = order.index(record.state)
        for client, sent in record.advertisements.items():
            self._admit(client, KeyAdvertisement.decode(sent, self.configuration))
        if reached < order.index(ServerState.AWAITING_ENCRYPTED_SHARES):
            return
        self._fix_roster()
        for client, sent in record.shares.items():
            position = self._position_of(client)
            message = EncryptedShares.decode(sent, self.roster, position)
            self._relayed[position] = RelayedShares(self.roster, position, message, None)
        if reached >= order.index(ServerState.AWAITING_MASKED_INPUTS):
            self._sharers = self.roster.set_of(self._relayed)
        if reached >= order.index(ServerState.AWAITING_SURVIVOR_SIGNATURES):
            self._contributors = self._set_of_clients(record.views)
        for client, sent in record.answers.items():
            position = self._position_of(client)
            self._answers[position] = RevealedShares(
                self.roster, self._agreed(self._sharers), self._agreed(self._contributors), position, sent
            )
        self._open = self._opened()

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def _may_send(self, client: ClientId) -> bool:
        if self._open is None:
            return True
        position = self.roster.position_of(client)
        return position is not None and position in self._open

    def _accept(self, kind: MessageKind, sender: ClientId, message: bytes) -> None:
        match kind:
            case MessageKind.KEY_ADVERTISEMENT:
                self._accept_advertisement(sender, message)
            case MessageKind.ENCRYPTED_SHARES:
                position = self._position_of(sender)
                shares = EncryptedShares.decode(message, self.roster, position)
                self._relayed[position] = RelayedShares(self.roster, position, shares, self._identity_of(position))
                self._record.shares[sender] = message
            case MessageKind.MASKED_INPUT:
                self._accept_upload(sender, message)
            case MessageKind.SURVIVOR_SIGNATURE:
                position = self._position_of(sender)
                identity = self._identity_of(position)
                if identity is None:
                    raise Misuse("there are no signatures in semi_honest mode")
                signed = SurvivorSignature.decode(message)
                sharers, contributors = self._agreed(self._sharers), self._agreed(self._contributors)
                check_survivor_signature(self.roster, sharers, contributors, position, signed, identity)
                self._record.signatures[sender] = signed.signature
            case MessageKind.UNMASKING_SHARES:
                position = self._position_of(sender)
                sharers, contributors = self._agreed(self._sharers), self._agreed(self._contributors)
                self._answers[position] = RevealedShares(self.roster, sharers, contributors, position, message)
                self._record.answers[sender] = message
            case _:
                raise Misuse(f"a server takes no {kind.name}")

    def _accept_advertisement(self, sender: ClientId, message: bytes) -> None:
        advertisement = KeyAdvertisement.decode(message, self.configuration)
        if len(self._record.advertisements) >= self.configuration.maximum_population:
            raise PeerMisbehaved(
                f"{sender} advertises keys and {self.configuration.maximum_population} clients have done so",
                reason=Reason.NOT_ELIGIBLE,
                culprits={sender},
            )
        self._admit(sender, advertisement)
        self._record.advertisements[sender] = message

    def _admit(self, sender: ClientId, advertisement: KeyAdvertisement) -> None:
        if advertisement.client != sender:
            raise PeerMisbehaved(
                f"{sender} advertises keys for {advertisement.client}",
                reason=Reason.NOT_ELIGIBLE,
                culprits={sender},
            )
        self._verified[sender] = check_advertisement(self.configuration, self._owners, advertisement)
        self._owners |= dict.fromkeys(advertisement.public_keys, sender)

    def _accept_upload(self, sender: ClientId, message: bytes) -> None:
        position = self._position_of(sender)
        upload = MaskedInput.decode(message, self.roster)
        if self._record.total is None:
            self._record.total = MaskedVector(self.configuration)
        sharers, identity = self._agreed(self._sharers), self._identity_of(position)
        accept_masked_input(self.roster, sharers, position, upload, identity, self._record.total)
        self._record.views[sender] = upload.signature

    # --- Closing rounds -----------------------------------------------------------------------------------------------

    def _publish_roster(self) -> None:
        advertised = len(self._record.advertisements)
        self._require(advertised, "advertisers")
        plan = self._record.plan
        try:
            self.configuration.require_population(
                advertised, corrupted=plan.corrupted, privacy_bits=plan.privacy_bits, dropped=plan.dropped
            )
        except BaseException:
            self._abort()
            raise
        self._fix_roster()
        self._record.state = ServerState.AWAITING_ENCRYPTED_SHARES

    def _fix_roster(self) -> None:
        advertised = {
            client: KeyAdvertisement.decode(sent, self.configuration)
            for client, sent in self._record.advertisements.items()
        }
        self._published = PublishedRoster(self.configuration, self._record.plan.opening, advertised)
        self._advertisers = [self._verified[client] for client in self.roster.clients]
        if self.configuration.mode is SecurityMode.ACTIVE:
            self._committee = frozenset(self.roster.committee)

    def _unmasking_round(self, sharers: ClientSet, contributors: ClientSet) -> OpenRound:
        published, record = self._agreed(self._published), self._record
        signatures = {self._position_of(client): signature for client, signature in record.signatures.items()}
        endorsements = endorsements_of(published, signatures)
        views = dict(record.views)
        return self._round_of(
            contributors,
            self.configuration.threshold,
            lambda position: request_unmasking(self.roster, contributors, views, endorsements, position).encode(),
            due=tuple(sharers),
        )

    # --- Unmasking ----------------------------------------------------------------------------------------------------

    def _unmask(self, progress: Callable[[int, int], None]) -> Aggregate:
        sharers, contributors = self._agreed(self._sharers), self._agreed(self._contributors)
        total = self._agreed(self._record.total)
        self._require(len(contributors), "contributors")
        revealed = revealed_sets(transcript_of(self.roster, sharers, contributors))
        sizes = sorted(map(len, revealed))
        _LOG.info("the session reveals the sums of %d sets of clients, of sizes %s", len(sizes), sizes)
        smallest = sizes[0] if sizes else 0
        self._require(smallest, "contributors in the smallest set whose sum would be revealed")
        recovery = Recovery(self.roster, self._advertisers, self._relayed, sharers, contributors, self._answers)
        try:
            remove_masks(total, recovery, progress, threads=self._threads)
        finally:
            self.faults += recovery.faults
        total.check(self.roster.context)
        if not len(contributors) <= total.weight <= len(contributors) * self.configuration.maximum_weight:
            raise PeerMisbehaved(
                f"{len(contributors)} contributors have a total weight of {total.weight}, which weights of 1 to "
                f"{self.configuration.maximum_weight} do not give",
                reason=Reason.INPUT_OUT_OF_RANGE,
            )
        self.revealed = revealed
        return Aggregate(self.configuration.layout, total.inputs(), len(contributors), total.weight)

    # --- Small things -------------------------------------------------------------------------------------------------

    def _set_of_clients(self, clients: Iterable[ClientId]) -> ClientSet:
        return self.roster.set_of(self._position_of(client) for client in clients)

    @staticmethod
    def _agreed(value: Known | None) -> Known:
        """Return what a closed round has fixed."""
        if value is None:
            raise InternalError("a round reads what no round before it has fixed")
        return value

    def _require(self, present: int, what: str, needed: int | None = None) -> None:
        needed = self.configuration.minimum_cohort if needed is None else needed
        if present < needed:
            round_name = str(self.state)
            self._abort()
            raise ThresholdNotMet(needed=needed, present=present, what=what, round_name=round_name)

    def _identity_of(self, position: int) -> VerifiedIdentity | None:
        return self._advertisers[position].identity

    def _position_of(self, client: ClientId) -> int:
        position = self.roster.position_of(client)
        if position is None:
            raise PeerMisbehaved(f"{client} is not on the roster", reason=Reason.NOT_ELIGIBLE, culprits={client})
        return position

    def _abort(self) -> None:
        self._record.state = ServerState.ABORTED
        self._forget()

    def _forget(self) -> None:
        self._open = None
        self._answers.clear()
        self._record.answers.clear()
        self._relayed.clear()
        self._record.shares.clear()
        if self.state is ServerState.ABORTED and self._record.total is not None:
            self._record.total.wipe()
        self._record.total = None


def _ignore(done: int, count: int) -> None:
    """Show no progress."""
