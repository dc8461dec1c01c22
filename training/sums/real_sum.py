"""The sum of a round by a protocol in memory: a session for each round, with the same clients all along."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol, runtime_checkable

from secagg.compression.model_update import ModelUpdate
from secagg.contract import IndexSegment, Payload
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InternalError, InvalidParameters, PeerError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.privacy.client_noise import ClientNoise
from secagg.session.measured import Measured
from secagg.session.registry import Simulation, find
from secagg.session.roles import ClientSession, LateUpdate, Released, ServerSession, Subject, Update
from secagg.session.run import run
from secagg.session.settings import known_settings, planned_settings
from secagg.training.settings.parts import Cohorts
from secagg.training.settings.sections import SumSettings

from .privacy import RunNoise
from .round_sums import SumOutcome, SumRound, Upload

_TASK: Final = b"federated training"
LEAST_LIST: Final = 3
"""Uploads of one age that are summed; two of them are honest where one client is corrupted."""
Received = Callable[[Payload, int], None]
"""Told of a payload and its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How often updates may count."""

    maximum: int = 1
    """By a client's examples."""
    by_age: tuple[int, ...] = ()
    """Where clients are asynchronous: of the age of the model that an update started from."""
    buffer: int = 0
    """Where clients are asynchronous: how many updates a sum takes."""


@runtime_checkable
class Buffer(Protocol):
    """A session that also takes uploads for older models."""

    def invitation_for(self, subject: Subject) -> bytes:
        """Return the invitation of a client whose subject is about the model that it started from."""
        ...


