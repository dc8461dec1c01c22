"""How to choose the parameters of a session so that it is safe, and survives the dropouts it is planned for."""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg.contract import Layout
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import draw_exactly
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite

from .configuration import (
    DIGEST_BYTES,
    LEAST_CHECK_WORDS,
    NO_AUTHORITY,
    NO_DIGEST,
    OPENING_BYTES,
    SessionConfiguration,
    commit_to_opening,
    require_range,
)
from .graph import MAXIMUM_POPULATION, Topology
from .thresholds import (
    CORRECTNESS_BITS,
    MAXIMUM_BITS,
    Assumptions,
    ThresholdRule,
    find_committee,
    find_neighbourhood,
    least_privacy_bits,
)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A configuration, what it was planned to withstand, and the server's share in the graph seed that it commits to.

    The opening stays with the server until the roster is fixed.
    """

    configuration: SessionConfiguration
    opening: bytes = field(repr=False)
    corrupted: int
    dropped: int
    privacy_bits: int


def plan_session(  # noqa: PLR0913 -- a session has that many properties; most have defaults
    layout: Layout,
    coins: Coins,
    *,
    population: int,
    corrupted: int,
    dropped: int,
    late: int = 0,
    mode: SecurityMode = SecurityMode.ACTIVE,
    suite: Suite = Suite.CLASSIC,
    topology: Topology = Topology.SPARSE,
    authority: bytes = NO_AUTHORITY,
    minimum_cohort: int | None = None,
    maximum_weight: int = 1,
    privacy_bits: int | None = None,
    correctness_bits: int = CORRECTNESS_BITS,
    check_words: int = LEAST_CHECK_WORDS,
    task: bytes = b"federated training",
    model_digest: bytes = NO_DIGEST,
    round_number: int = 0,
    attempt: int = 0,
    application_digest: bytes = NO_DIGEST,
    capacity: int | None = None,
) -> SessionPlan:
    """Choose parameters that are safe, and that survive the dropouts they are planned for.

    Args:
        layout: what one update consists of; rings only.
        coins: for the nonce and the server's share in the graph seed.
        population: how many clients are invited.
        corrupted: how many of them the plan withstands, counted absolutely.
        dropped: how many may drop out after they advertised.
        late: how many of the invited may fail to advertise at all.
        minimum_cohort: the least number of contributors whose sum is released; by default what the dropouts leave.
        maximum_weight: the largest weight of one client.
        privacy_bits: the chance that one drawn graph betrays a client is 2^-privacy_bits at most; by default the least
            that the mode allows: 100 in ``active`` mode, where the server is granted 2^60 tries, and 40 in
            ``semi_honest`` mode.
        capacity: the largest total weight that the codec can decode; more clients are refused before they upload.

    Raises:
        InvalidParameters: no such session is safe; the message says what to relax.
    """
    if capacity is not None and population * maximum_weight > capacity:
        raise InvalidParameters(
            f"{population} clients that weigh up to {maximum_weight} add up to more than the codec's capacity of "
            f"{capacity}; take a wider ring, or invite fewer"
        )
    for name, value in (("population", population), ("corrupted", corrupted), ("dropped", dropped), ("late", late)):
        require_range(name, value, 0, MAXIMUM_POPULATION)
    if privacy_bits is None:
        privacy_bits = least_privacy_bits(mode)
    require_range(f"privacy_bits in {mode} mode", privacy_bits, least_privacy_bits(mode), MAXIMUM_BITS)
    least = population - late
    if minimum_cohort is None:
        minimum_cohort = max(LEAST_COHORT, least - dropped)
    if minimum_cohort > max(LEAST_COHORT, least - dropped):
        raise InvalidParameters(
            f"minimum_cohort is {minimum_cohort}, and of {population} clients {late} late and {dropped} dropped ones "
            f"leave {least - dropped}; lower it, or plan for fewer"
        )
    degree, threshold, committee_size, quorum = graph_parameters(
        topology,
        mode,
        # Corrupted neighbours are more likely the fewer clients there are, so this end is planned for.
        Assumptions(
            population=least,
            corrupted=min(corrupted, least - 1),
            dropped=dropped,
            privacy_bits=privacy_bits,
            correctness_bits=correctness_bits,
        ),
        population,
    )
    opening = bytes(draw_exactly(OPENING_BYTES, coins))
    configuration = SessionConfiguration(
        task=task,
        model_digest=model_digest,
        round_number=round_number,
        attempt=attempt,
        mode=mode,
        suite=suite,
        topology=topology,
        degree=degree,
        threshold=threshold,
        committee_size=committee_size,
        quorum=quorum,
        minimum_cohort=minimum_cohort,
        maximum_population=population,
        maximum_weight=maximum_weight,
        layout=layout,
        check_words=check_words,
        application_digest=application_digest,
        authority=authority,
        graph_commitment=commit_to_opening(opening),
        server_nonce=bytes(draw_exactly(DIGEST_BYTES, coins)),
    )
    for advertised in {least, population}:
        configuration.require_population(advertised, corrupted=corrupted, privacy_bits=privacy_bits, dropped=dropped)
    return SessionPlan(configuration, opening, corrupted, dropped, privacy_bits)


def graph_parameters(
    topology: Topology, mode: SecurityMode, assumptions: Assumptions, invited: int
) -> tuple[int, int, int, int]:
    """Return degree, threshold, committee size and quorum.

    Raises:
        InvalidParameters: no graph withstands what is assumed.
    """
    return (_sparse if topology is Topology.SPARSE else _full)(mode, assumptions, invited)


def _sparse(mode: SecurityMode, assumptions: Assumptions, invited: int) -> tuple[int, int, int, int]:
    """Return degree, threshold, committee size and quorum of a sparse graph."""
    if mode is SecurityMode.SEMI_HONEST:
        neighbourhood = find_neighbourhood(assumptions, ThresholdRule.SEMI_HONEST)
        return neighbourhood.degree, neighbourhood.threshold, 0, 0
    neighbourhood = find_neighbourhood(assumptions, ThresholdRule.SPLIT_PROOF)
    committee = find_committee(assumptions)
    if committee.size < assumptions.population:
        return neighbourhood.degree, neighbourhood.threshold, committee.size, committee.quorum
    # Everyone is on the committee; more members need a larger quorum, so the other end is planned for.
    return neighbourhood.degree, neighbourhood.threshold, 0, (invited + assumptions.corrupted) // 2 + 1


def _full(mode: SecurityMode, assumptions: Assumptions, invited: int) -> tuple[int, int, int, int]:
    """Return degree, threshold, committee size and quorum of a full graph."""
    # In semi_honest mode corrupted + 1 would do; half of the clients protects more and costs little.
    colluding = assumptions.corrupted if mode is SecurityMode.ACTIVE else 0
    threshold = max(LEAST_THRESHOLD, (invited + colluding) // 2 + 1, assumptions.corrupted + 1)
    holders = assumptions.population - assumptions.dropped - 1
    if threshold > holders:
        raise InvalidParameters(
            f"a full graph of {invited} clients, {assumptions.corrupted} of them corrupted, has a threshold of "
            f"{threshold}, and late and dropped ones leave {holders} others to hold shares; plan for fewer of these, "
            "or invite more"
        )
    return 0, threshold, 0, threshold if mode is SecurityMode.ACTIVE else 0
