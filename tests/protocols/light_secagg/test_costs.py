"""The declared costs of a LightSecAgg sum, compared with a real one."""

from __future__ import annotations

import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.parameters import Suite
from secagg.protocols.light_secagg.simulation import costs
from secagg.session.registry import find
from secagg.simulation.rehearsal import TASK, Rehearsal
from secagg.simulation.synthetic_updates import WindowedInputs


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize(("clients", "bits"), [(5, 16), (45, 30)])
def test_a_sum_sends_what_the_formulas_say(suite: Suite, clients: int, bits: int) -> None:
    inputs, entry = WindowedInputs(input_bits=bits, length=100, clients=clients, seed=b"costs"), find("lightsecagg")
    settings = entry.settings(suite=suite, corrupted=clients // 20, dropped=clients // 20)
    rehearsal = Rehearsal(entry=entry, settings=settings, inputs=inputs, clients=clients, dropouts={})
    figures = rehearsal.run().session.figures
    (planned,) = costs(inputs.layout, clients, suite)
    assert planned.up_bytes == sum(stage.bytes_up for stage in figures) / clients
    received = sum(stage.bytes_down for stage in figures) / clients
    assert planned.down_bytes - len(b"a plan") == received - len(TASK)
    staying = clients - clients // 20
    assert f"{max(1, clients // 20)} clients that collude with it; {staying} must stay" in planned.plan


def test_a_cohort_of_nobody_has_no_costs() -> None:
    with pytest.raises(InvalidParameters, match="invite more"):
        next(iter(costs(Layout((RingSegment(32, 10),)), 2, Suite.CLASSIC)))
