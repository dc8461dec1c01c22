"""One client in one attempt: the message that it expects, its answers, and its reaction to anything wrong.

The mathematics is in the round files. This class holds the latches: each kind of message is answered once, the same
bytes again get the same answer again, and after any fault the secrets are overwritten and nothing is answered.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from hmac import compare_digest
from threading import RLock
from typing import Final, Protocol

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
    blaming,
)
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.wire import MessageKind, message_kind, owned_bytes

from .configuration import SessionConfiguration
from .floors import ClientFloors
from .member import ClientInput, Member, SessionTerms
from .round0_advertise_keys import Advertised, AdvertisedKeys, accept_advertised_keys, advertise_keys
from .round1_share_keys import DeliveredShares, Shared, share_keys
from .round2_masked_input import Masked, mask_input
from .round3_consistency_check import Confirmed, SurvivorSet, confirm_survivors
from .round4_unmasking import UnmaskingRequest, reveal_shares
from .transitions import CLIENT_TRANSITIONS, ClientState, advance

Step = Advertised | Shared | Masked | Confirmed
Answers = dict[MessageKind, tuple[bytes, list[bytes]]]
"""Digest of each answered message, and the answer, by kind."""
BEFORE_UPLOAD: Final = frozenset({ClientState.AWAITING_ADVERTISED_KEYS, ClientState.AWAITING_DELIVERED_SHARES})


class Recording(Protocol):
    """Recorder of a session, so that it can be suspended; without one a client holds nothing but its step."""

    @property
    def coins(self) -> Coins:
        """The client's coins, remembered as far as its keys follow from them."""
        ...

    def note(self, kind: MessageKind, message: bytes) -> None:
        """Remember a message that was answered, as far as it is needed later."""

    def suspended(self, client: ClientId, state: ClientState, step: Step, answered: Answers) -> Secret:
        """Return the record of a client, and forget it."""
        ...

    def claim(self, suspended: Secret) -> None:
        """Claim the number of a record, once and for all, and overwrite the record."""

    def resumed(
        self, member: Member, admit: Callable[[SessionConfiguration, ClientState], None]
    ) -> tuple[SessionConfiguration, ClientState, Step, Answers]:
        """Return where the record that was claimed stands, if ``admit`` does not refuse its session."""
        ...

    def end(self) -> None:
        """Wipe, and let no record of this session be resumed any more."""


