"""The paper's size cells, their rules, and the two accountings of a layout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.compression.byte_accounting import (
    Accounting,
    Shapes,
    codebook_bytes,
    is_bias,
    parameter_count,
    plain_bytes,
    product_quantization_layout,
    pruning_layout,
    scalar_quantization_layout,
    upload_bytes,
)
from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from tests.harness.paper_models import CELEBA, FEMNIST_1_CHANNEL, FEMNIST_3_CHANNEL, SENT140

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import paper_sizes
from paper_sizes import EXPLANATIONS, MODELS_WITH_CODEBOOKS, PRINTED, WHOLE_MODELS, Quantity, Table, cells, one_decimal

ROWS = {Table.SQ: 41, Table.SQ_UNWEIGHTED: 41, Table.PRUNING: 54, Table.PQ: 36, Table.CODEBOOKS: 12}


@pytest.mark.parametrize("table", Table)
def test_every_size_cell_is_computed_as_it_is_printed(table: Table) -> None:
    sizes = [cell for cell in cells(table) if cell.quantity.is_size]
    assert len(sizes) == ROWS[table]
    assert [cell for cell in sizes if not cell.match] == []


@pytest.mark.parametrize("table", Table)
def test_every_ratio_but_the_two_explained_ones_is_computed_as_it_is_printed(table: Table) -> None:
    ratios = [cell for cell in cells(table) if not cell.quantity.is_size]
    assert len(ratios) == ROWS[table]
    differing = [(cell.dataset, cell.printed, cell.computed) for cell in ratios if not cell.match]
    assert differing == ([("CelebA", "26.6", "26.5"), ("FEMNIST", "3.6", "3.5")] if table is Table.SQ else [])
    assert all((cell.explanation is None) is cell.match for cell in ratios)
    assert len(EXPLANATIONS) == 2


@pytest.mark.parametrize(("dataset", "rounded_kb"), [("CelebA", Fraction("114.4")), ("FEMNIST", Fraction(43_800))])
def test_dividing_the_rounded_model_gives_every_factor_of_the_two_blocks(dataset: str, rounded_kb: Fraction) -> None:
    block = [cell for cell in cells(Table.SQ) if cell.dataset == dataset]
    sizes = [cell for cell in block if cell.quantity is Quantity.UPLINK_KB]
    factors = [cell for cell in block if cell.quantity is Quantity.FACTOR]
    assert [one_decimal(rounded_kb / size.exact) for size in sizes] == [factor.printed for factor in factors]


@pytest.mark.parametrize(
    ("tenths", "printed"), [("4.25", "4.2"), ("4.35", "4.4"), ("4.250001", "4.3"), ("0.04", "0.0"), ("9.96", "10.0")]
)
def test_halves_are_rounded_to_the_even_digit(tenths: str, printed: str) -> None:
    assert one_decimal(Fraction(tenths)) == printed


def without_spare_head(shapes: Shapes) -> Shapes:
    return {name: shape for name, shape in shapes.items() if not name.startswith("spare_fc")}


def sizes_that_match(table: Table, size: Callable[[str, dict[str, str]], Fraction]) -> int:
    rows = PRINTED[table]
    return sum(one_decimal(size(row.dataset, dict(row.parameters)) / 1024) == row.size for row in rows)


def quantized(models: dict[str, Shapes]) -> Callable[[str, dict[str, str]], Fraction]:
    return lambda dataset, parameters: upload_bytes(
        scalar_quantization_layout(models[dataset], int(parameters["p"])), Accounting.PAPER
    )


def indexed(models: dict[str, Shapes], *, with_codebooks: bool) -> Callable[[str, dict[str, str]], Fraction]:
    def size(dataset: str, parameters: dict[str, str]) -> Fraction:
        shapes, codewords, block = models[dataset], int(parameters["k"]), int(parameters["d"])
        upload = upload_bytes(product_quantization_layout(shapes, codewords, block), Accounting.PAPER)
        return upload + with_codebooks * codebook_bytes(shapes, codewords, block)

    return size


def test_other_readings_of_the_paper_miss_cells() -> None:
    whole, with_codebooks = dict(WHOLE_MODELS), dict(MODELS_WITH_CODEBOOKS)
    three_channels = {**whole, "FEMNIST": FEMNIST_3_CHANNEL}
    one_head = {**whole, "Sent140": without_spare_head(SENT140)}
    assert sizes_that_match(Table.SQ, quantized(whole)) == 41
    assert sizes_that_match(Table.SQ, quantized(three_channels)) == 30
    assert sizes_that_match(Table.SQ, quantized(one_head)) == 28
    assert sizes_that_match(Table.PQ, indexed(with_codebooks, with_codebooks=False)) == 36
    assert sizes_that_match(Table.PQ, indexed(with_codebooks, with_codebooks=True)) == 0
    assert sizes_that_match(Table.PQ, indexed(whole, with_codebooks=False)) == 28


def test_leaving_norm_weights_whole_as_the_paper_says_misses_cells() -> None:
    def size(dataset: str, parameters: dict[str, str]) -> Fraction:
        renamed = {f"{name}.bias" if len(shape) == 1 else name: shape for name, shape in WHOLE_MODELS[dataset].items()}
        return upload_bytes(pruning_layout(renamed, Fraction(parameters["sparsity"])), Accounting.PAPER)

    assert sizes_that_match(Table.PRUNING, size) == 21


@pytest.mark.parametrize(
    ("shapes", "matrices", "vectors"),
    [
        (CELEBA, 29_088, 194),
        (SENT140, 3_219_756, 1_604),
        (FEMNIST_1_CHANNEL, 11_192_384, 9_662),
        (FEMNIST_3_CHANNEL, 11_198_656, 9_662),
    ],
    ids=["CelebA", "Sent140", "FEMNIST, 1 channel", "FEMNIST, 3 channels"],
)
def test_the_models_have_the_papers_numbers_of_parameters(shapes: Shapes, matrices: int, vectors: int) -> None:
    counted = [prod(shape) for shape in shapes.values() if len(shape) > 1]
    assert (sum(counted), parameter_count(shapes)) == (matrices, matrices + vectors)
    assert plain_bytes(shapes) == 4 * (matrices + vectors)


def test_biases_are_told_from_weights_by_their_own_names() -> None:
    assert [is_bias(name) for name in ("fc.bias", "lstm.bias_hh_l1", "bias")] == [True] * 3
    assert [is_bias(name) for name in ("fc.weight", "bias_net.weight", "lstm.weight_hh_l1", "weight")] == [False] * 4


SMALL = {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "norm.weight": (10,), "head.weight": (1, 4)}


def test_scalar_quantization_puts_matrices_in_the_narrow_ring_and_the_rest_in_a_wide_one() -> None:
    segments = scalar_quantization_layout(SMALL, 5).segments
    assert segments == (RingSegment(5, 108), RingSegment(32, 4), RingSegment(32, 10), RingSegment(5, 4))


def test_pruning_keeps_biases_whole_and_prunes_norms() -> None:
    segments = pruning_layout(SMALL, Fraction("0.29")).segments
    assert [segment.length for segment in segments] == [108 - 31, 4, 10 - 2, 4 - 1]
    assert {type(segment) for segment in segments} == {RingSegment}


def test_tensors_that_are_too_small_for_a_codebook_are_plain() -> None:
    segments = product_quantization_layout(SMALL, 64, 9).segments
    assert segments == (IndexSegment(2, 12), RingSegment(32, 4), RingSegment(32, 10), RingSegment(32, 4))
    assert codebook_bytes(SMALL, 64, 9) == 4 * 2 * 9


segments = st.builds(RingSegment, st.integers(1, 64), st.integers(1, 50)) | st.builds(
    IndexSegment, st.integers(2, 70), st.integers(1, 50)
)
layouts = st.lists(segments, min_size=1, max_size=5).map(lambda drawn: Layout(tuple(drawn)))


@given(layouts)
def test_the_wire_accounting_is_the_length_of_an_encoded_payload(layout: Layout) -> None:
    payload = Payload(layout, tuple(segment.ring.zeros(segment.length) for segment in layout.segments))
    assert upload_bytes(layout, Accounting.WIRE) == len(payload.encode())


@given(layouts)
def test_the_paper_accounting_is_the_bits_of_the_values_alone(layout: Layout) -> None:
    bits = 0
    for segment in layout.segments:
        match segment:
            case RingSegment(modulus_bits, length):
                bits += modulus_bits * length
            case IndexSegment(codewords, blocks):
                bits += int(np.ceil(np.log2(codewords))) * blocks
    assert upload_bytes(layout, Accounting.PAPER) == Fraction(bits, 8)
    padding = upload_bytes(layout, Accounting.WIRE) - upload_bytes(layout, Accounting.PAPER) - 39
    assert 0 <= padding < len(layout.segments)


# --- The table that the script prints ---------------------------------------------------------------------------------

Print = Callable[..., tuple[int, str]]


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Print:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["paper_sizes.py", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        return paper_sizes.main(), capsys.readouterr().out

    return run


def test_the_cells_are_counted_and_the_two_differing_ones_explained(show: Print) -> None:
    status, text = show()
    assert status == 0
    assert "184 of 184 size cells and 182 of 184 factor or percent cells match." in text
    assert text.count("factor differs") == text.count("the rounded size of the model") == 2


def test_json_has_an_object_for_each_cell(show: Print) -> None:
    rows: list[dict[str, Any]] = json.loads(show("--json")[1])
    assert len(rows) == 368
    assert sum(row["match"] for row in rows) == 366
    assert all(row["match"] == (row["printed"] == row["computed"]) for row in rows)
    assert [row["parameters"] for row in rows if "explanation" in row] == [{"p": 1}, {"p": 9}]


def test_a_difference_that_nothing_explains_is_a_failure(show: Print, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = PRINTED[Table.PRUNING]
    monkeypatch.setitem(PRINTED, Table.PRUNING, (replace(first, size="103.1"), *others))
    status, text = show("--table", "pruning")
    assert status == 1
    assert "uplink_kb differs" in text
    assert "53 of 54 size cells" in text
