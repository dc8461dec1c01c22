"""Schemes that decode sums of codewords, each broken in one way, and the law of decoded sums that must reject them.

A broken scheme changes one thing in ``Indexed``, which keeps every law. The other laws only look at histograms, so
they do not see the fault.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.conformance import Candidate, Law, cases
from secagg.conformance.sums import summed_aggregate
from secagg.contract import (
    Aggregate,
    IndexedDecoder,
    Layout,
    Payload,
    RingSegment,
    ideal_aggregate,
    public_parameters_digest,
)
from secagg.contract.codewords import CodewordTable, Tables, require_summed
from secagg.contract.layout import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring, require_capacity
from secagg.errors import ContractViolation, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.broken_schemes import LAW, SEARCH, rejecting

Vector = Any
"""An array of floats, of indices, or of sums."""


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """Four numbers as indices into two codebooks, and their mean in a ring; it keeps every law."""

    steps: tuple[int, ...] = (-8, -3, 0, 1, 4)
    step: float = 0.25
    capacity: int = 1000

    @property
    def entries(self) -> Vector:
        return np.array(self.steps, dtype=np.int64).reshape(-1, 1)

    @property
    def layout(self) -> Layout:
        parameters = f"{self.steps} {self.step.hex()} {self.capacity}".encode()
        segments = (RingSegment(20, 1), IndexSegment(len(self.steps), 4))
        return Layout(segments, public_parameters_digest("test", parameters))

    def encode(self, update: Vector, coins: Coins) -> Payload:  # noqa: ARG002
        if getattr(update, "dtype", np.dtype(bool)).kind != "f" or update.shape != (4,):
            raise Misuse("an update is 4 floats")
        clipped = np.clip(np.nan_to_num(update), -2.0, 1.0)
        halves = self.entries[:, 0] * np.array([[1.0], [1.0], [2.0], [2.0]]) * self.step
        indices = np.abs(halves - clipped[:, None]).argmin(axis=1)
        code = int(np.rint(np.clip(np.nan_to_num(update), -1.0, 1.0).sum()))
        return Payload(self.layout, (Ring(20).from_integers([code]), indices.astype(np.uint8)))

    def decode(self, aggregate: Aggregate) -> Vector:
        if aggregate.layout != self.layout:
            raise Misuse("another layout")
        require_capacity(aggregate.contributors, self.capacity)
        histogram: Any = aggregate.values[1]
        sums = histogram.astype(np.int64) @ self.entries[:, 0]
        return self.floats(sums * np.array([1, 1, 2, 2]))

    # The mean only adds a ring to the layout; it is not decoded.
    def floats(self, sums: Vector) -> Vector:
        return sums * self.step

    @property
    def tables(self) -> Tables:
        return ((CodewordTable(2, self.entries), CodewordTable(2, self.entries * 2)),)

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        self.check_summed(aggregate)
        rings = aggregate.layout.require_rings()[1:]
        return self.floats(
            np.concatenate([ring.ring.lift(v) for ring, v in zip(rings, aggregate.values[1:], strict=True)])
        )

    def check_summed(self, aggregate: Aggregate) -> None:
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
        require_capacity(aggregate.contributors, self.capacity)


def described(name: str, make: Any) -> Candidate:
    return Candidate(
        name=name,
        make=make,
        updates=arrays(np.float64, 4, elements=st.floats(-2.0, 1.0)),
        expected=lambda update: update,
        error=2.0,
        extremes=[np.full(4, 1.0), np.full(4, -2.0)],
        others={"other steps": partial(make, steps=(-8, -3, 0, 1, 5)), "another step": partial(make, step=0.5)},
        tight_capacity=False,
        payload_bytes=3 + 2,
    )


# --- Broken tables ----------------------------------------------------------------------------------------------------


class AnEntryIsOff(Indexed):
    """One entry of a table is one step too large."""

    @property
    def tables(self) -> Tables:
        first, second = super().tables[0]
        wrong = second.entries.copy()
        wrong[0] += 1
        return ((first, CodewordTable(2, wrong)),)


class TooFewBlocks(Indexed):
    """The last block has no table."""

    @property
    def tables(self) -> Tables:
        first, second = super().tables[0]
        return ((first, replace(second, blocks=1)),)


class NoTables(Indexed):
    """The layout has indices but no table for them."""

    @property
    def tables(self) -> Tables:
        return ()


_numbers = count()


class TablesOfEachObject(Indexed):
    """The tables differ on every access."""

    @property
    def tables(self) -> Tables:
        entry = next(_numbers)
        first, second = super().tables[0]
        wrong = second.entries.copy()
        wrong[0] = entry
        return ((first, CodewordTable(2, wrong)),)


# --- Broken decoding --------------------------------------------------------------------------------------------------


class NotLifted(Indexed):
    """Negative sums are read as large ones."""

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        self.check_summed(aggregate)
        return self.floats(np.concatenate([value.astype(np.int64) for value in aggregate.values[1:]]))


class SaturatingSums(Indexed):
    """Sums are clipped to 500 steps."""

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        return np.clip(super().decode_summed(aggregate), -125.0, 125.0)


class ALastBit(Indexed):
    """The step is slightly rounded when sums are decoded."""

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        return super().decode_summed(aggregate) * (1 + 2.0**-52)


class NarrowFloats(Indexed):
    """Sums are decoded as float32."""

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        return super().decode_summed(aggregate).astype(np.float32)


class WritesToTheAggregate(Indexed):
    """Sums are cleared after they are read."""

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        decoded = super().decode_summed(aggregate)
        aggregate.values[1].fill(1)
        return decoded


class AnyVersion(Indexed):
    """Sums of any codebook are decoded."""

    def check_summed(self, aggregate: Aggregate) -> None:
        require_capacity(aggregate.contributors, self.capacity)
        if len(aggregate.layout.segments) < 3:
            raise Misuse("these are histograms")


class HistogramsAsSums(Indexed):
    """Histograms are decoded too."""

    def decode_summed(self, aggregate: Aggregate) -> Vector:
        return self.decode(aggregate) if aggregate.layout == self.layout else super().decode_summed(aggregate)


class AnyWeight(Indexed):
    """The capacity is not checked for sums."""

    def check_summed(self, aggregate: Aggregate) -> None:
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)


class RefusedAsAnError(Indexed):
    """Every refusal is a ValueError."""

    def check_summed(self, aggregate: Aggregate) -> None:
        try:
            super().check_summed(aggregate)
        except Misuse as error:
            raise ValueError from error


class Reluctant(Indexed):
    """A sum of one client is not decoded."""

    def check_summed(self, aggregate: Aggregate) -> None:
        super().check_summed(aggregate)
        if aggregate.contributors == 1:
            raise Misuse("one client alone")


class HalfOfIt(Indexed):
    """The scheme has tables, but cannot decode sums made with them."""

    decode_summed = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


BROKEN: dict[type[Indexed], str] = {
    AnEntryIsOff: "sums of codewords and histograms differ",
    TooFewBlocks: "do not fit the layout",
    NoTables: "do not fit the layout",
    TablesOfEachObject: "different tables",
    NotLifted: "sums of codewords and histograms differ",
    SaturatingSums: "differ|the decoded sum",
    ALastBit: "sums of codewords and histograms differ",
    NarrowFloats: "sums of codewords and histograms differ",
    WritesToTheAggregate: "changes the aggregate",
    AnyVersion: "another version is decoded by decode_summed",
    HistogramsAsSums: "an aggregate of histograms is decoded by decode_summed",
    AnyWeight: "one more than the capacity is decoded by decode_summed",
    RefusedAsAnError: r"refused by ValueError\(\) instead of Misuse",
    Reluctant: "decode_summed refuses an aggregate of 1 contributors, capacity 1000",
    HalfOfIt: "decode_summed refuses",
}


@pytest.mark.parametrize("make", BROKEN, ids=lambda make: make.__name__)
def test_a_broken_decoder_of_sums_violates_only_the_law_of_decoded_sums(make: type[Indexed]) -> None:
    candidate = described(make.__name__, make)
    with pytest.raises(ContractViolation, match=BROKEN[make]):
        LAW["decoded_sums"].check(candidate, SEARCH)
    assert rejecting(candidate, {"decoded_sums"}) == {"decoded_sums"}


@pytest.mark.parametrize(("candidate", "law"), cases(described("indexed", Indexed)), ids=str)
def test_a_correct_decoder_of_sums_keeps_every_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def test_the_indexed_scheme_satisfies_the_decoder_protocol() -> None:
    signed: IndexedDecoder[Vector] = Indexed()
    assert signed.tables[0][1].entries.tolist() == [[-16], [-6], [0], [2], [8]]


def test_the_reference_sums_codewords_and_leaves_rings_unchanged() -> None:
    decoder = Indexed()
    coins = InsecureSeededCoins(b"nothing is drawn")
    payloads = [decoder.encode(np.array(update), coins) for update in ([1.0, 0.0, 1.0, -2.0], [-2.0, 1.0, 0.5, 0.0])]
    total = ideal_aggregate(decoder.layout, payloads, [3, 4])
    summed = summed_aggregate(total, decoder.tables, 100)
    assert summed.layout.segments == (RingSegment(20, 1), RingSegment(11, 2), RingSegment(12, 2))
    assert summed.contributors == 7
    assert summed.values[0].tolist() == total.values[0].tolist()
    assert Ring(11).lift(summed.values[1]).tolist() == [3 * 4 - 4 * 8, 4 * 4]
    assert Ring(12).lift(summed.values[2]).tolist() == [3 * 2 + 4 * 2, -3 * 6]


def test_the_law_of_decoded_sums_skips_a_scheme_without_decode_summed() -> None:
    class Plain:
        """A linear decoder without decode_summed."""

        layout = property(lambda _: Indexed().layout)
        capacity = 1000
        encode = Indexed().encode
        decode = Indexed().decode

    LAW["decoded_sums"].check(described("plain", Plain))


def test_weights_that_exceed_64_bits_are_not_tried() -> None:
    class Large(Indexed):
        """Its table entries are so large that histograms hold far more clients than sums do."""

        capacity: int = 2**47

        @property
        def entries(self) -> Vector:
            return super().entries * (2**31 // 32)

    LAW["decoded_sums"].check(described("large", partial(Large, capacity=2**47, step=2.0**-28)))