class RealSum:
    """Sessions of one protocol, one after another."""

    def __init__(
        self, settings: SumSettings, cohorts: Cohorts, weights: Weights, noise: RunNoise | None = None
    ) -> None:
        """Prepare for rounds.

        Raises:
            InvalidParameters: the protocol does not offer what is asked of it; the message says what to take instead.
        """
        self._entry, self._settings, self._cohorts = find(settings.protocol), settings, cohorts
        self._weights, self._noise = weights, noise
        self._chosen: Any = None
        self._world: Simulation | None = None
        known = known_settings(self._entry)
        if weights.maximum > 1 and "maximum_weight" not in known:
            raise InvalidParameters(
                f"{settings.protocol} leaves a weight out that few clients have, as those of the most examples would: "
                "take server.weighting = 'equal', or secagg.protocol = 'enclave' or 'pairwise'"
            )
        if weights.by_age and "staleness_weights" not in known:
            raise InvalidParameters(
                f"{settings.protocol} needs to know a cohort in advance, or cannot tell old updates, and asynchronous "
                "clients come when they are done: take secagg.protocol = 'enclave' or 'one-message'"
            )
        if noise is not None and "noise_multiplier" not in known:
            raise InvalidParameters(
                f"privacy.noise_multiplier is above 0, and {settings.protocol} releases sums as they are: take "
                "secagg.protocol = 'pairwise', 'one-message' or 'enclave'"
            )

    def settings_for(self, codec: ModelUpdate) -> Any:  # noqa: ANN401 -- the protocol's own class
        """Return the settings of sessions about a codec's payloads.

        Raises:
            InvalidParameters: a setting that the protocol does not have, or a value that it cannot take.
        """
        self._entry.require_segments(codec.layout)
        late, dropped = self._cohorts.planned_losses
        weights = self._weights
        facts: dict[str, Any] = {
            "suite": Suite.HYBRID if self._settings.hybrid else Suite.CLASSIC,
            "population": self._cohorts.size,
            "late": late,
            "dropped": dropped,
            # A client has no more than its share of the least cohort, and so the least cohort is smaller with weights.
            "minimum_cohort": max(LEAST_COHORT, (weights.buffer or self._cohorts.minimum) // weights.maximum),
            "maximum_cohort": weights.buffer or self._cohorts.size,
            "maximum_weight": weights.maximum,
            **self._facts_of_buffers(),
            **({} if self._noise is None else self._noise.settings_for(codec)),
        }
        return planned_settings(self._entry, facts, assigned=self._settings.settings, option="secagg.settings")

    def client_noise(self, codec: ModelUpdate) -> ClientNoise:
        """Return what clients add to a codec's payloads, which a sum in the clear can add as well.

        Raises:
            InvalidParameters, CapacityExceeded: the protocol's clients add none, or it does not fit.
        """
        settings: Any = self.settings_for(codec)
        noise: ClientNoise | None = None
        if hasattr(settings, "noise_for") and hasattr(settings, "corrupted"):
            noise = settings.noise_for(
                codec.layout,
                minimum_cohort=settings.minimum_cohort,
                capacity=self._cohorts.size,
                corrupted=settings.corrupted,
                maximum_weight=settings.maximum_weight,
            )
        if noise is None:
            raise InvalidParameters(
                f"privacy.noise_multiplier is above 0, and {self._settings.protocol} itself would add the noise: take "
                "secagg.mode = 'real', or secagg.protocol = 'pairwise' or 'one-message'"
            )
        return noise

    def _facts_of_buffers(self) -> dict[str, Any]:
        """Return what settings say of weights by age; where each age is summed apart, the least cohort is of one."""
        if not self._weights.by_age:
            return {}
        facts: dict[str, Any] = {"staleness_weights": self._weights.by_age, "capacity": self._weights.buffer}
        return {**facts, "minimum_cohort": LEAST_LIST} if "capacity" in known_settings(self._entry) else facts

    def rehearse(self, due: SumRound, judge: Callable[[ServerSession], None] | None = None) -> None:
        """Open a session that nobody joins.

        Raises:
            InvalidParameters, CapacityExceeded: no session about this codec can be safe; the message says why.
        """
        with closing(self._simulate(self.settings_for(due.codec))) as world:
            session = world.open(_subject(due), self._ids(due))
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
        session = Measured(world.open(subject, self._ids(due)), between=lambda: world.bytes_between)
        pulled = _PulledUploads(uploads, due, session, received)
        noise = None if self._noise is None else self._noise.of(session.session, due.releases)
        try:
            if due.versions is None:
                released = self._run(session, world, pulled)
            else:
                released = _run_buffer(session, world, pulled)
                pulled.tell(released.counted)
        except (ThresholdNotMet, PeerError):
            # What a client raises ends its part in a session and not the session: here it would end every round.
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

    def _ids(self, due: SumRound) -> frozenset[ClientId] | None:
        return None if due.versions is not None else frozenset(map(client_id, due.clients))

    def _run(self, session: Measured, world: Simulation, pulled: _PulledUploads) -> Released:
        dropouts = {stage: frozenset(map(client_id, some)) for stage, some in pulled.due.lost.items()}

        def join(client: int) -> ClientSession:
            late = LateUpdate(partial(pulled.take, client))
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
        self._early, self._buffered = dict[int, Upload](), dict[ClientId, Upload]()
        self._error: Exception | None = None
        self.lost = {client_id(client) for some in due.lost.values() for client in some}
        self.seconds = 0.0
        """What making updates took inside of clients' answers."""

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
            # A session takes what is raised in it for a client's leaving.
            self._error = error
            raise
        if upload is None:
            return None
        self._early[upload[0]] = upload
        return upload[0]

    def take(self, client: int) -> Update:
        """Return a client's update."""
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
        _, payload, weight = self._handed_over
        # The weight of age is the enclave's own.
        versions = self.due.versions
        digest = self.due.model_digest if versions is None else versions[client][1]
        return Update(payload, digest, weight if versions is None else 1)

    def settle(self) -> None:
        """Tell of the last update that was taken, if the server has it, and let it go."""
        handed_over, self._handed_over = self._handed_over, None
        if handed_over is not None and self._received is not None:
            client = client_id(handed_over[0])
            if any(client in figures.answered for figures in self._session.figures if figures.takes_update):
                if self.due.versions is None:
                    self._received(handed_over[1], handed_over[2])
                else:
                    # Of a buffer an age may stay out, which is known at its release.
                    self._buffered[client] = handed_over

    def tell(self, counted: frozenset[ClientId]) -> None:
        """Tell of the updates of a buffer that were counted."""
        self.settle()
        for client in counted & self._buffered.keys():
            if self._received is not None:
                self._received(*self._buffered[client][1:])

    def require_whole(self) -> None:
        """Raise what training or encoding raised inside of a client's answer."""
        if self._error is not None:
            raise self._error


def _run_buffer(session: Measured, world: Simulation, pulled: _PulledUploads) -> Released:
    """Fill one buffer with updates of several models; a client answers for the one that it started from.

    This is below the session interface: a platform's sessions are about one model.
    """
    buffer, subject = session.session, _subject(pulled.due)
    if not isinstance(buffer, Buffer):
        raise InternalError(f"{type(buffer).__name__} is no buffer")
    try:
        while (client := pulled.pull()) is not None:
            version, digest = (pulled.due.versions or {})[client]
            own = replace(subject, round_number=version, model_digest=digest)
            joined = world.member(client_id(client)).join(own, LateUpdate(partial(pulled.take, client)))
            message = buffer.invitation_for(own)
            session.now.bytes_down += len(message)
            session.now.sent += 1
            started = perf_counter()
            answer = joined.answer(message)
            session.now.add_client(perf_counter() - started)
            session.receive(client_id(client), answer)
        session.close_stage()
        return session.release()
    finally:
        session.abort()


def client_id(client: int) -> ClientId:
    """Return what a protocol calls a client; numbers count from 0, and identifiers from 1."""
    return ClientId(client + 1)


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
