"""The sampler against weights that are derived here from series of integers, and against chi-square."""

import math
from fractions import Fraction

import numpy as np
import pytest

from secagg.crypto.secret import Secret
from secagg.protocols.one_message import lattice
from secagg.protocols.one_message.lattice import LARGEST, SIGMA, Sampler, weights
from secagg.simulation.insecure_coins import InsecureSeededCoins

TOTAL = 1 << 144


def sampler(name: bytes) -> Sampler:
    return Sampler(Secret("key", bytes(InsecureSeededCoins(name).draw(32))))


def exponential(power: Fraction) -> Fraction:
    """Return exp(-power) from its series, to 2^-400."""
    halvings = max(0, math.ceil(math.log2(float(power) + 1)))
    small, term, value, index = -power / 2**halvings, Fraction(1), Fraction(1), 1
    while abs(term) > Fraction(1, 1 << 500):
        term = Fraction(int(term * small / index * (1 << 560)), 1 << 560)
        value += term
        index += 1
    for _ in range(halvings):
        value = Fraction(int(value * value * (1 << 560)), 1 << 560)
    return value


def test_the_weights_are_those_of_the_definition_to_the_last_bit() -> None:
    variance = Fraction(SIGMA) ** 2
    mass = [exponential(Fraction(value * value) / (2 * variance)) for value in range(LARGEST + 1)]
    whole = mass[0] + 2 * sum(mass[1:])
    side = [int(TOTAL * part / whole) for part in mass[1:]]
    assert weights() == [*reversed(side), TOTAL - 2 * sum(side), *side]


def test_a_draw_is_the_inverse_of_the_distribution_at_every_edge() -> None:
    edges = lattice.thresholds()
    numbers = sorted({number for edge in edges for number in (edge - 1, edge, edge + 1) if 0 <= number < TOTAL})
    due = [sum(number >= edge for edge in edges) - LARGEST for number in numbers]
    buckets = np.array([number >> 128 for number in numbers], np.uint64)
    fine = np.array([[number >> 64 & (1 << 64) - 1, number & (1 << 64) - 1] for number in numbers], np.uint64)
    assert lattice.refine(buckets, fine).tolist() == due


def test_closed_buckets_need_no_refining() -> None:
    edges, size = lattice.thresholds(), 1 << 16
    for bucket in range(0, size, 37):
        low = sum((bucket << 128) >= edge for edge in edges) - LARGEST
        high = sum(((bucket + 1 << 128) - 1) >= edge for edge in edges) - LARGEST
        assert lattice.FIRST[bucket] == low
        assert lattice.IS_OPEN[bucket] or low == high
    assert 20 <= int(lattice.IS_OPEN.sum()) <= 2 * LARGEST


@pytest.mark.parametrize("batch", [1 << 18, 4096, 999])
def test_draws_pass_chi_square(batch: int) -> None:
    source = sampler(b"chi-square %d" % batch)
    drawn = np.concatenate([source.draw(batch) for _ in range((1 << 18) // batch)])
    probabilities = [weight / TOTAL for weight in weights()]
    inner = [value for value in range(-LARGEST, LARGEST + 1) if drawn.size * probabilities[value + LARGEST] >= 8]
    counts = [int((drawn == value).sum()) for value in inner]
    expected = [drawn.size * probabilities[value + LARGEST] for value in inner]
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))
    degrees = len(inner) - 1
    # The tail of chi-square beyond this is below 2^-30 [LM00 form]: k + 2 sqrt(k x) + 2 x.
    assert statistic < degrees + 2 * math.sqrt(degrees * 21) + 42
    # A Gaussian that is a hundredth wider is refused by the same test.
    wider = [drawn.size * math.exp(-(v**2) / (2 * 4.59**2)) / (4.59 * math.sqrt(2 * math.pi)) for v in inner]
    refused = sum((count - mean) ** 2 / mean for count, mean in zip(counts, wider, strict=True))
    assert refused > degrees + 2 * math.sqrt(degrees * 21) + 42


def test_a_stream_does_not_depend_on_how_it_is_cut() -> None:
    whole, cut = sampler(b"cut"), sampler(b"cut")
    assert whole.draw(5000).tolist() == [*cut.draw(1), *cut.draw(1999), *cut.draw(3000)]
