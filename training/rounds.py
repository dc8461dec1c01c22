"""A run and its rounds: sample, train or attack, encode, sum, decode, and step the server's optimizer."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.compression.common import PublicStream
from secagg.compression.custom import Factory
from secagg.compression.model_update import ModelUpdate
from secagg.compression.model_update.summed_values import UPDATE
from secagg.compression.peak import block_size_for
from secagg.compression.rotation import JoinedRotation, RoundedRotation
from secagg.contract import Aggregate, Payload
from secagg.errors import InvalidParameters, PeerError, ThresholdNotMet
from secagg.session.run import StageFigures
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.clear_sums import OverflowMeter, SecureSum, SumOutcome, SumRound, Upload
from secagg.training.codec import PLAIN_BITS, DownlinkSums, Operators, RoundCodec, WholeUpdates
from secagg.training.configuration import (
    WHOLE_UPDATES,
    AttackKind,
    AttackSettings,
    CompressionSettings,
    Configuration,
    Down,
    LocalTraining,
    Optimizer,
    Scheme,
    ServerSettings,
    Source,
    to_tree,
)
from secagg.training.engines import Probe
from secagg.training.models import initial_parameters
from secagg.training.parts import (
    Assignment,
    Cohorts,
    Done,
    Engine,
    Examples,
    FederatedData,
    FinishingEngine,
    ModelFactory,
    Stream,
    Tensors,
    TrainedClient,
    Update,
    generator,
    seed_bytes,
    seed_of,
)
from secagg.training.records import Accuracy, Checkpoint, RoundRecord
from secagg.training.sum_noise import ReleaseCount
from secagg.training.weights import Weights

Arrays = Mapping[str, npt.NDArray[np.float32]]
Parameters = dict[str, npt.NDArray[np.float32]]


class ServerStep(Protocol):
    """Methods that a run needs from an optimizer; a platform's own optimizer is copied shallowly each round."""

    def step(self, parameters: Arrays, mean: Arrays) -> Parameters: ...

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state for resuming a run."""
        ...

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a result of ``state``."""


@dataclass(slots=True)
class ServerOptimizer:
    """FedAvg with a rate, or FedAvgM.

    Implements: [RCZ+21] Algorithm 1, with momentum for FedAvgM; the pseudo gradient is the mean update.
    """

    settings: ServerSettings
    first: Parameters = field(default_factory=Parameters, init=False)

    def step(self, parameters: Arrays, mean: Arrays) -> Parameters:
        settings, rate = self.settings, np.float32(self.settings.rate)
        momentum = np.float32(settings.momentum)
        match settings.optimizer:
            case Optimizer.FEDAVG:
                return {name: _narrow(value + rate * mean[name]) for name, value in parameters.items()}
            case Optimizer.FEDAVGM:
                self.first = {
                    name: _narrow(momentum * self.first[name] + mean[name]) if self.first else mean[name]
                    for name in parameters
                }
                return {name: _narrow(value + rate * self.first[name]) for name, value in parameters.items()}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {f"first/{name}": value for name, value in self.first.items()}

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        self.first = {name.removeprefix("first/"): value for name, value in stored.items()}


