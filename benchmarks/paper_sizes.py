"""The computed size cells of the paper's tables, next to the printed ones in paper_sizes.txt.

PYTHONPATH=. python benchmarks/paper_sizes.py
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from operator import itemgetter
from pathlib import Path
from typing import Final

from secagg.cli.figures import Column, table
from secagg.compression.byte_accounting import (
    Accounting,
    Shapes,
    codebook_bytes,
    plain_bytes,
    product_quantization_layout,
    pruning_layout,
    scalar_quantization_layout,
    upload_bytes,
)
from secagg.contract.layout import Layout
from tests.harness.paper_models import CELEBA, FEMNIST_1_CHANNEL, FEMNIST_3_CHANNEL, SENT140

# --- Printed tables ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """One row: the model, the method's parameters, and two cells."""

    dataset: str
    parameters: Mapping[str, str]
    size: str
    """The size of an upload or of all codebooks, in KB."""
    ratio: str
    """The compression factor, or for codebooks the percentage of the model's size."""


def printed_rows(table: str) -> tuple[PrintedRow, ...]:
    """Read a table by its name: a head, and rows of the dataset, the parameters and the two cells."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return tuple(_rows(text.split(f"[{table}]\n")[1].partition("\n\n")[0]))


def _rows(table: str) -> Iterator[PrintedRow]:
    (_, *heads), *rows = [line.split() for line in table.splitlines()]
    for dataset, *cells in rows:
        yield PrintedRow(dataset, dict(zip(heads[:-2], cells[:-2], strict=True)), *cells[-2:])


# --- Tables -----------------------------------------------------------------------------------------------------------

KILOBYTE: Final = 1024


class Table(StrEnum):
    """The paper's tables of sizes."""

    SQ = "sq"
    SQ_UNWEIGHTED = "sq_unweighted"
    PRUNING = "pruning"
    PQ = "pq"
    CODEBOOKS = "codebooks"


class Quantity(StrEnum):
    """Quantity of a cell."""

    UPLINK_KB = "uplink_kb"
    FACTOR = "factor"
    CODEBOOKS_KB = "codebooks_kb"
    PERCENT = "percent"

    @property
    def is_size(self) -> bool:
        return self in (Quantity.UPLINK_KB, Quantity.CODEBOOKS_KB)


PRINTED: Final[Mapping[Table, tuple[PrintedRow, ...]]] = {table: printed_rows(table) for table in Table}
WHOLE_MODELS: Final[Mapping[str, Shapes]] = {"CelebA": CELEBA, "Sent140": SENT140, "FEMNIST": FEMNIST_1_CHANNEL}
"""The models of the uncompressed updates that every ratio is relative to, and of quantized and pruned ones."""
MODELS_WITH_CODEBOOKS: Final[Mapping[str, Shapes]] = {**WHOLE_MODELS, "FEMNIST": FEMNIST_3_CHANNEL}

_ROUNDED_MODEL: Final = (
    "the paper divided {rounded}, the rounded size of the model, instead of {exact} KB: that gives every factor of "
    "this block as printed, and the unweighted table prints {computed} for the same upload"
)
EXPLANATIONS: Final[Mapping[tuple[Table, str, str, Quantity], str]] = {
    (Table.SQ, "CelebA", "1", Quantity.FACTOR): _ROUNDED_MODEL.format(
        rounded="114.4 KB", exact="114.38", computed="26.5"
    ),
    (Table.SQ, "FEMNIST", "9", Quantity.FACTOR): _ROUNDED_MODEL.format(
        rounded="43.8 MB (43 800 KB)", exact="43 757.99", computed="3.5"
    ),
}
"""Explanations of the two cells that differ from the computation, by table, dataset, first parameter and quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One printed number, and the same number computed."""

    table: Table
    dataset: str
    parameters: Mapping[str, str]
    quantity: Quantity
    printed: str
    exact: Fraction
    """The computed number before it is rounded."""
    wire_bytes: int | None
    """Actual upload bytes by the accounting "wire"; None for a broadcast of codebooks."""

    @property
    def computed(self) -> str:
        return one_decimal(self.exact)

    @property
    def match(self) -> bool:
        return self.computed == self.printed

    @property
    def explanation(self) -> str | None:
        first_parameter = next(iter(self.parameters.values()))
        return EXPLANATIONS.get((self.table, self.dataset, first_parameter, self.quantity))


def cells(table: Table) -> Iterator[Cell]:
    """Compute a table: for each row its size, and its factor or percentage."""
    for row in PRINTED[table]:
        whole = plain_bytes(WHOLE_MODELS[row.dataset])
        match _upload(table, row):
            case None:
                size, wire = Fraction(_codebooks(row)), None
                quantities = {Quantity.CODEBOOKS_KB: size / KILOBYTE, Quantity.PERCENT: 100 * size / whole}
            case layout:
                size, wire = upload_bytes(layout, Accounting.PAPER), int(upload_bytes(layout, Accounting.WIRE))
                quantities = {Quantity.UPLINK_KB: size / KILOBYTE, Quantity.FACTOR: whole / size}
        for (quantity, exact), printed in zip(quantities.items(), (row.size, row.ratio), strict=True):
            yield Cell(
                table=table,
                dataset=row.dataset,
                parameters=row.parameters,
                quantity=quantity,
                printed=printed,
                exact=exact,
                wire_bytes=wire,
            )


