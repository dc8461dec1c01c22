"""Lanes modulo Mersenne primes: reduction without branches, one encoding, and streams of which any part can be made."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.protocols.two_servers.point_functions import lanes as lane_field
from secagg.protocols.two_servers.point_functions.lanes import (
    MODULI,
    LaneField,
    LaneStream,
    add,
    centre,
    reduce,
    reduce_once,
    reduce_signed,
    subtract,
    wraps,
)
from tests.harness.hidden_words import NarrowWord

KEY = bytes(range(1, 33))
FIELDS = pytest.mark.parametrize("field", [LaneField(modulus) for modulus in MODULI], ids=lambda field: field.modulus)


# --- Kernels ----------------------------------------------------------------------------------------------------------


@FIELDS
@given(data=st.data())
def test_kernels_run_on_words_that_refuse_to_be_looked_at(field: LaneField, data: st.DataObject) -> None:
    q, bits = field.modulus, field.bits
    left, right = data.draw(st.integers(0, q - 1)), data.draw(st.integers(0, q - 1))
    assert add(NarrowWord(left), NarrowWord(right), bits).revealed == (left + right) % q
    assert subtract(NarrowWord(left), NarrowWord(right), bits).revealed == (left - right) % q
    assert centre(NarrowWord(left), bits).revealed == (left if 2 * left < q else left - q) % (1 << 64)
    greatest = data.draw(st.integers(0, (1 << 63) - 1))
    value = data.draw(st.integers(0, greatest))
    assert reduce(NarrowWord(value), bits, greatest).revealed == value % q


@FIELDS
def test_a_word_below_2q_is_reduced_once(field: LaneField) -> None:
    q = field.modulus
    words = np.arange(2 * q, dtype=np.int64)
    assert np.array_equal(reduce_once(words, field.bits), words % q)
    assert np.array_equal(wraps(words, field.bits), words // q)


@FIELDS
@pytest.mark.parametrize("greatest", [0, 1, 126, 127, 253, 254, 255, 16382, (1 << 34) + 1, (1 << 53) - 1, 1 << 61])
def test_words_are_reduced_up_to_their_bound_and_at_it(field: LaneField, greatest: int) -> None:
    values = sorted({max(0, greatest - step) for step in range(300)} | {min(greatest, step) for step in range(300)})
    words = np.array(values, dtype=np.int64)
    assert np.array_equal(reduce(words, field.bits, greatest), words % field.modulus)
    signed = np.concatenate([words, -words])
    assert np.array_equal(reduce_signed(signed, field.bits, greatest), signed % field.modulus)


@FIELDS
def test_the_largest_lanes_are_added_and_subtracted_within_their_word(field: LaneField) -> None:
    last = np.full(1, field.modulus - 1, dtype=field.word)
    total = last.copy()
    field.add_into(total, last)
    assert total[0] == field.modulus - 2
    assert total.dtype == field.word
    assert subtract(np.zeros_like(last), last, field.bits)[0] == 1
    assert subtract(last, np.zeros_like(last), field.bits)[0] == field.modulus - 1


# --- Capacity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest_count", "modulus"),
    [(1, 127), (100, 127), (126, 127), (127, 8191), (8190, 8191), (8191, 131071), (131070, 131071)],
)
def test_the_modulus_is_above_the_largest_count(largest_count: int, modulus: int) -> None:
    assert LaneField.for_count(largest_count).modulus == modulus


def test_a_count_that_no_lane_can_count_is_refused() -> None:
    with pytest.raises(CapacityExceeded, match="fewer clients"):
        LaneField.for_count(131071)
    for wrong in (0, -1, 1.5):
        with pytest.raises(InvalidParameters):
            LaneField.for_count(wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("modulus", [2, 7, 128, 131070, 524287, 127.0])
def test_another_modulus_is_refused(modulus: int) -> None:
    with pytest.raises(InvalidParameters, match="127"):
        LaneField(modulus)


# --- Bytes ------------------------------------------------------------------------------------------------------------


@FIELDS
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_lanes_are_packed_at_exactly_their_bits(field: LaneField, count: int) -> None:
    lanes = stream(field).lanes(0, count)
    packed = field.pack(lanes)
    assert len(packed) == field.packed_bytes(count) == (count * field.bits + 7) // 8
    assert np.array_equal(field.unpack(packed, count), lanes)


@FIELDS
@pytest.mark.parametrize("position", [0, 3, 9])
def test_a_lane_that_is_not_below_q_is_refused(field: LaneField, position: int) -> None:
    lanes = field.zeros(10)
    lanes[position] = field.modulus
    with pytest.raises(MalformedMessage, match="not below") as caught:
        field.unpack(Ring(field.bits).pack(lanes), 10)
    assert caught.value.reason is Reason.NOT_CANONICAL
    with pytest.raises(CapacityExceeded):
        field.pack(lanes)


@FIELDS
def test_packed_lanes_have_one_length_and_no_other_bits(field: LaneField) -> None:
    packed = field.pack(field.zeros(9))
    for data, reason in (
        (packed[:-1], Reason.TRUNCATED),
        (packed + b"\0", Reason.TRAILING_BYTES),
        (packed[:-1] + b"\x80", Reason.NOT_CANONICAL),
    ):
        with pytest.raises(MalformedMessage) as caught:
            field.unpack(data, 9)
        assert caught.value.reason is reason
    with pytest.raises(MalformedMessage):
        field.unpack(packed, 1 << 50)


# --- Streams ----------------------------------------------------------------------------------------------------------


def stream(field: LaneField, key: bytes = KEY) -> LaneStream:
    return LaneStream(field, Secret("stream key", key))


def word_of_attempt(field: LaneField, key: bytes, attempt: int, position: int) -> int:
    """Encrypt the one counter block that holds the word, as the definition says."""
    size = field.word.itemsize
    block, offset = divmod(position * size, 16)
    counter = (int.from_bytes(key[16:], "big") + (attempt << 64) + block) % (1 << 128)
    encryptor = Cipher(algorithms.AES(key[:16]), modes.ECB()).encryptor()  # noqa: S305 -- one block, by definition
    made = encryptor.update(counter.to_bytes(16, "big"))
    return int.from_bytes(made[offset : offset + size], "little") & field.modulus


def lane_by_definition(field: LaneField, key: bytes, position: int) -> int:
    attempt = 0
    while (word := word_of_attempt(field, key, attempt, position)) == field.modulus:
        attempt += 1
    return word


@FIELDS
@pytest.mark.parametrize("key", [KEY, bytes(16) + b"\xff" * 16], ids=["an IV", "the counter wraps"])
def test_a_stream_is_what_the_definition_says(field: LaneField, key: bytes) -> None:
    start = 5 * 10**9 + 3
    expected = [lane_by_definition(field, key, start + step) for step in range(300)]
    assert stream(field, key).lanes(start, 300).tolist() == expected


@pytest.mark.parametrize("modulus", MODULI)
def test_lanes_that_needed_further_attempts_are_what_the_definition_says(modulus: int) -> None:
    field = LaneField(modulus)
    count = 40 * modulus if modulus < 131071 else 6 * modulus
    lanes = stream(field).lanes(0, count)
    words = np.concatenate([first_words(field, start) for start in range(0, count, 1 << 16)])[:count]
    rejected = np.flatnonzero(words == modulus)
    assert rejected.size
    assert [int(lanes[i]) for i in rejected] == [lane_by_definition(field, KEY, int(i)) for i in rejected]
    assert np.array_equal(np.delete(lanes, rejected), np.delete(words, rejected))


def first_words(field: LaneField, start: int) -> npt.NDArray[Any]:
    counter = int.from_bytes(KEY[16:], "big") + start * field.word.itemsize // 16
    encryptor = Cipher(algorithms.AES(KEY[:16]), modes.CTR(counter.to_bytes(16, "big"))).encryptor()
    made = encryptor.update(bytes(field.word.itemsize << 16))
    words: npt.NDArray[Any] = np.frombuffer(made, dtype=field.word) & field.word.type(field.modulus)
    return words


@FIELDS
@given(data=st.data())
def test_any_range_can_be_made_alone(field: LaneField, data: st.DataObject) -> None:
    whole = stream(field).lanes(0, 5000)
    start = data.draw(st.integers(0, 5000))
    count = data.draw(st.integers(0, 5000 - start))
    assert np.array_equal(stream(field).lanes(start, count), whole[start : start + count])


@FIELDS
def test_the_size_of_a_chunk_changes_nothing(field: LaneField, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stream(field).lanes(7, 3000)
    monkeypatch.setattr(lane_field, "_CHUNK_LANES", 19)
    assert np.array_equal(stream(field).lanes(7, 3000), whole)


def test_a_key_without_lanes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_field, "ATTEMPTS", 1)
    with pytest.raises(MalformedMessage, match="in 1 attempts") as caught:
        stream(LaneField(127)).lanes(0, 10_000)
    assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_stream_is_made_from_a_key_and_an_iv(size: int) -> None:
    with pytest.raises(InvalidParameters, match="32 bytes"):
        LaneStream(LaneField(127), Secret("short", bytes(size)))


@pytest.mark.parametrize(("start", "count"), [(-1, 1), (0, -1), (1 << 60, 1), (0.0, 1)])
def test_a_range_outside_the_stream_is_refused(start: int, count: int) -> None:
    with pytest.raises(InvalidParameters, match="lanes must be within"):
        stream(LaneField(127)).lanes(start, count)


def test_a_stream_cannot_be_pickled_and_ends_with_its_key() -> None:
    with Secret("stream key", KEY) as key:
        lanes = LaneStream(LaneField(127), key)
        with pytest.raises(Misuse):
            pickle.dumps(lanes)
    with pytest.raises(Misuse, match="wiped"):
        lanes.lanes(0, 1)
    with pytest.raises(Misuse):
        LaneStream(LaneField(127), KEY)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
