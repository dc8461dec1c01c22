"""Schemes with sums that are broken in one way each, and the laws that must reject them.

A broken scheme changes one thing in ``Quantized``, which keeps every law. The tests assert the exact set of laws that
reject it: the expected laws must, and the others must not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, Layout, Payload, RingSegment, public_parameters_digest
from secagg.contract.decoder import capacity_between
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring, require_capacity
from secagg.errors import Misuse
from tests.harness.broken_schemes import rejecting

Vector = Any
"""An array of floats, of codes, or of sums of codes."""
LEAST, GREATEST = -8, 7


@dataclass(frozen=True, kw_only=True)
class Quantized:
    """Codes of four bits with a shared step and zero point; it keeps every law."""

    length: int = 3
    step: float = 0.25
    zero_point: int = 3
    modulus_bits: int = 12

    @property
    def ring(self) -> Ring:
        return Ring(self.modulus_bits)

    @property
    def layout(self) -> Layout:
        parameters = f"{self.length} {self.step.hex()} {self.zero_point} {self.modulus_bits}".encode()
        return Layout((RingSegment(self.modulus_bits, self.length),), public_parameters_digest("test", parameters))

    @property
    def capacity(self) -> int:
        return capacity_between(LEAST, GREATEST, self.modulus_bits)

    def encode(self, update: Vector, coins: Coins) -> Payload:  # noqa: ARG002
        self.check(update)
        return Payload(self.layout, (self.ring.from_integers(self.codes(update)),))

    def check(self, update: Vector) -> None:
        if getattr(update, "dtype", np.dtype(bool)).kind != "f" or update.shape != (self.length,):
            raise Misuse(f"an update is {self.length} floats")

    def codes(self, update: Vector) -> Vector:
        within = np.clip(np.nan_to_num(update), -99, 99)
        return np.clip(np.rint(within / self.step) + self.zero_point, LEAST, GREATEST).astype(np.int64)

    def decode(self, aggregate: Aggregate) -> Vector:
        self.check_aggregate(aggregate)
        return self.dequantized(self.ring.lift(aggregate.values[0]).astype(np.int64), aggregate)

    def check_aggregate(self, aggregate: Aggregate) -> None:
        if aggregate.layout != self.layout:
            raise Misuse("another layout")
        require_capacity(aggregate.contributors, self.capacity)

    def dequantized(self, sums: Vector, aggregate: Aggregate) -> Vector:
        return self.step * (sums - self.zero_point * aggregate.contributors)


def described(name: str, make: Any) -> Candidate:
    return Candidate(
        name=name,
        make=make,
        updates=arrays(np.float64, 3, elements=st.floats(-4.0, 4.0)),
        expected=lambda update: np.clip(update, -2.75, 1.0),
        error=0.125,
        extremes=[np.full(3, -99.0), np.full(3, 99.0)],
        bad_updates={"no array": "an update", "integers": np.zeros(3, dtype=np.int64)},
        others={
            "another length": partial(make, length=4),
            "another step": partial(make, step=0.5),
            "another zero point": partial(make, zero_point=2),
            "another ring": partial(make, modulus_bits=13),
        },
        payload_bytes=5,
    )


# --- Broken sums ------------------------------------------------------------------------------------------------------


class NonLinearDecoder(Quantized):
    """Codes are square roots, and their sum is squared."""

    def codes(self, update: Vector) -> Vector:
        clipped = np.clip(np.nan_to_num(update), -2.75, 1.0)
        return np.rint(np.sign(clipped) * np.sqrt(np.abs(clipped)) * 4).astype(np.int64)

    def dequantized(self, sums: Vector, aggregate: Aggregate) -> Vector:  # noqa: ARG002
        return np.sign(sums) * (sums / 4) ** 2


class PerClientScale(Quantized):
    """Each client divides by its own largest value, and the server multiplies by the mean of those values."""

    @property
    def layout(self) -> Layout:
        (segment,) = super().layout.segments
        return Layout((segment, RingSegment(32, 1)), super().layout.version)

    @property
    def capacity(self) -> int:
        return capacity_between(-7, 7, self.modulus_bits)

    def encode(self, update: Vector, coins: Coins) -> Payload:  # noqa: ARG002
        self.check(update)
        clipped = np.clip(np.nan_to_num(update), -2.75, 1.0)
        steps = max(1, round(float(np.abs(clipped).max()) * 2**16))
        codes = np.clip(np.rint(clipped / (steps / 2**16) * 7), -7, 7).astype(np.int64)
        return Payload(self.layout, (self.ring.from_integers(codes), Ring(32).from_integers([steps])))

    def dequantized(self, sums: Vector, aggregate: Aggregate) -> Vector:
        scale = int(aggregate.values[1][0]) / 2**16 / aggregate.contributors
        return sums * scale / 7


class MeanTakenOnCodes(Quantized):
    """The mean is truncated to a code, as in the paper's simulator."""

    def dequantized(self, sums: Vector, aggregate: Aggregate) -> Vector:
        return super().dequantized(sums // aggregate.contributors * aggregate.contributors, aggregate)


class SaturatingSum(Quantized):
    """Sums are kept to eight bits, which a few clients do not exceed."""

    def dequantized(self, sums: Vector, aggregate: Aggregate) -> Vector:
        return super().dequantized(np.clip(sums, -128, 127), aggregate)


class NoisyDecoder(Quantized):
    """A relative error of 2^-40: too small for a float32, but larger than a float64's rounding error."""

    def dequantized(self, sums: Vector, aggregate: Aggregate) -> Vector:
        return super().dequantized(sums, aggregate) * (1 + 2.0**-40 * (aggregate.contributors > 1))


# --- Broken capacities ------------------------------------------------------------------------------------------------


class CapacityOneTooMany(Quantized):
    """The capacity is one client too low."""

    @property
    def capacity(self) -> int:
        return super().capacity + 1


class CapacityOneTooFew(Quantized):
    """The capacity could be one client higher."""

    @property
    def capacity(self) -> int:
        return super().capacity - 1


class CapacityRefused(Quantized):
    """An aggregate of exactly the capacity is refused."""

    def check_aggregate(self, aggregate: Aggregate) -> None:
        super().check_aggregate(aggregate)
        require_capacity(aggregate.contributors, self.capacity - 1)


class CodesThatWrap(Quantized):
    """Codes are not clamped and wrap around in the ring."""

    def encode(self, update: Vector, coins: Coins) -> Payload:  # noqa: ARG002
        self.check(update)
        codes = (np.rint(update / self.step) + self.zero_point).astype(np.int64)
        return Payload(self.layout, ((codes % 2**self.modulus_bits).astype(self.ring.word),))


class RoundsDown(Quantized):
    """The error is up to one step instead of half a step."""

    def codes(self, update: Vector) -> Vector:
        within = np.clip(np.nan_to_num(update), -99, 99)
        return np.clip(np.floor(within / self.step) + self.zero_point, LEAST, GREATEST).astype(np.int64)


# --- Which law rejects which scheme -----------------------------------------------------------------------------------


def broken(make: type[Quantized], *laws: str, **changes: Any) -> Any:
    return pytest.param(replace(described(make.__name__, make), **changes), set(laws), id=make.__name__)


BROKEN = [
    broken(NonLinearDecoder, "linearity", "alike", "capacity", error=0.5),
    broken(PerClientScale, "linearity", "alike", payload_bytes=9, error=0.25),
    broken(MeanTakenOnCodes, "linearity", "alike"),
    broken(SaturatingSum, "alike", "capacity"),
    broken(NoisyDecoder, "linearity", "alike", "capacity"),
    broken(CapacityOneTooMany, "capacity"),
    # Only extremes reach the capacity here.
    broken(CapacityOneTooMany, "capacity", updates=arrays(np.float64, 3, elements=st.floats(-0.1, 0.1))),
    broken(CapacityOneTooFew, "capacity"),
    broken(CapacityRefused, "capacity"),
    broken(CodesThatWrap, "totality", "alike", "capacity", "round_trip"),
    broken(RoundsDown, "round_trip"),
]


@pytest.mark.parametrize(("candidate", "expected"), BROKEN)
def test_a_broken_scheme_is_rejected_by_exactly_the_laws_that_it_violates(
    candidate: Candidate, expected: set[str]
) -> None:
    assert rejecting(candidate, expected) == expected


@pytest.mark.parametrize(("candidate", "law"), cases(described("Quantized", Quantized)), ids=str)
def test_a_correct_scheme_keeps_every_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)
