"""The norm of a client's own values is exact, at every width and at the ends of every range, and scaled to a bound."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.ring import Ring
from secagg.privacy.kinds import clip_into, squared_norm


@given(data=st.data(), bits=st.integers(1, 64))
def test_the_squared_norm_is_that_of_plain_integers(data: st.DataObject, bits: int) -> None:
    ring = Ring(bits)
    edges = st.sampled_from([ring.least, ring.greatest, 0, min(1, ring.greatest), -1])
    values = data.draw(st.lists(st.one_of(st.integers(ring.least, ring.greatest), edges), min_size=1, max_size=40))
    vector = ring.from_integers(np.array(values, dtype=np.int64))
    assert squared_norm(ring, vector) == sum(value * value for value in values)


@pytest.mark.parametrize("bits", [1, 8, 24, 25, 32, 47, 48, 49, 63, 64])
@pytest.mark.parametrize("end", ["least", "greatest"])
@pytest.mark.parametrize("length", [1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40_000])
def test_it_does_not_wrap_at_the_ends_of_a_range_over_whole_pieces(bits: int, end: str, length: int) -> None:
    ring = Ring(bits)
    value: int = getattr(ring, end)
    vector = ring.from_integers(np.full(length, value, dtype=np.int64))
    assert squared_norm(ring, vector) == length * value * value


@given(data=st.data(), bits=st.integers(2, 64), bound=st.integers(1, (1 << 40) - 1))
def test_a_vector_is_scaled_down_to_its_bound_and_never_beyond(data: st.DataObject, bits: int, bound: int) -> None:
    ring = Ring(bits)
    edges = st.sampled_from([ring.least, ring.greatest, 0, min(1, ring.greatest), -1])
    values = data.draw(st.lists(st.one_of(st.integers(ring.least, ring.greatest), edges), min_size=1, max_size=40))
    vector = ring.from_integers(np.array(values, dtype=np.int64))
    squared = sum(value * value for value in values)
    norm = isqrt(squared - 1) + 1 if squared else 0
    clip_into(ring, vector, bound)
    ring.require_vector(vector)
    clipped: list[int] = ring.lift(vector).tolist()
    assert squared_norm(ring, vector) <= bound * bound
    if squared <= bound * bound:
        assert clipped == values
        return
    for value, scaled in zip(values, clipped, strict=True):
        exact = Fraction(value * bound, norm)
        assert abs(exact - scaled) < 1, "rounded towards zero, by less than a step"
        assert abs(scaled) <= abs(exact)


@pytest.mark.parametrize("bits", [20, 32, 48, 64])
def test_pieces_of_one_vector_are_scaled_by_one_factor(bits: int) -> None:
    ring = Ring(bits)
    vector = ring.from_integers(np.full(40_000, -(1 << 18), dtype=np.int64))
    clip_into(ring, vector, 200 * 1000)
    assert set(ring.lift(vector).tolist()) == {-1000}


def test_an_empty_vector_and_zeros_have_none() -> None:
    ring = Ring(20)
    assert squared_norm(ring, ring.zeros(0)) == 0
    zeros = ring.zeros(100)
    clip_into(ring, zeros, 1)
    assert not zeros.any()


def test_a_vector_whose_norm_has_more_than_63_bits_is_clipped_too() -> None:
    ring = Ring(61)
    vector = ring.from_integers(np.full(20_000, ring.least, dtype=np.int64))
    clip_into(ring, vector, 3)
    assert squared_norm(ring, vector) <= 3**2
