"""Client of a one-message sum: checks an offer, charges its ledger, makes its update and sends one message.

Two uploads of one update would reveal the difference of two sums, even in different epochs. So the ledger allows one
upload per round, a few per model, and none in an older epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from secagg.contract.layout import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Confined, Secret
from secagg.declared import Message, fixed, repeated, unsigned, variable
from secagg.errors import UNDECIDED, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.one_answer import OneStageClientSession
from secagg.session.standings import SeenStandings, Standings, require_standing
from secagg.wire import MessageKind

from .configuration import DIGEST_BYTES, Agreement, Offer, SumTerms, draw_nonce, noise_of
from .hedged_coins import HedgedCoins
from .masks import epoch_ring
from .messages import (
    Upload,
    UploadHeader,
    challenge_of,
    piece_digests,
    sealing_info,
    share_context,
    share_tree,
    upload_digest,
    vector_digest,
)
from .sharing import deal

if TYPE_CHECKING:
    from secagg.privacy.client_noise import NoiseSettings
    from secagg.session.client_policy import ClientPolicy
    from secagg.session.ledger import PrivacyLedger, Spent
    from secagg.session.roles import LazyUpdate, Subject

_SEED_BYTES: Final = 32

REMEMBERED: Final = 256
"""Number of recent uploads whose models the record remembers."""
NO_MODEL: Final = bytes(DIGEST_BYTES)
"""Digest that replaces an unnamed model."""
_MAXIMUM_TASK_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord(Message):
    """State that a client stores."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_CLIENT_RECORD
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    newest_epoch: Annotated[int, unsigned(8)] = 0
    next_round: Annotated[int, unsigned(9)] = 0
    models: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), REMEMBERED)] = ()
    """Models of the last uploads; a model appears once for each of its uploads."""
    offer: Annotated[bytes, fixed(DIGEST_BYTES)] = bytes(DIGEST_BYTES)
    """Digest of the offer that the last upload answered."""
    upload: Annotated[bytes, variable((1 << 32) - 1)] = b""


class Ledger(Confined):
    """Ledger of a client's uploads; stores each change before the client acts on it."""

    def __init__(
        self,
        task: bytes,
        store: Callable[[bytes], None],
        record: bytes | None = None,
        *,
        attempts: int | None = ATTEMPTS,
    ) -> None:
        """Start, or resume from the newest stored record.

        Args:
            store: replaces the stored record; once it returns, a crash does not lose the record.
            attempts: maximum number of uploads for one model; None only in simulations.
        """
        self._attempts = attempts
        self._record = ClientRecord(task=task) if record is None else ClientRecord.decode(record)
        if self._record.task != task:
            raise Misuse(f"this record belongs to task {self._record.task!r}; keep one record per task")
        self._store, self._lock = store, Lock()

    def sent_for(self, offer: bytes) -> bytes | None:
        """Return the upload that answered this offer before, to send it again."""
        is_same = self._record.upload and self._record.offer == hashlib.sha256(offer).digest()
        return self._record.upload if is_same else None

    def charge(self, spent: Spent, epoch: int) -> None:
        """Count one upload, or refuse it; a later failure does not refund it.

        Claim OM-6: a round gets one upload, and a model at most its attempts, wherever the process crashes.
        """
        with self._lock:
            round_number, model = spent.number, spent.model
            if spent.task != self._record.task:
                raise Misuse(f"this ledger counts uploads for task {self._record.task!r}; keep one ledger per task")
            if epoch < self._record.newest_epoch:
                raise PeerMisbehaved(
                    f"epoch {epoch} is older than epoch {self._record.newest_epoch}, which this client has seen",
                    reason=Reason.WRONG_SESSION,
                    culprits=UNDECIDED,
                )
            if round_number < self._record.next_round:
                raise PeerMisbehaved(
                    f"this client already uploaded for round {self._record.next_round - 1}; the server asks for round "
                    f"{round_number}; rounds must increase, with one upload each",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=UNDECIDED,
                )
            models = self._record.models
            if model != NO_MODEL and self._attempts is not None and models.count(model) >= self._attempts:
                raise PeerMisbehaved(
                    f"this client has uploaded {self._attempts} times for the model of round {round_number}; two sums "
                    "of updates of one model can reveal a client's update",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits=UNDECIDED,
                )
            models = (*models, model)[-REMEMBERED:]
            self._write(
                replace(self._record, newest_epoch=epoch, next_round=round_number + 1, models=models, upload=b"")
            )

    def keep(self, offer: bytes, upload: bytes) -> None:
        """Store an upload before it is sent."""
        with self._lock:
            self._write(replace(self._record, offer=hashlib.sha256(offer).digest(), upload=upload))

    def _write(self, record: ClientRecord) -> None:
        self._store(record.encode())
        self._record = record

    def __repr__(self) -> str:
        return f"<Ledger {self._record.task!r}: the next round is {self._record.next_round} or later>"


