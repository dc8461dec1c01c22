"""Plan of a session: the choice of parameters with which it is safe and survives its dropouts."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import log
from typing import Annotated, ClassVar, Final

from secagg.choices import Topology
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import draw_exactly
from secagg.declared import encoded, fixed, unsigned
from secagg.errors import InvalidParameters
from secagg.options import option
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode
from secagg.privacy.client_noise import BudgetedNoise
from secagg.session.certificates import NO_STANDING, Standing
from secagg.session.registry import ProtocolOptions
from secagg.session.roles import Subject

from .configuration import (
    DIGEST_BYTES,
    LEAST_CHECK_WORDS,
    NO_AUTHORITY,
    NO_DIGEST,
    OPENING_BYTES,
    SessionConfiguration,
    commit_to_opening,
    noise_of,
)
from .graph import (
    LEAST_DEGREE,
    LEAST_POPULATION,
    LN2,
    MAXIMUM_BITS,
    MAXIMUM_POPULATION,
    PRIVACY_BITS,
    corrupted_in_window,
    corrupted_members,
    corrupted_neighbours,
    least_privacy_bits,
    least_threshold,
    log_tail,
    require_committee,
    require_number,
    stays_connected,
    threshold_in,
)

CORRECTNESS_BITS: Final = 30
_MAXIMUM_OFFER_BYTES: Final = 1 << 22
LARGEST_SEARCHED: Final = 4096
"""The finders try degrees and committees up to here; beyond, a sparse graph saves nobody anything."""
LEAST_COMMITTEE: Final = 3
LARGEST_WHOLE_COMMITTEE: Final = 128
"""Up to this population everyone is on the committee, which costs little and leaves nothing to chance."""


# --- What a session withstands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Faults that a session is planned to withstand.

    Over the choice of one graph, privacy fails with probability 2^-privacy_bits at most. With no more than ``dropped``
    dropouts, none of them on purpose, somebody lacks surviving neighbours with probability 2^-correctness_bits at most,
    and the certificate lacks members of the committee likewise.
    """

    population: int
    corrupted: int
    dropped: int
    privacy_bits: int = PRIVACY_BITS
    correctness_bits: int = CORRECTNESS_BITS

    def __post_init__(self) -> None:
        require_number("population", self.population, LEAST_POPULATION, MAXIMUM_POPULATION)
        require_number("corrupted", self.corrupted, 0, self.population - 1)
        require_number("dropped", self.dropped, 0, self.population - 1)
        require_number("privacy_bits", self.privacy_bits, 1, MAXIMUM_BITS)
        require_number("correctness_bits", self.correctness_bits, 1, MAXIMUM_BITS)


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The degree and threshold of a sparse graph, and what they assume of corrupted neighbours."""

    degree: int
    threshold: int
    corrupted: int
    """Bound on the corrupted neighbours of every client."""
    window: int
    """Bound on the corrupted clients that two disjoint half-windows can both have."""


@dataclass(frozen=True, slots=True)
class Committee:
    """Numbers of clients that are asked to certify the survivors, that must, and that may be corrupted."""

    size: int
    quorum: int
    corrupted: int


def find_neighbourhood(assumptions: Assumptions, mode: SecurityMode) -> Neighbourhood:
    """Return the sparse graph of the least degree that meets the assumptions in a mode.

    Implements: [BBG+20], with a union bound over the actual neighbours (n - 1, not n) and, in ``active`` mode, this
        library's own rule.
    """
    population, corrupted, dropped = assumptions.population, assumptions.corrupted, assumptions.dropped
    privacy, correctness = assumptions.privacy_bits, assumptions.correctness_bits
    obstacle = "no even degree is smaller than the population: use a full graph, or invite 3 clients"
    for degree in range(LEAST_DEGREE, min(population, LARGEST_SEARCHED + 1), 2):
        if not stays_connected(population, corrupted + dropped, degree, privacy):
            obstacle = "honest survivors could be cut off: invite more, or assume fewer corrupted or fewer dropped ones"
            continue
        bound = corrupted_neighbours(population, corrupted, degree, privacy)
        window = corrupted_in_window(population, corrupted, degree, privacy)
        threshold = threshold_in(mode, degree, bound, window)
        if threshold > degree:
            obstacle = "corrupted neighbours are too many: assume fewer corrupted clients, or fewer privacy_bits"
            continue
        too_few = log_tail(degree - threshold + 1, population - 1, dropped, degree)
        if too_few + log(population) > -correctness * LN2:
            obstacle = "too few neighbours survive: invite more, or assume fewer dropped or fewer corrupted ones"
            continue
        return Neighbourhood(degree, threshold, bound, window)
    raise InvalidParameters(
        f"no sparse graph of {population} clients and degree up to {min(population - 1, LARGEST_SEARCHED)} withstands "
        f"{corrupted} corrupted and {dropped} dropped ones in {mode} mode; at the end, {obstacle}"
    )


def find_committee(assumptions: Assumptions) -> Committee:
    """Return the smallest committee whose certificates cannot contradict each other; in a small population, everyone.

    Two certificates of tau signatures share an honest signer if 2 tau > q + c, where c of the q are corrupted.
    """
    population, corrupted, dropped = assumptions.population, assumptions.corrupted, assumptions.dropped
    smallest = population if population <= LARGEST_WHOLE_COMMITTEE else LEAST_COMMITTEE
    for size in chain(range(smallest, min(population, LARGEST_SEARCHED + 1)), (population,)):
        bound = corrupted_members(population, corrupted, size, assumptions.privacy_bits)
        quorum = (size + bound) // 2 + 1
        if quorum > size:
            continue
        too_few = log_tail(size - quorum + 1, population, dropped, size)
        if too_few <= -assumptions.correctness_bits * LN2:
            return Committee(size, quorum, bound)
    raise InvalidParameters(
        f"of {population} clients with {corrupted} corrupted, {(population + corrupted) // 2 + 1} have to certify the "
        f"survivors, which {dropped} dropped ones prevent; assume fewer corrupted or fewer dropped clients"
    )


# --- Planning a session -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A configuration, what it was planned to withstand, and the server's share in the graph seed that it commits to.

    The opening stays with the server until the roster is fixed.
    """

    configuration: Annotated[SessionConfiguration, encoded(SessionConfiguration, _MAXIMUM_OFFER_BYTES)]
    opening: Annotated[bytes, fixed(OPENING_BYTES)] = field(repr=False)
    corrupted: Annotated[int, unsigned(8)]
    dropped: Annotated[int, unsigned(8)]
    privacy_bits: Annotated[int, unsigned(2)]


