"""Computes or checks the sum of a training round in the clear."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.compression.model_update import ModelUpdate
from secagg.compression.scalar_quantization import overflowed
from secagg.contract import Aggregate, IndexSegment, Payload, RingSegment
from secagg.contract.codewords import CodewordTable, Tables, summed_layout
from secagg.contract.decoder import has_fine_bits, rounded_values
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.crypto.ring import add_into, reduce_into
from secagg.errors import InternalError, Misuse, ThresholdNotMet
from secagg.parameters import LEAST_COHORT
from secagg.privacy.client_noise import ClientNoise, is_near
from secagg.session.run import StageFigures
from secagg.simulation.insecure_coins import InsecureSeededCoins

Upload = tuple[int, Payload]
"""A client's number and its payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRound:
    """The inputs of a round's sum."""

    number: int
    codec: ModelUpdate
    clients: tuple[int, ...]
    """All invited clients, including those that will drop out."""
    uploaders: tuple[int, ...]
    """Clients that stay long enough to upload."""
    lost: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """Clients that drop out before they answer in a stage of the protocol, by its name."""
    model_digest: bytes = bytes(32)
    releases: int = 1
    """Most rounds, including this one, that any client takes part in; used to account for noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOutcome:
    """A sum and its costs; bytes are those of real messages, totalled over clients."""

    aggregate: Aggregate
    is_real: bool
    stages: tuple[StageFigures, ...]
    deviations: tuple[float, ...] = ()
    """Standard deviations of each released segment's noise, in its integer steps; none without noise."""
    epsilon: float | None = None
    """Privacy cost of all rounds so far to the client in the most rounds."""

    @property
    def bytes_up(self) -> int:
        return sum(stage.bytes_up for stage in self.stages)

    @property
    def bytes_down(self) -> int:
        return sum(stage.bytes_down for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Total seconds of all parties, which run one after another."""
        return sum(stage.client_seconds + stage.server_seconds for stage in self.stages)


class SecureSum(Protocol):
    """Adds up the payloads of a round."""

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Pull every upload, and return the sum.

        Raises:
            ThresholdNotMet: too many clients dropped out; nothing is released.
        """
        ...


# --- In the clear -----------------------------------------------------------------------------------------------------


Received = Callable[[Payload], None]
"""Called with a payload."""
ProtocolSum = Callable[[SumRound, Iterable[Upload], Received], SumOutcome]


@dataclass(frozen=True, slots=True)
class IdealSum:
    """Computes the result of every protocol without running one."""

    most_uploads: int
    fewest: int = LEAST_COHORT
    """Minimum number of contributors, as in a protocol."""

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Add up in the clear; an upload has the size of its payload's encoding, after any rounding."""
        coins = InsecureSeededCoins(due.codec.layout.digest + due.number.to_bytes(8, "big"))
        clear = ClearSum(due.codec, self.most_uploads, self.fewest, coins)
        figures = StageFigures("clear sum")
        for _, payload in uploads:
            started = perf_counter()
            clear.add(payload)
            figures.server_seconds += perf_counter() - started
        figures.bytes_up = clear.contributors * int(upload_bytes(due.codec.layout, Accounting.WIRE))
        return SumOutcome(aggregate=clear.finish(), is_real=False, stages=(figures,))


@dataclass(frozen=True, slots=True)
class NoisedSum:
    """A sum in the clear of uploads with the clients' noise: a simulation, where the process sees everything."""

    ideal: IdealSum
    noise_of: Callable[[ModelUpdate], ClientNoise]
    delta: float

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        noise, coins = self.noise_of(due.codec), SystemCoins()
        noised = ((client, noise.add_to(payload, coins)) for client, payload in uploads)
        # With fewer clients than the noise shares assume, a sum would have less noise than is accounted.
        ideal = replace(self.ideal, fewest=max(self.ideal.fewest, noise.honest))
        outcome = ideal.run(due, noised)
        return replace(outcome, deviations=noise.deviations, epsilon=noise.epsilon(self.delta, due.releases))


@dataclass(frozen=True, slots=True)
class CheckedSum:
    """A sum in the clear, compared with a real protocol every few rounds."""

    real: ProtocolSum
    """Runs a protocol for a round, and reports each payload that its server received."""
    ideal: IdealSum
    every: int = 1

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Compute the sum in the clear and, in some rounds, compare it with the protocol's.

        Raises:
            InternalError: the two differ.
        """
        if due.number % self.every:
            return self.ideal.run(due, uploads)
        clear = ClearSum(due.codec, self.ideal.most_uploads)
        outcome = self.real(due, uploads, clear.add)
        if outcome.deviations:
            require_near(outcome.aggregate, clear.finish(), outcome.deviations)
        elif any(map(has_fine_bits, due.codec.layout.segments)):
            require_rounded(outcome.aggregate, clear.finish())
        else:
            require_equal(due.codec, outcome.aggregate, clear.finish())
        return outcome


def require_equal(codec: ModelUpdate, real: Aggregate, ideal: Aggregate) -> None:
    """Refuse a sum whose decoded parts differ from the one in the clear."""
    _require_counts(real, ideal)
    decoded, due = codec.mean(real), codec.mean(ideal)
    wrong = [name for name in due if not np.array_equal(decoded[name], due[name])]
    if wrong:
        raise InternalError(f"the protocol's sum is not the sum of the updates: {', '.join(wrong)} differ")


def require_rounded(real: Aggregate, ideal: Aggregate) -> None:
    """Refuse a sum that differs from the one in the clear by more than the clients' rounding."""
    _require_counts(real, ideal)
    for segment, mine, due in zip(ideal.layout.require_rings(), real.values, ideal.values, strict=True):
        apart = segment.ring.lift(segment.ring.subtract(mine, due)).astype(np.int64)
        if int(np.abs(apart).max(initial=0)) > ideal.contributors * segment.head_room:
            raise InternalError("the protocol's sum differs from the sum of the updates by more than rounding")


def require_near(noised: Aggregate, ideal: Aggregate, deviations: Sequence[float]) -> None:
    """Refuse a sum that differs from the one in the clear by more than its noise."""
    _require_counts(noised, ideal)
    if not is_near(noised, ideal, deviations):
        raise InternalError("the protocol's sum differs from the sum of the updates by more than its noise")


def _require_counts(real: Aggregate, ideal: Aggregate) -> None:
    if real.contributors != ideal.contributors:
        raise InternalError(f"the protocol summed {real.contributors} clients instead of {ideal.contributors}")


_Sums = npt.NDArray[Any]


class ClearSum:
    """Adds up payloads without any protection."""

    def __init__(self, codec: ModelUpdate, most_uploads: int, fewest: int = 1, rounding: Coins | None = None) -> None:
        """Begin an empty sum of a codec's payloads.

        Args:
            rounding: replaces masks for segments with fine bits; other segments are not rounded.
        """
        self._layout, self._rounding = codec.layout, rounding
        has_indices = any(isinstance(segment, IndexSegment) for segment in self._layout.segments)
        tables: Tables = codec.tables if has_indices else ()
        self._released = summed_layout(self._layout, tables, most_uploads) if has_indices else self._layout
        remaining = iter(tables)
        self._tables: list[tuple[CodewordTable, ...]] = [
            next(remaining) if isinstance(segment, IndexSegment) else () for segment in self._layout.segments
        ]
        self._sums: list[list[_Sums]] = [
            [np.zeros((table.blocks, table.width), dtype=np.int64) for table in some]
            if isinstance(segment, IndexSegment)
            else [segment.ring.zeros(segment.length)]
            for segment, some in zip(self._layout.segments, self._tables, strict=True)
        ]
        self._fewest = fewest
        self._contributors = 0

    @property
    def contributors(self) -> int:
        return self._contributors

    def add(self, payload: Payload) -> None:
        if payload.layout != self._layout:
            raise Misuse("a payload has a different layout; encode all payloads of a round with one codec")
        for segment, some, sums, values in zip(
            self._layout.segments, self._tables, self._sums, payload.values, strict=True
        ):
            match segment:
                case RingSegment():
                    added = values if self._rounding is None else rounded_values(segment, values, self._rounding)
                    reduce_into(add_into(sums[0], added), segment.ring.modulus_bits)
                case IndexSegment():
                    first = 0
                    for table, total in zip(some, sums, strict=True):
                        np.add(total, table.entries[values[first : first + table.blocks]], out=total)
                        first += table.blocks
        self._contributors += 1

    def finish(self) -> Aggregate:
        """Return the sum in the layout that a protocol releases."""
        if self._contributors < max(1, self._fewest):
            raise ThresholdNotMet(needed=self._fewest, present=self._contributors, what="contributors")
        values = list[_Sums]()
        released = iter(self._released.require_rings())
        for segment, sums in zip(self._layout.segments, self._sums, strict=True):
            for total in sums:
                ring = next(released).ring
                if isinstance(segment, RingSegment):
                    values.append(segment.unbiased(total, 0 if self._rounding is None else self._contributors))
                else:
                    values.append(ring.from_integers(total.reshape(-1)))
        return Aggregate(self._released, tuple(values), self._contributors)


class OverflowMeter:
    """Share of the coordinates of a round's true sums that overflow the codes' ring; only simulations know it.

    ``share`` counts final sums of both signs: a partial sum may overflow and come back. ``flsim_share`` counts as the
    paper's simulator does: after every addition, only positive sums, reduced modulo half the ring, and divided by
    coordinates and clients.
    """

    def __init__(self, codec: ModelUpdate, modulus_bits: int) -> None:
        self._modulus_bits = modulus_bits
        self._positions = [
            position
            for position, segment in enumerate(codec.layout.segments)
            if isinstance(segment, RingSegment) and segment.modulus_bits == modulus_bits
        ]
        lengths = [codec.layout.segments[position].length for position in self._positions]
        self._true = [np.zeros(length, dtype=np.int64) for length in lengths]
        self._simulated = [np.zeros(length, dtype=np.int64) for length in lengths]
        self._events = 0
        self._clients = 0

    @property
    def is_metering(self) -> bool:
        return bool(self._positions)

    def add(self, payload: Payload) -> None:
        half = 1 << (self._modulus_bits - 1)
        for number, position in enumerate(self._positions):
            segment = payload.layout.segments[position]
            codes = segment.ring.lift(payload.values[position]).astype(np.int64)
            self._true[number] += codes
            total = self._simulated[number]
            total += codes
            # Half rings are subtracted towards zero, and counted if the sum is positive.
            beyond = np.flatnonzero((total >= half) | (total <= -half))
            halves = np.sign(total[beyond]) * (np.abs(total[beyond]) // half)
            self._events += int(np.maximum(halves, 0).sum())
            total[beyond] -= halves * half
        self._clients += 1

    @property
    def share(self) -> float:
        size = sum(total.size for total in self._true)
        wrapped = sum(int(overflowed(total, self._modulus_bits).sum()) for total in self._true)
        return wrapped / size if size else 0.0

    @property
    def flsim_share(self) -> float:
        """Events that the paper's simulator would count, per coordinate and client."""
        size = sum(total.size for total in self._true) * self._clients
        return self._events / size if size else 0.0
