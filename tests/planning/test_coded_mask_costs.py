"""What the planner counts of coded masks is what a real session sends."""

from __future__ import annotations

import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.planning.coded_mask_costs import coded_mask_costs
from secagg.protocols.coded_mask.session import CodedMaskHelpers, open_session
from secagg.protocols.coded_mask.settings import CodedMaskSettings
from secagg.session.measured import Measured
from secagg.session.roles import LateUpdate, Subject, Update
from secagg.session.run import run
from tests.harness.session_worlds import NOW, entry_of, payload_of


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("layout", [Layout((RingSegment(20, 61),)), Layout((RingSegment(40, 5), RingSegment(7, 50)))])
@pytest.mark.parametrize("clients", [3, 24])
def test_a_real_session_sends_what_was_counted(clients: int, layout: Layout, suite: Suite) -> None:
    rare = clients // 20
    settings = CodedMaskSettings(suite=suite, corrupted=rare, dropped=rare)
    world = entry_of("coded-mask").simulate(settings, coins=SystemCoins(), clock=lambda: NOW)
    subject = Subject(task=b"a plan", round_number=0, layout=layout, capacity=1 << 20, model_digest=bytes(32))
    names = [ClientId(number) for number in range(1, clients + 1)]
    helpers = CodedMaskHelpers(coins=SystemCoins())
    session = Measured(open_session(subject, settings, frozenset(names), helpers))
    joined = [
        world.member(name).join(subject, LateUpdate(lambda name=name: Update(payload_of(name, layout), bytes(32))))
        for name in names
    ]
    run(session, joined)
    costs = coded_mask_costs(layout, clients, suite)
    assert sum(stage.bytes_up for stage in session.figures) == clients * costs.sent
    assert sum(stage.bytes_down for stage in session.figures) == clients * costs.received


@pytest.mark.parametrize("clients", [2, 1025])
def test_cohorts_that_it_cannot_have_are_refused(clients: int) -> None:
    with pytest.raises(InvalidParameters):
        coded_mask_costs(Layout((RingSegment(20, 61),)), clients, Suite.CLASSIC)
