"""The planner's advice: the shortest scheme, bounds on clients, and the effect of noise."""

from __future__ import annotations

import tomllib
from fractions import Fraction
from typing import Any

import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters
from secagg.planning.advice import PlannedNoise, advice, explained
from secagg.planning.costs import INDEXED, PlanRequest, Scheme, compare, shapes_of_blocks
from secagg.platforms.settings import SecAggSettings
from secagg.protocols.two_servers.point_functions.lanes import RingLanes
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape, tree_bits
from secagg.session.client_policy import usual_corrupted


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
    assert starting(said, "  pairwise: ").endswith(' bytes, secagg-compression = "pruning-0.9"')
    assert starting(said, "  enclave: ").endswith(' bytes, secagg-compression = "peak", secagg-weighting = "uniform"')


@pytest.mark.parametrize("options", [{}, {"bits": 4, "sparsity": Fraction(0)}, {"cohort_bits": 0.8, "codewords": 16}])
def test_the_advised_settings_can_be_typed(options: dict[str, Any]) -> None:
    """Platforms accept each setting with each protocol whose clients can send it, and the others have no setting."""
    request = PlanRequest(shapes=shapes_of_blocks(1 << 14, 4), block_size=4, **options)
    for option in compare(request).options:
        if setting := request.setting(option.scheme):
            roster = {"secagg-roster": "roster.txt"} if option.protocol != "pairwise" else {}
            epoch = {"secagg-epoch": "epoch", "secagg-holders": "a,b"} if option.protocol == "one-message" else {}
            typed = tomllib.loads(setting.replace(", ", "\n"))
            SecAggSettings.from_run_config({"secagg-protocol": option.protocol, **roster, **epoch, **typed})
    lacking = {scheme for scheme in Scheme if not request.setting(scheme)}
    assert lacking - {Scheme.PRUNING} == {Scheme.DITHERED, Scheme.SKETCH}
    assert (Scheme.PRUNING in lacking) == (request.sparsity == 0)
    assert (
        f"Only `secagg train` supports these; platforms do not: {', '.join(s for s in Scheme if s in lacking)}."
        in "\n".join(advice(request, compare(request)))
    )


@pytest.mark.parametrize(("clients", "most"), [(3, 0), (5, 1), (10, 3), (20, 6)])
def test_the_number_of_dropouts_is_the_same_everywhere(clients: int, most: int) -> None:
    """The README's table, the plan behind the costs, the advice and a platform's default agree."""
    request = PlanRequest(shapes=shapes_of_blocks(1 << 10, 4), block_size=4, clients=clients)
    pairwise = compare(request).shortest("pairwise")
    assert pairwise is not None
    corrupted = usual_corrupted(clients)
    assert f"for {corrupted} corrupted and {most} dropped clients" in pairwise.costs.plan
    said = starting(list(advice(request, compare(request))), f"{most} of {clients} clients may drop out (--dropped)")
    assert f"and {corrupted} may be corrupted; pairwise masks tolerate at most " in said
    assert SecAggSettings().tolerated_dropouts(clients) == most


def test_a_given_number_of_dropouts_is_used_and_too_many_are_refused_with_the_limit() -> None:
    asked = PlanRequest(shapes=shapes_of_blocks(1 << 10, 4), block_size=4, clients=20, dropped=7)
    found = compare(asked).shortest("pairwise")
    assert found is not None
    assert "for 2 corrupted and 7 dropped clients" in found.costs.plan
    said = advice_on(blocks=1 << 10, clients=20, dropped=10)
    assert "20 clients with 2 corrupted tolerate at most 7 dropouts; you asked for 10" in starting(
        said, "Left out: pair"
    )
    with pytest.raises(InvalidParameters, match=r"--dropped must be between 0 and 18; got 19"):
        advice_on(clients=20, dropped=19)


def test_schemes_of_indices_are_named_as_bounded() -> None:
    request = PlanRequest(shapes=shapes_of_blocks(1 << 14, 4), block_size=4)
    bounded = starting(list(explained(request, compare(request))), "One client can change a sum by any amount, except")
    assert [scheme for scheme in Scheme if scheme.value in bounded] == [s for s in Scheme if s in INDEXED]


VALUES = 19_338


def test_epsilon_is_given_for_both_kinds_of_neighbours() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra `dp`")
    first = next(iter(PlannedNoise(Fraction(2), 10, 1e-5).advice(VALUES, 1000)))
    assert "epsilon 8" in first, "V19: ten rounds of multiplier 2 at 1e-5"
    assert "replaced by another" in first
    assert "by zeros" in first


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
