"""Measures what a weighted sum reveals about single clients: at most a tenth more than one with equal weights.

Attackers know all weights and the usual values. The same attacks on weights that multiply codes, as protocols once
had, find every value, so the attacks are effective.
"""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

import secagg
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, TensorScheme
from secagg.compression.model_update.summed_values import rounded_at_random
from secagg.compression.model_update.weighting import COUNTS, UPDATE, count_scheme, weighted
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins

Values = npt.NDArray[np.int64]
LEVELS = (-1, 0, 1)
LEVEL = 1 << 16
"""Fixed-point steps between two levels."""
CLIENTS = 6
COORDINATES = 4000
FULL = 1024


def codec(scheme: ScalarQuantization | FixedPoint, length: int) -> ModelUpdate:
    vector = TensorScheme(name=UPDATE, shape=(length,), scheme=scheme)
    return ModelUpdate(tensors=(vector, TensorScheme(name=COUNTS, shape=(1,), scheme=count_scheme(FULL, 32))))


def summed(made: ModelUpdate, updates: npt.NDArray[np.float64], examples: list[int], *, is_after: bool) -> Values:
    """Return the server's sum with weights that multiply values, or codes."""
    total, coins = np.zeros(updates.shape[1], np.int64), SystemCoins()
    for update, number in zip(updates, examples, strict=True):
        values = weighted(made.schemes, {UPDATE: update}, FULL if is_after else number, coins)
        payload = made.encode(values, coins, partial(rounded_at_random, coins))
        part = made.part(ideal_aggregate(made.layout, [payload]), UPDATE)
        (segment,) = part.layout.require_rings()
        total = total + segment.ring.lift(part.values[0]).astype(np.int64) * (number if is_after else 1)
    return total


def guessed(sums: Values, weights: list[float], truth: Values) -> tuple[float, float]:
    """Return how often the most likely values of all clients, and of one, are true; ties count in part."""
    if not (sums % LEVEL).any():
        sums = sums // LEVEL
    elif (np.abs(sums) > CLIENTS * max(weights)).any():
        weights = [weight * LEVEL for weight in weights]
    inputs = np.array(list(itertools.product(LEVELS, repeat=len(weights))))
    exact = inputs * np.array(weights)
    low = np.floor(exact + 1e-12)
    up = np.clip(exact - low, 0, 1)
    law = np.zeros((len(inputs), len(weights) + 1))
    law[:, 0] = 1.0
    for client in range(len(weights)):
        chance = up[:, client : client + 1]
        law = law * (1 - chance) + np.pad(law[:, :-1], ((0, 0), (1, 0))) * chance
    least, all_right, one_right = low.sum(axis=1).astype(np.int64), 0.0, 0.0
    for total in np.unique(sums).tolist():
        above, true = total - least, truth[:, sums == total]
        possible = (above >= 0) & (above <= len(weights))
        likely = np.where(possible, law[np.arange(len(inputs)), np.clip(above, 0, len(weights))], 0)
        best = np.flatnonzero(likely >= likely.max() * (1 - 1e-9))
        all_right += sum((inputs[each] == true.T).all(axis=1).sum() for each in best) / len(best)
        chances = np.array([[likely[own == level].sum() for level in LEVELS] for own in inputs.T])
        chosen = chances >= chances.max(axis=1, keepdims=True) * (1 - 1e-9)
        shares = chosen / chosen.sum(axis=1, keepdims=True)
        one_right += np.take_along_axis(shares, true - LEVELS[0], axis=1).sum() / len(weights)
    return all_right / len(sums), one_right / len(sums)


SCHEMES: dict[str, ScalarQuantization | FixedPoint] = {
    "codes": ScalarQuantization(
        shape=(COORDINATES,), bits=3, modulus_bits=16, scales=(1.0,), rounding=Rounding.STOCHASTIC
    ),
    "fixed point": FixedPoint(length=COORDINATES, clip=4.0, fraction_bits=16, modulus_bits=40),
}


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("clients", [4, CLIENTS])
def test_a_weighted_sum_of_few_levels_is_no_knapsack(clients: int, scheme: ScalarQuantization | FixedPoint) -> None:
    """Values with three levels had a single solution for all clients almost everywhere, with any steps.

    In fixed point this also held for weights before rounding: for 0.54 of all coordinates of four clients with
    numbers rounded to sixteenths, and 1.00 with exact numbers.
    """
    generator = np.random.default_rng(clients)
    truth = generator.choice(LEVELS, size=(clients, COORDINATES))
    examples = sorted(generator.integers(FULL // 4, FULL, clients).tolist())
    made, updates = codec(scheme, COORDINATES), truth.astype(np.float64)
    equal = guessed(summed(made, updates, [FULL] * clients, is_after=False), [1.0] * clients, truth)
    before = guessed(summed(made, updates, examples, is_after=False), [one / FULL for one in examples], truth)
    after = guessed(summed(made, updates, examples, is_after=True), [float(one) for one in examples], truth)
    for mine, base in zip(before, equal, strict=True):
        assert mine < 1.1 * base + 0.005, (before, equal)
    assert after[0] > 0.5
    assert after[1] > 0.7


def test_a_sum_in_one_process_has_no_steps_between_the_levels_of_flags() -> None:
    generator = np.random.default_rng(3)
    flags = generator.integers(0, 2, (4, 400)).astype(np.float32)
    examples = [29_999, 12_345, 8_191, 20_011]
    found = secagg.aggregate(list(flags), clip=1.0, examples=examples)
    total = np.asarray(found.total) / max(examples)
    assert np.abs(total - np.rint(total)).max() < 1e-6
    assert np.asarray(found.mean).mean() == pytest.approx(np.average(flags.mean(axis=1), weights=examples), abs=0.1)


def test_the_weight_of_one_client_is_no_factor_of_a_row_that_it_alone_touched() -> None:
    """Regression: its number of examples was the common factor of the row's sums, and revealed who has the word."""
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
