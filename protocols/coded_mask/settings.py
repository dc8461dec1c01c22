"""What a sum with coded masks is planned for."""

from __future__ import annotations

from dataclasses import dataclass

from secagg.crypto.ring import require_capacity
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.session.roles import Subject

from .configuration import DIGEST_BYTES, Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMaskSettings:
    """What a sum is planned for."""

    mode: SecurityMode = SecurityMode.SEMI_HONEST
    """There is no other one."""
    suite: Suite = Suite.CLASSIC
    population: int | None = None
    """How many clients are invited, where the platform does not say whom."""
    corrupted: int = 1
    """So many clients and the server learn nothing but the sum; no fewer than one, or a piece would be a part of a
    mask."""
    dropped: int = 0
    late: int = 0
    """How many of the invited never come; with those that drop out later, they are who a sum can do without."""
    minimum_cohort: int = LEAST_COHORT
    maximum_weight: int = 1

    def __post_init__(self) -> None:
        """Refuse a promise that the protocol does not make."""
        if self.mode is not SecurityMode.SEMI_HONEST:
            raise InvalidParameters(
                "coded masks have no active mode: nothing is signed, so a server that lies shows two sets of clients "
                "to two halves of them and learns one input; take mode semi_honest, or another protocol"
            )

    def takes(self, population: int) -> bool:
        """Whether enough of so many clients are sure to stay."""
        _, target, needed = self._demands(population)
        return target >= needed

    def _demands(self, population: int) -> tuple[int, int, int]:
        """Return how many clients learn nothing together, how many are sure to stay, and how many have to."""
        privacy = max(1, self.corrupted)
        return privacy, population - self.dropped - self.late, max(self.minimum_cohort, privacy + LEAST_COHORT)

    def plan(self, subject: Subject, population: int, nonce: bytes) -> Configuration:
        """Choose the thresholds: the more have to stay, the shorter are the pieces.

        Raises:
            InvalidParameters: no such sum is safe; the message says what to relax.
            CapacityExceeded: so many clients could weigh more than the codec can decode.
        """
        privacy, target, needed = self._demands(population)
        if target < needed:
            raise InvalidParameters(
                f"of {population} clients only {target} are sure to stay, and a sum with {privacy} corrupted ones "
                f"needs {needed}; invite more, or plan for fewer that drop out or are corrupted"
            )
        # Every client refuses more; nobody is invited to that.
        require_capacity(population * self.maximum_weight, subject.capacity)
        return Configuration(
            task=subject.task,
            round_number=subject.round_number,
            nonce=nonce,
            model_digest=subject.model_digest or bytes(DIGEST_BYTES),
            application_digest=subject.terms_digest,
            suite=self.suite,
            layout=subject.layout,
            population=population,
            privacy=privacy,
            target=target,
            maximum_weight=self.maximum_weight,
        )
