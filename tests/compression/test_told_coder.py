"""Coded sums: exact, near the entropy, with one encoding each, and the same on every machine."""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression import told as coder
from secagg.compression.told import (
    GREATEST,
    LEVELS,
    decode_sums,
    encode_sums,
    level_of,
    longest,
    pushed,
    table_of,
)
from secagg.errors import MalformedMessage, Misuse, Reason

Sums = npt.NDArray[np.int64]
EVERY = range(LEVELS)


def skellam(variance: float, count: int, seed: int = 0) -> Sums:
    drawn = np.random.default_rng(seed)
    return drawn.poisson(variance / 2, count) - drawn.poisson(variance / 2, count)


def bits(sums: Sums) -> float:
    return 8 * len(encode_sums(sums)) / len(sums)


def entropy(sums: Sums) -> float:
    share = np.unique(sums, return_counts=True)[1] / len(sums)
    return float(-(share * np.log2(share)).sum())


MANY = st.one_of(
    arrays(np.int64, st.integers(0, 400), elements=st.integers(-GREATEST, GREATEST)),
    arrays(np.int64, st.integers(0, 6000), elements=st.integers(-3, 3), fill=st.just(0)),
    st.builds(skellam, st.floats(1e-4, 1e5), st.integers(0, 9000), st.integers(0, 99)),
)


# --- What is coded ----------------------------------------------------------------------------------------------------


@given(MANY)
def test_sums_come_back_and_no_encoding_is_longer_than_said(sums: Sums) -> None:
    coded = encode_sums(sums)
    assert np.array_equal(decode_sums(coded, len(sums)), sums)
    assert len(coded) <= longest(len(sums))


