"""Layouts, payloads and aggregates: unique encodings, refusals, and sums checked with plain integers."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import (
    MAXIMUM_CONTRIBUTORS,
    Aggregate,
    Histogram,
    IndexSegment,
    Layout,
    Payload,
    RingSegment,
    Segment,
    ideal_aggregate,
)
from secagg.contract.layout import MAXIMUM_CODEWORDS, MAXIMUM_LENGTH, MAXIMUM_SEGMENTS
from secagg.crypto.ring import RingVector
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason, UnexpectedMessage

HEADER_BYTES = 7
DIGEST_BYTES = 32
MIXED = Layout((RingSegment(5, 3), IndexSegment(5, 2), RingSegment(16, 2), IndexSegment(256, 1), RingSegment(64, 1)))

ring_segments = st.builds(RingSegment, st.integers(1, 64), st.integers(1, 9))
index_segments = st.builds(IndexSegment, st.integers(2, 70), st.integers(1, 5))
layouts = st.lists(ring_segments | index_segments, min_size=1, max_size=4).map(lambda found: Layout(tuple(found)))


def limit_of(segment: Segment) -> int:
    return 1 << segment.modulus_bits if isinstance(segment, RingSegment) else segment.codewords


def payload_of(layout: Layout, values: list[list[int]]) -> Payload:
    vectors = [
        np.array(numbers, dtype=segment.ring.word) for segment, numbers in zip(layout.segments, values, strict=True)
    ]
    return Payload(layout, tuple(vectors))


def numbers_of(payload: Payload | Aggregate) -> list[Any]:
    return [vector.tolist() for vector in payload.values]


@st.composite
def payloads(draw: st.DrawFn, layout: Layout | None = None) -> Payload:
    chosen = layout if layout is not None else draw(layouts)
    return payload_of(
        chosen,
        [
            draw(st.lists(st.integers(0, limit_of(segment) - 1), min_size=segment.length, max_size=segment.length))
            for segment in chosen.segments
        ],
    )


@st.composite
def aggregates(draw: st.DrawFn, layout: Layout | None = None) -> Aggregate:
    chosen = layout if layout is not None else draw(layouts)
    times = draw(st.lists(st.integers(1, 40) | st.integers(1, 1 << 40), min_size=1, max_size=4))
    return ideal_aggregate(chosen, [draw(payloads(chosen)) for _ in times], times)


def example_payload() -> Payload:
    return payload_of(MIXED, [[0, 17, 31], [4, 0], [0, 65535], [255], [(1 << 64) - 1]])


def example_aggregate(weight: int = 3) -> Aggregate:
    return ideal_aggregate(MIXED, [example_payload(), example_payload()], [1, weight - 1])


def histogram(*rows: list[int]) -> Histogram:
    return np.array(rows, dtype=np.uint64)


def test_a_segment_is_within_its_limits() -> None:
    widths = [(RingSegment, width) for width in (0, -1, 65)]
    counts = [(IndexSegment, count) for count in (1, 0, -2, MAXIMUM_CODEWORDS + 1)]
    for kind, size in (*widths, *counts):
        with pytest.raises(InvalidParameters):
            kind(size, 1)
    for kind, length in product((RingSegment, IndexSegment), (0, -1, MAXIMUM_LENGTH + 1)):
        with pytest.raises(InvalidParameters):
            kind(8, length)
    assert RingSegment(8, MAXIMUM_LENGTH).length == IndexSegment(8, MAXIMUM_LENGTH).length == MAXIMUM_LENGTH


@pytest.mark.parametrize(
    ("codewords", "bits"), [(2, 1), (3, 2), (4, 2), (5, 3), (255, 8), (256, 8), (257, 9), (MAXIMUM_CODEWORDS, 16)]
)
def test_an_index_has_the_fewest_bits_that_tell_the_codewords_apart(codewords: int, bits: int) -> None:
    assert IndexSegment(codewords, 5).ring.modulus_bits == bits
    assert IndexSegment(codewords, 5).payload_bytes == (5 * bits + 7) // 8


def test_a_layout_has_at_least_one_segment_and_no_more_than_the_limit() -> None:
    segment = RingSegment(8, 1)
    with pytest.raises(InvalidParameters):
        Layout(())
    with pytest.raises(InvalidParameters):
        Layout((segment,) * (MAXIMUM_SEGMENTS + 1))
    widest = Layout((segment,) * MAXIMUM_SEGMENTS)
    assert Layout.decode(widest.encode()) == widest


def test_the_bytes_of_a_payload_are_those_of_its_segments() -> None:
    assert MIXED.payload_bytes == 2 + 1 + 4 + 1 + 8
    assert len(example_payload().encode()) == HEADER_BYTES + DIGEST_BYTES + MIXED.payload_bytes


def test_a_protocol_that_only_sums_is_told_which_segment_it_cannot_sum() -> None:
    rings = Layout((RingSegment(8, 1), RingSegment(9, 2)))
    assert rings.require_rings() == rings.segments
    with pytest.raises(InvalidParameters, match="segment 1 "):
        MIXED.require_rings()
    with pytest.raises(InvalidParameters, match="segment 2 "):
        Layout((*rings.segments, IndexSegment(4, 1))).require_rings()


@given(layouts)
def test_a_layout_survives_its_encoding(layout: Layout) -> None:
    assert Layout.decode(layout.encode()) == layout
    assert Layout.decode(layout.encode()).digest == layout.digest


@given(layouts, layouts)
def test_two_layouts_share_an_encoding_and_a_digest_only_if_they_are_equal(one: Layout, other: Layout) -> None:
    assert (one.encode() == other.encode()) == (one == other)
    assert (one.digest == other.digest) == (one == other)


def test_the_encoding_and_the_digest_of_a_layout_never_change() -> None:
    layout = Layout((RingSegment(20, 1000), IndexSegment(300, 77)), b"\x5a" * 32)
    encoded = b"SAGG\x01" + b"\x00\x01" + b"\x00\x00\x00\x02"
    encoded += b"\x01" + (20).to_bytes(4, "big") + (1000).to_bytes(8, "big")
    encoded += b"\x02" + (300).to_bytes(4, "big") + (77).to_bytes(8, "big")
    encoded += b"\x5a" * 32
    assert layout.encode() == encoded
    bound = b"secagg/1/layout" + len(encoded).to_bytes(4, "big") + encoded
    assert layout.digest == hashlib.sha256(bound).digest()
    assert layout.digest.hex() == "330b07d888412e83ce9bf3bad430bb0d8dabe7606fcb95d3e105d0d482b46703"


@pytest.mark.parametrize(
    ("segments", "version"),
    [
        ([RingSegment(20, 1)], bytes(32)),
        (("ring",), bytes(32)),
        ((RingSegment(20, 1), None), bytes(32)),
        ((RingSegment(20, 1),), bytes(31)),
        ((RingSegment(20, 1),), bytes(33)),
        ((RingSegment(20, 1),), bytearray(32)),
    ],
)
def test_a_layout_of_something_else_is_not_made(segments: Any, version: Any) -> None:
    with pytest.raises(Misuse):
        Layout(segments, version)


@given(payloads())
def test_a_payload_survives_its_encoding(payload: Payload) -> None:
    encoded = payload.encode()
    decoded = Payload.decode(encoded, payload.layout)
    assert numbers_of(decoded) == numbers_of(payload)
    assert decoded.encode() == encoded


def test_the_encoding_of_a_payload_is_its_values_packed_one_segment_after_another() -> None:
    layout = Layout((RingSegment(5, 3), IndexSegment(5, 2)))
    packed = (1 | 2 << 5 | 31 << 10).to_bytes(2, "little") + (4 | 3 << 3).to_bytes(1, "little")
    encoded = payload_of(layout, [[1, 2, 31], [4, 3]]).encode()
    assert encoded == b"SAGG\x01\x00\x02" + layout.digest + packed


def test_the_repr_of_a_payload_and_an_aggregate_shows_no_value() -> None:
    layout = Layout((RingSegment(32, 2), IndexSegment(60000, 1)))
    payload = payload_of(layout, [[123456789, 987654321], [54321]])
    for shown in (repr(payload), str(payload), repr(ideal_aggregate(layout, [payload]))):
        assert not [number for number in ("123456789", "987654321", "54321", "array") if number in shown]


@pytest.mark.parametrize("count", [0, 1, 4, 6])
def test_a_payload_and_an_aggregate_need_one_value_for_each_segment(count: int) -> None:
    one_more = np.zeros(1, dtype=np.uint8)
    with pytest.raises(Misuse):
        Payload(MIXED, (*example_payload().values, one_more)[:count])
    with pytest.raises(Misuse):
        Aggregate(MIXED, (*example_aggregate().values, one_more)[:count], 3)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(2, dtype=np.uint8),
        np.zeros(4, dtype=np.uint8),
        np.zeros(3, dtype=np.uint16),
        np.zeros(3, dtype=np.int8),
        np.zeros(3, dtype=np.float64),
        np.zeros(3, dtype=np.bool_),
        np.zeros((3, 1), dtype=np.uint8),
        np.ma.masked_array(np.array([255, 1, 1], dtype=np.uint8), mask=[True, False, False]),
        [0, 0, 0],
    ],
    ids=repr,
)
def test_a_payload_of_another_dtype_or_length_is_refused(vector: Any) -> None:
    for segment in (RingSegment(5, 3), IndexSegment(20, 3)):
        with pytest.raises(Misuse):
            Payload(Layout((segment,)), (vector,))


def test_a_ring_element_that_is_not_below_its_modulus_is_refused() -> None:
    with pytest.raises(CapacityExceeded) as caught:
        payload_of(Layout((RingSegment(5, 3),)), [[0, 32, 0]])
    assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE


@pytest.mark.parametrize("codewords", [2, 3, 5, 6, 7, 100, 255, 256, 257, 40000])
def test_an_index_that_is_not_below_the_codewords_is_refused(codewords: int) -> None:
    layout = Layout((IndexSegment(codewords, 3),))
    assert payload_of(layout, [[0, codewords - 1, 0]]).encode()
    for position in range(3):
        indices = [0, 0, 0]
        indices[position] = codewords
        if codewords >= 1 << (8 * layout.segments[0].ring.word_bytes):
            continue
        with pytest.raises(CapacityExceeded) as caught:
            payload_of(layout, [indices])
        assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE


@pytest.mark.parametrize("codewords", [3, 5, 6, 7, 100, 255, 257, 40000])
def test_an_index_over_the_codebook_is_malformed_on_the_wire(codewords: int) -> None:
    layout = Layout((RingSegment(8, 1), IndexSegment(codewords, 3)))
    good = bytearray(payload_of(layout, [[1], [0, 0, 0]]).encode())
    bits = (codewords - 1).bit_length()
    for index in (codewords, (1 << bits) - 1):
        for position in range(3):
            bad = good.copy()
            bad[HEADER_BYTES + DIGEST_BYTES + 1 :] = (index << (bits * position)).to_bytes(
                (3 * bits + 7) // 8, "little"
            )
            with pytest.raises(MalformedMessage) as caught:
                Payload.decode(bytes(bad), layout)
            assert caught.value.reason is Reason.NOT_CANONICAL


@given(aggregates())
def test_an_aggregate_survives_its_encoding(aggregate: Aggregate) -> None:
    encoded = aggregate.encode()
    decoded = Aggregate.decode(encoded, aggregate.layout)
    assert numbers_of(decoded) == numbers_of(aggregate)
    assert [value.dtype for value in decoded.values] == [value.dtype for value in aggregate.values]
    assert decoded.contributors == aggregate.contributors
    assert decoded.encode() == encoded


def test_the_counters_of_a_histogram_have_exactly_the_bits_of_the_number_of_contributors() -> None:
    layout = Layout((IndexSegment(3, 1),))
    aggregate = Aggregate(layout, (histogram([1, 0, 6]),), 7)
    expected = b"SAGG\x01\x00\x03" + layout.digest + (7).to_bytes(8, "big")
    assert aggregate.encode() == expected + (1 | 6 << 6).to_bytes(2, "little")


@pytest.mark.parametrize("contributors", [0, -1, MAXIMUM_CONTRIBUTORS + 1])
def test_a_number_of_contributors_that_cannot_be_is_refused(contributors: int) -> None:
    layout = Layout((RingSegment(8, 1),))
    values = (np.zeros(1, dtype=np.uint8),)
    odd: Any
    for odd in (1.0, 1.5, True):
        with pytest.raises(Misuse):
            Aggregate(layout, values, odd)
    with pytest.raises(InvalidParameters):
        Aggregate(layout, values, contributors)
    encoded = Aggregate(layout, values, MAXIMUM_CONTRIBUTORS).encode()
    if contributors >= 0:
        start = HEADER_BYTES + DIGEST_BYTES
        with pytest.raises(MalformedMessage) as caught:
            Aggregate.decode(encoded[:start] + contributors.to_bytes(8, "big") + encoded[start + 8 :], layout)
        assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 1, 0], [0, 3, 0]],
        [[3, 0, 0], [0, 3, 1]],
        [[0, 0, 0], [0, 0, 3]],
        [[3, 3, 0], [0, 0, 0]],
        # These rows add up to 3 modulo 2^64, and to 3 in total where rows are mixed up.
        [[(1 << 64) - 1, 4, 0], [3, 0, 0]],
        [[1 << 63, 1 << 63, 3], [3, 0, 0]],
        [[4, (1 << 64) - 2, 1], [1, 1, 1]],
    ],
)
def test_a_histogram_that_does_not_count_every_contributor_once_is_refused(rows: list[list[int]]) -> None:
    layout = Layout((IndexSegment(3, 2),))
    with pytest.raises(CapacityExceeded) as caught:
        Aggregate(layout, (histogram(*rows),), 3)
    assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE


def test_counters_cannot_wrap_at_the_greatest_number_of_contributors_and_of_codewords() -> None:
    layout = Layout((IndexSegment(MAXIMUM_CODEWORDS, 1),))
    row = np.zeros((1, MAXIMUM_CODEWORDS), dtype=np.uint64)
    row[0, 0] = MAXIMUM_CONTRIBUTORS
    aggregate = Aggregate(layout, (row,), MAXIMUM_CONTRIBUTORS)
    assert Aggregate.decode(aggregate.encode(), layout).encode() == aggregate.encode()
    with pytest.raises(CapacityExceeded):
        Aggregate(layout, (np.full_like(row, MAXIMUM_CONTRIBUTORS),), MAXIMUM_CONTRIBUTORS)
    # Counters are checked one by one and then added in 64 bits, so no sum of checked counters may wrap.
    assert MAXIMUM_CODEWORDS * MAXIMUM_CONTRIBUTORS < 1 << 64


def test_an_impossible_histogram_is_malformed_on_the_wire() -> None:
    layout = Layout((IndexSegment(2, 1),))
    good = Aggregate(layout, (histogram([1, 2]),), 3).encode()
    for counters in range(16):
        message = good[:-1] + bytes([counters])
        if (counters & 3) + (counters >> 2) == 3:
            assert Aggregate.decode(message, layout).encode() == message
            continue
        with pytest.raises(MalformedMessage) as caught:
            Aggregate.decode(message, layout)
        assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize(
    "value",
    [
        histogram([3, 0, 0]),
        histogram([3, 0], [3, 0]),
        histogram([3, 0, 0], [3, 0, 0], [3, 0, 0]),
        histogram([3, 0], [3, 0], [3, 0]),
        np.array([3, 0, 0, 3, 0, 0], dtype=np.uint64),
        np.array([[3, 0, 0], [3, 0, 0]], dtype=np.int64),
        np.array([[3, 0, 0], [3, 0, 0]], dtype=np.uint32),
        np.array([[3, 0, 0], [3, 0, 0]], dtype=np.float64),
        np.array([[3, 0, 0], [3, 0, 0]], dtype=">u8"),
        np.ma.masked_array(histogram([3, 0, 0], [3, 0, 0]), mask=[[True] * 3, [False] * 3]),
        [[3, 0, 0], [3, 0, 0]],
    ],
    ids=repr,
)
def test_a_histogram_of_another_dtype_or_shape_is_refused(value: Any) -> None:
    with pytest.raises(Misuse, match="must be uint64"):
        Aggregate(Layout((IndexSegment(3, 2),)), (value,), 3)


def test_a_ring_sum_of_another_form_is_refused() -> None:
    layout = Layout((RingSegment(5, 2),))
    for value in (np.zeros(3, np.uint8), np.zeros(2, np.uint16), np.zeros((2, 1), np.uint8)):
        with pytest.raises(Misuse):
            Aggregate(layout, (value,), 1)
    with pytest.raises(CapacityExceeded):
        Aggregate(layout, (np.array([0, 32], dtype=np.uint8),), 1)


def decoded(message: bytes, kind: str) -> Layout | Payload | Aggregate:
    match kind:
        case "layout":
            return Layout.decode(message)
        case "payload":
            return Payload.decode(message, MIXED)
        case _:
            return Aggregate.decode(message, MIXED)


MESSAGES = {"layout": MIXED.encode(), "payload": example_payload().encode(), "aggregate": example_aggregate().encode()}
KINDS = pytest.mark.parametrize("kind", MESSAGES)


CHANGES = [
    pytest.param((*(1 << bit for bit in range(8)), 0x7F, 0xFF), id="each bit, and all"),
    pytest.param(range(1, 256), id="every change", marks=pytest.mark.long),
]


@pytest.mark.parametrize("changes", CHANGES)
@KINDS
def test_changing_any_byte_is_refused_or_gives_another_value_with_that_encoding(
    kind: str, changes: Sequence[int]
) -> None:
    message = MESSAGES[kind]
    refusals = 0
    for position in range(len(message)):
        for change in changes:
            changed = bytearray(message)
            changed[position] ^= change
            try:
                value = decoded(bytes(changed), kind)
            except (MalformedMessage, UnexpectedMessage):
                refusals += 1
                continue
            assert value.encode() == bytes(changed)
    # The header, and the digest if there is one, admit no change.
    fixed = HEADER_BYTES + (0 if kind == "layout" else DIGEST_BYTES)
    assert refusals >= len(changes) * fixed


@pytest.mark.parametrize(("kind", "decode"), [("payload", Payload.decode), ("aggregate", Aggregate.decode)])
def test_a_message_for_another_layout_is_refused(kind: str, decode: Callable[[bytes, Layout], object]) -> None:
    # The same number of bytes, so that only the digest distinguishes them.
    alike = Layout((*MIXED.segments[:-1], RingSegment(32, 2)))
    assert alike.payload_bytes == MIXED.payload_bytes
    with pytest.raises(MalformedMessage) as caught:
        decode(MESSAGES[kind], alike)
    assert caught.value.reason is Reason.LAYOUT_MISMATCH


def layout_message(count: int, *segments: tuple[int, ...]) -> bytes:
    parts = [b"SAGG\x01\x00\x01", count.to_bytes(4, "big")]
    for tag, first, second, *fine_bits in segments:
        parts += [tag.to_bytes(1, "big"), first.to_bytes(4, "big"), second.to_bytes(8, "big"), bytes(fine_bits)]
    return b"".join(parts)


@pytest.mark.parametrize("count", [2, MAXIMUM_SEGMENTS, MAXIMUM_SEGMENTS + 1, 1 << 31, (1 << 32) - 1])
def test_more_segments_than_are_there_or_can_be_are_refused(count: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        Layout.decode(layout_message(count, (1, 8, 1)))
    assert caught.value.reason is (Reason.LENGTH_OVER_LIMIT if count > MAXIMUM_SEGMENTS else Reason.TRUNCATED)


@pytest.mark.parametrize("tag", [0, 5, 255])
def test_an_unknown_segment_is_refused(tag: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        Layout.decode(layout_message(1, (tag, 8, 1)))
    assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize(
    "segment",
    [
        (1, 0, 1),
        (1, 65, 1),
        (1, 8, 0),
        (1, 8, MAXIMUM_LENGTH + 1),
        (2, 0, 1),
        (2, 1, 1),
        (2, MAXIMUM_CODEWORDS + 1, 1),
        (2, 8, 0),
        (2, 8, MAXIMUM_LENGTH + 1),
        (3, 0, 1, 1),
        (3, 8, 1, 0),
        (3, 8, 1, 57),
        (3, 8, 0, 1),
        (4, 1, 1),
        (4, 2, 0),
        (4, 2, MAXIMUM_LENGTH + 1),
    ],
)
def test_a_segment_outside_its_limits_is_malformed_on_the_wire(segment: tuple[int, ...]) -> None:
    for message in (layout_message(1, segment), layout_message(2, (1, 8, 1), segment)):
        with pytest.raises(MalformedMessage) as caught:
            Layout.decode(message)
        assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_payload_of_a_huge_layout_is_refused_before_anything_is_allocated() -> None:
    huge = Layout((RingSegment(64, MAXIMUM_LENGTH), IndexSegment(MAXIMUM_CODEWORDS, MAXIMUM_LENGTH)))
    payload = MESSAGES["payload"][:HEADER_BYTES] + huge.digest + bytes(64)
    count = MAXIMUM_CONTRIBUTORS.to_bytes(8, "big")
    aggregate = MESSAGES["aggregate"][:HEADER_BYTES] + huge.digest + count + bytes(64)
    for message, kind in ((payload, Payload), (aggregate, Aggregate)):
        with pytest.raises(MalformedMessage) as caught:
            kind.decode(message, huge)
        assert caught.value.reason is Reason.TRUNCATED


def expected_ring_sum(vectors: list[RingVector], times: list[int], modulus_bits: int) -> list[int]:
    columns = zip(*(vector.tolist() for vector in vectors), strict=True)
    return [
        sum(number * weight for number, weight in zip(column, times, strict=True)) % (1 << modulus_bits)
        for column in columns
    ]


def expected_histogram(vectors: list[RingVector], times: list[int], codewords: int) -> list[list[int]]:
    columns = zip(*(vector.tolist() for vector in vectors), strict=True)
    rows = list[list[int]]()
    for column in columns:
        row = [0] * codewords
        for index, weight in zip(column, times, strict=True):
            row[index] += weight
        rows.append(row)
    return rows


@given(st.data(), layouts)
def test_the_ideal_aggregate_is_what_plain_integers_give(data: st.DataObject, layout: Layout) -> None:
    # Numbers beyond every narrow modulus, and at it, so that reducing one too early or too late would show.
    some = st.integers(1, 5) | st.integers(1, 1 << 40) | st.sampled_from([1 << 8, 1 << 16, (1 << 32) + 1])
    times = data.draw(st.lists(some, min_size=1, max_size=5))
    clients = [data.draw(payloads(layout)) for _ in times]
    aggregate = ideal_aggregate(layout, clients, times)
    assert aggregate.contributors == sum(times)
    for position, segment in enumerate(layout.segments):
        vectors = [client.values[position] for client in clients]
        expected = (
            expected_ring_sum(vectors, times, segment.modulus_bits)
            if isinstance(segment, RingSegment)
            else expected_histogram(vectors, times, segment.codewords)
        )
        assert aggregate.values[position].tolist() == expected


def test_by_default_every_payload_is_of_one_client() -> None:
    clients = [example_payload() for _ in range(4)]
    assert numbers_of(ideal_aggregate(MIXED, clients)) == numbers_of(ideal_aggregate(MIXED, clients, [1] * 4))
    assert ideal_aggregate(MIXED, clients).contributors == 4


def test_what_was_changed_after_its_check_is_not_encoded() -> None:
    layout = Layout((IndexSegment(3, 2),))
    payload = payload_of(layout, [[0, 1]])
    aggregate = ideal_aggregate(layout, [payload])
    for changed in (payload, aggregate):
        changed.values[0][0] = 3
        with pytest.raises(CapacityExceeded):
            changed.encode()


def test_aggregating_leaves_the_payloads_as_they_were() -> None:
    payload = example_payload()
    before = numbers_of(payload)
    ideal_aggregate(MIXED, [payload, payload], [3, 70_000])
    assert numbers_of(payload) == before


@pytest.mark.parametrize(
    "times", [[], [1], [1, 2, 3], [0, 1], [1, -1], [MAXIMUM_CONTRIBUTORS, 1], [1 << 64, 1], [1, (1 << 64) - 1]]
)
def test_numbers_of_clients_that_do_not_fit_are_refused(times: list[int]) -> None:
    for layout in (MIXED, Layout((RingSegment(64, 1),)), Layout((IndexSegment(4, 1),))):
        payload = payload_of(layout, [[0] * segment.length for segment in layout.segments])
        with pytest.raises(InvalidParameters):
            ideal_aggregate(layout, [payload, payload], times)
        floats: Any = [2.0, 1]
        with pytest.raises(Misuse):
            ideal_aggregate(layout, [payload, payload], floats)
        with pytest.raises(InvalidParameters):
            ideal_aggregate(layout, [])


def test_a_payload_of_another_layout_is_not_aggregated() -> None:
    layout = Layout((RingSegment(8, 1),))
    alike = Layout((IndexSegment(256, 1),))
    with pytest.raises(Misuse):
        ideal_aggregate(layout, [payload_of(layout, [[1]]), payload_of(alike, [[1]])])


@given(modulus_bits=st.integers(1, 64), length=st.integers(1, 40), data=st.data())
def test_masked_values_travel_in_whole_steps(modulus_bits: int, length: int, data: st.DataObject) -> None:
    segment = RingSegment(modulus_bits, length, data.draw(st.integers(0, 64 - modulus_bits)))
    ring, step = segment.ring, 1 << segment.fine_bits
    values = data.draw(st.lists(st.integers(0, (1 << ring.modulus_bits) - 1), min_size=length, max_size=length))
    masked = np.array(values, ring.word)
    sent = segment.pack_sent(masked)
    assert len(sent) == segment.payload_bytes == -(-length * modulus_bits // 8)
    due = [(2 * value + step) // (2 * step) * step % (1 << ring.modulus_bits) for value in values]
    assert segment.unpack_sent(sent).tolist() == segment.rounded(masked).tolist() == due
    assert segment.unpack_sent(sent).dtype == ring.word
    roundings = data.draw(st.integers(0, 1 << 40))
    assert segment.unbiased(masked, roundings).tolist() == [
        (value - roundings // 2) % (1 << ring.modulus_bits) if segment.fine_bits else value for value in values
    ]


def test_layouts_that_differ_in_fine_bits_alone_have_two_digests_and_come_back() -> None:
    layouts = [Layout((RingSegment(8, 3, fine_bits), IndexSegment(4, 2))) for fine_bits in (0, 1, 56)]
    assert len({layout.digest for layout in layouts}) == 3
    assert [Layout.decode(layout.encode()) for layout in layouts] == layouts


@pytest.mark.parametrize(("modulus_bits", "fine_bits"), [(8, -1), (8, 57), (64, 1), (8, True), (8, 1.0)])
def test_fine_bits_without_room_in_a_word_are_refused(modulus_bits: int, fine_bits: Any) -> None:
    with pytest.raises(InvalidParameters, match="fine_bits must be in 0"):
        RingSegment(modulus_bits, 3, fine_bits)


def test_a_protocol_without_rounding_says_what_to_choose() -> None:
    Layout((RingSegment(8, 3), IndexSegment(4, 2))).require_whole_steps()
    with pytest.raises(InvalidParameters, match=r"segment 1 has 4 fine bits.*pairwise, enclave or one-message"):
        Layout((RingSegment(8, 3), RingSegment(8, 3, 4))).require_whole_steps()


def test_payloads_and_aggregates_hold_fine_steps() -> None:
    layout = Layout((RingSegment(4, 3, 8),))
    payload = payload_of(layout, [[4095, 0, 256]])
    assert numbers_of(Payload.decode(payload.encode(), layout)) == [[4095, 0, 256]]
    assert len(payload.encode()) == HEADER_BYTES + DIGEST_BYTES + 5
    assert layout.payload_bytes == 2
    total = ideal_aggregate(layout, [payload, payload], [1, 3])
    assert numbers_of(total) == [[4092, 0, 1024]]
    assert numbers_of(Aggregate.decode(total.encode(), layout)) == [[4092, 0, 1024]]
