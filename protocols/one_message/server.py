"""The server of one sum: a state machine between clients, who speak once, and holders, who answer requests.

It adds an upload only after the holders' receipts for it, and keeps none after that: its memory is that of one sum and
of the uploads whose receipts are due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from secagg.contract import Aggregate
from secagg.contract.pieces import Adder, Cut, LocalSum
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined
from secagg.errors import (
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId, HolderId
from secagg.wire import MessageKind, message_kind

from .configuration import NO_SUM, SUM_ID_BYTES, Offer
from .cut import epoch_ring, joined, key_of
from .lattice.masks import OpenedSum, WrongSecret
from .messages import (
    Answer,
    CertifiedList,
    Delivery,
    HolderSignature,
    Listed,
    ListSignature,
    Receipt,
    Upload,
    UploadList,
    Verdict,
    verify_upload,
)
from .parameters import ThresholdRule
from .receipts import Pending, Receipts, who_is_away
from .recovery import recover, require_answer, set_aside


class State(StrEnum):
    """What a server awaits."""

    COLLECTING = "collecting"
    CERTIFYING = "certifying"
    OPENING = "opening"
    ENDED = "ended"


TRANSITIONS: Final[Mapping[State, tuple[frozenset[MessageKind], frozenset[State]]]] = {
    State.COLLECTING: (
        frozenset({MessageKind.ONE_MESSAGE_UPLOAD, MessageKind.ONE_MESSAGE_RECEIPT}),
        frozenset({State.CERTIFYING, State.OPENING, State.ENDED}),
    ),
    State.CERTIFYING: (
        frozenset({MessageKind.ONE_MESSAGE_LIST_SIGNATURE}),
        frozenset({State.OPENING, State.ENDED}),
    ),
    State.OPENING: (frozenset({MessageKind.ONE_MESSAGE_ANSWER}), frozenset({State.ENDED})),
    State.ENDED: (frozenset(), frozenset()),
}
"""For each state the messages that it takes, and the states that follow it."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A sum, and who is in it."""

    aggregate: Aggregate
    counted: frozenset[ClientId]


