"""Messages declared once: the annotation of a field says how it is encoded, and the README's tables are made from it.

class Receipt(Message):
    kind = MessageKind.ONE_MESSAGE_RECEIPT
    context: Annotated[bytes, Fixed(32)]
    holder: Annotated[int, Unsigned(2)]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, ClassVar, Final, Protocol, Self, get_type_hints

from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.wire import MessageKind, Reader, Writer


class Field(Protocol):
    """How one field is written, read, and described."""

    def write(self, writer: Writer, value: Any) -> None:  # noqa: ANN401 -- the declaration says what it is
        """Append the value."""

    def read(self, reader: Reader) -> Any:  # noqa: ANN401 -- the same
        """Read the value back."""

    def __str__(self) -> str:
        """Return its row in a table of bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Unsigned:
    """An unsigned integer of a fixed number of bytes."""

    size: int

    def write(self, writer: Writer, value: int) -> None:
        """See ``Field``."""
        writer.integer(value, self.size)

    def read(self, reader: Reader) -> int:
        """See ``Field``."""
        return reader.integer(self.size)

    def __str__(self) -> str:
        return f"{self.size}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a table's members, by its number."""

    members: tuple[IntEnum | StrEnum, ...]

    def write(self, writer: Writer, value: IntEnum | StrEnum) -> None:
        """See ``Field``."""
        writer.integer(self.members.index(value), 1)

    def read(self, reader: Reader) -> IntEnum | StrEnum:
        """See ``Field``."""
        if (number := reader.integer(1)) >= len(self.members):
            raise MalformedMessage(f"{number} is none of {len(self.members)} values", reason=Reason.NOT_CANONICAL)
        return self.members[number]

    def __str__(self) -> str:
        return "1: " + ", ".join(f"{number} {member.name.lower()}" for number, member in enumerate(self.members))


@dataclass(frozen=True, slots=True)
class Client:
    """The id of a client."""

    def write(self, writer: Writer, value: ClientId) -> None:
        """See ``Field``."""
        writer.fixed(value.encode(), CLIENT_ID_BYTES)

    def read(self, reader: Reader) -> ClientId:
        """See ``Field``."""
        return ClientId(reader.integer(CLIENT_ID_BYTES))

    def __str__(self) -> str:
        return f"{CLIENT_ID_BYTES}"


@dataclass(frozen=True, slots=True)
class Fixed:
    """Bytes of a fixed number."""

    size: int

    def write(self, writer: Writer, value: bytes) -> None:
        """See ``Field``."""
        writer.fixed(value, self.size)

    def read(self, reader: Reader) -> bytes:
        """See ``Field``."""
        return reader.fixed(self.size)

    def __str__(self) -> str:
        return f"{self.size}"


@dataclass(frozen=True, slots=True)
class Variable:
    """Bytes behind their length of 4 bytes, up to a limit."""

    limit: int

    def write(self, writer: Writer, value: bytes) -> None:
        """See ``Field``."""
        writer.variable(value, self.limit)

    def read(self, reader: Reader) -> bytes:
        """See ``Field``."""
        return reader.variable(self.limit)

    def __str__(self) -> str:
        return f"4 + at most {self.limit:,}"


@dataclass(frozen=True, slots=True)
class Repeated:
    """A tuple of fields of one kind, behind their number in 4 bytes."""

    item: Field
    limit: int

    def write(self, writer: Writer, value: Sequence[Any]) -> None:
        """See ``Field``."""
        if len(value) > self.limit:
            raise InvalidParameters(f"a field of at most {self.limit} items was given {len(value)}")
        writer.integer(len(value), 4)
        for item in value:
            self.item.write(writer, item)

    def read(self, reader: Reader) -> tuple[Any, ...]:
        """See ``Field``."""
        if (count := reader.integer(4)) > self.limit:
            sentence = f"a field declares {count} items and {self.limit} is the limit"
            raise MalformedMessage(sentence, reason=Reason.LENGTH_OVER_LIMIT)
        return tuple(self.item.read(reader) for _ in range(count))

    def __str__(self) -> str:
        return f"4 + at most {self.limit:,} times {self.item}"


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


Declared = type[Any]
_FIELDS: Final[dict[Declared, tuple[tuple[str, Field], ...]]] = {}


@dataclass(frozen=True, slots=True)
class Nested:
    """The fields of another declaration, in their order."""

    declared: Declared

    def write(self, writer: Writer, value: object) -> None:
        """See ``Field``."""
        write_fields(writer, value)

    def read(self, reader: Reader) -> Any:  # noqa: ANN401 -- of the declared type
        """See ``Field``."""
        return read_fields(reader, self.declared)

    def __str__(self) -> str:
        return f"({', '.join(f'{name} {field}' for name, field in fields_of(self.declared))})"


def fields_of(declared: Declared) -> tuple[tuple[str, Field], ...]:
    """Return the fields of a declaration, each with its name."""
    if declared not in _FIELDS:
        _FIELDS[declared] = _declared_fields(declared)
    return _FIELDS[declared]


def _declared_fields(declared: Declared) -> tuple[tuple[str, Field], ...]:
    hints = get_type_hints(declared, include_extras=True)
    return tuple((name, hint.__metadata__[0]) for name, hint in hints.items() if hasattr(hint, "__metadata__"))


def write_fields(writer: Writer, value: object) -> None:
    """Append the fields of a declared value."""
    for name, field in fields_of(type(value)):
        field.write(writer, getattr(value, name))


def read_fields(reader: Reader, declared: Declared) -> Any:  # noqa: ANN401 -- of the declared type
    """Read the fields of a declaration; what its own checks refuse is malformed."""
    values = {name: field.read(reader) for name, field in fields_of(declared)}
    try:
        return declared(**values)
    except InvalidParameters as error:
        raise MalformedMessage(f"the message is invalid: {error}", reason=Reason.NOT_CANONICAL) from None


HEADER: Final = "| field | bytes |\n|---|---|\n"


def table_of(declared: Declared) -> str:
    """Return the table of a message's bytes, as the README has it."""
    return HEADER + "".join(f"| {name} | {field} |\n" for name, field in fields_of(declared))
