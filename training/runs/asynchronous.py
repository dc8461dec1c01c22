"""FedBuff: clients come and go, and the server steps whenever a buffer is full; simulated event by event.

Implements: [NMZ+22], with the mean over the buffer's total weight as the pseudo gradient.

One client after another starts, at a constant rate, from the model of that moment, and finishes after a time of its
own. It is trained when it finishes, and encodes under the codec that is in force then, so that a refresh wastes no
work: a codec changes where a buffer is released, and never inside one. What is kept of those at work are the models
that they started from, one for each version and not for each client. Who starts when, and for how long, follows from
the run's seed and the number of the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.compression.model_update import ModelUpdate
from secagg.errors import InvalidParameters
from secagg.training.records import Checkpoint
from secagg.training.server_optimizers import Parameters
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.parts import Stream, generator, seed_of
from secagg.training.settings.sections import AsynchronousSettings, CompressionSettings, SumMode, Weighting
from secagg.training.sums.round_sums import SumRound, Upload

from .rounds import Pulled, Run, Timer, digest_of, timed

_LEAST_DURATION: Final = 1.0
_DRAWS: Final = 64
"""How many clients are asked until one is free."""

Job = tuple[float, int, int, int]
"""When it is finished, the number of its start, the client, and the version of the model that it started from."""


def require_asynchronous(configuration: Configuration) -> None:
    """Refuse what does not go together with asynchronous clients.

    Raises:
        InvalidParameters: saying what to take instead.
    """
    settings, secagg = configuration.asynchronous, configuration.secagg
    if secagg.mode is SumMode.REAL and settings.exponent and secagg.protocol == "enclave":
        raise InvalidParameters(
            "without noise an enclave releases no sum in which few updates have a weight of their own, as those of one "
            "age would: take asynchronous.exponent = 0, secagg.protocol = 'one-message' or secagg.mode = 'ideal'"
        )
    if configuration.server.weighting is not Weighting.EQUAL or configuration.dropouts.rate:
        raise InvalidParameters("asynchronous runs weigh by age alone, and count clients that are too late as lost")
    if configuration.attack.is_on:
        raise InvalidParameters("attacks are for rounds, whose clients attack together: take asynchronous.buffer = 0")


@dataclass(slots=True)
class AsynchronousRun(Run):
    """A run whose rounds are steps of the server, each over one full buffer."""

    clock: float = field(default=0.0, init=False)
    starts: int = field(default=0, init=False)
    _jobs: list[Job] = field(default_factory=list[Job], init=False)
    _models: dict[int, Parameters] = field(default_factory=dict[int, Parameters], init=False)
    _last_start: dict[int, int] = field(default_factory=dict[int, int], init=False)
    """Of each client, the last version that it started from: nobody answers twice for one model."""

    def __post_init__(self) -> None:
        Run.__post_init__(self)
        require_asynchronous(self.configuration)

    @property
    def settings(self) -> AsynchronousSettings:
        """How clients come and go."""
        return self.configuration.asynchronous

    @property
    def interval(self) -> float:
        """The time between two starts, for the concurrency that is asked for."""
        mean = _LEAST_DURATION + self.settings.spread * math.sqrt(2 / math.pi)
        return mean / self.settings.concurrency

    def checkpoint(self) -> Checkpoint:
        """Return the state between two steps, with everybody who is at work and the models that they started from."""
        stored = Run.checkpoint(self)
        times = np.array([job[0] for job in self._jobs], dtype=np.float64)
        rest = np.array([job[1:] for job in self._jobs], dtype=np.int64).reshape(-1, 3)
        last = np.array(sorted(self._last_start.items()), dtype=np.int64).reshape(-1, 2)
        return replace(
            stored,
            counters={**stored.counters, "clock": self.clock, "starts": self.starts},
            arrays={
                **stored.arrays,
                "asynchronous": {"times": times, "jobs": rest, "last": last},
                **{f"started from {version}": dict(model) for version, model in self._models.items()},
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        Run.restore(self, checkpoint)
        self.clock, self.starts = checkpoint.counters["clock"], checkpoint.counters["starts"]
        stored = checkpoint.arrays["asynchronous"]
        jobs = zip(stored["times"].tolist(), stored["jobs"].tolist(), strict=True)
        # A list that was a heap when it was stored is one still.
        self._jobs = [(time, start, client, version) for time, (start, client, version) in jobs]
        self._last_start = {int(client): int(version) for client, version in stored["last"]}
        self._models = {
            int(part.removeprefix("started from ")): dict(model)
            for part, model in checkpoint.arrays.items()
            if part.startswith("started from ")
        }

    def frozen(self) -> Callable[[], Checkpoint]:
        """Return the checkpoint of this moment; lists and heaps of those at work are changed in the next step."""
        stored = self.checkpoint()
        return lambda: stored

    # --- Private --------------------------------------------------------------------------------------------------

    def _pull(self, number: int, codec: ModelUpdate, timer: Timer) -> tuple[Pulled, Iterator[Upload]]:
        """Let clients come and go until a buffer is full."""
        at_work = {version for _, _, _, version in self._jobs}
        self._models = {version: model for version, model in self._models.items() if version in at_work}
        self._models[number] = self.parameters
        versions = dict[int, tuple[int, bytes]]()
        due = SumRound(
            number=number,
            codec=codec,
            clients=(),
            uploaders=(),
            model_digest=digest_of(self.parameters),
            versions=versions,
        )
        buffered = _Buffered(due, self.configuration.compression, timer)
        return buffered, self._uploads(buffered, versions, timer)

    def _uploads(self, buffered: _Buffered, versions: dict[int, tuple[int, bytes]], timer: Timer) -> Iterator[Upload]:
        weights, number = self.settings.age_weights, buffered.due.number
        while len(buffered.ages) < self.settings.buffer:
            time, start, client, version = self._next_finished()
            self.clock = buffered.clock = time
            age = number - version
            if age > self.settings.maximum_staleness or client in versions:
                buffered.wasted += 1
                continue
            with timer.part("train"):
                model: Mapping[str, npt.NDArray[Any]] = self._models[version]
                begun = {name: torch.as_tensor(value) for name, value in model.items()}
                work = replace(
                    self.assignment(client, version),
                    seed=seed_of(self.configuration.seed, Stream.TRAINING, start, client),
                )
                (trained,) = self.pieces.engine.train(begun, [work], self.configuration.local)
                encoded = timed(trained, self.encode, start)
            versions[client] = version, digest_of(model)
            buffered.ages.append(age)
            yield buffered.upload(encoded, weights[age])

    def _next_finished(self) -> Job:
        """Return who is finished next, after everybody who started before that has started."""
        while not self._jobs or self.starts * self.interval <= self._jobs[0][0]:
            self._start()
        return heappop(self._jobs)

    def _start(self) -> None:
        number, self.starts = self.starts, self.starts + 1
        drawn = generator(seed_of(self.configuration.seed, Stream.ARRIVALS, number))
        busy = {client for _, _, client, _ in self._jobs}
        for client in drawn.integers(len(self.pieces.data.sizes), size=_DRAWS):
            if int(client) not in busy and self._last_start.get(int(client), -1) < self.next_round:
                duration = _LEAST_DURATION + self.settings.spread * abs(float(drawn.standard_normal()))
                self._last_start[int(client)] = self.next_round
                job = (number * self.interval + duration, number, int(client), self.next_round)
                heappush(self._jobs, job)
                return


class _Buffered(Pulled):
    """What entered a buffer."""

    def __init__(self, due: SumRound, compression: CompressionSettings, timer: Timer) -> None:
        super().__init__(due, compression, timer)
        self.ages = self.staleness = list[int]()

    @property
    def asked(self) -> int:
        """How many clients the messages of the buffer went to."""
        return len(self.ages)
