"""So many or so heavy clients that a count wraps, and with it somebody's vote.

| attack | defence |
|---|---|
| a configuration under which a count can reach the order of its lanes | it is refused where it is made |
| one client more than the configuration counts on | the last client is refused |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import CapacityExceeded, InvalidParameters, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.configuration import MAXIMUM_TOTAL_WEIGHT, SharingMode
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
SETUP = IndexingSetup(layout=Layout((RingSegment(20, 6), IndexSegment(8, 5))))


@pytest.mark.parametrize(
    ("cohort", "weights", "order"),
    [
        (126, (1,), 127),
        (127, (1,), 8191),
        (63, (1, 2), 127),
        (64, (1, 2), 8191),
        (8190, (1,), 8191),
        (8191, (1,), 131071),
        (131070, (1,), 131071),
        (2, (65535,), 131071),
    ],
)
def test_the_field_holds_what_a_whole_round_can_weigh(cohort: int, weights: tuple[int, ...], order: int) -> None:
    configuration = replace(SETUP, maximum_cohort=cohort, weights=weights).configuration
    assert configuration.group.order == order > configuration.maximum_total_weight


@pytest.mark.parametrize(("cohort", "weights"), [(131071, (1,)), (2, (65536,)), (1 << 16, (1, 2))])
def test_what_no_field_holds_is_no_configuration(cohort: int, weights: tuple[int, ...]) -> None:
    setup = replace(SETUP, maximum_cohort=cohort, weights=weights)
    with pytest.raises(CapacityExceeded):
        _ = setup.configuration
    unchecked = replace(setup, mode=SharingMode.UNCHECKED_POINT_FUNCTIONS).configuration
    assert unchecked.group.order > unchecked.maximum_total_weight
    with pytest.raises(InvalidParameters):
        _ = replace(setup, maximum_cohort=2, weights=(MAXIMUM_TOTAL_WEIGHT // 2 + 1,)).configuration


@pytest.mark.parametrize(("cohort", "weight", "count"), [(126, 1, 126), (2, 63, 126), (4, 31, 124)])
def test_everybody_may_vote_for_one_codeword(cohort: int, weight: int, count: int, raises_exactly: Check) -> None:
    """One more would be q or more, and nobody's vote would be left of it."""
    layout = Layout((IndexSegment(3, 1),))
    made = InsecureIndexingRound(
        replace(SETUP, layout=layout, maximum_cohort=cohort, weights=(weight,), population=cohort + 1, capacity=126)
    )
    assert made.configuration.group.order == 127
    payload = replace(made.setup.payload_of(1), values=(np.zeros_like(made.setup.payload_of(1).values[0]),))
    for number in range(1, cohort + 1):
        made.upload(number, weight=weight, payload=payload)
    for server, half in zip(made.servers, made.share(cohort + 1, weight=weight, payload=payload), strict=True):
        raises_exactly(
            lambda server=server, half=half: server.receive(half.encode()),
            PeerMisbehaved,
            Reason.BUFFER_FULL,
            ClientId(cohort + 1),
            unchanged=[server],
        )
    made.check()
    for result in made.finish():
        assert np.asarray(result.aggregate.values[0]).tolist() == [[count, 0, 0]]
