"""A run from its configuration to its folder: what it is put together from, what is kept, and what it comes to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters
from secagg.training.datasets import PreparedData, federated_data
from secagg.training.engines import make_engine
from secagg.training.engines.evaluation import Evaluator
from secagg.training.models.networks import initial_parameters, model_factory
from secagg.training.records.checkpoint import Checkpoint, write_arrays, write_text
from secagg.training.records.metrics import SUMMARY_NAME, Accuracy, MetricsFile, Observer, RoundRecord, summarise
from secagg.training.settings.configuration import FILE_NAME as CONFIGURATION_NAME
from secagg.training.settings.configuration import Configuration, to_toml, versions_here
from secagg.training.settings.parts import Assignment, Engine, Examples, FederatedData, ModelFactory, Tensors
from secagg.training.settings.seeds import Stream, generator, seed_of
from secagg.training.sums.secure_sums import require_feasible, secure_sum

from .asynchronous import AsynchronousRun
from .rounds import Pieces, Run

MODEL_NAME: Final = "model.npz"
BEST_NAME: Final = "best.npz"


def pieces_of(
    configuration: Configuration,
    *,
    engine: str | None = None,
    data: PreparedData | None = None,
    factory: ModelFactory | None = None,
) -> Pieces:
    """Return the library's own pieces for a configuration, around a platform's own data or model where they are given.

    Raises:
        InvalidParameters: a name that there is not, data that are missing, a device that is not there, an engine that
            cannot train the model, or a protocol that cannot run.
    """
    settings = configuration.data
    data = data or federated_data(
        settings.name,
        root=None if settings.root is None else Path(settings.root),
        clients=settings.clients or None,
        alpha=settings.alpha,
        style=settings.style,
        seed=configuration.seed,
    )
    factory = factory or model_factory(
        configuration.model,
        classes=data.classes,
        shape=data.shape,
        vocabulary=data.vocabulary,
        options=configuration.model_sizes,
    )
    tested = _Tested(configuration, data, factory)
    return Pieces(
        data=data,
        factory=factory,
        engine=_engine(configuration, factory, data, engine),
        sum=secure_sum(configuration),
        evaluate=tested.evaluate,
        public=tested.public,
    )


def train(
    configuration: Configuration,
    out: Path | None = None,
    *,
    resume: bool = False,
    pieces: Pieces | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Train as a configuration says, and return the summary.

    Args:
        out: the folder of the run, with its configuration, metrics, checkpoint and models; nothing is written without.
        resume: go on from the checkpoint in that folder, if there is one.
        pieces: what the run is put together from; by default the library's own.

    Raises:
        InvalidParameters: anything that cannot work, before anything is trained; or a checkpoint of another run.
        KeyboardInterrupt: the run was interrupted; its last whole round is in the checkpoint.
    """
    if out is not None and not resume and (out / SUMMARY_NAME).exists():
        raise InvalidParameters(
            f"{out} holds a finished run; name another folder, move that one away, or resume it with more rounds"
        )
    stored = Checkpoint.read(out) if out is not None and resume else None
    if stored is not None:
        stored.require_same(configuration)
    if pieces is None:
        engine = None if stored is None or configuration.engine != "auto" else str(stored.counters.get("engine"))
        pieces = pieces_of(configuration, engine=engine)
    run = AsynchronousRun(configuration, pieces) if configuration.asynchronous.buffer else Run(configuration, pieces)
    require_feasible(configuration, run.operators.planned(), available=len(pieces.data.sizes))
    if stored is not None:
        run.restore(stored)
    kept = None if out is None else _Folder(out, run)
    records = [] if kept is None else list(kept.metrics.kept)
    told: list[Observer] = [*([] if kept is None else [kept]), *observers]
    try:
        while run.next_round < configuration.rounds:
            record = run.advance()
            records.append(record)
            for observer in told:
                observer.round_done(record)
    finally:
        # Also after an interruption, and then what is kept is the state after the last whole round.
        for observer in told:
            observer.close()
    summary = summarise(records, parameters=run.values)
    summary["name"], summary["engine"] = configuration.name, run.pieces.engine.name
    if kept is not None:
        kept.finish(summary)
    return summary


# --- Private ----------------------------------------------------------------------------------------------------------


