"""Integers pass through a ring unchanged: the contract's laws, exact sums, and refusals."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.fixed_point import Identity
from secagg.conformance import Candidate, Law, cases
from secagg.contract import ideal_aggregate
from secagg.errors import InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"nothing is drawn")


def scheme(length: int = 3, bound: int = 100, modulus_bits: int = 16) -> Identity:
    return Identity(length=length, bound=bound, modulus_bits=modulus_bits)


def integers_of(dtype: str) -> st.SearchStrategy[npt.NDArray[Any]]:
    least = 0 if np.dtype(dtype).kind == "u" else -100
    return arrays(np.dtype(dtype), 3, elements=st.integers(least, 100))


CANDIDATE = Candidate(
    name="identity",
    make=scheme,
    updates=st.one_of([integers_of(dtype) for dtype in ("<i8", "<u1", "<i1", ">i4", "<u8")]),
    error=0,
    ulps=0,
    extremes=[np.full(3, 100), np.full(3, -100)],
    bad_updates={"floats": np.zeros(3), "truths": np.zeros(3, dtype=np.bool_), "durations": np.zeros(3, dtype="m8[s]")},
    others={
        "another length": lambda: scheme(length=4),
        "another bound": lambda: scheme(bound=101),
        "another ring": lambda: scheme(modulus_bits=15),
    },
    payload_bytes=6,
)


@pytest.mark.parametrize(("candidate", "law"), cases(CANDIDATE), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def test_the_widest_integers_are_summed_exactly() -> None:
    decoder = scheme(length=2, bound=2**53 + 1, modulus_bits=64)
    clients = [decoder.encode(np.array([2**53 + 1, -(2**53) - 1]), COINS) for _ in range(3)]
    total = decoder.decode(ideal_aggregate(decoder.layout, clients))
    assert total.tolist() == [3 * (2**53 + 1), -3 * (2**53 + 1)]


def test_a_vector_of_floats_is_sent_to_the_scheme_that_rounds() -> None:
    floats: Any = np.zeros(3)
    with pytest.raises(Misuse, match="FixedPoint"):
        scheme().encode(floats, COINS)


@pytest.mark.parametrize(
    "bad",
    [{"bound": 0}, {"bound": -1}, {"bound": 2**15}, {"bound": 1.0}, {"bound": True}, {"modulus_bits": 1}],
    ids=repr,
)
def test_a_bound_that_the_ring_does_not_hold_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters, match="bound must be an integer"):
        scheme(**bad)


@pytest.mark.parametrize("bad", [{"modulus_bits": 65}, {"modulus_bits": 0}, {"length": 0}, {"length": -1}], ids=repr)
def test_a_ring_or_a_length_that_cannot_be_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        scheme(**bad)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_a_value_out_of_bounds_counts_as_the_bound(kind: type[Any]) -> None:
    ends = np.iinfo(kind)
    update = np.array([ends.min, 5, ends.max], dtype=kind)
    found = scheme().encode(update, COINS)
    due = scheme().encode(np.array([max(-100, int(ends.min)), 5, 100]), COINS)
    assert found.encode() == due.encode()
