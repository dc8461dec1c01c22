"""Server side of one attempt, as a session: relays messages, adds uploads and removes the masks that remain.

The server has no input of its own. It checks a client's message before anything changes, and accepts it once
(``secagg.session.stages``). Uploads are added on arrival, so memory is a few vectors for any number of clients.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, ClassVar, Final, NamedTuple

from secagg.blame import unverified
from secagg.choices import Topology
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Confined, Secret
from secagg.declared import CLIENT, At, Field, Message, choice, fixed, nested, optional, variable
from secagg.errors import (
    NOBODY,
    AuthenticationFailed,
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
from secagg.privacy.client_noise import ClientNoise
from secagg.session.certificates import NO_STANDING, Standing, VerifiedIdentity
from secagg.session.roles import Released, Stage, Subject
from secagg.session.stages import Checked, StagedServerSession
from secagg.tables import mapped
from secagg.wire import MessageKind, Reader, Writer, message_kind

from .configuration import DIGEST_BYTES, NO_AUTHORITY, Roster, Seat, SessionConfiguration, certain, noise_of
from .graph import Graph, require_number
from .member import Transitions, advance
from .plan import PairwiseOptions, SessionPlan
from .recovery import Recovery, count_revealed_sets, release_sum, remove_masks
from .relay import (
    PublishedRoster,
    RelayedShares,
    RevealedShares,
    Settled,
    admit_advertisement,
    authenticate_advertisement,
    check_complaint,
    check_masked_input,
    check_survivor_signature,
    deliver_shares,
    endorsements_of,
    faults_of,
    relayed_root,
    request_unmasking,
)
from .round0_advertise_keys import KeyAdvertisement, VerifiedAdvertiser
from .round1_share_keys import EncryptedShares
from .round2_masked_input import Complaint, MaskedInput, MaskedVector, upload_digest
from .rounds3_4_unmasking import SurvivorSet, SurvivorSignature

# --- States -----------------------------------------------------------------------------------------------------------


class ServerState(StrEnum):
    """The message that a server waits for, from all clients that send it before the round closes."""

    AWAITING_KEY_ADVERTISEMENTS = "awaiting_key_advertisements"
    AWAITING_ENCRYPTED_SHARES = "awaiting_encrypted_shares"
    AWAITING_MASKED_INPUTS = "awaiting_masked_inputs"
    AWAITING_SURVIVOR_SIGNATURES = "awaiting_survivor_signatures"
    """Only in an active session."""
    AWAITING_UNMASKING_SHARES = "awaiting_unmasking_shares"
    COMPLETED = "completed"
    ABORTED = "aborted"


SERVER_TRANSITIONS: Final[Transitions[ServerState]] = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: (
        MessageKind.KEY_ADVERTISEMENT,
        frozenset({ServerState.AWAITING_ENCRYPTED_SHARES}),
    ),
    ServerState.AWAITING_ENCRYPTED_SHARES: (
        MessageKind.ENCRYPTED_SHARES,
        frozenset({ServerState.AWAITING_MASKED_INPUTS}),
    ),
    ServerState.AWAITING_MASKED_INPUTS: (
        MessageKind.MASKED_INPUT,
        frozenset({ServerState.AWAITING_SURVIVOR_SIGNATURES, ServerState.AWAITING_UNMASKING_SHARES}),
    ),
    ServerState.AWAITING_SURVIVOR_SIGNATURES: (
        MessageKind.SURVIVOR_SIGNATURE,
        frozenset({ServerState.AWAITING_UNMASKING_SHARES}),
    ),
    ServerState.AWAITING_UNMASKING_SHARES: (MessageKind.UNMASKING_SHARES, frozenset({ServerState.COMPLETED})),
}
"""The message that each state accepts from each client, and the states that closing the round leads to."""

SENT_INSTEAD: Final[Mapping[ServerState, MessageKind]] = {ServerState.AWAITING_MASKED_INPUTS: MessageKind.COMPLAINT}
"""Message that a leaving client may send instead of the expected one."""

# --- The server -------------------------------------------------------------------------------------------------------


class Advertising(NamedTuple):
    """A client's advertisement, and the identity that signed it."""

    message: bytes
    advertisement: KeyAdvertisement
    identity: VerifiedIdentity | None


