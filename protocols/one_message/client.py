"""A client: it checks an offer, charges its ledger, makes its update, sends one message, and is done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from secagg.contract.layout import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.hedged_coins import HedgedCoins
from secagg.crypto.labels import Label
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.session.certificates import Certificate, SigningKey

from .configuration import Agreement, Offer, SumTerms, noise_of
from .epoch import EpochRecord, draw_nonce
from .floors import Floors
from .lattice.masks import epoch_ring
from .ledger import Ledger
from .messages import (
    NoHolder,
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
    from secagg.session.privacy_ledger import PrivacyLedger
    from secagg.session.roles import LateUpdate, Subject

_SEED_BYTES: Final = 32


class Client(Confined):
    """A client from one sum to the next."""

    def __init__(  # noqa: PLR0913 -- what a client brings
        self,
        client: ClientId,
        *,
        floors: Floors,
        ledger: Ledger,
        coins: Coins,
        clock: Callable[[], datetime],
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        noise: NoiseSettings | None = None,
        privacy: PrivacyLedger | None = None,
    ) -> None:
        """Prepare to take part.

        Args:
            ledger: what this client has uploaded so far.
            coins: ``SystemCoins()`` in production.
            clock: the client's own, with a time zone.
            signing_key: with its certificate, in ``active`` mode.
            noise: what this client adds to every update; an offer that says otherwise is refused.
            privacy: what it has spent in all its tasks; an upload that its budget does not pay for is refused.
        """
        if (signing_key is None) is not (certificate is None):
            raise InvalidParameters("a client has a signing key and its certificate, or neither")
        if certificate is not None and certificate.client != client:
            raise InvalidParameters("the certificate is for another client")
        if signing_key is not None and certificate is not None and certificate.public_key != signing_key.public_key:
            raise InvalidParameters("the certificate is for another key")
        self.client = client
        self._floors, self._ledger, self._coins, self._clock = floors, ledger, coins, clock
        self._signing_key, self._certificate, self._noise = signing_key, certificate, noise
        self._privacy = privacy

    def upload(self, offer: bytes, subject: Subject, update: LateUpdate) -> bytes:
        """Answer an offer; the same offer gets the same bytes again.

        The order is: checks, ledger, update, time, upload, storing.

        Raises:
            InvalidParameters: the offer is below a floor or about something else; nothing was drawn or charged.
            PeerError, Misuse: the epoch does not verify, or the ledger refuses.
        """
        decoded = Offer.decode(offer)
        agreement, terms = decoded.agree(), decoded.terms
        self._floors.admit(agreement, self._clock())
        agreement.require_terms(terms)
        _require_subject(agreement, terms, subject, update.model_for(subject), self._noise)
        noise = noise_of(agreement.configuration, self._noise)
        if (sent := self._ledger.sent_for(offer)) is not None:
            return sent
        if self._privacy is not None:
            self._privacy.require_room(noise)
        configuration = agreement.configuration
        self._ledger.charge(configuration.task, agreement.record.number, terms.round_number, terms.model_digest)
        if self._privacy is not None:
            self._privacy.charge(noise)
        made = update.take(
            configuration.layout,
            range(1, configuration.maximum_weight + 1),
            [values.bounds for values in agreement.parameters.segments],
        )
        self._floors.admit(agreement, self._clock())
        # Coins that another update, weight or sum would not have, and nobody without the key.
        about = (terms.digest, hashlib.sha256(made.payload.encode()).digest(), made.weight.to_bytes(8, "big"))
        own = agreement.sign(self._signing_key, Label.ONE_MESSAGE_HEDGE, *about)
        with HedgedCoins(self._coins, agreement.t0, self.client.encode(), *about, own) as coins:
            payload = made.payload if noise is None else noise.add_to(made.payload, coins)
            message = self._masked(agreement, terms, payload, made.weight, coins)
        self._ledger.keep(offer, message)
        return message

    def holds_nothing(self, record: EpochRecord) -> bytes:
        """Return what this client answers to the record of a committee that it is not on."""
        said = NoHolder(record=record.context.digest, client=self.client, identity=self._identity)
        signature = record.sign(self._signing_key, Label.ONE_MESSAGE_NO_HOLDER, *said.parts)
        return replace(said, signature=signature).encode()

    @property
    def _identity(self) -> bytes:
        certificate = self._certificate
        return b"" if certificate is None else certificate.public_key + certificate.signature

    def _masked(self, agreement: Agreement, terms: SumTerms, payload: Payload, weight: int, coins: Coins) -> bytes:
        parameters = agreement.parameters
        header = UploadHeader(client=self.client, identity=self._identity, terms=terms, nonce=draw_nonce(coins))
        counts = parameters.segments[parameters.inputs - 1]
        one = Ring(counts.ring_bits).from_integers([1, *[0] * (counts.length - 1)])
        with Secret.random("mask seed", _SEED_BYTES, coins) as seed:
            vector, secret = epoch_ring(parameters, agreement.epoch.seed).mask([*payload.values, one], seed, weight)
        contexts = [share_context(agreement, header, position) for position in range(agreement.epoch.count)]
        dealing = deal(secret, parameters, contexts, coins)
        try:
            sealed = tuple(
                key.seal(share, sealing_info(agreement, header, position))
                for position, (key, share) in enumerate(zip(agreement.epoch.sealing_keys, dealing.shares, strict=True))
            )
            root = share_tree(agreement, sealed).root
            pieces = piece_digests(agreement.t0, self.client, parameters.piece_bytes, vector)
            challenge = challenge_of(agreement, header, vector_digest(pieces), root)
            polynomial = dealing.polynomial(challenge)
        finally:
            dealing.wipe()
        signature = agreement.sign(
            self._signing_key, Label.ONE_MESSAGE_SIGNED_UPLOAD, upload_digest(challenge, polynomial)
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

    def __repr__(self) -> str:
        return f"<Client {self.client}, {self._ledger!r}>"


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
                f"the offer is about another {name} than this client's; offer what it trains for",
                reason=Reason.BELOW_FLOOR,
            )
    if subject.tables:
        raise InvalidParameters("this protocol sums rings and looks up no codewords; use a scheme without codebooks")
    if agreement.parameters.capacity_weight > subject.capacity:
        raise InvalidParameters(
            f"a sum may reach a weight of {agreement.parameters.capacity_weight}, and the codec's capacity is "
            f"{subject.capacity}; use a wider ring, or smaller cohorts and weights",
            reason=Reason.BELOW_FLOOR,
        )
