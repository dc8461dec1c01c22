"""One round over a Flower grid.

The strategy's own messages, with the model, go out with the stage that takes the updates, so that clients train last
and hold no update while anything else is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secagg.crypto.entropy import Coins
from secagg.errors import ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.platforms.leaving import StageCount
from secagg.platforms.logs import LOG
from secagg.platforms.round_task import Means, RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, ServerRound
from secagg.platforms.terms import Terms
from secagg.session.patience import Patience
from secagg.session.roles import ServerSession, Stage

from .records import claimed_client, code_in, message_in, protocol_bytes, signature_in, with_message

_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_PAUSE_SHARE: Final = 1 / 32
"""Answers are asked for so often that none waits longer than this share of the stage's time until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round gives, and what carries it to the strategy."""

    means: Means
    carrier: Message
    """An answer of the last stage, which carries the result to the strategy."""
    failures: list[Message]


class GridRound(ServerRound[int]):
    """One session over a grid."""

    def __init__(self, task: RoundTask, grid: Grid, invited: Sequence[Message], coins: Coins) -> None:
        """Hold everything for one round; ``run`` once.

        Args:
            invited: the strategy's own messages, one for each node.
        """
        super().__init__(task, coins)
        self._grid = grid
        self._kind = invited[0].metadata.message_type, invited[0].metadata.group_id
        self._models = {message.metadata.dst_node_id: message.content for message in invited}
        self._limit = FOR_EVER
        self._failures = list[Message]()
        self._carrier: Message | None = None

    def run(self, timeout: float | None) -> RoundResult:
        """Carry a session through, and return the means.

        Args:
            timeout: for the first stage and for training; the others have that of the settings.
        Raises:
            SecAggError, ConnectionError: as ``carried``.
        """
        self._limit = timeout or FOR_EVER
        aggregate = self.carried({node: ClientId(node) for node in self._models})
        if self._carrier is None:
            raise ThresholdNotMet(needed=1, present=0, what="answers of the last stage")
        return RoundResult(means=self.task.means(aggregate), carrier=self._carrier, failures=self._failures)

    def exchanged(
        self, session: ServerSession, stage: Stage, messages: Mapping[int, bytes], terms: Terms | None
    ) -> StageCount:
        """Push to each node its message, and pull answers."""
        contents = {node: with_message(message, terms=terms) for node, message in messages.items()}
        began, count = time.monotonic(), StageCount(sent=len(contents))
        count.bytes_down = sum(map(protocol_bytes, contents.values()))
        if stage.takes_update:
            contents = {node: RecordDict({**self._models[node], **content}) for node, content in contents.items()}
        kind, group = self._kind
        pushed = [Message(content, node, kind, group_id=group) for node, content in contents.items()]
        asked = dict(zip(self._grid.push_messages(pushed), list(contents), strict=False))
        waiting = set(asked)
        pushed.clear()
        contents.clear()
        # The first message of a run may have to start a simulation, or to install the app on a node.
        exchange = self._limit if terms is not None else self.task.settings.stage_timeout
        patience = Patience(stage, self.limits(exchange=exchange, training=self._limit), time.monotonic)
        while waiting and not patience.is_over(session.turnout):
            for reply in list(self._grid.pull_messages(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                self._take(session, reply, asked, count)
            if waiting and (left := patience.left(session.turnout)):
                pause = max(_SHORTEST_PAUSE, _PAUSE_SHARE * (time.monotonic() - began))
                time.sleep(min(pause, _LONGEST_PAUSE, left))
        count.seconds = time.monotonic() - began
        return count

    def _take(self, session: ServerSession, reply: Message, asked: Mapping[str, int], count: StageCount) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            if node not in self._models:
                # Of a node that is gone Flower's own link says so, in its own name.
                node = asked.get(reply.metadata.reply_to_message_id, node)
            self._failures.append(reply)
            LOG.debug("node %d: %s", node, reply.error.reason)
            self.drop(session, node, count, code_in(reply))
        elif self.take(session, node, lambda: self._answer(reply), count):
            reply.content = RecordDict()
            self._carrier = reply

    def _answer(self, reply: Message) -> Answer:
        client = None if self.task.roster is None else claimed_client(reply.content)
        content = reply.content
        return Answer(message_in(content), client, signature_in(content), protocol_bytes(content))
