"""Whether the time of what sees secrets depends on them: a fixed secret against random ones, for each kernel.

Run by ``make timing``; see ``tests/harness/timed_classes.py`` for how, and LIMITATIONS.md for what depends on secrets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from figures import machine
from secagg.contract import IndexSegment
from secagg.crypto import shamir
from secagg.crypto.check_words import check_words
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import accumulate
from secagg.crypto.prime_field import random_root
from secagg.crypto.ring import Ring, RingVector, round_off
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import LagrangeWeights, Share
from secagg.identifiers import ClientId
from secagg.privacy.noise import NoiseKind, sample
from secagg.privacy.noise_table import add_noise_into
from secagg.privacy.rounding import rounded, rounded_norm
from secagg.protocols.enclave.trusted.histogram import Accumulation, HistogramAccumulator
from secagg.protocols.one_message.lattice.gaussian import Sampler
from secagg.protocols.two_servers.lanes.groups import RingLanes
from secagg.protocols.two_servers.point_functions.generation import generate_shares
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.timed_classes import COPIES, Timed, timed

LENGTH = 4096
RING = Ring(20)
BLOCKS = 512
THRESHOLD, HOLDERS = 11, 20
VARIANCE = Fraction(100)
Input = TypeVar("Input")


@dataclass(frozen=True)
class Kernel:
    """Some code, and the two classes of its secret input."""

    name: str
    run: Callable[[Any], object]
    fixed: list[Any]
    random: list[Any]
    secret: str
    """What differs between the classes."""


def classes(make: Callable[[int], Input]) -> tuple[list[Input], list[Input]]:
    """Return the copies of input number zero, and as many others; in memory they lie in turns."""
    pairs = [(make(0), make(1 + index)) for index in range(COPIES)]
    return [fixed for fixed, _ in pairs], [random for _, random in pairs]


def kernels() -> Iterator[Kernel]:
    """Yield every kernel; a planted branch comes first, which has to be found, and a control has no secret."""
    yield Kernel("(planted) stop at the first byte that differs", _early_exit, *classes(_secret_bytes), "32 bytes")
    yield from _rings()
    yield from _sums()
    yield from _sharing()
    yield from _samplers()


def _rings() -> Iterator[Kernel]:
    mask, total = _vector(1), RING.zeros(LENGTH)
    vectors, keys = classes(_vector), classes(lambda number: Secret("mask_key", _bytes(number, 16)))

    def expanded(key: Secret) -> None:
        accumulate(total, RING, add=[key], subtract=[])

    packed = classes(lambda number: RING.pack(_vector(number)))
    yield Kernel("expand a mask and add it", expanded, *keys, "the key")
    yield Kernel("add modulo 2^20", lambda vector: RING.add(vector, mask), *vectors, "the vector")
    others = [_vector(1 + COPIES + index) for index in range(COPIES)]
    yield Kernel(
        "(control) add, both classes random", lambda vector: RING.add(vector, mask), others, vectors[1], "none"
    )
    yield Kernel("lift", RING.lift, *vectors, "the vector")
    yield Kernel("pack", RING.pack, *vectors, "the vector")
    yield Kernel("unpack", lambda data: RING.unpack(data, LENGTH), *packed, "the vector")
    yield Kernel("round under a mask", lambda vector: round_off(vector, 20, 4), *vectors, "the masked vector")
    public = Secret("check_key", _bytes(1, 16))
    yield Kernel("check words", lambda vector: check_words(RING, vector, 4, public), *vectors, "the vector")


def _sums() -> Iterator[Kernel]:
    segment = IndexSegment(64, LENGTH)

    def indices(number: int) -> memoryview:
        drawn = np.frombuffer(_bytes(number, LENGTH), np.uint8) & 63
        return memoryview(segment.ring.pack(drawn.astype(segment.ring.word)))

    for form in Accumulation:
        counters = HistogramAccumulator(segment, (1 << 32) - 1, form)
        name = f"count indices in the enclave, {form.name.lower()}"
        yield Kernel(name, partial(counters.add, weight=1), *classes(indices), "the indices")
    shape = PointFunctionShape(codewords=64, group=RingLanes(7), depth=1)

    def alpha(number: int) -> Any:  # noqa: ANN401 -- an array
        return (np.frombuffer(_bytes(number, BLOCKS), np.uint8) & 63).astype(np.int64)

    def shared(alpha: Any) -> Any:  # noqa: ANN401 -- two shares
        return generate_shares(
            shape, alpha, context=bytes(32), client=ClientId(1), coins=InsecureSeededCoins(b"timing")
        )

    yield Kernel("share a point function", shared, *classes(alpha), "alpha")
    shares = classes(lambda number: shared(alpha(number))[0])
    yield Kernel(
        "evaluate a point function", lambda share: share.lanes(0, BLOCKS), *shares, "alpha, one server's share"
    )


def _sharing() -> Iterator[Kernel]:
    coins = SystemCoins()

    def root(number: int) -> Secret:
        return random_root("mask_root", coins) if number else Secret("mask_root", bytes(32))

    def shares(number: int) -> list[Share]:
        return shamir.split(root(number), threshold=THRESHOLD, holders=HOLDERS, coins=coins)[:THRESHOLD]

    def split(secret: Secret) -> None:
        shamir.split(secret, threshold=THRESHOLD, holders=HOLDERS, coins=coins)

    weights = LagrangeWeights.at_zero(range(1, THRESHOLD + 1), threshold=THRESHOLD)
    yield Kernel("Shamir: split, t=11 of n=20", split, *classes(root), "the secret")
    yield Kernel("Shamir: combine 11 shares", weights.combine, *classes(shares), "the secret, of which shares are")
    one = Secret("compared", _bytes(1, 32))
    # The fixed candidates are equal to it; the others differ in their first byte with probability 255/256.
    candidates = classes(lambda number: Secret("compared", _bytes(1 + number, 32)))
    yield Kernel("compare secrets", lambda other: one == other, *candidates, "the candidate")


def _samplers() -> Iterator[Kernel]:
    keys = classes(lambda number: Secret("noise key", _bytes(number + 1, 32)))
    yield Kernel("lattice Gaussian, 4096 draws", lambda key: Sampler(key).draw(LENGTH), *keys, "the key")
    seeds, vector = classes(lambda number: _bytes(number + 1, 16)), RING.zeros(LENGTH)
    for kind in NoiseKind:
        name = kind.name.lower().replace("_", " ")

        def tabled(seed: bytes, kind: NoiseKind = kind) -> None:
            add_noise_into(vector, RING, kind, VARIANCE, InsecureSeededCoins(seed))

        yield Kernel(f"{name} from a table, 4096 draws", tabled, *seeds, "the coins")
    yield Kernel(
        "discrete Gaussian, exact, 256 draws",
        lambda seed: sample(NoiseKind.DISCRETE_GAUSSIAN, VARIANCE, 256, InsecureSeededCoins(seed)),
        *seeds,
        "the coins",
    )
    updates = classes(lambda number: np.frombuffer(_bytes(number, 2 * LENGTH), np.int16) / 256.0)
    bound = int(rounded_norm(max(float(np.linalg.norm(one)) for one in updates[1]), LENGTH)) + 1
    yield Kernel(
        "round to a bounded norm",
        lambda update: rounded(update, bound, InsecureSeededCoins(b"timing")),
        *updates,
        "the update",
    )


def _bytes(number: int, count: int) -> bytes:
    """Return zeros for number zero, and a stream of its own for every other."""
    return bytes(InsecureSeededCoins(number.to_bytes(8, "big")).draw(count)) if number else bytes(count)


def _secret_bytes(number: int) -> bytes:
    return _bytes(number, 32)


def _vector(number: int) -> RingVector:
    return (np.frombuffer(_bytes(number, 4 * LENGTH), np.uint32) & np.uint32(0xFFFFF)).copy()


def _early_exit(secret: bytes) -> bool:
    return all(not byte for byte in secret)


def main() -> None:
    """Time every kernel, or those whose name has a word in it, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each kernel (default: 20)")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    host, rows = machine(), list[dict[str, object]]()
    print(", ".join(f"{name}: {value}" for name, value in host.items()))
    print(f"{'kernel':<48} {'t':>9} {'share':>6} {'calls':>8} {'median':>10} {'differ by':>10}  verdict, secret")
    for kernel in kernels():
        if options.word in kernel.name:
            found = timed(kernel.run, kernel.fixed, kernel.random, seconds=options.seconds)
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
