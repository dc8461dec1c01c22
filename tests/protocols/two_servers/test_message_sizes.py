"""The lengths that are computed from a configuration are those of the messages of a real round."""

from __future__ import annotations

import pytest

from secagg.choices import SharingMode
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.identifiers import ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.server_messages import (
    batch_bytes,
    half_bytes,
    offers_bytes,
    release_bytes,
    share_bytes,
)
from tests.harness.indexing_rounds import MIXED_LAYOUT, IndexingSetup, InsecureIndexingRound

LAYOUTS = {
    "mixed": MIXED_LAYOUT,
    "rings alone": Layout((RingSegment(20, 7), RingSegment(3, 5))),
    "indices alone": Layout((IndexSegment(5, 11),)),
}
MODES = (SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS)


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", [None, 0, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_message_of_a_round_is_as_long_as_computed(
    suite: Suite, mode: SharingMode, depth: int | None, layout: str
) -> None:
    setup = IndexingSetup(population=3, suite=suite, mode=mode, depth=depth, layout=LAYOUTS[layout])
    rig = InsecureIndexingRound(setup)
    configuration = rig.configuration
    for number in (1, 2, 3):
        halves = rig.share(number)
        assert [len(half.encode()) for half in halves] == [
            half_bytes(configuration, ServerId(index)) for index in (0, 1)
        ]
        rig.deliver(halves)
    assert len(rig.zero.offer) + len(rig.one.offer) == offers_bytes(configuration)
    proposal = rig.one.propose(rig.one.waiting())
    answer = rig.zero.answer(proposal)
    conclusion = rig.one.conclude(answer)
    rig.zero.settle(conclusion)
    assert batch_bytes(configuration, 3) == (len(proposal), len(answer), len(conclusion))
    lists = rig.lists()
    commitments = rig.agreed()
    shares = rig.zero.open(commitments[1]), rig.one.open(commitments[0])
    assert {len(share) for share in shares} == {share_bytes(configuration)}
    assert sum(map(len, (*lists, *commitments, *shares))) == release_bytes(configuration)
