"""Messages declared once: the annotation of a field says how it is encoded, and the README's tables are made from it.

class Receipt(Message):
    kind = MessageKind.ONE_MESSAGE_RECEIPT
    context: Annotated[bytes, fixed(32)]
    holder: Annotated[int, unsigned(2)]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, Self, get_type_hints

from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.wire import MessageKind, Reader, Writer

Declared = type[Any]


@dataclass(frozen=True, slots=True)
class Field:
    """How one field is written and read, and its row in a table of bytes."""

    write: Callable[[Writer, Any], object]
    read: Callable[[Reader], Any]
    row: str


def unsigned(size: int) -> Field:
    """Return an unsigned integer of a fixed number of bytes."""
    return Field(lambda writer, value: writer.integer(value, size), lambda reader: reader.integer(size), f"{size}")


def fixed(size: int) -> Field:
    """Return bytes of a fixed number."""
    return Field(lambda writer, value: writer.fixed(value, size), lambda reader: reader.fixed(size), f"{size}")


def variable(limit: int) -> Field:
    """Return bytes behind their length of 4 bytes, up to a limit."""
    row = f"4 + at most {limit:,}"
    return Field(lambda writer, value: writer.variable(value, limit), lambda reader: reader.variable(limit), row)


CLIENT: Final = Field(
    lambda writer, value: writer.fixed(value.encode(), CLIENT_ID_BYTES),
    lambda reader: ClientId(reader.integer(CLIENT_ID_BYTES)),
    f"{CLIENT_ID_BYTES}",
)
"""The id of a client."""


def choice(members: tuple[IntEnum | StrEnum, ...]) -> Field:
    """Return one of a table's members, by its number."""

    def read(reader: Reader) -> IntEnum | StrEnum:
        if (number := reader.integer(1)) >= len(members):
            raise MalformedMessage(f"{number} is none of {len(members)} values", reason=Reason.NOT_CANONICAL)
        return members[number]

    row = "1: " + ", ".join(f"{number} {member.name.lower()}" for number, member in enumerate(members))
    return Field(lambda writer, value: writer.integer(members.index(value), 1), read, row)


def repeated(item: Field, limit: int) -> Field:
    """Return a tuple of fields of one kind, behind their number in 4 bytes."""

    def write(writer: Writer, value: Sequence[Any]) -> None:
        if len(value) > limit:
            raise InvalidParameters(f"a field of at most {limit} items was given {len(value)}")
        writer.integer(len(value), 4)
        for each in value:
            item.write(writer, each)

    def read(reader: Reader) -> tuple[Any, ...]:
        if (count := reader.integer(4)) > limit:
            sentence = f"a field declares {count} items and {limit} is the limit"
            raise MalformedMessage(sentence, reason=Reason.LENGTH_OVER_LIMIT)
        return tuple(item.read(reader) for _ in range(count))

    return Field(write, read, f"4 + at most {limit:,} times {item.row}")


def encoded(declared: Declared, limit: int) -> Field:
    """Return something that encodes itself, behind its length of 4 bytes."""

    def read(reader: Reader) -> Any:  # noqa: ANN401 -- of the declared type
        try:
            return declared.decode(reader.variable(limit))
        except InvalidParameters as error:
            raise MalformedMessage(f"the message is invalid: {error}", reason=Reason.NOT_CANONICAL) from None

    row = f"4 + the encoding of a {declared.__name__}"
    return Field(lambda writer, value: writer.variable(value.encode(), limit), read, row)


class Message:
    """The base of frozen dataclasses whose fields are annotated with a ``Field``."""

    __slots__ = ()
    kind: ClassVar[MessageKind]

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        writer = Writer(self.kind)
        write_fields(writer, self)
        return writer.finish()

    @classmethod
    def decode(cls, message: bytes) -> Self:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written.
        """
        reader = Reader(message, cls.kind)
        decoded: Self = read_fields(reader, cls)
        reader.finish()
        return decoded


_FIELDS: Final[dict[Declared, dict[str, Field]]] = {}


def nested(declared: Declared) -> Field:
    """Return the fields of another declaration, in their order."""
    row = ", ".join(f"{name} {field.row}" for name, field in fields_of(declared).items())
    return Field(write_fields, lambda reader: read_fields(reader, declared), f"({row})")


def fields_of(declared: Declared) -> dict[str, Field]:
    """Return the fields of a declaration by their names, in order."""
    if declared not in _FIELDS:
        hints = get_type_hints(declared, include_extras=True)
        _FIELDS[declared] = {n: hint.__metadata__[0] for n, hint in hints.items() if hasattr(hint, "__metadata__")}
    return _FIELDS[declared]


def write_fields(writer: Writer, value: object) -> None:
    """Append the fields of a declared value."""
    for name, field in fields_of(type(value)).items():
        field.write(writer, getattr(value, name))


def read_fields(reader: Reader, declared: Declared) -> Any:  # noqa: ANN401 -- of the declared type
    """Read the fields of a declaration; what its own checks refuse is malformed."""
    values = {name: field.read(reader) for name, field in fields_of(declared).items()}
    try:
        return declared(**values)
    except InvalidParameters as error:
        raise MalformedMessage(f"the message is invalid: {error}", reason=Reason.NOT_CANONICAL) from None


def table_of(declared: Declared) -> str:
    """Return the table of a message's bytes, as the README has it."""
    rows = (f"| {name} | {field.row} |\n" for name, field in fields_of(declared).items())
    return "| field | bytes |\n|---|---|\n" + "".join(rows)