@pytest.mark.parametrize(
    ("clients", "places"), [(20, 116), (20, 94), (20, 23), (20, 8), (100, 580), (2, 32768), (60, 2), (20, 1)]
)
@pytest.mark.parametrize("count", [19_456, 100_000])
def test_a_sum_of_peaks_takes_little_more_than_its_entropy(clients: int, places: int, count: int) -> None:
    """Clients choose places independently; each coder of 2,048 values costs two bytes."""
    drawn, sums = np.random.default_rng(places), np.zeros((-(-count // places), places), np.int64)
    for _ in range(clients):
        at = drawn.integers(places, size=len(sums))
        sums[np.arange(len(sums)), at] += drawn.choice([-1, 1], len(sums))
    found, least = bits(sums.reshape(-1)[:count]), entropy(sums.reshape(-1)[:count])
    assert found <= 1.005 * least + 0.025
    if (clients, places) == (20, 116):
        assert found <= 0.85


@pytest.mark.parametrize("deviation", [3.0, 12.0, 40.0, 300.0, 9000.0])
def test_sums_of_several_bits_take_little_more_than_their_entropy(deviation: float) -> None:
    sums = np.rint(np.random.default_rng(1).normal(0, deviation, 100_000)).astype(np.int64)
    due = math.log2(deviation * math.sqrt(2 * math.pi * math.e))
    assert bits(sums) <= due + 0.08


def test_outliers_follow_the_table() -> None:
    sums = skellam(0.2, 50_000)
    sums[::5000] = [GREATEST, -GREATEST, 100, -100, 9, -9, 5000, -5000, 77, 78]
    sums[1::3] = 0
    assert np.array_equal(decode_sums(encode_sums(sums), len(sums)), sums)
    few = np.zeros(100_000, np.int64)
    few[7] = 5
    assert len(encode_sums(few)) < 400


# --- The same on every machine ----------------------------------------------------------------------------------------


def test_tables_are_whole_numbers_that_are_pinned() -> None:
    """Made by integers alone; a change of these digests is another format."""
    digest = hashlib.sha256()
    for level in EVERY:
        model = table_of(level)
        digest.update(f"{level} {model.low_bits} {model.greatest}".encode() + model.frequencies.astype(">u4").tobytes())
    assert digest.hexdigest() == TABLES


def test_an_encoding_is_pinned() -> None:
    drawn = np.frombuffer(hashlib.shake_256(b"sums").digest(60_000), np.uint8).reshape(-1, 6)
    sums = (drawn[:, :3] < 24).sum(axis=1).astype(np.int64) - (drawn[:, 3:] < 24).sum(axis=1)
    assert hashlib.sha256(encode_sums(sums)).hexdigest() == ENCODING


@pytest.mark.parametrize("level", [0, 1, 40, 100, 108, 109, 200, EVERY[-1]])
def test_a_table_is_the_law_of_a_difference_of_poisson_counts(level: int) -> None:
    model = table_of(level)
    variance = (8 + level % 8) * 2.0 ** (level // 8 - 14) / 4.0**model.low_bits
    half = variance / 2
    share = model.frequencies.astype(float) / 65536
    for value in range(min(4, model.greatest + 1)):
        terms = [
            math.exp(-variance + (2 * k + value) * math.log(half) - math.lgamma(k + 1) - math.lgamma(k + value + 1))
            for k in range(800)
        ]
        for place in (model.greatest + value, model.greatest - value):
            assert abs(share[place] - sum(terms)) < 2 / 65536
    assert model.frequencies.sum() == 65536
    assert model.frequencies[-1] >= 1


def test_levels_are_the_least_variances_that_are_large_enough() -> None:
    variances = [(8 + level % 8) * 2.0 ** (level // 8 - 14) for level in EVERY]
    assert all(1 < after / before <= 1.125 for before, after in pairwise(variances))
    for squared in (0, 1, 3, 10, 1000, 123_456, GREATEST**2):
        sums = np.zeros(4096, np.int64)
        sums[:1] = math.isqrt(squared)
        measured = math.isqrt(squared) ** 2 / 4096
        level = level_of(sums.astype(np.int32))
        assert variances[level] >= measured
        assert level == 0 or variances[level - 1] < measured


def test_a_slow_decoder_of_one_value_at_a_time_agrees() -> None:
    sums = skellam(0.5, 5000)
    coded, lanes = encode_sums(sums), 2
    model = table_of(int.from_bytes(coded[:2], "big"))
    assert model.low_bits == 0
    ends = np.cumsum(model.frequencies).tolist()
    states = [int.from_bytes(coded[2 + 4 * lane : 6 + 4 * lane], "big") for lane in range(lanes)]
    at, found = 2 + 4 * lanes, list[int]()
    for row in range(2500):
        for lane in range(lanes):
            slot = states[lane] % 65536
            symbol = next(place for place, end in enumerate(ends) if slot < end)
            frequency = int(model.frequencies[symbol])
            states[lane] = frequency * (states[lane] >> 16) + slot - (ends[symbol] - frequency)
            found.append(symbol - model.greatest)
            if states[lane] < 65536:
                states[lane] = states[lane] << 16 | int.from_bytes(coded[at : at + 2], "big")
                at += 2
        assert found[-2:] == sums[2 * row : 2 * row + 2].tolist()
    assert (at, states) == (len(coded), [65536] * lanes)


# --- What others may send ---------------------------------------------------------------------------------------------


def require_canonical(data: bytes, count: int) -> bool:
    """Refused, or the very bytes that its values are encoded to."""
    try:
        sums = decode_sums(data, count)
    except MalformedMessage:
        return False
    assert encode_sums(sums) == data
    return True


@given(st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_are_refused_or_the_encoding_of_something(data: bytes, count: int) -> None:
    require_canonical(data, count)


@pytest.mark.parametrize("sums", [skellam(0.2, 300), skellam(900.0, 60), np.array([0, 0, 0, 900, 0, 0, 0, 0])])
def test_no_byte_can_be_changed_cut_or_added(sums: Sums) -> None:
    coded = encode_sums(sums)
    for at in range(len(coded)):
        for flipped in (1, 128, 255):
            other = coded[:at] + bytes([coded[at] ^ flipped]) + coded[at + 1 :]
            if require_canonical(other, len(sums)):
                assert not np.array_equal(decode_sums(other, len(sums)), sums)
        with pytest.raises(MalformedMessage):
            decode_sums(coded[:at], len(sums))
    for more in (b"\0", b"\0\0", b"\0\0\0\0", coded):
        with pytest.raises(MalformedMessage):
            decode_sums(coded + more, len(sums))


def test_values_that_the_table_has_are_not_told_beyond_it() -> None:
    """An escaped value of the table would be a second encoding."""
    sums = np.zeros(64, np.int64)
    sums[3] = 91
    coded = encode_sums(sums)
    assert coded[-4:] == (91 >> table_of(int.from_bytes(coded[:2], "big")).low_bits).to_bytes(4, "big")
    with pytest.raises(MalformedMessage):
        decode_sums(coded[:-4] + bytes(4), len(sums))


@pytest.mark.parametrize("parity", [0, 1])
def test_sums_of_one_parity_cost_what_their_halves_do_and_have_one_encoding(
    monkeypatch: pytest.MonkeyPatch, parity: int
) -> None:
    halves = skellam(3.0, 5000)
    coded = encode_sums(2 * halves + parity)
    assert len(coded) == len(encode_sums(halves))
    with pytest.raises(MalformedMessage, match="as their encoder writes them"):
        decode_sums(bytes([coded[0] | 0xC0]) + coded[1:], len(halves))

    def mixed(_: Sums) -> int:
        return 0

    monkeypatch.setattr(coder, "parity_of", mixed)
    whole = encode_sums(2 * halves + parity)
    monkeypatch.undo()
    with pytest.raises(MalformedMessage, match="as their encoder writes them"):
        decode_sums(whole, len(halves))


def test_a_state_below_its_interval_is_refused() -> None:
    coded = bytearray(encode_sums(np.zeros(10, np.int64)))
    coded[2:4] = bytes(2)
    with pytest.raises(MalformedMessage) as caught:
        decode_sums(bytes(coded), 10)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_variance_that_is_not_that_of_the_values_is_refused() -> None:
    """With the table of the next level the same values have other bytes, which a lax decoder would take."""
    sums = skellam(0.2, 100)
    level = level_of(sums.astype(np.int32))
    model = table_of(level + 1)
    states, words = pushed((sums + model.greatest).astype(np.uint16).reshape(-1, 1), model)
    other = (level + 1).to_bytes(2, "big") + states.astype(">u4").tobytes() + words.astype(">u2").tobytes()
    with pytest.raises(MalformedMessage):
        decode_sums(other, len(sums))


@pytest.mark.parametrize("count", [8192, 1 << 20, 1 << 32])
def test_a_short_message_costs_no_memory(count: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode_sums(b"\0" * 6, count)
    assert caught.value.reason is Reason.TRUNCATED


@pytest.mark.parametrize(
    "sums", [np.zeros(3), np.zeros((2, 2), np.int64), [1], np.array([GREATEST + 1]), np.zeros(2, np.uint8)]
)
def test_other_things_are_misuse(sums: Any) -> None:
    with pytest.raises(Misuse):
        encode_sums(sums)


TABLES = "51a1b9db997d5175b5d37cbcf88377ede33874195f37bf4ab5d2d77dcc04cc63"
ENCODING = "0c48bb4b1c33d3d75bd3a5718bd6ed3074bbefad1813ff43b6bba3052513d9b7"
