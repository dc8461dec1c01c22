"""Peak bytes per value at a client and a server, in addition to input and output."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import pytest

import secagg
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.protocols.one_message import masks

VALUES = 10**6
CLIENTS = 8


def held(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return a call's result, and its peak memory in bytes per value."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    result = call()
    return result, (tracemalloc.get_traced_memory()[1] - before) / VALUES


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "one-message"])
def test_a_client_and_a_decoder_hold_few_copies_of_an_adapter(protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Transforms of short public polynomials are kept; those of 8 million values and more are not.
    monkeypatch.setattr(masks, "MOST_KEPT_BYTES", 0)
    adapter = {"lora_A": np.random.default_rng(1).uniform(-0.01, 0.01, VALUES).astype(np.float16)}
    plan = secagg.Session.for_model(adapter, clients=CLIENTS, clip=0.02, bits=8, protocol=protocol)
    coins, subject = SystemCoins(), plan.subject(task=b"copies", round_number=1, model=adapter)
    clients = [ClientId(number) for number in range(1, CLIENTS + 1)]
    secagg.aggregate([np.zeros(9)] * 4, clip=0.02, corrupted=0, protocol=protocol)
    tracemalloc.start()
    try:
        with closing(plan.simulate(coins=coins, clock=lambda: datetime.now(UTC))) as world:
            server = world.open(subject, frozenset(clients))
            members = {
                who: world.member(who).join(subject, plan.update(adapter, subject=subject, coins=coins))
                for who in clients
            }
            while (stage := server.stage) is not None:
                for who, member in members.items():
                    if (message := server.message_to(who)) is None:
                        continue
                    answer, most = held(partial(member.answer, message))
                    assert most <= 10, "a client's upload" if stage.takes_update else stage
                    server.receive(who, answer)
                server.close_stage()
            mean, most = held(lambda: plan.mean(server.release()))
            assert most <= (10 if protocol == "enclave" else 8), "a server's release and its decoding"
    finally:
        tracemalloc.stop()
    assert np.abs(mean["lora_A"] - adapter["lora_A"].astype(np.float32)).max() < plan.step


def test_a_sum_in_one_process_holds_few_copies() -> None:
    updates = [np.random.default_rng(seed).uniform(-0.01, 0.01, VALUES).astype(np.float32) for seed in range(4)]
    secagg.aggregate([np.zeros(9)] * 4, clip=0.02, corrupted=0)  # Loads modules and caches.
    tracemalloc.start()
    try:
        _, most = held(lambda: secagg.aggregate(updates, clip=0.02, corrupted=0))
    finally:
        tracemalloc.stop()
    assert most <= 20, most
