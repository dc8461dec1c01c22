"""One round over NVFlare's tasks: each site has a task of its own in each stage, and answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from secagg.contract import Aggregate
from secagg.errors import Misuse
from secagg.platforms.leaving import Left
from secagg.platforms.round_task import RECORD, Record, RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, Reply, ServerRound

from .records import STAGE_TASK, carrying, client_of, emptied, failure_in

_LOOK: Final = 0.5
Heard = SimpleQueue[tuple[str, Shareable]]


class SiteRound(ServerRound[str]):
    """One session over the tasks of a controller."""

    def __init__(  # noqa: PLR0913 -- what a round is about
        self,
        task: RoundTask,
        controller: Any,  # noqa: ANN401 -- of any of NVFlare's workflows; they import this
        task_name: str,
        content: Callable[[], Shareable],
        *,
        training_timeout: float,
        training_patience: float | None,
    ) -> None:
        """Prepare; ``run`` once.

        Args:
            task_name: of the stage with updates.
            content: makes a model as NVFlare sends it, once for each site.
        """
        super().__init__(task, training=training_timeout or FOR_EVER, training_patience=training_patience)
        self._controller, self._task_name, self._content = controller, task_name, content
        self._tasks, self._heard = dict[str, Task](), Heard()

    def run(self, sites: list[str]) -> Aggregate:
        return self.carried({site: client_of(site) for site in sites})

    def send(self, records: Mapping[str, Record], *, takes_update: bool) -> list[str]:
        """Give each site its task, whose results come in threads of NVFlare's."""
        # Late results of the stage before go into the queue of that one.
        heard = self._heard = Heard()
        for site, record in records.items():
            self._tasks[site] = self._sent(site, record, heard, takes_update=takes_update)
        return list(records)

    def heard(self, seconds: float) -> Iterator[tuple[str, Reply]]:
        """Wait for a result; sites that NVFlare holds for dead are lost."""
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
        """Take the tasks back that nobody has answered."""
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
