"""A plan without numbers and floors without numbers: made for the same cohort, neither refuses the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from secagg import Session
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.parameters import usual_corrupted, usual_dropped
from secagg.protocols.coded_mask import simulation as coded_mask
from secagg.protocols.enclave import simulation as enclave
from secagg.protocols.one_message import simulation as one_message
from secagg.protocols.pairwise_mask import simulation as pairwise_mask
from secagg.protocols.two_servers import simulation as two_servers
from secagg.session.registry import ProtocolName

Usual = Callable[[Any, int, dict[str, Any]], Any]
FLOORS: dict[str, tuple[ModuleType, str, Usual]] = {
    "pairwise": (pairwise_mask, "ClientFloors", lambda floors, clients, _: floors.usual(clients)),
    "enclave": (enclave, "EnclaveFloors", lambda floors, clients, had: floors.usual(clients, had["authority"])),
    "two-servers": (
        two_servers,
        "IndexingFloors",
        lambda floors, clients, had: floors.usual(clients, had["authority"], had["server_keys"]),
    ),
    "one-message": (one_message, "Floors", lambda floors, _, had: floors.usual(had["authority"])),
    "coded-mask": (coded_mask, "Floors", lambda floors, clients, _: floors.usual(clients)),
}


def test_one_in_ten_works_with_the_server_and_one_in_twenty_leaves() -> None:
    assert [usual_corrupted(clients) for clients in (2, 3, 10, 11, 200)] == [1, 1, 1, 2, 20]
    assert [usual_dropped(clients) for clients in (3, 4, 20, 39, 40, 200)] == [0, 1, 1, 1, 2, 10]


@pytest.mark.parametrize("protocol", FLOORS)
@given(clients=st.integers(3, 200))
@example(3)
@example(4)
@example(5)
@settings(max_examples=6, deadline=None)
def test_usual_floors_admit_what_is_planned_without_numbers(protocol: ProtocolName, clients: int) -> None:
    module, name, usual = FLOORS[protocol]
    coins, kept = SystemCoins(), vars(module)[name]
    plan = Session.for_model(np.zeros(4), clients=clients, clip=1.0, protocol=protocol)
    subject = plan.subject(task=b"usual", round_number=1, model=())
    with pytest.MonkeyPatch.context() as patch:

        class WithoutNumbers:
            """Floors as a client has them that names no number."""

            def __new__(cls, *_: Any, **had: Any) -> Any:
                return usual(kept, clients, had)

            usual = __new__

        patch.setattr(module, name, WithoutNumbers)
        world = plan.simulate(coins=coins, clock=lambda: datetime.now(UTC))
        session = world.open(subject, frozenset(map(ClientId, range(clients))))
        member = world.member(ClientId(0)).join(subject, plan.update(np.zeros(4), subject=subject, coins=coins))
        # A client that finds the offer below its floors raises.
        session.receive(ClientId(0), member.answer(session.invitation))
        session.abort()


@pytest.mark.parametrize(("protocol", "least"), [("pairwise", 5), ("coded-mask", 4)])
@given(clients=st.integers(3, 200))
@settings(max_examples=10, deadline=None)
def test_a_plan_without_numbers_takes_a_dropout(protocol: ProtocolName, least: int, clients: int) -> None:
    made = Session.for_model(np.zeros(4), clients=clients, clip=1.0, protocol=protocol).settings
    assert made.dropped == (0 if clients < least else max(1, clients // 20))
    assert made.minimum_cohort == clients - made.dropped
    assert made.corrupted == usual_corrupted(clients)


def test_who_needs_everybody_plans_for_no_dropout() -> None:
    whole = Session.for_model(np.zeros(4), clients=6, clip=1.0, minimum_cohort=6)
    assert (whole.settings.dropped, whole.settings.minimum_cohort) == (0, 6)
    full = Session.for_model(np.zeros(4), clients=5, clip=1.0, topology="full")
    assert full.settings.dropped == 0
    assert Session.for_model(np.zeros(4), clients=5, clip=1.0, dropped=0).settings.dropped == 0