class _Folder:
    """Keeps a run in its folder: configuration, metrics, the best model, and checkpoints."""

    def __init__(self, folder: Path, run: Run) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / CONFIGURATION_NAME, to_toml(run.configuration, versions_here()))
        self._folder, self._run = folder, run
        self.metrics = MetricsFile(folder, keep=run.next_round)
        self._best = max((_choice(record) for record in self.metrics.kept), default=-1.0)
        self._last = run.frozen()

    def round_done(self, record: RoundRecord) -> None:
        """Keep what the round changed."""
        self._last = self._run.frozen()
        self.metrics.round_done(record)
        if _choice(record) > self._best:
            self._best = _choice(record)
            write_arrays(self._folder / BEST_NAME, self._run.shown)
        if record.round % self._run.configuration.checkpoint_every == 0:
            self._last().write(self._folder)

    def close(self) -> None:
        """Store the state after the last whole round."""
        self._last().write(self._folder)
        self.metrics.close()

    def finish(self, summary: dict[str, Any]) -> None:
        """Store what the run came to."""
        write_arrays(self._folder / MODEL_NAME, self._run.shown)
        write_text(self._folder / SUMMARY_NAME, json.dumps(summary, indent=2) + "\n")


def _choice(record: RoundRecord) -> float:
    """Return by what the best model is chosen; -1 where nothing was tested."""
    if record.test is None:
        return -1.0
    return record.test.accuracy if record.test.validation is None else record.test.validation


class _Tested:
    """Evaluates a model on the test examples, in two parts: one to choose the best by, and one to report it on."""

    def __init__(self, configuration: Configuration, data: FederatedData, factory: ModelFactory) -> None:
        examples, owners = data.test(), data.test_clients()
        count = len(examples)
        order = generator(seed_of(configuration.seed, Stream.VALIDATION)).permutation(count)
        chosen = round(count * configuration.evaluation.validation)
        self._parts = [np.sort(part) for part in (order[:chosen], order[chosen:])]
        self._examples = [_some(examples, part) for part in self._parts]
        self._evaluators = [
            Evaluator(
                factory,
                some,
                owners=None if owners is None else owners[part],
                device=configuration.device,
                threads=configuration.workers or None,
            )
            if len(some)
            else None
            for some, part in zip(self._examples, self._parts, strict=True)
        ]
        self._public = max(1, round(float(data.sizes.mean())))

    def public(self) -> Examples:
        """Return as many examples as a client has on average, from those that are set aside."""
        source = self._examples[0] if len(self._examples[0]) else self._examples[1]
        return Examples(source.inputs[: self._public], source.targets[: self._public])

    def evaluate(self, parameters: Tensors) -> Accuracy:
        """Evaluate on both parts."""
        results = [None if e is None else e.evaluate(parameters) for e in self._evaluators]
        found = [(r, len(part)) for r, part in zip(results, self._parts, strict=True) if r is not None]
        total = sum(count for _, count in found)
        validation, held_out = results
        users = held_out or validation
        return Accuracy(
            accuracy=sum(result.accuracy * count for result, count in found) / total,
            loss=sum(result.loss * count for result, count in found) / total,
            validation=None if validation is None else validation.accuracy,
            held_out=None if held_out is None else held_out.accuracy,
            user_mean=None if users is None else users.user_mean,
            user_tenth=None if users is None else users.user_tenth,
        )


def _some(examples: Examples, positions: npt.NDArray[np.int64]) -> Examples:
    chosen = torch.as_tensor(positions)
    return Examples(examples.inputs[chosen], examples.targets[chosen])


def _engine(configuration: Configuration, factory: ModelFactory, data: FederatedData, stored: str | None) -> Engine:
    def made(name: str) -> Engine:
        return make_engine(
            name,
            factory,
            device=configuration.device,
            threads=configuration.workers or None,
            chunk=configuration.chunk or None,
            bf16=configuration.bf16,
        )

    name = stored or configuration.engine
    if name != "auto":
        return made(name)
    if configuration.device == "cpu":
        return made("threads")
    work = [Assignment(client=0, examples=data.client(0), seed=seed_of(configuration.seed, Stream.TRAINING))]
    try:
        engine = made("vmap")
        list(
            engine.train(
                initial_parameters(factory, seed_of(configuration.seed, Stream.MODEL)), work, configuration.local
            )
        )
    except InvalidParameters:
        # The model cannot be trained in a stack; another engine says what is wrong with any other of its faults.
        return made("sequential")
    return engine
