"""An enclave whose evidence a client has verified, so that the client may seal to it."""

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
    """Return the error for an offer that the client's policy refuses."""
    return InvalidParameters(
        f"this enclave is refused: {sentence}; change its configuration", reason=Reason.BELOW_FLOOR
    )


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judge's result: the running program, and when the evidence expires."""

    program: str
    not_after: datetime


class Judge(Protocol):
    """Decides whether evidence vouches for a binding: ``HardwareJudge``, or ``SimulatedJudge`` in simulations."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        """Accept the evidence, or raise an error."""
        ...


class VerifiedEnclave(Confined):
    """The keys of a verified enclave; the constructor verifies it.

    It cannot be pickled, so each process must verify the enclave itself. Expiry is checked again before each charge but
    not after it: a charged update is sealed even if training outlasted the evidence.
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
            configuration: fixed or checked by the client; its digest is computed here, never taken from the offer.
            judge: a ``HardwareJudge`` in production.
            now: the client's own time, with a time zone.
        Raises:
            PeerMisbehaved: the offer is for a different configuration or has expired, or the evidence is refused.
        Claim EN-2: updates are sealed only to this program under this configuration.
        """
        if (type(offer), type(configuration)) != (EnclaveOffer, EnclaveConfiguration):
            raise Misuse("VerifiedEnclave takes an EnclaveOffer and the client's own EnclaveConfiguration")
        if offer.context != configuration.context:
            raise PeerMisbehaved(
                "the enclave's configuration differs from the one that this client checked; compare their fields",
                reason=Reason.WRONG_SESSION,
                culprits=from_server(),
            )
        if len(offer.epoch) != EPOCH_BYTES or len(offer.receipt_key) != IDENTITY_KEY_BYTES:
            raise Misuse("the epoch or receipt key has a wrong length; take offers from EnclaveOffer.decode")
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
            raise Misuse("now must be a datetime with a time zone")
        if now >= self.not_after:
            raise PeerMisbehaved(
                f"the enclave's evidence expired at {self.not_after:%Y-%m-%d %H:%M} UTC; start a new epoch",
                reason=Reason.ATTESTATION_REFUSED,
                culprits=from_server(),
            )

    def seal(self, secret: Secret, info: bytes) -> bytes:
        """Seal a secret to this enclave."""
        return self._key.seal(secret, info)

    def verify_receipt(self, receipt: Receipt) -> None:
        """Check that this enclave signed the receipt, in this epoch and under this configuration."""
        if (receipt.context, receipt.epoch) != (self.offer.context, self.offer.epoch):
            raise AuthenticationFailed(culprits=from_server())
        parts = receipt.signed_parts()
        verify_signature(
            self.offer.receipt_key, receipt.signature, Label.ENCLAVE_RECEIPT, *parts, culprits=from_server()
        )

    def __repr__(self) -> str:
        if not hasattr(self, "_key"):  # A traceback may show an object whose constructor raised.
            return "<VerifiedEnclave, not verified>"
        return f"<VerifiedEnclave {self.program}, until {self.not_after:%Y-%m-%d %H:%M} UTC>"
