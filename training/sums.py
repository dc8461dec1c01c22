"""The sum of a training round: in the clear, and by a protocol in memory with the same clients all along.

Clients clip what they changed to ``local.clip``. The enclave adds noise to everything that it releases, or each client
its share of it to what it uploads. No amplification by sampling is counted, because a server that invites its clients
knows them: what counts is how often a client is really in a round, which follows from the seed before anything is
trained.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.compression.model_update import ModelUpdate
from secagg.compression.rotation import RoundedRotation
from secagg.compression.scalar_quantization import overflowed
from secagg.contract import Aggregate, IndexSegment, Payload, RingSegment
from secagg.contract.codewords import CodewordTable, Tables, summed_layout
from secagg.contract.decoder import has_fine_bits, rounded_values
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.crypto.ring import add_into, reduce_into
from secagg.errors import InternalError, InvalidParameters, Misuse, PeerError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.options import declared
from secagg.parameters import LEAST_COHORT
from secagg.privacy.accounting import Adjacency
from secagg.privacy.client_noise import ClientNoise, is_near, noise_in
from secagg.session.registry import Simulation, find, planned_settings
from secagg.session.roles import ClientSession, LazyUpdate, Released, ServerSession, Subject, Update
from secagg.session.run import Measured, StageFigures, run
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.configuration import (
    WHOLE_UPDATES,
    Configuration,
    Scheme,
    Source,
    SumMode,
    SumSettings,
    Weighting,
)
from secagg.training.parts import Cohorts

Upload = tuple[int, Payload]
"""A client's number, and what it encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRound:
    """A round as its sum sees it."""

    number: int
    codec: ModelUpdate
    clients: tuple[int, ...]
    """Everybody who is invited, those who will be lost included."""
    uploaders: tuple[int, ...]
    """Clients that stay for long enough to upload."""
    lost: Mapping[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """Clients that are gone before they answer in a stage of the protocol, by its name."""
    model_digest: bytes = bytes(32)
    releases: int = 1
    """Number of rounds, including this one, of the client that is in most; noise is accounted by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOutcome:
    """A sum, and what it took; bytes are those of real messages, of all clients together."""

    aggregate: Aggregate
    is_real: bool
    stages: tuple[StageFigures, ...]
    deviations: tuple[float, ...] = ()
    """Deviations of the noise of each released segment, in its integer steps; none without noise."""
    epsilon: float | None = None
    """Privacy cost of all rounds so far to the client that is in most of them."""

    @property
    def bytes_up(self) -> int:
        return sum(stage.bytes_up for stage in self.stages)

    @property
    def bytes_down(self) -> int:
        return sum(stage.bytes_down for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Seconds of all parties together, one after another."""
        return sum(stage.client_seconds + stage.server_seconds for stage in self.stages)


class SecureSum(Protocol):
    """Adds the payloads of a round up."""

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Pull every upload, and return the sum.

        Raises:
            ThresholdNotMet: too many were lost; nothing is released.
        """
        ...


# --- In the clear -----------------------------------------------------------------------------------------------------


Received = Callable[[Payload], None]
"""Told of a payload."""
ProtocolSum = Callable[[SumRound, Iterable[Upload], Received], SumOutcome]


@dataclass(frozen=True, slots=True)
class IdealSum:
    """The result of every protocol, computed without one."""

    most_uploads: int
    minimum_cohort: int = LEAST_COHORT

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Add up in the clear; an upload has the bytes of its payload's encoding, or what rounding leaves of them."""
        coins = InsecureSeededCoins(due.codec.layout.digest + due.number.to_bytes(8, "big"))
        clear = ClearSum(due.codec, self.most_uploads, self.minimum_cohort, coins)
        figures = StageFigures("clear sum")
        for _, payload in uploads:
            started = perf_counter()
            clear.add(payload)
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
        noise, coins = self.noise_of(due.codec), SystemCoins()
        noised = ((client, noise.add_to(payload, coins)) for client, payload in uploads)
        # A sum of fewer than each drew its share for would have less noise than is accounted.
        ideal = replace(self.ideal, minimum_cohort=max(self.ideal.minimum_cohort, noise.minimum_cohort))
        outcome = ideal.run(due, noised)
        return replace(outcome, deviations=noise.deviations, epsilon=noise.epsilon(self.delta, due.releases))


@dataclass(frozen=True, slots=True)
class CheckedSum:
    """A real protocol every so many rounds, compared with the sum in the clear; the sum in the clear between."""

    real: ProtocolSum
    """Carries a round through by a protocol, and tells of each payload that its server has."""
    ideal: IdealSum
    every: int = 1

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Run the protocol if this round calls for it, and compare it with the sum in the clear.

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
    """Refuse a sum that differs from the one in the clear in anything that is decoded."""
    _require_counts(real, ideal)
    decoded, due = codec.mean(real), codec.mean(ideal)
    wrong = [name for name in due if not np.array_equal(decoded[name], due[name])]
    if wrong:
        raise InternalError(f"the protocol's sum is not the sum of the updates: {', '.join(wrong)} differ")


def require_rounded(real: Aggregate, ideal: Aggregate) -> None:
    """Refuse a sum that is further from the one in the clear than each client's rounding reaches."""
    _require_counts(real, ideal)
    for segment, mine, due in zip(ideal.layout.require_rings(), real.values, ideal.values, strict=True):
        apart = segment.ring.lift(segment.ring.subtract(mine, due)).astype(np.int64)
        if int(np.abs(apart).max(initial=0)) > ideal.contributors * segment.head_room:
            raise InternalError("the protocol's sum differs from the sum of the updates by more than rounding does")


def require_near(noised: Aggregate, ideal: Aggregate, deviations: Sequence[float]) -> None:
    """Refuse a sum that is further from the one in the clear than its noise reaches."""
    _require_counts(noised, ideal)
    if not is_near(noised, ideal, deviations):
        raise InternalError("the protocol's sum differs from the sum of the updates by more than its noise")


def _require_counts(real: Aggregate, ideal: Aggregate) -> None:
    if real.contributors != ideal.contributors:
        raise InternalError(f"the protocol summed {real.contributors} clients instead of {ideal.contributors}")


_Sums = npt.NDArray[Any]


class ClearSum:
    """Adds payloads up; it protects nobody."""

    def __init__(
        self, codec: ModelUpdate, most_uploads: int, minimum_cohort: int = 1, rounding: Coins | None = None
    ) -> None:
        """Begin an empty sum of a codec's payloads.

        Args:
            rounding: in place of masks, for segments with fine bits; without them nothing is rounded.
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
        self._minimum_cohort = minimum_cohort
        self._contributors = 0

    @property
    def contributors(self) -> int:
        return self._contributors

    def add(self, payload: Payload) -> None:
        if payload.layout != self._layout:
            raise Misuse("a payload belongs to another layout; encode all of a round with one codec")
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
        """Return the sum, in the layout that a protocol releases."""
        if self._contributors < max(1, self._minimum_cohort):
            raise ThresholdNotMet(needed=self._minimum_cohort, present=self._contributors, what="contributors")
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
    """Share of the coordinates of a round's true sums that leave the ring of the codes; only simulations can know it.

    ``share`` counts final sums, of both signs: a partial sum that leaves a ring comes back. ``flsim_share`` counts as
    the simulator behind the paper does: after every addition, positive sums alone, reduced modulo half the ring, and
    divided by coordinates and clients.
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
            # Halves of the ring are taken off towards zero, and counted where the sum is positive.
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
        """The events that the paper's simulator would count, for each coordinate and client."""
        size = sum(total.size for total in self._true) * self._clients
        return self._events / size if size else 0.0


# --- Through a protocol, and noised -----------------------------------------------------------------------------------

_FLOAT_ROOM: Final = 1 + 2.0**-16
"""A clipped norm was computed in floats of 24 bits."""
_SAID_BY_PRIVACY: Final = frozenset(
    {
        "noise_multiplier",
        "l2_bounds",
        "adjacency",
        "is_rotated",
        "releases_per_client",
        "budget_epsilon",
        "budget_delta",
    }
)
"""Settings of protocols that follow from the sections privacy and local."""


@dataclass(frozen=True, slots=True)
class Noised:
    """The noise of one session."""

    deviations: tuple[float, ...]
    """Deviations of each released segment, in integer steps."""
    epsilon: float
    """Privacy cost of all rounds so far to the client that is in most of them."""


class RunNoise:
    """The noise of a run's sessions."""

    def __init__(self, run: Configuration) -> None:
        self.settings, self._rounds = run.privacy, run.rounds
        self._clipped = math.ldexp((run.local.clip or 0.0) * _FLOAT_ROOM, run.compression.fraction_bits)
        self._adjacency = Adjacency.ZERO_OUT if run.privacy.zero_out else Adjacency.REPLACE

    def settings_for(self, codec: ModelUpdate) -> dict[str, Any]:
        """Return what a protocol's settings say of noise.

        All ring segments are fixed point of one step, whose rounding moves a value by at most half of it, or there is
        one of steps that were rounded to a bound.
        """
        scheme, settings = codec.tensors[0].scheme, self.settings
        is_rotated = isinstance(scheme, RoundedRotation)
        rings = [segment for segment in codec.layout.segments if isinstance(segment, RingSegment)]
        return {
            "budget_epsilon": Fraction(str(settings.epsilon)) if settings.epsilon else None,
            "budget_delta": Fraction(str(settings.delta)),
            "noise_multiplier": Fraction(str(settings.noise_multiplier)),
            "l2_bounds": (scheme.l2_bound,)
            if isinstance(scheme, RoundedRotation)
            else tuple(math.ceil(self._clipped + math.sqrt(segment.length) / 2) for segment in rings),
            "is_rotated": is_rotated,
            "releases_per_client": self._rounds,
            "adjacency": self._adjacency,
        }

    def of(self, session: object, releases: int) -> Noised:
        """Return the noise of a session, or of clients without one, and its cost for a client in so many releases."""
        if (noise := noise_in(session)) is not None:
            return Noised(noise.deviations, noise.epsilon(self.settings.delta, releases))
        from secagg.protocols.enclave import Server, epsilon_of  # noqa: PLC0415 -- a protocol, where it is asked for

        if not isinstance(session, Server) or session.configuration.noise is None:
            raise InternalError("the session was to be an enclave's, with noise, and is not")
        configuration = session.configuration
        if configuration.index_segments and not configuration.tables:
            raise InvalidParameters(
                "noise is for decoded sums, which tell less than histograms: take form=decoded_sum in secagg.settings"
            )
        deviations = tuple(math.sqrt(variance) for variance in session.configuration.noise.variances)
        return Noised(deviations, epsilon_of(configuration, self.settings.delta, self._adjacency, releases=releases))


def require_private(configuration: Configuration) -> None:
    """Refuse noise that only a protocol's settings speak of, and what noise does not go together with."""
    for assigned in configuration.secagg.settings:
        name = assigned.partition("=")[0]
        if name in _SAID_BY_PRIVACY or (name == "noise_kind" and not configuration.privacy.is_on):
            raise InvalidParameters(
                f"secagg.settings has {name}, and the noise of a run is accounted by what the section privacy says: "
                "set privacy.noise_multiplier, privacy.zero_out and local.clip instead"
            )
    if not configuration.privacy.is_on:
        return
    for is_wrong, sentence in _conflicts(configuration):
        if is_wrong:
            raise InvalidParameters(f"privacy.noise_multiplier is above 0, and {sentence}")


def _conflicts(configuration: Configuration) -> Iterator[tuple[bool, str]]:
    secagg, source = configuration.secagg, configuration.compression.source
    yield (
        secagg.mode is SumMode.REAL and secagg.every != 1,
        "the sums between in the clear have none: take secagg.every = 1",
    )
    yield configuration.local.clip is None, "noise is chosen for a largest norm: set local.clip"
    yield (
        configuration.server.weighting is not Weighting.EQUAL,
        "the count of examples has none: take server.weighting = 'equal'",
    )
    yield (
        configuration.compression.has_codes,
        "codes of a few bits have no room for noise: take compression.scheme = 'pq', 'pruning' or 'none'",
    )
    yield (
        configuration.compression.scheme in set(WHOLE_UPDATES) - {Scheme.ROTATED},
        "lengths next to a whole update would drown in noise: take compression.scheme = 'rotated', 'pruning' or 'none'",
    )
    yield (
        source not in {None, Source.PUBLIC},
        "scales and codebooks may come from public data alone: take compression.calibration = 'public'",
    )


class ReleaseCount:
    """Number of rounds of each client."""

    def __init__(self, cohorts: Cohorts, available: int, rounds: int = 0) -> None:
        """Count the rounds that are over; it follows from the seed who was in them."""
        self._counts = Counter[int]()
        for number in range(rounds):
            clients = cohorts.invited(available, number)[: cohorts.size]
            self.add(cohorts.uploaders(clients, cohorts.lost(clients, number)))

    def add(self, clients: tuple[int, ...]) -> None:
        self._counts.update(clients)

    def most_with(self, clients: tuple[int, ...]) -> int:
        """Return how many rounds the client is in that is in most, once a round with these is over."""
        so_far = max(self._counts.values(), default=0)
        return max(so_far, *(1 + self._counts[client] for client in clients)) if clients else max(1, so_far)

    @property
    def most(self) -> int:
        return max(self._counts.values(), default=0)


def require_budget(noise: RunNoise, session: object, most: int, rounds: int) -> None:
    """Refuse a run that would cost a client more than its limit."""
    settings, spent = noise.settings, noise.of(session, max(1, most)).epsilon
    if settings.epsilon and spent > settings.epsilon:
        raise InvalidParameters(
            f"the client that is in most rounds, {most} of {rounds}, would spend epsilon {spent:.3g} at "
            f"delta {settings.delta:g}, above privacy.epsilon = {settings.epsilon:g}; raise privacy.noise_multiplier "
            "or data.clients, or lower rounds"
        )


_TASK: Final = b"federated training"


class RealSum:
    """Sessions of one protocol, one after another."""

    def __init__(self, settings: SumSettings, cohorts: Cohorts, noise: RunNoise | None = None) -> None:
        self._entry, self._settings, self._cohorts = find(settings.protocol), settings, cohorts
        self._noise = noise
        self._chosen: Any = None
        self._world: Simulation | None = None
        known = declared(self._entry.settings)
        if noise is not None and "noise_multiplier" not in known:
            raise InvalidParameters(
                f"privacy.noise_multiplier is above 0, and {settings.protocol} releases sums as they are: take "
                "secagg.protocol = 'pairwise', 'one-message' or 'enclave'"
            )

    def settings_for(self, codec: ModelUpdate) -> Any:  # noqa: ANN401 -- the protocol's own class
        """Return the settings of sessions about a codec's payloads."""
        self._entry.require_segments(codec.layout)
        late, dropped = self._cohorts.planned_losses
        facts: dict[str, Any] = {
            "population": self._cohorts.size,
            "late": late,
            "dropped": dropped,
            "minimum_cohort": max(LEAST_COHORT, self._cohorts.minimum),
            "maximum_cohort": self._cohorts.size,
            **({} if self._noise is None else self._noise.settings_for(codec)),
        }
        return planned_settings(self._entry, facts, assigned=self._settings.settings, option="secagg.settings")

    def client_noise(self, codec: ModelUpdate) -> ClientNoise:
        """Return what clients add to a codec's payloads, which a sum in the clear can add as well."""
        settings: Any = self.settings_for(codec)
        noise: ClientNoise | None = None
        if hasattr(settings, "noise_for") and hasattr(settings, "corrupted"):
            noise = settings.noise_for(
                codec.layout,
                minimum_cohort=settings.minimum_cohort,
                capacity=self._cohorts.size,
                corrupted=settings.corrupted,
            )
        if noise is None:
            raise InvalidParameters(
                f"privacy.noise_multiplier is above 0, and {self._settings.protocol} itself would add the noise: take "
                "secagg.mode = 'real', or secagg.protocol = 'pairwise' or 'one-message'"
            )
        return noise

    def rehearse(self, due: SumRound, judge: Callable[[ServerSession], None] | None = None) -> None:
        """Open a session that nobody joins."""
        with closing(self._simulate(self.settings_for(due.codec))) as world:
            session = world.open(_subject(due), _ids(due))
            try:
                if judge is not None:
                    judge(session)
            finally:
                session.abort()

    def run(self, due: SumRound, uploads: Iterable[Upload], received: Received | None = None) -> SumOutcome:
        """Carry a session through with everybody who is invited.

        Args:
            received: told of each update that the server has; a client may refuse to upload one that was trained.
        Raises:
            ThresholdNotMet, PeerError: nothing is released.
            InvalidParameters: every client refuses the session.
        """
        world, subject = self._open_world(due.codec), _subject(due)
        session = Measured(world.open(subject, _ids(due)), between=lambda: world.bytes_between)
        pulled = _PulledUploads(uploads, due, session, received)
        noise = None if self._noise is None else self._noise.of(session.session, due.releases)
        try:
            released = self._run(session, world, pulled)
        except (ThresholdNotMet, PeerError):
            # A client's error ends its part in a session and not the session: here it would end every round.
            pulled.require_whole()
            left = {client: why for client, why in session.now.failed.items() if client not in pulled.lost}
            if left and not session.now.answered:
                client, why = next(iter(left.items()))
                stage = session.now.name
                raise InvalidParameters(f"all clients left in the stage {stage!r}, {client}: {why}") from None
            raise
        pulled.require_whole()
        pulled.settle()
        return SumOutcome(
            aggregate=released.aggregate,
            is_real=True,
            stages=tuple(session.figures),
            deviations=() if noise is None else noise.deviations,
            epsilon=None if noise is None else noise.epsilon,
        )

    # --- Private --------------------------------------------------------------------------------------------------

    def _simulate(self, settings: Any) -> Simulation:  # noqa: ANN401 -- the protocol's own class
        return self._entry.simulate(
            settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC), threads=self._settings.threads
        )

    def _open_world(self, codec: ModelUpdate) -> Simulation:
        """Return the world of the rounds so far, or another one where this codec needs other settings."""
        settings = self.settings_for(codec)
        if self._world is None or settings != self._chosen:
            if self._world is not None:
                self._world.close()
            self._world, self._chosen = self._simulate(settings), settings
        return self._world

    def _run(self, session: Measured, world: Simulation, pulled: _PulledUploads) -> Released:
        dropouts = {stage: frozenset(map(client_id, some)) for stage, some in pulled.due.lost.items()}

        def join(client: int) -> ClientSession:
            late = LazyUpdate(partial(pulled.take, client))
            return world.member(client_id(client)).join(_subject(pulled.due), late)

        takes_first = session.stage is not None and session.stage.takes_update
        # Where nothing comes before the upload, clients come in the order in which they are trained.
        clients = pulled.clients() if takes_first else iter(pulled.due.clients)
        return run(session, map(join, clients), dropouts, making=lambda: pulled.seconds)