# --- The member and its sessions --------------------------------------------------------------------------------------


class OneMessageMember(Confined):
    """A client across sums: its identity, ledgers and policy."""

    def __init__(  # noqa: PLR0913 -- what a client brings
        self,
        client: ClientId,
        *,
        policy: ClientPolicy,
        ledger: Callable[[bytes], Ledger],
        coins: Coins,
        clock: Callable[[], datetime],
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        noise: NoiseSettings | None = None,
        privacy: PrivacyLedger | None = None,
        standings: Standings | None = None,
    ) -> None:
        """Create a client.

        Args:
            ledger: this client's earlier uploads, by task.
            clock: the client's local clock, with a time zone.
            signing_key: with its certificate, in ``active`` mode.
            noise: noise that this client adds to every update; offers with other noise are refused.
            privacy: privacy budget of all its tasks; an upload that would exceed it is refused.
            standings: newest standing of the authority that this client has seen, in a ``Store`` or only in memory.
        """
        if (signing_key is None) is not (certificate is None):
            raise InvalidParameters("signing_key and certificate must be given together; pass both or neither")
        # Without this check, the upload would fail after the update is made and charged.
        if (signing_key is None) is not (policy.authority is None):
            raise InvalidParameters(
                "a client needs a signing key if its policy names an authority, and must have none in semi_honest mode"
            )
        if certificate is not None and certificate.client != client:
            raise InvalidParameters("the certificate is for another client")
        if signing_key is not None and certificate is not None and certificate.public_key != signing_key.public_key:
            raise InvalidParameters("the certificate is for another key")
        self.client, self.policy, self.ledger, self.coins, self.clock = client, policy, ledger, coins, clock
        self.signing_key, self.certificate, self.noise = signing_key, certificate, noise
        self.privacy, self.standings = privacy, standings or SeenStandings()

    @property
    def identity(self) -> bytes:
        """The client's key and the authority's signature on it; nothing in ``semi_honest`` mode."""
        certificate = self.certificate
        return b"" if certificate is None else certificate.public_key + certificate.grant

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        return Client(self, subject, update, suspended)

    def __repr__(self) -> str:
        return f"<OneMessageMember {self.client}>"


