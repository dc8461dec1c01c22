"""Schemes with a deliberately broken encoding or behaviour, and the laws that must reject each of them.

A broken scheme changes one thing in an inner scheme that keeps every law. The tests assert the exact set of laws that
reject it: the expected laws must, and the others must not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.fixed_point import FixedPoint
from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, Layout, Payload, public_parameters_digest
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import CapacityExceeded, Misuse, Reason
from tests.harness.broken_schemes import LAW, rejecting

Update = Any


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Quarters in [-1, 1], encoded by the inner scheme; it keeps every law."""

    length: int = 3
    fraction_bits: int = 2
    modulus_bits: int = 12
    memory: dict[str, Any] = field(default_factory=dict[str, Any], compare=False)

    @property
    def inner(self) -> FixedPoint:
        return FixedPoint(
            length=self.length, clip=1.0, fraction_bits=self.fraction_bits, modulus_bits=self.modulus_bits
        )

    @property
    def layout(self) -> Layout:
        return self.inner.layout

    @property
    def capacity(self) -> int:
        return self.inner.capacity

    def encode(self, update: Update, coins: Coins) -> Payload:
        return self.inner.encode(update, coins)

    def decode(self, aggregate: Aggregate) -> Update:
        return self.inner.decode(aggregate)


def described(make: type[Scheme], **changes: Any) -> Candidate:
    candidate = Candidate(
        name=make.__name__,
        make=make,
        updates=arrays(np.float64, 3, elements=st.floats(-2.0, 2.0)),
        expected=lambda update: np.clip(update, -1.0, 1.0),
        error=0.125,
        extremes=[np.full(3, -99.0), np.full(3, 99.0)],
        bad_updates={"no array": "an update", "integers": np.zeros(3, dtype=np.int64)},
        others={
            "another length": partial(make, length=4),
            "another step": partial(make, fraction_bits=3),
            "another ring": partial(make, modulus_bits=13),
        },
        payload_bytes=5,
    )
    return replace(candidate, **changes)


# --- Coins ------------------------------------------------------------------------------------------------------------


class RoundsAtRandom(Scheme):
    """Rounding is stochastic and unbiased, which is allowed if the candidate declares it."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        exact = self.inner.encode(update, coins)
        drawn = np.frombuffer(coins.draw(4 * self.length), dtype="<u4") / 2.0**32
        rounded = np.ldexp(
            np.floor(np.ldexp(np.clip(np.nan_to_num(update), -2, 2), self.fraction_bits) + drawn), -self.fraction_bits
        )
        return Payload(exact.layout, self.inner.encode(rounded, coins).values)


class OwnEntropy(RoundsAtRandom):
    """Rounding takes randomness from the operating system."""

    def encode(self, update: Update, coins: Coins) -> Payload:  # noqa: ARG002
        return super().encode(update, SystemCoins())


# --- Layouts ----------------------------------------------------------------------------------------------------------


class LayoutFollowsTheUpdate(Scheme):
    """Trailing zeros are not sent."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        self.inner.encode(update, coins)
        sent = int(np.flatnonzero(update).max(initial=0)) + 1
        return replace(self, length=sent).inner.encode(update[:sent], coins)


class VersionFromTheData(Scheme):
    """The version covers a parameter that the last update sets."""

    @property
    def layout(self) -> Layout:
        parameters = bytes([self.length, self.fraction_bits, self.modulus_bits, self.memory.get("is_positive", False)])
        return Layout(self.inner.layout.segments, public_parameters_digest("quarters", parameters))

    def encode(self, update: Update, coins: Coins) -> Payload:
        payload = super().encode(update, coins)
        self.memory["is_positive"] = bool(update[0] > 0)
        return Payload(self.layout, payload.values)

    def decode(self, aggregate: Aggregate) -> Update:
        if aggregate.layout == self.layout:
            aggregate = replace(aggregate, layout=self.inner.layout)
        return super().decode(aggregate)


