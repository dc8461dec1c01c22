"""Session planning: choose parameters that are safe and tolerate the expected dropouts."""

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
"""Largest degree and committee that the search tries; beyond it, a sparse graph saves nothing."""
LEAST_COMMITTEE: Final = 3
LARGEST_WHOLE_COMMITTEE: Final = 128
"""Up to this population every client is on the committee, which costs little and rules out bad draws."""


# --- What a session withstands ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Faults that a session is planned to withstand.

    For one drawn graph, privacy fails with probability at most 2^-privacy_bits. With at most ``dropped`` dropouts, all
    by accident, some client lacks surviving neighbours with probability at most 2^-correctness_bits; the same bound
    holds for too few signatures of the committee.
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
    """Degree and threshold of a sparse graph, and the bounds on corrupted clients that they assume."""

    degree: int
    threshold: int
    corrupted: int
    """Bound on the corrupted neighbours of every client."""
    window: int
    """Of any two disjoint half-windows, one has at most this many corrupted clients."""


@dataclass(frozen=True, slots=True)
class Committee:
    """Numbers of clients that are asked to certify the survivors, that must sign, and that may be corrupted."""

    size: int
    quorum: int
    corrupted: int


def find_neighbourhood(assumptions: Assumptions, mode: SecurityMode) -> Neighbourhood:
    """Return the sparse graph of the smallest degree that meets the assumptions in a mode.

    Implements: [BBG+20], with a union bound over the actual neighbours (n - 1, not n) and, in ``active`` mode, this
        library's own threshold rule.
    """
    population, corrupted, dropped = assumptions.population, assumptions.corrupted, assumptions.dropped
    privacy, correctness = assumptions.privacy_bits, assumptions.correctness_bits
    obstacle = "no even degree is below the population: use a full graph, or invite at least 3 clients"
    for degree in range(LEAST_DEGREE, min(population, LARGEST_SEARCHED + 1), 2):
        if not stays_connected(population, corrupted + dropped, degree, privacy):
            obstacle = "honest survivors could be cut off: invite more, or assume fewer corrupted or dropped clients"
            continue
        bound = corrupted_neighbours(population, corrupted, degree, privacy)
        window = corrupted_in_window(population, corrupted, degree, privacy)
        threshold = threshold_in(mode, degree, bound, window)
        if threshold > degree:
            obstacle = "a client could have too many corrupted neighbours: lower corrupted or privacy_bits"
            continue
        too_few = log_tail(degree - threshold + 1, population - 1, dropped, degree)
        if too_few + log(population) > -correctness * LN2:
            obstacle = "too few neighbours would survive: invite more, or assume fewer dropped or corrupted clients"
            continue
        return Neighbourhood(degree, threshold, bound, window)
    raise InvalidParameters(
        f"no sparse graph of {population} clients and degree up to {min(population - 1, LARGEST_SEARCHED)} tolerates "
        f"{corrupted} corrupted and {dropped} dropped clients in {mode} mode; at the last degree, {obstacle}"
    )