def _narrow(value: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.asarray(value, dtype=np.float32)


_FACTORS: Final[Mapping[AttackKind, float]] = {
    AttackKind.SIGN_FLIP: -1.0,
    AttackKind.FLIP_TENFOLD: -10.0,
    AttackKind.SCALE_TENFOLD: 10.0,
}
_SPREADS: Final = 1.5
"""Standard deviations from the mean to an update inside the spread, [BBG19]'s z."""

Train = Callable[[Sequence[Assignment]], Iterable[TrainedClient]]


@dataclass(slots=True)
class Attack:
    """The attackers of one round."""

    kind: AttackKind
    work: list[Assignment]
    """The assignments, with attackers' changed labels."""
    attackers: frozenset[int]
    _agreed: Update | None = field(default=None, init=False)
    """The update that all attackers send."""

    @classmethod
    def of(cls, settings: AttackSettings, work: Sequence[Assignment], data: FederatedData) -> Attack:
        """Draw the attackers of a round: the first clients in an order drawn from the seed."""
        if not settings.is_on:
            return cls(AttackKind.NONE, list(work), frozenset())
        count = round(settings.share * len(work))
        dishonest, honest = list(work[:count]), list(work[count:])
        if settings.kind is AttackKind.LABEL_FLIP:
            greatest = int(data.test().targets.max())
            dishonest = [replace(one, examples=_relabelled(one.examples, greatest)) for one in dishonest]
        return cls(settings.kind, [*dishonest, *honest], frozenset(one.client for one in dishonest))

    def prepare(self, train: Train) -> None:
        """Train attackers that need each other's updates in advance."""
        if self.kind is AttackKind.INSIDE_SPREAD and self.attackers:
            of_attackers = train([one for one in self.work if one.client in self.attackers])
            self._agreed = _inside_spread(sorted(of_attackers, key=lambda trained: trained.client))

    def forged(self, trained: TrainedClient) -> TrainedClient:
        """Return the update that a client sends instead of its own; thread-safe."""
        if trained.client not in self.attackers:
            return trained
        if self._agreed is not None:
            return replace(trained, update=self._agreed)
        factor = np.float32(_FACTORS.get(self.kind, 1.0))
        return replace(trained, update={name: value * factor for name, value in trained.update.items()})


def _relabelled(examples: Examples, greatest: int) -> Examples:
    return Examples(examples.inputs, greatest - examples.targets)


def _inside_spread(trained: Sequence[TrainedClient]) -> Update:
    """Return the mean minus some standard deviations of each value."""
    agreed = Update()
    for name in trained[0].update:
        values = np.stack([one.update[name] for one in trained]).astype(np.float64)
        agreed[name] = (values.mean(axis=0) - _SPREADS * values.std(axis=0)).astype(np.float32)
    return agreed


_CLIENTS_OF_A_DIGEST: Final = 8


class Timer:
    """Measures the time spent in each part of a round.

    ``train`` is the wait for trained and encoded clients; ``encode`` is the total encoding time of all threads.
    """

    def __init__(self) -> None:
        self.seconds = dict[str, float]()

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        started = perf_counter()
        try:
            yield
        finally:
            self.add(name, perf_counter() - started)


class Pulled:
    """The uploads of a round."""

    def __init__(self, due: SumRound, compression: CompressionSettings, timer: Timer) -> None:
        self.due, self._timer = due, timer
        self.sent, self.model_bytes = 0, 0.0
        self._losses = list[tuple[int, float, int]]()
        is_scalar = compression.has_codes and not compression.fine_bits
        is_metered = is_scalar and compression.modulus_bits != PLAIN_BITS
        meter = OverflowMeter(due.codec, compression.modulus_bits) if is_metered else None
        self.meter = meter if meter is not None and meter.is_metering else None

    @property
    def loss(self) -> float | None:
        """Mean training loss over the examples, added up in a fixed order."""
        total = sum(count for _, _, count in self._losses)
        return sum(loss * count for _, loss, count in sorted(self._losses)) / total if total else None

    def upload(self, encoded: Encoded) -> Upload:
        if self.meter is not None:
            self.meter.add(encoded.payload)
        self._timer.add("encode", encoded.seconds)
        self._losses.append((encoded.client, encoded.loss, encoded.examples))
        self.sent += 1
        return encoded.client, encoded.payload

    def uploads(self, ready: Iterator[Encoded]) -> Iterator[Upload]:
        """Yield each client's upload once it is trained; its update is freed before the next one."""
        while True:
            with self._timer.part("train"):
                encoded = next(ready, None)
            if encoded is None:
                return
            upload = self.upload(encoded)
            del encoded
            yield upload


@dataclass(frozen=True, slots=True)
class Encoded:
    """A client's payload, without its update."""

    client: int
    payload: Payload
    loss: float
    examples: int
    seconds: float
    """Seconds of encoding."""


def round_record(
    codec: RoundCodec, pulled: Pulled, outcome: SumOutcome | None, failure: str | None, parameters: int
) -> RoundRecord:
    """Return the record of a round; times and test results are added later."""
    layout = codec.update.layout
    up, down = (0, 0) if outcome is None else (outcome.bytes_up, outcome.bytes_down)
    model = codec.broadcast_bytes + pulled.model_bytes
    return RoundRecord(
        round=pulled.due.number + 1,
        epoch=codec.update.epoch,
        parameters=parameters,
        clients=len(pulled.due.clients),
        contributors=0 if outcome is None else outcome.aggregate.contributors,
        lost={stage: len(some) for stage, some in pulled.due.lost.items()},
        failure=failure,
        loss=pulled.loss,
        is_real=outcome is not None and outcome.is_real,
        is_compressed=codec.is_compressed,
        wire_up=up / max(1, pulled.sent),
        payload_bytes=layout.payload_bytes,
        paper_bytes=float(upload_bytes(layout, Accounting.PAPER)),
        model_bytes=model,
        wire_down=model + down / max(1, len(pulled.due.clients)),
        paper_broadcast_bytes=codec.paper_broadcast_bytes,
        overflow=None if pulled.meter is None else pulled.meter.share,
        overflow_flsim=None if pulled.meter is None else pulled.meter.flsim_share,
        stages=[] if outcome is None else [_stage_record(figures) for figures in outcome.stages],
        epsilon=None if outcome is None else outcome.epsilon,
    )


def _stage_record(figures: StageFigures) -> dict[str, Any]:
    """Return a stage's figures as JSON: numbers of clients, not their names."""
    named = {"answered": len(figures.answered), "failed": len(figures.failed)}
    record = {name: named.get(name, getattr(figures, name)) for name in (item.name for item in fields(figures))}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in record.items()}


