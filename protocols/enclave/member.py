"""Client state that is kept from buffer to buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import Misuse
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
    """A client's keys, policy, judge and ledgers; ``EnclaveMember`` adds sessions."""

    certificate: Certificate
    """Certificate of the signing key, issued by the authority; self-signed if there is none."""
    signing_key: SigningKey
    policy: ClientPolicy
    judge: Judge
    ledger: Callable[[bytes], SealLedger]
    """Returns the ledger of a task; in production it needs ``SpentUpdates`` with a file."""
    clock: Clock
    coins: Coins
    """``SystemCoins()`` in production."""
    privacy: PrivacyLimit | None = None
    """Differential privacy that this client requires; needed if its policy has no authority."""
    max_norms: tuple[int, ...] | None = None
    """The task's norms in steps, if the client knows them independently of the server."""
    threads: int = 1
    standings: Standings = field(default_factory=SeenStandings)
    """Remembers the authority's newest standing: a ``Store``, or by default the memory of this process."""

    def ledger_of(self, task: bytes) -> SealLedger:
        ledger = self.ledger(task)
        if type(ledger) is not SealLedger:
            raise Misuse(f"EnclaveMember(ledger=) must return a SealLedger; got {type(ledger).__name__}")
        return ledger

    @abstractmethod
    def verified(self, attested: bytes, collateral: bytes, configuration: EnclaveConfiguration) -> VerifiedEnclave:
        """Verify the enclave that a host offers, from the evidence and collateral that it relays."""
