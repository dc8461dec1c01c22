"""What a server has collected from its clients, each message checked before it changes anything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from secagg.blame import unverified
from secagg.errors import MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason, UnexpectedMessage, blaming
from secagg.identifiers import ClientId
from secagg.wire import MessageKind

from .advertisement import KeyAdvertisement, VerifiedAdvertiser
from .client_set import ClientSet
from .complaint import Complaint, check_complaint, faults_of
from .configuration import SessionConfiguration
from .masking import MaskedVector
from .open_round import OpenRound
from .round0_advertise_keys import PublishedRoster, check_advertisement
from .round1_share_keys import EncryptedShares, RelayedShares, deliver_shares, relayed_root
from .round2_masked_input import MaskedInput, check_masked_input, known_upload, upload_digest
from .round3_consistency_check import SurvivorSet, SurvivorSignature, check_survivor_signature
from .round4_unmasking import RevealedShares, endorsements_of, request_unmasking
from .server_record import ServerRecord
from .settled import Settled
from .transitions import SENT_INSTEAD, SERVER_TRANSITIONS, ServerState

_ORDER = tuple(ServerState)


class Collected:
    """What clients have sent, as it was sent in the record, and as it is used beside it."""

    def __init__(self, record: ServerRecord) -> None:
        """Start with what is in the record, which is trusted in its contents and not in its form."""
        self.record = record
        self.relayed = dict[int, RelayedShares]()
        self.answers = dict[int, RevealedShares]()
        self.complaints = dict[int, tuple[int, ...]]()
        self.settled: Settled | None = None
        self._owners = dict[bytes, ClientId]()
        self._verified = dict[ClientId, VerifiedAdvertiser]()
        self._rebuild()

    @property
    def configuration(self) -> SessionConfiguration:
        """What the session agrees on."""
        return self.record.plan.configuration

    @property
    def so_far(self) -> Settled:
        """What the closed rounds have settled.

        Raises:
            Misuse: no round is closed.
        """
        if self.settled is None:
            raise Misuse("there is no roster before the first round is closed")
        return self.settled

    # --- Messages -----------------------------------------------------------------------------------------------------

    def require_due(self, sender: ClientId, kind: MessageKind, opened: OpenRound | None) -> None:
        """Refuse what is not due, and what is not this client's to send.

        Args:
            opened: who takes part; in the first round there is none, and everybody may.

        Raises:
            UnexpectedMessage, PeerMisbehaved: nothing has changed.
        """
        state = self.record.state
        due = SERVER_TRANSITIONS.get(state)
        if due is None or kind not in {due[0], SENT_INSTEAD.get(state)}:
            raise UnexpectedMessage(
                expected=due[0].name if due else f"nothing, because the session is {state}", received=kind.name
            )
        position = None if opened is None else self.so_far.roster.position_of(sender)
        is_stranger = opened is not None and (position is None or position not in opened)
        if sender in self.record.excluded or is_stranger:
            raise PeerMisbehaved(
                f"{sender} is not, or no longer, part of this round",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        if kind is MessageKind.COMPLAINT and sender in self.record.views:
            # It had every seed, or it could not have uploaded; its root is not recovered, so nobody could judge it.
            raise PeerMisbehaved(
                f"{sender} complains and has uploaded; the upload counts",
                reason=Reason.ALREADY_ANSWERED,
                culprits=unverified(sender),
            )

    def known_by(self, kind: MessageKind, message: bytes) -> bytes:
        """Return the digest that a message is known by when it comes again."""
        if kind is MessageKind.MASKED_INPUT:
            with suppress(MalformedMessage):
                upload = MaskedInput.decode(message, self.so_far.roster)
                return known_upload(upload, upload_digest(upload.packed))
        return hashlib.sha256(message).digest()

    def accept(self, sender: ClientId, kind: MessageKind, message: bytes) -> PeerError | None:
        """Check a message that is due, and keep what is needed of it; return what it shows that others did wrong."""
        shown, known = None, b""
        match kind:
            case MessageKind.KEY_ADVERTISEMENT:
                self._accept_advertisement(sender, message)
            case MessageKind.ENCRYPTED_SHARES:
                self._relay(sender, message, is_checked=False)
                self.record.shares[sender] = message
            case MessageKind.MASKED_INPUT:
                known = self._accept_upload(sender, MaskedInput.decode(message, self.so_far.roster))
            case MessageKind.COMPLAINT:
                shown = self._accept_complaint(sender, message)
            case MessageKind.SURVIVOR_SIGNATURE:
                signed = SurvivorSignature.decode(message)
                check_survivor_signature(self.so_far, self.so_far.position_of(sender), signed)
                self.record.signatures[sender] = signed.signature
            case MessageKind.UNMASKING_SHARES:
                position = self.so_far.position_of(sender)
                self._take_answer(position, message)
                self.record.answers[sender] = message
            case _:
                raise Misuse(f"a server takes no {kind.name}")
        self.record.seen.setdefault(sender, {})[kind] = known or self.known_by(kind, message)
        return shown

    def _accept_upload(self, sender: ClientId, upload: MaskedInput) -> bytes:
        """Check an upload and add it; of the vector itself nothing is kept."""
        settled, position = self.so_far, self.so_far.position_of(sender)
        digest = check_masked_input(settled, position, upload)
        with blaming(*settled.said_by(position)):
            if self.record.total is None:
                self.record.total = MaskedVector(self.configuration)
            self.record.total.add_packed(*upload.packed)
        self.record.views[sender] = digest + upload.signature if upload.signature else b""
        return known_upload(upload, digest)

    def _accept_advertisement(self, sender: ClientId, message: bytes) -> None:
        advertisement = KeyAdvertisement.decode(message, self.configuration)
        if len(self.record.advertisements) >= self.configuration.maximum_population:
            raise PeerMisbehaved(
                f"{sender} advertises keys and {self.configuration.maximum_population} clients have done so",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        self._admit(sender, advertisement)
        self.record.advertisements[sender] = message

    def _admit(self, sender: ClientId, advertisement: KeyAdvertisement) -> None:
        if advertisement.client != sender:
            raise PeerMisbehaved(
                f"{sender} advertises keys for {advertisement.client}",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        self._verified[sender] = check_advertisement(self.configuration, self._owners, advertisement)
        self._owners |= dict.fromkeys(advertisement.public_keys, sender)

    def _relay(self, sender: ClientId, message: bytes, *, is_checked: bool) -> None:
        position, roster = self.so_far.position_of(sender), self.so_far.roster
        shares = EncryptedShares.decode(message, roster, position)
        identity = None if is_checked else self.so_far.advertisers[position].identity
        self.relayed[position] = RelayedShares(roster, position, shares, identity)

    def _accept_complaint(self, sender: ClientId, message: bytes) -> PeerError:
        position = self.so_far.position_of(sender)
        complaint = Complaint.decode(message, self.so_far, position)
        self._judge_complaint(position, complaint)
        self.record.complaints[sender] = message
        # It cannot upload any more; whoever it accuses goes on.
        self.record.excluded.add(sender)
        return faults_of(self.so_far, self.complaints, position, self.record.plan.corrupted)

    def _judge_complaint(self, position: int, complaint: Complaint) -> None:
        root = relayed_root(self.so_far, self.relayed, position)
        self.complaints[position] = check_complaint(self.so_far, position, root, complaint)

    def _take_answer(self, position: int, message: bytes) -> None:
        root = relayed_root(self.so_far, self.relayed, position)
        self.answers[position] = RevealedShares(self.so_far, position, root, message)

    # --- Rounds -------------------------------------------------------------------------------------------------------

    def settle(self, closed: ServerState) -> None:
        """Fix what a round that is closed determines: who advertised, who shared keys, or who contributed."""
        record = self.record
        match closed:
            case ServerState.AWAITING_KEY_ADVERTISEMENTS:
                sent = record.advertisements.items()
                advertised = {client: KeyAdvertisement.decode(item, self.configuration) for client, item in sent}
                published = PublishedRoster(self.configuration, record.plan.opening, advertised)
                clients = published.roster.clients
                self.settled = Settled(published, tuple(self._verified[client] for client in clients))
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                self._settle(self.so_far.set_of(record.shares), None)
            case ServerState.AWAITING_MASKED_INPUTS:
                self._settle(self.so_far.sharers, self.so_far.set_of(record.views))
            case _:
                pass

    def _settle(self, sharers: ClientSet, contributors: ClientSet | None) -> None:
        self.settled = Settled(self.so_far.published, self.so_far.advertisers, sharers, contributors)

    def _rebuild(self) -> None:
        """Follow the record round by round, as if its messages came again."""
        record, state = self.record, self.record.state
        reached = _ORDER.index(state)
        for client, sent in record.advertisements.items():
            self._admit(client, KeyAdvertisement.decode(sent, self.configuration))
        for closed in _ORDER[: min(reached, _ORDER.index(ServerState.AWAITING_UNMASKING_SHARES))]:
            self.settle(closed)
            if closed is ServerState.AWAITING_KEY_ADVERTISEMENTS:
                for client, sent in record.shares.items():
                    self._relay(client, sent, is_checked=True)
        for client, sent in record.complaints.items():
            position = self.so_far.position_of(client)
            self._judge_complaint(position, Complaint.decode(sent, self.so_far, position))
        for client, sent in record.answers.items():
            position = self.so_far.position_of(client)
            self._take_answer(position, sent)

    def open_round(self) -> OpenRound | None:
        """Return who takes part in the open round, how many answers are enough, and what its messages are."""
        settled, needed = self.settled, self.configuration.minimum_cohort
        if settled is None:
            return None
        match self.record.state:
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                everybody = range(settled.roster.population)
                return self._round_of(
                    everybody, needed, lambda position: settled.published.message_to(position).encode(), due=None
                )
            case ServerState.AWAITING_MASKED_INPUTS:
                relayed = dict(self.relayed)
                return self._round_of(
                    settled.sharers,
                    needed,
                    lambda position: deliver_shares(settled, relayed, position).encode(),
                    # Who uploads is who can show shares later, of everybody who shared.
                    due=tuple(settled.sharers),
                )
            case ServerState.AWAITING_SURVIVOR_SIGNATURES:
                context, contributors = settled.roster.context.tag, settled.contributors
                survivors = SurvivorSet(context=context, sharers=settled.sharers, contributors=contributors).encode()
                committee = sorted(position for position in settled.roster.committee if position in contributors)
                return self._round_of(committee, self.configuration.quorum, lambda _: survivors)
            case ServerState.AWAITING_UNMASKING_SHARES:
                signatures = self.record.signatures.items()
                by_position = {settled.position_of(client): signature for client, signature in signatures}
                endorsements, views = endorsements_of(settled.published, by_position), dict(self.record.views)
                return self._round_of(
                    settled.contributors,
                    self.configuration.threshold,
                    lambda position: request_unmasking(settled, views, endorsements, position).encode(),
                    due=tuple(settled.sharers),
                )
            case _:
                return None

    def _round_of(
        self, members: Iterable[int], needed: int, message: Callable[[int], bytes], due: Collection[int] | None = ()
    ) -> OpenRound:
        threshold, roster = self.configuration.threshold, self.so_far.roster
        opened = OpenRound(tuple(members), message, needed=needed, due=due, threshold=threshold, graph=roster.graph)
        for client in {*self.record.heard, *self.record.excluded}:
            if (position := roster.position_of(client)) is not None:
                opened.settle(position, has_answered=client in self.record.heard)
        return opened

    def forget(self) -> None:
        """Give up what nothing is recovered from any more."""
        self.answers.clear()
        self.record.answers.clear()
        self.relayed.clear()
        self.record.shares.clear()
