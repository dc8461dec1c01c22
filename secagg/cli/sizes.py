"""The sizes: every size and factor cell of the paper's tables, computed, next to the printed one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from secagg.compression.byte_accounting import Accounting
from secagg.planning.paper import Cell, Table, cells

from . import figures
from .figures import Column

_TITLES = {
    Table.SQ: "scalar quantization, weighted aggregation",
    Table.SQ_UNWEIGHTED: "scalar quantization, unweighted aggregation",
    Table.PRUNING: "random pruning",
    Table.PQ: "product quantization",
    Table.CODEBOOKS: "codebooks that are broadcast",
}
_RANKS = {"wire bytes": 1, "": 2}


def run_sizes(options: argparse.Namespace) -> int:
    """Print one table or all of them; fail if a cell differs and nothing explains it."""
    computed = [cell for chosen in ([Table(options.table)] if options.table else Table) for cell in cells(chosen)]
    print(_as_json(computed) if options.json else "\n".join(_as_text(computed)))
    return 0 if all(cell.match or cell.explanation for cell in computed) else 1


def _as_json(computed: Sequence[Cell]) -> str:
    return "[\n" + ",\n".join(json.dumps(_row(cell)) for cell in computed) + "\n]"


def _row(cell: Cell) -> dict[str, object]:
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
    for table in dict.fromkeys(cell.table for cell in computed):
        yield from _table(table, [cell for cell in computed if cell.table == table])
        yield ""
    yield "KB are 1024 bytes by the paper's accounting; wire bytes are those of a whole payload of that layout."
    yield "The models of Sent140 and FEMNIST are not public: their layer shapes are inferred from these tables."
    sizes, ratios = _matches(computed, sizes=True), _matches(computed, sizes=False)
    yield f"{sizes} size cells and {ratios} factor or percent cells match."


def _table(table: Table, of_table: Sequence[Cell]) -> Iterator[str]:
    """Write a table, a line for each pair of a size and a ratio, and below it what its differing cells mean."""
    notes, rows = list[str](), list[tuple[str, dict[str, str]]]()
    ratio_head = "percent" if table is Table.CODEBOOKS else "factor"
    for size, ratio in zip(of_table[::2], of_table[1::2], strict=True):
        row = {**size.parameters, "KB": size.computed, "printed": size.printed, ratio_head: ratio.computed}
        row |= {" printed": ratio.printed, "wire bytes": "-" if size.wire_bytes is None else str(size.wire_bytes)}
        row[""] = ""
        for cell in (size, ratio):
            if not cell.match:
                notes.append(cell.explanation or "nothing explains this difference")
                row[""] += f"  {cell.quantity} differs: [{len(notes)}]"
        rows.append((size.dataset, row))
    yield f"{table}: {_TITLES[table]}"
    columns = [Column(name, itemgetter(name), rank=_RANKS.get(name, 0)) for name in rows[0][1]]
    yield from (line.rstrip() for line in figures.table("dataset", rows, columns))
    yield from (f"[{number}] {note}" for number, note in enumerate(notes, start=1))


def _matches(computed: Iterable[Cell], *, sizes: bool) -> str:
    matches = [cell.match for cell in computed if cell.quantity.is_size is sizes]
    return f"{sum(matches)} of {len(matches)}"
