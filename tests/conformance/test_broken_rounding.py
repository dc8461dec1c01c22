"""The law of masked rounding on schemes that break it: each is refused for what it does, and the honest one passes."""

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
from secagg.crypto.ring import capacity_between
from secagg.errors import ContractViolation

(LAW,) = (law for law in LAWS if str(law) == "masked_rounding")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHeadRoom(DitheredQuantization):
    """The capacity of the values alone."""

    @property
    def capacity(self) -> int:
        return capacity_between(-self.bound, self.bound, self.modulus_bits + self.fine_bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSteps(DitheredQuantization):
    """What is below a step is cut off when a sum is decoded."""

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        # Named in full: a dataclass with slots is another class than the one that super() would look for.
        decoded = DitheredQuantization.decode(self, aggregate)
        whole: npt.NDArray[np.float32] = (np.floor(decoded / self.scale) * self.scale).astype(np.float32)
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnBias(DitheredQuantization):
    """The scheme takes off half a step for each client, as if masked values had been cut and not rounded."""

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float32]:
        decoded = DitheredQuantization.decode(self, aggregate)
        # Once too often on top of what one client decodes to, so that no other law notices.
        bias = np.float32(self.scale / 2 * (aggregate.contributors - 1))
        moved: npt.NDArray[np.float32] = decoded + bias * (decoded % self.scale != 0)
        return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubled(DitheredQuantization):
    """Fine steps beyond the whole ones count twice."""

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


def test_the_scheme_itself_keeps_the_law() -> None:
    LAW.check(candidate(DitheredQuantization))


@pytest.mark.parametrize(
    ("scheme", "evidence"),
    [
        (NoHeadRoom, "the sum of the decoded"),
        (WholeSteps, "fine step|the sum of the decoded"),
        (OwnBias, "mean error|fine step"),
        (Doubled, "fine step|times the energy"),
    ],
)
def test_a_broken_scheme_is_refused(scheme: type[DitheredQuantization], evidence: str) -> None:
    with pytest.raises(ContractViolation, match=evidence):
        LAW.check(candidate(scheme))
