"""A holder: it keeps shares of one epoch, puts an upload on one list ever, and answers for all of a list or nothing.

The client has left when the list is made, so the holder enforces its floors. A promise is written down before it is
sent, and a request that was answered gets the stored bytes again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Final

import numpy as np

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import recover_root
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    UNDECIDED,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import SigningKey
from secagg.session.frames import encode_refusal
from secagg.wire import MessageKind, message_kind

from .configuration import NO_KEY, NO_SUM, Agreement, EpochRecord, Offer, SumTerms, make_holder_keys
from .floors import Floors
from .journal import Entry, Event, FileJournal, Journal, Placements, boot_id, erase_files, is_journal
from .messages import challenge_of, leaf, sealing_info, share_context, upload_digest
from .parameters import CHECK_WORDS, FIELD, Parameters, ThresholdRule
from .requests import (
    Answer,
    CertifiedList,
    DeliveredShare,
    Delivery,
    Judged,
    ListSignature,
    Receipt,
    UploadList,
    Verdict,
    require_certificate,
    require_signed,
)
from .sharing import WORD, Elements, challenge_weights, decode_words, expand_share, holder_point, multiply, power_matrix

MOST_UPLOADS: Final = 1 << 20
"""Limit on uploads of an epoch: all of them rest on one choice of the public polynomials."""
_SERVER = frozenset({ServerId()})
_NAME: Final = re.compile(r"([0-9]{1,20})-[0-9a-f]{64}", re.ASCII)
"""Name of a holder's folder: when its epoch ends, and which task and epoch it belongs to."""
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Accepted:
    client: ClientId
    terms: SumTerms
    share: HeldShare = field(repr=False)


@dataclass(slots=True)
class _Work:
    """State of a holder for one T0."""

    agreement: Agreement
    accepted: dict[bytes, _Accepted] = field(default_factory=dict[bytes, _Accepted])
    signed: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Stored signatures, by the digest of a list."""
    answered: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Stored answers, by the digest of a list."""