def train_and_finish(
    engine: Engine,
    start: Tensors,
    work: Sequence[Assignment],
    settings: LocalTraining,
    finish: Callable[[TrainedClient], Done],
) -> Iterator[Done]:
    """Train clients, and finish each in the thread that trained it if the engine can."""
    if isinstance(engine, FinishingEngine):
        return engine.train_and_finish(start, work, settings, finish)
    return map(finish, engine.train(start, work, settings))


def digest_of(parameters: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    """Return the digest by which clients and server distinguish models."""
    digest = hashlib.sha256()
    for name, value in parameters.items():
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(value).tobytes())
    return digest.digest()


def model_digest(factory: ModelFactory) -> str:
    """Return the digest of a run's model: its layers, and the names and shapes of its parameters."""
    with torch.random.fork_rng(devices=()):  # pyright: ignore[reportUnknownMemberType]
        model = factory()
    shapes = [(name, tuple(value.shape)) for name, value in model.named_parameters()]
    return hashlib.sha256(f"{model!r}{shapes}".encode()).hexdigest()


def data_digest(data: FederatedData) -> str:
    """Return the digest of a run's data: all sizes and test targets, and the data of a few clients."""
    sizes = np.asarray(data.sizes)
    digest = hashlib.sha256(f"{data.name} {len(sizes)}".encode() + sizes.astype(np.int64).tobytes())
    digest.update(data.test().targets.cpu().numpy().tobytes())
    for client in np.unique(np.linspace(0, len(sizes) - 1, _CLIENTS_OF_A_DIGEST).astype(np.int64)).tolist():
        examples = data.client(client)
        digest.update(examples.inputs.cpu().numpy().tobytes() + examples.targets.cpu().numpy().tobytes())
    return digest.hexdigest()


Evaluate = Callable[[Tensors], Accuracy]
_LEAST_RATE: Final = 0.05
_NOBODY: Final = 2**32 - 1
"""Client number that represents public data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Parts of a run; a platform may replace any of them."""

    data: FederatedData
    factory: ModelFactory
    engine: Engine
    sum: SecureSum
    evaluate: Evaluate
    public: Callable[[], Examples] | None = None
    """Public data, for the calibration ``public``."""
    optimizer: Callable[[], ServerStep] | None = None
    """Makes the server's optimizer; by default the configured one."""


