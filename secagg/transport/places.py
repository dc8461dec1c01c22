"""Places in memory for messages that clients send at once: each waits for room, and a slow one may lose its place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from secagg.identifiers import ClientId
from secagg.transport.description import COPIES

_LOOKS: Final = 10
"""So often who waits for a place looks again while an answer has its grace."""
_UNDISTURBED: Final = 0.2
"""An answer keeps its place for this part of its grace, however slow it is."""
_AS_FAST: Final = 4
"""An answer at most this many times slower than the fastest gives way once, and then no more."""


@dataclass(slots=True, eq=False)
class Body:
    """An answer that has a place."""

    client: ClientId
    patience: asyncio.Timeout
    """For reading it."""
    began: float = 0.0
    content: bytearray = field(default_factory=bytearray)
    gave_way: bool = False


class Places:
    """Memory for the answers of one stage: an answer takes what it may hold, and the slowest gives way."""

    def __init__(self, room: int, grace: float) -> None:
        """Take the bytes of room that uploads share; ``grace`` is in seconds."""
        self._room, self._grace, self._left, self._undisturbed = room, grace, room, _UNDISTURBED * grace
        self._bodies = set[Body]()
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()
        self._displaced, self._fastest = set[ClientId](), 0.0

    @asynccontextmanager
    async def place(self, client: ClientId, length: int) -> AsyncGenerator[Body]:
        """Wait for a place, and hold it for the block, until the answer is handed on."""
        taken = max(1, min(COPIES * length, self._room))
        await self._wait(taken)
        try:
            yield Body(client, asyncio.timeout(self._grace))
        finally:
            self._left += taken
            self._admit()

    @asynccontextmanager
    async def reading(self, body: Body) -> AsyncGenerator[None]:
        """Read an answer, which is cut off when its patience is over."""
        async with body.patience:
            body.began = asyncio.get_running_loop().time()
            self._bodies.add(body)
            try:
                yield
                self._fastest = max(self._fastest, self._rate(body))
            finally:
                self._bodies.discard(body)

    def clear(self) -> None:
        """Cut off every answer: the stage is closed."""
        for body in self._bodies:
            cut_short(body.patience)

    async def _wait(self, taken: int) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((taken, turn))
        self._admit()
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=self._grace / _LOOKS)
                if not turn.done() and self._waiting[0][1] is turn:
                    self._displace()
        except BaseException:
            if turn.done():
                self._left += taken
            else:
                self._waiting.remove((taken, turn))
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._left:
            taken, turn = self._waiting.popleft()
            self._left -= taken
            turn.set_result(None)

    def _rate(self, body: Body) -> float:
        """Return how many bytes came each second; a moment says little about that."""
        return len(body.content) / max(asyncio.get_running_loop().time() - body.began, self._undisturbed)

    def _displace(self) -> None:
        """Let the slowest answer give way, which is sent again later; one that is fast enough does so once."""
        latest = asyncio.get_running_loop().time() - self._undisturbed
        slow = [
            body
            for body in self._bodies
            if body.began <= latest
            and not body.gave_way
            and (body.client not in self._displaced or _AS_FAST * self._rate(body) < self._fastest)
        ]
        if slow:
            body = min(slow, key=self._rate)
            body.gave_way = True
            self._displaced.add(body.client)
            cut_short(body.patience)


def cut_short(wait: asyncio.Timeout) -> None:
    """Let a wait that is not over be over now."""
    with suppress(RuntimeError):  # It ended by itself.
        if not wait.expired():
            wait.reschedule(0)
