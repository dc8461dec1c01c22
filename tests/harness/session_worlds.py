"""Every protocol as a conformance candidate: the same clients and inputs, and settings that tolerate one dropout."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from secagg.choices import Topology
from secagg.conformance.sessions import MODEL, SessionCandidate
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.enclave.session import EnclaveOptions
from secagg.protocols.light_secagg.session import LightSecAggOptions
from secagg.protocols.one_message.session import OneMessageOptions
from secagg.protocols.pairwise_mask import PairwiseOptions
from secagg.protocols.two_servers.session import TwoServersOptions
from secagg.session.registry import ProtocolEntry, find
from secagg.session.roles import Subject
from tests.harness import plain_sum

LAYOUT: Final = Layout((RingSegment(20, 6), RingSegment(7, 3)))
CAPACITY: Final = 1 << 10
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
FULL: Final[dict[str, Any]] = {"topology": Topology.FULL, "dropped": 1, "minimum_cohort": 3, "population": 6}
SETTINGS: Final[dict[str, tuple[str, Any, int]]] = {
    "pairwise, semi-honest, full": ("pairwise", PairwiseOptions(mode=SecurityMode.SEMI_HONEST, **FULL), 6),
    "pairwise, active, full": ("pairwise", PairwiseOptions(mode=SecurityMode.ACTIVE, **FULL), 6),
    "pairwise, semi-honest, sparse": (
        "pairwise",
        PairwiseOptions(mode=SecurityMode.SEMI_HONEST, dropped=2, minimum_cohort=3, population=16),
        16,
    ),
    "enclave": ("enclave", EnclaveOptions(suite=Suite.CLASSIC), 5),
    "two servers": ("two-servers", TwoServersOptions(), 5),
    "one message": ("one-message", OneMessageOptions(capacity=8), 5),
    "LightSecAgg, semi-honest": ("lightsecagg", LightSecAggOptions(dropped=2, population=7), 7),
    "plain": ("plain", plain_sum.PlainSettings(), 5),
}
"""By name: the protocol, its settings, and the number of clients."""


def entry_of(name: str) -> ProtocolEntry:
    return plain_sum.ENTRY if name == "plain" else find(name)


def client_ids(count: int) -> tuple[ClientId, ...]:
    return tuple(ClientId(1000 + 7 * number) for number in range(count))


def payload_of(client: ClientId, layout: Layout = LAYOUT) -> Payload:
    """Return values that follow from the client's name."""
    values = list[Any]()
    for number, segment in enumerate(layout.segments):
        assert isinstance(segment, RingSegment)
        seed = hashlib.sha256(f"{client.value}/{number}".encode()).digest()
        drawn = np.frombuffer(seed * (1 + segment.length // len(seed)), dtype=np.uint8)[: segment.length]
        values.append(segment.ring.from_integers(drawn.astype(np.int64) % 31 + 1))
    return Payload(layout, tuple(values))


def _between_servers(world: Any, alter: Callable[[bytes], bytes]) -> None:
    ask = world._ask  # noqa: SLF001 -- the link of a simulation

    def altering(request: bytes) -> bytes:
        return alter(ask(alter(request)))

    world._ask = altering  # noqa: SLF001


def _with_holders(world: Any, alter: Callable[[bytes], bytes]) -> None:
    ask_all = world._ask_all  # noqa: SLF001

    def altering(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        asked = {position: alter(request) for position, request in requests.items()}
        return ((position, alter(answer)) for position, answer in ask_all(asked))

    world._ask_all = altering  # noqa: SLF001


LINKS: Final = {"two-servers": _between_servers, "one-message": _with_holders}
"""By protocol: function that alters messages between a simulation's server and its helpers."""


def candidate_of(name: str) -> SessionCandidate:
    """Return a conformance candidate by its name in ``SETTINGS``."""
    protocol, settings, count = SETTINGS[name]
    return SessionCandidate(
        entry=entry_of(protocol),
        settings=settings,
        subject=Subject(
            task=b"a task",
            round_number=3,
            layout=LAYOUT,
            capacity=CAPACITY,
            terms=hashlib.sha256(b"terms").digest(),
            model_digest=MODEL,
        ),
        clients=client_ids(count),
        payload=payload_of,
        coins=SystemCoins(),
        clock=lambda: NOW,
        # Without signatures only the transport identifies senders; answers swapped between clients do not unmask.
        proves_senders="semi-honest" not in name,
        # A host that alters masked vectors only spoils its own sum; LightSecAgg relies on the transport for this.
        notices_alterations=name != "enclave" and "LightSecAgg" not in name,
        between=LINKS.get(protocol),
        linked=(ServerId(0), ServerId(1)) if protocol == "two-servers" else (),
    )