@dataclass(slots=True)
class Run:
    """A run between two rounds; ``advance`` runs the next one."""

    configuration: Configuration
    pieces: Pieces
    parameters: Parameters = field(init=False)
    operators: Operators | WholeUpdates = field(init=False)
    optimizer: ServerStep = field(init=False)
    average: Parameters | None = field(default=None, init=False)
    """Mean of the models of the last rounds, if requested."""
    next_round: int = field(default=0, init=False)
    cohorts: Cohorts = field(init=False)
    about: dict[str, str] = field(init=False)
    """Digests of data and model, which must not change in a run."""
    downlink: DownlinkSums | None = field(default=None, init=False)
    """The compressed downlink, if configured."""
    _releases: ReleaseCount = field(init=False)
    _losses: dict[int, npt.NDArray[np.float32]] = field(default_factory=dict[int, npt.NDArray[np.float32]], init=False)
    """The losses that each client of the round reports, if they choose the code's rate."""
    _probe: Probe | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if (wanted := self.configuration.clients_per_round) > (available := len(self.pieces.data.sizes)):
            raise InvalidParameters(
                f"a round needs {wanted} clients, but the data has {available}; lower clients_per_round, or split "
                "the data among more with data.clients"
            )
        self.cohorts = Cohorts.of(self.configuration)
        self.about = {"data": data_digest(self.pieces.data), "model": model_digest(self.pieces.factory)}
        initial = initial_parameters(self.pieces.factory, seed_of(self.configuration.seed, Stream.MODEL))
        self.parameters = {name: value.detach().cpu().numpy().copy() for name, value in initial.items()}
        self.operators = _operators(self.configuration, self.parameters, int(self.pieces.data.sizes.max()))
        make = self.pieces.optimizer
        self.optimizer = ServerOptimizer(self.configuration.server) if make is None else make()
        self._releases = ReleaseCount(self.cohorts, available)
        if self.configuration.compression.down is Down.SUMS:
            if make is not None:
                raise InvalidParameters(
                    "clients cannot reproduce a platform's own optimizer: set compression.down = 'model'"
                )
            self.downlink = DownlinkSums(self._whole.held(self.parameters))
            self.parameters = self._whole.parted(self.downlink.model.values)

    @property
    def values(self) -> int:
        return sum(value.size for value in self.parameters.values())

    def sample(self, number: int) -> tuple[int, ...]:
        """Return the clients invited to a round, and one more for calibration if requested."""
        return self.cohorts.invited(len(self.pieces.data.sizes), number)

    @property
    def shown(self) -> Parameters:
        """The tested and kept model: the last one, or the average."""
        return self.parameters if self.average is None else self.average

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(value) for name, value in self.parameters.items()}

    def advance(self) -> RoundRecord:
        started, number, timer = perf_counter(), self.next_round, Timer()
        with timer.part("calibrate"):
            codec = self.operators.begin(number, lambda: self._calibrating_update(number))
        pulled, uploads = self._pull(number, codec.update, timer)
        outcome, failure, warning = None, None, None
        try:
            outcome = self.pieces.sum.run(pulled.due, uploads)
        except (ThresholdNotMet, PeerError) as error:
            failure = str(error)
        if outcome is not None:
            with timer.part("decode"):
                self._step(outcome.aggregate)
                warning = self.operators.warning
                if warning is None and isinstance(self.operators, WholeUpdates):
                    warning = self.operators.noise_warning(self.parameters, self._step_rate(number))
        elif self.downlink is not None:
            self.downlink.skip()
        if self.downlink is not None:
            self.downlink.seen(number, pulled.due.uploaders)
        self.next_round = number + 1
        self._releases.add(pulled.due.uploaders)
        record = round_record(codec, pulled, outcome, failure, self.values)
        test = self._test(number, timer)
        timer.seconds["protocol"] = 0.0 if outcome is None else outcome.seconds
        timer.seconds["round"] = perf_counter() - started
        seconds = {name: round(value, 6) for name, value in timer.seconds.items()}
        return replace(record, test=test, warning=warning, seconds=seconds)

    def assignment(self, client: int, number: int) -> Assignment:
        return Assignment(
            client=client,
            examples=self.pieces.data.client(client),
            seed=seed_of(self.configuration.seed, Stream.TRAINING, number, client),
        )

    def encode(self, trained: TrainedClient, number: int) -> Encoded:
        """Encode a trained client with the codec of the round; thread-safe."""
        started = perf_counter()
        coins = self.coins(trained.client, number)
        if isinstance(self.operators, WholeUpdates):
            payload = self.operators.encode(trained.update, coins, self._losses.get(trained.client))
        else:
            payload = self.operators.encode(trained.update, coins, trained.examples)
        return Encoded(trained.client, payload, trained.loss, trained.examples, perf_counter() - started)

    def coins(self, client: int, number: int) -> InsecureSeededCoins:
        return InsecureSeededCoins(seed_bytes(seed_of(self.configuration.seed, Stream.ENCODING, number, client)))

    # --- Storing --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return the state between two rounds, which later rounds do not modify."""
        return Checkpoint(
            next_round=self.next_round,
            configuration=to_tree(self.configuration),
            counters={"engine": self.pieces.engine.name, "about": self.about},
            arrays={
                "model": dict(self.parameters),
                "optimizer": self.optimizer.state(),
                "operators": self.operators.state(),
                **({} if self.average is None else {"average": dict(self.average)}),
                **({} if self.downlink is None else {"downlink": self.downlink.state()}),
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        checkpoint.require_same(self.configuration)
        checkpoint.require_about(self.about)
        self.parameters = dict(checkpoint.arrays["model"])
        self.optimizer.restore(checkpoint.arrays.get("optimizer", {}))
        self.operators.restore(checkpoint.arrays.get("operators", {}))
        self.average = dict(checkpoint.arrays["average"]) if "average" in checkpoint.arrays else None
        self.next_round = checkpoint.next_round
        if self.downlink is not None:
            rounds = map(self._uploaders, range(self.next_round))
            self.downlink = DownlinkSums.restored(checkpoint.arrays["downlink"], self.downlink.model, rounds)
        # The clients of the rounds so far follow from the seed; only noise needs them.
        counted = self.next_round if self.configuration.privacy.is_on else 0
        self._releases = ReleaseCount(self.cohorts, len(self.pieces.data.sizes), counted)

    def frozen(self) -> Callable[[], Checkpoint]:
        """Return a function that makes the current checkpoint later."""
        held = copy.copy(self)
        held.operators, held.optimizer = copy.copy(self.operators), copy.copy(self.optimizer)
        return held.checkpoint

    # --- Private --------------------------------------------------------------------------------------------------

    @property
    def _whole(self) -> WholeUpdates:
        """The codecs of a scheme with a compressed downlink."""
        return cast("WholeUpdates", self.operators)

    def _uploaders(self, number: int) -> tuple[int, ...]:
        clients = self.sample(number)[: self.configuration.clients_per_round]
        return self.cohorts.uploaders(clients, self.cohorts.lost(clients, number))

    def _pull(self, number: int, codec: ModelUpdate, timer: Timer) -> tuple[Pulled, Iterator[Upload]]:
        clients = self.sample(number)[: self.configuration.clients_per_round]
        lost = self.cohorts.lost(clients, number)
        uploaders = self.cohorts.uploaders(clients, lost)
        due = SumRound(
            number=number,
            codec=codec,
            clients=clients,
            uploaders=uploaders,
            lost=lost,
            model_digest=digest_of(self.parameters),
            releases=self._releases.most_with(uploaders),
        )
        pulled = Pulled(due, self.configuration.compression, timer)
        pulled.model_bytes = 4 * self.values if self.downlink is None else self.downlink.model_bytes(clients)
        work = [self.assignment(client, number) for client in uploaders]
        attack = Attack.of(self.configuration.attack, work, self.pieces.data)
        with timer.part("probe"):
            self._losses = self._probed(work, number)
        with timer.part("attack"):
            attack.prepare(lambda some: self.pieces.engine.train(self.tensors(), some, self.configuration.local))
        ready = train_and_finish(
            self.pieces.engine,
            self.tensors(),
            attack.work,
            self.configuration.local,
            lambda trained: self.encode(attack.forged(trained), number),
        )
        return pulled, pulled.uploads(ready)

    def _probed(self, work: Sequence[Assignment], number: int) -> dict[int, npt.NDArray[np.float32]]:
        """Return each client's losses at the model, and with public noise of the code added and subtracted."""
        if not isinstance(self.operators, WholeUpdates) or not self.operators.is_probed:
            return {}
        seed, deviations = self.configuration.seed, self.operators.deviations()
        coins = generator(seed_of(seed, Stream.PROBE, number))
        rate = self._step_rate(number)
        noise = {
            name: np.float32(rate * deviations[name]) * coins.standard_normal(value.shape, dtype=np.float32)
            for name, value in self.parameters.items()
        }
        if self._probe is None:
            self._probe = Probe(self.pieces.factory, self.configuration.device)
        return self._probe.losses(self.parameters, noise, work, partial(seed_of, seed, Stream.PROBE, number))

    def _step_rate(self, number: int) -> float:
        """Return the factor of a mean of updates and of its noise."""
        server = self.configuration.server
        return server.rate * falling_rate(server.falling, number + 1, self.configuration.rounds)

    def _step(self, aggregate: Aggregate) -> None:
        mean = self.operators.decode(aggregate)
        before, settings = self.parameters, self.configuration.server
        rate = falling_rate(settings.falling, self.next_round + 1, self.configuration.rounds)
        if self.downlink is not None:
            found = self._whole.signs(aggregate)
            moved = self.downlink.tell(
                self.next_round, found.sums, found.rotation, found.gains.times(self._step_rate(self.next_round))
            )
            self.parameters = self._whole.parted(moved)
        else:
            self.parameters = self.optimizer.step(before, mean)
        if rate < 1 and self.downlink is None:
            step = np.float32(rate)
            self.parameters = {
                name: np.asarray(old + step * (self.parameters[name] - old), dtype=np.float32)
                for name, old in before.items()
            }
        if settings.averaged:
            # The first models weigh less, because they are far from the final one.
            kept = np.float32(min(1 - 1 / settings.averaged, (self.next_round + 1) / (self.next_round + 10)))
            self.average = {
                name: np.asarray(kept * self.shown[name] + (1 - kept) * value, dtype=np.float32)
                for name, value in self.parameters.items()
            }

    def _calibrating_update(self, number: int) -> Update:
        if self.configuration.compression.source is Source.PUBLIC and self.pieces.public is not None:
            seed = seed_of(self.configuration.seed, Stream.TRAINING, number, _NOBODY)
            work = Assignment(client=_NOBODY, examples=self.pieces.public(), seed=seed)
        else:
            work = self.assignment(self.sample(number)[-1], number)
        (trained,) = self.pieces.engine.train(self.tensors(), [work], self.configuration.local)
        return trained.update

    def _test(self, number: int, timer: Timer) -> Accuracy | None:
        every, last = self.configuration.evaluation.every, self.configuration.rounds
        if (number + 1) % every and number + 1 != last:
            return None
        with timer.part("evaluate"):
            return self.pieces.evaluate({name: torch.as_tensor(value) for name, value in self.shown.items()})


def _operators(configuration: Configuration, parameters: Parameters, largest: int) -> Operators | WholeUpdates:
    settings = configuration.compression
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    seed = seed_bytes(seed_of(configuration.seed, Stream.OPERATORS))
    weight = configuration.most_uploads
    if settings.scheme in WHOLE_UPDATES:
        return WholeUpdates(
            settings=settings,
            shapes=shapes,
            seed=seed,
            most_uploads=weight,
            cohort=configuration.clients_per_round,
            made_by=None if settings.scheme is not Scheme.ROTATED else _rounded(configuration),
        )
    return Operators(
        settings=settings, shapes=shapes, seed=seed, most_uploads=weight, weights=Weights.of(configuration, largest)
    )


def _rounded(configuration: Configuration) -> Factory:
    """Return a factory of each round's clipped, rotated and rounded scheme; see ``RoundedRotation.planned``."""

    def made(*, values: int, cohort: int, seed: bytes, epoch: int) -> RoundedRotation:
        stream = PublicStream(seed=seed, round_number=epoch, tensor_name=UPDATE, shape=(values,))
        return RoundedRotation.planned(
            JoinedRotation(stream=stream, block_size=block_size_for(values)),
            clip=configuration.local.clip or 0.0,
            modulus_bits=configuration.compression.modulus_bits,
            clients=cohort,
            noise_share=configuration.privacy.noise_share,
        )

    return made


def falling_rate(share: float, number: int, rounds: int) -> float:
    """Return the factor of a server step: 1, falling to 1/20 over the last share of the rounds."""
    return max(_LEAST_RATE, min(1.0, (1 - number / rounds) / share)) if share else 1.0
