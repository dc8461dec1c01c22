"""Holder: keeps shares of one epoch, never signs two lists with the same upload, and answers only for whole lists.

Clients have left when the list is made, so the holder enforces their policy. Keys, shares and promises exist only in
the memory of one process, for a few hours. The holder wipes them when the keys expire, when the process forks, and when
its clocks show that the machine was suspended or resumed from a snapshot. It then draws new keys: it cannot open shares
sealed to the old ones, but can join later sums.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import RLock
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import numpy as np

from secagg.blame import from_server
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import ClassicSealingPair, sealing_pair
from secagg.crypto.labels import Label
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
    blaming,
)
from secagg.identifiers import ClientId
from secagg.session.certificates import SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.frames import encode_refusal
from secagg.wire import MessageKind, message_kind

from .configuration import BY_HOLDERS, NO_KEY, Agreement, EpochRecord, HolderKeys, Offer, SumTerms, draw_nonce
from .messages import challenge_of, leaf, sealing_info, share_context, upload_digest
from .parameters import CHECK_WORDS, FIELD, Parameters
from .requests import (
    Answer,
    CertifiedList,
    DeliveredShare,
    Delivery,
    Judged,
    ListSignature,
    OfferReceipt,
    Receipt,
    UploadList,
    Verdict,
    require_certificate,
    require_signed,
)
from .sharing import WORD, Elements, challenge_weights, decode_words, expand_share, holder_point, multiply, power_matrix

if TYPE_CHECKING:
    from secagg.crypto.hybrid_key_agreement import HybridKeyPair

MOST_UPLOADS: Final = 1 << 20
"""Limit on uploads of an epoch, which all use the same public polynomials."""
USUAL_LIFE: Final = timedelta(hours=12)
"""Lifetime of a holder's keys; clients refuse keys of more than a day."""
USUAL_MEMORY: Final = 1 << 30
"""Limit on the bytes of offers and of shares that wait for a list."""
MOST_TASKS: Final = 16
"""Number of tasks that a holder serves if its operator names none."""
MOST_SESSIONS: Final = 16
"""Number of offers of one task that a holder remembers; a new offer replaces the oldest."""
_MOST_DRIFT: Final = 60.0
"""Maximum difference between the wall clock and the monotonic clock, in seconds."""
_ROOT_BYTES: Final = 32
_LIVE: Final = WeakSet["Holder"]()


@dataclass(frozen=True, slots=True)
class _Accepted:
    client: ClientId
    terms: SumTerms
    share: HeldShare = field(repr=False)


