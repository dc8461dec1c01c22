"""Fields of rows and tables, for records and messages between servers; client messages have none."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from secagg.declared import At, Field
from secagg.errors import MalformedMessage, Reason
from secagg.wire import Reader, Writer


def joined(*items: Field) -> Field:
    """Return the field of a tuple with items of several kinds."""

    def write(writer: Writer, value: Sequence[Any]) -> None:
        for item, each in zip(items, value, strict=True):
            item.write(writer, each)

    row = ", ".join(item.row for item in items)
    return Field(write, lambda reader, at: tuple(item.read(reader, at) for item in items), row)


def mapped(key: Field, item: Field | None = None) -> Field:
    """Return the field of a table in order of its keys, preceded by its number of rows; without an item, of a set."""

    def write(writer: Writer, value: Any) -> None:  # noqa: ANN401 -- a mapping or a set
        writer.integer(len(value), 4)
        for each in sorted(value):
            key.write(writer, each)
            if item is not None:
                item.write(writer, value[each])

    def read(reader: Reader, at: At) -> Any:  # noqa: ANN401 -- as written
        rows = [(key.read(reader, at), item and item.read(reader, at)) for _ in range(reader.integer(4))]
        if any(one[0] >= other[0] for one, other in pairwise(rows)):
            raise MalformedMessage("a table is not in increasing order", reason=Reason.NOT_CANONICAL)
        return dict(rows) if item is not None else {one for one, _ in rows}

    return Field(write, read, f"4 + for each: {key.row}" + (f", {item.row}" if item else ""))