class Holder(Confined):
    """One position of one epoch: a ``Helper`` of the server, or the second half of a client.

    Claim OM-5: the model checker drives this class and its journal, by a server that shows lists as it likes.
    """

    def __init__(  # noqa: PLR0913 -- what a holder brings
        self,
        record: EpochRecord,
        position: int,
        *,
        root: Secret,
        nonce: bytes,
        journal: Journal,
        floors: Floors,
        clock: Callable[[], datetime],
        signing_key: SigningKey | None = None,
        forgets: bool = False,
    ) -> None:
        """Begin an epoch, or resume it from its journal.

        Args:
            root: secret that the epoch's key is derived from: of a ``FileJournal``, or drawn and kept in memory alone.
            nonce: this holder's part of the seed of the public polynomials, from the same place.
            floors: floors of this holder's clients.
            forgets: whether the journal holds one round alone: rounds go up then, and an earlier one is never answered.
        Raises:
            AuthenticationFailed: the record is not signed by its authority.
            InvalidParameters: another authority than the floors', or another key at this position.
        """
        require_believed(record, floors)
        if record.holders[position].public_key != (NO_KEY if signing_key is None else signing_key.public_key):
            raise InvalidParameters("another holder stands at this position; name the one that has this key")
        self.position, self._record = position, record
        self._key, self._floors, self._clock, self._journal = signing_key, floors, clock, journal
        self._lock, self._process = RLock(), os.getpid()
        keys, self._pair = make_holder_keys(record, position, root, nonce, signing_key)
        self.keys = keys.encode()
        self._work, self._placements, self._is_over = dict[bytes, _Work](), Placements(), False
        self._round, self._forgotten = 0 if forgets else None, 0
        for entry in journal.records():
            self._replay(entry)

    def answer(self, request: bytes) -> bytes:
        """Return the answer, or an encoded refusal; never raise for what the server sent."""
        try:
            return self.respond(request)
        except SecAggError as error:
            return encode_refusal(error)
        except Exception:  # noqa: BLE001 -- whatever it is, the other requests are served
            return encode_refusal(InternalError("a holder failed; its own log says why"))

    def respond(self, request: bytes) -> bytes:
        """Return the answer to a request of the server's; the same request gets the same bytes again.

        Raises:
            SecAggError: it is refused, and nothing has changed.
            OSError: the journal cannot be written; nothing was promised.
        """
        # One request at a time: two lists that are checked at once would both be free.
        with self._lock:
            return self._respond(request)

    def _respond(self, request: bytes) -> bytes:
        self._require_open()
        match message_kind(request):
            case MessageKind.ONE_MESSAGE_RECORD if request == self._record.encode():
                return self.keys
            case MessageKind.ONE_MESSAGE_OFFER:
                return self._admit(request)
            case MessageKind.ONE_MESSAGE_DELIVERY:
                return self._receive(request)
            case MessageKind.ONE_MESSAGE_LIST | MessageKind.ONE_MESSAGE_CERTIFIED_LIST:
                return self._promise(request)
            case kind:
                raise UnexpectedMessage(expected="a request to a holder", received=kind.name, culprits=_SERVER)

    def end(self) -> None:
        """Destroy the epoch's key and all shares."""
        self.close()
        self._journal.erase()

    def close(self) -> None:
        """Overwrite the memory; another process can resume from the journal."""
        with self._lock:
            self._is_over = True
            self._pair.wipe()
            self._forget()

    def end_if_expired(self) -> bool:
        """End with the epoch; return whether it is over."""
        with self._lock:
            if not self._is_over and self._clock().timestamp() >= self._record.expiry:
                self.end()
            return self._is_over

    def _require_open(self) -> None:
        if self._process != os.getpid():
            # A fork has the journal's lock too, and hears nothing of what this process answers.
            raise Misuse(
                "this holder was forked into another process; open its journal there", reason=Reason.ALREADY_SPENT
            )
        if self.end_if_expired():
            raise InvalidParameters("the epoch is over, and its keys are destroyed; begin another one")

    def _forget(self) -> None:
        for work in self._work.values():
            for accepted in work.accepted.values():
                accepted.share.wipe()
        self._work.clear()

    # --- Offer and delivery -------------------------------------------------------------------------------------------

    def _admit(self, request: bytes) -> bytes:
        offer = Offer.decode(request)
        agreement, number = offer.agree(), offer.terms.round_number
        is_next = self._round is not None and number > self._round
        if is_next or agreement.t0 not in self._work:
            self._require_round(number, is_next=is_next)
            self._require_own(agreement)
            self._floors.admit(agreement, self._clock())
            if is_next:
                self._begin_round(number)
            self._journal.append(Event.OFFERED, request)
            self._work[agreement.t0] = _Work(agreement)
        return self._receipt(agreement, ())

    def _require_round(self, number: int, *, is_next: bool = False) -> None:
        """Refuse another round than the one whose promises are remembered."""
        if self._round is not None and number != self._round and not is_next:
            raise _wrong(f"this holder is in round {self._round}, and in no other", Reason.ALREADY_SPENT)

    def _begin_round(self, number: int) -> None:
        """Forget the promises of earlier rounds, for which nothing is answered any more; keep their number."""
        uploads = self._uploads
        self._journal.restart(Event.BEGUN, number.to_bytes(8, "big"), uploads.to_bytes(8, "big"))
        self._forget()
        self._round, self._forgotten, self._placements = number, uploads, Placements()

    @property
    def _uploads(self) -> int:
        """Number of uploads that were accepted in this epoch."""
        return self._forgotten + sum(len(one.accepted) for one in self._work.values())

    def _require_own(self, agreement: Agreement) -> None:
        if agreement.epoch.keys[self.position].encode() != self.keys or agreement.record != self._record:
            raise _wrong("the offer has other keys of this holder than it published", Reason.WRONG_SESSION)

    def _receive(self, request: bytes) -> bytes:
        delivery = Delivery.decode(request)
        work = self._work_on(delivery.t0)
        judged, accepted = self._judge(work, delivery)
        if self._uploads + len(accepted) > MOST_UPLOADS:
            raise _wrong(f"an epoch has at most {MOST_UPLOADS} uploads; begin another one", Reason.BUFFER_FULL)
        receipt = self._receipt(work.agreement, judged)
        if accepted:
            self._journal.append(Event.DELIVERED, request)
        work.accepted |= accepted
        return receipt

    def _receipt(self, agreement: Agreement, judged: tuple[Judged, ...]) -> bytes:
        receipt = Receipt(t0=agreement.t0, holder=self.position, judged=judged)
        return self._signed(agreement, Label.ONE_MESSAGE_RECEIPT, receipt)

    def _signed(self, agreement: Agreement, label: Label, made: Receipt | ListSignature | Answer) -> bytes:
        return replace(made, signature=agreement.sign(self._key, label, *made.parts)).encode()

    def _judge(self, work: _Work, delivery: Delivery) -> tuple[tuple[Judged, ...], dict[bytes, _Accepted]]:
        judged, accepted = list[Judged](), dict[bytes, _Accepted]()
        for share in delivery.shares:
            upload, verdict, held = self._judge_one(work, share)
            judged.append(Judged(upload=upload, verdict=verdict))
            if held is not None:
                accepted[upload] = _Accepted(share.header.client, share.header.terms, held)
        return tuple(judged), accepted

    def _judge_one(self, work: _Work, share: DeliveredShare) -> tuple[bytes, Verdict, HeldShare | None]:
        agreement, header, position = work.agreement, share.header, self.position
        try:
            lowest = {position: leaf(agreement, position, share.sealed)}
            root = recover_root(agreement.epoch.count, lowest, share.path)
        except MalformedMessage:
            return bytes(32), Verdict.NOT_AUTHENTIC, None
        challenge = challenge_of(agreement, header, share.vector_digest, root)
        upload = upload_digest(challenge, share.polynomial)
        if upload in work.accepted:
            return upload, Verdict.ACCEPTED, None
        try:
            require_signed(agreement, header, upload, share.signature)
        except PeerError:
            return upload, Verdict.NOT_AUTHENTIC, None
        length = agreement.parameters.share_bytes(position)
        try:
            with self._pair.open("share", share.sealed, length, sealing_info(agreement, header, position)) as opened:
                context = share_context(agreement, header, position)
                held = open_share(agreement.parameters, position, opened, context)
        except PeerError:
            return upload, Verdict.DOES_NOT_OPEN, None
        try:
            held.require_on(share.polynomial, challenge)
        except PeerError:
            held.wipe()
            return upload, Verdict.OFF_POLYNOMIAL, None
        return upload, Verdict.ACCEPTED, held

    # --- Lists --------------------------------------------------------------------------------------------------------

    def _promise(self, request: bytes) -> bytes:
        """Sign a list, or answer it: at once where one answer is the rule, and else once a quorum has signed it.

        It is written down first, and no other list has any of its uploads ever after.
        """
        is_certificate = message_kind(request) is MessageKind.ONE_MESSAGE_CERTIFIED_LIST
        certified = CertifiedList.decode(request) if is_certificate else None
        upload_list = UploadList.decode(certified.upload_list if certified else request)
        work, digest = self._work_on(upload_list.t0), upload_list.digest
        answers = certified is not None or work.agreement.record.rule is ThresholdRule.ONE_ANSWER
        stored = work.answered if answers else work.signed
        if digest in stored:
            return stored[digest]
        if certified is not None:
            require_certificate(work.agreement, digest, certified)
        self._require_whole(work, upload_list)
        reply = self._answer(work, upload_list) if answers else self._signature(work, digest)
        self._journal.append(Event.LISTED, upload_list.encode(), reply)
        self._place(work, upload_list, reply)
        return reply

    def _require_whole(self, work: _Work, upload_list: UploadList) -> None:
        """Refuse a list with an entry that this holder did not accept, or that its clients would not have joined."""
        configuration, terms = work.agreement.configuration, upload_list.terms
        clients = [listed.client for listed in upload_list.listed]
        if clients != sorted(set(clients)):
            raise _wrong("a list has increasing clients", Reason.NOT_CANONICAL)
        if not configuration.minimum_cohort <= len(clients) <= configuration.parameters.capacity:
            raise _wrong(
                f"a list of {len(clients)} is not in {configuration.minimum_cohort}.."
                f"{configuration.parameters.capacity}",
                Reason.SURVIVORS_INVALID,
            )
        if terms.sum_id == NO_SUM:
            raise _wrong("a list names its sum", Reason.SURVIVORS_INVALID)
        self._require_round(terms.round_number)
        is_certified = work.agreement.record.rule is ThresholdRule.CERTIFIED
        due = replace(terms, sum_id=NO_SUM) if is_certified else terms
        for listed in upload_list.listed:
            accepted = work.accepted.get(listed.upload)
            if accepted is None or accepted.client != listed.client:
                raise _wrong(
                    f"this holder did not accept that upload of {listed.client}, and answers for all of a list or "
                    "nothing",
                    Reason.SURVIVORS_INVALID,
                )
            if accepted.terms != due:
                raise _wrong(f"{listed.client} uploaded for another sum or model", Reason.MODEL_MISMATCH)
        self._placements.require_free(terms.sum_id, upload_list.digest, _uploads(upload_list))

    def _signature(self, work: _Work, digest: bytes) -> bytes:
        made = ListSignature(t0=work.agreement.t0, holder=self.position, upload_list=digest)
        return self._signed(work.agreement, Label.ONE_MESSAGE_SIGNED_LIST, made)

    def _answer(self, work: _Work, upload_list: UploadList) -> bytes:
        sums = summed(work.agreement.parameters, (work.accepted[upload].share for upload in _uploads(upload_list)))
        answer = Answer(t0=work.agreement.t0, holder=self.position, upload_list=upload_list.digest, sums=sums)
        return self._signed(work.agreement, Label.ONE_MESSAGE_ANSWER, answer)

    def _place(self, work: _Work, upload_list: UploadList, reply: bytes) -> None:
        digest, uploads = upload_list.digest, _uploads(upload_list)
        self._placements.place(upload_list.terms.sum_id, digest, uploads)
        if message_kind(reply) is MessageKind.ONE_MESSAGE_LIST_SIGNATURE:
            work.signed[digest] = reply
            return
        work.answered[digest] = reply
        for upload in uploads:
            work.accepted[upload].share.wipe()

    def _work_on(self, t0: bytes) -> _Work:
        if t0 not in self._work:
            raise _wrong("this holder knows no offer with this T0; send the offer first", Reason.WRONG_SESSION)
        return self._work[t0]

    def _replay(self, entry: Entry) -> None:
        """Remember what happened before a crash; nothing is sent."""
        match entry.event:
            case Event.BEGUN:
                self._round, self._forgotten = (int.from_bytes(part, "big") for part in entry.parts)
            case Event.OFFERED:
                agreement = Offer.decode(entry.parts[0]).agree()
                self._require_own(agreement)
                self._work[agreement.t0] = _Work(agreement)
            case Event.DELIVERED:
                delivery = Delivery.decode(entry.parts[0])
                work = self._work_on(delivery.t0)
                work.accepted |= self._judge(work, delivery)[1]
            case Event.LISTED:
                upload_list = UploadList.decode(entry.parts[0])
                self._place(self._work_on(upload_list.t0), upload_list, entry.parts[1])

    def __repr__(self) -> str:
        return f"<Holder {self.position} of epoch {self._record.number}>"


