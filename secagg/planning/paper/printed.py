"""The size columns of the paper's tables, as they are printed (``printed.txt``); nothing here is computed.

Sizes are in KB of 1024 bytes. The accuracy columns are results of experiments and stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """One row: the model, what the method was configured with, and two cells."""

    dataset: str
    parameters: Mapping[str, str]
    size: str
    """The size of an upload or of all codebooks, in KB."""
    ratio: str
    """The compression factor, or for codebooks the percentage of the model's size."""


def printed_rows(table: str) -> tuple[PrintedRow, ...]:
    """Read a table by its name: a head, and rows of the dataset, the parameters and the two cells."""
    text = (files("secagg.planning.paper") / "printed.txt").read_text(encoding="utf-8")
    return tuple(_rows(text.split(f"[{table}]\n")[1].partition("\n\n")[0]))


def _rows(table: str) -> Iterator[PrintedRow]:
    (_, *heads), *rows = [line.split() for line in table.splitlines()]
    for dataset, *cells in rows:
        yield PrintedRow(dataset, dict(zip(heads[:-2], cells[:-2], strict=True)), *cells[-2:])
