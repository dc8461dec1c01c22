"""Sites and a controller in one process: filters, executor and encoding are NVFlare's and the library's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.fuel.utils import fobs

from secagg.nvflare.client import (
    COMPONENT,
    SITE,
    STAGE_TASK,
    SecAggClient,
    SecAggExecutor,
    SecAggFilter,
    controls_in,
    task_of,
)
from secagg.nvflare.controller import SiteRound
from secagg.nvflare.forced_site import SiteClient, SiteFilter
from secagg.platforms.round_task import Means, Rounds
from secagg.platforms.settings import SecAggSettings

Model = Mapping[str, npt.NDArray[Any]]
Train = Callable[["Site", FLModel], FLModel]
JOB = "job-1"
SITES = 5


def adding(site: Site, model: FLModel) -> FLModel:
    """Train: a site adds its number in sixteenths, and reports its number of steps as one more than that."""
    params = {name: values + values.dtype.type(site.number / 16) for name, values in model.params.items()}
    return FLModel(
        params=params, metrics={"accuracy": site.number}, meta={MetaKey.NUM_STEPS_CURRENT_ROUND: site.number + 1}
    )


def crossed(shareable: Shareable) -> tuple[bytes, Shareable]:
    """Return the bytes on the wire, and the decoded object."""
    common_decomposers.register()
    fobs.register(NumpyArrayDecomposer)
    data = fobs.dumps(shareable)
    return data, fobs.loads(data)


class Site:
    """One site's process."""

    def __init__(self, name: str, root: Path, train: Train, policy: dict[str, Any]) -> None:
        self.name, self.number, self.train = name, int(name.rpartition("-")[2]), train
        (root / name / "local").mkdir(parents=True, exist_ok=True)
        (root / name / JOB).mkdir(exist_ok=True)
        self.local = root / name / "local"
        self.client, self.filter = SecAggClient(policy), SecAggFilter()
        self.executor: Executor = SecAggExecutor()
        self.scope = list[Filter]()
        """The filters of the operator's privacy scope."""
        self.components: dict[str, Any] = {COMPONENT: self.client}
        workspace = SimpleNamespace(
            get_run_dir=lambda job: str(root / name / job), get_site_config_dir=lambda: str(self.local)
        )
        self.engine = SimpleNamespace(get_component=self.components.get, get_workspace=lambda: workspace)
        self.context = FLContext()
        for key, value in (
            (ReservedKey.ENGINE, self.engine),
            (ReservedKey.IDENTITY_NAME, name),
            (ReservedKey.RUN_NUM, JOB),
        ):
            self.context.put(key=key, value=value, private=True, sticky=False)

    def force(self, **arguments: Any) -> SiteClient:
        """Do the same as the operator's privacy.json."""
        client = self.components[SITE] = SiteClient(self.client.policy, **arguments)
        self.scope.append(SiteFilter())
        return client

    def do(self, task: str, data: Shareable) -> Shareable:
        """Do the same as NVFlare's client runner with a task."""
        for key, value in ((FLContextKey.TASK_NAME, task), (FLContextKey.TASK_ID, f"{self.name} {task}")):
            self.context.set_prop(key, value, private=True, sticky=False)
        try:
            data = self.filtered(data, FilterKey.IN)
        except Exception:  # noqa: BLE001 -- as the client runner
            return make_reply(ReturnCode.TASK_DATA_FILTER_ERROR)
        if task == STAGE_TASK:
            result = self.executor.execute(task, data, self.context, Signal())
        else:
            try:
                result = FLModelUtils.to_shareable(self.train(self, FLModelUtils.from_shareable(data)))
            except RuntimeError:
                result = make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return self.filtered(result, FilterKey.OUT)

    def filtered(self, shareable: Shareable, direction: str) -> Shareable:
        """Pass an object through the filters of the site's scope, and those of the job."""
        self.context.set_prop(FLContextKey.FILTER_DIRECTION, direction, private=True, sticky=False)
        is_stage = self.context.get_prop(FLContextKey.TASK_NAME) == STAGE_TASK
        for one in [*self.scope, *([] if is_stage else [self.filter])]:
            shareable = one.process(shareable, self.context)
        return shareable


