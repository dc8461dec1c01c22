"""The judge of hardware's evidence: a vendor vouches for it, and the client's policy accepts it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .attestation import Collateral, Policy, Verifier
from .verified_enclave import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareJudge:
    """Accepts what a hardware vendor vouches for and the client's own policy pins."""

    policy: Policy
    verifier: Verifier
    collateral: Collateral = None

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged here
        """Verify the evidence, and hold it to the policy.

        Raises:
            MalformedMessage, PeerMisbehaved, InvalidParameters: as for ``Verifier.verify`` and ``Policy.check``.
        """
        claims = self.verifier.verify(evidence, self.collateral, now)
        not_after = self.policy.check(claims, binding, now)
        registers = ", ".join(f"{name} {value.hex()[:16]}" for name, value in sorted(claims.measurement.items()))
        return Judgement(f"{claims.format}: {registers}", not_after)
