"""What the sum of a round is about, what it gives, and the sum in the clear that every real one is compared with.

A sum pulls uploads one after another, so that a client is trained when the sum is ready for it and its update is gone
before the next one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.compression.model_update import ModelUpdate
from secagg.contract import Aggregate, Payload
from secagg.contract.rounding import has_fine_bits
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InternalError
from secagg.parameters import LEAST_COHORT
from secagg.privacy.client_noise import ClientNoise, is_near
from secagg.session.measured import StageFigures
from secagg.simulation.insecure_coins import InsecureSeededCoins

from .clear_sum import ClearSum

Upload = tuple[int, Payload, int]
"""A client's number, what it encoded, and its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRound:
    """What a round's sum is about."""

    number: int
    codec: ModelUpdate
    clients: tuple[int, ...]
    """Everybody who is invited, those who will be lost included."""
    uploaders: tuple[int, ...]
    """Those who stay for long enough to upload; none where clients are asynchronous."""
    lost: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """By the name of a stage of the protocol, who is gone before answering in it."""
    model_digest: bytes = bytes(32)
    versions: dict[int, tuple[int, bytes]] | None = None
    """Where clients are asynchronous: the number and the digest of the model that each started from, once it comes."""
    releases: int = 1
    """In how many rounds, this one included, the client is that is in most of them; noise is accounted by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOutcome:
    """A sum, and what it took; bytes are those of real messages, of all clients together."""

    aggregate: Aggregate
    is_real: bool
    stages: tuple[StageFigures, ...]
    deviations: tuple[float, ...] = ()
    """Of the noise of each released segment, in its integer steps; none where there is no noise."""
    epsilon: float | None = None
    """What all rounds so far cost the client that is in most of them."""

    @property
    def bytes_up(self) -> int:
        """What clients sent together."""
        return sum(stage.bytes_up for stage in self.stages)

    @property
    def bytes_down(self) -> int:
        """What clients received together."""
        return sum(stage.bytes_down for stage in self.stages)

    @property
    def seconds(self) -> float:
        """What all parties took together, one after another."""
        return sum(stage.client_seconds + stage.server_seconds for stage in self.stages)


class SecureSum(Protocol):
    """Adds the payloads of a round up."""

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Pull every upload, and return the sum.

        Raises:
            ThresholdNotMet: too many were lost; nothing is released.
        """
        ...


class ProtocolSum(Protocol):
    """Adds the payloads of a round up by a protocol, whose clients may refuse to upload."""

    def run(self, due: SumRound, uploads: Iterable[Upload], received: Callable[[Payload, int], None]) -> SumOutcome:
        """As ``SecureSum.run``; ``received`` is told of each payload that the server has, with its weight."""
        ...


# --- In the clear -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdealSum:
    """What every protocol computes, without one."""

    maximum_total_weight: int
    minimum_cohort: int = LEAST_COHORT

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Add up in the clear; an upload has the bytes of its payload's encoding, or what rounding leaves of them."""
        coins = InsecureSeededCoins(due.codec.layout.digest + due.number.to_bytes(8, "big"))
        clear = ClearSum(due.codec, self.maximum_total_weight, self.minimum_cohort, coins)
        figures = StageFigures("clear sum")
        for _, payload, weight in uploads:
            started = perf_counter()
            clear.add(payload, weight)
            figures.server_seconds += perf_counter() - started
        figures.bytes_up = clear.contributors * int(upload_bytes(due.codec.layout, Accounting.WIRE))
        return SumOutcome(aggregate=clear.finish(), is_real=False, stages=(figures,))


@dataclass(frozen=True, slots=True)
class NoisedSum:
    """A sum in the clear of what clients upload with their noise: a simulation, which hides nothing from itself."""

    ideal: IdealSum
    noise_of: Callable[[ModelUpdate], ClientNoise]
    delta: float

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Add each client's noise, and add up."""
        noise, coins = self.noise_of(due.codec), SystemCoins()
        noised = ((client, noise.add_to(payload, coins), weight) for client, payload, weight in uploads)
        # A sum of fewer than each drew its share for would have less noise than is accounted.
        ideal = replace(self.ideal, minimum_cohort=max(self.ideal.minimum_cohort, noise.minimum_cohort))
        outcome = ideal.run(due, noised)
        return replace(outcome, deviations=noise.deviations, epsilon=noise.epsilon(self.delta, due.releases))


@dataclass(frozen=True, slots=True)
class CheckedSum:
    """A real protocol every so many rounds, compared with the sum in the clear; the sum in the clear between."""

    real: ProtocolSum
    ideal: IdealSum
    every: int = 1

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Run the protocol if it is due, and hold it to the sum in the clear.

        Raises:
            InternalError: the two differ.
        """
        if due.number % self.every:
            return self.ideal.run(due, uploads)
        clear = ClearSum(due.codec, self.ideal.maximum_total_weight)

        outcome = self.real.run(due, uploads, clear.add)
        if outcome.deviations:
            require_near(outcome.aggregate, clear.finish(), outcome.deviations)
        elif any(map(has_fine_bits, due.codec.layout.segments)):
            require_rounded(outcome.aggregate, clear.finish())
        else:
            require_equal(due.codec, outcome.aggregate, clear.finish())
        return outcome


def require_equal(codec: ModelUpdate, real: Aggregate, ideal: Aggregate) -> None:
    """Refuse a sum that differs from the one in the clear in anything that is decoded.

    Raises:
        InternalError: it does.
    """
    counts = [(aggregate.contributors, aggregate.total_weight) for aggregate in (real, ideal)]
    if counts[0] != counts[1]:
        raise InternalError(f"the protocol summed {counts[0]} (clients, weight) instead of {counts[1]}")
    decoded, due = codec.mean(real), codec.mean(ideal)
    wrong = [name for name in due if not np.array_equal(decoded[name], due[name])]
    if wrong:
        raise InternalError(f"the protocol's sum is not the sum of the updates: {', '.join(wrong)} differ")


def require_rounded(real: Aggregate, ideal: Aggregate) -> None:
    """Refuse a sum that is further from the one in the clear than each client's rounding reaches.

    Raises:
        InternalError: it is.
    """
    if (real.contributors, real.total_weight) != (ideal.contributors, ideal.total_weight):
        raise InternalError(f"the protocol summed {real.contributors} clients instead of {ideal.contributors}")
    for segment, mine, due in zip(ideal.layout.require_rings(), real.values, ideal.values, strict=True):
        apart = segment.ring.lift(segment.ring.subtract(mine, due)).astype(np.int64)
        if int(np.abs(apart).max(initial=0)) > ideal.total_weight * segment.head_room:
            raise InternalError("the protocol's sum differs from the sum of the updates by more than rounding does")


def require_near(noised: Aggregate, ideal: Aggregate, deviations: Sequence[float]) -> None:
    """Refuse a sum that is further from the one in the clear than its noise reaches.

    Raises:
        InternalError: it is.
    """
    if (noised.contributors, noised.total_weight) != (ideal.contributors, ideal.total_weight):
        raise InternalError(f"the protocol summed {noised.contributors} clients instead of {ideal.contributors}")
    if not is_near(noised, ideal, deviations):
        raise InternalError("the protocol's sum differs from the sum of the updates by more than its noise")
