"""ClientPolicy, bounds and certificates where they just hold, and where they just do not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.protocols.one_message.configuration import noise_of
from secagg.protocols.one_message.parameters import Parameters
from secagg.protocols.one_message.session import masked_values
from secagg.protocols.one_message.sharing import Dealing, deal
from tests.harness.one_message_sums import SMALL_LAYOUT, InsecureSum, SumSetup

BOUNDS = ((0, 10), (0, 10))
NOISE = NoiseSettings(noise_multiplier=Fraction(1), l2_bounds=(100, 100))
WIDE = Layout((RingSegment(30, 6), RingSegment(30, 3)))


def test_masks_of_just_the_security_that_a_client_asks_for_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum()
    agreement = world.offer().agree()
    monkeypatch.setattr(Parameters, "security_bits", 128.0)
    for least in (127, 128):
        agreement.require_accepted(replace(world.policy, minimum_security_bits=least), world.clock())
    with pytest.raises(InvalidParameters, match="bits of security"):
        agreement.require_accepted(replace(world.policy, minimum_security_bits=129), world.clock())


@pytest.mark.parametrize(("bounds", "noise"), [(None, NO_NOISE), (BOUNDS, NO_NOISE), (None, NOISE), (BOUNDS, NOISE)])
def test_values_have_bounds_or_noise(bounds: tuple[tuple[int, int], ...] | None, noise: NoiseSettings) -> None:
    configuration = InsecureSum(SumSetup(bounds=bounds, layout=WIDE)).offer().configuration
    if bounds and noise is NOISE:
        with pytest.raises(InvalidParameters, match="set bounds = none"):
            noise_of(configuration, noise)
        return
    assert (noise_of(configuration, noise) is None) is (noise is NO_NOISE)


@pytest.mark.parametrize("bounds", [(), (None,), (None, None, None)])
def test_every_segment_has_bounds_or_none(bounds: tuple[None, ...]) -> None:
    with pytest.raises(InvalidParameters, match="for each of 2 segments"):
        masked_values(SMALL_LAYOUT, bounds)


def test_the_shares_of_an_upload_are_overwritten_when_they_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = list[Dealing]()

    def noted(*arguments: Any) -> Dealing:
        dealt.append(deal(*arguments))
        return dealt[-1]

    monkeypatch.setattr("secagg.protocols.one_message.client.deal", noted)
    world = InsecureSum()
    assert world.upload(world.setup.clients[0])
    (one,) = dealt
    shares: tuple[Secret, ...] = one.shares
    assert shares
    assert all(share.is_wiped for share in shares)