def plan_session(  # noqa: PLR0913 -- what a server chooses and is given
    subject: Subject,
    settings: PairwiseOptions,
    population: int,
    coins: Coins,
    authority: bytes = NO_AUTHORITY,
    *,
    standing: Standing = NO_STANDING,
) -> SessionPlan:
    """Choose parameters that are safe, and that survive the dropouts they are planned for.

    Args:
        population: how many clients are invited.
        coins: for the nonce and the server's share in the graph seed.
        authority: the public key of who certifies clients; for active mode.
        standing: what it had revoked at the head of its roster.

    Raises:
        InvalidParameters: no such session is safe; the message says what to relax.
    """
    mode, corrupted, dropped, late = settings.mode, settings.corrupted, settings.dropped, settings.late
    for name, value in (("population", population), ("corrupted", corrupted), ("dropped", dropped), ("late", late)):
        require_number(name, value, 0, MAXIMUM_POPULATION)
    if population > subject.capacity:
        raise InvalidParameters(
            f"{population} clients are more than the codec's capacity of {subject.capacity}; take a wider ring, or "
            "invite fewer"
        )
    bits = settings.least_bits
    require_number(f"privacy_bits in {mode} mode", bits, least_privacy_bits(mode), MAXIMUM_BITS)
    least = population - late
    stay = max(LEAST_COHORT, least - dropped)
    minimum_cohort = stay if settings.minimum_cohort is None else settings.minimum_cohort
    if minimum_cohort > stay:
        raise InvalidParameters(
            f"minimum_cohort is {minimum_cohort}, and of {population} clients {late} late and {dropped} dropped ones "
            f"leave {least - dropped}; lower it, or plan for fewer"
        )
    try:
        degree, threshold, committee_size, quorum = graph_parameters(
            settings.topology, mode, settings.assumed(population), population
        )
    except InvalidParameters as error:
        if population > LARGEST_WHOLE_COMMITTEE:
            raise
        raise InvalidParameters(f"{error}. {settings.stands(population)}; plan for fewer, or invite more") from None
    opening = bytes(draw_exactly(OPENING_BYTES, coins))
    configuration = SessionConfiguration(
        message_form=settings.message_form,
        task=subject.task,
        model_digest=subject.model_digest or NO_DIGEST,
        round_number=subject.round_number,
        attempt=settings.attempt,
        mode=mode,
        suite=settings.suite,
        topology=settings.topology,
        degree=degree,
        threshold=threshold,
        committee_size=committee_size,
        quorum=quorum,
        minimum_cohort=minimum_cohort,
        maximum_population=population,
        layout=subject.layout,
        check_words=settings.check_words,
        application_digest=settings.bound_to(subject.terms_digest, corrupted),
        authority=authority if mode is SecurityMode.ACTIVE else NO_AUTHORITY,
        standing=standing if mode is SecurityMode.ACTIVE else NO_STANDING,
        graph_commitment=commit_to_opening(opening),
        server_nonce=bytes(draw_exactly(DIGEST_BYTES, coins)),
    )
    noise_of(configuration, settings, corrupted)
    for advertised in {least, population}:
        configuration.require_population(advertised, corrupted=corrupted, privacy_bits=bits, dropped=dropped)
    return SessionPlan(configuration, opening, corrupted, dropped, bits)


