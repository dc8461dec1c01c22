"""Overflow: the margin of ceil(log2 N) bits is sufficient and tight; the cost of a narrower ring."""

import math
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.scalar_quantization import ScalarQuantization, modulus_bits_for, overflowed
from secagg.contract import ideal_aggregate
from secagg.errors import InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"rounding to nearest draws none of them")


def decoded_and_true(
    bits: int, modulus_bits: int, codes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Send one client's codes for each row through the scheme with steps of one; return its sum and the true one."""
    clients, length = codes.shape
    decoder = ScalarQuantization(
        shape=(length,), bits=bits, modulus_bits=modulus_bits, scales=(1.0,), wrapping_weight=clients
    )
    payloads = [decoder.encode(row.astype(np.float32), COINS) for row in codes]
    return decoder.decode(ideal_aggregate(decoder.layout, payloads)), codes.sum(axis=0)


@pytest.mark.parametrize(
    ("bits", "clients"),
    [(2, clients) for clients in range(1, 8)] + [(3, clients) for clients in range(1, 6)] + [(4, 3)],
)
def test_the_margin_is_sufficient_for_every_choice_of_codes(bits: int, clients: int) -> None:
    every = np.array(list(product(range(-(1 << (bits - 1)), 1 << (bits - 1)), repeat=clients))).T
    modulus_bits = modulus_bits_for(bits, clients)
    assert modulus_bits == bits + math.ceil(math.log2(clients))
    decoded, true = decoded_and_true(bits, modulus_bits, every)
    assert decoded.tolist() == true.tolist()
    assert overflowed(true, modulus_bits).mean() == 0.0


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_margin_is_tight(bits: int) -> None:
    for clients in range(2, 34):
        narrower = modulus_bits_for(bits, clients) - 1
        least = np.full((clients, 1), -(1 << (bits - 1)))
        decoded, true = decoded_and_true(bits, narrower, least)
        assert overflowed(true, narrower).tolist() == [True]
        assert decoded.tolist() != true.tolist()
        # Up to the narrower ring's capacity nothing overflows; one more client overflows it.
        just_fits = 1 << (narrower - bits)
        assert overflowed(np.array([-just_fits << (bits - 1)]), narrower).mean() == 0.0
        assert overflowed(np.array([-(just_fits + 1) << (bits - 1)]), narrower).mean() == 1.0


@pytest.mark.parametrize(("bits", "clients", "modulus_bits"), [(2, 5, 3), (2, 6, 2), (3, 4, 3), (3, 5, 4)])
def test_a_coordinate_is_wrong_exactly_if_its_true_sum_leaves_the_ring(
    bits: int, clients: int, modulus_bits: int
) -> None:
    every = np.array(list(product(range(-(1 << (bits - 1)), 1 << (bits - 1)), repeat=clients))).T
    decoded, true = decoded_and_true(bits, modulus_bits, every)
    left = overflowed(true, modulus_bits)
    assert (left == (decoded != true)).all()
    assert ((decoded - true) % (1 << modulus_bits) == 0).all()
    assert (true[left] > 0).any()
    assert (true[left] < 0).any()


def test_the_share_counts_both_ends_and_the_ends_themselves_fit() -> None:
    sums = np.array([31, 32, -32, -33, 0, 40, -5, 12])
    assert overflowed(sums, 6).tolist() == [False, True, False, True, False, True, False, False]
    assert overflowed(sums, 6).mean() == 0.375
    assert overflowed(sums.astype(np.int8), 8).mean() == 0.0
    assert overflowed(np.array([2**63 - 1, -(2**63)]), 64).mean() == 0.0
    assert overflowed(np.array([2**63], dtype=np.uint64), 64).mean() == 1.0


def test_only_integers_have_a_true_sum() -> None:
    bad: Any
    for bad in (np.zeros(3), [1, 2], np.array([True])):
        with pytest.raises(Misuse, match="integers"):
            overflowed(bad, 8)
    with pytest.raises(InvalidParameters):
        overflowed(np.zeros(3, dtype=np.int64), 65)
