"""Sums of toy vectors that others add, and workers that do as they please."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from secagg.contract.pieces import piece_digests
from secagg.crypto.entropy import Coins
from secagg.errors import PeerError
from secagg.identifiers import ClientId
from secagg.scale.memory import Memory
from secagg.scale.run import WORDS, ToyCut
from secagg.scale.spread import Figures, SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.work import Order, Outcome, perform
from secagg.scale.workers import Answer, Workers
from secagg.simulation.insecure_coins import InsecureSeededCoins

CUT = ToyCut()
NO_KEY = bytes(8)


def vector_of(number: int) -> bytes:
    return (np.arange(3 * WORDS, dtype=np.uint64) + np.uint64(number << 20)).tobytes()


def digests_of(client: ClientId, vector: bytes) -> tuple[bytes, ...]:
    return piece_digests(CUT.context, client, CUT.lengths, vector)


@dataclass
class Crowd:
    """Some clients, a storage, and a sum of theirs."""

    folder: Path
    workers: Workers
    count: int = 7
    memory: Memory | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    progress: Callable[[Figures], None] = lambda _: None
    coins: Coins = field(default_factory=lambda: InsecureSeededCoins(b"audits"))

    def __post_init__(self) -> None:
        self.clients = [ClientId(number) for number in range(1, self.count + 1)]
        settings = replace(SpreadSettings(storage=str(self.folder), clients_in_a_batch=2), **self.settings)
        self.total = SpreadSum(
            CUT, self.workers, settings, coins=self.coins, memory=self.memory, progress=self.progress
        )
        self.store = FolderStore(self.folder)

    def name_of(self, client: ClientId, piece: int) -> str:
        return piece_name(CUT.context, client, digests_of(client, vector_of(client.value))[piece])

    def upload(self, before_adding: Callable[[ClientId], None] = lambda _: None) -> None:
        for client in self.clients:
            vector = vector_of(client.value)
            self.total.keep(client, digests_of(client, vector), vector)
            before_adding(client)
            self.total.add(client, digests_of(client, vector), b"")

    def finish(self) -> tuple[Mapping[ClientId, PeerError], np.ndarray]:
        """Return who is left out, and the sum."""
        left_out = self.total.settle()
        return left_out, np.concatenate([piece[0] for piece in self.total.open(NO_KEY)])

    def due(self, left_out: Sequence[ClientId] = ()) -> np.ndarray:
        vectors = [np.frombuffer(vector_of(c.value), np.uint64) for c in self.clients if c not in left_out]
        summed: np.ndarray = np.add.reduce(vectors, axis=0, dtype=np.uint64)
        return summed


def exact(crowd: Crowd, left_out: Sequence[ClientId] = ()) -> None:
    """Finish a sum, and compare it."""
    found, total = crowd.finish()
    assert sorted(found) == list(left_out)
    assert total.tolist() == crowd.due(left_out).tolist()


Conduct = Callable[[int, Order], Outcome | None]


def obey(_: int, order: Order) -> Outcome | None:
    return perform(order)


class Unruly:
    """Workers of which a test says what each order comes to; ``None`` loses the worker."""

    def __init__(
        self, count: int = 2, conduct: Callable[[int, Order], Outcome | None] = lambda _, o: perform(o)
    ) -> None:
        self.conduct, self.orders = conduct, list[Order]()
        self._count, self._numbers = count, list(range(count))
        self._given = list[tuple[int, Order]]()
        self._next = count

    @property
    def idle(self) -> tuple[int, ...]:
        busy = {worker for worker, _ in self._given}
        return tuple(worker for worker in self._numbers if worker not in busy)

    def start(self, worker: int, order: Order) -> None:
        self.orders.append(order)
        self._given.append((worker, order))

    def poll(self, seconds: float) -> list[Answer]:
        del seconds
        answers = list[Answer]()
        for worker, order in self._given:
            outcome = self.conduct(worker, order)
            answers.append((worker, outcome))
            if outcome is None:
                self._numbers.remove(worker)
                self._numbers.append(self._next)
                self._next += 1
        self._given.clear()
        return answers

    def close(self) -> None:
        """Do nothing."""