class Flattened(Scheme):
    """The decoded shape differs from the encoded one."""

    def decode(self, aggregate: Aggregate) -> Update:
        return super().decode(aggregate)[np.newaxis]


class Unversioned(Scheme):
    """No public parameter is in the layout."""

    @property
    def layout(self) -> Layout:
        return Layout(self.inner.layout.segments)

    def encode(self, update: Update, coins: Coins) -> Payload:
        return Payload(self.layout, super().encode(update, coins).values)

    def decode(self, aggregate: Aggregate) -> Update:
        if aggregate.layout == self.layout:
            aggregate = replace(aggregate, layout=self.inner.layout)
        return super().decode(aggregate)


class VersionWithoutTheStep(Unversioned):
    """Two steps share one version."""

    @property
    def layout(self) -> Layout:
        return Layout(self.inner.layout.segments, public_parameters_digest("quarters", bytes([self.modulus_bits])))


class DecodesAnyLayout(Scheme):
    """The layout of an aggregate is not checked."""

    def decode(self, aggregate: Aggregate) -> Update:
        return super().decode(replace(aggregate, layout=self.layout))


class PaddedPayload(Payload):
    """A payload that is one byte longer on the wire."""

    __slots__ = ()

    def encode(self) -> bytes:
        return Payload.encode(self) + b"\0"


class PaddedOnTheWire(Scheme):
    """Payloads have a custom type."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        return PaddedPayload(self.layout, super().encode(update, coins).values)


# --- Memory -----------------------------------------------------------------------------------------------------------


class ErrorFeedback(Scheme):
    """The rounding error of one update is added to the next."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        self.inner.encode(update, coins)
        corrected = np.clip(update, -1.0, 1.0) + self.memory.get("residual", 0.0)
        payload = super().encode(corrected, coins)
        self.memory["residual"] = corrected - np.ldexp(np.rint(np.ldexp(corrected, 2)), -2)
        return payload


class ScaleOfTheLastClient(Scheme):
    """Each client divides by its largest value, and the decoder multiplies by the last one that it stored."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        self.inner.encode(update, coins)
        update = np.nan_to_num(update)
        self.memory["scale"] = max(float(np.abs(update).max()), 2.0**-30)
        return super().encode(update / self.memory["scale"], coins)

    def decode(self, aggregate: Aggregate) -> Update:
        return super().decode(aggregate) * self.memory.get("scale", 1.0)


class RemembersARefusal(Scheme):
    """After a refused update, only zeros are sent."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        try:
            payload = super().encode(update, coins)
        except Misuse:
            self.memory["refused"] = True
            raise
        return super().encode(update * 0, coins) if "refused" in self.memory else payload


class ResultReused(Scheme):
    """All callers that decode one aggregate share one array."""

    def decode(self, aggregate: Aggregate) -> Update:
        return self.memory.setdefault(str(aggregate.encode() + aggregate.layout.digest), super().decode(aggregate))


class Momentum(Scheme):
    """Half of the previous result is added to the next one."""

    def decode(self, aggregate: Aggregate) -> Update:
        self.memory["momentum"] = super().decode(aggregate) + self.memory.get("momentum", 0.0) / 2
        return self.memory["momentum"].copy()


class ClipsInPlaceWherePossible(Scheme):
    """The caller's update is clipped in place, unless it is read-only."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        self.inner.encode(update, coins)
        return super().encode(np.clip(update, -1.0, 1.0, out=update if update.flags.writeable else None), coins)


class WipesTheAggregate(Scheme):
    """An aggregate can only be decoded once."""

    def decode(self, aggregate: Aggregate) -> Update:
        decoded = super().decode(aggregate)
        aggregate.values[0][:] = 0
        return decoded


# --- Refusals ---------------------------------------------------------------------------------------------------------


class RefusesNan(Scheme):
    """NaN is refused, which reveals which client has it."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        if getattr(update, "dtype", None) == np.float64 and np.isnan(update).any():
            raise CapacityExceeded("an update holds NaN", reason=Reason.INPUT_OUT_OF_RANGE)
        return super().encode(update, coins)


