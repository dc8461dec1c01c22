"""Fixed-point encoding against exact fractions: the contract's law, the error bound, and all refusals."""

import hashlib
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.fixed_point import FixedPoint
from secagg.conformance import Candidate, Law, cases
from secagg.contract import ideal_aggregate
from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"rounding to nearest draws none of them")
Vector = npt.NDArray[np.floating[Any]]


def scheme(length: int = 3, clip: float = 1.0, fraction_bits: int = 8, modulus_bits: int = 24) -> FixedPoint:
    return FixedPoint(length=length, clip=clip, fraction_bits=fraction_bits, modulus_bits=modulus_bits)


@st.composite
def schemes(draw: st.DrawFn, length: int = 3) -> FixedPoint:
    """Draw a scheme whose sums of up to eight updates are float64 integers."""
    clip = draw(st.sampled_from([0.3, 0.5, 1.0, 1.1, math.pi, 64.0, 1000.3]) | st.floats(0.01, 1e4))
    fraction_bits = draw(st.integers(7, 36))
    steps = round(Fraction(clip) * (1 << fraction_bits))
    return scheme(length, clip, fraction_bits, draw(st.integers(steps.bit_length() + 4, 64)))


def updates(decoder: FixedPoint) -> st.SearchStrategy[npt.NDArray[np.float64]]:
    edge = decoder.clip
    step = math.ldexp(1.0, -decoder.fraction_bits)
    telling = [0.0, -0.0, 5e-324, -5e-324, edge, -edge, math.nextafter(edge, 0), math.nextafter(edge, math.inf), 1e308]
    ties = st.integers(-5, 5).map(lambda steps: (steps + 0.5) * step)
    value = st.sampled_from(telling) | ties | st.floats(-3 * edge, 3 * edge)
    return st.lists(value, min_size=decoder.length, max_size=decoder.length).map(np.array)


def exact_steps(decoder: FixedPoint, value: float) -> int:
    """Clip and round in exact fractions; Python rounds ties to even."""
    clip = Fraction(decoder.clip)
    return round(min(max(Fraction(value), -clip), clip) * (1 << decoder.fraction_bits))


def steps_of(decoder: FixedPoint, update: Vector) -> list[int]:
    lifted = Ring(decoder.modulus_bits).lift(decoder.encode(update, COINS).values[0])
    return [int(steps) for steps in lifted]


def decoded_sum(
    decoder: FixedPoint, clients: Sequence[Vector], weights: Sequence[int] | None = None
) -> npt.NDArray[np.float64]:
    encoded = [decoder.encode(update, COINS) for update in clients]
    return decoder.decode(ideal_aggregate(decoder.layout, encoded, weights))


def floats_of(dtype: str) -> st.SearchStrategy[Vector]:
    return arrays(np.dtype(dtype), 3, elements=st.floats(-2.0, 2.0, width=16))


CANDIDATES = [
    Candidate(
        name="fixed_point",
        make=scheme,
        updates=st.one_of([floats_of(dtype) for dtype in ("<f8", "<f4", "<f2", ">f8", "g")]),
        expected=lambda update: np.clip(update.astype(np.float64), -1.0, 1.0),
        error=2.0**-9,
        ulps=0,
        extremes=[np.full(3, 1e300), np.full(3, -1e300)],
        bad_updates={"integers": np.zeros(3, dtype=np.int64), "truths": np.zeros(3, dtype=np.bool_)},
        others={
            "another length": lambda: scheme(length=4),
            "another clip": lambda: scheme(clip=math.nextafter(1.0, 2.0)),
            "another step": lambda: scheme(fraction_bits=9),
            "another ring": lambda: scheme(modulus_bits=25),
        },
        payload_bytes=9,
    ),
    Candidate(
        name="fixed_point with a clip between two steps",
        make=lambda: scheme(clip=1.1, fraction_bits=5, modulus_bits=11),
        updates=floats_of("<f4"),
        expected=lambda update: np.clip(update.astype(np.float64), -1.1, 1.1),
        error=2.0**-6,
        ulps=0,
        extremes=[np.full(3, 99.0), np.full(3, -99.0)],
        others={
            "another length": lambda: scheme(length=4, clip=1.1, fraction_bits=5, modulus_bits=11),
            "another clip": lambda: scheme(clip=1.2, fraction_bits=5, modulus_bits=11),
            "another step": lambda: scheme(clip=1.1, fraction_bits=4, modulus_bits=11),
            "another ring": lambda: scheme(clip=1.1, fraction_bits=5, modulus_bits=12),
        },
        payload_bytes=5,
    ),
]


