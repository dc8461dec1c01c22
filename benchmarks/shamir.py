"""Cost of sharing and reconstructing on one thread, for 100 holders at threshold 67."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from figures import Figure, best_seconds
from secagg.crypto import reconstruction, shamir
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.prime_field import random_root
from secagg.crypto.reconstruction import LagrangeWeights
from secagg.crypto.shamir import Share

THRESHOLD = 67
HOLDERS = 100
WRONG = 16


def measure() -> Iterator[Figure]:
    """Time each operation, in milliseconds."""
    coins = SystemCoins()
    roots = [random_root("mask_root", coins) for _ in range(2)]
    shares = shamir.split_many(roots, threshold=THRESHOLD, holders=HOLDERS, coins=coins)[0]
    present = shares[HOLDERS - THRESHOLD :]
    weights = LagrangeWeights.at_zero([share.point for share in present], threshold=THRESHOLD)
    damaged = [Share(share.point, random_root("wrong share", coins)) for share in shares[:WRONG]] + shares[WRONG:]
    split = partial(shamir.split_many, roots, threshold=THRESHOLD, holders=HOLDERS, coins=coins)
    targets = {"split two secrets, t=67 of n=100": 2.0, "reconstruct from 67 shares": 1.5}
    contenders: dict[str, Callable[[], object]] = {
        "split two secrets, t=67 of n=100": split,
        "reconstruct from 67 shares": partial(reconstruction.reconstruct, present, threshold=THRESHOLD),
        "combine 67 shares, weights at hand": partial(weights.combine, present),
        "reconstruct from 100 shares, all checked": partial(reconstruction.reconstruct, shares, threshold=THRESHOLD),
        "correct 100 shares, 16 of them wrong": partial(reconstruction.correct, damaged, threshold=THRESHOLD),
    }
    for name, seconds in best_seconds(contenders, 30).items():
        yield Figure(name=name, value=1000 * seconds, unit="ms", at_most=targets.get(name))