class Sharing(NamedTuple):
    """A client's shares for its neighbours."""

    message: bytes
    shares: RelayedShares


class Uploading(NamedTuple):
    """A client's upload, and the evidence that the client sent it: empty in semi_honest mode."""

    upload: MaskedInput
    evidence: bytes


class Complaining(NamedTuple):
    """A client's complaint, and the positions of the clients that it accuses."""

    message: bytes
    accused: tuple[int, ...]


class Answering(NamedTuple):
    """A client's shares of its neighbours' secrets."""

    message: bytes
    revealed: RevealedShares


Content = Advertising | Sharing | Uploading | Complaining | SurvivorSignature | Answering
"""A checked answer that has not changed anything yet."""
_PER_CLIENT: Final = 1 << 12  # maximum bytes of a client's shares for one neighbour, sealed or opened
STAGES: Final = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: Stage(name="advertise keys", takes_update=False, per_client=0),
    ServerState.AWAITING_ENCRYPTED_SHARES: Stage(name="share keys", takes_update=False, per_client=_PER_CLIENT),
    ServerState.AWAITING_MASKED_INPUTS: Stage(name="masked input", takes_update=True),
    ServerState.AWAITING_SURVIVOR_SIGNATURES: Stage(name="consistency check", takes_update=False, per_client=0),
    ServerState.AWAITING_UNMASKING_SHARES: Stage(name="unmasking", takes_update=False, per_client=_PER_CLIENT),
}
_COUNTED: Final = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: "complete the key exchange",
    ServerState.AWAITING_ENCRYPTED_SHARES: "share keys",
    ServerState.AWAITING_MASKED_INPUTS: "upload",
    ServerState.AWAITING_SURVIVOR_SIGNATURES: "sign the list of clients",
}
_STATES: Final = tuple(ServerState)
_FINAL_STATES: Final = frozenset({ServerState.COMPLETED, ServerState.ABORTED})
_CACHED_MESSAGES: Final = 8
_UPLOAD: Final = Writer(MessageKind.MASKED_INPUT).finish()


