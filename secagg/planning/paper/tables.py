"""The size cells of the paper's tables, computed from layer shapes and set beside the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Final

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

from .models import CELEBA, FEMNIST_1_CHANNEL, FEMNIST_3_CHANNEL, SENT140
from .printed import PrintedRow, printed_rows

KILOBYTE: Final = 1024


class Table(StrEnum):
    """The paper's tables that hold sizes."""

    SQ = "sq"
    SQ_UNWEIGHTED = "sq_unweighted"
    PRUNING = "pruning"
    PQ = "pq"
    CODEBOOKS = "codebooks"


class Quantity(StrEnum):
    """What a cell holds."""

    UPLINK_KB = "uplink_kb"
    FACTOR = "factor"
    CODEBOOKS_KB = "codebooks_kb"
    PERCENT = "percent"

    @property
    def is_size(self) -> bool:
        """Whether it is a size, as opposed to a ratio."""
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
"""Why the two cells that are printed otherwise than computed are, by table, dataset, first parameter and quantity."""


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
    """What the upload really is by the accounting "wire"; a broadcast of codebooks is no upload."""

    @property
    def computed(self) -> str:
        """The computed number as the paper prints numbers."""
        return one_decimal(self.exact)

    @property
    def match(self) -> bool:
        """Whether both are the same."""
        return self.computed == self.printed

    @property
    def explanation(self) -> str | None:
        """Why the paper prints another number, where that is known."""
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
    """Return the layout that one client uploads, or nothing where the table is of codebooks alone."""
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
