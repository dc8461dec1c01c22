"""Limits memory for concurrent messages of clients: each waits for room, and slow ones may lose their place."""

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
"""Seconds between two checks for a place while an answer has its grace period."""
_UNDISTURBED: Final = 0.2
"""Fraction of the grace period during which even a slow answer keeps its place."""
_AS_FAST: Final = 4
"""An answer that is slower than the fastest by at most this factor gives way only once."""


@dataclass(slots=True, eq=False)
class Body:
    """An answer that has a place."""

    client: ClientId
    patience: asyncio.Timeout
    """Timeout for reading the answer."""
    began: float = 0.0
    content: bytearray = field(default_factory=bytearray)
    gave_way: bool = False


class Places:
    """Memory for the answers of one stage: an answer reserves its maximum, and the slowest gives way."""

    def __init__(self, room: int, grace: float) -> None:
        """Create places that share ``room`` bytes; ``grace`` is in seconds."""
        self._room, self._grace, self._left, self._undisturbed = room, grace, room, _UNDISTURBED * grace
        self._bodies = set[Body]()
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()
        self._displaced, self._fastest = set[ClientId](), 0.0

    @asynccontextmanager
    async def place(self, client: ClientId, length: int) -> AsyncGenerator[Body]:
        """Wait for a place, and hold it for the block, until the answer is passed on."""
        taken = max(1, min(COPIES * length, self._room))
        await self._wait(taken)
        try:
            yield Body(client, asyncio.timeout(self._grace))
        finally:
            self._left += taken
            self._admit()

    @asynccontextmanager
    async def reading(self, body: Body) -> AsyncGenerator[None]:
        """Read an answer, and cut it off when its time is up."""
        async with body.patience:
            body.began = asyncio.get_running_loop().time()
            self._bodies.add(body)
            try:
                yield
                self._fastest = max(self._fastest, self._rate(body))
            finally:
                self._bodies.discard(body)

    def clear(self) -> None:
        """Cut off all answers, because the stage is closed."""
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
        """Return the bytes per second; short intervals are rounded up to a minimum."""
        return len(body.content) / max(asyncio.get_running_loop().time() - body.began, self._undisturbed)

    def _displace(self) -> None:
        """Cut off the slowest answer, which its client sends again; a fast enough one gives way only once."""
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
    """End a running wait now."""
    with suppress(RuntimeError):  # It has already ended.
        if not wait.expired():
            wait.reschedule(0)
