"""What one weighted sum tells of single clients, measured: no more than one of equal weights, and a tenth.

Attackers know all weights and what values are usual. The same attacks on weights that multiply codes, as protocols had
them, find every value: so they are attacks.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, TensorScheme
from secagg.compression.model_update.summed_values import rounded_at_random
from secagg.compression.model_update.weighting import COUNTS, UPDATE, count_scheme, weighted
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins

Values = npt.NDArray[np.int64]
LEVELS = (-1, 0, 1)
CLIENTS = 6
COORDINATES = 4000
FULL = 1024


def codec(scheme: ScalarQuantization | FixedPoint, length: int) -> ModelUpdate:
    vector = TensorScheme(name=UPDATE, shape=(length,), scheme=scheme)
    return ModelUpdate(tensors=(vector, TensorScheme(name=COUNTS, shape=(1,), scheme=count_scheme(FULL, 32))))


def summed(made: ModelUpdate, updates: npt.NDArray[np.float64], examples: list[int], *, is_after: bool) -> Values:
    """Return the sum as the server has it, of weights that multiply values, or codes."""
    total, coins = np.zeros(updates.shape[1], np.int64), SystemCoins()
    for update, number in zip(updates, examples, strict=True):
        values = weighted(made.schemes, {UPDATE: update}, FULL if is_after else number)
        payload = made.encode(rounded_at_random(made, values, coins), coins)
        part = made.part(ideal_aggregate(made.layout, [payload]), UPDATE)
        (segment,) = part.layout.require_rings()
        total = total + segment.ring.lift(part.values[0]).astype(np.int64) * (number if is_after else 1)
    return total


def guessed(sums: Values, weights: list[float], truth: Values) -> float:
    """Return how often the likeliest values of all clients are the true ones; ties count for their share."""
    inputs = np.array(list(itertools.product(LEVELS, repeat=len(weights))))
    exact = inputs * np.array(weights)
    low = np.floor(exact + 1e-12)
    up = np.clip(exact - low, 0, 1)
    law = np.zeros((len(inputs), len(weights) + 1))
    law[:, 0] = 1.0
    for client in range(len(weights)):
        chance = up[:, client : client + 1]
        law = law * (1 - chance) + np.pad(law[:, :-1], ((0, 0), (1, 0))) * chance
    least, right = low.sum(axis=1).astype(np.int64), 0.0
    for total, true in zip(sums.tolist(), truth.T, strict=True):
        above = total - least
        possible = (above >= 0) & (above <= len(weights))
        likely = np.where(possible, law[np.arange(len(inputs)), np.clip(above, 0, len(weights))], 0)
        best = np.flatnonzero(likely >= likely.max() * (1 - 1e-9))
        right += bool((inputs[best] == true).all(axis=1).any()) / len(best)
    return right / len(sums)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_weighted_sum_of_coarse_codes_is_no_knapsack(seed: int) -> None:
    """Six clients, three levels: after rounding all clients' values had one solution nearly everywhere."""
    generator = np.random.default_rng(seed)
    truth = generator.choice(LEVELS, size=(CLIENTS, COORDINATES))
    examples = sorted(generator.integers(FULL // 4, FULL, CLIENTS).tolist())
    scheme = ScalarQuantization(
        shape=(COORDINATES,), bits=3, modulus_bits=16, scales=(1.0,), rounding=Rounding.STOCHASTIC
    )
    made, updates = codec(scheme, COORDINATES), truth.astype(np.float64)
    equal = guessed(summed(made, updates, [FULL] * CLIENTS, is_after=False), [1.0] * CLIENTS, truth)
    before = guessed(summed(made, updates, examples, is_after=False), [one / FULL for one in examples], truth)
    after = guessed(summed(made, updates, examples, is_after=True), [float(one) for one in examples], truth)
    assert equal < 0.05
    assert before < 1.1 * equal + 0.01, (before, equal)
    assert after > 0.6


def test_the_weight_of_one_client_is_no_factor_of_a_row_that_it_alone_touched() -> None:
    """Its number of examples was the common factor of the row's sums, so the row said who has the word."""
    generator, named = np.random.default_rng(6), {True: 0, False: 0}
    made = codec(FixedPoint(length=16, clip=4.0, fraction_bits=16, modulus_bits=40), 16)
    for _ in range(40):
        examples = generator.permutation(np.arange(FULL // 4, FULL))[:20].tolist()
        who = int(generator.integers(20))
        updates = np.zeros((20, 16))
        updates[who] = generator.normal(0, 2e-3, 16)
        for is_after in named:
            sums = summed(made, updates, examples, is_after=is_after).tolist()
            fits = [number for number in examples if all(value % number == 0 for value in sums)]
            named[is_after] += fits == [examples[who]] or math.gcd(*sums) == examples[who]
    assert named[True] > 35
    assert named[False] <= 1