class _PulledUploads:
    """The uploads of a round, each handed to the client that it is of; at most a few wait."""

    def __init__(self, uploads: Iterable[Upload], due: SumRound, session: Measured, received: Received | None) -> None:
        self.due, self._uploads = due, iter(uploads)
        self._session, self._received = session, received
        self._handed_over: Upload | None = None
        self._early = dict[int, Upload]()
        self._error: Exception | None = None
        self.lost = {client_id(client) for some in due.lost.values() for client in some}
        self.seconds = 0.0
        """Seconds of making updates, inside of clients' answers."""

    def clients(self) -> Iterator[int]:
        """Yield those who will be lost, and then everybody whose update is there."""
        yield from (client for client in self.due.clients if client not in self.due.uploaders)
        while (client := self.pull()) is not None:
            yield client

    def pull(self) -> int | None:
        """Wait for the next update, and return whose it is; None after the last one."""
        self.settle()
        try:
            upload = next(self._uploads, None)
        except Exception as error:
            # A session takes an error raised in it for a client's leaving.
            self._error = error
            raise
        if upload is None:
            return None
        self._early[upload[0]] = upload
        return upload[0]

    def take(self, client: int) -> Update:
        started = perf_counter()
        try:
            return self._hand_over(client)
        finally:
            self.seconds += perf_counter() - started

    def _hand_over(self, client: int) -> Update:
        self.settle()
        while client not in self._early:
            if self.pull() is None:
                raise InternalError(f"client {client} was to upload, and nobody trained it")
        self._handed_over = self._early.pop(client)
        _, payload = self._handed_over
        return Update(payload, self.due.model_digest)

    def settle(self) -> None:
        """Tell of the last update that was taken, if the server has it, and let it go."""
        handed_over, self._handed_over = self._handed_over, None
        if handed_over is not None and self._received is not None:
            client = client_id(handed_over[0])
            if any(client in figures.answered for figures in self._session.figures if figures.takes_update):
                self._received(handed_over[1])

    def require_whole(self) -> None:
        """Raise what training or encoding raised inside of a client's answer."""
        if self._error is not None:
            raise self._error


