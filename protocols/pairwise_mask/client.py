"""Client side of a session: which message it expects, how it answers, and how it handles faults.

The round files contain the mathematics. ``Client`` enforces the order: it answers each kind of message once, repeats
the same answer to the same bytes, and wipes its secrets and falls silent after any fault.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from hmac import compare_digest
from threading import RLock
from typing import TYPE_CHECKING

from secagg.blame import from_server
from secagg.contract.layout import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    NOBODY,
    CapacityExceeded,
    Fault,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId
from secagg.wire import MessageKind, message_kind, owned_bytes

from .configuration import Seat, SessionConfiguration, noise_of
from .member import CLIENT_TRANSITIONS, ClientState, MemberParts, advance
from .round0_advertise_keys import Advertised, AdvertisedKeys, accept_advertised_keys, advertise_keys
from .round1_share_keys import DeliveredShares, Shared, share_keys
from .round2_masked_input import Masked, mask_input
from .rounds3_4_unmasking import Confirmed, SurvivorSet, UnmaskingRequest, confirm_survivors, reveal_shares

if TYPE_CHECKING:
    from secagg.privacy.client_noise import ClientNoise
    from secagg.session.roles import LazyUpdate, Subject

    from .client_record import Answers, Recorder, Step


@dataclass(slots=True, eq=False, repr=False)
class PairwiseMember(MemberParts):
    """A client across sessions: its identity, policy, coins and ledgers."""

    recording: Callable[[Coins], Recorder] | None = field(default=None, kw_only=True)
    """Creates the recorder of a session that can be suspended: ``partial(Recorder, latch)``."""

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Join a session, or resume a suspended one."""
        client = Client(self, subject, update, None if self.recording is None else self.recording(self.coins))
        if suspended is not None:
            client.resume(suspended)
        return client

    def __repr__(self) -> str:
        return f"<PairwiseMember {self.client}>"


