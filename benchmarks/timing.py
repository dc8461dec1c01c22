"""Tests whether the time of kernels depends on their secrets: a fixed secret against random ones, for each kernel.

Run by ``make timing``; ``tests/harness/timed_classes.py`` explains the method, LIMITATIONS.md the known dependencies.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from figures import machine
from secagg.choices import Accumulation
from secagg.contract import IndexSegment
from secagg.crypto import shamir
from secagg.crypto.check_words import check_words
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import accumulate
from secagg.crypto.reconstruction import LagrangeWeights
from secagg.crypto.ring import Ring, RingVector, round_off
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share
from secagg.identifiers import ClientId
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.noise import sample
from secagg.privacy.noise_table import add_noise_into
from secagg.privacy.rounding import rounded, rounded_norm
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator
from secagg.protocols.one_message.lattice import Sampler
from secagg.protocols.two_servers.point_functions.generation import generate_shares
from secagg.protocols.two_servers.point_functions.lanes import RingLanes
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.timed_classes import COPIES, Timed, timed

LENGTH = 4096
RING = Ring(20)
BLOCKS = 512
THRESHOLD, HOLDERS = 11, 20
VARIANCE = Fraction(100)
BOUND = int(rounded_norm(128 * LENGTH**0.5, LENGTH)) + 1
"""Bound in steps, for every update of values below 128."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, the conversion of bytes to its secret input, and the name of the secret."""

    name: str
    run: Callable[[Any], object]
    load: Callable[[bytes], Any]
    secret: str
    bytes: int
    has_secret: bool = True

    def timed(self, seconds: float) -> Timed:
        """Time zeros against random bytes; the control has random bytes in both classes."""
        fixed, random = (
            [_bytes(0 if first == 0 and self.has_secret else first + index, self.bytes) for index in range(COPIES)]
            for first in (0, 1000)
        )
        return timed(self.run, fixed, random, load=self.load, seconds=seconds)


def kernels() -> Iterator[Kernel]:
    """Yield every kernel; first a planted branch, which must be found, and a control without a secret."""
    yield Kernel("(planted) stop at the first byte that differs", _early_exit, bytes, "32 bytes", 32)
    yield from _rings()
    yield from _sums()
    yield from _sharing()
    yield from _samplers()


def _rings() -> Iterator[Kernel]:
    mask, total, held = _elements(_bytes(1, 4 * LENGTH)).copy(), RING.zeros(LENGTH), RING.zeros(LENGTH)
    public, packed = Secret("check_key", _bytes(1, 16)), bytearray(RING.packed_bytes(LENGTH))

    def expanded(key: Secret) -> None:
        accumulate(total, RING, add=[key], subtract=[])

    def vector(data: bytes) -> RingVector:
        held[:] = _elements(data)
        return held

    def packing(data: bytes) -> bytearray:
        packed[:] = data
        return packed

    def key(data: bytes) -> Secret:
        return Secret("mask_key", data)

    length = 4 * LENGTH
    yield Kernel("expand a mask and add it", expanded, key, "the key", 16)
    yield Kernel(
        "(control) add, both classes random", lambda one: RING.add(one, mask), vector, "none", length, has_secret=False
    )
    yield Kernel("add modulo 2^20", lambda one: RING.add(one, mask), vector, "the vector", length)
    yield Kernel("lift", RING.lift, vector, "the vector", length)
    yield Kernel("pack", RING.pack, vector, "the vector", length)
    yield Kernel("unpack", lambda data: RING.unpack(data, LENGTH), packing, "the vector", len(packed))
    yield Kernel("round under a mask", lambda one: round_off(one, 20, 4), vector, "the masked vector", length)
    yield Kernel("check words", lambda one: check_words(RING, one, 4, public), vector, "the vector", length)


def _sums() -> Iterator[Kernel]:
    segment = IndexSegment(64, LENGTH)
    held = bytearray(segment.payload_bytes)

    def indices(data: bytes) -> memoryview:
        held[:] = data
        return memoryview(held)

    for form in Accumulation:
        counters = HistogramAccumulator(segment, (1 << 32) - 1, form)
        name = f"count indices in the enclave, {form.name.lower()}"
        yield Kernel(name, counters.add, indices, "the indices", len(held))
    shape = PointFunctionShape(codewords=64, group=RingLanes(7), depth=1)
    places = np.zeros(BLOCKS, np.int64)

    def alpha(data: bytes) -> Any:  # noqa: ANN401 -- an array
        places[:] = np.frombuffer(data, np.uint8) & 63
        return places

    def shared(alpha: Any) -> Any:  # noqa: ANN401 -- two shares
        return generate_shares(
            shape, alpha, context=bytes(32), client=ClientId(1), coins=InsecureSeededCoins(b"timing")
        )

    def share(data: bytes) -> Any:  # noqa: ANN401 -- of one server
        return shared(alpha(data))[0]

    yield Kernel("share a point function", shared, alpha, "alpha", BLOCKS)
    yield Kernel(
        "evaluate a point function", lambda one: one.lanes(0, BLOCKS), share, "alpha, of one server's share", BLOCKS
    )


