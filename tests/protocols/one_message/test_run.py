"""Whole sums, exact, over suites, modes, rules, layouts, weights and absences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import ThresholdNotMet
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.one_message.run import run
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup

SETUPS = {
    "semi-honest, certified": SumSetup(mode=SecurityMode.SEMI_HONEST),
    "hybrid": SumSetup(suite=Suite.HYBRID),
    "packed": SumSetup(layout=Layout((RingSegment(16, 100), RingSegment(20, 7))), bounds=((-100, 100), None)),
    "wide": SumSetup(layout=Layout((RingSegment(64, 3),)), population=3),
    "absent holder": SumSetup(holders=8, absent=1),
    "many blocks": SumSetup(layout=Layout((RingSegment(16, 3000), RingSegment(16, 3000)))),
}


@pytest.mark.parametrize("name", SETUPS)
def test_the_sum_is_exact(name: str) -> None:
    setup = SETUPS[name]
    world = InsecureSum(setup)
    opened, server = run(world.offer(), COINS, world.parts(), world.holders)
    assert opened.aggregate.encode() == world.ideal(setup.clients).encode()
    assert opened.counted == frozenset(setup.clients)
    assert not server.faults


def test_too_few_clients_are_no_sum() -> None:
    setup = replace(SumSetup(), population=2)
    world = InsecureSum(setup)
    with pytest.raises(ThresholdNotMet, match="accepted uploads"):
        run(world.offer(), COINS, world.parts(), world.holders)
