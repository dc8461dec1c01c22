"""A session's configuration: a unique encoding, a digest of all of it, and plans that every client can accept."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from secagg import wire
from secagg.choices import Topology
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import SEGMENT_BYTES
from secagg.crypto.shamir import MAX_HOLDERS
from secagg.errors import InternalError, InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.privacy.accounting import Adjacency
from secagg.protocols.pairwise_mask.configuration import (
    NO_AUTHORITY,
    NO_DIGEST,
    SessionConfiguration,
    certain,
    commit_to_opening,
    require_context,
)
from secagg.protocols.pairwise_mask.plan import PairwiseOptions, SessionPlan, plan_session
from secagg.session.certificates import Standing
from secagg.session.client_policy import ClientPolicy
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.pairwise_sessions import OfferedSubject, plan_of

LAYOUT = Layout((RingSegment(20, 6), RingSegment(7, 3)))
ACTIVE_FULL = SessionConfiguration(
    task=b"a task",
    model_digest=b"m" * 32,
    round_number=3,
    attempt=1,
    mode=SecurityMode.ACTIVE,
    suite=Suite.CLASSIC,
    topology=Topology.FULL,
    degree=0,
    threshold=5,
    committee_size=0,
    quorum=5,
    minimum_cohort=4,
    maximum_population=8,
    layout=LAYOUT,
    check_words=8,
    application_digest=b"p" * 32,
    authority=b"a" * 32,
    graph_commitment=commit_to_opening(b"o" * 32),
    server_nonce=b"n" * 32,
)
SPARSE = replace(
    ACTIVE_FULL,
    mode=SecurityMode.SEMI_HONEST,
    topology=Topology.SPARSE,
    degree=6,
    threshold=4,
    quorum=0,
    authority=NO_AUTHORITY,
)
OTHER: dict[str, Any] = {
    "message_form": 2,
    "task": b"another task",
    "model_digest": b"M" * 32,
    "round_number": 4,
    "attempt": 2,
    "suite": Suite.HYBRID,
    "threshold": 6,
    "committee_size": 7,
    "quorum": 6,
    "minimum_cohort": 5,
    "maximum_population": 9,
    "layout": Layout(LAYOUT.segments, b"v" * 32),
    "check_words": 9,
    "application_digest": b"P" * 32,
    "authority": b"A" * 32,
    "standing": Standing(number=1),
    "graph_commitment": b"G" * 32,
    "server_nonce": b"N" * 32,
}
NAMES = [field.name for field in fields(SessionConfiguration) if field.init]


def changed(name: str) -> SessionConfiguration:
    match name:
        case "mode":
            return replace(ACTIVE_FULL, mode=SecurityMode.SEMI_HONEST, quorum=0, authority=NO_AUTHORITY)
        case "topology":
            return replace(ACTIVE_FULL, topology=Topology.SPARSE, degree=6)
        case "degree":
            return replace(SPARSE, degree=4)
        case _:
            return replace(ACTIVE_FULL, **{name: OTHER[name]})


# --- One encoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_everything_in_a_configuration_is_in_its_digest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FORMS", range(2, 4))
    base = SPARSE if name == "degree" else ACTIVE_FULL
    assert changed(name).context != base.context


def test_the_context_is_the_documented_hash() -> None:
    statement = bind(Label.CONFIGURATION, ACTIVE_FULL.encode())
    assert ACTIVE_FULL.context.digest == hashlib.sha256(statement).digest()
    statement = bind(Label.GRAPH_OPENING, b"o" * 32)
    assert commit_to_opening(b"o" * 32) == hashlib.sha256(statement).digest()


@pytest.mark.parametrize("place", range(3))
def test_a_mode_a_suite_or_a_topology_beyond_the_table_is_refused(place: int) -> None:
    at = ACTIVE_FULL.encode().index(b"m" * 32) + 32 + 8 + 4 + place
    encoded = bytearray(ACTIVE_FULL.encode())
    for value in (2, 255):
        encoded[at] = value
        with pytest.raises(MalformedMessage, match=f"{value} is not one of 2") as caught:
            SessionConfiguration.decode(bytes(encoded))
        assert caught.value.reason is Reason.NOT_CANONICAL


def test_an_offer_of_indices_is_refused_as_malformed() -> None:
    rings, indices = LAYOUT.encode(), Layout((RingSegment(20, 6), IndexSegment(7, 3))).encode()
    assert len(rings) == len(indices)
    with pytest.raises(MalformedMessage, match="indices"):
        SessionConfiguration.decode(ACTIVE_FULL.encode().replace(rings, indices))


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "options", "sentence"),
    [
        (ACTIVE_FULL, {"round_number": -1}, "round_number"),
        (ACTIVE_FULL, {"round_number": 1 << 64}, "round_number"),
        (ACTIVE_FULL, {"attempt": 1 << 32}, "attempt"),
        (ACTIVE_FULL, {"attempt": True}, "attempt"),
        (ACTIVE_FULL, {"maximum_population": 1}, "maximum_population"),
        (ACTIVE_FULL, {"maximum_population": (1 << 20) + 1}, "maximum_population"),
        (ACTIVE_FULL, {"minimum_cohort": 1}, "minimum_cohort"),
        (ACTIVE_FULL, {"minimum_cohort": 9}, "minimum_cohort"),
        (ACTIVE_FULL, {"check_words": 7}, "check_words"),
        (ACTIVE_FULL, {"check_words": 65}, "check_words"),
        (ACTIVE_FULL, {"degree": 2}, "degree of a full graph"),
        (ACTIVE_FULL, {"threshold": 1}, "threshold"),
        (ACTIVE_FULL, {"threshold": 8}, "threshold"),
        (ACTIVE_FULL, {"threshold": 5.0}, "threshold"),
        (ACTIVE_FULL, {"committee_size": 9}, "committee_size"),
        (ACTIVE_FULL, {"quorum": 0}, "quorum"),
        (ACTIVE_FULL, {"quorum": 9}, "quorum"),
        (ACTIVE_FULL, {"committee_size": 4}, "quorum"),
        (ACTIVE_FULL, {"authority": NO_AUTHORITY}, "authority"),
        (ACTIVE_FULL, {"authority": b"a" * 31}, "authority must be 32 bytes"),
        (ACTIVE_FULL, {"model_digest": b""}, "model_digest must be 32 bytes"),
        (ACTIVE_FULL, {"model_digest": bytearray(32)}, "model_digest must be 32 bytes"),
        (ACTIVE_FULL, {"application_digest": None}, "application_digest must be 32 bytes"),
        (ACTIVE_FULL, {"graph_commitment": b"g"}, "graph_commitment must be 32 bytes"),
        (ACTIVE_FULL, {"server_nonce": b"n"}, "server_nonce must be 32 bytes"),
        (ACTIVE_FULL, {"task": b""}, "task"),
        (ACTIVE_FULL, {"task": b"t" * 257}, "task"),
        (ACTIVE_FULL, {"task": "a task"}, "task"),
        (ACTIVE_FULL, {"layout": Layout((IndexSegment(4, 2),))}, "indices"),
        (SPARSE, {"degree": 1}, "degree"),
        (SPARSE, {"degree": 8}, "degree"),
        (SPARSE, {"threshold": 7}, "threshold"),
        (SPARSE, {"committee_size": 3}, "committee_size in semi_honest"),
        (SPARSE, {"quorum": 3}, "quorum in semi_honest"),
        (SPARSE, {"authority": b"a" * 32}, "no authority"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_inconsistent_is_refused(base: SessionConfiguration, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        replace(base, **options)


@pytest.mark.parametrize("name", ["mode", "suite", "topology", "layout"])
def test_names_in_place_of_values_are_refused(name: str) -> None:
    text: dict[str, Any] = {name: str(getattr(ACTIVE_FULL, name))}
    with pytest.raises(Misuse, match="must be a SecurityMode"):
        replace(ACTIVE_FULL, **text)


# --- What follows from it ---------------------------------------------------------------------------------------------


@given(st.integers(8, 1 << 20))
def test_the_last_segment_counts_as_many_clients_as_there_may_be(population: int) -> None:
    count = replace(SPARSE, maximum_population=population).segments[-1]
    assert count.length == 1
    assert 1 << (count.modulus_bits - 1) <= population < 1 << count.modulus_bits


@pytest.mark.parametrize(("bits", "words"), [(1, 64), (2, 32), (7, 10), (8, 8), (9, 8), (64, 8)])
def test_narrow_rings_have_more_check_words(bits: int, words: int) -> None:
    assert ACTIVE_FULL.check_words_of(RingSegment(bits, 3)) == words
    assert words * bits >= 64
    many = replace(ACTIVE_FULL, check_words=40)
    assert many.check_words_of(RingSegment(bits, 3)) == max(40, words)


@pytest.mark.parametrize("population", [3, 9])
def test_too_few_or_too_many_advertisers_are_refused(population: int) -> None:
    with pytest.raises(InvalidParameters, match="population"):
        ACTIVE_FULL.require_population(population, corrupted=0, privacy_bits=40)


def test_a_threshold_that_does_not_protect_is_refused() -> None:
    ACTIVE_FULL.require_population(8, corrupted=1, privacy_bits=40)
    with pytest.raises(InvalidParameters, match=r"must be in 6\.\.7") as caught:
        ACTIVE_FULL.require_population(8, corrupted=2, privacy_bits=40)
    assert caught.value.reason is Reason.BELOW_FLOOR
    with pytest.raises(InvalidParameters, match="must be in"):
        ACTIVE_FULL.require_population(5, corrupted=0, privacy_bits=40)


def test_a_degree_that_the_advertisers_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="cannot have 6 neighbours"):
        SPARSE.require_population(6, corrupted=0, privacy_bits=40)


def test_a_committee_that_the_advertisers_cannot_form_is_refused() -> None:
    committee = replace(ACTIVE_FULL, committee_size=8, quorum=6, threshold=4)
    with pytest.raises(InvalidParameters, match="cannot form a committee of 8"):
        committee.require_population(7, corrupted=0, privacy_bits=40)
    small = replace(ACTIVE_FULL, quorum=4)
    with pytest.raises(InvalidParameters, match="quorum of 4"):
        small.require_population(8, corrupted=0, privacy_bits=40)


# --- Plans ------------------------------------------------------------------------------------------------------------


def some_plan(**options: Any) -> SessionPlan:
    planned: dict[str, Any] = {"population": 20, "corrupted": 1, "dropped": 2} | options
    if planned.get("mode", SecurityMode.ACTIVE) is SecurityMode.ACTIVE:
        planned |= {"authority": b"a" * 32}
    return plan_of(LAYOUT, InsecureSeededCoins(b"plan"), **planned)


@given(
    population=st.integers(2, 60),
    corrupted=st.integers(0, 6),
    dropped=st.integers(0, 12),
    late=st.integers(0, 5),
    mode=st.sampled_from(SecurityMode),
    topology=st.sampled_from(Topology),
)
def test_a_plan_is_safe_for_every_number_of_advertisers_that_it_allows_for(  # noqa: PLR0913, PLR0917 -- a plan
    population: int, corrupted: int, dropped: int, late: int, mode: SecurityMode, topology: Topology
) -> None:
    try:
        plan = some_plan(
            population=population, corrupted=corrupted, dropped=dropped, late=late, mode=mode, topology=topology
        )
    except InvalidParameters:
        reject()
    configuration = plan.configuration
    bits = {SecurityMode.ACTIVE: 100, SecurityMode.SEMI_HONEST: 40}[mode]
    assert (plan.corrupted, plan.dropped, plan.privacy_bits) == (corrupted, dropped, bits)
    assert configuration.maximum_population == population
    assert configuration.minimum_cohort >= max(2, population - late - dropped)
    for advertised in {population - late, population}:
        configuration.require_population(advertised, corrupted=corrupted, privacy_bits=bits, dropped=dropped)
        holders = configuration.degree_among(advertised) - (dropped if topology is Topology.FULL else 0)
        assert configuration.threshold <= holders
        if mode is SecurityMode.ACTIVE:
            assert configuration.quorum <= configuration.committee_among(advertised) - (
                dropped if topology is Topology.FULL else 0
            )
    assert configuration.threshold > corrupted or topology is Topology.SPARSE


def test_the_opening_is_what_the_offer_commits_to_and_is_not_in_it() -> None:
    plan = some_plan()
    assert commit_to_opening(plan.opening) == plan.configuration.graph_commitment
    assert plan.opening not in plan.configuration.encode()
    assert repr(plan.opening) not in repr(plan)
    assert some_plan(attempt=1).configuration.context != plan.configuration.context


@pytest.mark.parametrize(
    "options",
    [
        {"population": 1},
        {"population": 0, "corrupted": 0, "dropped": 0},
        {"late": 19},
        {"late": 20},
        {"dropped": 20},
        {"corrupted": 20},
        {"corrupted": 17, "topology": Topology.FULL},
        {"dropped": 12, "topology": Topology.FULL},
        {"mode": SecurityMode.SEMI_HONEST, "corrupted": 17, "topology": Topology.FULL},
        {"privacy_bits": 0},
        {"privacy_bits": 99},
        {"privacy_bits": 39, "mode": SecurityMode.SEMI_HONEST},
        {"correctness_bits": 0},
        {"check_words": 3},
        {"minimum_cohort": 21},
    ],
    ids=str,
)
def test_a_plan_that_cannot_be_safe_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        some_plan(**options)


def test_a_plan_that_its_own_dropouts_would_end_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="minimum_cohort is 12"):
        plan_of(
            Layout((RingSegment(8, 2),)),
            InsecureSeededCoins(b"plan"),
            population=12,
            corrupted=0,
            dropped=2,
            mode=SecurityMode.SEMI_HONEST,
            topology=Topology.FULL,
            minimum_cohort=12,
        )


# --- The last value that is allowed, and the first that is not --------------------------------------------------------


def test_every_bound_of_a_configuration_can_be_met() -> None:
    for task in (b"t", b"t" * 256):
        assert replace(ACTIVE_FULL, task=task).task == task
    ACTIVE_FULL.require_population(6, corrupted=1, privacy_bits=100)
    with pytest.raises(InvalidParameters, match=r"must be in 4\.\.4"):
        ACTIVE_FULL.require_population(5, corrupted=1, privacy_bits=100)
    replace(ACTIVE_FULL, threshold=4).require_population(5, corrupted=1, privacy_bits=100)


def test_a_sparse_graph_has_an_even_degree_and_a_full_one_as_many_clients_as_points() -> None:
    with pytest.raises(InvalidParameters, match="even; got 5"):
        replace(SPARSE, degree=5)
    assert replace(ACTIVE_FULL, maximum_population=MAX_HOLDERS).degree == 0
    with pytest.raises(InvalidParameters, match="maximum_population of a full graph"):
        replace(ACTIVE_FULL, maximum_population=MAX_HOLDERS + 1)


def test_a_layout_takes_no_more_parts_of_a_masks_stream_than_a_key_has(monkeypatch: pytest.MonkeyPatch) -> None:
    # One part for each segment, and one for the count.
    for most in (3, 4):
        monkeypatch.setattr("secagg.protocols.pairwise_mask.configuration.KEY_LIMIT_BYTES", most * SEGMENT_BYTES)
        assert replace(ACTIVE_FULL, layout=LAYOUT).layout == LAYOUT
    monkeypatch.setattr("secagg.protocols.pairwise_mask.configuration.KEY_LIMIT_BYTES", 2 * SEGMENT_BYTES)
    with pytest.raises(InvalidParameters, match="needs 3 stream segments"):
        replace(ACTIVE_FULL, layout=LAYOUT)


def test_fine_bits_are_masked_and_not_sent() -> None:
    """Check words are sent whole."""
    segment = RingSegment(8, 100, 8)
    configuration = replace(ACTIVE_FULL, layout=Layout((segment,)))
    assert configuration.sent_bytes(segment) == 100 + 8 * 2
    assert configuration.sent_bytes(RingSegment(16, 100)) == 2 * 108


def test_a_client_judges_the_advertisers_by_its_own_policy() -> None:
    policy = ClientPolicy.among(8)
    ACTIVE_FULL.require_protected(policy, 8)
    with pytest.raises(InvalidParameters, match="must be in"):
        ACTIVE_FULL.require_protected(replace(policy, assumed_corrupted=2), 8)


def test_the_tag_of_another_session_and_what_no_round_settled_are_refused() -> None:
    require_context(ACTIVE_FULL.context.tag, ACTIVE_FULL.context, "another session", {ServerId()})
    with pytest.raises(PeerMisbehaved, match="another session") as caught:
        require_context(SPARSE.context.tag, ACTIVE_FULL.context, "another session", {ServerId()})
    assert caught.value.reason is Reason.WRONG_SESSION
    assert certain(0) == 0
    with pytest.raises(InternalError, match="no earlier round"):
        certain(None)


def subject_of(**options: Any) -> OfferedSubject:
    given_up: dict[str, Any] = {"model_digest": b"m" * 32, "capacity": 20} | options
    return OfferedSubject(task=b"a task", round_number=0, layout=LAYOUT, terms=bytes(32), **given_up)


def test_a_plan_is_about_the_subjects_model_or_about_none_yet() -> None:
    settings, coins = PairwiseOptions(mode=SecurityMode.SEMI_HONEST), InsecureSeededCoins(b"plan")
    for digest, planned in ((b"m" * 32, b"m" * 32), (None, NO_DIGEST)):
        plan = plan_session(subject_of(model_digest=digest), settings, 20, coins)
        assert plan.configuration.model_digest == planned


def test_as_many_clients_are_invited_as_the_codec_has_room_for() -> None:
    settings, coins = PairwiseOptions(mode=SecurityMode.SEMI_HONEST), InsecureSeededCoins(b"plan")
    assert plan_session(subject_of(capacity=20), settings, 20, coins).configuration.maximum_population == 20
    with pytest.raises(InvalidParameters, match="capacity of 19"):
        plan_session(subject_of(capacity=19), settings, 20, coins)


@pytest.mark.parametrize("name", ["population", "corrupted", "dropped", "late"])
def test_a_plan_for_less_than_nobody_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParameters, match=f"^{name} must be"):
        some_plan(**{name: -1})


def test_a_plan_whose_late_clients_leave_too_few_for_a_certificate_is_refused() -> None:
    """The quorum is planned for all invited clients."""
    with pytest.raises(InvalidParameters, match="cannot form a committee of 30 with a quorum of 33"):
        some_plan(population=60, corrupted=4, dropped=1, late=30)


def test_a_plan_whose_noise_no_client_can_draw_is_refused() -> None:
    asked: dict[str, Any] = {"population": 20, "mode": SecurityMode.SEMI_HONEST, "minimum_cohort": 17}
    noise: dict[str, Any] = {"noise_multiplier": Fraction(1), "adjacency": Adjacency.ZERO_OUT}
    layout = Layout((RingSegment(24, 6),))
    coins = InsecureSeededCoins(b"plan")
    assert plan_of(layout, coins, **asked, **noise, l2_bounds=(3000,)).configuration.minimum_cohort == 17
    with pytest.raises(InvalidParameters, match="noise_multiplier"):
        plan_of(layout, coins, **asked, **noise, l2_bounds=(3,))
