"""The server's side: NVFlare's FedAvg, whose rounds are sessions; each gives it one result, the mean of all sites.

Model selection, early stopping and persistence work as ever, on that one result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.dxo import MetaKey
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg

from secagg.compression.model_update.model_tensors import restored
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse
from secagg.platforms.leaving import StageCount, stages_said
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings

from .client import task_of
from .records import arrays_in, like
from .server_round import SiteRound

SUM: Final = "secure-sum"
"""The name of who gave the one result, for components that ask."""
_NONCE_BYTES: Final = 8


class SecureFedAvg(FedAvg):
    """FedAvg that learns sums alone."""

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 -- FedAvg's own
        secagg: dict[str, Any] | None = None,
        training_timeout: float = 0.0,
        training_patience: float | None = None,
        **kwargs: Any,  # noqa: ANN401 -- FedAvg's own
    ) -> None:
        """Take what FedAvg takes.

        Args:
            secagg: the settings of ``SecAggSettings`` by their names.
            training_timeout: seconds for the stage that trains; 0 waits for every site that is alive.
            training_patience: once enough sites have trained, the others get so many times as long.
        """
        super().__init__(*args, **kwargs)
        self.secagg, self.training_timeout = dict(secagg or {}), training_timeout
        self.training_patience = training_patience
        self.stages = list[tuple[str, StageCount]]()
        """Messages and departures of the last round, by stage."""
        self._settings = SecAggSettings(**self.secagg)
        self._rounds: Rounds | None = None
        self._nonce, self._number = "", 0

    def send_model(  # noqa: PLR0913, PLR0917 -- FedAvg's own
        self,
        task_name: str = "train",
        data: FLModel = None,
        targets: list[str] | None = None,
        min_responses: int | None = None,
        timeout: int = 0,
        callback: Callable[[FLModel], None] | None = None,
    ) -> None:
        """Run a session in the place of a broadcast, and hand its mean to the callback.

        Raises:
            SecAggError: the round failed; NVFlare ends the job instead of going on with a model that nobody trained.
        """
        del min_responses
        if task_name != self.task_name:
            raise Misuse(f"{task_name} would go to the sites in the clear; only {self.task_name} is summed here")
        sites = list(targets or (client.name for client in self.engine.get_clients()))
        self.set_fl_context(data)
        mean = self._mean(data, sites, timeout or self.training_timeout)
        task = self._prepare_task(data=data, task_name=task_name, timeout=0, callback=callback)
        # Components look at the peer's result, and at what it says of its round.
        with self.engine.new_context() as fl_ctx, self.engine.new_context() as peer:
            result = self._build_shareable(mean)
            peer.set_prop(FLContextKey.SHAREABLE, result, private=True, sticky=False)
            fl_ctx.set_peer_context(peer)
            replied = ClientTask(Client(SUM, ""), task)
            replied.result = result
            self._process_result(replied, fl_ctx)

    def send_model_and_wait(self, task_name: str = "train", data: FLModel = None, **others: Any) -> list[FLModel]:  # noqa: ANN401 -- FedAvg's own
        """Run a session, and return its mean."""
        found = list[FLModel]()
        self.send_model(task_name, data, callback=found.append, **others)
        return found

    def _mean(self, data: FLModel, sites: list[str], timeout: float) -> FLModel:
        if self._rounds is None:
            self._rounds, self._nonce = Rounds(self._settings), SystemCoins().draw(_NONCE_BYTES).hex()
        self._number += 1
        sent = self._rounds.restored(arrays_in(data.params))
        task = self._rounds.begun(
            sent,
            clients=len(sites),
            # A job that is run again, as simulations are, is another task.
            task=f"{task_of(self.fl_ctx)} {self._nonce}",
            number=self._number,
            weighted_by=MetaKey.NUM_STEPS_CURRENT_ROUND,
        )
        model = FLModel(
            params=like(data.params, sent),
            params_type=ParamsType.FULL,
            current_round=data.current_round,
            total_rounds=data.total_rounds,
            meta=dict(data.meta or {}),
        )
        session = SiteRound(task, self, model, training_timeout=timeout, training_patience=self.training_patience)
        self.stages = session.stages
        means = task.means(session.run(sites))
        return FLModel(
            params=like(data.params, self._rounds.model(task, means)),
            params_type=ParamsType.FULL,
            metrics=means.metrics or None,
            current_round=data.current_round,
            meta={
                "contributors": means.contributors,
                "examples": self._rounds.examples(means),
                "left": stages_said(self.stages),
            },
        )

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """Update the model; NVFlare makes floats of whole numbers on the way, which become integers again."""
        before, after = arrays_in(model.params), arrays_in(aggr_result.params)
        kept = {name: restored(array, before[name].dtype) for name, array in after.items() if name in before}
        aggr_result.params = {**aggr_result.params, **like(model.params, kept)}
        updated: FLModel = super().update_model(model, aggr_result)
        return updated

    def shareable_of(self, model: FLModel) -> Shareable:
        """Return a model as NVFlare sends it."""
        return self._build_shareable(model)
