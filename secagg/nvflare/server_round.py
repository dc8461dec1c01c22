"""One round over NVFlare's tasks: each site has a task of its own in each stage, and answers it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel

from secagg.contract import Aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse
from secagg.platforms.leaving import StageCount
from secagg.platforms.logs import LOG
from secagg.platforms.round_task import RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, ServerRound
from secagg.platforms.terms import Terms
from secagg.session.patience import Patience
from secagg.session.roles import ServerSession, Stage

from .records import (
    STAGE_TASK,
    carrying,
    client_in,
    client_of,
    failure_in,
    message_in,
    record_bytes,
    signature_in,
    with_message,
)

_LOOK: Final = 0.5
Heard = SimpleQueue[tuple[str, Shareable]]


class SiteRound(ServerRound[str]):
    """One session over the tasks of a controller."""

    def __init__(
        self,
        task: RoundTask,
        controller: Any,  # noqa: ANN401 -- FedAvg's subclass, which imports this
        model: FLModel,
        *,
        training_timeout: float,
        training_patience: float | None,
    ) -> None:
        """Hold everything for one round; ``run`` once."""
        super().__init__(task, SystemCoins())
        self._controller, self._model = controller, model
        self._waits = self.limits(
            exchange=task.settings.stage_timeout,
            training=training_timeout or FOR_EVER,
            training_patience=training_patience,
        )

    def run(self, sites: list[str]) -> Aggregate:
        """Carry a session through.

        Raises:
            SecAggError, ConnectionError: as ``carried``.
        """
        return self.carried({site: client_of(site) for site in sites})

    def exchanged(
        self, session: ServerSession, stage: Stage, messages: Mapping[str, bytes], terms: Terms | None
    ) -> StageCount:
        """Give each site its task, and wait for results, which come in threads of NVFlare's."""
        records = {site: with_message(message, terms=terms) for site, message in messages.items()}
        began, count, heard = time.monotonic(), StageCount(sent=len(records)), Heard()
        count.bytes_down = sum(map(record_bytes, records.values()))
        patience, waiting = Patience(stage, self._waits, time.monotonic), set(records)
        tasks = [self._sent(stage, site, record, heard) for site, record in records.items()]
        try:
            while waiting and (left := patience.left(session.turnout)):
                if self._controller.abort_signal.triggered:
                    raise Misuse("the job was aborted")
                try:
                    site, reply = heard.get(timeout=min(left, _LOOK))
                except Empty:
                    for site in [site for site in waiting if self._controller.get_client_disconnect_time(site)]:
                        LOG.warning("%s is lost", site)
                        self.drop(session, site, count)
                        waiting.discard(site)
                    continue
                waiting.discard(site)
                if (code := failure_in(reply)) is not None:
                    LOG.debug("%s left: %s", site, code)
                    self.drop(session, site, count, code)
                else:
                    self.take(session, site, partial(_answer, reply), count)
        finally:
            for sent in tasks:
                if sent.completion_status is None:
                    self._controller.cancel_task(sent)
        count.seconds = time.monotonic() - began
        return count

    def _sent(self, stage: Stage, site: str, record: Mapping[str, object], heard: Heard) -> Task:
        def hear(client_task: ClientTask, fl_ctx: FLContext) -> None:
            del fl_ctx
            heard.put((client_task.client.name, client_task.result))
            client_task.result = None

        controller = self._controller
        task = Task(
            name=controller.task_name if stage.takes_update else STAGE_TASK,
            data=carrying(record, controller.shareable_of(self._model) if stage.takes_update else None),
            result_received_cb=hear,
        )
        controller.send(task=task, fl_ctx=controller.fl_ctx, targets=[site])
        return task


def _answer(reply: Shareable) -> Answer:
    return Answer(message_in(reply), client_in(reply), signature_in(reply), record_bytes(reply))