class Server(Confined):
    """One sum. Who carries its messages is another's business: holders stand, or are clients themselves."""

    def __init__(self, offer: Offer, sum_id: bytes, adding: Callable[[Cut], Adder] = LocalSum) -> None:
        """Begin.

        Args:
            sum_id: names this sum, and no other of the epoch; under ``one_answer`` the terms of the offer name it too.
            adding: who adds the uploads; this process, unless it is said.
        """
        self.agreement, self.offer, self.terms = offer.agree(), offer.encode(), offer.terms
        self.agreement.require_terms(offer.terms)
        if len(sum_id) != SUM_ID_BYTES or sum_id == NO_SUM or offer.terms.sum_id not in (NO_SUM, sum_id):
            raise InvalidParameters(f"a sum is named by {SUM_ID_BYTES} bytes that are not all zero, as in its terms")
        self._sum_id, self.state = sum_id, State.COLLECTING
        self._ring = epoch_ring(self.agreement.parameters, self.agreement.epoch.seed)
        self._adder = adding(self.agreement.cut)
        self._receipts = Receipts(self.agreement.record.corrupted, offer.configuration.corrupted_clients)
        self._taken, self._listed = dict[ClientId, bytes](), dict[ClientId, bytes]()
        self._pending, self._delivered = dict[ClientId, Pending](), dict[ClientId, Pending]()
        self._said, self._answers = dict[tuple[State, int], bytes](), dict[int, Answer]()
        self._list: UploadList | None = None
        self.left_out, self.faults, self.refusals = dict[ClientId, PeerError](), list[PeerError](), dict[int, str]()
        self.receipts = dict[int, list[bytes]]()
        """By position, for whoever is shown that a holder lied: with its answer and those of T + c that agree."""

    # --- Uploads and their receipts -----------------------------------------------------------------------------------

    @property
    def taken(self) -> frozenset[ClientId]:
        """Whose uploads were taken, whether or not they are counted."""
        return frozenset(self._taken)

    @property
    def listed(self) -> frozenset[ClientId]:
        """Whose uploads every present holder has accepted so far."""
        return frozenset(self._listed)

    @property
    def waiting(self) -> int:
        """How many uploads wait for a delivery."""
        return len(self._pending)

    @property
    def present(self) -> frozenset[int]:
        """The holders that were not lost."""
        return frozenset(range(self.agreement.epoch.count)) - self._receipts.absent

    def receive_upload(self, sender: ClientId, message: bytes) -> None:
        """Take an upload from whom the transport says it is; the same bytes again change nothing.

        Raises:
            PeerError: it is not taken, and nothing has changed.
        """
        self._require(MessageKind.ONE_MESSAGE_UPLOAD)
        with blaming(sender):
            upload = Upload.decode(message)
            digest, shares = verify_upload(self.agreement, self.terms, sender, upload)
            if self._taken.get(sender, known := digest + upload.signature) != known:  # one may sign in many ways
                raise PeerMisbehaved(f"{sender} sent a second upload; the first counts", reason=Reason.ALREADY_ANSWERED)
            if sender in self._taken:
                if upload.vector:  # It may have said before that its pieces are stored, and they were not.
                    self._adder.keep(sender, upload.pieces, upload.vector)
                return
            if len(self._taken) >= self.agreement.parameters.capacity:
                raise PeerMisbehaved("the list is full", reason=Reason.BUFFER_FULL)
            kept = self._adder.keep(sender, upload.pieces, upload.vector)
        self._taken[sender], self._pending[sender] = known, Pending(upload.pieces, kept, digest, shares)

    def introduce(self) -> dict[int, bytes]:
        """Return what every holder is told before its first delivery: the offer. Each answers with an empty receipt."""
        self._require(MessageKind.ONE_MESSAGE_RECEIPT)
        return dict.fromkeys(sorted(self.present), self.offer)

    def require_holders(self) -> None:
        """Refuse to go on with so few holders that no sum could be opened, naming who is missing."""
        self._require_enough(max(self.agreement.record.threshold, self.agreement.record.quorum), self.present)

    def deliver(self) -> dict[int, bytes]:
        """Return what every present holder is sent of the uploads that wait; call ``settle`` when all have answered."""
        self._require(MessageKind.ONE_MESSAGE_RECEIPT)
        if self._delivered:
            raise Misuse("settle the last delivery first")
        self._delivered, self._pending = self._pending, {}
        self._said = {key: said for key, said in self._said.items() if key[0] is not State.COLLECTING}
        return {
            position: Delivery(
                t0=self.agreement.t0, shares=tuple(pending.shares[position] for pending in self._delivered.values())
            ).encode()
            for position in sorted(self.present)
        }

    def lose(self, position: int) -> None:
        """Ask a holder no more in this sum while uploads are collected: it is lost, late or refused."""
        if self.state is State.COLLECTING:
            self._receipts.absent.add(position)

    def settle(self) -> None:
        """Add the delivered uploads that every present holder accepts; a holder whose receipt is missing is lost."""
        self._require(MessageKind.ONE_MESSAGE_RECEIPT)
        delivered, self._delivered = self._delivered, {}
        for position in self.present:
            if any(position not in pending.verdicts for pending in delivered.values()):
                self.lose(position)
        left_out, faults = self._receipts.settle({client: one.verdicts for client, one in delivered.items()})
        self.faults += faults
        for client, pending in delivered.items():
            if (error := left_out.get(client) or self._add(client, pending)) is not None:
                self.left_out[client] = error
                self.faults.append(error)

    def _add(self, client: ClientId, pending: Pending) -> PeerError | None:
        """Add an upload, or return what is wrong with its vector, of which holders know the digest alone."""
        try:
            with blaming(client):
                self._adder.add(client, pending.pieces, pending.kept)
        except MalformedMessage as error:
            return error
        self._listed[client] = pending.digest
        return None

    # --- Holders ------------------------------------------------------------------------------------------------------

    def receive(self, position: int, message: bytes) -> None:
        """Take what a holder says; the same bytes again change nothing.

        Raises:
            PeerError: it is wrong, and was not taken.
        """
        with blaming(HolderId(position)):
            kind = message_kind(message)
            self._require(kind)
            if position not in self.present:
                raise PeerMisbehaved("the holder was lost", reason=Reason.NOT_ELIGIBLE)
            if (said := self._said.get((self.state, position))) == message:
                return
            if said is not None:
                raise PeerMisbehaved(f"{HolderId(position)} says two things", reason=Reason.ALREADY_ANSWERED)
            match kind:
                case MessageKind.ONE_MESSAGE_RECEIPT:
                    self._take_receipt(position, message)
                case MessageKind.ONE_MESSAGE_LIST_SIGNATURE:
                    signed = ListSignature.decode(message)
                    self._require_signed(position, signed, Label.ONE_MESSAGE_SIGNED_LIST)
                case _:
                    answer = Answer.decode(message)
                    self._require_signed(position, answer, Label.ONE_MESSAGE_ANSWER)
                    require_answer(self.agreement.parameters, answer.sums)
                    self._answers[position] = answer
            self._said[self.state, position] = message

    def _take_receipt(self, position: int, message: bytes) -> None:
        receipt = Receipt.decode(message)
        self._require_signed(position, receipt, Label.ONE_MESSAGE_RECEIPT)
        due = [one.digest for one in self._delivered.values()]
        judged = [one.upload for one in receipt.judged]
        if len(judged) != len(due) or any(
            upload != wanted and one.verdict is not Verdict.NOT_AUTHENTIC
            for upload, wanted, one in zip(judged, due, receipt.judged, strict=True)
        ):
            raise PeerMisbehaved("the receipt is for another delivery", reason=Reason.WRONG_SESSION)
        for pending, one in zip(self._delivered.values(), receipt.judged, strict=True):
            pending.verdicts[position] = one.verdict
        self.receipts.setdefault(position, []).append(message)

    def _require_signed(self, position: int, said: Receipt | ListSignature | Answer, label: Label) -> None:
        if said.t0 != self.agreement.t0 or said.holder != position:
            raise PeerMisbehaved("the message is of another session or holder", reason=Reason.WRONG_SESSION)
        if not isinstance(said, Receipt) and said.upload_list != self.upload_list.digest:
            raise PeerMisbehaved("the holder answers for another list", reason=Reason.WRONG_SESSION)
        self.agreement.verify(position, said.signature, label, *said.parts)

    @property
    def upload_list(self) -> UploadList:
        """The list of this sum, once it is fixed."""
        if self._list is None:
            raise Misuse("the list is not fixed yet; call fix_list")
        return self._list

    def fix_list(self) -> None:
        """Take no more uploads; every dealer that is known to be bad is left out by now.

        Raises:
            ThresholdNotMet: too few uploads, or too few holders are left; the sum has no list.
        """
        self._require(MessageKind.ONE_MESSAGE_UPLOAD)
        if self._pending or self._delivered:
            raise Misuse("deliver and settle what waits first")
        for client, error in self._adder.settle().items():
            del self._listed[client]
            self.left_out[client] = error
            self.faults.append(error)
        if len(self._listed) < (least := self.agreement.configuration.minimum_cohort):
            raise ThresholdNotMet(needed=least, present=len(self._listed), what="accepted uploads")
        self.require_holders()
        listed = tuple(Listed(client=client, upload=self._listed[client]) for client in sorted(self._listed))
        terms = replace(self.terms, sum_id=self._sum_id)
        self._list = UploadList(t0=self.agreement.t0, terms=terms, listed=listed)
        is_certified = self.agreement.record.rule is ThresholdRule.CERTIFIED
        self._go_to(State.CERTIFYING if is_certified else State.OPENING)

    def requests(self) -> dict[int, bytes]:
        """Return what every present holder is asked now that the list is fixed; asked again, it is the same."""
        request = self.upload_list.encode()
        if self.state is State.OPENING and self.agreement.record.rule is ThresholdRule.CERTIFIED:
            signatures = tuple(
                HolderSignature(holder=position, signature=ListSignature.decode(said).signature)
                for (state, position), said in sorted(self._said.items())
                if state is State.CERTIFYING
            )
            request = CertifiedList(upload_list=request, certificate=signatures).encode()
        return dict.fromkeys(sorted(self.present - self.heard), request)

    @property
    def heard(self) -> frozenset[int]:
        """Which holders have said what is due in this state."""
        return frozenset(position for state, position in self._said if state is self.state)

    @property
    def needs_certificate(self) -> bool:
        """Whether the holders sign the list next."""
        return self.state is State.CERTIFYING

    @property
    def needed(self) -> int:
        """How many holders are needed in this state."""
        record = self.agreement.record
        return record.quorum if self.state is State.CERTIFYING else record.threshold

    def certify(self) -> None:
        """Go on to the answers.

        Raises:
            ThresholdNotMet: too few signatures, naming who is missing; ask the same holders for the same list again.
        """
        self._require(MessageKind.ONE_MESSAGE_LIST_SIGNATURE)
        self._require_enough(self.needed, self.heard)
        self._go_to(State.OPENING)

    def open(self) -> Opened:
        """Remove the masks.

        Raises:
            ThresholdNotMet: too few answers, naming who is missing; the same list can still be asked for later.
            PeerMisbehaved: the answers contradict each other, or give no sum; more of them may help.
        """
        self._require(MessageKind.ONE_MESSAGE_ANSWER)
        self._require_enough(self.needed, self.heard)
        opened, count, last = self._opened(), len(self._listed), self.agreement.parameters.inputs - 1
        weight = int(opened.vector(last, 0)[0])
        if not count <= weight <= count * self.agreement.configuration.maximum_weight:
            raise PeerMisbehaved("the clients' weights add up to what no weights do", reason=Reason.INPUT_OUT_OF_RANGE)
        vectors = tuple(opened.vector(index, weight) for index in range(last))
        self._go_to(State.ENDED)
        self._adder.end()
        return Opened(Aggregate(self.agreement.configuration.layout, vectors, count, weight), frozenset(self._listed))

    def _opened(self) -> OpenedSum:
        """Recover the sum of the secrets, if need be from fewer answers, and name who lied.

        A liar is named off a polynomial on which T + c answers agree, or off one that opens the sum.
        """
        record, sums = self.agreement.record, {position: answer.sums for position, answer in self._answers.items()}
        first: SecAggError | None = None
        tried = set[bytes]()
        for without in set_aside(sums, min(record.corrupted, len(sums) - record.threshold)):
            try:
                found = recover(self.agreement.parameters, {p: s for p, s in sums.items() if p not in without})
                # Fewer of the same answers open nothing else, and to look is the work of a whole sum.
                if (secret := found.sum_secret.tobytes()) in tried:
                    continue
                tried.add(secret)
                self._ring.require_plausible(found.sum_secret, len(self._listed))
                words = joined(self._adder.open(key_of(found.sum_secret)))
                opened = self._ring.opened(words, len(self._listed))
                if opened.vector(self.agreement.parameters.inputs - 1, 0)[1:].any():
                    raise WrongSecret("it leaves other numbers than zeros behind the weights")
            except PeerMisbehaved as error:
                first = first or error
                continue
            for position in sorted(found.suspects | without):
                self.faults.append(
                    PeerMisbehaved(
                        f"{HolderId(position)} answered with other sums than its shares have",
                        reason=Reason.SHARES_IRRECONCILABLE,
                        culprits={HolderId(position)},
                    )
                )
            return opened
        raise first or PeerMisbehaved("no answers open the sum", reason=Reason.SHARES_IRRECONCILABLE)

    def end(self) -> None:
        """Give the sum up, and overwrite what was collected."""
        if self.state is not State.ENDED:
            self._go_to(State.ENDED)
        self._adder.end()
        for kept in (self._pending, self._delivered, self._answers):
            kept.clear()

    def _require(self, kind: MessageKind) -> None:
        if kind not in TRANSITIONS[self.state][0]:
            raise UnexpectedMessage(expected=f"nothing that a server that is {self.state} takes", received=kind.name)

    def _require_enough(self, needed: int, there: frozenset[int]) -> None:
        if len(there) < needed:
            why = who_is_away(self.agreement.epoch.count, there, self.refusals)
            raise ThresholdNotMet(needed=needed, present=len(there), what=f"holders ({why})")

    def _go_to(self, state: State) -> None:
        if state not in TRANSITIONS[self.state][1]:
            raise Misuse(f"a server that is {self.state} does not go on to {state}")
        self.state = state

    def __repr__(self) -> str:
        return f"<Server {self.state}, {len(self._listed)} uploads counted>"
