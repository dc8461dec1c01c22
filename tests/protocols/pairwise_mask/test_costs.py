"""What a session of pairwise masks is said to cost, against sessions that run."""

from __future__ import annotations

import pytest

from secagg.contract.layout import Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.parameters import Suite
from secagg.protocols.pairwise_mask import PairwiseSettings
from secagg.protocols.pairwise_mask.simulation import ENTRY
from secagg.protocols.pairwise_mask.simulation import costs as pairwise_costs
from secagg.simulation.rehearsal import Rehearsal, client_ids
from secagg.simulation.synthetic_updates import WindowedInputs


@pytest.mark.parametrize(("clients", "suite"), [(20, Suite.CLASSIC), (20, Suite.HYBRID), (130, Suite.CLASSIC)], ids=str)
def test_a_session_of_pairwise_masks_sends_what_the_model_says(clients: int, suite: Suite) -> None:
    inputs = WindowedInputs(input_bits=16, length=3000, clients=clients, seed=b"costs")
    rare = clients // 20
    rehearsal = Rehearsal(
        entry=ENTRY,
        settings=PairwiseSettings(corrupted=rare, dropped=rare, suite=suite),
        inputs=inputs,
        clients=clients,
        # Those who vanish at the very end were planned for, and change nobody else's messages before.
        dropouts={"unmasking": frozenset(client_ids(rare))},
    )
    rounds = [figures for figures in rehearsal.run().session.figures if figures.answered]
    if clients > 128:
        # Few are asked to certify the survivors; the model counts a client that is not.
        rounds = [figures for figures in rounds if figures.name != "consistency check"]
    (costs,) = pairwise_costs(inputs.layout, clients, suite)
    assert costs.up_bytes == pytest.approx(sum(each.bytes_up / len(each.answered) for each in rounds), abs=1)
    received = sum(each.bytes_down / each.sent for each in rounds)
    # The model takes the neighbours to stand evenly in the roster, where the proof of their keys is longest.
    assert costs.down_bytes == pytest.approx(received, rel=0.04)


def test_a_server_removes_a_mask_of_each_contributor_and_those_of_dropouts_edges() -> None:
    (costs,) = pairwise_costs(Layout((RingSegment(32, 1000),)), 100, Suite.CLASSIC)
    masks = 95 + 5 * 16
    # The weight has a ring of its own, of one word.
    assert costs.server.cipher_calls == masks * (1000 * 4 // 16 + 1)
    assert costs.server.word_operations == (95 + masks) * 1001
    assert "for 5 corrupted clients" in costs.plan


def test_a_session_without_a_sparse_graph_has_a_full_one() -> None:
    (three,), (four,) = (pairwise_costs(Layout((RingSegment(32, 8),)), clients, Suite.CLASSIC) for clients in (3, 4))
    assert three.server.cipher_calls == 3 * 3
    assert three.up_bytes < four.up_bytes + 200
    with pytest.raises(InvalidParameters, match="plan for fewer of these, or invite more"):
        next(iter(pairwise_costs(Layout((RingSegment(32, 8),)), 2, Suite.CLASSIC)))
