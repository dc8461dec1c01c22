"""The ring against plain Python integers: packing, lifting, arithmetic and capacity, for every modulus."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract.decoder import capacity, capacity_between
from secagg.crypto.ring import Ring, RingVector, require_capacity, round_off
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.simulation.insecure_coins import InsecureSeededCoins

EVERY_MODULUS = range(1, 65)


@pytest.fixture(params=EVERY_MODULUS, ids=lambda bits: f"p={bits}")
def ring(request: pytest.FixtureRequest) -> Ring:
    return Ring(request.param)


AT_WORD_EDGES = pytest.mark.parametrize("ring", [1, 7, 8, 9, 16, 17, 32, 33, 63, 64], indirect=True)
"""Moduli for tests that depend on an element's word, not on its bits."""


def some_vector(ring: Ring, length: int, seed: bytes = b"a vector") -> RingVector:
    drawn = np.frombuffer(InsecureSeededCoins(seed).draw(8 * length), dtype="<u8")
    return (drawn >> np.uint64(64 - ring.modulus_bits)).astype(ring.word)


def packed_by_definition(elements: list[int], modulus_bits: int) -> bytes:
    """Pack by one big integer: the first element in the lowest bits."""
    whole = sum(element << (modulus_bits * index) for index, element in enumerate(elements))
    return whole.to_bytes((len(elements) * modulus_bits + 7) // 8, "little")


def packed_bit_by_bit(vector: RingVector, modulus_bits: int) -> bytes:
    """Pack by single bits, which is fast enough for vectors of several blocks."""
    octets = vector.astype("<u8").view(np.uint8).reshape(-1, 8)
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, :modulus_bits]
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()


@st.composite
def rings_and_elements(draw: st.DrawFn, size: int = 40) -> tuple[Ring, list[int]]:
    ring = Ring(draw(st.integers(1, 64)))
    return ring, draw(st.lists(st.integers(0, (1 << ring.modulus_bits) - 1), max_size=size))


def frozen(vector: RingVector) -> RingVector:
    vector.flags.writeable = False
    return vector


@pytest.mark.parametrize("modulus_bits", [0, -1, 65, 128, True, 8.0, 8.5, float("nan"), "8", None])
def test_a_modulus_that_is_not_an_integer_in_1_to_64_is_refused(modulus_bits: Any) -> None:
    with pytest.raises(InvalidParameters):
        Ring(modulus_bits)