class TakesInfinityForZero(Scheme):
    """Infinity is encoded as zero."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        if getattr(update, "dtype", None) == np.float64:
            update = np.where(np.isinf(update), 0.0, update)
        return super().encode(update, coins)


class AcceptsLists(Scheme):
    """Lists are converted to arrays."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        return super().encode(np.array(update) if hasattr(update, "append") else update, coins)


class AcceptsAnyShape(Scheme):
    """Updates are repeated or cut to the required length."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        return super().encode(np.resize(update, self.length) if getattr(update, "size", 0) else update, coins)


class RefusesByAssertion(Scheme):
    """Malformed updates raise an error that no caller handles."""

    def encode(self, update: Update, coins: Coins) -> Payload:
        assert update.dtype.kind == "f"
        assert update.shape == (self.length,)
        return super().encode(update, coins)


# --- Which law rejects which scheme -----------------------------------------------------------------------------------


def broken(make: type[Scheme], *laws: str, **changes: Any) -> Any:
    return pytest.param(described(make, **changes), set(laws), id=make.__name__)


BETWEEN_STEPS = arrays(np.float64, 3, elements=st.sampled_from([-0.9, -0.6, -0.35, 0.15, 0.4, 0.6]))
"""Each of these values can be rounded up or down, whatever is drawn."""
AT_RANDOM = {"stochastic": True, "error": 0.25, "updates": BETWEEN_STEPS}
BROKEN = [
    broken(Scheme, "coins", **AT_RANDOM),
    broken(RoundsAtRandom, "coins", error=0.25),
    broken(OwnEntropy, "determinism", "agreement", "totality", "no_mutation", "statelessness", **AT_RANDOM),
    broken(
        LayoutFollowsTheUpdate,
        *LAW.keys() - {"determinism", "coins", "refusal", "decoded_sums", "largest_norm", "masked_rounding"},
    ),
    broken(VersionFromTheData, "linearity", "alike", "layout", "agreement", "statelessness"),
    broken(Flattened, "layout", "round_trip"),
    broken(Unversioned, "layout", "version"),
    broken(VersionWithoutTheStep, "version"),
    broken(DecodesAnyLayout, "version"),
    # Two other schemes share one layout.
    broken(Scheme, "version", others={"one": partial(Scheme, length=4), "the same": partial(Scheme, length=4)}),
    broken(PaddedOnTheWire, "byte_count", "agreement"),
    # The author counts three bits for each of nine codes and forgets the ring's headroom.
    broken(Scheme, "byte_count", payload_bytes=2),
    broken(ErrorFeedback, "determinism", "no_mutation", "statelessness"),
    broken(ScaleOfTheLastClient, "agreement", "statelessness", expected=np.copy, error=0.25),
    broken(RemembersARefusal, "statelessness"),
    broken(ResultReused, "no_mutation"),
    broken(Momentum, "linearity", "alike", "capacity", "no_mutation", "statelessness"),
    broken(ClipsInPlaceWherePossible, "no_mutation"),
    broken(WipesTheAggregate, "no_mutation", "statelessness"),
    # An update that the candidate wants to be refused is encoded.
    broken(Scheme, "refusal", bad_updates={"an update out of range": np.full(3, 9.0)}),
    broken(RefusesNan, "totality"),
    broken(TakesInfinityForZero, "totality"),
    broken(AcceptsLists, "refusal"),
    broken(AcceptsAnyShape, "refusal"),
    broken(RefusesByAssertion, "refusal"),
]


@pytest.mark.parametrize(("candidate", "expected"), BROKEN)
def test_a_broken_scheme_is_rejected_by_exactly_the_laws_that_it_violates(
    candidate: Candidate, expected: set[str]
) -> None:
    assert rejecting(candidate, expected) == expected


@pytest.mark.parametrize(
    ("candidate", "law"), cases(described(Scheme), described(RoundsAtRandom, **AT_RANDOM)), ids=str
)
def test_a_correct_scheme_keeps_every_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)