def find_committee(assumptions: Assumptions) -> Committee:
    """Return the smallest committee whose certificates cannot contradict each other; all clients of a small session.

    Two certificates of tau signatures share an honest signer if 2 tau > q + c, where c of the q members are corrupted.
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
        f"with {corrupted} corrupted of {population} clients, {(population + corrupted) // 2 + 1} must certify the "
        f"survivors, but {dropped} may drop out; assume fewer corrupted or dropped clients"
    )


# --- Planning a session -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A configuration, the faults it tolerates, and the server's contribution to the graph seed (``opening``).

    The configuration commits to the opening, which the server keeps secret until the roster is fixed.
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
    """Choose parameters that are safe and tolerate the given dropouts.

    Args:
        population: number of invited clients.
        coins: for the nonce and the server's contribution to the graph seed.
        authority: public key of the authority that certifies clients; only in active mode.
        standing: the authority's revocations, from the head of its roster.

    Raises:
        InvalidParameters: no safe session exists; the message says what to relax.
    """
    mode, corrupted, dropped, late = settings.mode, settings.corrupted, settings.dropped, settings.late
    for name, value in (("population", population), ("corrupted", corrupted), ("dropped", dropped), ("late", late)):
        require_number(name, value, 0, MAXIMUM_POPULATION)
    if population > subject.capacity:
        raise InvalidParameters(
            f"{population} clients exceed the codec's capacity of {subject.capacity}; use a wider ring, or "
            "invite fewer clients"
        )
    bits = settings.least_bits
    require_number(f"privacy_bits in {mode} mode", bits, least_privacy_bits(mode), MAXIMUM_BITS)
    least = population - late
    stay = max(LEAST_COHORT, least - dropped)
    minimum_cohort = stay if settings.minimum_cohort is None else settings.minimum_cohort
    if minimum_cohort > stay:
        raise InvalidParameters(
            f"minimum_cohort is {minimum_cohort}, but {late} late and {dropped} dropped of {population} clients leave "
            f"only {least - dropped}; lower it, or plan for fewer of them"
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
    """Return degree, threshold, committee size and quorum of a graph that tolerates dropouts in any round.

    Clients that leave before the graph is drawn make it smaller; clients that leave later leave holes in it. For about
    five clients no graph tolerates both; it then tolerates later dropouts, unless ``is_early`` asks for both.

    Raises:
        InvalidParameters: no graph tolerates these faults.
    """
    choose = _sparse if topology is Topology.SPARSE else _full
    chosen, fewest = choose(mode, assumptions, invited), assumptions.population - assumptions.dropped
    try:
        _require_fewer(topology, mode, chosen, assumptions, fewest)
    except InvalidParameters:
        # A graph planned for the smallest population also fits the full one.
        with suppress(InvalidParameters):
            smaller = replace(assumptions, population=fewest, corrupted=min(assumptions.corrupted, fewest - 1))
            chosen_again = choose(mode, smaller, invited)
            _require_fewer(topology, mode, chosen_again, assumptions, fewest)
            return chosen_again
        if is_early:
            raise
    return chosen


def _require_fewer(
    topology: Topology, mode: SecurityMode, chosen: tuple[int, int, int, int], assumptions: Assumptions, population: int
) -> None:
    """Refuse parameters that do not protect the remaining clients when all dropouts precede the graph."""
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
            f"{assumptions.dropped} of {assumptions.population} clients may leave before the graph is drawn, and "
            f"{population} are too few for {degree} neighbours each and a threshold of {threshold}; plan for fewer "
            "dropouts, use a full graph, or invite more clients"
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
    # Everyone is on the committee. More members need a larger quorum, so plan for all that are invited.
    return neighbourhood.degree, neighbourhood.threshold, 0, (invited + assumptions.corrupted) // 2 + 1


def _full(mode: SecurityMode, assumptions: Assumptions, invited: int) -> tuple[int, int, int, int]:
    corrupted, holders = assumptions.corrupted, assumptions.population - assumptions.dropped - 1
    if mode is SecurityMode.ACTIVE:
        threshold = (invited + corrupted) // 2 + 1
    else:
        # corrupted + 1 suffices; half of the clients protects more, if that many holders are sure to stay.
        threshold = max(corrupted + 1, min(invited // 2 + 1, holders))
    threshold = max(LEAST_THRESHOLD, threshold)
    if threshold > holders:
        raise InvalidParameters(
            f"a full graph of {invited} clients, {assumptions.corrupted} of them corrupted, needs a threshold of "
            f"{threshold}, but after late and dropped clients only {holders} share holders remain; plan for fewer, or "
            "invite more clients"
        )
    return 0, threshold, 0, threshold if mode is SecurityMode.ACTIVE else 0


# --- A platform's settings --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseOptions(BudgetedNoise, ProtocolOptions):
    """Options of a pairwise session, from which the server plans it."""

    protocol: ClassVar = "pairwise"
    mode: Annotated[SecurityMode, option("trust in the server")] = SecurityMode.ACTIVE
    topology: Annotated[Topology, option("graph of the pairwise masks; full if too few clients")] = Topology.SPARSE
    population: Annotated[int | None, option("number of invited clients, if they are not named")] = None
    corrupted: Annotated[int, option("clients that may collude with the server, counted absolutely")] = 0
    dropped: Annotated[int, option("clients that may drop out, in any round")] = 0
    late: Annotated[int, option("clients that may fail to advertise at all, in addition")] = 0
    privacy_bits: Annotated[int | None, option("a drawn graph exposes a client with probability 2^-n")] = None
    """By default the minimum of the mode."""
    correctness_bits: Annotated[int, option("a sum fails by chance with probability 2^-n")] = CORRECTNESS_BITS
    check_words: Annotated[int, option("check words of a segment")] = LEAST_CHECK_WORDS
    attempt: Annotated[int, option("number of the attempt of a round")] = 0

    def plan(
        self, subject: Subject, population: int, authority: bytes, coins: Coins, standing: Standing = NO_STANDING
    ) -> SessionPlan:
        """Plan a session; a small one falls back to a full graph."""
        topology = self._topology_for(self.assumed(population), population)
        return plan_session(subject, replace(self, topology=topology), population, coins, authority, standing=standing)

    def takes(self, population: int) -> bool:
        """Whether a session of ``population`` clients tolerates the corrupted, late and dropped ones."""
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
        """Return how many clients may drop out in any round if none is late; None if no session is possible.

        Ignores ``minimum_cohort``: the cohort is whatever these dropouts leave.
        """
        fails = bisect_left(
            range(population - 1),
            x=True,
            key=lambda dropped: not replace(self, dropped=dropped, late=0, minimum_cohort=None).takes(population),
        )
        return fails - 1 if fails else None

    def stands(self, population: int) -> str:
        """Return a sentence on how many dropouts a session of ``population`` clients tolerates."""
        most, whom = self.most_dropped(population), f"{population} clients with {self.corrupted} corrupted"
        if most is None:
            return f"{whom} cannot run a session in {self.mode} mode"
        return f"{whom} tolerate at most {most} dropout{'s' * (most != 1)} in {self.mode} mode"

    def _topology_for(self, assumed: Assumptions, population: int) -> Topology:
        """Return the requested graph, or a full one if few clients have no sparse graph that tolerates the dropouts."""
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
        """``privacy_bits``, or the minimum of the mode."""
        return least_privacy_bits(self.mode) if self.privacy_bits is None else self.privacy_bits

    def assumed(self, population: int) -> Assumptions:
        """Return the faults that the graph must tolerate; corrupted clients weigh more in a smaller population."""
        return Assumptions(
            population=population - self.late,
            corrupted=min(self.corrupted, population - self.late - 1),
            dropped=self.dropped,
            privacy_bits=self.least_bits,
            correctness_bits=self.correctness_bits,
        )
