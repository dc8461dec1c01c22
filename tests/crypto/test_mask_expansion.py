"""Masks against the definition of their stream, which is rebuilt here from single AES blocks."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto import mask_expansion
from secagg.crypto.mask_expansion import (
    KEY_LIMIT_BYTES,
    MASKS_PER_PASS,
    MEASURED_BYTES,
    SEGMENT_BYTES,
    Generator,
    accumulate,
    expand,
    fastest,
    segment_count,
)
from secagg.crypto.ring import Ring, RingVector, add_into
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, Reason, SecAggError
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.planted import always

MODULI = pytest.mark.parametrize("modulus_bits", [1, 3, 8, 9, 16, 20, 32, 33, 64])
KEY_BYTES = pytest.mark.parametrize("key_bytes", [16, 32])
GENERATORS = pytest.mark.parametrize("generator", Generator)
BLOCK_BYTES = 16


def fixed_key(key_bytes: int, first: int = 0) -> Secret:
    return Secret("mask key", bytes(range(first, first + key_bytes)))


def mask_keys(count: int, seed: bytes = b"mask keys") -> list[Secret]:
    coins = InsecureSeededCoins(seed)
    return [Secret.random("mask key", 16 if index % 2 else 32, coins) for index in range(count)]


def random_vector(ring: Ring, length: int, seed: bytes = b"an accumulator") -> RingVector:
    drawn = np.frombuffer(InsecureSeededCoins(seed).draw(8 * length), dtype="<u8")
    return (drawn >> np.uint64(64 - ring.modulus_bits)).astype(ring.word)


def blocks_by_definition(key: Secret, segment: int, first_block: int, count: int) -> bytes:
    """Return blocks of a segment, each by itself: AES_K(segment as 12 bytes || block + 2 as 4 bytes)."""
    counters = b"".join(
        segment.to_bytes(12, "big") + (block + 2).to_bytes(4, "big")
        for block in range(first_block, first_block + count)
    )
    # ECB encrypts every block separately, as the definition of the stream requires.
    encryptor = Cipher(algorithms.AES(key.expose()), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(counters) + encryptor.finalize()


def stream_by_definition(key: Secret, first_segment: int, size: int) -> bytes:
    """Return the stream starting at a segment, over the segments that ``size`` bytes need."""
    per_segment = SEGMENT_BYTES // BLOCK_BYTES
    blocks = -(-size // BLOCK_BYTES)
    stream = b"".join(
        blocks_by_definition(key, first_segment + first // per_segment, 0, min(per_segment, blocks - first))
        for first in range(0, blocks, per_segment)
    )
    return stream[:size]


def mask_by_definition(key: Secret, ring: Ring, length: int, first_segment: int = 0) -> list[int]:
    stream = stream_by_definition(key, first_segment, length * ring.word_bytes)
    size, modulus = ring.word_bytes, 1 << ring.modulus_bits
    return [int.from_bytes(stream[at : at + size], "little") % modulus for at in range(0, len(stream), size)]


@KEY_BYTES
@MODULI
@GENERATORS
def test_a_mask_is_the_stream_of_its_definition(key_bytes: int, modulus_bits: int, generator: Generator) -> None:
    key, ring = fixed_key(key_bytes), Ring(modulus_bits)
    for first_segment in (0, 1, 255, 256, (1 << 15) + 3):
        mask = expand(key, ring, 67, first_segment=first_segment, generator=generator)
        assert mask.dtype == ring.word
        assert mask.tolist() == mask_by_definition(key, ring, 67, first_segment)


@KEY_BYTES
@GENERATORS
def test_a_mask_over_several_segments_is_the_stream_of_its_definition(key_bytes: int, generator: Generator) -> None:
    key, ring = fixed_key(key_bytes), Ring(64)
    length = (2 * SEGMENT_BYTES + 24) // ring.word_bytes
    mask = expand(key, ring, length, first_segment=5, generator=generator)
    assert mask.tobytes() == stream_by_definition(key, 5, length * ring.word_bytes)


@MODULI
@GENERATORS
def test_any_range_is_the_slice_of_the_whole(modulus_bits: int, generator: Generator) -> None:
    key, ring = fixed_key(16), Ring(modulus_bits)
    edge = SEGMENT_BYTES // ring.word_bytes
    whole = expand(key, ring, 2 * edge + 50, first_segment=3)
    starts = (0, 1, 7, edge - 1, edge, edge + 1, 2 * edge - 3, 2 * edge)
    for start in starts:
        for length in (0, 1, 5, 50):
            part = expand(key, ring, length, start=start, first_segment=3, generator=generator)
            assert part.tolist() == whole[start : start + length].tolist()
    across = expand(key, ring, edge + 20, start=edge - 10, first_segment=3, generator=generator)
    assert across.tobytes() == whole[edge - 10 : 2 * edge + 10].tobytes()


@pytest.mark.parametrize("modulus_bits", [1, 8, 9, 20, 64])
def test_the_number_of_segments_covers_the_vector_and_no_more(modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    edge = SEGMENT_BYTES // ring.word_bytes
    expected = {0: 0, 1: 1, edge - 1: 1, edge: 1, edge + 1: 2, 2 * edge: 2, 2 * edge + 1: 3}
    assert {length: segment_count(ring, length) for length in expected} == expected


@MODULI
@GENERATORS
def test_accumulating_is_the_signed_sum_of_the_masks(modulus_bits: int, generator: Generator) -> None:
    ring, keys = Ring(modulus_bits), mask_keys(7)
    masks = [mask_by_definition(key, ring, 40, 1) for key in keys]
    total = random_vector(ring, 40)
    expected = [
        (start + sum(added) - sum(removed)) % (1 << modulus_bits)
        for start, added, removed in zip(
            total.tolist(), zip(*masks[:4], strict=True), zip(*masks[4:], strict=True), strict=True
        )
    ]
    accumulate(total, ring, add=keys[:4], subtract=keys[4:], first_segment=1, generator=generator)
    assert total.tolist() == expected


@pytest.mark.parametrize("chosen", Generator)
def test_a_long_mask_is_made_by_the_faster_generator_and_the_same(
    monkeypatch: pytest.MonkeyPatch, chosen: Generator
) -> None:
    ring, keys, used = Ring(32), mask_keys(2), list[Generator]()
    length = MEASURED_BYTES // 2 // ring.word_bytes
    expected = ring.zeros(length)
    accumulate(expected, ring, add=keys, subtract=[], generator=Generator.CTR)
    filler = mask_expansion._filler  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    def noting(key: Secret, generator: Generator) -> Any:
        used.append(generator)
        return filler(key, generator)

    monkeypatch.setattr(mask_expansion, "_filler", noting)
    monkeypatch.setattr(mask_expansion, "fastest", always(chosen))
    total = ring.zeros(length)
    accumulate(total, ring, add=keys, subtract=[])
    assert np.array_equal(total, expected)
    assert set(used) == {chosen}


def test_the_faster_generator_is_measured_once_and_never_for_a_short_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest.cache_clear()
    ticks = list[float]()

    def clock() -> float:
        ticks.append(float(len(ticks)))
        return ticks[-1]

    monkeypatch.setattr(mask_expansion, "perf_counter", clock)
    ring = Ring(32)
    expand(fixed_key(16), ring, MEASURED_BYTES // ring.word_bytes - 1)
    assert not ticks
    for _ in range(2):
        expand(fixed_key(16), ring, MEASURED_BYTES // ring.word_bytes)
    assert len(ticks) == 2 * 3 * len(Generator)
    fastest.cache_clear()


def test_a_part_of_a_longer_vector_is_accumulated_alone() -> None:
    ring, keys = Ring(20), mask_keys(2)
    whole = random_vector(ring, 30)
    before = whole.copy()
    expected = whole[10:20].copy()
    accumulate(expected, ring, add=keys, subtract=[], start=10)
    accumulate(whole[10:20], ring, add=keys, subtract=[], start=10)
    assert whole.tolist() == [*before[:10].tolist(), *expected.tolist(), *before[20:].tolist()]


@pytest.mark.parametrize(("added", "subtracted"), [([0, 0], []), ([], [1, 1]), ([0], [0]), ([0, 1], [2, 1])])
def test_a_key_that_is_given_twice_is_refused(added: list[int], subtracted: list[int]) -> None:
    # Added and subtracted, its masks would cancel and reveal the input; added twice, reveal every lowest bit.
    ring, keys = Ring(20), mask_keys(3)
    total = random_vector(ring, 30)
    before = total.tobytes()
    copies = [Secret("a copy", key.expose()) for key in keys]
    with pytest.raises(Misuse, match="twice"):
        accumulate(total, ring, add=[keys[at] for at in added], subtract=[copies[at] for at in subtracted])
    assert total.tobytes() == before


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failure_on_the_way_leaves_no_vector_with_some_of_its_masks(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, keys = Ring(64), mask_keys(3)
    total = random_vector(ring, 2 * SEGMENT_BYTES // ring.word_bytes)

    def wipe_a_later_key(total: RingVector, words: RingVector) -> RingVector:
        keys[2].wipe()
        added: RingVector = add_into(total, words)
        return added

    monkeypatch.setattr("secagg.crypto.mask_expansion.MASKS_PER_PASS", 1)
    monkeypatch.setattr("secagg.crypto.mask_expansion.add_into", wipe_a_later_key)
    with pytest.raises(Misuse, match="wiped"):
        accumulate(total, ring, add=keys, subtract=[], threads=threads)
    assert not total.any()


def test_keys_that_can_be_read_only_once_are_not_lost() -> None:
    # If the checks consumed them, the input would be sent without its masks.
    ring, keys = Ring(20), mask_keys(3)
    expected, total = ring.zeros(30), ring.zeros(30)
    accumulate(expected, ring, add=keys[:2], subtract=keys[2:])
    added: Any = iter(keys[:2])
    subtracted: Any = iter(keys[2:])
    accumulate(total, ring, add=added, subtract=subtracted)
    assert total.tolist() == expected.tolist()


@pytest.mark.parametrize("count", [MASKS_PER_PASS - 1, MASKS_PER_PASS, MASKS_PER_PASS + 1, 2 * MASKS_PER_PASS + 3])
def test_more_keys_than_one_pass_holds_are_all_accumulated(count: int) -> None:
    ring, keys = Ring(20), mask_keys(count)
    total = ring.zeros(3)
    accumulate(total, ring, add=keys[: count // 2], subtract=keys[count // 2 :])
    added = ring.sum((expand(key, ring, 3) for key in keys[: count // 2]), 3)
    removed = ring.sum((expand(key, ring, 3) for key in keys[count // 2 :]), 3)
    assert total.tolist() == ring.subtract(added, removed).tolist()


def test_passes_and_segments_and_threads_meet_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    ring, keys = Ring(9), mask_keys(7)
    length = 3 * SEGMENT_BYTES // ring.word_bytes
    at_once = random_vector(ring, length)
    in_passes = at_once.copy()
    accumulate(at_once, ring, add=keys[:5], subtract=keys[5:], start=77)
    monkeypatch.setattr("secagg.crypto.mask_expansion.MASKS_PER_PASS", 2)
    accumulate(in_passes, ring, add=keys[:5], subtract=keys[5:], start=77, threads=3)
    assert in_passes.tobytes() == at_once.tobytes()


@pytest.mark.parametrize("modulus_bits", [1, 3, 9, 20, 33])
def test_the_result_is_reduced_also_where_the_accumulator_was_not(modulus_bits: int) -> None:
    ring, keys = Ring(modulus_bits), mask_keys(2)
    for add, subtract in ((keys, []), ([], keys), (keys[:1], keys[1:]), ([], [])):
        total = np.full(10, (1 << ring.word_bits) - 1, dtype=ring.word)
        accumulate(total, ring, add=add, subtract=subtract)
        reduced = np.full(10, (1 << modulus_bits) - 1, dtype=ring.word)
        accumulate(reduced, ring, add=add, subtract=subtract)
        assert int(total.max()) < 1 << modulus_bits
        assert total.tolist() == reduced.tolist()


@settings(max_examples=40)
@given(st.integers(0, 40_000), st.integers(0, 200_000), st.integers(1, 9))
def test_threads_divide_any_range_without_gap_or_overlap(length: int, start: int, threads: int) -> None:
    ring, key = Ring(64), fixed_key(16)
    total = ring.zeros(length)
    accumulate(total, ring, add=[key], subtract=[], start=start, threads=threads)
    assert total.tobytes() == expand(key, ring, length, start=start).tobytes()


def test_several_callers_may_use_the_same_keys_at_once() -> None:
    ring, keys = Ring(20), mask_keys(12)
    length = SEGMENT_BYTES // ring.word_bytes + 999

    def accumulated(caller: int) -> bytes:
        total = ring.zeros(length)
        accumulate(total, ring, add=keys[caller:], subtract=keys[:caller], start=caller, threads=1 + caller % 3)
        return total.tobytes()

    callers = range(len(keys))
    alone = [accumulated(caller) for caller in callers]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(accumulated, callers))
    assert together == alone


def refused(  # noqa: PLR0913 -- it has the arguments of accumulate
    error: type[SecAggError],
    total: npt.NDArray[Any],
    ring: Ring,
    *,
    add: Sequence[Secret] = (),
    subtract: Sequence[Secret] = (),
    start: int = 0,
    first_segment: int = 0,
    threads: int = 1,
) -> SecAggError:
    """Check that the call is refused with this error and that the accumulator is unchanged."""
    before = total.tobytes()
    with pytest.raises(error) as caught:
        accumulate(total, ring, add=add, subtract=subtract, start=start, first_segment=first_segment, threads=threads)
    assert total.tobytes() == before
    return caught.value


@pytest.mark.parametrize("key_bytes", [0, 1, 15, 17, 24, 31, 33, 64])
def test_a_key_of_another_length_is_refused_before_anything_is_added(key_bytes: int) -> None:
    ring = Ring(20)
    bad = Secret("mask key", bytes([7]) * key_bytes)
    error = refused(InvalidParameters, random_vector(ring, 9), ring, add=[fixed_key(16), bad])
    assert "07" * 4 not in str(error)
    refused(InvalidParameters, random_vector(ring, 9), ring, add=[fixed_key(16)], subtract=[fixed_key(32), bad])
    with pytest.raises(InvalidParameters):
        expand(bad, ring, 9)
    plain: Any = bytes(key_bytes)
    with pytest.raises(Misuse, match="Secret"):
        expand(plain, ring, 9)


def test_a_wiped_key_is_refused_before_anything_is_added() -> None:
    ring, wiped = Ring(20), fixed_key(16)
    wiped.wipe()
    good = mask_keys(MASKS_PER_PASS + 1)
    for add, subtract in (([wiped], []), ([], [wiped]), ([*good, wiped], []), (good, [wiped])):
        error = refused(Misuse, random_vector(ring, 9), ring, add=add, subtract=subtract)
        assert error.reason is Reason.ALREADY_SPENT
    with pytest.raises(Misuse):
        expand(wiped, ring, 9)


def test_an_accumulator_that_is_not_one_contiguous_writeable_dimension_of_words_is_refused() -> None:
    ring, key = Ring(20), fixed_key(16)
    for dtype in ("<u1", "<u2", "<u8", "<i4", "<f4", ">u4", "?", "O"):
        refused(Misuse, np.zeros(8, dtype=dtype), ring, add=[key])
    read_only = random_vector(ring, 8)
    read_only.flags.writeable = False
    square = random_vector(ring, 64).reshape(8, 8)
    for total in (square, square[:, 0], square[0, ::2], square[0, ::-1], read_only, np.zeros((), dtype=ring.word)):
        refused(Misuse, total, ring, add=[key])
    no_array: Any = [0, 0]
    with pytest.raises(Misuse):
        accumulate(no_array, ring, add=[], subtract=[])


@pytest.mark.parametrize("modulus_bits", [8, 9, 20, 64])
def test_the_stream_of_a_key_ends_at_its_limit(modulus_bits: int) -> None:
    ring, key = Ring(modulus_bits), fixed_key(16)
    limit, segments = KEY_LIMIT_BYTES // ring.word_bytes, KEY_LIMIT_BYTES // SEGMENT_BYTES
    last = expand(key, ring, 4, start=limit - 4)
    edge = SEGMENT_BYTES // ring.word_bytes
    assert last.tolist() == expand(key, ring, 4, start=edge - 4, first_segment=segments - 1).tolist()
    refused(InvalidParameters, random_vector(ring, 4), ring, add=[key], start=limit - 3)
    refused(InvalidParameters, random_vector(ring, 4), ring, add=[key], start=1 << 100)
    refused(InvalidParameters, random_vector(ring, 4), ring, add=[key], first_segment=segments)
    refused(InvalidParameters, random_vector(ring, 4), ring, add=[key], start=edge - 3, first_segment=segments - 1)


@pytest.mark.parametrize("length", [-1, 1 << 60, 1 << 62, 1 << 70])
def test_a_mask_of_no_possible_length_is_refused_before_it_is_allocated(length: int) -> None:
    with pytest.raises(InvalidParameters):
        expand(fixed_key(16), Ring(64), length)


@GENERATORS
@pytest.mark.parametrize("threads", [1, 3])
def test_every_keystream_buffer_is_overwritten(
    generator: Generator, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[bytearray]()

    class RecordedBuffer(bytearray):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            made.append(self)

    monkeypatch.setattr("secagg.crypto.mask_expansion.bytearray", RecordedBuffer, raising=False)
    ring = Ring(20)
    total = ring.zeros(3 * SEGMENT_BYTES // ring.word_bytes)
    accumulate(total, ring, add=mask_keys(2), subtract=mask_keys(1, b"others"), threads=threads, generator=generator)
    assert len(made) == threads
    assert all(len(buffer) >= generator.chunk_bytes for buffer in made)
    assert not any(any(buffer) for buffer in made)


def test_a_keystream_buffer_is_overwritten_also_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    overwritten = list[bool]()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    def spy(buffer: bytearray) -> None:
        overwritten.append(any(buffer))
        buffer[:] = bytes(len(buffer))

    monkeypatch.setattr("secagg.crypto.mask_expansion.reduce_into", fail)
    monkeypatch.setattr("secagg.crypto.mask_expansion.overwrite", spy)
    with pytest.raises(ZeroDivisionError):
        expand(fixed_key(16), Ring(20), 100)
    # It held the keystream when it was overwritten.
    assert overwritten == [True]


def test_more_threads_than_segments_cost_nothing() -> None:
    key = Secret("mask_key", bytes(16))
    total = Ring(8).zeros(10)
    accumulate(total, Ring(8), add=[key], subtract=[], threads=10**12)
    assert (total == expand(key, Ring(8), 10)).all()


@pytest.mark.parametrize(
    "changes",
    [
        *({"threads": 2.0}, {"start": np.int64(1)}, {"first_segment": 1.0}, {"generator": "gcm"}),
        *({"threads": 0}, {"threads": -1}, {"start": -1}, {"first_segment": -1}, {"start": -8, "first_segment": 1}),
    ],
)
def test_arguments_of_other_types_or_out_of_range_are_refused_and_nothing_is_added(changes: dict[str, Any]) -> None:
    total = Ring(8).zeros(10)
    with pytest.raises((InvalidParameters, Misuse)):
        accumulate(total, Ring(8), add=mask_keys(1), subtract=[], **changes)
    assert not total.any()
