"""Server side: NVFlare controllers that run each round as a session and get one result, the mean of all sites.

Model selection, early stopping, server optimizers and persistence work as usual on this result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AlgorithmConstants, AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

from secagg.compression.model_update.arrays import Arrays, restored
from secagg.contract import Aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse
from secagg.platforms import Left, StageCount, stages_said
from secagg.platforms.failed_rounds import FAILURES, SKIPPED, FailedRounds
from secagg.platforms.round_task import Means, Rounds, RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, Reply, ServerRound
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import RECORD, Record

from .client import (
    CONTROL,
    STAGE_TASK,
    arrays_in,
    carrying,
    changes_of,
    client_of,
    controls_in,
    emptied,
    failure_in,
    like,
    task_of,
)

# --- One round over tasks: each site gets and answers one task per stage --------------------------------------------

_LOOK: Final = 0.5
Heard = SimpleQueue[tuple[str, Shareable]]


class SiteRound(ServerRound[str]):
    """One session, carried by a controller's tasks."""

    own_timeout = "training_timeout= of secure(), or timeout= of statistics_job()"

    def __init__(  # noqa: PLR0913 -- what a round is about
        self,
        task: RoundTask,
        controller: Any,  # noqa: ANN401 -- of any of NVFlare's workflows
        task_name: str,
        content: Callable[[], Shareable],
        *,
        training_timeout: float,
        training_patience: float | None,
    ) -> None:
        """Create a round; run it once.

        Args:
            task_name: name of the task of the stage with updates.
            content: returns the model in NVFlare's form, called once per site.
        """
        # A site accepts no task before its trainer has started, so the first stage waits as long as training.
        wait = training_timeout or FOR_EVER
        super().__init__(task, first=wait, training=wait, training_patience=training_patience)
        self._controller, self._task_name, self._content = controller, task_name, content
        self._tasks, self._heard = dict[str, Task](), Heard()

    def run(self, sites: list[str]) -> Aggregate:
        return self.carried({site: client_of(site) for site in sites})

    def send(self, records: Mapping[str, Record], *, takes_update: bool) -> list[str]:
        """Send each site its task; results arrive in NVFlare's threads."""
        # Late results of the previous stage still go into that stage's queue.
        heard = self._heard = Heard()
        for site, record in records.items():
            self._tasks[site] = self._sent(site, record, heard, takes_update=takes_update)
        return list(records)

    def heard(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """Wait for results; sites that NVFlare considers dead are lost."""
        if self._controller.abort_signal.triggered:
            raise Misuse("the job was aborted")
        try:
            site, reply = self._heard.get(timeout=min(seconds, _LOOK))
            yield site, partial(_read, reply)
        except Empty:
            for site in self._tasks:
                if self._controller.get_client_disconnect_time(site):
                    yield site, lambda: None

    def end_stage(self) -> None:
        """Cancel the unanswered tasks."""
        while self._tasks:
            _, sent = self._tasks.popitem()
            if sent.completion_status is None:
                self._controller.cancel_task(sent)

    def _sent(self, site: str, record: Record, heard: Heard, *, takes_update: bool) -> Task:
        def hear(client_task: ClientTask, fl_ctx: FLContext) -> None:
            del fl_ctx
            heard.put((client_task.client.name, client_task.result))
            client_task.result = None

        controller, content = self._controller, self._content() if takes_update else None
        if content is not None and self.task.held is not None:
            content = emptied(content, self.task.terms.joined)
        task = Task(
            name=self._task_name if takes_update else STAGE_TASK,
            data=carrying(record, content),
            result_received_cb=hear,
        )
        controller.send(task=task, fl_ctx=controller.fl_ctx, targets=[site])
        return task


def _read(reply: Shareable) -> Answer | Left:
    code = failure_in(reply)
    return Answer.of(reply.get(RECORD)) if code is None else code


def with_types(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model with integers and booleans restored to their previous types."""
    types = arrays_in(before)
    kept = {n: restored(array, types[n].dtype) for n, array in arrays_in(after).items() if n in types}
    return like(before, kept)


# --- Controllers ------------------------------------------------------------------------------------------------------

SUM: Final = "secure-sum"
"""Source name of the one result, for components that ask for it."""
TRAIN: Final = AppConstants.TASK_TRAIN
EVALUATION: Final = AppConstants.TASK_VALIDATION
ROUNDS_FILE: Final = "secagg_rounds.json"
"""File in the job's result: per round, the number of sites in its sum, or why it was skipped."""
_NONCE_BYTES: Final = 8
_HEADERS: Final = (AppConstants.CURRENT_ROUND, AppConstants.NUM_ROUNDS)


class SecureRounds:
    """Mixin for secure controllers; list it before one of NVFlare's controllers."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 -- the controller's own
        secagg: dict[str, Any] | None = None,
        training_timeout: float = 0.0,
        training_patience: float | None = None,
        **kwargs: Any,  # noqa: ANN401 -- the controller's own
    ) -> None:
        """Take the arguments of NVFlare's controller.

        Args:
            secagg: settings of ``SecAggSettings`` by name.
            training_timeout: seconds for the training stage; 0 waits for all live sites.
            training_patience: once enough sites have trained, the wait for the others, as a multiple of that time.
        """
        super().__init__(*args, **kwargs)
        self.secagg, self.training_timeout = dict(secagg or {}), training_timeout
        self.training_patience = training_patience
        self.stages = list[tuple[str, StageCount]]()
        self._settings = SecAggSettings(**self.secagg)
        self.failed = FailedRounds(self._settings)
        self._sessions: Rounds | None = None
        self._nonce, self._number = "", 0
        self._outcomes = list[dict[str, Any]]()

    @property
    def sessions(self) -> Rounds:
        if self._sessions is None:
            self._sessions, self._nonce = Rounds(self._settings), SystemCoins().draw(_NONCE_BYTES).hex()
        return self._sessions

    @property
    def task(self) -> str:
        """Task of this job's sums; a repeated job, as in simulations, gets another task."""
        controller: Any = self
        return f"{task_of(controller.fl_ctx)} {self._nonce}"

    def summed(
        self,
        sent: Arrays,
        content: Callable[[Arrays], Shareable],
        sites: list[str],
        task_name: str,
        timeout: float = 0.0,
    ) -> tuple[Means, dict[str, npt.NDArray[Any]]] | None:
        """Run sessions instead of a broadcast, and return the means and the model, or None if the round is skipped.

        Args:
            sent: tensors to sum; sites find the same ones in their task.
            content: returns the task of a model in NVFlare's form.
            timeout: seconds for the training stage, if set by NVFlare.
        """
        try:
            means, model = self._round(sent, content, sites, task_name, timeout)
        except FAILURES as error:
            self._record({SKIPPED: str(error)})
            if not self.failed.is_skipped(error):
                self.keep()
                raise
            return None
        self.failed.succeeded()
        self._record({"contributors": means.contributors, **means.trainings})
        return means, model

    def keep(self) -> None:
        """Save the last good model before the job ends."""

    def _round(
        self, sent: Arrays, content: Callable[[Arrays], Shareable], sites: list[str], task_name: str, timeout: float
    ) -> tuple[Means, dict[str, npt.NDArray[Any]]]:
        metrics = dict[str, float]()
        if self._settings.evaluated_names:
            found = self._run(sent, content, sites, EVALUATION, 0.0)[1]
            self.sessions.probe(sent, found, lambda model: self._run(model, content, sites, EVALUATION, 0.0)[1])
            metrics = found.metrics
        task, means = self._run(sent, content, sites, task_name, timeout)
        means.metrics.update(metrics)
        self.sessions.say_of_bounds(means)
        return means, self.sessions.model(task, means)

    def _run(
        self, sent: Arrays, content: Callable[[Arrays], Shareable], sites: list[str], task_name: str, timeout: float
    ) -> tuple[RoundTask, Means]:
        controller: Any = self
        sessions = self.sessions
        self._number += 1
        task = sessions.begun(
            sent,
            clients=len(sites),
            task=self.task,
            number=self._number,
            weighted_by=MetaKey.NUM_STEPS_CURRENT_ROUND,
            is_evaluation=task_name == EVALUATION,
            turn=int(controller.fl_ctx.get_prop(AppConstants.CURRENT_ROUND) or 0),
        )
        session = SiteRound(
            task,
            controller,
            task_name,
            lambda: content(sent),
            training_timeout=timeout or self.training_timeout,
            training_patience=self.training_patience,
        )
        self.stages = session.stages
        try:
            return task, task.means(session.run(sites))
        except FAILURES as error:
            if not self.failed.is_retried(error, has_asked=session.has_asked):
                raise
        return self._run(sent, content, sites, task_name, timeout)

    def handed(self, task: Task, result: Shareable, engine: Any) -> None:  # noqa: ANN401 -- NVFlare's own
        """Pass the one result to the controller as a site's result."""
        # Components read the peer's result and its round number.
        with engine.new_context() as fl_ctx, engine.new_context() as peer:
            peer.set_prop(FLContextKey.SHAREABLE, result, private=True, sticky=False)
            fl_ctx.set_peer_context(peer)
            replied = ClientTask(Client(SUM, ""), task)
            replied.result = result
            task.result_received_cb(replied, fl_ctx)

    def _record(self, outcome: dict[str, Any]) -> None:
        """Write a round's outcome into the job's result."""
        controller: Any = self
        fl_ctx: FLContext = controller.fl_ctx
        self._outcomes.append({"round": fl_ctx.get_prop(AppConstants.CURRENT_ROUND), **outcome})
        folder = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
        Path(folder, ROUNDS_FILE).write_text(json.dumps(self._outcomes, indent=1), encoding="utf-8")


class SecureModels(SecureRounds):
    """Controller that passes models in NVFlare's form to a callback."""

    task_name = TRAIN

    def broadcast(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: list[str] | None = None,
        *_: Any,  # noqa: ANN401 -- NVFlare's own
        **__: Any,  # noqa: ANN401 -- NVFlare's own
    ) -> None:
        """Run a session instead of a broadcast, and pass its mean to the task's callback."""
        if task.name != self.task_name:
            raise Misuse(f"{task.name} would go to the sites in the clear; only {self.task_name} is summed here")
        engine = fl_ctx.get_engine()
        sites = list(targets or (client.name for client in engine.get_clients()))
        mean = self._mean(FLModelUtils.from_shareable(task.data), sites, task.timeout)
        self.handed(task, _shareable_of(mean), engine)

    broadcast_and_wait = broadcast

    def send_model_and_wait(
        self,
        task_name: str = TRAIN,
        data: FLModel = None,
        **others: Any,  # noqa: ANN401 -- NVFlare's own
    ) -> list[FLModel]:
        found, controller = list[FLModel](), cast("Any", self)
        controller.send_model(task_name, data, callback=found.append, **others)
        return found

    def _mean(self, data: FLModel, sites: list[str], timeout: float) -> FLModel:
        params, controls = self.sessions.restored(arrays_in(data.params), self.task), controls_in(data.meta)

        def content(arrays: Arrays) -> Shareable:
            # The mean metrics of the previous round stay at the server.
            model = FLModel(
                params=like(data.params, {name: arrays[name] for name in params}),
                params_type=ParamsType.FULL,
                current_round=data.current_round,
                total_rounds=data.total_rounds,
                meta={name: value for name, value in data.meta.items() if name != MetaKey.INITIAL_METRICS},
            )
            return _shareable_of(model)

        sent = {**params, **controls}
        found = self.summed(sent, content, sites, self.task_name, timeout)
        meta: dict[str, Any] = {"left": stages_said(self.stages)}
        if found is None:
            # The controller gets its current model.
            changed, metrics, changes = sent, None, {name: np.zeros_like(sent[name]) for name in controls}
            meta[SKIPPED] = 1
        else:
            means, changed = found
            metrics, changes = means.metrics or None, changes_of(means.tensors, sent, controls)
            meta |= {"contributors": means.contributors, "examples": means.examples, **means.trainings}
        if controls:
            meta[AlgorithmConstants.SCAFFOLD_CTRL_DIFF] = {
                name.removeprefix(CONTROL): each for name, each in changes.items()
            }
        return FLModel(
            params=like(data.params, {name: changed[name] for name in params}),
            params_type=ParamsType.FULL,
            metrics=metrics,
            current_round=data.current_round,
            meta=meta,
        )

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """Update the model, and restore integers that NVFlare converted to floats."""
        aggr_result.params = {**aggr_result.params, **with_types(model.params, aggr_result.params)}
        controller: Any = super()
        updated: FLModel = controller.update_model(model, aggr_result)
        return updated


def _shareable_of(model: FLModel) -> Shareable:
    """Return a model in the form of NVFlare's controllers."""
    made: Shareable = FLModelUtils.to_shareable(model)
    made.add_cookie(AppConstants.CONTRIBUTION_ROUND, made.get_header(AppConstants.CURRENT_ROUND))
    return made


class SecureFedAvg(SecureModels, FedAvg):
    """FedAvg (and so FedProx) that learns only sums."""


class SecureScaffold(SecureModels, Scaffold):
    """SCAFFOLD in one sum: the changes of the model and those of the control variates."""


class _Learned:
    """Model generator that keeps integer types, and the previous model after a skipped round."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 -- of any of NVFlare's
        self._inner, self.is_skipped = inner, False

    def learnable_to_shareable(self, learnable: Any, fl_ctx: FLContext) -> Shareable:  # noqa: ANN401 -- NVFlare's own
        made: Shareable = self._inner.learnable_to_shareable(learnable, fl_ctx)
        return made

    def shareable_to_learnable(self, shareable: Shareable, fl_ctx: FLContext) -> Any:  # noqa: ANN401 -- NVFlare's own
        base = fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        was_skipped, self.is_skipped = self.is_skipped, False
        if was_skipped:
            # The server's optimizer does not step.
            return base
        before = dict(base[ModelLearnableKey.WEIGHTS])
        learned = self._inner.shareable_to_learnable(shareable, fl_ctx)
        weights = learned[ModelLearnableKey.WEIGHTS]
        weights.update(with_types(before, weights))
        return learned


class SecureScatterAndGather(SecureRounds, ScatterAndGather):
    """FedOpt's workflow; its aggregator gets one result, and the server's optimizer steps as usual."""

    shareable_gen: Any

    def start_controller(self, fl_ctx: FLContext) -> None:
        super().start_controller(fl_ctx)
        self.shareable_gen = _Learned(self.shareable_gen)

    def keep(self) -> None:
        model = self.fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)
        if self.persistor and model is not None:
            self.persistor.save(model, self.fl_ctx)

    def broadcast_and_wait(
        self,
        task: Task,
        fl_ctx: FLContext,
        *_: Any,  # noqa: ANN401 -- NVFlare's own
        abort_signal: Signal | None = None,
        **__: Any,  # noqa: ANN401 -- NVFlare's own
    ) -> None:
        self.fl_ctx, self.abort_signal = fl_ctx, abort_signal or Signal()
        engine = fl_ctx.get_engine()
        dxo, sites = from_shareable(task.data), [client.name for client in engine.get_clients()]
        sent = arrays_in(dxo.data)

        def content(arrays: Arrays) -> Shareable:
            data = dxo.data if arrays is sent else like(dxo.data, arrays)
            made = DXO(dxo.data_kind, data=data, meta=dict(dxo.meta)).to_shareable()
            for name in _HEADERS:
                made.set_header(name, task.data.get_header(name))
            return made

        found = self.summed(sent, content, sites, task.name, task.timeout)
        self.shareable_gen.is_skipped = found is None
        data = {name: np.zeros_like(array) for name, array in sent.items()}
        metrics = dict[str, float]()
        if found is not None:
            data, metrics = changes_of(found[0].tensors, sent, sent), found[0].metrics
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1, MetaKey.INITIAL_METRICS: metrics}
        result = DXO(DataKind.WEIGHT_DIFF, data=data, meta=meta).to_shareable()
        result.add_cookie(AppConstants.CONTRIBUTION_ROUND, task.data.get_cookie(AppConstants.CONTRIBUTION_ROUND))
        result.set_peer_props({ReservedKey.IDENTITY_NAME: SUM})
        self.handed(task, result, engine)
