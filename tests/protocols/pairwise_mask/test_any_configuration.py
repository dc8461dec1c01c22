"""Every configuration that ``plan_session`` accepts gives the right sum; the others are refused there."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import SEGMENT_BYTES
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.parameters import SecurityMode, Suite
from secagg.privacy.client_noise import NoiseSettings
from secagg.protocols.pairwise_mask.member import ClientState
from secagg.protocols.pairwise_mask.plan import PairwiseOptions, plan_session
from secagg.protocols.pairwise_mask.session import ServerState
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, same_sum

WIDTHS = st.one_of(st.sampled_from((1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)), st.integers(1, 64))
LENGTHS = st.one_of(st.sampled_from((1, 2, 7, 8, 9, 63, 64, 65)), st.integers(1, 40))
LAYOUTS = st.lists(st.builds(RingSegment, WIDTHS, LENGTHS), min_size=1, max_size=5).map(lambda s: Layout(tuple(s)))
MOST_STREAMS = 1 << 16


@st.composite
def setups(draw: st.DrawFn) -> SessionSetup:
    """Draw a session's parameters; the plan refuses unsafe ones."""
    population = draw(st.integers(2, 12))
    return SessionSetup(
        population=population,
        corrupted=draw(st.integers(0, 2)),
        dropped=draw(st.integers(0, 3)),
        late=draw(st.integers(0, 1)),
        mode=draw(st.sampled_from(list(SecurityMode))),
        suite=draw(st.sampled_from(list(Suite))),
        topology=draw(st.sampled_from(list(Topology))),
        layout=draw(LAYOUTS),
        minimum_cohort=draw(st.integers(2, 6)),
        check_words=draw(st.sampled_from((8, 9, 40, 64))),
        seed=draw(st.binary(min_size=1, max_size=4)),
    )


@given(setups())
def test_what_is_configured_is_released(setup: SessionSetup) -> None:
    try:
        session = InsecurePairwiseSession(setup)
    except InvalidParameters:
        assume(False)  # noqa: FBT003 -- refused where it is configured
        raise
    # The planned number drops out at the worst points: late ones first, the others after they shared.
    late, gone = setup.client_ids[: setup.late], setup.client_ids[setup.late : setup.late + setup.dropped]
    session.drop(*late)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(*gone)
    total = session.finish()
    assert not session.errors
    assert not session.refusals
    assert not session.server.faults
    contributors = frozenset(setup.client_ids[setup.late + setup.dropped :])
    assert same_sum(total, session.sum_of(contributors))
    assert session.server.revealed == {contributors}


@pytest.mark.parametrize(
    "layout",
    [
        Layout((RingSegment(8, 1),) * MOST_STREAMS),
        Layout((RingSegment(64, (MOST_STREAMS - 1) * SEGMENT_BYTES // 8 - 7),)),
    ],
    ids=["too many segments", "too long a segment"],
)
def test_a_layout_whose_masks_no_key_gives_is_refused_before_anybody_masks(layout: Layout) -> None:
    with pytest.raises(InvalidParameters, match="stream segments"):
        SessionSetup(layout=layout, mode=SecurityMode.SEMI_HONEST).plan()


def test_the_most_segments_that_a_key_masks_are_taken() -> None:
    SessionSetup(layout=Layout((RingSegment(8, 1),) * (MOST_STREAMS - 1)), mode=SecurityMode.SEMI_HONEST).plan()


# --- Noise ------------------------------------------------------------------------------------------------------------


def test_an_offer_without_room_for_noise_is_refused_and_the_next_one_taken() -> None:
    setup = SessionSetup(mode=SecurityMode.SEMI_HONEST, layout=Layout((RingSegment(16, 6),)), population=8)
    session = InsecurePairwiseSession(setup)
    member = session.member(session.client_ids[0], policy=replace(setup.policy, maximum_population=100_000))
    member.noise = NoiseSettings(noise_multiplier=Fraction(1), l2_bounds=(100,))
    terms = member.noise.bound_to(setup.subject.terms_digest, 1)
    good = replace(session.server.configuration, application_digest=terms)
    client = member.join(replace(setup.subject, capacity=1 << 14), session.update_of(session.client_ids[0]))
    with pytest.raises((CapacityExceeded, InvalidParameters)):
        client.answer(replace(good, maximum_population=1000).encode())
    assert client.state is ClientState.AWAITING_OFFER
    assert client.answer(good.encode())


def test_noise_that_nobody_could_add_is_refused_when_the_session_is_planned() -> None:
    setup = SessionSetup(mode=SecurityMode.SEMI_HONEST, layout=Layout((RingSegment(16, 6),)), population=8)
    settings = PairwiseOptions(
        mode=SecurityMode.SEMI_HONEST, noise_multiplier=Fraction(1, 1000), l2_bounds=(100,), corrupted=1
    )
    with pytest.raises(InvalidParameters):
        plan_session(setup.subject, settings, 8, SystemCoins())
    roomy = replace(setup.subject, capacity=1 << 14)
    assert plan_session(roomy, replace(settings, noise_multiplier=Fraction(1)), 8, SystemCoins()).corrupted == 1
