"""One stage of a round: messages to some nodes, and their answers one by one as they arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secagg.errors import PeerError, SecAggError

from .logs import LOG
from .records import LARGE_RECORD, RECORD

_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_PAUSE_SHARE: Final = 1 / 32
"""Answers are asked for so often that none waits longer than this share of the stage's time until then."""
_LEAST_PATIENCE: Final = 5.0
_KILO: Final = 1000


@dataclass(slots=True)
class StageCount:
    """What one stage carried."""

    sent: int = 0
    received: int = 0
    refused: int = 0
    """Answers that the protocol does not accept."""
    failed: int = 0
    """Clients that left, or raised an error."""
    bytes_down: int = 0
    bytes_up: int = 0
    largest_up: int = 0
    """The bytes of the largest answer."""
    seconds: float = 0.0
    failures: list[Message] = field(default_factory=list[Message], repr=False)

    @property
    def late(self) -> int:
        """How many did not answer at all."""
        return self.sent - self.received - self.refused - self.failed

    def __str__(self) -> str:
        dropped = self.sent - self.received
        text = (
            f"sent {self.sent} ({self.bytes_down / _KILO:.1f} kB), received {self.received} "
            f"({self.bytes_up / _KILO:.1f} kB), dropped {dropped}, in {self.seconds:.1f} s"
        )
        reasons = [f"{count} {name}" for name, count in self._reasons() if count]
        return f"{text} ({', '.join(reasons)})" if reasons else text

    def _reasons(self) -> tuple[tuple[str, int], ...]:
        return ("left or failed", self.failed), ("refused", self.refused), ("silent", self.late)


@dataclass(frozen=True, slots=True)
class Exchange:
    """How a round reaches its nodes: the inner grid, and what every message of the round has in common."""

    grid: Grid
    message_type: str
    group_id: str

    def run(
        self,
        contents: Mapping[int, RecordDict],
        accept: Callable[[Message], None],
        *,
        timeout: float | None,
        enough: int | None = None,
        patience: float = 1.0,
    ) -> StageCount:
        """Send to each node, and hand every answer over as soon as it is there; it is not kept.

        Args:
            accept: takes an answer; what it raises of this library excludes the sender, and nobody else.
            timeout: how long to wait for the last of them.
            enough: how many answers the session needs. Once they are there, those that are still missing get so many
                times as long as these took, and 5 seconds at least; a node that is gone then does not cost the timeout.
            patience: how many times.
        """
        began, count = time.monotonic(), StageCount()
        messages = [
            Message(content, node, self.message_type, group_id=self.group_id) for node, content in contents.items()
        ]
        count.sent = len(messages)
        count.bytes_down = sum(map(protocol_bytes, contents.values()))
        waiting = set(self.grid.push_messages(messages))
        del messages
        last = None if timeout is None else began + timeout
        while waiting and (last is None or time.monotonic() < last):
            replies = list(self.grid.pull_messages(waiting))
            for reply in replies:
                waiting.discard(reply.metadata.reply_to_message_id)
                self._take(reply, count, accept)
            if replies and enough is not None and count.received >= enough:
                now = time.monotonic()
                granted = now + max(_LEAST_PATIENCE, patience * (now - began))
                last = granted if last is None else min(last, granted)
            if waiting:
                time.sleep(min(max(_SHORTEST_PAUSE, _PAUSE_SHARE * (time.monotonic() - began)), _LONGEST_PAUSE))
        count.seconds = time.monotonic() - began
        return count

    @staticmethod
    def _take(reply: Message, count: StageCount, accept: Callable[[Message], None]) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            count.failed += 1
            count.failures.append(reply)
            LOG.debug("node %d: %s", node, reply.error.reason)
            return
        size = protocol_bytes(reply.content)
        count.bytes_up += size
        count.largest_up = max(count.largest_up, size)
        try:
            accept(reply)
        except SecAggError as error:
            count.refused += 1
            culprits = ", ".join(map(str, error.culprits)) if isinstance(error, PeerError) else ""
            LOG.warning("node %d is left out: %s%s", node, error, f" (to blame: {culprits})" if culprits else "")
            return
        count.received += 1


def protocol_bytes(content: RecordDict) -> int:
    """Return how many bytes of the protocol a message carries, beside the app's own records."""
    total = 0
    if (record := content.config_records.get(RECORD)) is not None:
        total += sum(len(value) for value in record.values() if isinstance(value, bytes))
    large = content.array_records.get(LARGE_RECORD)
    return total + (sum(len(array.data) for array in large.values()) if large is not None else 0)