def graph_parameters(
    topology: Topology, mode: SecurityMode, assumptions: Assumptions, invited: int, *, is_early: bool = False
) -> tuple[int, int, int, int]:
    """Return degree, threshold, committee size and quorum, of a graph that tolerates the dropouts in every round.

    Clients that leave before the graph is drawn make it smaller, and those that leave later make holes in it. With some
    five clients no graph withstands both; it then withstands the later ones, unless the others are asked for with
    ``is_early``.

    Raises:
        InvalidParameters: no graph withstands these assumptions.
    """
    choose = _sparse if topology is Topology.SPARSE else _full
    chosen, fewest = choose(mode, assumptions, invited), assumptions.population - assumptions.dropped
    try:
        _require_fewer(topology, mode, chosen, assumptions, fewest)
    except InvalidParameters:
        # Planned for as many as are there at worst, it has room for all.
        with suppress(InvalidParameters):
            smaller = replace(assumptions, population=fewest, corrupted=min(assumptions.corrupted, fewest - 1))
            chosen_again = choose(mode, smaller, invited)
            _require_fewer(topology, mode, chosen_again, assumptions, fewest)
            return chosen_again
        if is_early:
            raise
    return chosen


def _require_fewer(
    topology: Topology,
    mode: SecurityMode,
    chosen: tuple[int, int, int, int],
    assumptions: Assumptions,
    population: int,
) -> None:
    """Refuse parameters that do not protect the clients that are left when all dropouts come before the graph."""
    degree, threshold, size, quorum = chosen
    degree = population - 1 if topology is Topology.FULL else degree
    corrupted, bits = min(assumptions.corrupted, population - 1), assumptions.privacy_bits
    if (
        degree >= population
        or threshold > degree
        or threshold
        < least_threshold(topology, mode, population=population, degree=degree, corrupted=corrupted, privacy_bits=bits)
    ):
        raise InvalidParameters(
            f"of {assumptions.population} clients {assumptions.dropped} may leave before the graph is drawn, and "
            f"{population} cannot have {degree} neighbours each of whom {threshold} recover a secret; plan for fewer "
            "dropouts, use a full graph, or invite more"
        )
    if mode is SecurityMode.ACTIVE:
        require_committee(population, corrupted, size or population, quorum, bits)


def _sparse(mode: SecurityMode, assumptions: Assumptions, invited: int) -> tuple[int, int, int, int]:
    neighbourhood = find_neighbourhood(assumptions, mode)
    if mode is SecurityMode.SEMI_HONEST:
        return neighbourhood.degree, neighbourhood.threshold, 0, 0
    committee = find_committee(assumptions)
    if committee.size < assumptions.population:
        return neighbourhood.degree, neighbourhood.threshold, committee.size, committee.quorum
    # Everyone is on the committee; more members need a larger quorum, so the other end is planned for.
    return neighbourhood.degree, neighbourhood.threshold, 0, (invited + assumptions.corrupted) // 2 + 1