@dataclass
class Federation:
    """A controller's tasks, and the sites that do them immediately."""

    root: Path
    settings: SecAggSettings
    train: Train = adding
    policy: dict[str, Any] = field(default_factory=dict[str, Any])
    meddling: Callable[[str, str, Shareable], Shareable] = lambda site, task, data: data  # noqa: ARG005 -- a server's
    forging: Callable[[str, str, Shareable], Shareable] = lambda site, task, reply: reply  # noqa: ARG005 -- a site's
    task_name: str = "train"
    gone: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """The site that is lost at each task."""
    process: str = "00"
    """The number of the server's process."""

    def __post_init__(self) -> None:
        if self.settings.weighting == "examples":
            self.settings = replace(self.settings, full_weight=8)
        self.sites = {
            f"site-{number}": Site(f"site-{number}", self.root, self.train, self.policy)
            for number in range(1, SITES + 1)
        }
        self.rounds, self.number = Rounds(self.settings), 0
        self.reached = list[bytes]()
        """Everything that reached the server, in the form on the wire."""
        self.dead = set[str]()
        self.abort_signal, self.fl_ctx = Signal(), next(iter(self.sites.values())).context
        self.round: SiteRound

    def run(
        self, model: Model, controls: Model | None = None, *, is_evaluation: bool = False, **waits: Any
    ) -> tuple[dict[str, npt.NDArray[Any]], Means]:
        """Run one round."""
        self.number += 1
        meta = {AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL: dict(controls)} if controls else {}
        task = self.rounds.begun(
            {**model, **controls_in(meta)},
            clients=len(self.sites),
            task=f"{task_of(self.fl_ctx)} {self.process}",
            number=self.number,
            weighted_by=MetaKey.NUM_STEPS_CURRENT_ROUND,
            is_evaluation=is_evaluation,
        )
        sent = FLModel(params=dict(model), params_type=ParamsType.FULL, current_round=self.number, meta=meta)
        waits = {"training_timeout": 30.0, "training_patience": None, **waits}
        self.round = SiteRound(task, self, self.task_name, lambda: self.shareable_of(sent), **waits)
        means = task.means(self.round.run(list(self.sites)))
        return {} if is_evaluation else self.rounds.model(task, means), means

    # --- What a round asks of its controller --------------------------------------------------------------------------

    def shareable_of(self, model: FLModel) -> Shareable:
        return FLModelUtils.to_shareable(model)

    def send(self, *, task: Any, fl_ctx: FLContext, targets: list[str]) -> None:
        (name,) = targets
        if name in self.dead or (name, task.name) in self.gone:
            self.dead.add(name)
            return
        reply = self.sites[name].do(task.name, self.meddling(name, task.name, crossed(task.data)[1]))
        data, arrived = crossed(self.forging(name, task.name, reply))
        self.reached.append(data)
        task.result_received_cb(
            client_task=SimpleNamespace(client=SimpleNamespace(name=name), result=arrived), fl_ctx=fl_ctx
        )
        task.completion_status = "ok"

    def cancel_task(self, task: Any) -> None:
        task.completion_status = "cancelled"

    def get_client_disconnect_time(self, name: str) -> float | None:
        return 1.0 if name in self.dead else None


def plain_mean(model: Model) -> dict[str, npt.NDArray[Any]]:
    """Return the result of FedAvg with the same training."""
    numbers = range(1, SITES + 1)
    step = sum((number + 1) * number for number in numbers) / sum(number + 1 for number in numbers) / 16
    return {name: values + values.dtype.type(step) for name, values in model.items()}


def weights_of(reply: Shareable) -> DXO | None:
    """Return the model in the data that reached a server, if any."""
    try:
        dxo = from_shareable(reply)
    except ValueError:
        return None
    return dxo if dxo.data_kind in {DataKind.WEIGHTS, DataKind.WEIGHT_DIFF} else None


MODEL: Model = {"w": np.arange(12, dtype=np.float32).reshape(3, 4) / 7, "b": np.full(3, 0.25, dtype=np.float32)}
