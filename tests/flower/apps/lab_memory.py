"""A grid whose nodes answer immediately in this process; the app, its mod and its contexts are Flower's."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN = 7


class MemoryGrid(Grid):
    """Passes a copy of each message to its node's app, and keeps the answer."""

    def __init__(self, app: Any, count: int) -> None:
        for name in ("_run_id", "_node_id", "_task_id"):
            setattr(TaskIdentity, name, 1)
        self.app, self._replies, self._pushed = app, dict[str, Message](), 0
        self._run: Any = SimpleNamespace(run_id=RUN)
        places: dict[int, dict[str, Any]] = {1000 + place: {"partition-id": place} for place in range(count)}
        self.contexts = {node: Context(RUN, node, config, RecordDict(), {}) for node, config in places.items()}

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list[str]()
        for message in messages:
            self._pushed += 1
            identity, node = f"message {self._pushed}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = identity
            sent = copy.deepcopy(message)
            sent.metadata.__dict__["_run_id"] = RUN
            context = copy.deepcopy(self.contexts[node])
            try:
                reply = self.app(sent, context)
            except Exception as error:  # noqa: BLE001 -- as a SuperNode, which keeps the state of before
                reply = Message(Error(0, str(error)), reply_to=sent)
            else:
                self.contexts[node] = context
            self._replies[identity] = copy.deepcopy(reply)
            pushed.append(identity)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(identity) for identity in sorted(message_ids) if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        del timeout
        return self.pull_messages(self.push_messages(messages))