@dataclass(slots=True)
class _Work:
    """State of a holder for one T0."""

    agreement: Agreement
    size: int
    """Bytes of the offer."""
    accepted: dict[bytes, _Accepted] = field(default_factory=dict[bytes, _Accepted])
    signed: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Stored signatures, by the digest of a list."""
    answered: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    """Stored answers, by the digest of a list."""

    @property
    def waiting(self) -> int:
        """Bytes of shares that no answer includes yet."""
        return sum(one.share.size for one in self.accepted.values())

    @property
    def held(self) -> int:
        return self.size + self.waiting

    def wipe(self, before: int | None = None) -> None:
        """Discard shares: all, or those of earlier rounds."""
        for upload, one in list(self.accepted.items()):
            if before is None or one.terms.round_number < before:
                one.share.wipe()
                del self.accepted[upload]


class Holder(Confined):
    """One position of one epoch: a ``Helper`` of the server.

    Claim OM-5: the model checker drives this class with a server that sends arbitrary lists.
    """

    def __init__(  # noqa: PLR0913 -- what a holder brings
        self,
        record: EpochRecord,
        position: int,
        *,
        coins: Coins,
        policy: ClientPolicy,
        clock: Callable[[], datetime],
        signing_key: SigningKey | None = None,
        life: timedelta = USUAL_LIFE,
        tasks: Collection[bytes] = (),
        memory: int = USUAL_MEMORY,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draw keys, and start.

        Args:
            coins: source of each set of keys.
            policy: the policy of this holder's clients.
            life: lifetime of a set of keys.
            tasks: the only tasks that it serves (default: the first ``MOST_TASKS``).
            memory: limit on the bytes of offers and waiting shares.
            ticks: seconds of a monotonic clock, which stops while the machine is suspended.
        Raises:
            AuthenticationFailed: the record is not signed by its authority.
            InvalidParameters: the authority is not the policy's, or the position has another key.
        """
        require_believed(record, policy)
        if record.holders[position].public_key != (NO_KEY if signing_key is None else signing_key.public_key):
            raise InvalidParameters("another holder has this position; pass the position of this holder's key")
        self.position, self._record = position, record
        self._key, self._policy, self._clock, self._coins = signing_key, policy, clock, coins
        self._life, self._tasks, self._memory, self._ticks = life, frozenset(tasks), memory, ticks
        self._lock, self._process = RLock(), os.getpid()
        self._work, self._list_of, self._is_over = dict[bytes, _Work](), dict[bytes, bytes](), False
        self._begin()
        _LIVE.add(self)

    def _begin(self) -> None:
        """Draw new keys, to which nothing is sealed yet."""
        now = self._clock().timestamp()
        self._began, self._uploads = (now, self._ticks()), 0
        self._until = min(int((self._clock() + self._life).timestamp()), self._record.expiry)
        with Secret.random("holder root", _ROOT_BYTES, self._coins) as root:
            nonce = draw_nonce(self._coins)
            keys, self._pair = make_holder_keys(
                self._record, self.position, root, nonce, until=self._until, key=self._key
            )
        self.keys = keys.encode()

    def answer(self, request: bytes) -> bytes:
        """Return the answer, or an encoded refusal; no request from the server raises."""
        try:
            return self.respond(request)
        except SecAggError as error:
            return encode_refusal(error)
        except Exception:  # noqa: BLE001 -- whatever fails, serve the other requests
            return encode_refusal(InternalError("a holder failed; see its log"))

    def respond(self, request: bytes) -> bytes:
        """Return the answer to a request of the server; a repeated request gets the same bytes.

        Raises:
            SecAggError: the request is refused and nothing of it kept; earlier shares may have made room for it.
        """
        # One request at a time: otherwise two concurrent lists could both pass the check.
        with self._lock, blaming(*from_server()):
            return self._respond(request)

    def _respond(self, request: bytes) -> bytes:
        self._require_open()
        match message_kind(request):
            case MessageKind.ONE_MESSAGE_RECORD if request == self._record.encode():
                self._begin_early()
                return self.keys
            case MessageKind.ONE_MESSAGE_OFFER:
                return self._admit(request)
            case MessageKind.ONE_MESSAGE_DELIVERY:
                return self._receive(request)
            case MessageKind.ONE_MESSAGE_LIST | MessageKind.ONE_MESSAGE_CERTIFIED_LIST:
                return self._promise(request)
            case kind:
                raise UnexpectedMessage(expected="a request to a holder", received=kind.name)

    def end(self) -> None:
        """Wipe the keys and all shares."""
        with self._lock:
            self._is_over = True
            self._forget()

    def end_if_expired(self) -> bool:
        """Wipe expired keys, and end if the epoch is over; return whether it is over."""
        with self._lock:
            now = self._clock().timestamp()
            if not self._is_over and now >= self._record.expiry:
                self.end()
            began, ticks = self._began
            has_stood_still = abs((now - began) - (self._ticks() - ticks)) > _MOST_DRIFT
            if not self._is_over and (now >= self._until or has_stood_still):
                self._forget()
                self._begin()
            return self._is_over

    def seconds_left(self) -> float:
        """Return the remaining lifetime of these keys."""
        return self._until - self._clock().timestamp()

    def _begin_early(self) -> None:
        """Draw new keys at half of their lifetime if nothing waits, so that no sum outlives its keys."""
        is_half_over = self.seconds_left() < self._life.total_seconds() / 2 and self._until < self._record.expiry
        if is_half_over and not any(work.waiting for work in self._work.values()):
            self._forget()
            self._begin()

    def leave_fork(self) -> None:
        """Wipe keys and shares in a forked process, without the lock: the thread that held it does not exist here."""
        self._is_over = True
        self._forget()

    def _require_open(self) -> None:
        if self._process != os.getpid():
            # A fork does not know what this process answers.
            raise Misuse("this holder was forked; start a new holder in the child process", reason=Reason.ALREADY_SPENT)
        if self.end_if_expired():
            raise InvalidParameters("the epoch is over and its keys are wiped; start a new epoch")

    def _forget(self) -> None:
        self._pair.wipe()
        for work in self._work.values():
            work.wipe()
        self._work.clear()
        self._list_of.clear()

    # --- Offer and delivery -------------------------------------------------------------------------------------------

    def _admit(self, request: bytes) -> bytes:
        offer = Offer.decode(request)
        agreement = offer.agree()
        self._require_own(agreement)
        agreement.require_accepted(self._policy, self._clock(), BY_HOLDERS)
        if agreement.t0 not in self._work:
            self._make_room(agreement.configuration.task)
            self._require_memory(len(request))
            self._work[agreement.t0] = _Work(agreement, len(request))
        receipt = OfferReceipt(t0=agreement.t0, holder=self.position, terms=offer.terms.digest)
        return self._signed(agreement, Label.ONE_MESSAGE_OFFER_RECEIPT, receipt)

    def _make_room(self, task: bytes) -> None:
        """Refuse a task that this holder does not serve, and drop the oldest offer of a task that has many."""
        tasks = self._tasks or {work.agreement.configuration.task for work in self._work.values()}
        if task not in tasks and (self._tasks or len(tasks) >= MOST_TASKS):
            known = "the tasks that its operator named" if self._tasks else f"the first {MOST_TASKS} tasks"
            raise _wrong(f"this holder serves only {known}, not {task!r}", Reason.NOT_ELIGIBLE)
        same = [t0 for t0, work in self._work.items() if work.agreement.configuration.task == task]
        if len(same) >= MOST_SESSIONS:
            self._work.pop(same[0]).wipe()

    @property
    def _held(self) -> int:
        return sum(work.held for work in self._work.values())

    def _require_memory(self, more: int) -> None:
        if (held := self._held) + more > self._memory:
            raise _wrong(
                f"{held} of this holder's {self._memory} bytes are in use; run sums one after another, or give it "
                "more memory",
                Reason.BUFFER_FULL,
            )

    def _require_own(self, agreement: Agreement) -> None:
        own = agreement.epoch.keys[self.position]
        if own is None or own.encode() != self.keys or agreement.record != self._record:
            raise _wrong("the offer has other keys for this holder than it published", Reason.WRONG_SESSION)

    def _receive(self, request: bytes) -> bytes:
        delivery = Delivery.decode(request)
        work = self._work_on(delivery.t0)
        judged, accepted = self._judge(work, delivery)
        try:
            self._require_room(work, accepted)
        except PeerMisbehaved:
            for one in accepted.values():
                one.share.wipe()
            raise
        receipt = Receipt(t0=work.agreement.t0, holder=self.position, judged=judged)
        signed = self._signed(work.agreement, Label.ONE_MESSAGE_RECEIPT, receipt)
        work.accepted |= accepted
        self._uploads += len(accepted)
        return signed

    def _require_room(self, work: _Work, accepted: dict[bytes, _Accepted]) -> None:
        """Refuse uploads beyond the limit of one set of public polynomials, or of memory.

        Shares of the task's earlier rounds are discarded first.
        """
        if self._uploads + len(accepted) > MOST_UPLOADS:
            raise _wrong(f"a set of keys serves at most {MOST_UPLOADS} uploads; ask for new keys", Reason.BUFFER_FULL)
        task, more = work.agreement.configuration.task, sum(one.share.size for one in accepted.values())
        if accepted and self._held + more > self._memory:
            first = min(one.terms.round_number for one in accepted.values())
            for other in self._work.values():
                if other.agreement.configuration.task == task:
                    other.wipe(before=first)
        self._require_memory(more)

    def _signed(
        self, agreement: Agreement, label: Label, made: OfferReceipt | Receipt | ListSignature | Answer
    ) -> bytes:
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
        """Sign a list, or answer it once a quorum has signed it.

        No other list with any of these uploads is signed afterwards.
        """
        is_certificate = message_kind(request) is MessageKind.ONE_MESSAGE_CERTIFIED_LIST
        certified = CertifiedList.decode(request) if is_certificate else None
        upload_list = UploadList.decode(certified.upload_list if certified else request)
        work, digest = self._work_on(upload_list.t0), upload_list.digest
        stored = work.signed if certified is None else work.answered
        if digest in stored:
            return stored[digest]
        if certified is not None:
            require_certificate(work.agreement, digest, certified)
        self._require_whole(work, upload_list)
        reply = self._signature(work, digest) if certified is None else self._answer(work, upload_list)
        self._place(work, upload_list, reply)
        return reply

    def _require_whole(self, work: _Work, upload_list: UploadList) -> None:
        """Refuse a list with an upload that this holder did not accept, or that breaks its clients' policy."""
        configuration, terms = work.agreement.configuration, upload_list.terms
        clients = [listed.client for listed in upload_list.listed]
        if clients != sorted(set(clients)):
            raise _wrong("a list's client ids must increase", Reason.NOT_CANONICAL)
        if not configuration.minimum_cohort <= len(clients) <= configuration.parameters.capacity:
            raise _wrong(
                f"a list of {len(clients)} is not in {configuration.minimum_cohort}.."
                f"{configuration.parameters.capacity}",
                Reason.SURVIVORS_INVALID,
            )
        for listed in upload_list.listed:
            accepted = work.accepted.get(listed.upload)
            if accepted is None or accepted.client != listed.client:
                raise _wrong(
                    f"this holder did not accept that upload of {listed.client}, and answers for a whole list or "
                    "nothing",
                    Reason.SURVIVORS_INVALID,
                )
            if accepted.terms != terms:
                raise _wrong(f"{listed.client} uploaded for another round or model", Reason.MODEL_MISMATCH)
        self._require_free(upload_list)

    def _require_free(self, upload_list: UploadList) -> None:
        """Refuse a list with an upload that is on another list."""
        digest = upload_list.digest
        if any(self._list_of.get(upload, digest) != digest for upload in _uploads(upload_list)):
            raise _wrong("an upload can be on only one list; ask for that list again", Reason.ALREADY_SPENT)

    def _signature(self, work: _Work, digest: bytes) -> bytes:
        made = ListSignature(t0=work.agreement.t0, holder=self.position, upload_list=digest)
        return self._signed(work.agreement, Label.ONE_MESSAGE_SIGNED_LIST, made)

    def _answer(self, work: _Work, upload_list: UploadList) -> bytes:
        sums = summed(work.agreement.parameters, (work.accepted[upload].share for upload in _uploads(upload_list)))
        answer = Answer(t0=work.agreement.t0, holder=self.position, upload_list=upload_list.digest, sums=sums)
        return self._signed(work.agreement, Label.ONE_MESSAGE_ANSWER, answer)

    def _place(self, work: _Work, upload_list: UploadList, reply: bytes) -> None:
        digest, uploads = upload_list.digest, _uploads(upload_list)
        self._list_of.update(dict.fromkeys(uploads, digest))
        if message_kind(reply) is MessageKind.ONE_MESSAGE_LIST_SIGNATURE:
            work.signed[digest] = reply
            return
        work.answered[digest] = reply
        for upload in uploads:
            work.accepted[upload].share.wipe()

    def _work_on(self, t0: bytes) -> _Work:
        if t0 not in self._work:
            raise _wrong("this holder has not received the offer with this T0; send it first", Reason.WRONG_SESSION)
        return self._work[t0]

    def __repr__(self) -> str:
        return f"<Holder {self.position} of epoch {self._record.number}>"


