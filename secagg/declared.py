"""Messages declared once: a field's annotation defines its encoding, and the README's tables are generated from it.

class Receipt(Message):
    kind = MessageKind.ONE_MESSAGE_RECEIPT
    context: Annotated[bytes, fixed(32)]
    holder: Annotated[int, unsigned(2)]

``sized`` fields have lengths that both ends know from a configuration or roster (the message's *place*). Their message
is a ``MessageIn``, and ``decode`` takes the place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from typing import Any, ClassVar, Final, Generic, Self, TypeVar, cast

from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Reason, UnexpectedMessage
from secagg.identifiers import CLIENT_ID_BYTES, CONTEXT_BYTES, AttemptContext, ClientId, ServerId
from secagg.wire import MessageKind, Reader, Writer, require_spoken

Declared = type[Any]
Place = TypeVar("Place")


@dataclass(frozen=True, slots=True)
class Field:
    """Encoding of one field, and its row in the tables of messages."""

    write: Callable[[Writer, Any], object]
    read: Callable[[Reader, At], Any]
    row: str


@dataclass(frozen=True, slots=True)
class At:
    """Context of a field: its message's place, and the fields before it."""

    place: Any
    before: Mapping[str, Any]


Sizing = Callable[[Any], int]
"""Returns a length from the place of a message."""


def unsigned(size: int) -> Field:
    """Return the field of an unsigned integer with a fixed number of bytes."""
    return Field(lambda writer, value: writer.integer(value, size), lambda reader, _: reader.integer(size), f"{size}")


def fixed(size: int) -> Field:
    """Return the field of a fixed number of bytes."""
    return Field(lambda writer, value: writer.fixed(value, size), lambda reader, _: reader.fixed(size), f"{size}")


def variable(limit: int, most: Sizing | None = None) -> Field:
    """Return the field of bytes preceded by their length in 4 bytes, up to a limit; the place may lower the limit."""
    row = f"4 + at most {limit:,}"
    return Field(
        lambda writer, value: writer.variable(value, limit),
        lambda reader, at: reader.variable(most(at.place) if most else limit),
        row,
    )


MESSAGE_FORM: Final = Field(
    lambda writer, value: writer.integer(require_spoken(value, InvalidParameters), 1),
    lambda reader, _: require_spoken(reader.integer(1)),
    "1: 3",
)
"""Form of a session's messages: the first field of the message whose digest is T0."""
CLIENT: Final = Field(
    lambda writer, value: writer.fixed(value.encode(), CLIENT_ID_BYTES),
    lambda reader, _: ClientId(reader.integer(CLIENT_ID_BYTES)),
    f"{CLIENT_ID_BYTES}",
)


SERVER: Final = Field(
    lambda writer, value: writer.integer(value.index, 1),
    lambda reader, _: ServerId(_below(reader, 2, "the index of a server")),
    "1: 0 or 1",
)
"""Which of two servers."""
FLAG: Final = Field(
    lambda writer, value: writer.integer(value, 1), lambda reader, _: bool(_below(reader, 2, "no or yes")), "1: 0 or 1"
)


CONTEXT: Final = Field(
    lambda writer, value: writer.fixed(value.digest, CONTEXT_BYTES),
    lambda reader, _: AttemptContext(reader.fixed(CONTEXT_BYTES)),
    f"{CONTEXT_BYTES}",
)
"""Digest of the context that a message's sum was agreed under."""


def _below(reader: Reader, limit: int, what: str) -> int:
    if (number := reader.integer(1)) >= limit:
        raise MalformedMessage(f"{number} is not {what}", reason=Reason.NOT_CANONICAL)
    return number


def sized(size: Sizing, row: str) -> Field:
    """Return the field of bytes whose number depends on the message's place."""
    return Field(
        lambda writer, value: writer.fixed(value, len(value)), lambda reader, at: reader.fixed(size(at.place)), row
    )


def borrowed(size: Sizing, row: str) -> Field:
    """Return a ``sized`` field without copies: a view of the sent value and of the received message."""
    return Field(lambda writer, value: writer.borrowed(value), lambda reader, at: reader.view(size(at.place)), row)


def buffers(size: Sizing, row: str) -> Field:
    """Return the field of concatenated byte strings without copies; a reader gets all of them as one."""

    def write(writer: Writer, value: Sequence[bytes | memoryview]) -> None:
        for each in value:
            writer.borrowed(each)

    return Field(write, lambda reader, at: (reader.view(size(at.place)),), row)


def listed(item: Field, items: Callable[[At], Iterable[Any]], row: str) -> Field:
    """Return the field of a tuple with one item for each element of the place, which is that item's place."""

    def write(writer: Writer, value: Sequence[Any]) -> None:
        for each in value:
            item.write(writer, each)

    return Field(write, lambda reader, at: tuple(item.read(reader, At(each, {})) for each in items(at)), row)


def optional(item: Field, stands: Callable[[Any], int] | None = None, row: str | None = None) -> Field:
    """Return the field of an item or None; the place says whether it is present, or else a byte before it."""

    def write(writer: Writer, value: object) -> None:
        if stands is None:
            FLAG.write(writer, value is not None)
        if value is not None:
            item.write(writer, value)

    def read(reader: Reader, at: At) -> Any:  # noqa: ANN401 -- of the item's type
        is_there = FLAG.read(reader, at) if stands is None else stands(at.place)
        return item.read(reader, at) if is_there else None

    return Field(write, read, row or f"1: 0 for none, or 1 and {item.row}")