class Server(StagedServerSession[Content]):
    """Server side of one session. It does no I/O."""

    def __init__(
        self,
        plan: SessionPlan,
        invited: frozenset[ClientId] | None = None,
        *,
        threads: int = 1,
        noise: ClientNoise | None = None,
        kept: ServerRecord | None = None,
    ) -> None:
        """Start a session, or continue one from its record.

        Args:
            threads: number of threads that remove masks.
        """
        require_number("threads", threads, 1)
        configuration = plan.configuration
        self._kept, self._threads = kept or ServerRecord(plan), threads
        super().__init__(STAGES[self.state], configuration.encode(), invited, configuration.minimum_cohort)
        self.revealed = frozenset[frozenset[ClientId]]()
        """The sets of clients whose sums the finished session reveals; normally just one set."""
        self.noise = noise
        """Noise that its clients add; unknown after a restart."""
        self._said, self._heard, self._out = self._kept.said, self._kept.heard, self._kept.out
        self._judged = 0, False
        """The last number of advertisers that was checked, and whether they are enough."""
        self._known: Settled | None = None
        self._owners = dict[bytes, ClientId]()
        self._verified = dict[ClientId, VerifiedAdvertiser]()
        self._relayed = dict[int, RelayedShares]()
        self._answers = dict[int, RevealedShares]()
        self._complaints = dict[int, tuple[int, ...]]()
        self._rebuild()
        self._open = self._messages = self._open_round()
        due = self._invited if self._open is None else set(self._open)
        self._waiting = None if due is None else set(due) - self._said.keys() - self._out

    # --- What is known ------------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> SessionConfiguration:
        return self._kept.plan.configuration

    @property
    def state(self) -> ServerState:
        return self._kept.state

    @property
    def settled(self) -> Settled:
        if self._known is None:
            raise Misuse("the roster does not exist before the first round is closed")
        return self._known

    @property
    def roster(self) -> Roster:
        return self.settled.roster

    @property
    def contributors(self) -> frozenset[ClientId]:
        return frozenset(self._kept.views)

    def evidence_of(self, client: ClientId) -> bytes:
        """Return the digest of a contributor's upload, and its signature; empty in semi_honest mode."""
        return self._kept.views[client]

    def relayed_root(self, client: ClientId) -> bytes:
        return relayed_root(self.settled, self._relayed, self.settled.position_of(client))

    def masked_vector(self, upload: bytes) -> RingVector:
        """Return the first masked segment of an upload as the server sees it; for illustrations."""
        whole = MaskedVector(self.configuration)
        whole.add_packed(*MaskedInput.decode(upload, self.roster).packed)
        return whole.vectors[0][: self.configuration.layout.require_rings()[0].length]

    # --- Answers ------------------------------------------------------------------------------------------------------

    @property
    def is_signed(self) -> bool:
        return self.configuration.is_active

    def _digest(self, sender: ClientId, message: bytes) -> bytes:
        # A signed vector is hashed once: ``_check`` returns the digest of a client's first upload.
        if not self.is_signed or not message.startswith(_UPLOAD):
            return super()._digest(sender, message)
        with suppress(PeerError):
            if sender in self._kept.views:
                upload = MaskedInput.decode(message, self.settled.roster)
                self.settled.require_own(self.settled.position_of(sender), upload, "masked its input for")
                return _digest_of_evidence(upload_digest(upload.packed) + upload.signature)
        return b""

    def _check(self, sender: ClientId, message: bytes) -> Checked[Content]:
        due, kind = SERVER_TRANSITIONS[self.state][0], message_kind(message)
        # Only the sender can make another valid signature, so a repeated message must have the same signature.
        match kind:
            case MessageKind.COMPLAINT if SENT_INSTEAD.get(self.state) is kind:
                return Checked(self._checked_complaint(sender, message))
            case _ if kind is not due:
                raise UnexpectedMessage(expected=due.name, received=kind.name)
            case MessageKind.KEY_ADVERTISEMENT:
                return Checked(self._checked_advertisement(sender, message))
            case MessageKind.ENCRYPTED_SHARES:
                return Checked(self._checked_shares(sender, message))
            case MessageKind.MASKED_INPUT:
                return self._checked_upload(sender, message)
            case MessageKind.SURVIVOR_SIGNATURE:
                return Checked(self._checked_signature(sender, message))
            case _:
                return Checked(self._checked_answer(sender, message))

    def _checked_advertisement(self, sender: ClientId, message: bytes) -> Advertising:
        advertisement = KeyAdvertisement.decode(message, self.configuration)
        if advertisement.client != sender:
            raise PeerMisbehaved(
                f"{sender} advertises keys in the name of {advertisement.client}",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        return Advertising(message, advertisement, authenticate_advertisement(self.configuration, advertisement))

    def _checked_shares(self, sender: ClientId, message: bytes, *, is_restored: bool = False) -> Sharing:
        settled, position = self.settled, self.settled.position_of(sender)
        shares = EncryptedShares.decode(message, Seat(settled.roster, position))
        identity = None if is_restored else settled.advertisers[position].identity
        return Sharing(message, RelayedShares(settled.roster, position, shares, identity))

    def _checked_upload(self, sender: ClientId, message: bytes) -> Checked[Content]:
        upload = MaskedInput.decode(message, self.settled.roster)
        evidence = check_masked_input(self.settled, self.settled.position_of(sender), upload)
        return Checked(Uploading(upload, evidence), _digest_of_evidence(evidence) if evidence else None)

    def _checked_complaint(self, sender: ClientId, message: bytes) -> Complaining:
        settled, position = self.settled, self.settled.position_of(sender)
        complaint = Complaint.decode(message, Seat(settled.roster, position))
        return Complaining(message, check_complaint(settled, self._relayed, position, complaint))

    def _checked_signature(self, sender: ClientId, message: bytes) -> SurvivorSignature:
        signed = SurvivorSignature.decode(message)
        check_survivor_signature(self.settled, self.settled.position_of(sender), signed)
        return signed

    def _checked_answer(self, sender: ClientId, message: bytes) -> Answering:
        position = self.settled.position_of(sender)
        return Answering(message, RevealedShares(self.settled, self._relayed, position, message))

    def _take(self, sender: ClientId, content: Content) -> None:
        self._keep(sender, content)
        if self._open is not None and sender in self._kept.answered:
            self._open.count(sender)

    def _keep(self, sender: ClientId, content: Content) -> None:
        kept = self._kept
        match content:
            case Advertising(message, advertisement, identity):
                self._admit(sender, advertisement, identity)
                kept.advertisements[sender] = message
            case Sharing(message, shares):
                self._relayed[self.settled.position_of(sender)], kept.shares[sender] = shares, message
            case Uploading(upload, evidence):
                total = MaskedVector(self.configuration) if kept.total is None else kept.total
                with blaming(*self.settled.said_by(self.settled.position_of(sender))):
                    total.add_packed(*upload.packed)
                kept.total, kept.views[sender] = total, evidence
            case Complaining(message, accused):
                position = self.settled.position_of(sender)
                self._complaints[position], kept.complaints[sender] = accused, message
                # The sender can no longer upload; the clients that it accuses stay.
                self._leave(sender)
                self._record(faults_of(self.settled, self._complaints, position, kept.plan.corrupted), who=sender)
            case SurvivorSignature():
                kept.signatures[sender] = content.signature
            case Answering(message, revealed):
                position = self.settled.position_of(sender)
                revealed.require_in_range(self.settled.said_by(position))
                self._answers[position], kept.answers[sender] = revealed, message

    def _admit(self, sender: ClientId, advertisement: KeyAdvertisement, identity: VerifiedIdentity | None) -> None:
        most = self.configuration.maximum_population
        if len(self._kept.advertisements.keys() | {sender}) > most:
            raise PeerMisbehaved(
                f"{sender} advertises keys, but the maximum of {most} clients already did",
                reason=Reason.NOT_ELIGIBLE,
                culprits=NOBODY,
            )
        self._verified[sender] = admit_advertisement(self.configuration, self._owners, advertisement, identity)
        self._owners |= dict.fromkeys(advertisement.public_keys, sender)

    # --- Rounds -------------------------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        is_first, most = self._open is None, self.configuration.maximum_population
        return super()._is_full() or (is_first and len(self._kept.advertisements) >= most)

    def _is_enough(self) -> bool:
        if self._open is not None:
            return self._open.is_enough
        heard = len(self._kept.advertisements)
        if heard != self._judged[0]:
            self._judged = heard, self._is_protected(heard)
        return self._judged[1]

    def _require_enough(self, stage: Stage) -> None:
        del stage  # The state is more specific.
        if (must := _COUNTED.get(self.state)) is None:
            # Recovery decides how many shares each secret needs.
            return
        is_signing = self.state is ServerState.AWAITING_SURVIVOR_SIGNATURES
        needed = self.configuration.quorum if is_signing else self.configuration.minimum_cohort
        if (present := len(self._kept.answered)) < needed:
            raise ThresholdNotMet(needed=needed, present=present, what="clients", must=must)
        if self.state is ServerState.AWAITING_KEY_ADVERTISEMENTS and not self._is_protected(present):
            more = range(present + 1, self.configuration.maximum_population)
            needed = present + 1 + bisect_left(more, x=True, key=self._is_protected)
            why = ", for the planned graph and threshold"
            raise ThresholdNotMet(needed=needed, present=present, what="clients", must=must, why=why)

    def _is_protected(self, advertised: int) -> bool:
        """Whether the parameters are safe for this number of advertisers and the dropouts that may still happen."""
        plan, missing = self._kept.plan, self.configuration.maximum_population - advertised
        try:
            self.configuration.require_population(
                advertised,
                corrupted=plan.corrupted,
                privacy_bits=plan.privacy_bits,
                dropped=max(0, plan.dropped - missing),
            )
        except InvalidParameters:
            return False
        return True

    def _next(self) -> tuple[Stage, Mapping[ClientId, bytes]] | None:
        closed, chosen = self.state, None
        if closed is ServerState.AWAITING_UNMASKING_SHARES:
            return None
        if closed is ServerState.AWAITING_MASKED_INPUTS:
            chosen = ServerState.AWAITING_UNMASKING_SHARES
            if self.configuration.is_active:
                chosen = ServerState.AWAITING_SURVIVOR_SIGNATURES
        self._settle(closed)
        self._kept.state = advance(SERVER_TRANSITIONS, closed, SERVER_TRANSITIONS[closed][0], chosen)
        self._open = certain(self._open_round())
        return STAGES[self.state], self._open

    def _settle(self, closed: ServerState) -> None:
        """Fix what a closed round determines: the advertisers, sharers or contributors."""
        kept = self._kept
        match closed:
            case ServerState.AWAITING_KEY_ADVERTISEMENTS:
                sent = kept.advertisements.items()
                advertised = {client: KeyAdvertisement.decode(item, self.configuration) for client, item in sent}
                published = PublishedRoster(self.configuration, kept.plan.opening, advertised)
                self._known = Settled(published, tuple(self._verified[client] for client in published.roster.clients))
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                self._known = replace(self.settled, known_sharers=self.settled.set_of(kept.shares))
            case ServerState.AWAITING_MASKED_INPUTS:
                self._known = replace(self.settled, known_contributors=self.settled.set_of(kept.views))
                # Check this before requesting any share: the answers would give the sum of each part.
                self.roster.require_cohort(self.settled.contributors, _COUNTED[closed])
            case _:
                pass

    def _rebuild(self) -> None:
        """Replay the record round by round, as if its messages arrived again."""
        kept, reached = self._kept, _STATES.index(self.state)
        for client, sent in kept.advertisements.items():
            self._keep(client, self._checked_advertisement(client, sent))
        for closed in _STATES[: min(reached, _STATES.index(ServerState.AWAITING_UNMASKING_SHARES))]:
            self._settle(closed)
            if closed is ServerState.AWAITING_KEY_ADVERTISEMENTS:
                for client, sent in kept.shares.items():
                    self._keep(client, self._checked_shares(client, sent, is_restored=True))
        for client, sent in kept.complaints.items():
            self._keep(client, self._checked_complaint(client, sent))
        for client, sent in kept.answers.items():
            self._keep(client, self._checked_answer(client, sent))

    def _open_round(self) -> OpenRound | None:
        """Return the open round: its members, their messages, and the answers it needs."""
        settled, kept, configuration = self._known, self._kept, self.configuration
        if settled is None:
            return None
        needed = configuration.minimum_cohort
        match self.state:
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                everybody = range(settled.roster.population)
                return self._round_of(
                    everybody, needed, lambda position: settled.published.message_to(position).encode(), due=None
                )
            case ServerState.AWAITING_MASKED_INPUTS:
                relayed = dict(self._relayed)
                return self._round_of(
                    settled.sharers,
                    needed,
                    lambda position: deliver_shares(settled, relayed, position).encode(),
                    # All sharers count, because only those that upload can reveal shares later.
                    due=tuple(settled.sharers),
                )
            case ServerState.AWAITING_SURVIVOR_SIGNATURES:
                context, contributors = settled.roster.context.tag, settled.contributors
                survivors = SurvivorSet(context=context, sharers=settled.sharers, contributors=contributors).encode()
                committee = sorted(position for position in settled.roster.committee if position in contributors)
                return self._round_of(committee, configuration.quorum, lambda _: survivors)
            case _:
                signatures = {settled.position_of(client): signed for client, signed in kept.signatures.items()}
                endorsements, views = endorsements_of(settled.published, signatures), dict(kept.views)
                return self._round_of(
                    settled.contributors,
                    configuration.threshold,
                    lambda position: request_unmasking(settled, views, endorsements, position).encode(),
                    due=tuple(settled.sharers),
                )

    def _round_of(
        self, positions: Iterable[int], needed: int, message: Callable[[int], bytes], due: Collection[int] | None = ()
    ) -> OpenRound:
        roster, threshold = self.roster, self.configuration.threshold
        members = {roster.clients[position]: position for position in positions}
        opened = OpenRound(members, message, needed=needed, due=due, threshold=threshold, graph=roster.graph)
        for client in self._kept.answered:
            if client in members:
                opened.count(client)
        return opened

    # --- The end ------------------------------------------------------------------------------------------------------

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        """Recover and remove the masks that remain, and return the sum.

        Implements: [BIK+17] Fig. 4, Round 4, server.
        Security: called once per session, for the one set of survivors that the clients agreed on.
        """
        settled, total = self.settled, certain(self._kept.total)
        revealed = count_revealed_sets(settled)
        recovery = Recovery(settled, self._relayed, self._answers, self._complaints, self._kept.plan.corrupted)
        try:
            remove_masks(total, recovery, progress, threads=self._threads)
        finally:
            self._record(*recovery.faults)
        aggregate = release_sum(settled, total)
        self._kept.state = advance(SERVER_TRANSITIONS, self.state, MessageKind.UNMASKING_SHARES)
        self.revealed = revealed
        return Released(
            aggregate=aggregate,
            counted=self.contributors,
            left_out={},
            revealed=revealed,
            unbounded=aggregate.layout.ring_positions,
        )

    def _wipe(self) -> None:
        kept = self._kept
        if kept.state is not ServerState.COMPLETED:
            kept.state = ServerState.ABORTED
            if kept.total is not None:
                kept.total.wipe()
        kept.total, self._open = None, None
        for held in (self._answers, self._relayed, kept.answers, kept.shares):
            held.clear()

    def snapshot(self) -> Secret | None:
        """Return what ``restore`` needs to create a server that continues from here; ``faults`` are not included.

        Security: see ``ServerRecord``. The sum of the uploads in it is masked; the answers of the last round are not.
        """
        with self._lock:
            return None if self._stage is None else Secret("server session", self._kept.encode())

    @classmethod
    def restore(cls, snapshot: Secret, invited: frozenset[ClientId] | None = None, *, threads: int = 1) -> Server:
        kept = ServerRecord.decode(bytes(snapshot.expose()))
        try:
            return cls(kept.plan, invited, threads=threads, kept=kept)
        except (PeerMisbehaved, AuthenticationFailed) as error:
            raise MalformedMessage(f"the snapshot is inconsistent: {error}", reason=Reason.NOT_CANONICAL) from None


class OpenRound(Confined, Mapping[ClientId, bytes]):
    """The messages of a round after the first, by client, each created on request; counts whether answers suffice.

    For each client that shared its secrets, enough neighbours must answer, because they hold the shares. Answers are
    counted on arrival, so the check costs the same for any number of clients.
    """

    def __init__(  # noqa: PLR0913 -- what a round is
        self,
        members: Mapping[ClientId, int],
        message: Callable[[int], bytes],
        *,
        needed: int,
        due: Collection[int] | None,
        threshold: int,
        graph: Graph,
    ) -> None:
        """Open a round without answers.

        Args:
            members: the participating clients and their positions.
            message: creates the message for a position, always the same bytes.
            needed: number of answers needed to close the round.
            due: positions that need answers from ``threshold`` neighbours; None for all positions that answer.
        """
        self._members, self._answers = members, 0
        self._message = lru_cache(maxsize=_CACHED_MESSAGES)(message)
        self._graph, self._threshold, self._is_mutual = graph, threshold, due is None
        # In a full graph all other clients are neighbours, so a count suffices.
        is_sparse = graph.topology is Topology.SPARSE
        self._needed = needed if is_sparse or due == () else max(needed, threshold + 1)
        self._around = dict.fromkeys(range(graph.population), 0) if is_sparse and due != () else dict[int, int]()
        """Number of neighbours that have answered, by position; only in a sparse graph."""
        self._due = set[int](due or ())
        self._short = len(self._due) if self._around else 0
        """Number of positions in ``due`` for which too few neighbours have answered."""

    def __getitem__(self, client: ClientId) -> bytes:
        return self._message(self._members[client])

    def __contains__(self, client: object) -> bool:
        return client in self._members

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def count(self, client: ClientId) -> None:
        """Count a participating client's answer; call it once per client."""
        position = self._members[client]
        self._answers += 1
        if not self._around:
            return
        if self._is_mutual:
            self._due.add(position)
            self._short += self._around[position] < self._threshold
        for neighbour in self._graph.neighbours(position):
            self._around[neighbour] += 1
            self._short -= neighbour in self._due and self._around[neighbour] == self._threshold

    @property
    def is_enough(self) -> bool:
        return self._answers >= self._needed and not self._short


_KEPT: Final = mapped(CLIENT, variable((1 << 32) - 1))


def _digest_of_evidence(evidence: bytes) -> bytes:
    """Return what identifies a signed upload; the bytes it is a digest of are not a message of any kind."""
    return hashlib.sha256(_UPLOAD + evidence).digest()


def _read_total(reader: Reader, at: At) -> MaskedVector:
    configuration = at.before["plan"].configuration
    total = MaskedVector(configuration)
    total.add_packed(reader.view(configuration.masked_bytes))
    return total


_TOTAL: Final = Field(lambda writer, total: writer.borrowed(b"".join(total.pack())), _read_total, "the sum so far")


@dataclass(slots=True)
class ServerRecord(Message):
    """Everything that a server remembers about a session, in an encoding from which another server can continue.

    It contains the sum of the uploads rather than the uploads. A record is not public: with the answers of the last
    round it determines the server's result. Decoding checks the format but not the signatures, which were checked
    before, so store it where only the server can write.

    Claim PM-11: the model checker stops a server's process at any time and resumes from the stored record.
    """

    kind: ClassVar = MessageKind.SERVER_SNAPSHOT
    state: Annotated[ServerState, choice(_STATES)] = field(
        default=ServerState.AWAITING_KEY_ADVERTISEMENTS, kw_only=True
    )
    plan: Annotated[SessionPlan, nested(SessionPlan)]
    advertisements: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    shares: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    views: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    """The contributors so far; in active mode with the digest and signature of each upload, as evidence."""
    complaints: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    signatures: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    answers: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    said: Annotated[dict[ClientId, bytes], _KEPT] = field(default_factory=dict[ClientId, bytes], repr=False)
    heard: Annotated[dict[ClientId, set[bytes]], mapped(CLIENT, mapped(fixed(DIGEST_BYTES)))] = field(
        default_factory=dict[ClientId, set[bytes]], repr=False
    )
    out: Annotated[set[ClientId], mapped(CLIENT)] = field(default_factory=set[ClientId])
    """Clients that left or were excluded; they count as dropped from then on."""
    total: Annotated[MaskedVector | None, optional(_TOTAL)] = field(default=None, repr=False)

    def __post_init__(self) -> None:
        is_active = self.plan.configuration.is_active
        if self.state in _FINAL_STATES or (self.state is ServerState.AWAITING_SURVIVOR_SIGNATURES and not is_active):
            raise InvalidParameters(f"a server of this mode cannot be restored from state {self.state}")

    @property
    def answered(self) -> Mapping[ClientId, bytes]:
        """Messages of the current state, by the client that sent them."""
        sent = self.advertisements, self.shares, self.views, self.signatures
        return dict(zip(_STATES, sent, strict=False)).get(self.state, self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseHelpers:
    """A server's resources; this protocol has no helpers."""

    coins: Coins
    authority: bytes = NO_AUTHORITY
    standing: Standing = NO_STANDING
    """The head of the authority's roster; clients require a recent one."""
    threads: int = 1


def open_session(
    subject: Subject, settings: PairwiseOptions, invited: frozenset[ClientId] | None, helpers: PairwiseHelpers
) -> Server:
    """Open a session on the server.

    Raises:
        InvalidParameters: no safe session exists; the message says what to relax.
    """
    population = settings.population if invited is None else len(invited)
    if population is None:
        raise InvalidParameters("set settings.population to the number of invited clients, or name them")
    plan = settings.plan(subject, population, helpers.authority, helpers.coins, helpers.standing)
    noise = noise_of(plan.configuration, settings, settings.corrupted)
    return Server(plan, invited, threads=helpers.threads, noise=noise)
