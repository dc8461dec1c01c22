"""Coins from a seed: the same again from the same seed, whatever the sizes of the draws."""

from __future__ import annotations

import numpy as np
import pytest

from secagg.crypto.secret import Secret
from secagg.errors import Misuse
from secagg.privacy.noise_table import SeededCoins


def drawn(seed: bytes, *counts: int) -> bytes:
    with Secret("seed", seed) as secret:
        coins = SeededCoins(secret)
        return b"".join(bytes(coins.draw(count)) for count in counts)


def test_draws_are_one_stream_of_the_seed() -> None:
    whole = drawn(bytes(16), 300_000)
    assert drawn(bytes(16), 1, 0, 7, 99_992, 200_000) == whole
    assert drawn(bytes(15) + b"\1", 300_000) != whole
    counts = np.bincount(np.frombuffer(whole, np.uint8), minlength=256)
    assert abs(float(((counts - 300_000 / 256) ** 2).sum()) * 256 / 300_000 - 255) < 5 * (2 * 255) ** 0.5


def test_nothing_is_drawn_from_a_seed_that_was_wiped() -> None:
    secret = Secret("seed", bytes(16))
    coins = SeededCoins(secret)
    coins.draw(5)
    secret.wipe()
    with pytest.raises(Misuse, match="wiped"):
        coins.draw(5)
    assert repr(coins) == "<SeededCoins, 5 bytes drawn>"
