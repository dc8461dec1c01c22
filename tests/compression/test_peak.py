"""The peak code: it matches its definition, is unbiased over rotations for dense updates, and has the law's noise."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.cohort_bits import AutoRate, law, levels_within, peak_noise, places_for, places_within
from secagg.compression.common import PublicStream
from secagg.compression.peak import (
    MAXIMUM_PLACES,
    MOST_SUMMED_PLACES,
    NORM_LEVELS,
    KnownLengths,
    LevelCode,
    PeakCode,
    kept_share,
    level_noise,
    level_votes,
    mean_peak,
    norm_levels,
)
from secagg.compression.rotation import square_root_scales
from secagg.conformance import Candidate, Law, cases, slack
from secagg.contract import ideal_aggregate
from secagg.errors import InvalidParameters
from secagg.privacy.accounting import Adjacency, of_decoded_sum
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.rotations import SEED, normal, rotation

COINS = InsecureSeededCoins(b"for blocks of zeros alone")
SCALES: dict[str, Any] = {"sizes": (4, 15), "scales": (0.5, 3.0)}


def code(places: int = 5, unit: float = 2.0, **changes: Any) -> PeakCode:
    return PeakCode(rotation=rotation(**changes), places=places, unit=unit)


def farthest(update: Any) -> float:
    """Bound the error by the sum of both lengths; the tests below check the decoded values."""
    return float(np.linalg.norm(update.astype(np.float64))) + code(**SCALES).largest_norm


PEAK = Candidate(
    name="peak",
    make=lambda: code(**SCALES),
    updates=st.one_of(
        [
            arrays(kind, 19, elements={"min_value": -8.0, "max_value": 8.0})
            for kind in (np.float16, np.float32, np.float64)
        ]
    ),
    error=farthest,
    bad_updates={"two dimensions": np.zeros((19, 1)), "integers": np.zeros(19, dtype=np.int64)},
    others={
        "another seed": lambda: code(seed=bytes(32), **SCALES),
        "another round": lambda: code(round_number=6, **SCALES),
        "another name": lambda: code(tensor_name="updates", **SCALES),
        "another block of the rotation": lambda: code(block_size=4, **SCALES),
        "more places": lambda: code(6, **SCALES),
        "another length": lambda: code(unit=2.5, **SCALES),
        "another scale": lambda: code(sizes=(4, 15), scales=(0.5, 2.0)),
        "other tensors": lambda: code(sizes=(5, 14), scales=(0.5, 3.0)),
        "one tensor": code,
    },
    stochastic=True,
    payload_bytes=3,
    ulps=64.0,
)
LEVELS = Candidate(
    name="norm_levels",
    make=lambda: norm_levels(3, references=True),
    updates=arrays(np.float32, (3, 1), elements=st.floats(0.0625, 4.0, width=32)),
    error=lambda update: np.abs(update.astype(np.float64)) * 0.0125,
    others={
        "no references": lambda: norm_levels(3, references=False),
        "more lengths": lambda: norm_levels(4, references=True),
    },
    payload_bytes=3,
)
VOTES = Candidate(
    name="level_votes",
    make=lambda: level_votes(2),
    updates=st.lists(st.integers(0, NORM_LEVELS - 1), min_size=2, max_size=2).map(
        lambda levels: np.eye(NORM_LEVELS, dtype=np.float32)[levels]
    ),
    error=lambda update: np.zeros(update.shape),
    others={"more lengths": lambda: level_votes(3)},
    payload_bytes=2,
)


def leveled(levels: int = 8, size: int = 19, block_size: int = 8, number: int = 5, **changes: Any) -> LevelCode:
    return LevelCode(rotation=rotation(size, block_size, round_number=number, **changes), levels=levels)


CODE_OF_LEVELS = Candidate(
    name="levels",
    make=lambda: leveled(**SCALES),
    updates=arrays(np.float32, 19, elements={"min_value": -8.0, "max_value": 8.0}),
    # The error is at most the sum of both lengths; the tests below check the decoded directions.
    error=lambda update: float(np.linalg.norm(update.astype(np.float64))) + leveled(**SCALES).largest_norm,
    bad_updates={"two dimensions": np.zeros((19, 1)), "integers": np.zeros(19, dtype=np.int64)},
    others={
        "another round": lambda: leveled(number=6, **SCALES),
        "more levels": lambda: leveled(16, **SCALES),
        "one tensor": leveled,
    },
    stochastic=True,
    payload_bytes=9,
    ulps=64.0,
)


@pytest.mark.parametrize(("candidate", "law"), cases(PEAK, LEVELS, VOTES, CODE_OF_LEVELS), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


@pytest.mark.parametrize("places", [1, 2, 3, 7, 16, 24, 40])
@pytest.mark.parametrize("size", [1, 19, 130])
def test_it_is_the_place_and_the_sign_of_the_largest_of_each_block(places: int, size: int) -> None:
    made = code(places, size=size)
    (update,) = normal(size)
    (indices,) = made.encode(update, COINS).values
    turned = made.rotation.turned(update).tolist()
    for number, index in enumerate(indices.tolist()):
        block = turned[number * places : (number + 1) * places]
        place = max(range(len(block)), key=lambda at: abs(block[at]))
        assert index == place + (places if block[place] < 0 else 0)
    assert len(indices) == made.blocks == -(-made.rotation.padded // places)


def test_a_sum_is_decoded_block_by_block() -> None:
    """Compare with a plain calculation: signs counted one by one, times the gain, through a dense matrix."""
    made = code(5, unit=3.0, **SCALES)
    updates = normal(19, 6)
    payloads = [made.encode(update, COINS) for update in updates]
    padded, turned = made.rotation.padded, np.zeros(made.rotation.padded + 5)
    for payload in payloads:
        for number, index in enumerate(payload.values[0].tolist()):
            width = min(5, padded - 5 * number)
            gain = 3.0 * width / (mean_peak(width) * math.sqrt(padded))
            turned[5 * number + index % 5] += gain if index < 5 else -gain
    matrix = np.stack([made.rotation.turned(row) for row in np.eye(19, dtype=np.float32)]).astype(np.float64)
    scales = np.repeat([0.5, 3.0], [4, 15])
    expected = scales**2 * (matrix @ turned[:padded])
    decoded = made.decode(ideal_aggregate(made.layout, payloads))
    assert np.allclose(decoded, expected, rtol=0, atol=1e-5)


def test_the_rotation_keeps_lengths_and_is_taken_back() -> None:
    turn = rotation(1000, 64, sizes=(300, 700), scales=(0.25, 2.0))
    (update,) = normal(1000)
    turned = turn.turned(update)
    scaled = math.hypot(*(update[:300].astype(float) / 0.25), *(update[300:].astype(float) / 2.0))
    assert math.isclose(turn.norm(update), scaled, rel_tol=1e-6)
    assert math.isclose(float(np.linalg.norm(turned)), scaled, rel_tol=1e-6)
    assert np.allclose(turn.turned_back(turned), update, rtol=0, atol=1e-5)


@pytest.mark.parametrize("at", [0, 40_000, 69_999])
@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf, 3e38])
def test_a_strange_value_anywhere_counts_as_zero_or_the_limit(at: int, strange: float) -> None:
    """An update is processed in pieces."""
    turn, update = rotation(70_000, 16), np.zeros(70_000, np.float32)
    update[at] = strange
    turned = turn.turned(update)
    assert np.isfinite(turned).all()
    assert math.isclose(float(np.abs(turned).max()), 0.0 if np.isnan(strange) else 2.0**100 / 4, rel_tol=1e-5)


@pytest.mark.parametrize(("values", "least", "most"), [(2, 0.4, 0.6), (10, 0.6, 0.8), (100, 0.96, 1.0)])
def test_an_update_of_few_values_is_decoded_too_short(values: int, least: float, most: float) -> None:
    update = (np.arange(4096) < values).astype(np.float32) / np.float32(math.sqrt(values))
    along = list[float]()
    for number in range(50):
        made = code(116, unit=1.0, size=4096, block_size=1024, round_number=number)
        along.append(float(made.decode(ideal_aggregate(made.layout, [made.encode(update, COINS)])) @ update))
    assert least < sum(along) / len(along) < most


def test_the_rate_follows_from_the_cohort() -> None:
    found = {cohort: places_for(cohort) for cohort in (2, 20, 100, 1000, 10**6)}
    assert found == {2: 3, 20: 94, 100: 645, 1000: 8816, 10**6: MAXIMUM_PLACES}
    for cohort in (20, 100, 1000):
        bits = math.log2(2 * found[cohort]) / found[cohort]
        assert 1.6 <= cohort * bits < 1.63
        assert abs(law(cohort, bits) - 0.97 / 1.6) < 0.06
    with pytest.raises(InvalidParameters, match="cohort must be an integer"):
        places_for(0)
    with pytest.raises(InvalidParameters, match="cohort_bits must be a positive number"):
        places_for(20, math.nan)


def test_square_root_scales_have_the_least_noise() -> None:
    """The noise is proportional to (sum n w^2) (sum n a^2 / w^2); no other scales do better."""
    sizes, sides = np.array([900, 90, 10]), np.array([1e-3, 0.1, 2.0])

    def noise(scales: Any) -> float:
        squared = np.square(scales)
        return float((sizes @ squared) * (sizes @ (np.square(sides) / squared)))

    norms = tuple((sides * np.sqrt(sizes)).tolist())
    best = np.array(square_root_scales((900, 90, 10), norms))
    assert math.isclose(noise(best), float(sizes @ sides) ** 2, rel_tol=1e-9)
    assert noise(best) < noise(np.ones(3)) / 4
    assert noise(best) < noise(sides) / 4
    assert square_root_scales((3, 4), (0.0, 0.0)) == (1.0, 1.0)
    # A tensor that hardly changed is not divided by almost zero.
    assert square_root_scales((1, 1), (2.0, 0.0))[1] == pytest.approx(math.sqrt(1e-3))


def test_every_update_that_can_be_decoded_has_one_length() -> None:
    made = code(8, unit=3.0, size=64, block_size=64)
    honest = [made.encode(update, COINS) for update in normal(64, 50)]
    assert slack(made, honest) == pytest.approx(1.0, abs=1e-5)
    assert made.largest_norm == pytest.approx(3.0 / math.sqrt(kept_share(8)), rel=1e-6)


def test_the_sensitivity_is_that_of_its_table() -> None:
    made = code(5)
    ((table,),) = made.tables
    assert 4 * made.blocks == of_decoded_sum([(table.blocks, table.entries)], Adjacency.REPLACE)


@pytest.mark.parametrize("client", ["honest", "one"])
def test_a_checked_length_scales_a_mean_by_little(client: str) -> None:
    """One client of twenty reports the maximum length: the mean grows by at most 4 / N."""
    levels = norm_levels(1, references=True)
    lengths = [1.0] * 20 if client == "honest" else [1.0] * 19 + [1e9]
    payloads = [levels.encode(np.array([[length]]), COINS) for length in lengths]
    mean = float(levels.decode(ideal_aggregate(levels.layout, payloads))[0, 0]) / 20
    assert mean <= 1.0125 + 4 / 20


def test_the_most_places_are_encoded_and_counted() -> None:
    made = code(MAXIMUM_PLACES, size=70_000, block_size=1024)
    (update,) = normal(70_000)
    payload = made.encode(update, COINS)
    assert made.layout.segments[0].ring.modulus_bits == 16
    decoded = made.decode(ideal_aggregate(made.layout, [payload]))
    # The last block is shorter, and has a different kept share.
    assert float(np.linalg.norm(decoded)) == pytest.approx(made.largest_norm, rel=0.05)
    with pytest.raises(InvalidParameters, match=f"at most {MOST_SUMMED_PLACES} places"):
        _ = made.tables


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"places": 0}, "places must be an integer"),
        ({"places": MAXIMUM_PLACES + 1}, "places must be an integer"),
        ({"unit": 0.0}, "unit must be a float"),
        ({"unit": math.nan}, "unit must be a float"),
        ({"sizes": (4, 14)}, "sizes must be positive integers"),
        ({"sizes": (4, 15), "scales": (1.0,)}, "scales must be 2 numbers"),
        ({"scales": (math.nan,)}, "scales must be 1 numbers"),
        ({"shape": (19, 1)}, "one vector"),
    ],
)
def test_parameters_out_of_range_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidParameters, match=match):
        code(**changes)


def test_an_update_of_almost_infinite_length_votes_for_the_greatest() -> None:
    """Each of its values fits float32, but its length does not."""
    known = KnownLengths(sizes=(64,))
    rotation = known.rotation(PublicStream(seed=SEED, round_number=0, tensor_name="all", shape=(64,)))
    longest = np.zeros(64, np.float32)
    longest[:] = 1e38
    assert known.votes(known.told(rotation, longest, with_tensors=True)).argmax(axis=1).tolist() == [255, 255]


@pytest.mark.parametrize("levels", [0, 1, 3, 512])
def test_a_number_of_levels_that_is_no_power_of_two_is_refused(levels: int) -> None:
    with pytest.raises(InvalidParameters, match="levels"):
        leveled(levels)


def test_noise_that_is_allowed_chooses_the_code() -> None:
    assert places_within(20, peak_noise(places_for(20), 20)) == places_for(20)
    assert places_within(20, 1e-9) == 1
    assert levels_within(20, peak_noise(1, 20)) == 0
    assert levels_within(20, level_noise(4, 20)) == 4
    assert levels_within(20, level_noise(8, 20)) == 8
    assert levels_within(20, 1e-9) == 16


def test_a_run_begins_carefully_and_then_bears_what_the_losses_say() -> None:
    unknown = AutoRate(20, 0.001)
    assert unknown.noise(0) < unknown.noise(20) == peak_noise(places_for(20), 20)
    told = unknown.after((1.0, 1.03, 1.01), 0.5)
    assert told.noise(20) == pytest.approx(0.001 / 0.04)
    assert told.after((1.0, 1.0, 1.0), 0.5).noise(20) == pytest.approx(2 * 0.001 / 0.04)
    assert unknown.after((1.0, 0.9, 1.0), 0.5).noise(20) == peak_noise(places_for(20), 20)


def test_one_lie_holds_the_rate_between_its_bounds_and_for_a_few_probes() -> None:
    honest = AutoRate(20, 0.001).after((1.0, 1.02, 1.02), 0.5)
    lied = honest.after((0.0, 1024.0, 1024.0), 0.5)
    assert levels_within(20, lied.noise(20)) == 16
    for _ in range(6):
        lied = lied.after((1.0, 1.02, 1.02), 0.5)
    assert lied.noise(20) > honest.noise(20) / 3
    # A false short length lasts until a client reports a true one.
    lied = honest.after((1024.0, 0.0, 0.0), 0.5)
    assert lied.noise(20) == peak_noise(places_for(20), 20)
    assert lied.after((1.0, 1.02, 1.02), 0.5).noise(20) == honest.noise(20)