def _full(mode: SecurityMode, assumptions: Assumptions, invited: int) -> tuple[int, int, int, int]:
    corrupted, holders = assumptions.corrupted, assumptions.population - assumptions.dropped - 1
    if mode is SecurityMode.ACTIVE:
        threshold = (invited + corrupted) // 2 + 1
    else:
        # corrupted + 1 protects; half of the clients protects more, where that many holders are sure to stay.
        threshold = max(corrupted + 1, min(invited // 2 + 1, holders))
    threshold = max(LEAST_THRESHOLD, threshold)
    if threshold > holders:
        raise InvalidParameters(
            f"a full graph of {invited} clients, {assumptions.corrupted} of them corrupted, has a threshold of "
            f"{threshold}, but after late and dropped clients only {holders} share holders remain; plan for fewer, or "
            "invite more"
        )
    return 0, threshold, 0, threshold if mode is SecurityMode.ACTIVE else 0


# --- A platform's settings --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseOptions(BudgetedNoise, ProtocolOptions):
    """Plan of a session."""

    protocol: ClassVar = "pairwise"
    mode: Annotated[SecurityMode, option("trust in the server")] = SecurityMode.ACTIVE
    topology: Annotated[Topology, option("who masks with whom; full where few clients need it")] = Topology.SPARSE
    population: Annotated[int | None, option("number of invited clients, where nobody names them")] = None
    corrupted: Annotated[int, option("clients that may collude with the server, counted absolutely")] = 0
    dropped: Annotated[int, option("clients that may drop out, in any round")] = 0
    late: Annotated[int, option("clients that may fail to advertise at all, in addition")] = 0
    privacy_bits: Annotated[int | None, option("a drawn graph betrays a client with chance 2^-n")] = None
    """By default the least of the mode."""
    correctness_bits: Annotated[int, option("a sum fails by chance with 2^-n")] = CORRECTNESS_BITS
    check_words: Annotated[int, option("check words of a segment")] = LEAST_CHECK_WORDS
    attempt: Annotated[int, option("number of the attempt of a round")] = 0

    def plan(
        self, subject: Subject, population: int, authority: bytes, coins: Coins, standing: Standing = NO_STANDING
    ) -> SessionPlan:
        """Plan a session with the graph that few clients need."""
        topology = self._topology_for(self.assumed(population), population)
        return plan_session(subject, replace(self, topology=topology), population, coins, authority, standing=standing)

    def takes(self, population: int) -> bool:
        """Whether a graph of ``population`` clients withstands the corrupted and the dropped ones."""
        stay = population - self.late - self.dropped
        if self.minimum_cohort is not None and self.minimum_cohort > max(LEAST_COHORT, stay):
            return False
        try:
            assumed = self.assumed(population)
            graph_parameters(self._topology_for(assumed, population), self.mode, assumed, population)
        except InvalidParameters:
            return False
        return True

    def most_dropped(self, population: int) -> int | None:
        """Return how many clients may drop out in any round, none of them late; None if there is no session at all.

        The cohort is what they leave, whatever ``minimum_cohort`` says.
        """
        fails = bisect_left(
            range(population - 1),
            x=True,
            key=lambda dropped: not replace(self, dropped=dropped, late=0, minimum_cohort=None).takes(population),
        )
        return fails - 1 if fails else None

    def stands(self, population: int) -> str:
        """Say how many dropouts a session of ``population`` clients tolerates."""
        most, whom = self.most_dropped(population), f"{population} clients with {self.corrupted} corrupted"
        if most is None:
            return f"{whom} have no session in {self.mode} mode"
        return f"{whom} tolerate at most {most} dropout{'s' * (most != 1)} in {self.mode} mode"

    def _topology_for(self, assumed: Assumptions, population: int) -> Topology:
        """Return the graph that is asked for; few clients have a full one if no sparse one tolerates the dropouts."""
        if self.topology is Topology.SPARSE and population <= LARGEST_WHOLE_COMMITTEE:
            try:
                graph_parameters(Topology.SPARSE, self.mode, assumed, population, is_early=True)
            except InvalidParameters:
                with suppress(InvalidParameters):
                    graph_parameters(Topology.FULL, self.mode, assumed, population, is_early=True)
                    return Topology.FULL
        return self.topology

    @property
    def least_bits(self) -> int:
        """``privacy_bits``, or what the mode asks for at least."""
        return least_privacy_bits(self.mode) if self.privacy_bits is None else self.privacy_bits

    def assumed(self, population: int) -> Assumptions:
        """Return what the graph must withstand: the fewer clients, the larger the share of corrupted neighbours."""
        return Assumptions(
            population=population - self.late,
            corrupted=min(self.corrupted, population - self.late - 1),
            dropped=self.dropped,
            privacy_bits=self.least_bits,
            correctness_bits=self.correctness_bits,
        )
