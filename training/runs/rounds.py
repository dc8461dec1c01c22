"""A run, and one round of it: sample, train, encode, sum, decode, step.

A round pulls clients through one after another: the sum asks for an upload, which is encoded from what the engine
yields next, and the update is dropped. Everything random follows from (seed, stream, round, client), so that a run that
was stopped and resumed is the run that was not.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.contract import Aggregate, Payload
from secagg.errors import InvalidParameters, PeerError, ThresholdNotMet
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.codec.operators import Operators
from secagg.training.codec.tensor_recipes import PLAIN_BITS
from secagg.training.codec.whole_updates import WholeUpdates
from secagg.training.models.networks import initial_parameters
from secagg.training.models.server_optimizers import Parameters, ServerOptimizer, ServerStep
from secagg.training.records.checkpoint import Checkpoint
from secagg.training.records.metrics import Accuracy, RoundRecord
from secagg.training.settings.cohorts import invited, lost, uploaders
from secagg.training.settings.configuration import Configuration, to_tree
from secagg.training.settings.parts import (
    Assignment,
    Done,
    Engine,
    Examples,
    FederatedData,
    FinishingEngine,
    LocalTraining,
    ModelFactory,
    Tensors,
    TrainedClient,
    Update,
)
from secagg.training.settings.sections import WHOLE_UPDATES, Scheme, Source, Weighting
from secagg.training.settings.seeds import Stream, seed_bytes, seed_of
from secagg.training.sums.clear_sum import OverflowMeter
from secagg.training.sums.privacy import ReleaseCount
from secagg.training.sums.round_sums import SecureSum, SumRound, Upload

Evaluate = Callable[[Tensors], Accuracy]
_LEAST_RATE: Final = 0.05
_NOBODY: Final = 2**32 - 1
"""The number of the client that stands for public data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What a run is put together from; a platform gives its own for any of them."""

    data: FederatedData
    factory: ModelFactory
    engine: Engine
    sum: SecureSum
    evaluate: Evaluate
    public: Callable[[], Examples] | None = None
    """Data that anybody may know, for the calibration ``public``."""
    optimizer: Callable[[], ServerStep] | None = None
    """Makes what moves the model by the mean; by default what the configuration names."""


@dataclass(slots=True)
class Run:
    """A run, between two rounds; ``advance`` plays the next one."""

    configuration: Configuration
    pieces: Pieces
    parameters: Parameters = field(init=False)
    operators: Operators | WholeUpdates = field(init=False)
    optimizer: ServerStep = field(init=False)
    average: Parameters | None = field(default=None, init=False)
    """Of the models of the last rounds, where that is asked for."""
    next_round: int = field(default=0, init=False)
    _releases: ReleaseCount = field(init=False)

    def __post_init__(self) -> None:
        if (wanted := self.configuration.clients_per_round) > (available := len(self.pieces.data.sizes)):
            raise InvalidParameters(
                f"a round takes {wanted} clients, and the data have {available}; lower clients_per_round, or deal the "
                "data out to more with data.clients"
            )
        initial = initial_parameters(self.pieces.factory, seed_of(self.configuration.seed, Stream.MODEL))
        self.parameters = {name: value.detach().cpu().numpy().copy() for name, value in initial.items()}
        self.operators = _operators(self.configuration, self.parameters)
        make = self.pieces.optimizer
        self.optimizer = ServerOptimizer(self.configuration.server) if make is None else make()
        self._releases = ReleaseCount(self.configuration, available)

    @property
    def values(self) -> int:
        """How many parameters the model has."""
        return sum(value.size for value in self.parameters.values())

    def sample(self, number: int) -> tuple[int, ...]:
        """Return who is invited to a round, and one more, who calibrates it where that is asked for."""
        return invited(self.configuration, len(self.pieces.data.sizes), number)

    @property
    def shown(self) -> Parameters:
        """The model that is tested and kept: the last one, or the average."""
        return self.parameters if self.average is None else self.average

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the model's parameters as engines take them."""
        return {name: torch.as_tensor(value) for name, value in self.parameters.items()}

    def advance(self) -> RoundRecord:
        """Play one round."""
        started, run, number = perf_counter(), self.configuration, self.next_round
        drawn = self.sample(number)
        clients, spare = drawn[: run.clients_per_round], drawn[-1]
        start = self.tensors()
        timer = Timer()
        with timer.part("calibrate"):
            codec = self.operators.begin(number, lambda: self._calibrating_update(start, spare, number))
        gone = lost(run, clients, number)
        due = SumRound(
            number=number,
            codec=codec.update,
            clients=clients,
            lost=gone,
            model_digest=digest_of(self.parameters),
            releases=self._releases.most_with(uploaders(clients, gone)),
        )
        pulled = Pulled(self, start, due, timer)
        outcome, failure = None, None
        try:
            outcome = self.pieces.sum.run(due, pulled.uploads())
        except (ThresholdNotMet, PeerError) as error:
            failure = str(error)
        if outcome is not None:
            with timer.part("decode"):
                self._step(outcome.aggregate)
        record = RoundRecord(
            round=number + 1,
            epoch=codec.update.epoch,
            parameters=self.values,
            clients=len(clients),
            contributors=0 if outcome is None else outcome.aggregate.contributors,
            lost={stage.value: len(some) for stage, some in gone.items()},
            failure=failure,
            loss=pulled.loss,
            is_real=outcome is not None and outcome.is_real,
            is_compressed=codec.is_compressed,
            client_bytes_up=0.0 if outcome is None else outcome.bytes_up / max(1, len(due.uploaders)),
            payload_bytes=int(upload_bytes(codec.update.layout, Accounting.WIRE)),
            paper_bytes=float(upload_bytes(codec.update.layout, Accounting.PAPER)),
            client_bytes_down=4 * self.values
            + codec.broadcast_bytes
            + (0.0 if outcome is None else outcome.bytes_down / len(clients)),
            paper_broadcast_bytes=codec.paper_broadcast_bytes,
            overflow=None if pulled.meter is None else pulled.meter.share,
            overflow_flsim=None if pulled.meter is None else pulled.meter.flsim_share,
            stages=[] if outcome is None else [asdict(stage) for stage in outcome.stages],
            epsilon=None if outcome is None else outcome.epsilon,
        )
        self._releases.add(due.uploaders)
        test = self._tested(number, timer)
        timer.seconds["protocol"] = 0.0 if outcome is None else outcome.seconds
        timer.seconds["round"] = perf_counter() - started
        self.next_round = number + 1
        return replace(record, test=test, seconds={name: round(value, 6) for name, value in timer.seconds.items()})

    def weight(self, client: int) -> int:
        """Return how often a client's update counts."""
        settings, sizes = self.configuration.server, self.pieces.data.sizes
        if settings.weighting is Weighting.EQUAL:
            return 1
        share = float(sizes[client]) / float(sizes.max())
        return max(1, round(settings.maximum_weight * share))

    def assignment(self, client: int, number: int) -> Assignment:
        """Return one client's work in a round."""
        return Assignment(
            client=client,
            examples=self.pieces.data.client(client),
            seed=seed_of(self.configuration.seed, Stream.TRAINING, number, client),
        )

    def coins(self, client: int, number: int) -> InsecureSeededCoins:
        """Return the coins that a client rounds with."""
        return InsecureSeededCoins(seed_bytes(seed_of(self.configuration.seed, Stream.ENCODING, number, client)))

    # --- Storing --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return the state between two rounds; what it holds is not changed later."""
        return Checkpoint(
            next_round=self.next_round,
            configuration=to_tree(self.configuration),
            counters={"engine": self.pieces.engine.name},
            arrays={
                "model": dict(self.parameters),
                "optimizer": self.optimizer.state(),
                "operators": self.operators.state(),
                **({} if self.average is None else {"average": dict(self.average)}),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint.

        Raises:
            InvalidParameters: it is of another configuration.
        """
        checkpoint.require_same(self.configuration)
        self.parameters = dict(checkpoint.arrays["model"])
        self.optimizer.restore(checkpoint.arrays.get("optimizer", {}))
        self.operators.restore(checkpoint.arrays.get("operators", {}))
        self.average = dict(checkpoint.arrays["average"]) if "average" in checkpoint.arrays else None
        self.next_round = checkpoint.next_round
        # Who was in the rounds so far follows from the seed, and matters to noise alone.
        counted = self.next_round if self.configuration.privacy.is_on else 0
        self._releases = ReleaseCount(self.configuration, len(self.pieces.data.sizes), counted)

    def frozen(self) -> Callable[[], Checkpoint]:
        """Return what makes the checkpoint of this moment later, without making it now."""
        held = copy.copy(self)
        held.operators, held.optimizer = copy.copy(self.operators), copy.copy(self.optimizer)
        return held.checkpoint

    # --- Private --------------------------------------------------------------------------------------------------

    def _step(self, aggregate: Aggregate) -> None:
        mean = self.operators.decode(aggregate)
        before, settings = self.parameters, self.configuration.server
        self.parameters = self.optimizer.step(before, mean)
        rate = falling_rate(settings.falling, self.next_round + 1, self.configuration.rounds)
        if rate < 1:
            step = np.float32(rate)
            self.parameters = {
                name: np.asarray(old + step * (self.parameters[name] - old), dtype=np.float32)
                for name, old in before.items()
            }
        if settings.averaged:
            # The first models weigh less, because they are far from where the run goes.
            kept = np.float32(min(1 - 1 / settings.averaged, (self.next_round + 1) / (self.next_round + 10)))
            self.average = {
                name: np.asarray(kept * self.shown[name] + (1 - kept) * value, dtype=np.float32)
                for name, value in self.parameters.items()
            }

    def _calibrating_update(self, start: Tensors, spare: int, number: int) -> Update:
        if self.configuration.compression.source is Source.PUBLIC and self.pieces.public is not None:
            seed = seed_of(self.configuration.seed, Stream.TRAINING, number, _NOBODY)
            work = Assignment(client=_NOBODY, examples=self.pieces.public(), seed=seed)
        else:
            work = self.assignment(spare, number)
        (trained,) = self.pieces.engine.train(start, [work], self.configuration.local)
        return trained.update

    def _tested(self, number: int, timer: Timer) -> Accuracy | None:
        every, last = self.configuration.evaluation.every, self.configuration.rounds
        if (number + 1) % every and number + 1 != last:
            return None
        with timer.part("evaluate"):
            return self.pieces.evaluate({name: torch.as_tensor(value) for name, value in self.shown.items()})


def _operators(configuration: Configuration, parameters: Parameters) -> Operators | WholeUpdates:
    settings = configuration.compression
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    seed = seed_bytes(seed_of(configuration.seed, Stream.OPERATORS))
    weight = configuration.maximum_total_weight
    if settings.scheme in WHOLE_UPDATES:
        return WholeUpdates(
            settings=settings, shapes=shapes, seed=seed, maximum_total_weight=weight, cohort=configuration.cohort
        )
    return Operators(settings=settings, shapes=shapes, seed=seed, maximum_total_weight=weight)


def falling_rate(share: float, number: int, rounds: int) -> float:
    """Return what a step of the server is multiplied by: 1, and over the last share of the rounds down to a 20th."""
    return max(_LEAST_RATE, min(1.0, (1 - number / rounds) / share)) if share else 1.0


# --- Inside a round ---------------------------------------------------------------------------------------------------


class Timer:
    """Adds up what the parts of a round take.

    ``train`` is the wait for clients that are trained and encoded; ``encode`` is what all of them spent on encoding,
    some of it at the same time.
    """

    def __init__(self) -> None:
        self.seconds = dict[str, float]()

    def add(self, name: str, seconds: float) -> None:
        """Count what was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """Count what is done inside."""
        started = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - started)


class Pulled:
    """The uploads of a round, each trained and encoded when it is asked for."""

    def __init__(self, run: Run, start: Tensors, due: SumRound, timer: Timer) -> None:
        self._run, self._start, self._due, self._timer = run, start, due, timer
        self._losses = dict[int, tuple[float, int]]()
        compression = run.configuration.compression
        is_metered = compression.scheme is Scheme.SCALAR and compression.modulus_bits != PLAIN_BITS
        meter = OverflowMeter(due.codec, compression.modulus_bits) if is_metered else None
        self.meter = meter if meter is not None and meter.is_metering else None

    @property
    def loss(self) -> float | None:
        """The mean training loss over the examples, added up in an order that nothing changes."""
        total = sum(count for _, count in self._losses.values())
        ordered = (self._losses[client] for client in sorted(self._losses))
        return sum(loss * count for loss, count in ordered) / total if total else None

    def uploads(self) -> Iterator[Upload]:
        """Yield what each client sends; its update is gone before the next one comes."""
        run, number = self._run, self._due.number
        work = [run.assignment(client, number) for client in self._due.uploaders]
        ready = _finished(run.pieces.engine, self._start, work, run.configuration.local, self._encoded)
        while True:
            with self._timer.part("train"):
                encoded = next(ready, None)
            if encoded is None:
                return
            weight = run.weight(encoded.client)
            if self.meter is not None:
                self.meter.add(encoded.payload, weight)
            self._timer.add("encode", encoded.seconds)
            self._losses[encoded.client] = (encoded.loss, encoded.examples)
            client, payload = encoded.client, encoded.payload
            del encoded
            yield client, payload, weight

    def _encoded(self, trained: TrainedClient) -> _Encoded:
        started, run = perf_counter(), self._run
        payload = run.operators.encode(trained.update, run.coins(trained.client, self._due.number))
        return _Encoded(trained.client, payload, trained.loss, trained.examples, perf_counter() - started)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A client whose update is gone."""

    client: int
    payload: Payload
    loss: float
    examples: int
    seconds: float
    """What encoding took."""


def _finished(
    engine: Engine,
    start: Tensors,
    work: Sequence[Assignment],
    settings: LocalTraining,
    finish: Callable[[TrainedClient], Done],
) -> Iterator[Done]:
    if isinstance(engine, FinishingEngine):
        return engine.train_and_finish(start, work, settings, finish)
    return map(finish, engine.train(start, work, settings))


def digest_of(parameters: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    """Return what clients and server tell models apart by."""
    digest = hashlib.sha256()
    for name, value in parameters.items():
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(value).tobytes())
    return digest.digest()