def _sharing() -> Iterator[Kernel]:
    coins, one = SystemCoins(), Secret("compared", bytes(32))

    def root(data: bytes) -> Secret:
        return Secret("mask_root", data)

    def split(secret: Secret) -> list[Share]:
        return shamir.split_many([secret], threshold=THRESHOLD, holders=HOLDERS, coins=coins)[0]

    def shares(data: bytes) -> list[Share]:
        return split(root(data))[:THRESHOLD]

    weights = LagrangeWeights.at_zero(range(1, THRESHOLD + 1), threshold=THRESHOLD)
    yield Kernel("Shamir: split, t=11 of n=20", split, root, "the secret", 32)
    yield Kernel("Shamir: combine 11 shares", weights.combine, shares, "the secret, of which shares are", 32)
    yield Kernel("compare secrets", lambda other: one == other, root, "the candidate", 32)


def _samplers() -> Iterator[Kernel]:
    vector, held = RING.zeros(LENGTH), np.zeros(LENGTH)

    def seeded(data: bytes) -> InsecureSeededCoins:
        return InsecureSeededCoins(data)

    def update(data: bytes) -> Any:  # noqa: ANN401 -- an array
        held[:] = np.frombuffer(data, np.int16) / 256
        return held

    yield Kernel(
        "lattice Gaussian, 4096 draws",
        lambda key: Sampler(key).draw(LENGTH),
        lambda data: Secret("noise key", data),
        "the key",
        32,
    )
    for kind in NoiseKind:
        name = kind.name.lower().replace("_", " ")

        def tabled(coins: InsecureSeededCoins, kind: NoiseKind = kind) -> None:
            add_noise_into(vector, RING, kind, VARIANCE, coins)

        yield Kernel(f"{name} from a table, 4096 draws", tabled, seeded, "the coins", 16)
    yield Kernel(
        "discrete Gaussian, exact, 256 draws",
        lambda coins: sample(NoiseKind.DISCRETE_GAUSSIAN, VARIANCE, 256, coins),
        seeded,
        "the coins",
        16,
    )
    yield Kernel(
        "round to a bounded norm",
        lambda one: rounded(one, BOUND, InsecureSeededCoins(b"timing")),
        update,
        "the update",
        2 * LENGTH,
    )


def _bytes(number: int, count: int) -> bytes:
    """Return zeros for number zero, and a separate stream for every other."""
    # Zeros are copied: the system maps fresh zeros to one shared page, which is faster to read.
    return bytes(InsecureSeededCoins(number.to_bytes(8, "big")).draw(count) if number else bytearray(count))


def _elements(data: bytes) -> RingVector:
    return np.frombuffer(data, np.uint32) & np.uint32(0xFFFFF)


def _early_exit(secret: bytes) -> bool:
    return all(not byte for byte in secret)


def main() -> None:
    """Time every kernel, or those whose name contains a word, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for each kernel (default: 20)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    host, rows = machine(), list[dict[str, object]]()
    print(", ".join(f"{name}: {value}" for name, value in host.items()))
    print(f"{'kernel':<48} {'t':>9} {'share':>6} {'calls':>8} {'median':>10} {'differ by':>10}  verdict, secret")
    for kernel in kernels():
        if options.word in kernel.name:
            found = kernel.timed(options.seconds)
            rows.append({"kernel": kernel.name, "secret": kernel.secret, **asdict(found), "verdict": found.verdict})
            print(f"{_row(kernel.name, found)}  {found.verdict}: {kernel.secret}", flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": host, "kernels": rows}, indent=2) + "\n")


def _row(name: str, found: Timed) -> str:
    return (
        f"{name:<48} {found.t:>9.1f} {found.share:>6.3f} {found.measurements:>8} "
        f"{found.median / 1000:>8.1f}us {found.difference / 1000:>8.3f}us"
    )


if __name__ == "__main__":
    main()
