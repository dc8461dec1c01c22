"""The models of the paper's experiments as the shapes of their tensors: what sizes are computed from.

The names are those of the usual implementations: a bias is a tensor whose own name begins with ``bias``. The paper
prints no architectures. CelebA's is public; its size tables pin down the other two. FEMNIST's tables count two
models: one input channel where updates are quantized or pruned, three where codebooks are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from importlib.resources import files
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from secagg.compression.byte_accounting import (
    Accounting,
    Shape,
    Shapes,
    codebook_bytes,
    plain_bytes,
    product_quantization_layout,
    pruning_layout,
    scalar_quantization_layout,
    upload_bytes,
)
from secagg.contract.layout import Layout

# --- Models -----------------------------------------------------------------------------------------------------------


def _frozen(tensors: Iterator[tuple[str, Shape]]) -> Shapes:
    return MappingProxyType(dict(tensors))


def _convolutional_net() -> Iterator[tuple[str, Shape]]:
    """List four convolutions that share one group norm, and a linear head."""
    for layer, channels in enumerate((3, 32, 32, 32)):
        yield f"layers.{layer}.weight", (32, channels, 3, 3)
        yield f"layers.{layer}.bias", (32,)
    yield from _norm("gn", 32)
    yield from _linear("fc", 288, 2)


def _recurrent_net() -> Iterator[tuple[str, Shape]]:
    """List an embedding, two LSTM layers, a linear head, and a spare one that only the byte counts show."""
    yield "embedding.weight", (9931, 300)
    for layer, width in enumerate((300, 100)):
        yield f"lstm.weight_ih_l{layer}", (400, width)
        yield f"lstm.weight_hh_l{layer}", (400, 100)
        yield f"lstm.bias_ih_l{layer}", (400,)
        yield f"lstm.bias_hh_l{layer}", (400,)
    yield from _linear("fc", 100, 2)
    yield from _linear("spare_fc", 128, 2)


def _residual_net(input_channels: int) -> Iterator[tuple[str, Shape]]:
    """List ResNet-18 with group norms and a head for 62 characters."""
    widths = (64, 64, 128, 256, 512)
    yield "conv1.weight", (widths[0], input_channels, 7, 7)
    yield from _norm("bn1", widths[0])
    for stage, (before, width) in enumerate(pairwise(widths), start=1):
        for block, inputs in enumerate((before, width)):
            name = f"layer{stage}.{block}"
            for convolution, channels in enumerate((inputs, width), start=1):
                yield f"{name}.conv{convolution}.weight", (width, channels, 3, 3)
                yield from _norm(f"{name}.bn{convolution}", width)
            if inputs != width:
                yield f"{name}.downsample.0.weight", (width, inputs, 1, 1)
                yield from _norm(f"{name}.downsample.1", width)
    yield from _linear("fc", widths[-1], 62)


def _norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


CELEBA: Final = _frozen(_convolutional_net())
SENT140: Final = _frozen(_recurrent_net())
FEMNIST_1_CHANNEL: Final = _frozen(_residual_net(1))
FEMNIST_3_CHANNEL: Final = _frozen(_residual_net(3))


# --- What is printed --------------------------------------------------------------------------------------------------


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
    text = (files("secagg.planning") / "printed.txt").read_text(encoding="utf-8")
    return tuple(_rows(text.split(f"[{table}]\n")[1].partition("\n\n")[0]))


def _rows(table: str) -> Iterator[PrintedRow]:
    (_, *heads), *rows = [line.split() for line in table.splitlines()]
    for dataset, *cells in rows:
        yield PrintedRow(dataset, dict(zip(heads[:-2], cells[:-2], strict=True)), *cells[-2:])


# --- Tables -----------------------------------------------------------------------------------------------------------

KILOBYTE: Final = 1024


class Table(StrEnum):
    """The paper's tables that hold sizes."""

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
    """Real bytes of the upload by the accounting "wire"; None for a broadcast of codebooks, which is not an upload."""

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
