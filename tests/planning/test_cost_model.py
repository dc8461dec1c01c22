"""The cost model, compared with published tables and with real sessions and messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main
from secagg.compression.byte_accounting import Accounting, Shapes, codebook_bytes, upload_bytes
from secagg.compression.common import PublicStream
from secagg.compression.peak import KnownLengths, PeakCode, norm_levels
from secagg.compression.rotation import JoinedRotation, Sketch
from secagg.contract import IndexSegment
from secagg.errors import SecAggError
from secagg.parameters import Suite
from secagg.planning.costs import INDEXED, Comparison, Option, PlanRequest, Scheme, compare, shapes_of_blocks
from secagg.session.registry import find, names
from tests.harness.paper_models import CELEBA, FEMNIST_3_CHANNEL

BLOCKS = 1 << 14
"""Enough for 4096 codewords with four blocks each; a multiple of eight, so bits are whole bytes."""


def request_of(blocks: int = BLOCKS, block_size: int = 4, **options: Any) -> PlanRequest:
    return PlanRequest(shapes=shapes_of_blocks(blocks, block_size), block_size=block_size, **options)


def the_only(comparison: Comparison, protocol: str, scheme: Scheme, variant: str = "") -> Option:
    (found,) = (
        option
        for option in comparison.options
        if (option.protocol, option.scheme, option.costs.variant) == (protocol, scheme, variant)
    )
    return found


def work_of(option: Option) -> tuple[int, int]:
    return option.costs.server.cipher_calls, option.costs.server.word_operations


def block_bits(option: Option, blocks: int = BLOCKS) -> float:
    return 8 * option.costs.payload_bytes / blocks


# Codewords, clients; bits per block of the explicit share without its last lane, bits of the tree, and the tree's
# depth; bits of an index; cipher calls of the tree if lanes took exactly their bits in memory.
HISTOGRAMS = [
    (8, 100, 49, 56, 0, 3, 1),
    (16, 100, 105, 112, 0, 4, 1),
    (32, 100, 217, 224, 0, 5, 2),
    (64, 100, 441, 354, 1, 6, 6),
    (128, 100, 889, 484, 2, 7, 14),
    (256, 100, 1785, 614, 3, 8, 30),
    (1024, 100, 7161, 874, 5, 10, 126),
    (4096, 100, 28665, 1134, 7, 12, 510),
    (8, 100_000, 119, 136, 0, 3, 2),
    (16, 100_000, 255, 266, 1, 4, 6),
    (32, 100_000, 527, 396, 2, 5, 14),
    (64, 100_000, 1071, 526, 3, 6, 30),
    (128, 100_000, 2159, 656, 4, 7, 62),
    (256, 100_000, 4335, 786, 5, 8, 126),
    (1024, 100_000, 17391, 1046, 7, 10, 510),
    (4096, 100_000, 69615, 1306, 9, 12, 2046),
]


@pytest.mark.usefixtures("without_one_message")
@pytest.mark.parametrize("row", HISTOGRAMS, ids=str)
def test_histograms_have_the_bits_of_the_published_table(row: tuple[int, ...]) -> None:
    codewords, clients, explicit, tree, depth, index, calls = row
    comparison = compare(request_of(codewords=codewords, clients=clients))
    flat = the_only(comparison, "two-servers", Scheme.PRODUCT, "depth 0")
    assert block_bits(flat) == explicit
    deeper = f"depth {depth}"
    if explicit <= tree:
        # A tree is only offered if it is shorter.
        assert comparison.shortest("two-servers", Scheme.PRODUCT) == flat
    else:
        option = the_only(comparison, "two-servers", Scheme.PRODUCT, deeper)
        assert 0 <= block_bits(option) - tree < 16 / BLOCKS
        # The table counts a full evaluation with lanes of exact width, without roots.
        assert option.costs.server.cipher_calls >= calls * BLOCKS * clients
    assert block_bits(the_only(comparison, "enclave", Scheme.PRODUCT)) == index


def test_a_count_of_all_clients_fits_if_their_number_is_a_power_of_two() -> None:
    comparison = compare(request_of(codewords=8, clients=128, bits=8))
    assert block_bits(the_only(comparison, "two-servers", Scheme.PRODUCT, "depth 0")) == 7 * 8
    # The sum of 128 values of 8 bits takes seven more bits.
    assert block_bits(the_only(comparison, "pairwise", Scheme.SCALAR)) == 4 * 15
    # 8191 is the smallest prime that counts to 128.
    checked = the_only(comparison, "two-servers", Scheme.PRODUCT, "depth 0, checked")
    assert block_bits(checked) == 7 * 13


# Values per block; bits per block for values of 32 bits, and of 8, 4 and 2 bits, for 100 and for 100,000 clients.
MASKED = [
    (4, 128, (60, 100), (44, 84), (36, 76)),
    (8, 256, (120, 200), (88, 168), (72, 152)),
    (9, 288, (135, 225), (99, 189), (81, 171)),
    (18, 576, (270, 450), (198, 378), (162, 342)),
]


@pytest.mark.usefixtures("without_one_message")
@pytest.mark.parametrize("row", MASKED, ids=str)
def test_masked_values_have_the_bits_of_the_published_table(row: tuple[Any, ...]) -> None:
    block_size, plain, *by_width = row
    for place, clients in enumerate((100, 100_000)):
        for bits, expected in zip((8, 4, 2), by_width, strict=True):
            comparison = compare(request_of(block_size=block_size, clients=clients, bits=bits, codewords=32))
            for protocol in ("pairwise", "enclave"):
                assert block_bits(the_only(comparison, protocol, Scheme.FIXED_POINT)) == plain
                assert block_bits(the_only(comparison, protocol, Scheme.SCALAR)) == expected[place]


# Scheme, protocol, and one client's megabytes for 100,000 blocks of four values, with 32 codewords and 100 clients.
TOTALS = [
    (Scheme.FIXED_POINT, "pairwise", "", 1.60),
    (Scheme.PRODUCT, "two-servers", "depth 0", 2.71),
    (Scheme.SCALAR, "pairwise", "", 0.55),
    (Scheme.PRODUCT, "enclave", "", 0.0625),
]


@pytest.mark.parametrize(("scheme", "protocol", "variant", "megabytes"), TOTALS)
def test_a_client_sends_the_published_total(scheme: Scheme, protocol: str, variant: str, megabytes: float) -> None:
    comparison = compare(request_of(blocks=100_000, codewords=32, bits=4))
    option = the_only(comparison, protocol, scheme, variant)
    assert option.costs.payload_bytes / 1e6 == pytest.approx(megabytes, abs=0.005 if megabytes > 0.1 else 0)
    assert 0 < option.costs.up_bytes - option.costs.payload_bytes < 7000


Report = Callable[..., dict[str, Any]]


@pytest.fixture
def report_of(tmp_path: Path) -> Report:
    def run(*options: str) -> dict[str, Any]:
        assert main(["round", "--json", str(tmp_path / "report.json"), *options]) == 0
        report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
        return report

    return run


def assert_received(planned: int, report: dict[str, Any]) -> None:
    """Tolerance for the evidence of a simulated enclave and the name of the task."""
    assert planned < report["bytes received by a client"] < planned + 100


@pytest.mark.parametrize("suite", ["classic", "hybrid"])
@pytest.mark.parametrize(("compression", "scheme"), [("pq", Scheme.PRODUCT), ("pruning", Scheme.PRUNING)])
def test_an_upload_to_an_enclave_has_the_predicted_length(
    report_of: Report, suite: str, compression: str, scheme: Scheme
) -> None:
    report = report_of(
        *("--protocol", "enclave", "--clients", "3", "--dimension", "14400", "--drop", "0"),
        *("--compression", compression, "--suite", suite, *(("--codewords", "16") if compression == "pq" else ())),
    )
    shapes: Shapes = {"matrix": (100, 144), "biases": (16,)}
    request = PlanRequest(shapes=shapes, codewords=16, clients=3, suite=Suite[suite.upper()])
    option = the_only(compare(request), "enclave", scheme)
    assert option.costs.up_bytes == report["bytes sent by a client"]
    assert option.costs.between_bytes == report["stages"][0]["bytes between"] / 3
    assert_received(option.down_bytes - request.public_bytes(scheme), report)


@pytest.mark.parametrize("suite", ["classic", "hybrid"])
@pytest.mark.parametrize("mode", ["checked", "unchecked"])
@pytest.mark.parametrize("depth", [0, None])
def test_a_round_of_two_servers_sends_the_predicted_bytes(
    report_of: Report, suite: str, mode: str, depth: int | None
) -> None:
    # More clients than fit in one batch, and enough codewords for a tree to be shorter.
    report = report_of(
        *("--protocol", "two-servers", "--clients", "19", "--dimension", "4608", "--drop", "0", "--codewords", "64"),
        *("--suite", suite),
        *(() if mode == "checked" else ("--unchecked",)),
        *(() if depth is None else ("--depth", "0")),
    )
    shapes: Shapes = {"matrix": (32, 144), "biases": (16,)}
    request = PlanRequest(shapes=shapes, codewords=64, clients=19, suite=Suite[suite.upper()])
    options = [
        option
        for option in compare(request).options
        if (option.protocol, option.scheme) == ("two-servers", Scheme.PRODUCT)
    ]
    (option,) = (
        option
        for option in options
        if option.costs.variant.endswith("checked") == (mode == "checked")
        and option.costs.variant.startswith("depth 0") == (depth == 0)
    )
    assert option.costs.up_bytes == report["bytes sent by a client"]
    # The start of the round and the frames are added.
    assert report["stages"][0]["bytes between"] / 19 == pytest.approx(option.costs.between_bytes, rel=0.05, abs=300)
    assert_received(option.down_bytes - request.public_bytes(Scheme.PRODUCT), report)
    assert option.costs.payload_bytes < option.costs.up_bytes < option.costs.payload_bytes + 8000


@pytest.mark.parametrize("scheme", [Scheme.SCALAR, Scheme.PRUNING, Scheme.PRODUCT])
def test_layouts_of_a_model_equal_those_of_the_papers_tables(scheme: Scheme) -> None:
    request = PlanRequest(shapes=FEMNIST_3_CHANNEL, codewords=64, block_size=18)
    wire = upload_bytes(request.layout(scheme), Accounting.WIRE)
    option = the_only(compare(request), "enclave", scheme)
    assert option.costs.payload_bytes == wire - 39
    if scheme is Scheme.PRODUCT:
        assert option.costs.payload_bytes == 506_975 - 39
        assert request.public_bytes(scheme) == codebook_bytes(FEMNIST_3_CHANNEL, 64, 18)


def test_clients_receive_scales_codebooks_and_seeds_but_nothing_for_fixed_point() -> None:
    request = PlanRequest(shapes=CELEBA, codewords=16, block_size=9)
    matrices, entries = 5, 4 * 16 * 9 + 16 * 9
    told = {scheme: request.public_bytes(scheme) for scheme in Scheme}
    assert told == {
        Scheme.FIXED_POINT: 0,
        Scheme.SCALAR: 4 * matrices,
        Scheme.DITHERED: 4 * matrices,
        Scheme.PRUNING: 32,
        Scheme.PRODUCT: 4 * entries,
        # A seed, and the norm of the previous round's update.
        Scheme.PEAK: 36,
        Scheme.SKETCH: 36,
    }
    for option in compare(request).options:
        if option.protocol == "two-servers":
            # Two stamped offers, a key and a signature; then the configuration with its layout, and a standing.
            assert 300 < option.down_bytes - told[option.scheme] - 2 * (7 + 32 + 8 + 1 + 32 + 64) < 550
    entry = find("pairwise")
    assert entry.costs is not None
    difference = {
        scheme: the_only(compare(request), "pairwise", scheme).down_bytes
        - next(iter(entry.costs(request.layout(scheme), 100, Suite.CLASSIC, dropped=10))).down_bytes
        for scheme in (Scheme.FIXED_POINT, Scheme.SCALAR)
    }
    assert difference == {scheme: told[scheme] for scheme in difference}


def test_values_rounded_under_the_mask_cost_their_whole_steps() -> None:
    """They take as many bits as quantized values if a protocol rounds; one message needs no guard bits."""
    comparison = compare(request_of(clients=100, bits=8, block_size=9))
    for protocol in ("pairwise", "enclave"):
        assert block_bits(the_only(comparison, protocol, Scheme.DITHERED)) == 9 * 15
    rounded, exact = (the_only(comparison, "one-message", scheme) for scheme in (Scheme.DITHERED, Scheme.SCALAR))
    assert rounded.costs.up_bytes < exact.costs.up_bytes
    for protocol in ("two-servers", "lightsecagg"):
        assert comparison.shortest(protocol, Scheme.DITHERED) is None
        assert any(f"{protocol}, dithered quantization: " in sentence for sentence in comparison.left_out)


def test_work_is_that_of_the_busiest_machine_for_all_clients() -> None:
    shapes: Shapes = {"matrix": (1600, 4), "bias": (40,)}
    comparison = compare(PlanRequest(shapes=shapes, codewords=32, block_size=4))
    # 1600 indices of 5 bits are 1000 bytes or 63 cipher blocks; a plain word has 32 bits.
    counted = the_only(comparison, "enclave", Scheme.PRODUCT)
    assert work_of(counted) == (100 * (63 + 10), 100 * (1600 * 32 + 40))
    masked = the_only(comparison, "enclave", Scheme.SCALAR)
    # Values of 15 bits are stored in words of 16.
    assert work_of(masked) == (100 * (800 + 10), 100 * 6440)
    flat = the_only(comparison, "two-servers", Scheme.PRODUCT, "depth 0")
    # 31 lanes of one 8-bit word each.
    assert work_of(flat) == (100 * (1600 * 31 // 16 + 10), 100 * (1600 * 32 + 40))


def test_tensors_without_a_codebook_are_sent_plain_by_every_protocol() -> None:
    request = PlanRequest(shapes=CELEBA, codewords=16, block_size=9)
    plain = 4 * 32 + 2 * 32 + 2
    comparison = compare(request)
    indices = sum(cut.blocks * 4 for cut in request.tensors) // 8
    option = the_only(comparison, "enclave", Scheme.PRODUCT)
    assert option.costs.payload_bytes == indices + 4 * plain
    flat = comparison.shortest("two-servers", Scheme.PRODUCT)
    assert flat is not None
    assert (
        flat.costs.payload_bytes
        == sum(cut.blocks * (cut.codewords - 1) * 7 for cut in request.tensors) // 8 + 4 * plain
    )


def test_small_tensors_have_fewer_codewords_and_trees_of_other_depths() -> None:
    comparison = compare(PlanRequest(shapes=CELEBA, codewords=64, clients=100_000))
    variants = {
        option.costs.variant
        for option in comparison.options
        if (option.protocol, option.scheme) == ("two-servers", Scheme.PRODUCT)
    }
    assert variants == {"depth 0", "depths 0 to 3", "depth 0, checked", "depths 0 to 3, checked"}


@pytest.mark.usefixtures("without_one_message")
@pytest.mark.parametrize("clients", [20, 100, 126])
@pytest.mark.parametrize("shapes", [FEMNIST_3_CHANNEL, CELEBA], ids=["resnet", "celeba"])
def test_with_two_servers_a_peak_code_is_ten_times_cheaper_than_product_quantization(
    shapes: Shapes, clients: int
) -> None:
    comparison = compare(PlanRequest(shapes=shapes, codewords=64, block_size=9, clients=clients))
    peak, product = (
        next(o for o in comparison.options if o.scheme is scheme and o.costs.variant.endswith(" checked"))
        for scheme in (Scheme.PEAK, Scheme.PRODUCT)
    )
    assert product.costs.up_bytes > (10 if clients >= 100 else 4) * peak.costs.up_bytes


def test_the_planned_layouts_of_whole_updates_equal_those_of_the_schemes() -> None:
    request = PlanRequest(shapes=CELEBA, clients=20)
    stream = PublicStream(seed=bytes(32), round_number=0, tensor_name="update", shape=(request.weights,))
    rotation = JoinedRotation(stream=stream)
    peak = PeakCode(rotation=rotation, places=request.places)
    sketch = Sketch(rotation=rotation, kept=request.kept, bits=1, modulus_bits=5)
    assert request.layout(Scheme.PEAK).segments == (
        *peak.layout.segments,
        *norm_levels(1, references=True).layout.segments,
    )
    assert request.layout(Scheme.SKETCH).segments[0] == sketch.layout.segments[0]
    for scheme in (Scheme.PEAK, Scheme.SKETCH):
        assert 0.5 < request.noise(scheme) < 0.62


@pytest.mark.parametrize("values", [64, 100, 500])
def test_a_small_model_is_planned_with_the_block_size_of_its_rotation(values: int) -> None:
    request = PlanRequest(shapes={"weight": (values // 8, 8), "rest": (values % 8 or 8,)}, block_size=2)
    size = (request.weights,)
    stream = PublicStream(seed=bytes(32), round_number=0, tensor_name="all", shape=size)
    rotation = KnownLengths(sizes=size).rotation(stream)
    code = PeakCode(rotation=rotation, places=request.places)
    assert request.layout(Scheme.PEAK).segments[0] == code.layout.segments[0]


@pytest.mark.parametrize("clients", [3, 1000])
def test_the_shortest_upload_comes_first(clients: int) -> None:
    options = compare(request_of(codewords=256, clients=clients)).options
    assert [option.costs.up_bytes for option in options] == sorted(option.costs.up_bytes for option in options)


def test_exactly_the_schemes_that_a_protocol_can_sum_are_costed() -> None:
    found = {(option.protocol, option.scheme) for option in compare(request_of()).options}
    due = {
        (name, scheme)
        for name in names()
        for scheme in Scheme
        if (scheme not in INDEXED or IndexSegment in find(name).segments)
        and (scheme is not Scheme.DITHERED or find(name).rounds)
    }
    assert found == due


def left_out_of(protocol: str, comparison: Comparison) -> list[str]:
    """Return the reasons for omitting options, except that a protocol does not round dithered values."""
    found = [sentence for sentence in comparison.left_out if sentence.startswith(f"{protocol}, ")]
    return [sentence for sentence in found if "does not round masked values" not in sentence]


def test_more_clients_than_the_largest_field_counts_exclude_the_check() -> None:
    comparison = compare(request_of(clients=131_071))
    assert not [option for option in comparison.options if option.costs.variant.endswith("checked")]
    assert left_out_of("two-servers", comparison)
    assert not left_out_of("two-servers", compare(request_of(clients=131_070)))


def test_more_codewords_than_a_point_function_supports_exclude_two_servers() -> None:
    comparison = compare(request_of(blocks=1 << 15, codewords=8192))
    assert {option.protocol for option in comparison.options if option.scheme is Scheme.PRODUCT} == {"enclave"}
    assert comparison.shortest("two-servers", Scheme.PEAK) is not None
    (sentence,) = left_out_of("two-servers", comparison)
    assert sentence.startswith("two-servers, product quantization: ")


def test_a_limit_that_applies_to_all_schemes_is_stated_once() -> None:
    comparison = compare(request_of(clients=2))
    assert comparison.shortest("pairwise") is None
    (sentence,) = left_out_of("pairwise", comparison)
    assert sentence.startswith("pairwise, fixed point, scalar quantization, dithered quantization, random pruning, ")


def test_more_blocks_than_the_kernels_support_exclude_two_servers() -> None:
    within, beyond = (compare(request_of(blocks=(1 << 26) + more)) for more in (0, 1))
    assert not left_out_of("two-servers", within)
    assert {option.protocol for option in beyond.options if option.scheme is Scheme.PRODUCT} == {"enclave"}
    assert len(left_out_of("two-servers", beyond)) == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"codewords": 1}, "--codewords must be between 2 and 65536; got 1"),
        ({"codewords": 65_537}, "--codewords must be between"),
        ({"block_size": 0}, "--block-size must be between 1 and 65536; got 0"),
        ({"block_size": 65_537}, "--block-size must be between"),
        ({"clients": 1}, "--clients must be between 2 and 1048576; got 1"),
        ({"clients": (1 << 20) + 1}, "--clients must be between"),
        ({"clients": 2.0}, "--clients must be between"),
        ({"bits": 1}, "--bits must be between 2 and 16; got 1"),
        ({"bits": 17}, "--bits must be between"),
        ({"sparsity": Fraction(1)}, "--sparsity must be at least 0 and below 1; got 1"),
        ({"sparsity": Fraction(-1, 10)}, "--sparsity must be at least 0"),
        ({"shapes": {}}, "every tensor needs a shape"),
        ({"shapes": {"matrix": (0, 9)}}, "every tensor needs a shape"),
        ({"shapes": {"matrix": (9.0, 9)}}, "every tensor needs a shape"),
        ({"shapes": {"matrix": (True, 9)}}, "every tensor needs a shape"),
        ({"shapes": {"matrix": [9, 9]}}, "every tensor needs a shape"),
        ({"shapes": {"bias": (900,)}}, "lower --block-size or use a larger model"),
        ({"shapes": {"matrix": (7, 4)}}, "no tensor can be cut into eight blocks"),
        ({"shapes": {f"{number}": (16, 1) for number in range((1 << 16) + 1)}}, "a layout can have at most 65536"),
        ({"shapes": {"matrix": (1 << 20, (1 << 20) + 1)}}, "exceeds 2^40"),
    ],
    ids=range(20),
)
def test_an_invalid_request_is_refused_with_what_to_change(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SecAggError) as caught:
        replace(request_of(), **wrong)
    assert sentence in str(caught.value)