def one_decimal(exact: Fraction) -> str:
    """Write a number with one decimal; halves go to the even digit."""
    tenths = round(exact * 10)
    return f"{tenths // 10}.{tenths % 10}"


def _upload(table: Table, row: PrintedRow) -> Layout | None:
    """Return the layout that one client uploads, or None for a table of codebooks."""
    parameters = row.parameters
    match table:
        case Table.SQ | Table.SQ_UNWEIGHTED:
            return scalar_quantization_layout(WHOLE_MODELS[row.dataset], int(parameters["p"]))
        case Table.PRUNING:
            return pruning_layout(WHOLE_MODELS[row.dataset], Fraction(parameters["sparsity"]))
        case Table.PQ:
            shapes = MODELS_WITH_CODEBOOKS[row.dataset]
            return product_quantization_layout(shapes, int(parameters["k"]), int(parameters["d"]))
        case Table.CODEBOOKS:
            return None


def _codebooks(row: PrintedRow) -> int:
    shapes = MODELS_WITH_CODEBOOKS[row.dataset]
    return codebook_bytes(shapes, int(row.parameters["k"]), int(row.parameters["d"]))


# --- The table --------------------------------------------------------------------------------------------------------

_TITLES = {
    Table.SQ: "scalar quantization, weighted aggregation",
    Table.SQ_UNWEIGHTED: "scalar quantization, unweighted aggregation",
    Table.PRUNING: "random pruning",
    Table.PQ: "product quantization",
    Table.CODEBOOKS: "codebooks that are broadcast",
}
_RANKS = {"wire bytes": 1, "": 2}


def main() -> int:
    """Print one table or all of them; fail if a cell differs and nothing explains it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", choices=[*map(str, Table)], help="table to print (default: all)")
    parser.add_argument("--json", action="store_true", help="print a list with an object for each cell")
    options = parser.parse_args()
    computed = [cell for chosen in ([Table(options.table)] if options.table else Table) for cell in cells(chosen)]
    print(_as_json(computed) if options.json else "\n".join(_as_text(computed)))
    return 0 if all(cell.match or cell.explanation for cell in computed) else 1


def _as_json(computed: Sequence[Cell]) -> str:
    return "[\n" + ",\n".join(json.dumps(_cell_row(cell)) for cell in computed) + "\n]"


def _cell_row(cell: Cell) -> dict[str, object]:
    row: dict[str, object] = {
        "table": cell.table,
        "dataset": cell.dataset,
        "parameters": {name: json.loads(value) for name, value in cell.parameters.items()},
        "quantity": cell.quantity,
        "accounting": Accounting.PAPER,
        "printed": float(cell.printed),
        "computed": float(cell.computed),
        "exact": float(cell.exact),
        "match": cell.match,
    }
    if cell.explanation:
        row["explanation"] = cell.explanation
    if cell.quantity.is_size:
        row["wire_bytes"] = cell.wire_bytes
    return row


def _as_text(computed: Sequence[Cell]) -> Iterator[str]:
    for each in dict.fromkeys(cell.table for cell in computed):
        yield from _table(each, [cell for cell in computed if cell.table == each])
        yield ""
    yield "KB are 1024 bytes by the paper's accounting; wire bytes are those of a whole payload of that layout."
    yield "The models of Sent140 and FEMNIST are not public: their layer shapes are inferred from these tables."
    sizes, ratios = _matches(computed, sizes=True), _matches(computed, sizes=False)
    yield f"{sizes} size cells and {ratios} factor or percent cells match."


def _table(which: Table, of_table: Sequence[Cell]) -> Iterator[str]:
    """Write a table, a line for each pair of a size and a ratio, and explanations of differing cells."""
    notes, rows = list[str](), list[tuple[str, dict[str, str]]]()
    ratio_head = "percent" if which is Table.CODEBOOKS else "factor"
    for size, ratio in zip(of_table[::2], of_table[1::2], strict=True):
        row = {**size.parameters, "KB": size.computed, "printed": size.printed, ratio_head: ratio.computed}
        row |= {" printed": ratio.printed, "wire bytes": "-" if size.wire_bytes is None else str(size.wire_bytes)}
        row[""] = ""
        for cell in (size, ratio):
            if not cell.match:
                notes.append(cell.explanation or "nothing explains this difference")
                row[""] += f"  {cell.quantity} differs: [{len(notes)}]"
        rows.append((size.dataset, row))
    yield f"{which}: {_TITLES[which]}"
    columns = [Column(name, itemgetter(name), rank=_RANKS.get(name, 0)) for name in rows[0][1]]
    yield from (line.rstrip() for line in table("dataset", rows, columns))
    yield from (f"[{number}] {note}" for number, note in enumerate(notes, start=1))


def _matches(computed: Iterable[Cell], *, sizes: bool) -> str:
    matches = [cell.match for cell in computed if cell.quantity.is_size is sizes]
    return f"{sum(matches)} of {len(matches)}"


if __name__ == "__main__":
    sys.exit(main())