class Client(OneStageClientSession):
    """Client side of one sum: answers one offer with one upload."""

    def __init__(
        self, member: OneMessageMember, subject: Subject, update: LazyUpdate | None, suspended: Secret | None = None
    ) -> None:
        super().__init__(member.client, subject, update, suspended)
        self._member = member

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        """Answer an offer: check it, charge the ledger, make the update and the upload, store it, in this order.

        A repeated offer gets the same bytes. A refused offer draws and charges nothing.
        """
        member, subject, ledger = self._member, self._subject, self._member.ledger(self._subject.task)
        decoded = Offer.decode(message)
        # A restarted server may have other holders' receipts in an otherwise identical offer.
        offer = replace(decoded, receipts=()).encode()
        agreement, terms = decoded.agree(), decoded.terms
        agreement.require_accepted(member.policy, member.clock())
        _require_subject(agreement, terms, subject, update.model_for(subject), member.noise)
        # Without receipts, a server could offer old keys of restarted holders whose memory it has stolen.
        agreement.require_quorum(decoded.receipts, Label.ONE_MESSAGE_OFFER_RECEIPT, terms.digest)
        noise = noise_of(agreement.configuration, member.noise)
        if (sent := ledger.sent_for(offer)) is not None:
            return sent
        if member.privacy is not None:
            member.privacy.require_room(noise)
        if member.signing_key is not None:
            member.signing_key.require_usable()
            require_standing(agreement.configuration.standing, member, agreement.record.authority)
        configuration, spent = agreement.configuration, update.spent(subject)

        def charge() -> None:
            # Charge the budget last, so that an upload that another ledger refuses does not spend it.
            ledger.charge(spent, agreement.record.number)
            if member.privacy is not None:
                member.privacy.charge(noise)

        made = update.take(
            configuration.layout, [values.bounds for values in agreement.parameters.segments], charge=charge
        )
        # From here on nothing is refused, even if the epoch has expired: a refusal would reveal how long training took.
        # The coins depend on the update, the sum and the key, so another update, sum or party never has the same ones.
        about = (terms.digest, hashlib.sha256(made.payload.encode()).digest())
        own = agreement.sign(member.signing_key, Label.ONE_MESSAGE_HEDGE, *about)
        with HedgedCoins(member.coins, agreement.t0, member.client.encode(), *about, own) as coins:
            payload = made.payload if noise is None else noise.add_to(made.payload, coins)
            upload = self._masked(agreement, terms, payload, coins)
        ledger.keep(offer, upload)
        return upload

    def _masked(self, agreement: Agreement, terms: SumTerms, payload: Payload, coins: Coins) -> bytes:
        member, parameters = self._member, agreement.parameters
        header = UploadHeader(client=member.client, identity=member.identity, terms=terms, nonce=draw_nonce(coins))
        last = parameters.segments[parameters.inputs - 1]
        zeros = Ring(last.ring_bits).from_integers([0] * last.length)
        with Secret.random("mask seed", _SEED_BYTES, coins) as seed:
            vector, secret = epoch_ring(parameters, agreement.epoch.seed).mask([*payload.values, zeros], seed)
        contexts = [share_context(agreement, header, position) for position in range(agreement.epoch.count)]
        dealing = deal(secret, parameters, contexts, coins)
        try:
            sealed = tuple(
                key.seal(share, sealing_info(agreement, header, position)) if key is not None else b""
                for position, (key, share) in enumerate(zip(agreement.epoch.sealing_keys, dealing.shares, strict=True))
            )
            root = share_tree(agreement, sealed).root
            pieces = piece_digests(agreement.t0, member.client, parameters.piece_bytes, vector)
            challenge = challenge_of(agreement, header, vector_digest(pieces), root)
            polynomial = dealing.polynomial(challenge)
        finally:
            dealing.wipe()
        signature = agreement.sign(
            member.signing_key, Label.ONE_MESSAGE_SIGNED_UPLOAD, upload_digest(challenge, polynomial)
        )
        return Upload(
            t0=agreement.t0,
            header=header,
            pieces=pieces,
            vector=vector,
            polynomial=polynomial,
            sealed=sealed,
            signature=signature,
        ).encode()


def _require_subject(
    agreement: Agreement, terms: SumTerms, subject: Subject, model: bytes, noise: NoiseSettings | None
) -> None:
    configuration, due = agreement.configuration, subject.terms_digest
    if noise is not None:
        due = noise.bound_to(due, configuration.corrupted_clients)
    for name, mine, offered in (
        ("task", subject.task, configuration.task),
        ("round", subject.round_number, terms.round_number),
        ("layout", subject.layout, configuration.layout),
        ("capacity, noise or set of terms", due, terms.application_digest),
        ("model", model, terms.model_digest),
    ):
        if mine != offered:
            raise InvalidParameters(
                f"the offer's {name} differs from this client's; offer what it trains for", reason=Reason.BELOW_FLOOR
            )
    if subject.tables:
        raise InvalidParameters("this protocol sums ring elements and supports no codebooks; use a scheme without them")
    if agreement.parameters.capacity > subject.capacity:
        raise InvalidParameters(
            f"a sum may have {agreement.parameters.capacity} uploads, but the codec decodes only {subject.capacity}; "
            "use a wider ring, or smaller cohorts",
            reason=Reason.BELOW_FLOOR,
        )