class Client(Confined):
    """One client in one session. It does no I/O: bytes in, bytes out.

    Security: a client lives in one process. It cannot be pickled, and it refuses to work in a forked process. It cannot
        detect a virtual machine resumed from a snapshot, so never use one there. With a latch, a client can be
        suspended and then resumed once, in another process.
    Claim PM-6: the model checker drives this class, which decides from its messages, its settings and its ledgers.
    """

    def __init__(
        self, member: MemberParts, subject: Subject, update: LazyUpdate | None = None, recording: Recorder | None = None
    ) -> None:
        """Prepare to take part in a session.

        Args:
            subject: what the session must be about; the client refuses any other offer.
            update: uploaded once; needed when the message that asks for the upload arrives.
            recording: remembers the session so that it can be suspended, if given.
        """
        self._member, self._subject, self._update, self._recording = member, subject, update, recording
        self._coins = member.coins if recording is None else recording.coins
        self._state = ClientState.AWAITING_OFFER
        self._step: Step | None = None
        self._configuration: SessionConfiguration | None = None
        self._answered: Answers = {}
        self._faults = list[Fault]()
        self._process = os.getpid()
        self._lock = RLock()
        """Makes checking and recording an answer atomic when messages arrive on several threads."""

    @property
    def client(self) -> ClientId:
        return self._member.client

    @property
    def configuration(self) -> SessionConfiguration | None:
        return self._configuration

    @property
    def state(self) -> ClientState:
        return self._state

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Unusable messages of neighbours, for this client's log."""
        return tuple(self._faults)

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message from the server.

        Raises:
            UnexpectedMessage: the message is not expected now, or its answer was the upload, which is returned only
                once; nothing has changed.
            MalformedMessage: the header cannot be parsed; nothing has changed. A malformed body ends the session.
            InvalidParameters, CapacityExceeded: the offer is weaker than this client's policy, has another subject,
                or leaves no room for the noise; the client has only remembered a newer standing. After the offer, these
                end the session.
            PeerError, ThresholdNotMet: the session is over for this client, and its secrets are wiped.
        Security: the same bytes may be delivered any number of times. Different bytes of a kind that was already
            answered are an attack and end the session. The answer to ``DELIVERED_SHARES`` is the upload; treat the
            input as released once it is returned. If an edge seed is unusable, the client returns a complaint instead
            and leaves: its state is ``ABORTED``, its input is unspent, and ``faults`` says why.
        """
        self._require_own_process()
        with self._lock, blaming(*from_server()):
            return self._answer(owned_bytes(message))

    def _answer(self, message: bytes) -> bytes:
        kind = message_kind(message)
        digest = hashlib.sha256(message).digest()
        if kind in self._answered:
            return self._answer_again(kind, digest)
        due = CLIENT_TRANSITIONS.get(self._state)
        if due is None or kind is not due[0]:
            raise self._unexpected(kind)
        try:
            reply, chosen = self._step_on(kind, message)
            state = advance(CLIENT_TRANSITIONS, self._state, kind, chosen)
        except BaseException as error:
            # No key pair was made for a refused offer, so the client may accept another one.
            refusals = InvalidParameters | CapacityExceeded | Misuse
            if not isinstance(error, refusals) or kind is not MessageKind.SESSION_OFFER:
                self._abort()
            elif self._recording is not None:
                self._recording.coins.wipe()
            raise
        if state is ClientState.ABORTED:
            self._abort()
            return reply
        self._state = state
        self._answered[kind] = (digest, b"" if kind is MessageKind.DELIVERED_SHARES else reply)
        if self._recording is not None:
            self._recording.note(kind, message)
            if state is ClientState.COMPLETED:
                self._recording.end()
        return reply

    def _answer_again(self, kind: MessageKind, digest: bytes) -> bytes:
        before, reply = self._answered[kind]
        if not compare_digest(before, digest):
            self._abort()
            raise PeerMisbehaved(
                f"a second {kind.name} differs from the one already answered",
                reason=Reason.ALREADY_ANSWERED,
                culprits=from_server(),
            )
        if not reply:
            raise UnexpectedMessage(
                expected="a later message; the upload was already returned, and the client keeps no copy",
                received=kind.name,
                reason=Reason.ALREADY_SPENT,
                culprits=NOBODY,
            )
        return reply

    def abort(self) -> None:
        """Leave the session and wipe every secret; an uploaded input stays spent, a completed session completed."""
        if self._process != os.getpid():
            # A thread of the other process may hold the lock here for ever.
            self._recording, self._lock = None, RLock()
        with self._lock:
            self._state = self._state if self._state is ClientState.COMPLETED else ClientState.ABORTED
            self._wipe()

    def _step_on(self, kind: MessageKind, message: bytes) -> tuple[bytes, ClientState | None]:
        step, member = self._step, self._member
        match kind, step:
            case MessageKind.SESSION_OFFER, None:
                configuration = SessionConfiguration.decode(message)
                self._require_subject(configuration)
                noise = self._noise_of(configuration)
                if member.privacy is not None:
                    member.privacy.require_room(noise)
                advertised, advertisement = advertise_keys(member, configuration, self._coins)
                self._step, self._configuration = advertised, configuration
                return advertisement.encode(), None
            case MessageKind.ADVERTISED_KEYS, Advertised():
                key_set = accept_advertised_keys(member, step, AdvertisedKeys.decode(message, step.configuration))
                shared, encrypted = share_keys(member, step, key_set, self._coins)
                self._step = shared
                return encrypted.encode(), None
            case MessageKind.DELIVERED_SHARES, Shared():
                roster, position = step.key_set.roster, step.key_set.position
                delivered = DeliveredShares.decode(message, Seat(roster, position))
                masked, upload, faults = mask_input(member, step, delivered, lambda: self._taken(roster.configuration))
                self._faults += faults
                self._step = masked or step
                return upload.encode(), _state_after_upload(masked)
            case MessageKind.SURVIVOR_SET, Masked():
                survivors = SurvivorSet.decode(message, step.key_set.roster)
                confirmed, signature = confirm_survivors(member, step, survivors)
                self._step = confirmed
                return signature.encode(), None
            case MessageKind.UNMASKING_REQUEST, Masked() | Confirmed():
                roster = (step.masked if isinstance(step, Confirmed) else step).key_set.roster
                reply = reveal_shares(member, step, UnmaskingRequest.decode(message, roster)).encode()
                step.wipe()
                self._step = None
                return reply, None
            case _:
                raise self._unexpected(kind)

    def _require_subject(self, configuration: SessionConfiguration) -> None:
        """Refuse a session with another subject; a malicious server may offer any.

        If the model arrives later, it is compared with the model that the update was trained from.
        """
        subject, noise, terms = self._subject, self._member.noise, self._subject.terms_digest
        if noise is not None:
            terms = noise.bound_to(terms, self._member.policy.assumed_corrupted)
        for name, mine, offered in (
            ("task", subject.task, configuration.task),
            ("round_number", subject.round_number, configuration.round_number),
            ("model_digest", subject.model_digest or configuration.model_digest, configuration.model_digest),
            ("layout", subject.layout, configuration.layout),
            ("application_digest (capacity, noise, terms)", terms, configuration.application_digest),
        ):
            if mine != offered:
                raise InvalidParameters(
                    f"the offer's {name} differs from this client's; offer what the client trained for",
                    reason=Reason.BELOW_FLOOR,
                )
        if configuration.maximum_population > subject.capacity:
            raise InvalidParameters(
                f"{configuration.maximum_population} clients exceed the decoder's capacity of {subject.capacity}; "
                "offer fewer clients or a wider ring",
                reason=Reason.BELOW_FLOOR,
            )

    def _taken(self, configuration: SessionConfiguration) -> Payload:
        """Run every check that may refuse because of the sum, charge the ledgers, and make the update.

        Claim PM-7: noise is part of the input, so it is in the one sum and nowhere else.
        """
        member, noise = self._member, self._noise_of(configuration)
        if self._update is None:
            raise InvalidParameters("the message that asks for the upload must contain the model, and does not")
        spent = self._update.spent(self._subject)
        if spent.model != configuration.model_digest:
            raise InvalidParameters(
                "the session's model is not the one that the update was trained from", reason=Reason.BELOW_FLOOR
            )
        if member.privacy is not None:
            member.privacy.require_room(noise)

        def charge() -> None:
            # The budget comes last, so that an upload refused by another ledger does not spend it.
            member.charge(spent)
            if member.privacy is not None:
                member.privacy.charge(noise)

        payload = self._update.take(configuration.layout, charge=charge).payload
        return payload if noise is None else noise.add_to(payload, member.coins)

    def _noise_of(self, configuration: SessionConfiguration) -> ClientNoise | None:
        return noise_of(configuration, self._member.noise, self._member.policy.assumed_corrupted)

    def _abort(self) -> None:
        self._state = ClientState.ABORTED
        self._wipe()

    def _wipe(self) -> None:
        if self._step is not None:
            self._step.wipe()
        self._step = None
        self._answered.clear()
        if self._recording is not None:
            self._recording.end()

    # --- Between two messages -----------------------------------------------------------------------------------------

    def suspend(self) -> Secret | None:
        """Return the record that ``PairwiseMember.join`` resumes, and stop answering; None if nothing is left to do.

        A completed session stays completed; this object can no longer continue any other.

        Raises:
            Misuse: the client has no latch, or is a copy in a forked process.
        """
        self._require_own_process()
        with self._lock:
            record = None
            if self._step is not None:
                if self._recording is None:
                    raise Misuse("suspending a client needs a latch, so that each record is resumed only once")
                record = self._recording.suspended(self.client, self._state, self._step, self._answered)
                # The session will continue, so the latch keeps its number.
                self._recording = None
            self.abort()
            return record

    def resume(self, suspended: Secret) -> None:
        """Continue from this client's record, in any process, and wipe the record.

        Raises:
            Misuse: the record was already resumed, is not the newest, belongs to another client, or its session is
                over; or this client has no latch, or has already begun a session. Another client's record is not wiped.
            MalformedMessage, PeerError: the bytes are not a record, or were modified in storage.
            InvalidParameters: the session is weaker than the client's current policy, or has another subject.
        """
        self._require_own_process()
        with self._lock:
            recording = self._recording
            if recording is None or self._state is not ClientState.AWAITING_OFFER:
                raise Misuse("resume a suspended state with a new client that has the same latch")
            with blaming():
                recording.claim(suspended, self.client)
            try:
                self._configuration, self._state, self._step, self._answered = recording.resumed(
                    suspended, self._member, self._admit
                )
            except BaseException as error:
                if isinstance(error, PeerError):
                    # Everything was verified on arrival, so it was modified in storage.
                    error.culprits = NOBODY
                self._abort()
                raise

    def _require_own_process(self) -> None:
        """Wipe a copy made by a fork; the session, and its number in the latch, belong to the parent."""
        if self._process != os.getpid():
            self._recording = None
            self._abort()
            raise Misuse("this client was forked into another process; start a separate session there")

    def _admit(self, configuration: SessionConfiguration) -> None:
        """Check a resumed session against the client's current policy."""
        configuration.require_accepted(self._member.policy)
        self._require_subject(configuration)

    def _unexpected(self, kind: MessageKind) -> UnexpectedMessage:
        due = CLIENT_TRANSITIONS.get(self._state)
        expected = due[0].name if due else f"no message, because the session is {self._state}"
        return UnexpectedMessage(expected=expected, received=kind.name)

    def __repr__(self) -> str:
        return f"<Client {self.client}, {self._state}>"


def _state_after_upload(masked: Masked | None) -> ClientState:
    if masked is None:
        return ClientState.ABORTED
    roster = masked.key_set.roster
    if roster.configuration.is_active and masked.key_set.position in roster.committee:
        return ClientState.AWAITING_SURVIVOR_SET
    return ClientState.AWAITING_UNMASKING_REQUEST
