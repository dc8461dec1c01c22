"""Indices modulo the number of codewords, and vectors that are turned."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract.layout import IndexSegment
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Reason
from secagg.protocols.two_servers.index_sharing.index_shares import (
    INDEX,
    add_indices,
    pack_indices,
    reduce_halves,
    subtract_indices,
    turn_into,
    uniform_indices,
    unpack_indices,
)

CODEWORDS = (2, 3, 5, 32, 100, 127, 255, 256, 257, 1000, 4095, 4096)
KEY = bytes(range(32))
codewords = st.integers(2, 4096)
halves = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("k", CODEWORDS)
def test_an_index_is_a_block_of_the_counter_stream_modulo_the_codewords(k: int) -> None:
    encryptor = Cipher(algorithms.AES(KEY[:16]), modes.CTR(KEY[16:])).encryptor()
    stream = encryptor.update(bytes(16 * 40))
    expected = [int.from_bytes(stream[start : start + 16], "little") % k for start in range(0, len(stream), 16)]
    assert uniform_indices(Secret("key", KEY), k, 0, 40).tolist() == expected


def test_any_range_can_be_made_alone() -> None:
    key = Secret("key", KEY)
    whole = uniform_indices(key, 100, 0, 40_000)
    assert (uniform_indices(key, 100, 16_380, 20_000) == whole[16_380:36_380]).all()


@given(high=halves, low=halves, k=codewords)
def test_words_of_128_bits_are_reduced_as_integers_are(high: int, low: int, k: int) -> None:
    words = np.array([[low], [high]], dtype=np.uint64)
    assert reduce_halves(words[0], words[1], k).tolist() == [((high << 64) + low) % k]


@pytest.mark.parametrize("k", CODEWORDS)
def test_the_distance_from_uniform_is_as_small_as_the_module_says(k: int) -> None:
    words, more = 1 << 128, (1 << 128) % k
    often, seldom = Fraction(-(-words // k), words), Fraction(words // k, words)
    distance = (more * abs(often - Fraction(1, k)) + (k - more) * abs(seldom - Fraction(1, k))) / 2
    assert distance <= Fraction(k, 1 << 130) <= Fraction(1, 1 << 118)


@pytest.mark.parametrize("k", [5, 32, 100])
def test_every_index_occurs_about_equally_often(k: int) -> None:
    counts = np.bincount(uniform_indices(Secret("key", KEY), k, 0, 100_000), minlength=k)
    chi_square = float((((counts - 100_000 / k) ** 2) / (100_000 / k)).sum())
    assert chi_square < k + 6 * (2 * k) ** 0.5


@given(data=st.data(), k=codewords)
def test_sums_and_differences_are_modulo_the_codewords(data: st.DataObject, k: int) -> None:
    pairs = data.draw(st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), min_size=1, max_size=20))
    left, right = (np.array(side, dtype=INDEX) for side in zip(*pairs, strict=True))
    assert add_indices(left, right, k).tolist() == [(one + other) % k for one, other in pairs]
    difference = subtract_indices(left, right, k)
    assert difference.tolist() == [(one - other) % k for one, other in pairs]
    assert difference.dtype == INDEX


@pytest.mark.parametrize("k", CODEWORDS)
def test_the_extremes_of_sums_and_differences_stay_below_the_codewords(k: int) -> None:
    last, none = np.array([k - 1], dtype=INDEX), np.array([0], dtype=INDEX)
    assert add_indices(last, last, k).tolist() == [(2 * k - 2) % k]
    assert subtract_indices(none, none, k).tolist() == [0]
    assert subtract_indices(none, last, k).tolist() == [1]


@pytest.mark.parametrize("word", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("k", [2, 3, 5, 32, 100, 257])
def test_every_vector_is_turned_by_its_own_difference(k: int, word: type[np.unsignedinteger]) -> None:
    generator = np.random.default_rng(k)
    blocks = (1 << 19) // k + 77 if k == 5 else 300
    lanes = generator.integers(0, 127, (k, blocks)).astype(word)
    differences = generator.integers(0, k, blocks).astype(INDEX)
    turned = lanes.copy()
    turn_into(turned, differences)
    places = (np.arange(k)[:, np.newaxis] - differences.astype(np.int64)) % k
    assert (turned == np.take_along_axis(lanes, places, axis=0)).all()


def test_lanes_that_lie_apart_are_turned_in_place() -> None:
    lanes = np.arange(60, dtype=np.uint16).reshape(6, 10)
    before, part = lanes.copy(), lanes[:, 2:7]
    turn_into(part, np.full(5, 2, dtype=INDEX))
    assert (lanes[:, 2:7] == np.roll(before[:, 2:7], 2, axis=0)).all()
    assert (lanes[:, :2] == before[:, :2]).all()
    assert (lanes[:, 7:] == before[:, 7:]).all()


@pytest.mark.parametrize("k", CODEWORDS)
def test_packed_indices_have_exactly_the_bits_that_the_codewords_need(k: int) -> None:
    segment = IndexSegment(k, 33)
    indices = uniform_indices(Secret("key", KEY), k, 0, 33)
    packed = pack_indices(segment, indices)
    assert len(packed) == (33 * (k - 1).bit_length() + 7) // 8 == segment.payload_bytes
    assert (unpack_indices(segment, packed) == indices).all()


@pytest.mark.parametrize("k", [k for k in CODEWORDS if k & (k - 1)])
@pytest.mark.parametrize("place", [0, 32])
def test_a_share_that_is_no_index_is_refused(k: int, place: int) -> None:
    segment, indices = IndexSegment(k, 33), np.zeros(33, dtype=INDEX)
    indices[place] = k - 1
    unpack_indices(segment, pack_indices(segment, indices))
    indices[place] = k
    with pytest.raises(MalformedMessage) as caught:
        unpack_indices(segment, pack_indices(segment, indices))
    assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize(("size", "reason"), [(20, Reason.TRUNCATED), (22, Reason.TRAILING_BYTES)])
def test_packed_indices_of_another_length_are_refused(size: int, reason: Reason) -> None:
    with pytest.raises(MalformedMessage) as caught:
        unpack_indices(IndexSegment(32, 33), bytes(size))
    assert caught.value.reason is reason


def test_a_bit_that_fills_the_last_byte_is_refused() -> None:
    with pytest.raises(MalformedMessage):
        unpack_indices(IndexSegment(32, 33), bytes(20) + b"\x80")
