"""A scheme for a small layer that was written from compression/README.md alone, and keeps every law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment, public_parameters_digest
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring, capacity_between, require_capacity
from secagg.errors import InvalidParameters, Misuse

Layer = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaletteLayer:
    """A layer whose weights become the nearest of a few public levels, and whose biases become hundredths."""

    rows: int
    columns: int
    levels: tuple[float, ...]
    modulus_bits: int = 16

    def __post_init__(self) -> None:
        if not np.isfinite(self.levels).all() or list(self.levels) != sorted(set(self.levels)):
            raise InvalidParameters("levels are finite and increase; sort them and drop doubles")

    @property
    def segments(self) -> tuple[IndexSegment, RingSegment]:
        return IndexSegment(len(self.levels), self.rows * self.columns), RingSegment(self.modulus_bits, self.rows)

    @property
    def layout(self) -> Layout:
        parameters = np.array([self.rows, self.columns, self.modulus_bits], dtype=">u8").tobytes()
        parameters += np.array(self.levels, dtype=">f8").tobytes()
        return Layout(self.segments, public_parameters_digest("palette_layer", parameters))

    @property
    def capacity(self) -> int:
        return capacity_between(-100, 100, self.modulus_bits)

    def encode(self, update: Layer, coins: Coins) -> Payload:  # noqa: ARG002 -- nothing is rounded at random
        shapes = {"weights": (self.rows, self.columns), "biases": (self.rows,)}
        given: Any = update
        if not isinstance(given, Mapping) or update.keys() != shapes.keys():
            raise Misuse(f"an update is a dict of {', '.join(shapes)}")
        for name, shape in shapes.items():
            if getattr(update[name], "dtype", None) != np.float32 or update[name].shape != shape:
                raise Misuse(f"{name} is an array of float32 of shape {shape}")
        weights, biases = (np.nan_to_num(update[name].astype(np.float64)) for name in shapes)
        nearest = np.abs(weights.reshape(-1, 1) - np.array(self.levels)).argmin(axis=1)
        hundredths = np.rint(np.clip(biases, -1.0, 1.0) * 100).astype(np.int64)
        indices, ring = nearest.astype(self.segments[0].ring.word), Ring(self.modulus_bits)
        return Payload(self.layout, (indices, ring.from_integers(hundredths)))

    def decode(self, aggregate: Aggregate) -> Layer:
        if aggregate.layout != self.layout:
            raise Misuse("the aggregate belongs to another layout or version; decode with the object that encoded")
        require_capacity(aggregate.total_weight, self.capacity)
        histogram, hundredths = aggregate.values
        weights = (histogram.astype(np.float64) @ np.array(self.levels)).reshape(self.rows, self.columns)
        return {"weights": weights, "biases": Ring(self.modulus_bits).lift(hundredths) / 100}


LEVELS = (-0.5, 0.0, 1.0)


def palette(rows: int = 2, columns: int = 3, levels: tuple[float, ...] = LEVELS, **ring: int) -> PaletteLayer:
    return PaletteLayer(rows=rows, columns=columns, levels=levels, **ring)


def floats(shape: tuple[int, ...]) -> st.SearchStrategy[npt.NDArray[np.float32]]:
    return arrays(np.float32, shape, elements=st.floats(-2.0, 2.0, width=32))


def nearest_levels(update: Layer) -> Layer:
    """Choose the least of equally near levels, as the scheme does."""
    weights = [min(LEVELS, key=partial(distance, weight)) for weight in update["weights"].reshape(-1).tolist()]
    return {"weights": np.array(weights).reshape(2, 3), "biases": np.clip(update["biases"], -1, 1)}


def distance(weight: float, level: float) -> float:
    return abs(level - weight)


def layer(weights: float, biases: float) -> Layer:
    return {
        "weights": np.full((2, 3), weights, dtype=np.float32),
        "biases": np.full(2, biases, dtype=np.float32),
    }


CANDIDATE = Candidate(
    name="palette_layer",
    make=palette,
    updates=st.fixed_dictionaries({"weights": floats((2, 3)), "biases": floats((2,))}),
    expected=nearest_levels,
    error=lambda _: {"weights": np.zeros((2, 3)), "biases": np.full(2, 0.005)},
    extremes=[layer(-9.0, -9.0), layer(9.0, 9.0)],
    others={
        "another shape": lambda: palette(rows=3, columns=2),
        "another level": lambda: palette(levels=(-0.5, 0.0, 1.5)),
        "another ring": lambda: palette(modulus_bits=17),
    },
    payload_bytes=2 + 4,
)


@pytest.mark.parametrize(("candidate", "law"), cases(CANDIDATE), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def test_levels_that_do_not_increase_are_refused() -> None:
    for levels in ((0.0, 0.0), (1.0, 0.0), (0.0, float("nan"))):
        with pytest.raises(InvalidParameters):
            palette(levels=levels)