def test_the_word_is_the_smallest_that_holds_an_element(ring: Ring) -> None:
    smallest = min(bits for bits in (8, 16, 32, 64) if bits >= ring.modulus_bits)
    assert (ring.word_bits, ring.word_bytes) == (smallest, smallest // 8)
    assert ring.word == np.dtype(f"<u{smallest // 8}")


def test_the_centred_range_has_exactly_one_integer_per_element(ring: Ring) -> None:
    assert ring.greatest - ring.least + 1 == 1 << ring.modulus_bits
    assert ring.least + ring.greatest == -1


def test_packing_is_exactly_p_bits_per_element(ring: Ring) -> None:
    for length in range(2 * ring.word_bits + 2):
        vector = some_vector(ring, length)
        packed = ring.pack(vector)
        assert packed == packed_by_definition(vector.tolist(), ring.modulus_bits)
        assert len(packed) == ring.packed_bytes(length)


@given(rings_and_elements())
def test_unpacking_inverts_packing(case: tuple[Ring, list[int]]) -> None:
    ring, elements = case
    packed = ring.pack(np.array(elements, dtype=ring.word))
    assert packed == packed_by_definition(elements, ring.modulus_bits)
    unpacked = ring.unpack(packed, len(elements))
    assert unpacked.tolist() == elements
    assert unpacked.dtype == ring.word


def test_each_bit_that_fills_the_last_byte_is_refused(ring: Ring) -> None:
    for length in range(1, 9):
        packed = ring.pack(some_vector(ring, length))
        for bit in range(length * ring.modulus_bits, 8 * len(packed)):
            filled = bytearray(packed)
            filled[bit // 8] |= 1 << (bit % 8)
            with pytest.raises(MalformedMessage) as caught:
                ring.unpack(filled, length)
            assert caught.value.reason is Reason.NOT_CANONICAL


def test_truncated_and_extended_bytes_are_refused(ring: Ring) -> None:
    packed = ring.pack(some_vector(ring, 17))
    for end in range(len(packed)):
        with pytest.raises(MalformedMessage) as caught:
            ring.unpack(packed[:end], 17)
        assert caught.value.reason is Reason.TRUNCATED
    for extra in (b"\0", b"\1", bytes(8), bytes(100)):
        with pytest.raises(MalformedMessage) as caught:
            ring.unpack(packed + extra, 17)
        assert caught.value.reason is Reason.TRAILING_BYTES


@AT_WORD_EDGES
def test_an_impossible_length_is_refused_before_anything_is_allocated(ring: Ring) -> None:
    for make in (ring.zeros, partial(ring.unpack, b"")):
        with pytest.raises(InvalidParameters):
            make(-1)
    # An allocation of this size would raise MemoryError instead.
    for length in (1 << 60, 1 << 80):
        with pytest.raises(MalformedMessage) as caught:
            ring.unpack(bytes(64), length)
        assert caught.value.reason is Reason.TRUNCATED


def test_an_element_that_needs_more_than_p_bits_is_not_packed() -> None:
    for modulus_bits in EVERY_MODULUS:
        ring = Ring(modulus_bits)
        if modulus_bits == ring.word_bits:
            continue
        for excess in (1 << modulus_bits, (1 << ring.word_bits) - 1):
            for position in (0, 5, 9):
                vector = some_vector(ring, 10)
                vector[position] = excess
                with pytest.raises(CapacityExceeded) as caught:
                    ring.pack(vector)
                assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE
                with pytest.raises(CapacityExceeded):
                    ring.require_vector(vector)


def foreign_arrays(ring: Ring) -> Iterator[npt.NDArray[Any]]:
    yield from (np.zeros(4, dtype=f"<u{size}") for size in (1, 2, 4, 8) if size != ring.word_bytes)
    yield np.zeros(4, dtype=f"<i{ring.word_bytes}")
    yield from (np.zeros(4, dtype=other) for other in (np.float32, np.float64, np.bool_, np.object_))
    yield np.zeros((2, 2), dtype=ring.word)
    yield np.zeros((), dtype=ring.word)
    if ring.word_bytes > 1:
        yield np.zeros(4, dtype=f">u{ring.word_bytes}")


@AT_WORD_EDGES
def test_arrays_of_another_form_are_refused_everywhere(ring: Ring) -> None:
    good = ring.zeros(4)
    uses: list[Callable[[Any], object]] = [
        *(ring.require_vector, ring.pack, ring.lift),
        *(partial(ring.add, good), lambda array: ring.add(array, good)),
        *(partial(ring.subtract, good), lambda array: ring.subtract(array, good)),
        lambda array: ring.sum([good, array], 4),
    ]
    for array in (*foreign_arrays(ring), [1, 2, 3, 4]):
        for use in uses:
            with pytest.raises(Misuse):
                use(array)


def test_a_vector_of_another_length_is_refused() -> None:
    ring = Ring(12)
    with pytest.raises(Misuse):
        ring.require_vector(ring.zeros(4), 5)
    with pytest.raises(Misuse):
        ring.add(ring.zeros(4), ring.zeros(1))
    with pytest.raises(Misuse):
        ring.subtract(ring.zeros(1), ring.zeros(4))
    with pytest.raises(Misuse):
        ring.sum([ring.zeros(4), ring.zeros(1)], 4)


@AT_WORD_EDGES
def test_strided_and_reversed_vectors_behave_as_their_copies(ring: Ring) -> None:
    whole = some_vector(ring, 90)
    for view in (whole[::2], whole[::-1], whole[80:3:-3], np.stack([whole, whole], axis=1)[:, 0]):
        copy = view.copy()
        assert ring.pack(view) == ring.pack(copy)
        assert ring.lift(view).tolist() == ring.lift(copy).tolist()
        assert ring.add(view, view).tolist() == ring.add(copy, copy).tolist()
        assert ring.subtract(copy, view).tolist() == [0] * view.size
        assert ring.sum([view, view], view.size).tolist() == ring.add(copy, copy).tolist()


@AT_WORD_EDGES
def test_no_operation_modifies_its_inputs(ring: Ring) -> None:
    left, right = frozen(some_vector(ring, 33)), frozen(some_vector(ring, 33, b"another"))
    before = left.tolist(), right.tolist()
    ring.add(left, right)
    ring.subtract(left, right)
    ring.sum([left, right], 33)
    ring.lift(left)
    ring.pack(left)
    ring.require_vector(left, 33)
    assert (left.tolist(), right.tolist()) == before


@AT_WORD_EDGES
def test_what_was_unpacked_does_not_share_memory_with_the_bytes(ring: Ring) -> None:
    for length in (ring.word_bits, 13):
        received = bytearray(ring.pack(some_vector(ring, length)))
        vector = ring.unpack(memoryview(received), length)
        received[:] = bytes(len(received))
        assert vector.tolist() == some_vector(ring, length).tolist()
        vector[:] = 0


def test_a_view_whose_items_are_not_bytes_is_refused() -> None:
    # Its len() counts items, so four items of four bytes would pass for four bytes.
    for modulus_bits in (5, 8):
        items = memoryview(bytes(4 * Ring(modulus_bits).packed_bytes(8))).cast("I")
        with pytest.raises((MalformedMessage, Misuse)):
            Ring(modulus_bits).unpack(items, 8)


def test_lengths_beside_the_edges_of_a_pack_block_lose_nothing(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.crypto.ring._PACK_BLOCK", 128)
    for length in (127, 128, 129, 255, 256, 257, 384, 385, 640 + ring.modulus_bits):
        vector = some_vector(ring, length)
        packed = ring.pack(vector)
        assert packed == packed_bit_by_bit(vector, ring.modulus_bits)
        assert ring.unpack(packed, length).tobytes() == vector.tobytes()


def test_the_extremes_of_the_range_survive_and_one_beyond_is_refused(ring: Ring) -> None:
    extremes = [ring.least, 0, ring.greatest]
    assert ring.lift(ring.from_integers(extremes)).tolist() == extremes
    for beyond in (ring.least - 1, ring.greatest + 1):
        # Below -2^63 numpy has no integer type, so that edge is a wrong form rather than a wrong value.
        with pytest.raises((CapacityExceeded, Misuse)) as caught:
            ring.from_integers([beyond])
        if -(1 << 63) <= beyond < 1 << 64:
            assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE


@given(st.data(), st.integers(1, 64))
def test_lifting_inverts_the_map_from_integers(data: st.DataObject, modulus_bits: int) -> None:
    ring = Ring(modulus_bits)
    integers = data.draw(st.lists(st.integers(ring.least, ring.greatest), max_size=20))
    vector = ring.from_integers(integers)
    assert vector.dtype == ring.word
    assert vector.tolist() == [integer % (1 << modulus_bits) for integer in integers]
    assert ring.lift(vector).tolist() == integers


def test_the_lift_ignores_bits_above_the_modulus() -> None:
    # A sum in progress is not reduced yet; lifting its words equals lifting the elements that they represent.
    for modulus_bits in (1, 3, 7, 9, 31, 33, 63):
        ring = Ring(modulus_bits)
        unreduced = np.full(1, (1 << ring.word_bits) - 1, dtype=ring.word)
        assert ring.lift(unreduced).tolist() == [-1]


@pytest.mark.parametrize("dtype", ["<i1", "<i2", "<i4", "<i8", ">i2", ">i4", ">i8", "<u1", "<u2", "<u4", "<u8", ">u8"])
def test_integers_of_any_width_and_byte_order_are_accepted(dtype: str) -> None:
    values = [0, 1, 5] + ([-1, -6] if "i" in dtype else [])
    for modulus_bits in (4, 8, 12, 20, 40, 64):
        ring = Ring(modulus_bits)
        given_array = np.array(values, dtype=dtype)
        assert ring.lift(ring.from_integers(given_array)).tolist() == values
        assert given_array.tolist() == values


@AT_WORD_EDGES
def test_no_integers_make_the_empty_vector(ring: Ring) -> None:
    empty = ring.from_integers([])
    assert (empty.size, empty.dtype) == (0, ring.word)
    assert ring.pack(empty) == b""
    assert ring.unpack(b"", 0).size == 0


@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [0.5],
        [float("nan")],
        [float("inf")],
        [-float("inf")],
        [True, False],
        [1j],
        ["1"],
        [b"1"],
        [None],
        [1 << 64],
        [-(1 << 63) - 1],
        [1 << 63, -1],
        [[1, 2], [3, 4]],
        [[1]],
        [[], []],
        [[1], [2, 3]],
        5,
        np.array([1], dtype=object),
        np.array([1], dtype="m8[s]"),
        np.zeros((0, 3), dtype=np.int64),
    ],
    ids=repr,
)
def test_what_is_not_one_dimension_of_integers_is_refused(values: Any) -> None:
    with pytest.raises(Misuse):
        Ring(64).from_integers(values)


@settings(max_examples=50)
@given(rings_and_elements(), st.integers(0, 20))
def test_a_sum_is_that_of_the_integers_modulo_2_to_the_p(case: tuple[Ring, list[int]], count: int) -> None:
    ring, elements = case
    rolled = [np.roll(np.array(elements, dtype=ring.word), turn) for turn in range(count)]
    expected = [sum(column) % (1 << ring.modulus_bits) for column in zip(*(v.tolist() for v in rolled), strict=True)]
    total = ring.sum((vector for vector in rolled), len(elements))
    assert total.tolist() == (expected if count else [0] * len(elements))
    assert total.dtype == ring.word


def test_a_sum_that_passes_the_modulus_many_times_is_reduced(ring: Ring) -> None:
    top = np.full(3, (1 << ring.modulus_bits) - 1, dtype=ring.word)
    assert ring.sum([top] * 300, 3).tolist() == [-300 % (1 << ring.modulus_bits)] * 3


def lifted_sum_of_equal_codes(ring: Ring, code: int, count: int) -> int:
    """Return what a server would read if ``count`` clients all sent one code."""
    return ring.lift(ring.sum([ring.from_integers([code])] * count, 1)).item()


def test_capacity_between_is_tight_for_every_range() -> None:
    for modulus_bits in range(1, 7):
        ring = Ring(modulus_bits)
        for least in range(ring.least, 1):
            for greatest in range(ring.greatest + 1):
                if least == greatest:
                    continue
                most = capacity_between(least, greatest, modulus_bits)
                assert most >= 1
                ends = [code for code in (least, greatest) if code]
                assert all(lifted_sum_of_equal_codes(ring, code, most) == most * code for code in ends)
                assert any(lifted_sum_of_equal_codes(ring, code, most + 1) != (most + 1) * code for code in ends)


@given(st.integers(1, 64), st.integers(0, 1 << 66), st.integers(0, 1 << 66))
def test_capacity_between_is_the_largest_count_that_stays_in_range(modulus_bits: int, below: int, above: int) -> None:
    if below == above == 0:
        below = 1
    ring = Ring(modulus_bits)
    most = capacity_between(-below, above, modulus_bits)
    assert ring.least <= -below * most
    assert above * most <= ring.greatest
    assert -below * (most + 1) < ring.least or above * (most + 1) > ring.greatest


def test_the_two_capacities_agree() -> None:
    for modulus_bits in EVERY_MODULUS:
        for bits in range(1, modulus_bits + 1):
            between = capacity_between(-(1 << (bits - 1)), (1 << (bits - 1)) - 1, modulus_bits)
            assert capacity(bits, modulus_bits) == between == 1 << (modulus_bits - bits)


@pytest.mark.parametrize(("bits", "modulus_bits"), [(0, 8), (-1, 8), (9, 8), (1, 0), (1, 65)])
def test_codes_that_do_not_fit_the_ring_have_no_capacity(bits: int, modulus_bits: int) -> None:
    with pytest.raises(InvalidParameters):
        capacity(bits, modulus_bits)


@pytest.mark.parametrize(("least", "greatest"), [(0, 0), (1, 2), (-2, -1), (3, -3)])
def test_a_range_without_zero_or_without_another_value_is_refused(least: int, greatest: int) -> None:
    with pytest.raises(InvalidParameters):
        capacity_between(least, greatest, 8)


def test_a_range_wider_than_the_ring_leaves_room_for_nobody() -> None:
    assert capacity_between(-129, 0, 8) == 0
    assert capacity_between(0, 128, 8) == 0
    with pytest.raises(CapacityExceeded):
        require_capacity(1, 0)


def test_a_total_weight_up_to_the_capacity_is_accepted_and_no_more() -> None:
    require_capacity(1, 1)
    require_capacity(1 << 40, 1 << 40)
    with pytest.raises(CapacityExceeded) as caught:
        require_capacity((1 << 40) + 1, 1 << 40)
    assert caught.value.reason is Reason.CAPACITY_EXCEEDED
    for total_weight in (0, -1):
        with pytest.raises(InvalidParameters):
            require_capacity(total_weight, 10)


@pytest.mark.parametrize("hostile", [float("nan"), 2.0, True])
def test_capacities_are_reckoned_in_integers(hostile: Any) -> None:
    for reckon in (
        lambda: capacity(hostile, 8),
        lambda: capacity_between(hostile, 2, 8),
        lambda: capacity_between(-2, hostile, 8),
        lambda: require_capacity(hostile, 3),
        lambda: Ring(8).zeros(hostile),
    ):
        with pytest.raises(InvalidParameters):
            reckon()


@given(st.integers(1, 64), st.integers(0, 70), st.binary(max_size=2), st.binary(max_size=2))
def test_the_inner_product_is_that_of_the_integers(modulus_bits: int, length: int, one: bytes, other: bytes) -> None:
    ring = Ring(modulus_bits)
    left, right = some_vector(ring, length, b"left" + one), some_vector(ring, length, b"right" + other)
    products = (a * b for a, b in zip(left.tolist(), right.tolist(), strict=True))
    assert ring.inner_product(left, right) == ring.inner_product(right, left) == sum(products) % (1 << modulus_bits)


def test_an_inner_product_of_what_does_not_belong_together_is_refused() -> None:
    ring = Ring(20)
    vector = some_vector(ring, 5)
    spoilt: list[Any] = [vector[1:], some_vector(Ring(7), 5), vector.reshape(1, 5), vector.tolist()]
    for other in spoilt:
        with pytest.raises(Misuse):
            ring.inner_product(vector, other)
    for other in spoilt[1:]:
        with pytest.raises(Misuse):
            ring.inner_product(other, vector)


@given(st.integers(1, 64), st.data())
def test_rounding_takes_the_nearest_multiple_and_halves_upwards(modulus_bits: int, data: st.DataObject) -> None:
    ring, fine_bits = Ring(modulus_bits), data.draw(st.integers(0, modulus_bits - 1))
    vector, step = some_vector(ring, 40), 1 << fine_bits
    due = [(2 * value + step) // (2 * step) * step % (1 << modulus_bits) for value in vector.tolist()]
    assert round_off(vector, modulus_bits, fine_bits).tolist() == due