class Client(Confined):
    """A client of a session, without input or output of its own: bytes in, bytes out.

    Security: a client lives in one process and in one memory. It cannot be pickled, and it refuses to work in a
        forked process; a machine that is resumed from a snapshot must not use it either, which it cannot notice. With
        a latch it can be suspended, and resumed in another process, once.
    Claim PM-6: the model checker drives this class; it decides from its messages alone.
    """

    def __init__(  # noqa: PLR0913 -- what a client brings into a session
        self,
        client: ClientId,
        client_input: ClientInput,
        *,
        floors: ClientFloors,
        capacity: int,
        coins: Coins,
        authority: Authority | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        terms: SessionTerms | None = None,
        threads: int = 1,
        recording: Recording | None = None,
    ) -> None:
        """Prepare to take part.

        Args:
            client_input: the encoded update and its weight; uploaded once.
            floors: what the client insists on, whatever the server offers.
            capacity: of the client's own decoder; more weight than that is refused.
            coins: ``SystemCoins()`` in production.
            authority: who certifies identities; for active mode, with the client's own key and certificate.
            terms: what the session has to be about; an offer about something else is refused. Active mode needs them.
            threads: how many threads expand masks and verify signatures.
            recording: what remembers a session that can be suspended, such as ``client_record.Recorder``.
        """
        if certificate is not None and certificate.client != client:
            raise InvalidParameters(f"the certificate is that of {certificate.client} and not of {client}")
        if certificate is not None and signing_key is not None and certificate.public_key != signing_key.public_key:
            raise InvalidParameters("the certificate is for another key than the signing key")
        self._recording = recording
        self._member: Member = Member(
            client=client,
            floors=floors,
            capacity=capacity,
            coins=coins if recording is None else recording.coins,
            authority=authority,
            signing_key=signing_key,
            certificate=certificate,
            threads=threads,
        )
        self._input = client_input
        self._terms = terms
        self._state = ClientState.AWAITING_OFFER
        self._step: Step | None = None
        self._configuration: SessionConfiguration | None = None
        self._answered: Answers = {}
        self._process = os.getpid()
        self._lock = RLock()
        """Whether a kind was answered and the answer are one step, from whichever thread messages come."""
        self.complaints = list[PeerError]()
        """Unusable messages of neighbours; the server is told of seeds of edges, nobody of shares."""

    @property
    def client(self) -> ClientId:
        """The client's identifier."""
        return self._member.client

    @property
    def configuration(self) -> SessionConfiguration | None:
        """Configuration of the session, once an offer was accepted."""
        return self._configuration

    @property
    def state(self) -> ClientState:
        """The message that the client waits for."""
        return self._state

    def receive(self, message: bytes) -> list[bytes]:
        """Take a message from the server, and return what to send back.

        Raises:
            UnexpectedMessage: it is not expected now; nothing has changed.
            MalformedMessage: its header does not read; nothing has changed. If the rest does not read, as below.
            InvalidParameters: an offer goes below this client's floors; nothing was drawn, and nothing has changed.
            PeerError, ThresholdNotMet: the session is over for this client, and its secrets are overwritten.
        Security: deliver the same bytes as often as you like. Different bytes of a kind that was answered are an attack
            and end the session. The answer to ``DELIVERED_SHARES`` is the upload: from the moment that it is
            returned the input counts as released. If the seed of an edge is unusable it is a complaint instead, and
            the client has left: its state is ``ABORTED``, its input unspent, and ``complaints`` says why.
        """
        with self._lock, blaming(ServerId()):
            return self._receive(owned_bytes(message))

    def _receive(self, message: bytes) -> list[bytes]:
        kind = message_kind(message)
        if self._process != os.getpid():
            self._abort()
            raise Misuse("this client was forked into another process; start a session of its own there")
        digest = hashlib.sha256(message).digest()
        if kind in self._answered:
            before, reply = self._answered[kind]
            if compare_digest(before, digest):
                return list(reply)
            self._abort()
            raise PeerMisbehaved(
                f"a second {kind.name} differs from the one that was answered",
                reason=Reason.ALREADY_ANSWERED,
                culprits={ServerId()},
            )
        due = CLIENT_TRANSITIONS.get(self._state)
        if due is None or kind is not due[0]:
            raise self._unexpected(kind)
        try:
            reply, chosen = self._answer(kind, message)
            state = advance(self._state, kind, chosen)
        except BaseException as error:
            # An offer that is refused has drawn no secret, so another one may come.
            refused = isinstance(error, InvalidParameters | Misuse) and kind is MessageKind.SESSION_OFFER
            if not refused:
                self._abort()
            raise
        if state is ClientState.ABORTED:
            self._abort()
            return reply
        self._state = state
        self._answered[kind] = (digest, reply)
        if self._recording is not None:
            self._recording.note(kind, message)
            if state is ClientState.COMPLETED:
                self._recording.end()
        return list(reply)

    def forget_upload(self) -> None:
        """Keep the upload no more, which is as large as the model; asked for again, nothing is answered."""
        with self._lock:
            if before := self._answered.get(MessageKind.DELIVERED_SHARES):
                self._answered[MessageKind.DELIVERED_SHARES] = (before[0], [])

    def abort(self) -> None:
        """Leave the session and overwrite every secret; the input stays spent if it was uploaded."""
        with self._lock:
            self._abort()

    def _answer(self, kind: MessageKind, message: bytes) -> tuple[list[bytes], ClientState | None]:
        """Return the answer, and which state follows where the table allows several."""
        step, member = self._step, self._member
        match kind, step:
            case MessageKind.SESSION_OFFER, None:
                configuration = SessionConfiguration.decode(message)
                self._input.require_fits(configuration)
                self._require_terms(configuration)
                advertised, advertisement = advertise_keys(member, configuration)
                self._step, self._configuration = advertised, configuration
                return [advertisement.encode()], None
            case MessageKind.ADVERTISED_KEYS, Advertised():
                key_set = accept_advertised_keys(member, step, AdvertisedKeys.decode(message, step.configuration))
                shared, encrypted = share_keys(member, step, key_set)
                self._step = shared
                return [encrypted.encode()], None
            case MessageKind.DELIVERED_SHARES, Shared():
                roster, position = step.key_set.roster, step.key_set.position
                delivered = DeliveredShares.decode(message, roster, position)
                masked, upload, complaints = mask_input(member, step, delivered, self._input)
                self.complaints += complaints
                self._step = masked or step
                return [upload.encode()], _state_after_upload(masked)
            case MessageKind.SURVIVOR_SET, Masked():
                survivors = SurvivorSet.decode(message, step.key_set.roster)
                confirmed, signature = confirm_survivors(member, step, survivors)
                self._step = confirmed
                return [signature.encode()], None
            case MessageKind.UNMASKING_REQUEST, Masked() | Confirmed():
                roster = (step.masked if isinstance(step, Confirmed) else step).key_set.roster
                reply = reveal_shares(member, step, UnmaskingRequest.decode(message, roster)).encode()
                step.wipe()
                self._step = None
                return [reply], None
            case _:
                raise self._unexpected(kind)

    def _require_terms(self, configuration: SessionConfiguration) -> None:
        """Refuse a session about something else; a server that deviates may choose what it is about."""
        if self._terms is not None:
            self._terms.require(configuration)
        elif configuration.is_active:
            raise InvalidParameters(
                "in active mode the server is not believed what a session is about; give the client its SessionTerms",
                reason=Reason.BELOW_FLOOR,
            )

    def _abort(self) -> None:
        self._state = ClientState.ABORTED
        if self._step is not None:
            self._step.wipe()
        self._step = None
        self._answered.clear()
        if self._recording is not None:
            self._recording.end()

    # --- Between two messages -----------------------------------------------------------------------------------------

    def suspend(self) -> Secret:
        """Return the record that ``resume`` continues from; this object answers no more.

        Raises:
            Misuse: the client has no latch, has not advertised its keys yet, or has nothing left to do.
        """
        with self._lock:
            if self._recording is None:
                raise Misuse("a client is suspended with a latch alone, which lets each record be resumed once")
            if self._step is None:
                raise Misuse(f"a client that is {self._state} holds nothing that could be resumed")
            record = self._recording.suspended(self.client, self._state, self._step, self._answered)
            # The session continues, so its number stays in the latch.
            self._recording = None
            self._abort()
            return record

    def resume(self, suspended: Secret) -> SessionConfiguration:
        """Continue from a record, in any process, as the client that it is of, and overwrite the record.

        Returns:
            What the session agrees on.
        Raises:
            MalformedMessage: it is not a record.
            Misuse: it was resumed before, is not the newest, is another client's, or its session is over; or this
                client has no latch, or has begun a session itself.
            InvalidParameters: the session goes below floors that were raised meanwhile, or is about something else.
        """
        with self._lock:
            recording = self._recording
            if recording is None or self._state is not ClientState.AWAITING_OFFER:
                raise Misuse("a suspended state is resumed by a client with the latch that numbered it, and no session")
            recording.claim(suspended)
            try:
                self._configuration, state, self._step, self._answered = recording.resumed(self._member, self._admit)
            except BaseException:
                self._abort()
                raise
            self._state = state
            return self._configuration

    def _admit(self, configuration: SessionConfiguration, state: ClientState) -> None:
        """Compare a session that is resumed with what this client insists on now."""
        configuration.require_floors(self._member.floors)
        self._require_terms(configuration)
        if state in BEFORE_UPLOAD:
            self._input.require_fits(configuration)

    def _unexpected(self, kind: MessageKind) -> UnexpectedMessage:
        due = CLIENT_TRANSITIONS.get(self._state)
        expected = due[0].name if due else f"nothing, because the session is {self._state}"
        return UnexpectedMessage(expected=expected, received=kind.name)

    def __repr__(self) -> str:
        return f"<Client {self.client}, {self._state}>"


def _state_after_upload(masked: Masked | None) -> ClientState:
    """Return the messages awaited next; clients that complained in place of uploading are out."""
    if masked is None:
        return ClientState.ABORTED
    roster = masked.key_set.roster
    if roster.configuration.is_active and masked.key_set.position in roster.committee:
        return ClientState.AWAITING_SURVIVOR_SET
    return ClientState.AWAITING_UNMASKING_REQUEST