def require_believed(record: EpochRecord, floors: Floors) -> None:
    """Refuse an epoch that its holder's authority did not sign, before anything is kept for it."""
    record.verify(record.authority, record.signature, Label.ONE_MESSAGE_RECORD, record.statement)
    if record.authority != floors.authority:
        raise InvalidParameters("the epoch is of another authority than this holder believes; have that one sign it")


def _uploads(upload_list: UploadList) -> tuple[bytes, ...]:
    return tuple(listed.upload for listed in upload_list.listed)


def _wrong(sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=_SERVER)


class HeldShare(Confined):
    """A share as its holder reads it: the words of its secret polynomials, and of the masking polynomial."""

    def __init__(self, parameters: Parameters, position: int, words: Elements) -> None:
        self.parameters = parameters
        self.position = position
        self._words = words

    def require_on(self, polynomial: bytes, challenge: bytes) -> None:
        """Refuse a share that is off the dealer's polynomials.

        A false one passes with a chance of 65521^-8 a challenge.

        Raises:
            MalformedMessage: the published polynomial does not have exactly T canonical coefficients.
            PeerMisbehaved: the share is off.
        """
        threshold, columns = self.parameters.threshold, self.parameters.secret_columns
        published = decode_words(polynomial, threshold * CHECK_WORDS).reshape(threshold, CHECK_WORDS)
        due = multiply(power_matrix((holder_point(self.position),), threshold), published)[0]
        weights = challenge_weights(self.parameters, challenge)
        held = multiply(self._words[None, :columns].astype(np.float64), weights)[0] + self._words[columns:]
        if not np.array_equal(held % FIELD, due):
            raise PeerMisbehaved(
                f"the share of holder {self.position} is not on the dealer's polynomial; leave the client out",
                reason=Reason.COMMITMENT_MISMATCH,
                culprits=UNDECIDED,
            )

    def secret_words(self) -> Elements:
        return self._words[: self.parameters.secret_columns]

    def wipe(self) -> None:
        self._words[:] = 0

    def __repr__(self) -> str:
        return f"<HeldShare of holder {self.position}>"