@pytest.mark.parametrize(("candidate", "law"), cases(*CANDIDATES), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


@given(st.data(), schemes())
def test_encoding_clips_and_rounds_as_exact_fractions_do(data: st.DataObject, decoder: FixedPoint) -> None:
    update = data.draw(updates(decoder))
    assert steps_of(decoder, update) == [exact_steps(decoder, value) for value in update.tolist()]


def test_the_law_and_the_error_bound_hold_up_to_the_capacity_of_the_widest_scheme() -> None:
    # The sum of four such updates has more bits than a float64.
    decoder = scheme(length=1, clip=float((1 << 52) - 1), fraction_bits=0, modulus_bits=64)
    update = np.array([decoder.clip])
    for count in range(1, min(decoder.capacity, 4) + 1):
        assert Fraction(decoded_sum(decoder, [update] * count).item()) == count * Fraction(decoder.clip)


def test_a_ring_that_one_value_fills_is_the_narrowest() -> None:
    assert scheme(clip=127.0, fraction_bits=0, modulus_bits=8).capacity == 1
    with pytest.raises(CapacityExceeded):
        scheme(clip=128.0, fraction_bits=0, modulus_bits=8)
    with pytest.raises(CapacityExceeded):
        scheme(clip=127.5, fraction_bits=0, modulus_bits=8)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"clip": 0.0}, "clip"),
        ({"clip": -0.0}, "clip"),
        ({"clip": -1.0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"clip": float("inf")}, "clip"),
        ({"clip": 1e-9}, "clip"),
        ({"clip": 5e-324}, "clip"),
        ({"clip": 0.5, "fraction_bits": 0}, "clip"),
        ({"clip": 2.0**52, "fraction_bits": 0, "modulus_bits": 64}, "clip"),
        ({"clip": 1.0, "fraction_bits": 52, "modulus_bits": 64}, "clip"),
        ({"clip": 1e308, "fraction_bits": 52}, "clip"),
        ({"clip": 1e308, "fraction_bits": 0}, "clip"),
        ({"fraction_bits": -1}, "fraction_bits"),
        ({"fraction_bits": 53, "clip": 1e-6}, "fraction_bits"),
        ({"modulus_bits": 0}, "modulus_bits"),
        ({"modulus_bits": 65}, "modulus_bits"),
        ({"length": 0}, "length"),
        ({"length": -1}, "length"),
        ({"length": (1 << 40) + 1}, "length"),
    ],
    ids=repr,
)
def test_a_bad_parameter_is_named_when_the_scheme_is_made(bad: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameters, match=named):
        scheme(**bad)


def test_the_most_steps_and_the_most_fraction_bits_are_accepted() -> None:
    most = scheme(clip=float((1 << 52) - 1), fraction_bits=0, modulus_bits=53)
    assert (most.bound, most.capacity) == ((1 << 52) - 1, 1)
    assert scheme(clip=0.25, fraction_bits=52, modulus_bits=64).bound == 1 << 50


def test_the_version_is_the_digest_of_the_name_and_the_parameters() -> None:
    parts = (b"fixed_point", struct.pack(">QdII", 3, 1.0, 8, 24))
    bound = b"secagg/1/public-parameters" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    assert scheme().layout.version == hashlib.sha256(bound).digest()