def make_holder_keys(  # noqa: PLR0913 -- what the message has
    record: EpochRecord, position: int, root: Secret, nonce: bytes, *, until: int, key: SigningKey | None
) -> tuple[HolderKeys, ClassicSealingPair | HybridKeyPair]:
    """Derive a holder's key pair for an epoch, and the message that publishes it."""
    pair = sealing_pair(record.suite, root, record.context)
    keys = HolderKeys(
        record=record.context.digest, position=position, sealing_key=pair.public_key.encoded, nonce=nonce, until=until
    )
    return replace(keys, signature=record.sign(key, Label.ONE_MESSAGE_HOLDER_KEYS, *keys.parts)), pair


def _leave_fork() -> None:
    for holder in _LIVE:
        holder.leave_fork()


os.register_at_fork(after_in_child=_leave_fork)


def require_believed(record: EpochRecord, policy: ClientPolicy) -> None:
    """Refuse an epoch that the holder's authority did not sign, before storing anything for it."""
    record.verify(record.authority, record.signature, Label.ONE_MESSAGE_RECORD, record.statement)
    if record.authority != (policy.authority or NO_KEY):
        raise InvalidParameters("an authority that this holder does not trust signed the epoch; use the trusted one")


def _uploads(upload_list: UploadList) -> tuple[bytes, ...]:
    return tuple(listed.upload for listed in upload_list.listed)


