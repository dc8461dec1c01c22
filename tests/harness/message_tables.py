"""Tables of messages for the READMEs."""

from __future__ import annotations

from secagg.declared import Declared, fields_of


def table_of(declared: Declared) -> str:
    """Return the table of a message's bytes for the README."""
    rows = [f"| {name} | {field.row} |\n" for name, field in fields_of(declared).items()]
    return "| field | bytes |\n|---|---|\n" + "".join(rows)
