"""Sums training rounds with an in-memory protocol and the same clients in all rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import Any, Final

from secagg.compression.model_update import ModelUpdate
from secagg.contract import IndexSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InternalError, InvalidParameters, PeerError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.options import declared
from secagg.parameters import LEAST_COHORT
from secagg.privacy.client_noise import ClientNoise
from secagg.session.registry import Simulation, find, planned_settings
from secagg.session.roles import ClientSession, LazyUpdate, Released, ServerSession, Subject, Update
from secagg.session.run import Measured, run
from secagg.training.clear_sums import (
    CheckedSum,
    IdealSum,
    NoisedSum,
    Received,
    SecureSum,
    SumOutcome,
    SumRound,
    Upload,
)
from secagg.training.configuration import Configuration, SumMode, SumSettings
from secagg.training.parts import Cohorts
from secagg.training.sum_noise import ReleaseCount, RunNoise, require_budget, require_private

_TASK: Final = b"federated training"


class RealSum:
    """Runs a protocol session for each round."""

    def __init__(self, settings: SumSettings, cohorts: Cohorts, noise: RunNoise | None = None) -> None:
        self._entry, self._settings, self._cohorts = find(settings.protocol), settings, cohorts
        self._noise = noise
        self._chosen: Any = None
        self._world: Simulation | None = None
        known = declared(self._entry.settings)
        if noise is not None and "noise_multiplier" not in known:
            raise InvalidParameters(
                f"privacy.noise_multiplier is above 0, but {settings.protocol} releases sums without noise: set "
                "secagg.protocol = 'pairwise', 'one-message' or 'enclave'"
            )

    def settings_for(self, codec: ModelUpdate) -> Any:  # noqa: ANN401 -- the protocol's own class
        """Return the settings of sessions for a codec's payloads."""
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
        return planned_settings(self._entry, facts, assigned=self._settings.settings, called="secagg.settings")

    def client_noise(self, codec: ModelUpdate) -> ClientNoise:
        """Return the noise that clients add to a codec's payloads, which a sum in the clear can add too."""
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
                f"privacy.noise_multiplier is above 0, but {self._settings.protocol} itself would add the noise: "
                "set secagg.mode = 'real', or secagg.protocol = 'pairwise' or 'one-message'"
            )
        return noise

    def rehearse(self, due: SumRound, judge: Callable[[ServerSession], None] | None = None) -> None:
        """Open a session without clients."""
        with closing(self._simulate(self.settings_for(due.codec))) as world:
            session = world.open(_subject(due), _ids(due))
            try:
                if judge is not None:
                    judge(session)
            finally:
                session.abort()

    def run(self, due: SumRound, uploads: Iterable[Upload], received: Received | None = None) -> SumOutcome:
        """Run a session with all invited clients.

        Args:
            received: called for each update that the server received; a client may refuse to upload a trained one.
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
            # A client's error normally only ends its own part in a session; here it would end every round.
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
        """Return the world of the rounds so far, or a new one if this codec needs other settings."""
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
        # If nothing precedes the upload, clients come in the order of their training.
        clients = pulled.clients() if takes_first else iter(pulled.due.clients)
        return run(session, map(join, clients), dropouts, making=lambda: pulled.seconds)


class _PulledUploads:
    """The uploads of a round, each passed to its client; only a few wait at a time."""

    def __init__(self, uploads: Iterable[Upload], due: SumRound, session: Measured, received: Received | None) -> None:
        self.due, self._uploads = due, iter(uploads)
        self._session, self._received = session, received
        self._handed_over: Upload | None = None
        self._early = dict[int, Upload]()
        self._error: Exception | None = None
        self.lost = {client_id(client) for some in due.lost.values() for client in some}
        self.seconds = 0.0
        """Seconds spent on making updates, within clients' answers."""

    def clients(self) -> Iterator[int]:
        """Yield the clients that will drop out, then each client whose update is ready."""
        yield from (client for client in self.due.clients if client not in self.due.uploaders)
        while (client := self.pull()) is not None:
            yield client

    def pull(self) -> int | None:
        """Wait for the next update, and return its client; None after the last one."""
        self.settle()
        try:
            upload = next(self._uploads, None)
        except Exception as error:
            # A session treats an error raised in it as a client's dropout.
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
                raise InternalError(f"client {client} must upload, but was not trained")
        self._handed_over = self._early.pop(client)
        _, payload = self._handed_over
        return Update(payload, self.due.model_digest)

    def settle(self) -> None:
        """Report the last update if the server received it, and release it."""
        handed_over, self._handed_over = self._handed_over, None
        if handed_over is not None and self._received is not None:
            client = client_id(handed_over[0])
            if any(client in figures.answered for figures in self._session.figures if figures.takes_update):
                self._received(handed_over[1])

    def require_whole(self) -> None:
        """Raise an error of training or encoding from within a client's answer."""
        if self._error is not None:
            raise self._error


def client_id(client: int) -> ClientId:
    """Return a client's identifier in protocols: numbers count from 0, identifiers from 1."""
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
    """Return the configured secure sum."""
    settings, cohorts = configuration.secagg, Cohorts.of(configuration)
    require_private(configuration)
    ideal = IdealSum(configuration.most_uploads, cohorts.minimum)
    if settings.mode is SumMode.IDEAL:
        if not configuration.privacy.is_on:
            return ideal
        return NoisedSum(ideal, _real_sum(configuration, cohorts).client_noise, configuration.privacy.delta)
    return CheckedSum(_real_sum(configuration, cohorts).run, ideal, every=settings.every)


def require_feasible(configuration: Configuration, codec: ModelUpdate, *, available: int) -> None:
    """Refuse, before training, a run whose rounds cannot be summed.

    Args:
        codec: a codec with the layout of the run's codecs.
        available: number of available clients.
    """
    cohorts, noise, rounds = Cohorts.of(configuration), _noise(configuration), configuration.rounds
    most = 0 if noise is None else ReleaseCount(cohorts, available, rounds).most
    if configuration.secagg.mode is SumMode.IDEAL:
        if noise is not None:
            require_budget(noise, _real_sum(configuration, cohorts).client_noise(codec), most, rounds)
        return
    if (planned := sum(cohorts.planned_losses)) > cohorts.size - LEAST_COHORT:
        raise InvalidParameters(
            f"a round of {cohorts.size} clients is planned with up to {planned} dropouts; lower dropouts.rate or raise "
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
