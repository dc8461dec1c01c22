"""A holder: it keeps shares of one epoch, puts an upload on one list ever, and answers for all of a list or nothing.

The client has left when the list is made, so the holder enforces its floors. Keys, shares and promises exist only in
the memory of one process: a holder that restarts has other keys, opens nothing that was sealed to the old ones, and
takes part in the sums that begin later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import RLock
from typing import Final

import numpy as np

from secagg.blame import Evidence, culprits
from secagg.crypto.entropy import Coins
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
)
from secagg.identifiers import ClientId
from secagg.session.certificates import SigningKey
from secagg.session.frames import encode_refusal
from secagg.wire import MessageKind, message_kind

from .configuration import NO_KEY, Agreement, EpochRecord, Offer, SumTerms, draw_nonce, make_holder_keys
from .floors import Floors
from .messages import challenge_of, leaf, sealing_info, share_context, upload_digest
from .parameters import CHECK_WORDS, FIELD, Parameters
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
_ROOT_BYTES: Final = 32


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
    """One position of one epoch: a ``Helper`` of the server.

    Claim OM-5: the model checker drives this class, by a server that shows lists as it likes.
    """

    def __init__(  # noqa: PLR0913 -- what a holder brings
        self,
        record: EpochRecord,
        position: int,
        *,
        coins: Coins,
        floors: Floors,
        clock: Callable[[], datetime],
        signing_key: SigningKey | None = None,
    ) -> None:
        """Draw keys, and begin.

        Args:
            floors: floors of this holder's clients.
        Raises:
            AuthenticationFailed: the record is not signed by its authority.
            InvalidParameters: another authority than the floors', or another key at this position.
        """
        require_believed(record, floors)
        if record.holders[position].public_key != (NO_KEY if signing_key is None else signing_key.public_key):
            raise InvalidParameters("another holder stands at this position; name the one that has this key")
        self.position, self._record = position, record
        self._key, self._floors, self._clock = signing_key, floors, clock
        self._lock, self._process = RLock(), os.getpid()
        with Secret.random("holder root", _ROOT_BYTES, coins) as root:
            keys, self._pair = make_holder_keys(record, position, root, draw_nonce(coins), signing_key)
        self.keys = keys.encode()
        self._work, self._list_of, self._is_over = dict[bytes, _Work](), dict[bytes, bytes](), False

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
                raise UnexpectedMessage(
                    expected="a request to a holder", received=kind.name, culprits=culprits(Evidence.REFUSED_REQUEST)
                )

    def end(self) -> None:
        """Destroy the epoch's key and all shares."""
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
            # A fork hears nothing of what this process answers.
            raise Misuse(
                "this holder was forked into another process; start another one there", reason=Reason.ALREADY_SPENT
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
        agreement = offer.agree()
        if agreement.t0 not in self._work:
            self._require_own(agreement)
            self._floors.admit(agreement, self._clock())
            self._work[agreement.t0] = _Work(agreement)
        return self._receipt(agreement, ())

    @property
    def _uploads(self) -> int:
        """Number of uploads that were accepted in this epoch."""
        return sum(len(one.accepted) for one in self._work.values())

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
        """Sign a list, or answer it once a quorum has signed it.

        No other list has any of its uploads ever after.
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
        for listed in upload_list.listed:
            accepted = work.accepted.get(listed.upload)
            if accepted is None or accepted.client != listed.client:
                raise _wrong(
                    f"this holder did not accept that upload of {listed.client}, and answers for all of a list or "
                    "nothing",
                    Reason.SURVIVORS_INVALID,
                )
            if accepted.terms != terms:
                raise _wrong(f"{listed.client} uploaded for another round or model", Reason.MODEL_MISMATCH)
        digest = upload_list.digest
        if any(self._list_of.get(upload, digest) != digest for upload in _uploads(upload_list)):
            raise _wrong("an upload is on one list ever; ask for that one again", Reason.ALREADY_SPENT)

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
            raise _wrong("this holder knows no offer with this T0; send the offer first", Reason.WRONG_SESSION)
        return self._work[t0]

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
    return PeerMisbehaved(sentence, reason=reason, culprits=culprits(Evidence.REFUSED_REQUEST))


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
