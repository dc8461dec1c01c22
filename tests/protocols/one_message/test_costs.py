"""What a sum with one message a client is said to cost, against a session that runs."""

from __future__ import annotations

import pytest

from secagg.parameters import Suite
from secagg.protocols.one_message.simulation import costs
from secagg.session.registry import find
from secagg.simulation.rehearsal import TASK, Rehearsal
from secagg.simulation.synthetic_updates import WindowedInputs


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize(("clients", "length"), [(5, 3000), (40, 100)])
def test_a_session_sends_what_the_formulas_say(suite: Suite, clients: int, length: int) -> None:
    inputs = WindowedInputs(input_bits=16, length=length, clients=clients, seed=b"costs")
    entry = find("one-message")
    settings = entry.settings(suite=suite, corrupted=clients // 20, minimum_cohort=max(3, clients // 20 + 2))
    rehearsal = Rehearsal(entry=entry, settings=settings, inputs=inputs, clients=clients, dropouts={})
    upload, release = rehearsal.run().session.figures
    (planned,) = costs(inputs.layout, clients, suite)
    assert planned.up_bytes == upload.bytes_up / clients
    assert planned.down_bytes - len(b"a plan") == upload.bytes_down / clients - len(TASK)
    # Introductions, receipts, lists and answers come on top.
    between = (upload.bytes_between + release.bytes_between) / clients
    assert planned.between_bytes < between < 1.1 * planned.between_bytes + 60_000 / clients
    assert "5 holders, of which any 4 open a sum and 1 may be corrupted" in planned.plan
