"""Speed of evaluating point functions, against their cipher calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from figures import EXPLAINED, Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.opened_upload import HistogramShare
from secagg.protocols.two_servers.point_functions.generation import generate_shares
from secagg.protocols.two_servers.point_functions.lanes import LaneField, LaneGroup, RingLanes
from secagg.protocols.two_servers.point_functions.shape import RUN_BLOCKS, PointFunctionShape

BLOCKS = 100_000
ROUNDS = 12
FLOOR_CHUNK = 1 << 18
"""Raw ECB reaches its full speed from a quarter of a mebibyte on."""
FLOOR_BYTES = 1 << 24
PASSES = (1, 4)
"""Passes over each cipher block that follow it, without a tree and in one: additions, feed-forward and corrections."""


@dataclass(frozen=True)
class Case:
    """One shape, and the target ratio of its evaluation."""

    codewords: int
    group: LaneGroup
    depth: int
    at_most: float | None = None

    @property
    def shape(self) -> PointFunctionShape:
        """The shape of the point functions."""
        return PointFunctionShape(codewords=self.codewords, group=self.group, depth=self.depth)

    @property
    def name(self) -> str:
        """Name in figures."""
        group = f"p={self.group.bits}" if isinstance(self.group, RingLanes) else f"q={self.group.order}"
        lanes = ", last lane derived" if not self.depth else ""
        return f"k={self.codewords}, {group}, depth {self.depth}{lanes}"


RING, WIDE_RING, FIELD = RingLanes(7), RingLanes(17), LaneField(127)
CASES = (
    Case(32, RING, 0, 2.3),
    Case(64, RING, 0, 2.3),
    Case(256, RING, 0, 2.3),
    Case(32, RING, 1, 3.2),
    Case(64, RING, 1, 3.2),
    Case(256, RING, 3, 3.2),
    Case(32, WIDE_RING, 2),
    Case(256, WIDE_RING, 5),
    Case(32, FIELD, 0),
    Case(64, FIELD, 1),
)


def measure() -> Iterator[Figure]:
    """Take every figure of this file; each ratio comes from contenders that ran in turns."""
    for case in CASES:
        yield from _evaluation(case)
    yield from _threads(Case(256, RING, 3))


def _evaluation(case: Case) -> Iterator[Figure]:
    """Compare with raw ECB of the same number of cipher blocks; more for a field's repeated attempts."""
    shape = case.shape
    alpha = np.arange(BLOCKS) % case.codewords
    make = partial(generate_shares, shape, alpha, context=bytes(32), client=ClientId(1), coins=SystemCoins())
    share = make()[0]
    total = HistogramShare(shape, BLOCKS, 0)
    contenders: dict[str, Callable[[], object]] = {"floor": _raw_ecb, "evaluate": partial(total.add, share)}
    run = np.zeros((2, RUN_BLOCKS * 2), np.uint64)
    contenders["pass"] = partial(np.bitwise_xor, *run, out=run[0])
    seconds = best_seconds(contenders, 2 * ROUNDS)
    seconds |= best_seconds({"rows": partial(share.lanes, 0, BLOCKS), "generate": make}, ROUNDS // 2)
    floor = seconds["floor"] / FLOOR_BYTES * 16 * shape.cipher_calls * BLOCKS
    passes = PASSES[shape.depth > 0] * shape.cipher_calls * seconds["pass"] * BLOCKS / RUN_BLOCKS
    yield Figure(
        name=f"evaluate and add / raw ECB, {case.name}",
        value=seconds["evaluate"] / floor,
        unit="ratio",
        at_most=case.at_most,
        limit=EXPLAINED * (floor + passes) / floor,
        why=f"{EXPLAINED} times ECB and {PASSES[shape.depth > 0]} passes over what it makes",
        note=f"{seconds['evaluate'] / BLOCKS * 1e9:.1f} ns a block",
    )
    yield Figure(name=f"one client's rows / raw ECB, {case.name}", value=seconds["rows"] / floor, unit="ratio")
    yield Figure(name=f"generate, {case.name}", value=seconds["generate"] / BLOCKS * 1e9, unit="ns")


def _threads(case: Case) -> Iterator[Figure]:
    shape = case.shape
    alpha = np.arange(BLOCKS) % case.codewords
    share = generate_shares(shape, alpha, context=bytes(32), client=ClientId(1), coins=SystemCoins())[0]
    total = HistogramShare(shape, BLOCKS, 0)
    seconds = best_seconds({f"{threads}": partial(total.add, share, threads=threads) for threads in (1, 2)}, 2 * ROUNDS)
    yield Figure(name=f"two threads / one thread, {case.name}", value=seconds["1"] / seconds["2"], unit="times")


def _raw_ecb() -> None:
    # Safe because: nothing is encrypted; this measures the permutation's speed.
    encryptor = Cipher(algorithms.AES(bytes(16)), modes.ECB()).encryptor()  # noqa: S305 -- see above
    source, target = bytes(FLOOR_CHUNK), bytearray(FLOOR_CHUNK + 15)
    for _ in range(FLOOR_BYTES // FLOOR_CHUNK):
        encryptor.update_into(source, target)
