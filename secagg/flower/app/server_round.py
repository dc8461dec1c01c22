"""One round over a Flower grid.

The strategy's own messages, with the model, go out with the stage that takes the updates, so that clients train last
and hold no update while anything else is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secagg.errors import ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.platforms.leaving import Left
from secagg.platforms.round_task import Means, Record, RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, Reply, ServerRound, not_eligible

from .records import code_in, record_in, with_record

_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_PAUSE_SHARE: Final = 1 / 32
"""Answers are asked for so often that none waits longer than this share of the stage's time until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """Result of a round."""

    means: Means
    carrier: Message
    """An answer of the last stage, which carries the result to the strategy."""
    failures: list[Message]


class GridRound(ServerRound[int]):
    """One session over a grid."""

    def __init__(self, task: RoundTask, grid: Grid, invited: Sequence[Message], timeout: float | None) -> None:
        """Prepare; ``run`` once.

        Args:
            invited: the strategy's own messages, one for each node.
            timeout: for training, and for the first stage, which may have to start a simulation or install the app.
        """
        super().__init__(task, first=timeout or FOR_EVER, training=timeout or FOR_EVER)
        self._grid = grid
        self._kind = invited[0].metadata.message_type, invited[0].metadata.group_id
        self._models = {message.metadata.dst_node_id: message.content for message in invited}
        self._asked = dict[str, int]()
        """The node whose answer a message waits for, by the message's identifier."""
        self._began, self._has_looked = 0.0, False
        self._failures = list[Message]()
        self._carrier: Message | None = None

    def run(self) -> RoundResult:
        """Carry a session through, and return the means; raises as ``carried``."""
        aggregate = self.carried({node: ClientId(node) for node in self._models})
        if self._carrier is None:
            raise ThresholdNotMet(needed=1, present=0, what="answers of the last stage")
        return RoundResult(means=self.task.means(aggregate), carrier=self._carrier, failures=self._failures)

    def send(self, records: Mapping[int, Record], *, takes_update: bool) -> list[int]:
        kind, group = self._kind
        contents = {node: with_record(record) for node, record in records.items()}
        if takes_update:
            contents = {node: RecordDict({**self._models[node], **content}) for node, content in contents.items()}
        pushed = [Message(content, node, kind, group_id=group) for node, content in contents.items()]
        # Of a message that a SuperLink does not take, some grids say nothing, and others that it has no identifier.
        taken = {*self._grid.push_messages(pushed)}
        self._asked = {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in pushed
            if message.metadata.message_id in taken
        }
        self._began, self._has_looked = time.monotonic(), False
        return list(self._asked.values())

    def heard(self, seconds: float) -> Iterator[tuple[int, Reply]]:
        if self._has_looked:
            pause = max(_SHORTEST_PAUSE, _PAUSE_SHARE * (time.monotonic() - self._began))
            time.sleep(min(pause, _LONGEST_PAUSE, seconds))
        self._has_looked = True
        for reply in list(self._grid.pull_messages({*self._asked})):
            # Flower's own link answers, in its own name, for a node that is gone.
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                yield node, partial(self._read, reply, node)

    def _read(self, reply: Message, node: int) -> Answer | Left:
        if reply.has_error():
            self._failures.append(reply)
            return code_in(reply)
        if (sender := reply.metadata.src_node_id) != node:
            raise not_eligible(f"node {sender}", "was not asked; a node answers for itself alone")
        answer = Answer.of(record_in(reply.content))
        # Of what the node sent nothing goes to the strategy.
        reply.content = RecordDict()
        self._carrier = reply
        return answer
