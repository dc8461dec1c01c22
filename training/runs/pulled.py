"""What the clients of a round send, each trained and encoded when it is asked for; and what a record tells of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.contract import Payload
from secagg.session.measured import StageFigures
from secagg.training.codec.operators import RoundCodec
from secagg.training.codec.tensor_recipes import PLAIN_BITS
from secagg.training.records.metrics import RoundRecord
from secagg.training.settings.parts import (
    Assignment,
    Done,
    Engine,
    FederatedData,
    FinishingEngine,
    ModelFactory,
    Tensors,
    TrainedClient,
)
from secagg.training.settings.sections import CompressionSettings, LocalTraining
from secagg.training.sums.clear_sum import OverflowMeter
from secagg.training.sums.round_sums import SumOutcome, SumRound, Upload

_CLIENTS_OF_A_DIGEST: Final = 8


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


Encode = Callable[[TrainedClient, int], Payload]
"""Encodes what a client was trained to, with its coins of this number."""


class Pulled:
    """The uploads of a round."""

    staleness: list[int] | None = None
    """How old the updates are, where clients are asynchronous."""
    wasted = 0
    """Updates that were of no use."""
    clock: float | None = None
    """The simulated time, where clients are asynchronous."""

    def __init__(self, due: SumRound, compression: CompressionSettings, timer: Timer) -> None:
        """Prepare to count what is sent."""
        self.due, self._timer = due, timer
        self.sent = 0
        self._losses = list[tuple[int, float, int]]()
        is_scalar = compression.has_codes and not compression.fine_bits
        is_metered = is_scalar and compression.modulus_bits != PLAIN_BITS
        meter = OverflowMeter(due.codec, compression.modulus_bits) if is_metered else None
        self.meter = meter if meter is not None and meter.is_metering else None

    @property
    def loss(self) -> float | None:
        """The mean training loss over the examples, added up in an order that nothing changes."""
        total = sum(count for _, _, count in self._losses)
        return sum(loss * count for _, loss, count in sorted(self._losses)) / total if total else None

    @property
    def asked(self) -> int:
        """How many clients the round's model and messages went to."""
        return len(self.due.clients)

    def upload(self, encoded: Encoded, weight: int) -> Upload:
        """Count what a client sends, and return it."""
        if self.meter is not None:
            self.meter.add(encoded.payload, weight)
        self._timer.add("encode", encoded.seconds)
        self._losses.append((encoded.client, encoded.loss, encoded.examples))
        self.sent += 1
        return encoded.client, encoded.payload, weight

    def uploads(self, ready: Iterator[Encoded], weight: Callable[[int], int]) -> Iterator[Upload]:
        """Yield what each client sends once it is trained; its update is gone before the next one comes."""
        while True:
            with self._timer.part("train"):
                encoded = next(ready, None)
            if encoded is None:
                return
            upload = self.upload(encoded, weight(encoded.client))
            del encoded
            yield upload


@dataclass(frozen=True, slots=True)
class Encoded:
    """A client whose update is gone."""

    client: int
    payload: Payload
    loss: float
    examples: int
    seconds: float
    """What encoding took."""


def timed(trained: TrainedClient, encode: Encode, number: int) -> Encoded:
    """Encode what a client was trained to."""
    started = perf_counter()
    payload = encode(trained, number)
    return Encoded(trained.client, payload, trained.loss, trained.examples, perf_counter() - started)


def round_record(
    codec: RoundCodec, pulled: Pulled, outcome: SumOutcome | None, failure: str | None, parameters: int
) -> RoundRecord:
    """Return what a round did, with synchronous clients or others; its times and its test are added later."""
    layout, ages, lost = codec.update.layout, pulled.staleness, pulled.due.lost
    up, down = (0, 0) if outcome is None else (outcome.bytes_up, outcome.bytes_down)
    return RoundRecord(
        round=pulled.due.number + 1,
        epoch=codec.update.epoch,
        parameters=parameters,
        clients=pulled.asked + pulled.wasted,
        contributors=0 if outcome is None else outcome.aggregate.contributors,
        lost={stage: len(some) for stage, some in lost.items()},
        failure=failure,
        loss=pulled.loss,
        is_real=outcome is not None and outcome.is_real,
        is_compressed=codec.is_compressed,
        client_bytes_up=up / max(1, pulled.sent),
        payload_bytes=int(upload_bytes(layout, Accounting.WIRE)),
        paper_bytes=float(upload_bytes(layout, Accounting.PAPER)),
        client_bytes_down=4 * parameters + codec.broadcast_bytes + down / max(1, pulled.asked),
        paper_broadcast_bytes=codec.paper_broadcast_bytes,
        overflow=None if pulled.meter is None else pulled.meter.share,
        overflow_flsim=None if pulled.meter is None else pulled.meter.flsim_share,
        staleness=ages,
        wasted=pulled.wasted,
        clock=pulled.clock,
        stages=[] if outcome is None else [_stage_record(figures) for figures in outcome.stages],
        epsilon=None if outcome is None else outcome.epsilon,
    )


def _stage_record(figures: StageFigures) -> dict[str, Any]:
    """Return a stage's figures as JSON: clients are counted, and not named."""
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
    """Train clients, and finish each where it was trained if the engine can."""
    if isinstance(engine, FinishingEngine):
        return engine.train_and_finish(start, work, settings, finish)
    return map(finish, engine.train(start, work, settings))


def digest_of(parameters: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    """Return what clients and server tell models apart by."""
    digest = hashlib.sha256()
    for name, value in parameters.items():
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(value).tobytes())
    return digest.digest()


def model_digest(factory: ModelFactory) -> str:
    """Return what a run's model is told from another by: its layers, and the names and shapes of its parameters."""
    with torch.random.fork_rng(devices=()):  # pyright: ignore[reportUnknownMemberType]
        model = factory()
    shapes = [(name, tuple(value.shape)) for name, value in model.named_parameters()]
    return hashlib.sha256(f"{model!r}{shapes}".encode()).hexdigest()


def data_digest(data: FederatedData) -> str:
    """Return what a run's data are told from others by: all sizes and test targets, and what a few clients have."""
    sizes = np.asarray(data.sizes)
    digest = hashlib.sha256(f"{data.name} {len(sizes)}".encode() + sizes.astype(np.int64).tobytes())
    digest.update(data.test().targets.cpu().numpy().tobytes())
    for client in np.unique(np.linspace(0, len(sizes) - 1, _CLIENTS_OF_A_DIGEST).astype(np.int64)).tolist():
        examples = data.client(client)
        digest.update(examples.inputs.cpu().numpy().tobytes() + examples.targets.cpu().numpy().tobytes())
    return digest.hexdigest()
