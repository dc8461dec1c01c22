"""What a session of pairwise masks is planned for, and about."""

from __future__ import annotations

from dataclasses import dataclass

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, Reason
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.privacy.budgeted_noise import BudgetedNoise
from secagg.privacy.client_noise import ClientNoise, NoiseSettings
from secagg.session.roles import Subject

from .configuration import LEAST_CHECK_WORDS, NO_AUTHORITY, NO_DIGEST, SessionConfiguration
from .graph import Topology
from .member import SessionTerms
from .plan import SessionPlan, graph_parameters, plan_session
from .thresholds import CORRECTNESS_BITS, Assumptions, least_privacy_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseSettings(BudgetedNoise):
    """What a session is planned for; ``plan_session`` says what each number means."""

    mode: SecurityMode = SecurityMode.ACTIVE
    suite: Suite = Suite.CLASSIC
    topology: Topology = Topology.SPARSE
    population: int | None = None
    """How many clients are invited, where the platform does not say whom."""
    corrupted: int = 0
    dropped: int = 0
    late: int = 0
    minimum_cohort: int | None = None
    maximum_weight: int = 1
    privacy_bits: int | None = None
    correctness_bits: int = CORRECTNESS_BITS
    check_words: int = LEAST_CHECK_WORDS
    attempt: int = 0

    def plan(self, subject: Subject, population: int, authority: bytes, coins: Coins) -> SessionPlan:
        """Choose the parameters of one session.

        Raises:
            InvalidParameters: no such session is safe; the message says what to relax.
            CapacityExceeded: a ring does not hold a sum with its noise.
        """
        plan = self._plan(subject, population, authority, coins)
        noise_of(plan.configuration, self, self.corrupted)
        return plan

    def takes(self, population: int) -> bool:
        """Whether a graph of so many clients withstands the corrupted and the dropped ones."""
        stay = population - self.late - self.dropped
        if self.minimum_cohort is not None and self.minimum_cohort > max(LEAST_COHORT, stay):
            return False
        privacy = least_privacy_bits(self.mode) if self.privacy_bits is None else self.privacy_bits
        assumed = Assumptions(
            population=population - self.late,
            corrupted=min(self.corrupted, population - self.late - 1),
            dropped=self.dropped,
            privacy_bits=privacy,
            correctness_bits=self.correctness_bits,
        )
        try:
            graph_parameters(self.topology, self.mode, assumed, population)
        except InvalidParameters:
            return False
        return True

    def _plan(self, subject: Subject, population: int, authority: bytes, coins: Coins) -> SessionPlan:
        return plan_session(
            subject.layout,
            coins,
            population=population,
            corrupted=self.corrupted,
            dropped=self.dropped,
            late=self.late,
            mode=self.mode,
            suite=self.suite,
            topology=self.topology,
            authority=authority if self.mode is SecurityMode.ACTIVE else NO_AUTHORITY,
            minimum_cohort=self.minimum_cohort,
            maximum_weight=self.maximum_weight,
            privacy_bits=self.privacy_bits,
            correctness_bits=self.correctness_bits,
            check_words=self.check_words,
            task=subject.task,
            model_digest=subject.model_digest or NO_DIGEST,
            round_number=subject.round_number,
            attempt=self.attempt,
            application_digest=self.bound_to(subject.terms_digest, self.corrupted),
            capacity=subject.capacity,
        )


def noise_of(configuration: SessionConfiguration, noise: NoiseSettings, corrupted: int) -> ClientNoise | None:
    """Return the noise of a session's clients, if it has any; clients refuse to unmask fewer than its minimum.

    Raises:
        InvalidParameters, CapacityExceeded: numbers that do not go together.
    """
    return noise.noise_for(
        configuration.layout,
        minimum_cohort=configuration.minimum_cohort,
        capacity=configuration.maximum_population,
        corrupted=corrupted,
        maximum_weight=configuration.maximum_weight,
    )


def terms_of(subject: Subject, noise: NoiseSettings, corrupted: int) -> SessionTerms:
    """Return what the client knows a session to be about, whose noise withstands so many corrupted clients."""
    return SessionTerms(
        task=subject.task,
        model_digest=subject.model_digest,
        round_number=subject.round_number,
        application_digest=noise.bound_to(subject.terms_digest, corrupted),
    )


def require_subject(subject: Subject, terms: SessionTerms, configuration: SessionConfiguration) -> None:
    """Refuse an offer about something else; a model that the client is sent later is compared with its update.

    Raises:
        InvalidParameters: naming what differs.
    """
    terms.require(configuration)
    if configuration.layout != subject.layout:
        raise InvalidParameters(
            "the offer has another layout than this client's codec; offer what the client trained for",
            reason=Reason.BELOW_FLOOR,
        )
