"""An offer whose ring or weights leave no room for the client's noise is refused before anything is drawn."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.parameters import SecurityMode
from secagg.privacy.client_noise import NoiseSettings
from secagg.protocols.pairwise_mask.client import ClientState
from secagg.protocols.pairwise_mask.plan import PairwiseSettings, plan_session
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup


@pytest.mark.parametrize("change", [{"maximum_population": 1000}, {"maximum_weight": 3}])
def test_an_offer_without_room_for_noise_is_refused_and_the_next_one_taken(change: dict[str, Any]) -> None:
    setup = SessionSetup(mode=SecurityMode.SEMI_HONEST, layout=Layout((RingSegment(16, 6),)), population=8)
    session = InsecurePairwiseSession(setup)
    member = session.member(session.client_ids[0], floors=replace(setup.floors, maximum_population=100_000))
    member.noise = NoiseSettings(noise_multiplier=Fraction(1), l2_bounds=(100,))
    terms = member.noise.bound_to(setup.subject.terms_digest, 1)
    good = replace(session.server.configuration, application_digest=terms)
    client = member.join(replace(setup.subject, capacity=1 << 14), session.update_of(session.client_ids[0]))
    with pytest.raises((CapacityExceeded, InvalidParameters)):
        client.answer(replace(good, **change).encode())
    assert client.state is ClientState.AWAITING_OFFER
    assert client.answer(good.encode())


def test_noise_that_nobody_could_add_is_refused_when_the_session_is_planned() -> None:
    setup = SessionSetup(mode=SecurityMode.SEMI_HONEST, layout=Layout((RingSegment(16, 6),)), population=8)
    settings = PairwiseSettings(
        mode=SecurityMode.SEMI_HONEST, noise_multiplier=Fraction(1, 1000), l2_bounds=(100,), corrupted=1
    )
    with pytest.raises(InvalidParameters):
        plan_session(setup.subject, settings, 8, SystemCoins())
    roomy = replace(setup.subject, capacity=1 << 14)
    assert plan_session(roomy, replace(settings, noise_multiplier=Fraction(1)), 8, SystemCoins()).corrupted == 1
