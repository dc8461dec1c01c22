"""One encoding per value: the reader returns what was written, and refuses everything else before copying it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerError, Reason, UnexpectedMessage
from secagg.wire import WIRE_VERSION, MessageKind, Reader, Writer, message_kind

KIND = 0x1234
HEADER = b"SAGG\x01\x12\x34"
VARIABLE_LIMIT = 12

Field = tuple[str, Any, int]


@st.composite
def fields(draw: st.DrawFn) -> Field:
    """Draw one field: its kind, its value, and its size or limit."""
    match draw(st.sampled_from(["integer", "fixed", "variable"])):
        case "integer":
            size = draw(st.integers(0, 9))
            return ("integer", draw(st.integers(0, (1 << (8 * size)) - 1)), size)
        case "fixed":
            data = draw(st.binary(max_size=VARIABLE_LIMIT))
            return ("fixed", data, len(data))
        case _:
            return ("variable", draw(st.binary(max_size=VARIABLE_LIMIT)), VARIABLE_LIMIT)


schedules = st.lists(fields(), max_size=6)


def write(schedule: list[Field], kind: int = KIND) -> bytes:
    writer = Writer(kind)
    for name, value, size in schedule:
        getattr(writer, name)(value, size)
    return writer.finish()


def read(message: bytes, schedule: list[Field], kind: int = KIND) -> list[Any]:
    """Read the fields of a schedule to the end, whatever their values are in this message."""
    reader = Reader(message, kind)
    values = [getattr(reader, name)(size) for name, _, size in schedule]
    reader.finish()
    return values


# --- Round trip -------------------------------------------------------------------------------------------------------


@given(schedule=schedules, kind=st.integers(0, 0xFFFF))
def test_a_written_message_is_read_back(schedule: list[Field], kind: int) -> None:
    assert read(write(schedule, kind), schedule, kind) == [value for _, value, _ in schedule]


@given(schedule=schedules, tail=st.binary(max_size=40))
def test_a_decoded_message_encodes_to_the_same_bytes(schedule: list[Field], tail: bytes) -> None:
    message = HEADER + tail
    try:
        values = read(message, schedule)
    except MalformedMessage:
        return
    again = [(name, value, size) for (name, _, size), value in zip(schedule, values, strict=True)]
    assert write(again) == message


def test_the_bytes_of_a_message_are_pinned() -> None:
    message = Writer(KIND).integer(258, 2).fixed(b"ab", 2).variable(b"xyz", 3).finish()
    assert message == HEADER + b"\x01\x02" + b"ab" + b"\x00\x00\x00\x03xyz"
    assert WIRE_VERSION == 1


def test_decoded_values_do_not_change_with_the_buffer() -> None:
    buffer: Any = bytearray(write([("fixed", b"abc", 3), ("variable", b"de", 9)]))
    values = read(buffer, [("fixed", b"", 3), ("variable", b"", 9)])
    buffer[:] = bytes(len(buffer))
    assert values == [b"abc", b"de"]
    assert [type(value) for value in values] == [bytes, bytes]


def test_the_writer_copies_its_input() -> None:
    field: Any = bytearray(b"abc")
    writer = Writer(KIND).fixed(field, 3)
    field[:] = b"xyz"
    assert writer.finish() == HEADER + b"abc"


# --- Refusals of the reader -------------------------------------------------------------------------------------------


@given(schedule=schedules)
def test_a_message_truncated_at_any_byte_is_refused(schedule: list[Field]) -> None:
    message = write(schedule)
    for length in range(len(message)):
        with pytest.raises(MalformedMessage) as caught:
            read(message[:length], schedule)
        assert caught.value.reason is Reason.TRUNCATED


@given(schedule=schedules, extension=st.binary(min_size=1, max_size=8))
def test_trailing_bytes_are_refused(schedule: list[Field], extension: bytes) -> None:
    with pytest.raises(MalformedMessage, match=f"{len(extension)} bytes follow") as caught:
        read(write(schedule) + extension, schedule)
    assert caught.value.reason is Reason.TRAILING_BYTES


READERS = pytest.mark.parametrize("read_kind", [message_kind, partial(Reader, kind=KIND)])


@READERS
@pytest.mark.parametrize("position", range(5))
def test_a_message_without_the_magic_is_refused(read_kind: Callable[[bytes], object], position: int) -> None:
    message = bytearray(write([]))
    message[position] ^= 0x20
    with pytest.raises(MalformedMessage) as caught:
        read_kind(bytes(message))
    assert caught.value.reason is (Reason.WRONG_VERSION if position == 4 else Reason.NOT_CANONICAL)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_is_refused_by_number(version: int) -> None:
    message = bytearray(write([]))
    message[4] = version
    with pytest.raises(MalformedMessage, match=f"version {version} ") as caught:
        Reader(bytes(message), KIND)
    assert caught.value.reason is Reason.WRONG_VERSION


@given(kind=st.integers(0, 0xFFFF), expected=st.integers(0, 0xFFFF))
def test_a_message_of_another_kind_is_refused(kind: int, expected: int) -> None:
    if kind == expected:
        Reader(write([], kind), expected).finish()
        return
    with pytest.raises(UnexpectedMessage) as caught:
        Reader(write([], kind), expected)
    assert caught.value.reason is Reason.WRONG_KIND
    assert caught.value.expected == f"message kind {expected}"
    assert caught.value.received == f"message kind {kind}"


@given(declared=st.integers(0, 40), limit=st.integers(0, 40))
def test_a_declared_length_over_its_limit_is_refused(declared: int, limit: int) -> None:
    reader = Reader(HEADER + declared.to_bytes(4, "big") + bytes(declared), KIND)
    if declared <= limit:
        assert reader.variable(limit) == bytes(declared)
        reader.finish()
        return
    with pytest.raises(MalformedMessage, match=f"{declared} bytes, but the limit is {limit}") as caught:
        reader.variable(limit)
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


@pytest.mark.parametrize(("limit", "reason"), [(1 << 20, Reason.LENGTH_OVER_LIMIT), ((1 << 32) - 1, Reason.TRUNCATED)])
def test_the_maximum_declared_length_allocates_nothing(limit: int, reason: Reason) -> None:
    reader = Reader(HEADER + b"\xff\xff\xff\xff" + b"few", KIND)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage) as caught:
            reader.variable(limit)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.reason is reason
    assert peak < 1 << 20


def test_refusals_have_no_culprits_because_the_reader_does_not_know_the_sender() -> None:
    for message, kind in ((b"", KIND), (write([]), KIND + 1)):
        with pytest.raises(PeerError) as caught:
            Reader(message, kind)
        assert caught.value.culprits == frozenset()


# --- Refusals of the writer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [-1, 1 << 16])
def test_a_kind_out_of_range_is_refused(kind: int) -> None:
    with pytest.raises(InvalidParameters, match=str(kind)):
        Writer(kind)


@pytest.mark.parametrize("size", [0, 1, 2, 4, 8])
def test_an_integer_that_does_not_fit_is_refused(size: int) -> None:
    greatest = (1 << (8 * size)) - 1
    assert Writer(KIND).integer(greatest, size).finish() == HEADER + b"\xff" * size
    for value in (greatest + 1, -1):
        with pytest.raises(InvalidParameters, match=f"{value} does not fit a field of {size} bytes"):
            Writer(KIND).integer(value, size)


@given(data=st.binary(max_size=9), size=st.integers(0, 9))
def test_a_fixed_field_must_have_exactly_its_size(data: bytes, size: int) -> None:
    if len(data) == size:
        assert Writer(KIND).fixed(data, size).finish() == HEADER + data
        return
    with pytest.raises(InvalidParameters, match=f"{size} bytes got {len(data)}"):
        Writer(KIND).fixed(data, size)


@given(data=st.binary(max_size=9), limit=st.integers(0, 9))
def test_a_variable_field_must_not_exceed_its_limit(data: bytes, limit: int) -> None:
    if len(data) <= limit:
        assert Writer(KIND).variable(data, limit).finish() == HEADER + len(data).to_bytes(4, "big") + data
        return
    with pytest.raises(InvalidParameters, match=f"at most {limit} bytes got {len(data)}"):
        Writer(KIND).variable(data, limit)


def test_a_refused_field_leaves_the_message_unchanged() -> None:
    writer = Writer(KIND).integer(1, 1)
    with pytest.raises(InvalidParameters):
        writer.integer(256, 1)
    with pytest.raises(InvalidParameters):
        writer.fixed(b"a", 2)
    with pytest.raises(InvalidParameters):
        writer.variable(b"ab", 1)
    assert writer.finish() == HEADER + b"\x01"


# --- Kinds ------------------------------------------------------------------------------------------------------------


@given(kind=st.sampled_from(MessageKind), body=st.binary(max_size=8))
def test_the_kind_of_a_message_can_be_read_first(kind: MessageKind, body: bytes) -> None:
    assert message_kind(write([], kind) + body) is kind


@given(kind=st.integers(0, 0xFFFF).filter(lambda kind: kind not in set(MessageKind)), body=st.binary(max_size=8))
def test_an_unknown_kind_is_refused(kind: int, body: bytes) -> None:
    with pytest.raises(MalformedMessage, match=f"{kind} is not a message kind") as caught:
        message_kind(write([], kind) + body)
    assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize("length", range(7))
def test_a_message_truncated_in_its_header_is_refused_as_truncated(length: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        message_kind(write([], MessageKind.KEY_ADVERTISEMENT)[:length])
    assert caught.value.reason is Reason.TRUNCATED


@READERS
def test_a_kind_of_another_version_is_not_judged(read_kind: Callable[[bytes], object]) -> None:
    with pytest.raises(MalformedMessage) as caught:
        read_kind(b"SAGG\x02\xff\xff")
    assert caught.value.reason is Reason.WRONG_VERSION


# --- Errors for a peer ------------------------------------------------------------------------------------------------


def test_text_is_not_a_message() -> None:
    text: Any = "SAGG"
    with pytest.raises(Misuse, match="str"):
        Reader(text, KIND)
    with pytest.raises(Misuse, match="str"):
        message_kind(text)


def test_a_noncontiguous_view_is_not_a_message() -> None:
    gaps: Any = memoryview(HEADER + HEADER)[::2]
    with pytest.raises(Misuse, match="contiguous"):
        Reader(gaps, KIND)


def test_a_field_cannot_have_a_negative_size() -> None:
    reader = Reader(HEADER + b"ab", KIND)
    reader.fixed(2)
    with pytest.raises(Misuse, match="negative"):
        reader.fixed(-2)
    reader.finish()