def client_id(client: int) -> ClientId:
    """Return what a protocol calls a client; numbers count from 0, and identifiers from 1."""
    return ClientId(client + 1)


def _ids(due: SumRound) -> frozenset[ClientId]:
    return frozenset(map(client_id, due.clients))


def _subject(due: SumRound) -> Subject:
    has_indices = any(isinstance(segment, IndexSegment) for segment in due.codec.layout.segments)
    return Subject(
        task=_TASK,
        round_number=due.number,
        layout=due.codec.layout,
        capacity=due.codec.capacity,
        tables=due.codec.tables if has_indices else (),
        model_digest=due.model_digest,
    )


def secure_sum(configuration: Configuration) -> SecureSum:
    """Return what adds up as a configuration says."""
    settings, cohorts = configuration.secagg, Cohorts.of(configuration)
    require_private(configuration)
    ideal = IdealSum(configuration.most_uploads, cohorts.minimum)
    if settings.mode is SumMode.IDEAL:
        if not configuration.privacy.is_on:
            return ideal
        return NoisedSum(ideal, _real_sum(configuration, cohorts).client_noise, configuration.privacy.delta)
    return CheckedSum(_real_sum(configuration, cohorts).run, ideal, every=settings.every)


def require_feasible(configuration: Configuration, codec: ModelUpdate, *, available: int) -> None:
    """Refuse a run whose rounds no protocol could add up, before anything is trained.

    Args:
        codec: one that is laid out as those of the run will be.
        available: how many clients there are.
    """
    cohorts, noise, rounds = Cohorts.of(configuration), _noise(configuration), configuration.rounds
    most = 0 if noise is None else ReleaseCount(cohorts, available, rounds).most
    if configuration.secagg.mode is SumMode.IDEAL:
        if noise is not None:
            require_budget(noise, _real_sum(configuration, cohorts).client_noise(codec), most, rounds)
        return
    if (planned := sum(cohorts.planned_losses)) > cohorts.size - LEAST_COHORT:
        raise InvalidParameters(
            f"a round of {cohorts.size} clients is planned to lose up to {planned}; lower dropouts.rate, or raise "
            "clients_per_round"
        )
    clients = tuple(range(cohorts.size))
    due = SumRound(number=0, codec=codec, clients=clients, uploaders=clients)
    judge = None if noise is None else partial(require_budget, noise, most=most, rounds=rounds)
    _real_sum(configuration, cohorts).rehearse(due, judge)


def _real_sum(configuration: Configuration, cohorts: Cohorts) -> RealSum:
    return RealSum(configuration.secagg, cohorts, _noise(configuration))


def _noise(configuration: Configuration) -> RunNoise | None:
    return RunNoise(configuration) if configuration.privacy.is_on else None
