"""Small tensors that are encoded in one go: the same values in the same places, and the same errors, by name."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, TensorScheme
from secagg.compression.model_update.tensors import joined, merged
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract import LinearDecoder
from secagg.errors import Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins


def fixed(length: int, **changes: Any) -> FixedPoint:
    parameters: dict[str, Any] = {"length": length, "clip": 1.0, "fraction_bits": 8, "modulus_bits": 24}
    return FixedPoint(**(parameters | changes))


def codes(length: int, modulus_bits: int = 24) -> ScalarQuantization:
    return ScalarQuantization(
        shape=(length,), bits=6, modulus_bits=modulus_bits, scales=(2.0**-5,), rounding=Rounding.STOCHASTIC
    )


def tensors(schemes: dict[str, LinearDecoder[Any]], lengths: dict[str, int]) -> tuple[TensorScheme, ...]:
    return tuple(TensorScheme(name=name, shape=(lengths[name],), scheme=scheme) for name, scheme in schemes.items())


MIXED: dict[str, LinearDecoder[Any]] = {
    "first": fixed(3),
    "codes": codes(5, modulus_bits=10),
    "second": fixed(4),
    "coarse": fixed(2, fraction_bits=4),
    "third": fixed(1),
    "between": codes(2),
    "fourth": fixed(6),
    "large": fixed((1 << 15) + 1),
    "fifth": fixed(2),
    "sixth": fixed(2),
}
LENGTHS = {name: scheme.layout.segments[0].length for name, scheme in MIXED.items()}
MODEL = ModelUpdate(tensors=tensors(MIXED, LENGTHS))


def update(seed: int = 1) -> dict[str, npt.NDArray[Any]]:
    drawn = np.random.default_rng(seed)
    return {name: drawn.normal(size=length).astype(np.float32) for name, length in LENGTHS.items()}


def test_only_small_tensors_of_one_format_that_lie_side_by_side_are_joined() -> None:
    _, parts = merged([scheme.layout.segments for scheme in MIXED.values()])
    found = [[tensor.name for tensor in some.tensors] for some in joined(MODEL.tensors, parts)]
    assert [names for names in found if len(names) > 1] == [["first", "second"], ["fifth", "sixth"]]
    assert sorted(name for names in found for name in names) == sorted(MIXED)


def test_joined_tensors_are_encoded_as_they_would_be_alone() -> None:
    given, coins = update(), InsecureSeededCoins(b"for rounding")
    found = MODEL.encode(given, InsecureSeededCoins(b"for rounding"))
    segments, parts = merged([scheme.layout.segments for scheme in MIXED.values()])
    due = [segment.ring.zeros(segment.length) for segment in segments]
    for (name, scheme), own in zip(MIXED.items(), parts, strict=True):
        for (segment, part), values in zip(own, scheme.encode(given[name], coins).values, strict=True):
            due[segment][part] = values
    assert all(np.array_equal(mine, wanted) for mine, wanted in zip(found.values, due, strict=True))


@pytest.mark.parametrize("name", ["first", "second", "sixth"])
def test_what_cannot_be_encoded_is_named(name: str) -> None:
    with pytest.raises(Misuse, match=f"tensor '{name}'"):
        MODEL.encode({**update(), name: np.ones(LENGTHS[name], np.int64)}, InsecureSeededCoins(b"c"))
    with pytest.raises(Misuse, match=f"tensor '{name}'"):
        MODEL.encode({**update(), name: np.ones(LENGTHS[name] + 1)}, InsecureSeededCoins(b"c"))


def test_types_that_differ_are_not_joined_by_rounding_one_of_them() -> None:
    given = {name: value.astype(np.float64) for name, value in update().items()}
    alone = MODEL.encode(given, InsecureSeededCoins(b"c"))
    narrow: dict[str, npt.NDArray[Any]] = {**given, "first": given["first"].astype(np.float32)}
    mixed = MODEL.encode(narrow, InsecureSeededCoins(b"c"))
    assert all(np.array_equal(mine, wanted) for mine, wanted in zip(mixed.values, alone.values, strict=True))
