"""An enclave that a client has reason to seal to: its evidence was judged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from secagg.blame import from_server
from secagg.crypto.hpke import sealing_key
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.session.certificates import IDENTITY_KEY_BYTES, is_strong_key, verify_signature

from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import EPOCH_BYTES, EnclaveOffer, Receipt


def weaker(sentence: str) -> InvalidParameters:
    """Return the error of an offer that a client does not accept."""
    return InvalidParameters(
        f"this enclave is refused: {sentence}; change its configuration", reason=Reason.BELOW_FLOOR
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's finding: the program that runs, and the end of its validity."""

    program: str
    not_after: datetime


class Judge(Protocol):
    """Decides whether evidence vouches for a binding: ``HardwareJudge``, or in simulations one that says so."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        """Accept the evidence, or raise."""
        ...


class VerifiedEnclave(Confined):
    """The keys of an enclave that passed; making one is verifying it.

    It cannot be pickled: another process verifies for itself. Its validity is checked again before each charge; what
    was charged is sealed, however long the training took.
    """

    __slots__ = ("_key", "configuration", "not_after", "offer", "program")

    def __init__(
        self,
        offer: EnclaveOffer,
        evidence: Any,  # noqa: ANN401 -- the judge knows which it takes
        *,
        configuration: EnclaveConfiguration,
        judge: Judge,
        now: datetime,
    ) -> None:
        """Verify that the evidence vouches for the offer, and that the offer is for this configuration.

        Args:
            configuration: as the client fixed or checked it; its digest is computed here and never taken from an offer.
            judge: a ``HardwareJudge`` in production.
            now: the client's own time, with a time zone.
        Raises:
            PeerMisbehaved: the offer is for another configuration, has expired, or the evidence does not pass.
        Claim EN-2: what is sealed is sealed to this program under this configuration, and to nothing else.
        """
        if (type(offer), type(configuration)) != (EnclaveOffer, EnclaveConfiguration):
            raise Misuse("an enclave is verified by its EnclaveOffer and the client's own EnclaveConfiguration")
        if offer.context != configuration.context:
            raise PeerMisbehaved(
                "the enclave runs another configuration than this client accepts; compare the two field by field",
                reason=Reason.WRONG_SESSION,
                culprits=from_server(),
            )
        if len(offer.epoch) != EPOCH_BYTES or len(offer.receipt_key) != IDENTITY_KEY_BYTES:
            raise Misuse("an offer is a value that EnclaveOffer.decode returned")
        if not is_strong_key(offer.receipt_key):
            raise AuthenticationFailed(culprits=from_server())
        judgement = judge.judge(evidence, offer.binding, now)
        self.offer = offer
        self.configuration = configuration
        self.program = judgement.program
        expiry = datetime.fromtimestamp(configuration.expiry, UTC)
        self.not_after = min(judgement.not_after, expiry)
        self._key = sealing_key(configuration.suite, offer.sealing_key, culprits=from_server())
        self.require_current(now)

    def require_current(self, now: datetime) -> None:
        """Refuse an enclave whose evidence or configuration has expired."""
        if type(now) is not datetime or now.utcoffset() is None:
            raise Misuse("the time is a datetime with a time zone")
        if now >= self.not_after:
            raise PeerMisbehaved(
                f"the enclave was verified until {self.not_after:%Y-%m-%d %H:%M} UTC; fetch a new epoch's evidence",
                reason=Reason.ATTESTATION_REFUSED,
                culprits=from_server(),
            )

    def seal(self, secret: Secret, info: bytes) -> bytes:
        """Seal a secret to the enclave that was verified."""
        return self._key.seal(secret, info)

    def verify_receipt(self, receipt: Receipt) -> None:
        """Check that this enclave signed a receipt, in this epoch and under this configuration."""
        if (receipt.context, receipt.epoch) != (self.offer.context, self.offer.epoch):
            raise AuthenticationFailed(culprits=from_server())
        parts = receipt.signed_parts()
        verify_signature(
            self.offer.receipt_key, receipt.signature, Label.ENCLAVE_RECEIPT, *parts, culprits=from_server()
        )

    def __repr__(self) -> str:
        if not hasattr(self, "_key"):  # A traceback may show what its constructor refused.
            return "<VerifiedEnclave, not verified>"
        return f"<VerifiedEnclave {self.program}, until {self.not_after:%Y-%m-%d %H:%M} UTC>"
