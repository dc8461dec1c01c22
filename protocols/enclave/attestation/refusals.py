"""The four ways in which evidence fails, as errors whose sentences an operator can act on.

Nobody is named as a culprit: evidence is relayed, and what arrives does not tell who changed it. The sentences stay in
the local log.
"""

from __future__ import annotations

from secagg.errors import MalformedMessage, PeerMisbehaved, Reason


def malformed(message: str, reason: Reason = Reason.NOT_CANONICAL) -> MalformedMessage:
    """Evidence or collateral that does not decode."""
    return MalformedMessage(message, reason=reason)


def invalid(message: str) -> PeerMisbehaved:
    """Evidence or collateral that decodes and does not verify: a chain, a signature, a revocation, a mismatch."""
    return PeerMisbehaved(message, reason=Reason.ATTESTATION_INVALID)


def stale(message: str) -> PeerMisbehaved:
    """Collateral that verifies and is not of this time."""
    return PeerMisbehaved(message, reason=Reason.COLLATERAL_STALE)


def refused(message: str) -> PeerMisbehaved:
    """Claims that verify and that the policy does not accept."""
    return PeerMisbehaved(message, reason=Reason.ATTESTATION_REFUSED)


def require_length(data: bytes, length: int, what: str) -> None:
    """Refuse bytes that end early, and bytes that follow: nothing signs a tail, so whoever adds one takes it off."""
    if len(data) < length:
        raise malformed(f"{what} is {length} bytes and {len(data)} are there", Reason.TRUNCATED)
    if len(data) > length:
        raise malformed(
            f"{len(data) - length} unsigned bytes follow {what}; cut the padding where the evidence is collected",
            Reason.TRAILING_BYTES,
        )
