"""A refused message does not stay in memory: only a record of the fault is kept."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import FrozenInstanceError, replace
from functools import partial

import pytest

from secagg.blame import unverified
from secagg.conformance.rehearsal import Rehearsal
from secagg.conformance.transit import altered
from secagg.contract import Layout, RingSegment
from secagg.errors import NOBODY, Fault, PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from tests.harness.session_worlds import SETTINGS, candidate_of, payload_of

WIDE = Layout((RingSegment(20, 100_000), RingSegment(7, 3)))
NAMES = [name for name in SETTINGS if not name.endswith("sparse")]


def is_refused(rehearsal: Rehearsal, client: ClientId, message: bytes) -> bool:
    try:
        rehearsal.server.receive(client, message)
    except PeerError:
        return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_refused_uploads_are_not_kept(name: str) -> None:
    """One truncated and one altered upload from each client: the faults are kept, the uploads are not."""
    known = candidate_of(name)
    candidate = replace(known, subject=replace(known.subject, layout=WIDE), payload=partial(payload_of, layout=WIDE))
    rehearsal = Rehearsal.begin(candidate)
    while rehearsal.server.stage is not None and not rehearsal.server.stage.takes_update:
        rehearsal.step()
    answers = rehearsal.all_answers()
    longest, refused = max(map(len, answers.values())), 0
    assert longest > 200_000
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for client, answer in answers.items():
            refused += is_refused(rehearsal, client, answer[:-1])
            refused += is_refused(rehearsal, client, altered(answer, 0.0))
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        rehearsal.server.abort()
        rehearsal.world.close()
    assert refused == 2 * len(answers)
    assert len(rehearsal.server.faults) >= len(answers)
    assert after - before < longest


def test_a_fault_has_what_an_operator_needs_to_know() -> None:
    alice = ClientId(1)
    error = PeerMisbehaved("a lie", reason=Reason.INPUT_OUT_OF_RANGE, culprits=unverified(alice))
    fault = Fault.of(error, stage="keys", sender=alice)
    assert fault == Fault(Reason.INPUT_OUT_OF_RANGE, "a lie", unverified(alice), "keys", alice)
    assert str(fault) == "a lie"
    assert Fault.of(ThresholdNotMet(needed=3, present=2, what="answers")).culprits is NOBODY
    with pytest.raises(FrozenInstanceError):
        fault.sentence = "another"  # type: ignore[misc] # pyright: ignore[reportAttributeAccessIssue]
