"""Server's state machine of one sum: takes one message from each client, and queries the holders.

An upload is added once the holders' receipts for it arrive, and then discarded, so the memory holds one sum and the
uploads without receipts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from secagg.blame import answered_twice, disputed, said_by, unverified
from secagg.contract import Aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined
from secagg.errors import (
    NOBODY,
    UNDECIDED,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId, HolderId, Party
from secagg.parameters import SecurityMode
from secagg.wire import MessageKind, message_kind

from .configuration import HolderSignature, Offer
from .decoding import SumOfSecrets, recovered
from .masks import epoch_ring
from .messages import Upload
from .opening import Adder, LocalSum, OneMessageCut, OpenedSum, Opening, WrongSecret, largest_entry
from .requests import (
    Answer,
    CertifiedList,
    DeliveredShare,
    Delivery,
    Listed,
    ListSignature,
    OfferReceipt,
    Receipt,
    UploadList,
    Verdict,
    verify_upload,
)
from .sharing import decode_words

_WAITING_BYTES: Final = 1 << 24


class State(StrEnum):
    """State of a sum, by the messages that the server waits for."""

    COLLECTING = "collecting"
    CERTIFYING = "certifying"
    OPENING = "opening"
    ENDED = "ended"


TRANSITIONS: Final[Mapping[State, tuple[frozenset[MessageKind], frozenset[State]]]] = {
    State.COLLECTING: (
        frozenset(
            {MessageKind.ONE_MESSAGE_OFFER_RECEIPT, MessageKind.ONE_MESSAGE_UPLOAD, MessageKind.ONE_MESSAGE_RECEIPT}
        ),
        frozenset({State.CERTIFYING, State.ENDED}),
    ),
    State.CERTIFYING: (frozenset({MessageKind.ONE_MESSAGE_LIST_SIGNATURE}), frozenset({State.OPENING, State.ENDED})),
    State.OPENING: (frozenset({MessageKind.ONE_MESSAGE_ANSWER}), frozenset({State.ENDED})),
    State.ENDED: (frozenset(), frozenset()),
}
"""Messages that each state accepts, and the states that follow it."""
HolderSaid = OfferReceipt | Receipt | ListSignature | Answer
_HOLDERS_SAY: Final[Mapping[MessageKind, tuple[type[HolderSaid], Label]]] = {
    MessageKind.ONE_MESSAGE_OFFER_RECEIPT: (OfferReceipt, Label.ONE_MESSAGE_OFFER_RECEIPT),
    MessageKind.ONE_MESSAGE_RECEIPT: (Receipt, Label.ONE_MESSAGE_RECEIPT),
    MessageKind.ONE_MESSAGE_LIST_SIGNATURE: (ListSignature, Label.ONE_MESSAGE_SIGNED_LIST),
    MessageKind.ONE_MESSAGE_ANSWER: (Answer, Label.ONE_MESSAGE_ANSWER),
}


# --- Receipts ---------------------------------------------------------------------------------------------------------

LEAST_REFUSALS: Final = 2
REFUSAL_SHARE: Final = 8
"""A holder that refuses 1 in this number of the uploads that others accept, or ``LEAST_REFUSALS``, counts as absent."""
Verdicts = Mapping[int, Verdict]
"""Verdicts of the present holders on one upload, by their positions."""


@dataclass(slots=True)
class Pending:
    """An upload without its receipts."""

    kept: bytes
    """Input of the adder: the vector, unless it is stored elsewhere."""
    digest: bytes
    shares: tuple[DeliveredShare, ...]
    verdicts: dict[int, Verdict] = field(default_factory=dict[int, Verdict])


@dataclass(slots=True)
class Receipts:
    """Judgement of the holders' receipts: uploads that count, culprits, and holders that refuse too many uploads.

    A refusal by a lying holder can frame a client or empty a cohort. So more than ``corrupted`` refusals prove a client
    bad; fewer exclude it, but also name the holders; a holder that refuses more than a certain share counts as absent.
    The share is at least the number of bad clients: otherwise bad clients could exclude an honest holder by dealing
    badly to it.
    """

    corrupted: int
    """Maximum number of lying holders."""
    corrupted_clients: int
    """Maximum number of bad dealers: a holder that refuses more that others accept lies."""
    mode: SecurityMode = SecurityMode.ACTIVE
    delivered: int = 0
    absent: set[int] = field(default_factory=set[int])
    refused: dict[int, int] = field(default_factory=dict[int, int])

    def settle(
        self, uploads: Mapping[ClientId, Verdicts]
    ) -> tuple[dict[ClientId, PeerMisbehaved], list[PeerMisbehaved]]:
        """Judge a batch: return the excluded clients with reasons, and the holders' faults; all other uploads count."""
        faults = list[PeerMisbehaved]()
        self.delivered += len(uploads)
        for position in sorted({holder for verdicts in uploads.values() for holder in verdicts} - self.absent):
            said = [self._present(verdicts) for verdicts in uploads.values() if position in verdicts]
            if any(verdicts[position] is Verdict.NOT_AUTHENTIC for verdicts in said):
                # The network may have altered what the holder received.
                what = "received, or claims to have received, an upload that does not verify"
                faults.append(_lost(position, what, unverified(HolderId(position))))
                self.absent.add(position)
                continue
            alone = sum(
                verdicts[position] is not Verdict.ACCEPTED and len(_refusing(verdicts)) <= self.corrupted
                for verdicts in said
            )
            self.refused[position] = self.refused.get(position, 0) + alone
            if self.refused[position] > max(LEAST_REFUSALS, self.corrupted_clients, self.delivered // REFUSAL_SHARE):
                count = f"{self.refused[position]} uploads that others accept; at most {self.corrupted_clients} are bad"
                faults.append(_lost(position, f"refused {count}", said_by(HolderId(position), self.mode)))
                self.absent.add(position)
        left_out = dict[ClientId, PeerMisbehaved]()
        for client, verdicts in uploads.items():
            if refusing := _refusing(self._present(verdicts)):
                left_out[client] = self._left_out(client, refusing)
        return left_out, faults

    def _present(self, verdicts: Verdicts) -> Verdicts:
        return {position: verdict for position, verdict in verdicts.items() if position not in self.absent}

    def _left_out(self, client: ClientId, refusing: frozenset[int]) -> PeerMisbehaved:
        holders = frozenset(HolderId(position) for position in refusing)
        if len(refusing) > self.corrupted:
            return PeerMisbehaved(
                f"{client} dealt bad shares: {len(refusing)} holders refuse them, more than can lie",
                reason=Reason.SHARE_OUT_OF_RANGE,
                culprits=said_by(client, self.mode),
            )
        return PeerMisbehaved(
            f"either {client} dealt bad shares, or {', '.join(map(str, sorted(holders)))} lied about them",
            reason=Reason.SHARE_OUT_OF_RANGE,
            culprits=disputed(*(said_by(party, self.mode) for party in (client, *sorted(holders)))),
        )


def _refusing(verdicts: Verdicts) -> frozenset[int]:
    return frozenset(position for position, verdict in verdicts.items() if verdict is not Verdict.ACCEPTED)


def _lost(position: int, what: str, named: frozenset[Party]) -> PeerMisbehaved:
    return PeerMisbehaved(
        f"{HolderId(position)} {what}; it counts as absent", reason=Reason.SHARE_OUT_OF_RANGE, culprits=named
    )


# --- One sum ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """A sum, and the clients in it."""

    aggregate: Aggregate
    counted: frozenset[ClientId]


@dataclass(frozen=True, slots=True)
class CheckedUpload:
    """A verified upload, its digest, and the part that each holder receives."""

    upload: Upload
    digest: bytes
    shares: tuple[DeliveredShare, ...]


class Tally(Confined):
    """State machine of one sum; the session carries its messages."""

    def __init__(self, offer: Offer, coins: Coins) -> None:
        """Start a sum.

        Args:
            coins: used after the answers arrive, if they contradict each other.
        """
        self.agreement, self.terms, self._offer = offer.agree(), offer.terms, replace(offer, receipts=())
        self._coins, self.state = coins, State.COLLECTING
        self._opening = Opening(epoch_ring(self.agreement.parameters, self.agreement.epoch.seed))
        self._adder: Adder = LocalSum(OneMessageCut.of(self.agreement))
        self._receipts = Receipts(
            self.agreement.record.corrupted, offer.configuration.corrupted_clients, self.agreement.record.mode
        )
        self._receipts.absent |= set(range(self.agreement.epoch.count)) - self.agreement.epoch.present
        self._offered = dict[int, bytes]()
        self._taken, self._listed = dict[ClientId, bytes](), dict[ClientId, bytes]()
        self._pending, self._delivered = dict[ClientId, Pending](), dict[ClientId, Pending]()
        self._said = dict[tuple[State, int], HolderSaid]()
        self._liars = frozenset[int]()
        self._list: UploadList | None = None
        self.left_out, self.faults, self.refusals = dict[ClientId, PeerError](), list[PeerError](), dict[int, str]()
        self.lost = dict[ClientId, SecAggError]()
        """Clients whose uploads were lost without anyone's fault."""
        self.receipts = dict[int, list[bytes]]()
        """Receipts by position: with a holder's answer and T + c answers that agree, evidence that it lied."""

    def add_through(self, adding: Callable[[OneMessageCut], Adder]) -> None:
        """Delegate the adding before the first upload; resume what an earlier process kept.

        The server asks the holders again for their receipts or, if a list was fixed, for their answers to that list.
        """
        if self._taken:
            raise Misuse("choose the adder before the first upload")
        self._adder = adding(OneMessageCut.of(self.agreement))
        for upload in self._adder.uploads():
            sender = upload.header.client
            self._take(upload, b"", *verify_upload(self.agreement, self.terms, sender, upload, is_kept=True))
        if (listed := self._adder.listed()) is not None:
            self._pending.clear()
            self._go_on_with(UploadList.decode(listed))

    # --- Uploads and their receipts -----------------------------------------------------------------------------------

    @property
    def taken(self) -> Mapping[ClientId, bytes]:
        """Digests of all accepted uploads, counted or not."""
        return self._taken

    @property
    def listed(self) -> frozenset[ClientId]:
        """Clients whose uploads all present holders have accepted so far."""
        return frozenset(self._listed)

    def is_due(self, most: int) -> bool:
        """Whether enough uploads wait for a delivery, or 16 MiB of them."""
        waiting = self._pending.values()
        return len(waiting) >= most or sum(len(pending.kept) for pending in waiting) >= _WAITING_BYTES

    @property
    def present(self) -> frozenset[int]:
        return frozenset(range(self.agreement.epoch.count)) - self._receipts.absent

    def receive_upload(self, sender: ClientId, message: bytes) -> None:
        """Accept an upload from the sender that the transport authenticated; a repeated upload changes nothing."""
        with blaming(*unverified(sender)):
            self.take_upload(sender, self.check_upload(sender, message))

    def check_upload(self, sender: ClientId, message: bytes) -> CheckedUpload:
        """Verify an upload from the sender that the transport authenticated; changes no state."""
        self._require(MessageKind.ONE_MESSAGE_UPLOAD)
        upload = Upload.decode(message)
        return CheckedUpload(upload, *verify_upload(self.agreement, self.terms, sender, upload))

    def take_upload(self, sender: ClientId, checked: CheckedUpload) -> None:
        """Accept a verified upload, if it is its sender's first and the list is not full."""
        upload = checked.upload
        if self._taken.get(sender, checked.digest) != checked.digest:
            raise PeerMisbehaved(
                f"{sender} sent a second upload; the first counts",
                reason=Reason.ALREADY_ANSWERED,
                culprits=answered_twice(sender, is_signed=self.agreement.record.mode is SecurityMode.ACTIVE),
            )
        if sender in self._taken:
            return
        if len(self._taken) >= self.agreement.parameters.capacity:
            raise PeerMisbehaved("the list is full", reason=Reason.BUFFER_FULL, culprits=UNDECIDED)
        self._take(upload, self._adder.keep(upload), checked.digest, checked.shares)

    def _take(self, upload: Upload, kept: bytes, digest: bytes, shares: tuple[DeliveredShare, ...]) -> None:
        sender = upload.header.client
        self._taken[sender], self._pending[sender] = digest, Pending(kept, digest, shares)

    def introduce(self) -> dict[int, bytes]:
        """Return the offer for each holder, sent before the clients' offer; each holder answers with a receipt."""
        self._require(MessageKind.ONE_MESSAGE_OFFER_RECEIPT)
        return dict.fromkeys(sorted(self.present), self._offer.encode())

    @property
    def offer(self) -> bytes:
        """The offer for clients, with the receipts received from holders."""
        receipts = (HolderSignature(holder=at, signature=self._offered[at]) for at in sorted(self._offered))
        return replace(self._offer, receipts=tuple(receipts)).encode()

    def require_holders(self) -> None:
        self._require_enough(self.present)

    def deliver(self) -> dict[int, bytes]:
        """Return a delivery of the waiting uploads for each present holder; call ``settle`` once all have answered."""
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
        """Stop asking a holder while uploads are collected: it is lost, late or refused."""
        if self.state is State.COLLECTING:
            self._receipts.absent.add(position)

    def settle(self) -> None:
        """Add the delivered uploads that all present holders accept; a holder without a receipt is lost."""
        self._require(MessageKind.ONE_MESSAGE_RECEIPT)
        delivered, self._delivered = self._delivered, {}
        for position in self.present:
            if any(position not in pending.verdicts for pending in delivered.values()):
                self.lose(position)
        left_out, faults = self._receipts.settle({client: one.verdicts for client, one in delivered.items()})
        self.faults += faults
        for client, pending in delivered.items():
            if (error := left_out.get(client)) is not None:
                self.left_out[client] = error
                self.faults.append(error)
                continue
            self._adder.add(client, pending.kept)
            self._listed[client] = pending.digest

    # --- Holders ------------------------------------------------------------------------------------------------------

    def receive(self, position: int, message: bytes) -> None:
        """Accept a holder's message; a repeated message changes nothing."""
        with blaming(*unverified(HolderId(position))):
            said = self.read(position, message)
        with blaming(*said_by(HolderId(position), self.agreement.record.mode)):
            self.take(said)

    def read(self, position: int, message: bytes) -> HolderSaid:
        """Verify a message of the holder at a position; changes no state."""
        kind = message_kind(message)
        if kind not in _HOLDERS_SAY:
            raise UnexpectedMessage(expected="a message of a holder", received=kind.name)
        self._require(kind)
        if position not in self.present:
            raise PeerMisbehaved("the holder was lost", reason=Reason.NOT_ELIGIBLE, culprits=UNDECIDED)
        declared, label = _HOLDERS_SAY[kind]
        said = declared.decode(message)
        self._require_signed(position, said, label)
        if isinstance(said, OfferReceipt) and said.terms != self.terms.digest:
            raise PeerMisbehaved("the receipt is for another offer", reason=Reason.WRONG_SESSION, culprits=UNDECIDED)
        if isinstance(said, Receipt):
            self._require_delivered(said)
        elif isinstance(said, Answer):
            with blaming(*said_by(HolderId(position), self.agreement.record.mode)):
                decode_words(said.sums, self.agreement.parameters.secret_columns)
        return said

    def take(self, said: HolderSaid) -> None:
        """Accept a verified message, unless the holder sent a different one before."""
        if isinstance(said, OfferReceipt):
            self._offered[said.holder] = said.signature
            return
        before = self._said.setdefault((self.state, said.holder), said)
        if before.parts != said.parts:
            # The network may have altered one of two deliveries that a holder judged. Its answer to a list is
            # determined by the list: a holder that lost its memory has other keys, and so another T0.
            holder = HolderId(said.holder)
            is_judged = isinstance(said, Receipt)
            raise PeerMisbehaved(
                f"{holder} sent two different messages",
                reason=Reason.ALREADY_ANSWERED,
                culprits=unverified(holder) if is_judged else said_by(holder, self.agreement.record.mode),
            )
        if before is said and isinstance(said, Receipt):
            for pending, one in zip(self._delivered.values(), said.judged, strict=True):
                pending.verdicts[said.holder] = one.verdict
            self.receipts.setdefault(said.holder, []).append(said.encode())

    def _require_delivered(self, receipt: Receipt) -> None:
        due = [one.digest for one in self._delivered.values()]
        judged = [one.upload for one in receipt.judged]
        if len(judged) != len(due) or any(
            upload != wanted and one.verdict is not Verdict.NOT_AUTHENTIC
            for upload, wanted, one in zip(judged, due, receipt.judged, strict=True)
        ):
            raise PeerMisbehaved("the receipt is for another delivery", reason=Reason.WRONG_SESSION, culprits=UNDECIDED)

    def _require_signed(self, position: int, said: HolderSaid, label: Label) -> None:
        if said.t0 != self.agreement.t0 or said.holder != position:
            raise PeerMisbehaved(
                "the message belongs to another session or holder", reason=Reason.WRONG_SESSION, culprits=UNDECIDED
            )
        if isinstance(said, ListSignature | Answer) and said.upload_list != self.upload_list.digest:
            raise PeerMisbehaved("the holder answers for another list", reason=Reason.WRONG_SESSION, culprits=UNDECIDED)
        self.agreement.verify(position, said.signature, label, *said.parts)

    @property
    def upload_list(self) -> UploadList:
        if self._list is None:
            raise Misuse("the list is not fixed yet; call fix_list")
        return self._list

    def fix_list(self) -> None:
        """Close the list; every dealer known to be bad is already excluded.

        Raises:
            ThresholdNotMet: too few uploads or holders remain; the sum has no list.
        """
        self._require(MessageKind.ONE_MESSAGE_UPLOAD)
        if self._pending or self._delivered:
            raise Misuse("deliver and settle the waiting uploads first")
        for client, error in self._adder.settle().items():
            del self._listed[client]
            self.lost[client] = error
        if len(self._listed) < (least := self.agreement.configuration.minimum_cohort):
            raise ThresholdNotMet(needed=least, present=len(self._listed), what="accepted uploads")
        self.require_holders()
        listed = tuple(Listed(client=client, upload=self._listed[client]) for client in sorted(self._listed))
        upload_list = UploadList(t0=self.agreement.t0, terms=self.terms, listed=listed)
        self._adder.fix(upload_list.encode())
        self._go_on_with(upload_list)

    def _go_on_with(self, upload_list: UploadList) -> None:
        self._list, self._listed = upload_list, {one.client: one.upload for one in upload_list.listed}
        self._go_to(State.CERTIFYING)

    def requests(self) -> dict[int, bytes]:
        """Return the request about the list for each present holder that has not answered it."""
        request = self.upload_list.encode()
        if self.state is State.OPENING:
            signatures = tuple(
                HolderSignature(holder=position, signature=said.signature)
                for (state, position), said in sorted(self._said.items(), key=lambda entry: entry[0])
                if state is State.CERTIFYING
            )
            request = CertifiedList(upload_list=request, certificate=signatures).encode()
        return dict.fromkeys(sorted(self.present - self.heard), request)

    @property
    def heard(self) -> frozenset[int]:
        """Holders that have sent the message of this state."""
        return frozenset(position for state, position in self._said if state is self.state)

    @property
    def needed(self) -> int:
        """Number of holders that this state needs."""
        record = self.agreement.record
        if self.state is State.COLLECTING:
            return max(record.threshold, record.quorum)
        return record.quorum if self.state is State.CERTIFYING else record.threshold

    def certify(self) -> None:
        """Certify the list, and proceed to the answers.

        Raises:
            ThresholdNotMet: too few signatures; ask the same holders for the same list again.
        """
        self._require(MessageKind.ONE_MESSAGE_LIST_SIGNATURE)
        self._require_enough(self.heard)
        self._go_to(State.OPENING)

    def open(self) -> Opened:
        """Remove the masks.

        Raises:
            ThresholdNotMet: too few answers; the holders can be asked again for the same list.
            PeerMisbehaved: the answers contradict each other, or give no sum; more of them may help.
        """
        self._require(MessageKind.ONE_MESSAGE_ANSWER)
        self._require_enough(self.heard)
        opened, count, last = self._opened(), len(self._listed), self.agreement.parameters.inputs - 1
        vectors = tuple(opened.vector(index) for index in range(last))
        self._adder.over()
        self.end()
        return Opened(Aggregate(self.agreement.configuration.layout, vectors, count), frozenset(self._listed))

    def _opened(self) -> OpenedSum:
        """Open the sum with the first sum of secrets that fits, and name the liars.

        A holder is named if T + c other answers agree without its answer, whether or not their sum opens. With fewer,
        liars can choose a word that makes an honest holder's answer look wrong.
        """
        sums = {said.holder: said.sums for said in self._said.values() if isinstance(said, Answer)}
        largest = largest_entry(len(self._listed))
        refused: WrongSecret | None = None
        for found in recovered(self.agreement.parameters, sums, largest, self._coins):
            if found.is_proven:
                self._name(found.suspects)
            try:
                return self._opened_with(found.sum_secret)
            except WrongSecret as error:
                refused = refused or error
        raise refused or PeerMisbehaved(
            f"{len(sums)} answers contradict each other, and no {self.needed} of them open the sum; ask more holders",
            reason=Reason.SHARES_IRRECONCILABLE,
            culprits=NOBODY,
        )

    def _opened_with(self, secret: SumOfSecrets) -> OpenedSum:
        self._opening.require_plausible(secret, len(self._listed))
        opened = self._opening.opened(self._adder.open(secret), len(self._listed))
        if opened.vector(self.agreement.parameters.inputs - 1).any():
            raise WrongSecret("it leaves nonzero numbers after the values")
        return opened

    def _name(self, liars: frozenset[int]) -> None:
        for position in sorted(liars - self._liars):
            self.faults.append(
                PeerMisbehaved(
                    f"{HolderId(position)} answered with sums that differ from those of its shares",
                    reason=Reason.SHARES_IRRECONCILABLE,
                    culprits=said_by(HolderId(position), self.agreement.record.mode),
                )
            )
        self._liars |= liars

    def end(self) -> None:
        """Abort the sum, and overwrite the collected uploads."""
        if self.state is not State.ENDED:
            self._go_to(State.ENDED)
            self._adder.end()
            for kept in (self._pending, self._delivered, self._said):
                kept.clear()

    def found_faults(self) -> list[PeerError]:
        """Return the faults found since the last call."""
        found, self.faults = self.faults, []
        return found

    def _require(self, kind: MessageKind) -> None:
        if kind not in TRANSITIONS[self.state][0]:
            raise UnexpectedMessage(expected=f"a message for a server that is {self.state}", received=kind.name)

    def _require_enough(self, there: frozenset[int]) -> None:
        if len(there) < self.needed:
            raise self._lacking(there)

    def _lacking(self, there: frozenset[int]) -> ThresholdNotMet:
        away = [position for position in range(self.agreement.epoch.count) if position not in there]
        said = [f"{HolderId(one)} refused: {self.refusals[one]}" for one in away if one in self.refusals]
        missing = ", ".join(str(HolderId(one)) for one in away if one not in self.refusals)
        why = "; ".join([*said, f"missing: {missing}"] if missing else said)
        committee = self.agreement.record.committee
        stands = f" of {committee.holders}; a sum survives the loss of {committee.stands} ({why})"
        return ThresholdNotMet(needed=self.needed, present=len(there), what="holders", why=stands)

    def _go_to(self, state: State) -> None:
        if state not in TRANSITIONS[self.state][1]:
            raise Misuse(f"a server that is {self.state} cannot become {state}")
        self.state = state

    def __repr__(self) -> str:
        return f"<Tally {self.state}, {len(self._listed)} uploads counted>"
