"""Check words, against their definition in plain integers."""

from __future__ import annotations

import numpy as np
import pytest

from secagg.crypto.check_words import CHECK_KEY_BYTES, check_words
from secagg.crypto.mask_expansion import Generator, expand
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret
from secagg.simulation.insecure_coins import InsecureSeededCoins


def vector(ring: Ring, length: int, seed: bytes) -> RingVector:
    with Secret("key", bytes(InsecureSeededCoins(seed).draw(16))) as key:
        return expand(key, ring, length)


def plain(ring: Ring, values: RingVector, count: int, key: Secret) -> list[int]:
    """Return word w: the inner product of the values with the public vector starting at element w."""
    public = expand(key, ring, values.size + count - 1, generator=Generator.CTR).tolist()
    return [
        sum(value * public[word + place] for place, value in enumerate(values.tolist())) % (1 << ring.modulus_bits)
        for word in range(count)
    ]


@pytest.mark.parametrize("bits", [7, 20, 33])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("length", [1, 7, 16, 40])
def test_words_are_inner_products_with_one_public_vector_shifted(
    bits: int, count: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece, and in pieces of the public vector that do not end with the values."""
    ring, key = Ring(bits), Secret("check_key", bytes(range(CHECK_KEY_BYTES)))
    values = vector(ring, length, b"values")
    due = plain(ring, values, count, key)
    assert check_words(ring, values, count, key) == due
    monkeypatch.setattr("secagg.crypto.check_words.SEGMENT_BYTES", 8 * ring.word_bytes)
    assert check_words(ring, values, count, key) == due


def test_words_of_a_sum_are_the_sum_of_the_words() -> None:
    ring, key = Ring(20), Secret("check_key", bytes(range(CHECK_KEY_BYTES)))
    left, right = vector(ring, 50, b"left"), vector(ring, 50, b"right")
    words = [check_words(ring, one, 4, key) for one in (left, right, ring.add(left, right))]
    assert [(one + other) % (1 << 20) for one, other in zip(*words[:2], strict=True)] == words[2]
    assert not np.array_equal(left, right)
