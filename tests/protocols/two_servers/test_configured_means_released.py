"""Every configuration that can be made releases an exact sum: a property over configurations, not over inputs.

Whatever two servers cannot do is refused where it is configured, before a client has shared anything.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from secagg.choices import SharingMode
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import SecAggError, ThresholdNotMet
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import MAXIMUM_COHORT
from secagg.protocols.two_servers.point_functions.shape import greatest_depth
from secagg.protocols.two_servers.server_messages import batch_bytes, exchange_bytes, half_bytes, release_bytes
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

CLIENTS = 4
EDGES = (1, 126, 127, 8190, 8191, 131_070, 131_071, 1 << 20, MAXIMUM_COHORT)
"""Cohorts around the orders of the lanes' fields, and the largest of all."""
RINGS = st.builds(RingSegment, st.integers(25, 32) | st.integers(33, 64), st.integers(1, 5))
INDICES = st.builds(IndexSegment, st.integers(2, 40) | st.sampled_from([127, 200, 257]), st.integers(1, 6))


@st.composite
def setups(draw: st.DrawFn) -> IndexingSetup:
    segments = draw(st.lists(RINGS, max_size=2)) + draw(st.lists(INDICES, max_size=2))
    assume(segments)
    layout = Layout(tuple(draw(st.permutations(segments))))
    deepest = [greatest_depth(segment.codewords) for segment in segments if isinstance(segment, IndexSegment)]
    return IndexingSetup(
        population=CLIENTS,
        maximum_cohort=max(CLIENTS, draw(st.sampled_from(EDGES))),
        suite=draw(st.sampled_from(Suite)),
        layout=layout,
        mode=draw(st.sampled_from(SharingMode)),
        depth=draw(st.none() | st.integers(0, min(deepest, default=3))),
        capacity=MAXIMUM_COHORT,
        round_number=draw(st.sampled_from([0, 7, (1 << 64) - 1])),
        seed=draw(st.binary(min_size=1, max_size=4)),
    )


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(setup=setups(), data=st.data())
def test_what_can_be_configured_is_released_exactly(setup: IndexingSetup, data: st.DataObject) -> None:
    try:
        configuration = setup.configuration
    except SecAggError as error:
        event(f"refused: {type(error).__name__}")
        return
    counted = list(range(1, 1 + data.draw(st.integers(1, CLIENTS))))
    made = InsecureIndexingRound(setup)
    made.upload(*counted)
    made.check()
    if len(counted) < setup.minimum_cohort:
        with pytest.raises(ThresholdNotMet):
            made.finish()
        return
    ideal = made.ideal(counted).encode()
    for result in made.finish():
        assert result.aggregate.encode() == ideal
        assert [client.value for client in result.counted] == counted
        assert result.rejected == {}
    event(f"released: {setup.mode.name}, {'counted' if configuration.index_segments else 'rings only'}")


@pytest.mark.parametrize("total", [131_071, MAXIMUM_COHORT])
@pytest.mark.parametrize("mode", SharingMode)
def test_rings_alone_are_released_beyond_what_any_field_counts(total: int, mode: SharingMode) -> None:
    """Such a round failed at its release, when all clients had uploaded and nobody could upload again."""
    changes: dict[str, Any] = {"mode": mode, "maximum_cohort": total, "layout": Layout((RingSegment(25, 4),))}
    made = InsecureIndexingRound(IndexingSetup(population=2, capacity=MAXIMUM_COHORT, **changes))
    for number in (1, 2):
        made.upload(number)
    made.check()
    assert made.finish()[0].aggregate.encode() == made.ideal((1, 2)).encode()
    configuration = made.configuration
    assert exchange_bytes(configuration) >= max(
        half_bytes(configuration, made.one.server), release_bytes(configuration)
    )
    assert sum(batch_bytes(configuration, 2)) > 0
