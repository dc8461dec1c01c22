"""The norm of a client's own values is exact, at every width and at the ends of every range."""

from __future__ import annotations

from math import isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, Reason
from secagg.protocols.enclave.privacy.norm import require_norm, squared_norm


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


@given(values=st.lists(st.integers(-(1 << 19), (1 << 19) - 1), min_size=1, max_size=20).filter(any))
def test_a_bound_is_met_or_it_is_not(values: list[int]) -> None:
    ring = Ring(20)
    vector = ring.from_integers(np.array(values, dtype=np.int64))
    root = isqrt(sum(value * value for value in values))
    exact = root * root == sum(value * value for value in values)
    require_norm(ring, vector, root + 1)
    if exact:
        require_norm(ring, vector, root)
    below = root - 1 if exact else root
    with pytest.raises(CapacityExceeded, match="clip it") as caught:
        require_norm(ring, vector, below)
    assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE


def test_an_empty_vector_and_zeros_have_none() -> None:
    ring = Ring(20)
    assert squared_norm(ring, ring.zeros(0)) == 0
    require_norm(ring, ring.zeros(100), 0)
