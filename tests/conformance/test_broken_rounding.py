"""The law of masked rounding: it rejects each broken scheme for its fault, and accepts the correct one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.scalar_quantization import DitheredQuantization
from secagg.conformance import LAWS, Candidate
from secagg.contract import Aggregate
from secagg.contract.decoder import capacity_between
from secagg.errors import ContractViolation

(LAW,) = (law for law in LAWS if str(law) == "masked_rounding")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHeadRoom(DitheredQuantization):
    """The capacity without headroom for rounding."""

    @property
    def capacity(self) -> int:
        return capacity_between(-self.bound, self.bound, self.modulus_bits + self.fine_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSteps(DitheredQuantization):
    """Fractions of a step are truncated when a sum is decoded."""

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        # Named in full, because super() without arguments fails in a dataclass with slots.
        decoded = DitheredQuantization.decode(self, aggregate)
        whole: npt.NDArray[np.float32] = (np.floor(decoded / self.scale) * self.scale).astype(np.float32)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBias(DitheredQuantization):
    """The scheme subtracts half a step for each client, as if masked values were truncated instead of rounded."""

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        decoded = DitheredQuantization.decode(self, aggregate)
        # It is subtracted from sums of several clients only, so no other law notices.
        bias = np.float32(self.scale / 2 * (aggregate.contributors - 1))
        moved: npt.NDArray[np.float32] = decoded + bias * (decoded % self.scale != 0)
        return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubled(DitheredQuantization):
    """Fine steps beyond whole steps are counted twice."""

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        decoded = DitheredQuantization.decode(self, aggregate)
        whole = np.rint(decoded / self.scale).astype(np.float32) * np.float32(self.scale)
        doubled: npt.NDArray[np.float32] = (decoded + (decoded - whole)).astype(np.float32)
        return doubled


def candidate(scheme: type[DitheredQuantization]) -> Candidate:
    def make() -> Any:
        return scheme(shape=(3,), bits=2, modulus_bits=6, scale=0.5, fine_bits=7)

    return Candidate(
        name=scheme.__name__,
        make=make,
        updates=arrays(np.float64, 3, elements=st.floats(-1.0, 1.0)),
        error=2.0**-9,
        extremes=[np.full(3, 99.0), np.full(3, -99.0)],
    )


def test_the_correct_scheme_keeps_the_law_of_rounding() -> None:
    LAW.check(candidate(DitheredQuantization))


@pytest.mark.parametrize(
    ("scheme", "evidence"),
    [
        (NoHeadRoom, "the sum of the decoded"),
        (WholeSteps, "fine step|the sum of the decoded"),
        (OwnBias, "mean rounding error|fine step"),
        (Doubled, "fine step|energy of rounding errors"),
    ],
)
def test_a_broken_scheme_violates_the_law_of_rounding(scheme: type[DitheredQuantization], evidence: str) -> None:
    with pytest.raises(ContractViolation, match=evidence):
        LAW.check(candidate(scheme))
