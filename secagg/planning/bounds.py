"""Whether what one client adds to a sum is bounded, for every scheme: a few sentences.

Where a client sends one index a block, its update is no longer than the longest codewords, whatever it does: the
enclave takes no other index, and two servers check that there is one. Ring elements are whatever a client sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np

from secagg.compression.product_quantization.kmeans import learn_codewords
from secagg.compression.product_quantization.nearest_codeword import nearest_codewords

from .planned_update import INDEXED, PlanRequest, Scheme

_SAMPLE: Final = 2048
_ITERATIONS: Final = 8
_MOST_LEARNED: Final = 1 << 10
"""Entries of a codebook that is learned to plan with."""


def bounds(request: PlanRequest) -> Iterator[str]:
    """Say which schemes bound a client, by how much over an honest one, and which bound none."""
    slack = product_slack(request.codewords, request.block_size)
    product = "by its longest codewords" if slack is None else f"{slack:.2f} times an honest client's at most"
    yield (
        "What one client can add is bounded in the enclave, and by two servers that check, as an index has one "
        f"codeword: the {Scheme.PEAK} gives every update one length, 1.00 times an honest client's, and "
        f"{Scheme.PRODUCT} of normal values {product}; lengths and scales that clients tell as ring elements are not "
        "bounded."
    )
    rings = ", ".join(scheme.value for scheme in Scheme if scheme not in INDEXED)
    yield (
        f"Not bounded, whoever adds up, since a ring element may be anything: {rings}. Pairwise masks, one message and "
        "coded masks sum ring elements alone, and bound nobody; what each sum leaves unbounded it names."
    )


@cache
def product_slack(codewords: int, block_size: int) -> float | None:
    """Return the longest codeword over the root mean square of those that normal values choose; None if too large."""
    if codewords * block_size > _MOST_LEARNED:
        return None
    blocks = np.random.default_rng(0).standard_normal((_SAMPLE, block_size))
    learned = learn_codewords(blocks, codewords, seed=bytes(32), iterations=_ITERATIONS)
    squares = np.square(learned).sum(axis=1)
    chosen = squares[nearest_codewords(blocks, [learned])[0]]
    return math.sqrt(float(squares.max()) / float(chosen.mean()))
