"""Speed of packing and unpacking vectors, at every width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from figures import Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret

ELEMENTS = 1 << 20
WIDTHS = range(1, 33)


def measure() -> Iterator[Figure]:
    """Pack and unpack 2^20 uint32 elements, including conversion to and from the ring's word."""
    key = Secret.random("mask_key", 16, SystemCoins())
    packing: dict[str, Callable[[], object]] = {}
    unpacking: dict[str, Callable[[], object]] = {}
    for bits in WIDTHS:
        ring = Ring(bits)
        vector = expand(key, ring, ELEMENTS)
        packed = ring.pack(vector)
        assert (ring.unpack(packed, ELEMENTS) == vector).all()
        packing[str(bits)] = partial(_pack, ring, vector.astype(np.uint32))
        unpacking[str(bits)] = partial(_unpack, ring, packed)
    for name, contenders in (("pack", packing), ("unpack", unpacking)):
        speeds = {bits: 4 * ELEMENTS / seconds / 1e9 for bits, seconds in best_seconds(contenders, 7).items()}
        slowest = min(speeds, key=lambda bits: speeds[bits])
        yield Figure(
            name=f"{name}, slowest of 1..32 bits",
            value=speeds[slowest],
            unit="GB/s",
            at_least=0.8,
            note=f"at {slowest} bits",
        )
        for width in ("4", "12", "20", "32"):
            yield Figure(name=f"{name}, {width} bits", value=speeds[width], unit="GB/s")


def _pack(ring: Ring, vector: npt.NDArray[np.uint32]) -> bytes:
    return ring.pack(vector.astype(ring.word, copy=False))


def _unpack(ring: Ring, packed: bytes) -> npt.NDArray[np.uint32]:
    return ring.unpack(packed, ELEMENTS).astype(np.uint32, copy=False)