def _wrong(sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=UNDECIDED)


class HeldShare(Confined):
    """An opened share: the words of the secret polynomials and of the masking polynomial."""

    def __init__(self, parameters: Parameters, position: int, words: Elements) -> None:
        self.parameters = parameters
        self.position = position
        self._words = words

    def require_on(self, polynomial: bytes, challenge: bytes) -> None:
        """Refuse a share that is off the dealer's polynomials.

        A false share passes with probability 65521^-8 per challenge.

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
                f"the share of holder {self.position} is not on the dealer's polynomial; exclude the client",
                reason=Reason.COMMITMENT_MISMATCH,
                culprits=UNDECIDED,
            )

    def secret_words(self) -> Elements:
        if not self.size:
            raise Misuse("this share was wiped", reason=Reason.ALREADY_SPENT)
        return self._words[: self.parameters.secret_columns]

    @property
    def size(self) -> int:
        """Length of its words in bytes; zero once wiped."""
        return int(self._words.nbytes)

    def wipe(self) -> None:
        self._words[:] = 0
        self._words = self._words[:0]

    def __repr__(self) -> str:
        return f"<HeldShare of holder {self.position}>"


def open_share(parameters: Parameters, position: int, share: Secret, context: bytes) -> HeldShare:
    """Decode a share that the dealer sealed for the holder at a position."""
    due = parameters.share_bytes(position)
    if len(share) != due:
        reason = Reason.TRUNCATED if len(share) < due else Reason.TRAILING_BYTES
        raise MalformedMessage(f"the share of holder {position} must have {due} bytes; got {len(share)}", reason=reason)
    count = parameters.secret_columns + CHECK_WORDS
    if position < parameters.seeds:
        return HeldShare(parameters, position, expand_share(share, Label.ONE_MESSAGE_SHARE, context, count))
    return HeldShare(parameters, position, decode_words(share.expose(), count))


def summed(parameters: Parameters, shares: Iterable[HeldShare]) -> bytes:
    """Return a holder's answer: the sum of its shares over one list, without the masking polynomial's words."""
    total = np.zeros(parameters.secret_columns, np.int64)
    for share in shares:
        total += share.secret_words()
    words = (total % FIELD).astype(WORD).tobytes()
    total[:] = 0
    return words
