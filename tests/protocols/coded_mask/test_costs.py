"""What a sum of coded masks is said to cost, against one that runs."""

from __future__ import annotations

import numpy as np
import pytest

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.coded_mask.client import Client
from secagg.protocols.coded_mask.configuration import Configuration
from secagg.protocols.coded_mask.costs import costs
from secagg.protocols.coded_mask.run import run
from secagg.protocols.coded_mask.server import State

CLIENTS = 22


@pytest.mark.parametrize("suite", Suite)
def test_a_sum_sends_what_the_formulas_say(suite: Suite) -> None:
    layout = Layout((RingSegment(20, 1000), RingSegment(8, 7)))
    configuration = Configuration(
        task=b"a plan",
        round_number=1,
        model_digest=bytes(32),
        suite=suite,
        layout=layout,
        population=CLIENTS,
        privacy=1,
        target=21,
    )
    payload = Payload(layout, tuple(np.zeros(part.length, part.ring.word) for part in layout.require_rings()))
    sent = {"up": 0, "down": 0}

    def count(state: State, client: ClientId, message: bytes, answer: bytes) -> None:
        del state, client
        sent["down"] += len(message)
        sent["up"] += len(answer)

    run(
        configuration,
        [Client(ClientId(number), configuration, payload, SystemCoins()) for number in range(CLIENTS)],
        sent=count,
    )
    (planned,) = costs(layout, CLIENTS, suite)
    assert planned.up_bytes == sent["up"] / CLIENTS
    assert planned.down_bytes == sent["down"] / CLIENTS
    assert "1 clients that tell it what they know; 21 must stay" in planned.plan


def test_sums_that_leave_the_field_have_no_costs() -> None:
    with pytest.raises(InvalidParameters, match="use rings of at most 24 bits, or another protocol"):
        next(iter(costs(Layout((RingSegment(32, 10),)), 100, Suite.CLASSIC)))