def choice(members: tuple[IntEnum | StrEnum, ...]) -> Field:
    """Return the field of one of a table's members, encoded as its number."""

    def read(reader: Reader, _: object) -> IntEnum | StrEnum:
        if (number := reader.integer(1)) >= len(members):
            raise MalformedMessage(f"{number} is not one of {len(members)} values", reason=Reason.NOT_CANONICAL)
        return members[number]

    row = "1: " + ", ".join(f"{number} {member.name.lower()}" for number, member in enumerate(members))
    return Field(lambda writer, value: writer.integer(members.index(value), 1), read, row)


def numbered(members: type[Enum], size: int = 1) -> Field:
    """Return the field of an enumeration's member, encoded as its value."""

    def read(reader: Reader, _: object) -> Enum:
        number = reader.integer(size)
        try:
            return members(number)
        except ValueError:
            raise MalformedMessage(f"{number} is not a {members.__name__}", reason=Reason.NOT_CANONICAL) from None

    row = f"{size}: " + ", ".join(f"{member.value} {member.name.lower()}" for member in members)
    return Field(lambda writer, value: writer.integer(value.value, size), read, row)


def repeated(item: Field, limit: int, most: Sizing | None = None, size: int = 4) -> Field:
    """Return the field of a tuple of equal items, preceded by their number; the place may lower the limit."""

    def write(writer: Writer, value: Sequence[Any]) -> None:
        if len(value) > limit:
            raise InvalidParameters(f"a field of at most {limit} items got {len(value)}")
        writer.integer(len(value), size)
        for each in value:
            item.write(writer, each)

    def read(reader: Reader, at: At) -> tuple[Any, ...]:
        closer = most(at.place) if most else limit
        if (count := reader.integer(size)) > closer:
            sentence = f"a field declares {count} items, but the limit is {closer}"
            raise MalformedMessage(sentence, reason=Reason.LENGTH_OVER_LIMIT)
        return tuple(item.read(reader, at) for _ in range(count))

    return Field(write, read, f"{size} + at most {limit:,} times {item.row}")


def encoded(declared: Declared, limit: int) -> Field:
    """Return the field of an object with its own encoding, preceded by its length in 4 bytes, in the same place."""
    is_placed = issubclass(declared, MessageIn) and not issubclass(declared, Message)

    def read(reader: Reader, at: At) -> Any:  # noqa: ANN401 -- of the declared type
        message = reader.variable(limit)
        try:
            decode = cast("Any", declared).decode
            return decode(message, at.place) if is_placed else decode(message)
        except (InvalidParameters, UnexpectedMessage) as error:
            raise MalformedMessage(f"the message is invalid: {error}", reason=Reason.NOT_CANONICAL) from None

    row = f"4 + the encoding of a {declared.__name__}"
    return Field(lambda writer, value: writer.variable(value.encode(), limit), read, row)


class MessageIn(Generic[Place]):
    """Base of frozen dataclasses whose fields are annotated with a ``Field`` and decoded in a place."""

    __slots__ = ()
    kind: ClassVar[MessageKind]

    def encode(self) -> bytes:
        writer = Writer(self.kind)
        write_fields(writer, self)
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes, place: Place) -> Self:
        """Decode the canonical encoding in a place; refuse anything else."""
        reader = Reader(message, cls.kind)
        decoded: Self = read_fields(reader, cls, place)
        reader.finish()
        return decoded


class Message(MessageIn[None]):
    """Base of messages that need no place to be decoded."""

    __slots__ = ()

    @classmethod
    def decode(cls, message: bytes, place: None = None) -> Self:
        return super().decode(message, place)


_FIELDS: Final[dict[Declared, dict[str, Field]]] = {}


def nested(declared: Declared) -> Field:
    """Return the field of another declaration: its fields in order."""
    row = ", ".join(f"{name} {field.row}" for name, field in fields_of(declared).items())
    return Field(write_fields, lambda reader, at: read_fields(reader, declared, at.place), f"({row})")


def fields_of(declared: Declared) -> dict[str, Field]:
    """Return the fields of a declaration by name, in order."""
    if declared not in _FIELDS:
        hints = dict[str, Any]()
        for base in reversed(declared.__mro__):
            hints |= inspect.get_annotations(base, eval_str=True)
        _FIELDS[declared] = {n: hint.__metadata__[0] for n, hint in hints.items() if hasattr(hint, "__metadata__")}
    return _FIELDS[declared]


def write_fields(writer: Writer, value: object) -> None:
    """Append the fields of a declared value."""
    for name, field in fields_of(type(value)).items():
        field.write(writer, getattr(value, name))


def read_fields(reader: Reader, declared: Declared, place: object = None) -> Any:  # noqa: ANN401 -- of the declared type
    """Read the fields of a declaration; values that its checks refuse are malformed."""
    values: dict[str, Any] = {}
    at = At(place, values)
    for name, field in fields_of(declared).items():
        values[name] = field.read(reader, at)
    try:
        return declared(**values)
    except (InvalidParameters, CapacityExceeded) as error:
        raise MalformedMessage(f"the message is invalid: {error}", reason=Reason.NOT_CANONICAL) from None
