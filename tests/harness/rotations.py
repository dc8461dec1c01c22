"""A rotation and updates, for tests of codes of whole updates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.compression.common import PublicStream
from secagg.compression.rotation import JoinedRotation

SEED = bytes(range(32))


def rotation(
    size: int = 19, block_size: int = 8, *, sizes: tuple[int, ...] = (), scales: tuple[float, ...] = (), **stream: Any
) -> JoinedRotation:
    """Return the rotation of a stream; each argument has a default."""
    usual: dict[str, Any] = {"seed": SEED, "round_number": 5, "tensor_name": "update", "shape": (size,)}
    return JoinedRotation(stream=PublicStream(**(usual | stream)), sizes=sizes, scales=scales, block_size=block_size)


def normal(size: int, count: int = 1, number: int = 0) -> npt.NDArray[np.float32]:
    """Return normally distributed updates, one in each row."""
    return np.random.default_rng(number).standard_normal((count, size), dtype=np.float64).astype(np.float32)