def open_share(parameters: Parameters, position: int, share: Secret, context: bytes) -> HeldShare:
    """Read a share as the dealer sealed it for the holder at a position."""
    due = parameters.share_bytes(position)
    if len(share) != due:
        reason = Reason.TRUNCATED if len(share) < due else Reason.TRAILING_BYTES
        raise MalformedMessage(f"the share of holder {position} has {due} bytes; got {len(share)}", reason=reason)
    count = parameters.secret_columns + CHECK_WORDS
    if position < parameters.seeds:
        return HeldShare(parameters, position, expand_share(share, Label.ONE_MESSAGE_SHARE, context, count))
    return HeldShare(parameters, position, decode_words(share.expose(), count))


def summed(parameters: Parameters, shares: Iterable[HeldShare]) -> bytes:
    """Return a holder's answer: its shares over one list, added, without the masking polynomial's words."""
    total = np.zeros(parameters.secret_columns, np.int64)
    for share in shares:
        total += share.secret_words()
    words = (total % FIELD).astype(WORD).tobytes()
    total[:] = 0
    return words


class Holdings(Confined):
    """The holders that a client is, one for each task of an epoch whose committee names it."""

    def __init__(
        self, folder: Path, signing_key: SigningKey, floors: Floors, clock: Callable[[], datetime], coins: Coins
    ) -> None:
        """Use a folder of this user's that no backup copies, best one in memory."""
        self._folder, self._key, self._floors, self._clock, self._coins = folder, signing_key, floors, clock, coins

    @contextmanager
    def open(self, record: EpochRecord, task: bytes) -> Generator[Holder | None]:
        """Let the holder answer; None where this client is none, or cannot show that it remembers what it said."""
        self._destroy_expired()
        require_believed(record, self._floors)
        if record.expiry <= self._clock().timestamp():
            raise InvalidParameters("the epoch is over, and its keys are destroyed; begin another one")
        position = record.position_of(self._key.public_key)
        journal = None if position is None else self._journal(record, task)
        if position is None or journal is None:
            yield None
            return
        with closing(journal):
            holder = Holder(
                record,
                position,
                root=journal.root,
                nonce=journal.nonce,
                journal=journal,
                floors=self._floors,
                clock=self._clock,
                signing_key=self._key,
                forgets=True,
            )
            with closing(holder):
                yield holder

    def _journal(self, record: EpochRecord, task: bytes) -> FileJournal | None:
        digest = record.context.digest
        named = hashlib.sha256(bind(Label.ONE_MESSAGE_HOLDING, digest, task, self._key.public_key)).hexdigest()
        try:
            return FileJournal(self._folder / f"{record.expiry}-{named}", digest, boot_id(), self._coins)
        except (InvalidParameters, PeerError) as error:
            _LOG.warning("this client holds no more for %r, and counts as absent: %s", task, error)
            return None

    def _destroy_expired(self) -> None:
        """Destroy the keys of epochs that are over."""
        for folder in self._folder.glob("*-*"):
            named = _NAME.fullmatch(folder.name)
            is_over = named is not None and int(named[1]) <= self._clock().timestamp()
            if is_over and folder.is_dir() and not folder.is_symlink() and is_journal(folder):
                erase_files(folder)
                folder.rmdir()
