"""A run, and one round of it: sample, train, encode, sum, decode, step.

A round pulls clients through one after another: the sum asks for an upload, which is encoded from what the engine
yields next, and the update is dropped. Everything random follows from (seed, stream, round, client), so that a run that
was stopped and resumed is the run that was not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Final

import numpy as np
import torch

from secagg.compression.model_update import ModelUpdate
from secagg.compression.outside import Factory
from secagg.contract import Aggregate, Payload
from secagg.errors import InvalidParameters, PeerError, ThresholdNotMet
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.training.codec.operators import Operators
from secagg.training.codec.whole_updates import WholeUpdates, rounded_factory
from secagg.training.models.networks import initial_parameters
from secagg.training.models.server_optimizers import Parameters, ServerOptimizer, ServerStep
from secagg.training.records.checkpoint import Checkpoint
from secagg.training.records.metrics import Accuracy, RoundRecord
from secagg.training.settings.cohorts import Cohorts
from secagg.training.settings.configuration import Configuration, to_tree
from secagg.training.settings.parts import (
    Assignment,
    Engine,
    Examples,
    FederatedData,
    ModelFactory,
    Tensors,
    TrainedClient,
    Update,
)
from secagg.training.settings.sections import WHOLE_UPDATES, Scheme, Source, Weighting
from secagg.training.settings.seeds import Stream, seed_bytes, seed_of
from secagg.training.sums.privacy import ReleaseCount
from secagg.training.sums.round_sums import SecureSum, SumRound, Upload

from .attacks import Attack
from .pulled import Pulled, Timer, data_digest, digest_of, model_digest, round_record, timed, train_and_finish

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
    cohorts: Cohorts = field(init=False)
    about: dict[str, str] = field(init=False)
    """Digests of data and model, which a run keeps to."""
    _releases: ReleaseCount = field(init=False)

    def __post_init__(self) -> None:
        if (wanted := self.configuration.clients_per_round) > (available := len(self.pieces.data.sizes)):
            raise InvalidParameters(
                f"a round takes {wanted} clients, and the data have {available}; lower clients_per_round, or deal the "
                "data out to more with data.clients"
            )
        self.cohorts = Cohorts.of(self.configuration)
        self.about = {"data": data_digest(self.pieces.data), "model": model_digest(self.pieces.factory)}
        initial = initial_parameters(self.pieces.factory, seed_of(self.configuration.seed, Stream.MODEL))
        self.parameters = {name: value.detach().cpu().numpy().copy() for name, value in initial.items()}
        self.operators = _operators(self.configuration, self.parameters)
        make = self.pieces.optimizer
        self.optimizer = ServerOptimizer(self.configuration.server) if make is None else make()
        self._releases = ReleaseCount(self.cohorts, available)

    @property
    def values(self) -> int:
        """How many parameters the model has."""
        return sum(value.size for value in self.parameters.values())

    def sample(self, number: int) -> tuple[int, ...]:
        """Return who is invited to a round, and one more, who calibrates it where that is asked for."""
        return self.cohorts.invited(len(self.pieces.data.sizes), number)

    @property
    def shown(self) -> Parameters:
        """The model that is tested and kept: the last one, or the average."""
        return self.parameters if self.average is None else self.average

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the model's parameters as engines take them."""
        return {name: torch.as_tensor(value) for name, value in self.parameters.items()}

    def advance(self) -> RoundRecord:
        """Play one round."""
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
        self.next_round = number + 1
        self._releases.add(pulled.due.uploaders)
        record = round_record(codec, pulled, outcome, failure, self.values)
        test = self._test(number, timer)
        timer.seconds["protocol"] = 0.0 if outcome is None else outcome.seconds
        timer.seconds["round"] = perf_counter() - started
        seconds = {name: round(value, 6) for name, value in timer.seconds.items()}
        return replace(record, test=test, warning=warning, seconds=seconds)

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

    def encode(self, trained: TrainedClient, number: int) -> Payload:
        """Encode what a client was trained to, under the codec of the round."""
        return self.operators.encode(trained.update, self.coins(trained.client, number))

    def coins(self, client: int, number: int) -> InsecureSeededCoins:
        """Return the coins that a client rounds with."""
        return InsecureSeededCoins(seed_bytes(seed_of(self.configuration.seed, Stream.ENCODING, number, client)))

    # --- Storing --------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return the state between two rounds; what it holds is not changed later."""
        return Checkpoint(
            next_round=self.next_round,
            configuration=to_tree(self.configuration),
            counters={"engine": self.pieces.engine.name, "about": self.about},
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
            InvalidParameters: it is of another configuration, of other data or of another model.
        """
        checkpoint.require_same(self.configuration)
        checkpoint.require_about(self.about)
        self.parameters = dict(checkpoint.arrays["model"])
        self.optimizer.restore(checkpoint.arrays.get("optimizer", {}))
        self.operators.restore(checkpoint.arrays.get("operators", {}))
        self.average = dict(checkpoint.arrays["average"]) if "average" in checkpoint.arrays else None
        self.next_round = checkpoint.next_round
        # Who was in the rounds so far follows from the seed, and matters to noise alone.
        counted = self.next_round if self.configuration.privacy.is_on else 0
        self._releases = ReleaseCount(self.cohorts, len(self.pieces.data.sizes), counted)

    def frozen(self) -> Callable[[], Checkpoint]:
        """Return what makes the checkpoint of this moment later, without making it now."""
        held = copy.copy(self)
        held.operators, held.optimizer = copy.copy(self.operators), copy.copy(self.optimizer)
        return held.checkpoint

    # --- Private --------------------------------------------------------------------------------------------------

    def _pull(self, number: int, codec: ModelUpdate, timer: Timer) -> tuple[Pulled, Iterator[Upload]]:
        """Return what a round's sum is about, and the uploads of its clients."""
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
        work = [self.assignment(client, number) for client in uploaders]
        attack = Attack.of(self.configuration.attack, work, self.pieces.data)
        with timer.part("attack"):
            attack.prepare(lambda some: self.pieces.engine.train(self.tensors(), some, self.configuration.local))
        ready = train_and_finish(
            self.pieces.engine,
            self.tensors(),
            attack.work,
            self.configuration.local,
            lambda trained: timed(attack.forged(trained), self.encode, number),
        )
        return pulled, pulled.uploads(ready, self.weight)

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


def _operators(configuration: Configuration, parameters: Parameters) -> Operators | WholeUpdates:
    settings = configuration.compression
    shapes = {name: tuple(value.shape) for name, value in parameters.items()}
    seed = seed_bytes(seed_of(configuration.seed, Stream.OPERATORS))
    weight = configuration.maximum_total_weight
    if settings.scheme in WHOLE_UPDATES:
        return WholeUpdates(
            settings=settings,
            shapes=shapes,
            seed=seed,
            maximum_total_weight=weight,
            cohort=configuration.cohort,
            made_by=None if settings.scheme is not Scheme.ROTATED else _rounded(configuration),
        )
    return Operators(settings=settings, shapes=shapes, seed=seed, maximum_total_weight=weight)


def _rounded(configuration: Configuration) -> Factory:
    return rounded_factory(
        clip=configuration.local.clip or 0.0,
        modulus_bits=configuration.compression.modulus_bits,
        noise_share=configuration.privacy.noise_share,
    )


def falling_rate(share: float, number: int, rounds: int) -> float:
    """Return what a step of the server is multiplied by: 1, and over the last share of the rounds down to a 20th."""
    return max(_LEAST_RATE, min(1.0, (1 - number / rounds) / share)) if share else 1.0
