"""What a client has from one buffer to the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.registry import Clock
from secagg.session.standings import SeenStandings, Standings

from .release_privacy import PrivacyLimit
from .seal_ledger import SealLedger
from .trusted.configuration import EnclaveConfiguration
from .verified_enclave import Judge, VerifiedEnclave


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MemberParts(Confined, ABC):
    """Keys, policy, judge and ledgers of a client; ``EnclaveMember`` begins sessions with them."""

    certificate: Certificate
    """Of the signing key, by the authority; without one, by the client itself."""
    signing_key: SigningKey
    policy: ClientPolicy
    judge: Judge
    ledger: Callable[[bytes], SealLedger]
    """Returns the ledger of a task, with ``SpentUpdates`` of a file in production."""
    clock: Clock
    coins: Coins
    """``SystemCoins()`` in production."""
    privacy: PrivacyLimit | None = None
    """Differential privacy that this client asks for; needed without an authority in its policy."""
    max_norms: tuple[int, ...] | None = None
    """Bounds of the client's task in steps, where something else tells it of them."""
    threads: int = 1
    standings: Standings = field(default_factory=SeenStandings)
    """Memory of the newest standing of the authority: a ``Store``, or of this process only."""

    @abstractmethod
    def verified(self, attested: bytes, collateral: bytes, configuration: EnclaveConfiguration) -> VerifiedEnclave:
        """Verify the enclave that a host offers, with the evidence and the collateral that it relays."""
