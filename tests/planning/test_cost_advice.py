"""The planner's advice: the shortest scheme, bounds on clients, and the effect of noise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters
from secagg.planning.advice import PlannedNoise, advice
from secagg.planning.costs import INDEXED, PlanRequest, Scheme, compare, shapes_of_blocks
from secagg.protocols.two_servers.point_functions.lanes import RingLanes
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape, tree_bits


def advice_on(block_size: int = 4, blocks: int = 1 << 14, **options: Any) -> list[str]:
    request = PlanRequest(shapes=shapes_of_blocks(blocks, block_size), block_size=block_size, **options)
    return list(advice(request, compare(request)))


def starting(said: list[str], start: str) -> str:
    (sentence,) = (sentence for sentence in said if sentence.startswith(start))
    return sentence


@pytest.mark.parametrize("lane_bits", [2, 7, 13, 17, 21])
def test_the_cheapest_tree_shape_follows_the_documented_rules(lane_bits: int) -> None:
    for codewords in range(2, 600):
        shape = PointFunctionShape.cheapest(codewords, RingLanes(lane_bits))
        assert (shape.depth == 0) == ((codewords - 1) * lane_bits <= tree_bits(codewords, lane_bits, 1))
        if shape.depth and shape.leaf_lanes > 1:
            # One more level costs 130 bits and saves nothing.
            assert tree_bits(codewords, lane_bits, shape.depth + 1) >= shape.upload_bits


def test_the_shortest_scheme_of_each_protocol_is_named() -> None:
    said = advice_on(codewords=32)
    assert "linear sketch, 1,676 signs" in starting(said, "With pairwise, ")
    assert "peak code, 1 of 645" in starting(said, "With enclave, ")


def test_schemes_with_indices_are_listed_as_bounded_and_all_others_as_unbounded() -> None:
    said = advice_on(codewords=32)
    bounded, others = starting(said, "A client's contribution is bounded"), starting(said, "No protocol bounds")
    assert "of the peak code have one length, and those of product quantization at most that of its" in bounded
    assert [scheme for scheme in Scheme if scheme.value in others] == [s for s in Scheme if s not in INDEXED]


VALUES = 19_338


def test_epsilon_is_given_for_both_kinds_of_neighbours() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    first = next(iter(PlannedNoise(Fraction(2), 10, 1e-5).advice(VALUES, 1000)))
    assert "epsilon 8" in first, "V19: ten rounds of multiplier 2 at 1e-5"
    assert "replaced with another" in first
    assert "with zeros" in first


@pytest.mark.parametrize("multiplier", [Fraction(10) ** 400, Fraction(1, 10**300)])
def test_a_multiplier_out_of_range_is_refused_with_the_range(multiplier: Fraction) -> None:
    with pytest.raises(InvalidParameters, match=r"--noise must be between 0\.0001 and 1,000,000"):
        list(PlannedNoise(multiplier, 1, 1e-6).advice(19_456, 100))


def test_zero_is_not_a_multiplier() -> None:
    with pytest.raises(InvalidParameters, match="--noise must be positive"):
        next(iter(PlannedNoise(Fraction(0), 1, 1e-6).advice(10, 10)))


def test_the_command_prints_the_noise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--blocks", "2000", "--noise", "1/2"]) == 0
    assert "Noise of 1/2 times a client's maximum contribution" in capsys.readouterr().out
