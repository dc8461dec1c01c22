"""Cost of counting one client's indices in the enclave, against one plain pass over all counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from figures import Figure, best_seconds
from secagg.choices import Accumulation
from secagg.contract import IndexSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator

ROUNDS = 7
CASES = (
    (16, 1_000_000, 8),
    (64, 1_000_000, 8),
    (64, 1_000_000, 16),
    (64, 1_000_000, 32),
    (100, 1_000_000, 8),
    (256, 1_000_000, 8),
    (4096, 50_000, 8),
    (64, 1_000, 8),
)
"""Codewords, blocks and the bits of a counter."""
DIRECT_TARGET = (64, 1_000_000, 8)


def measure() -> Iterator[Figure]:
    """Add one client repeatedly, in both forms; an addition includes unpacking and checking."""
    for codewords, blocks, counter_bits in CASES:
        segment = IndexSegment(codewords, blocks)
        with Secret.random("mask_key", 16, SystemCoins()) as key:
            indices = expand(key, Ring(64), blocks) % np.uint64(codewords)
        packed = memoryview(segment.ring.pack(indices.astype(segment.ring.word)))
        maximum = (1 << counter_bits) - 1
        direct, oblivious = (HistogramAccumulator(segment, maximum, form) for form in Accumulation)
        counters = Ring(counter_bits).zeros(codewords * blocks)
        contenders: dict[str, Callable[[], object]] = {
            "check": partial(direct.check, packed),
            "direct": partial(direct.add, packed),
            "oblivious": partial(oblivious.add, packed),
            "plain": partial(np.add, counters, counters.dtype.type(1), out=counters),
        }
        seconds = best_seconds(contenders, ROUNDS)
        assert np.array_equal(direct.histogram(0, 1000), oblivious.histogram(0, 1000))
        name = f"k={codewords}, {blocks:,} blocks, {counter_bits}-bit counters"
        for form in ("check", "direct", "oblivious"):
            target = 12 if form == "direct" and (codewords, blocks, counter_bits) == DIRECT_TARGET else None
            value = 1e9 * seconds[form] / blocks
            note = f"{seconds[form] / seconds['plain']:.1f} plain passes"
            yield Figure(name=f"{form}, {name}", value=value, unit="ns", at_most=target, note=note)
