"""Runs one session over HTTP: opens its stages and reads its answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from math import inf, isfinite
from typing import Final, TypeVar

from secagg.crypto.secret import Secret
from secagg.errors import Fault, PeerError, SecAggError
from secagg.identifiers import ClientId
from secagg.session.roles import Participation, Released, ServerSession, Stage
from secagg.session.run import Metrics
from secagg.transport.description import TASK, SessionDescription, WireLimits, say
from secagg.transport.exchange import Answer, Exchange, Verdict
from secagg.transport.keeping import ServerRecord, ServerStore
from secagg.transport.places import Body, Places, cut_short
from secagg.transport.proof import Admission

# --- The conductor ----------------------------------------------------------------------------------------------------

Result = TypeVar("Result")
Keep = Callable[[Released], Awaitable[bytes]]
"""Stores a sum durably, and returns the JSON that clients receive about it, or nothing.

``run`` raises its errors, and then no client learns of a sum.
"""
_STAGE_SECONDS: Final = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800)
_AGAIN_SECONDS: Final = 1.0
_FEW_BYTES: Final = 1 << 14
"""Maximum bytes of an answer to a stage of keys or signatures, in any suite."""
RESTARTED: Final = Verdict(
    Answer.OVER,
    "the server does not know this session: it has ended, or the server restarted and it cannot be resumed; take "
    "part in the next one",
)
STOPPING: Final = Verdict(Answer.STOPPING, "the server is stopping; ask again when it is back")


def counters() -> Metrics:
    """Return the metrics of a server."""
    metrics = Metrics()
    metrics.counter("secagg_sessions_total", "Sessions that ended, by outcome.")
    metrics.counter("secagg_answers_total", "Requests with an answer, by response.")
    metrics.counter("secagg_answer_bytes_total", "Bytes of answers that were read.")
    metrics.histogram("secagg_stage_seconds", "Seconds that stages were open, by stage.", _STAGE_SECONDS)
    metrics.gauge("secagg_clients", "Clients of the open stage: taken, sending, out.")
    metrics.counter("secagg_clients_total", "Clients of sessions, by the newest message form that they support.")
    metrics.gauge("secagg_disk_wait_seconds", "Seconds for which a disk has not accepted a write.")
    metrics.counter("secagg_strangers_total", "Requests without a valid proof of their sender.")
    return metrics


class Conductor:
    """Runs one session; call its methods on one event loop."""

    def __init__(  # noqa: PLR0913 -- what a session is surrounded by
        self,
        session: ServerSession,
        description: SessionDescription,
        *,
        limits: WireLimits,
        admission: Admission,
        metrics: Metrics,
        store: ServerStore | None = None,
        number: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a conductor; ``number`` is that of the open stage, above zero for a restored session."""
        self.description, self._session, self._admission = description, session, admission
        self.shown: Final = description.encode()
        """The description as clients see it, and sign it."""
        self._limits, self._metrics, self._store, self._clock = limits, metrics, store, clock
        self.exchange = Exchange(limits.stages, description.answer_bytes, clock, number)
        self._thread = ThreadPoolExecutor(1, "secagg-session", TASK.set, (description.task,))
        self._labels = {"task": description.task}
        self._places, self._invited = Places(0, limits.grace), 0
        self._heard, self._news = asyncio.Event(), asyncio.Event()
        self._polls = dict[ClientId, asyncio.Timeout]()
        self._noted, self._claimed, self._full = set[tuple[ClientId, Answer]](), set[ClientId](), ""
        self._leaving, self._left_at = set[ClientId](), 0.0
        self._lost: Exception | None = None
        self._is_stopping = False
        self._writes = dict[object, float]()
        """Start time of each write that the disk has not accepted yet."""
        self._received_bytes = self._sent_bytes = 0
        # The session's status after its last step, so that the operator does not wait for its work.
        self._awaited: frozenset[ClientId] | None = frozenset()
        self._stage, self._faults = "", tuple[Fault, ...]()

    async def run(self, keep: Keep | None = None) -> Released:
        """Open and close stages until the sum is released and stored; clients learn of it only then.

        Raises:
            SecAggError, OSError: nothing is released: the session ended, or ``keep`` raised the error.
        Security: if the task is cancelled, or ``keep`` raises, the session stays in the store, to be resumed.
        """
        outcome = "failed"
        TASK.set(self.description.task)
        try:
            released = await self._released()
            with self._writing() as began:
                began()
                shown = b"" if keep is None else await keep(released)
            sentence = f"the sum of {len(released.counted)} clients was released"
            try:
                await self._do(lambda: self._remember(b"", sentence.encode()))
            except OSError as error:
                # The sum is safe; a restarted server computes it again.
                say("ending not kept", logging.WARNING, session=self.description.session, why=str(error))
            outcome = "released"
            self._end(sentence, is_released=True, counted=released.counted, result=shown)
        except asyncio.CancelledError:
            outcome = "stopped"
            raise
        else:
            return released
        finally:
            # Later requests get the outcome, or learn that another process resumes the session.
            self._is_stopping = self.exchange.over is None
            self._metrics.add("secagg_sessions_total", 1, outcome=outcome, **self._labels)
            self._close()
            self._wake()
            # The thread may be in a long call; do not wait for it here.
            self._thread.submit(self._session.abort)
            self._thread.shutdown(wait=False)

    async def message(self, client: ClientId) -> tuple[Verdict, bytes]:
        """Return a client's message; waits for one until the poll ends or the client asks again."""
        with suppress(TimeoutError):
            async with self._only_poll(client):
                while not self._is_stopping:
                    news = self._news
                    verdict = self.exchange.asked(client)
                    if verdict.answer is Answer.MESSAGE:
                        await self._claim(client)
                        number = self.exchange.number
                        message = await self._asked(lambda: self._session.message_to(client))
                        # The stage may have closed while the thread was busy; then wait for the next one.
                        if message is not None and self.exchange.asked(client) == verdict:
                            self._sent_bytes += len(message)
                            return Verdict(Answer.MESSAGE, str(number)), message
                    elif verdict.answer is not Answer.AGAIN:
                        self._heard.set()
                        return verdict, b""
                    await news.wait()
        return (STOPPING if self._is_stopping else Verdict(Answer.AGAIN)), b""

    async def answer(self, client: ClientId, number: int, length: int | None, chunks: AsyncIterator[bytes]) -> Verdict:
        """Read a client's answer, if it may send one now, and pass it to the session."""
        verdict = STOPPING if self._is_stopping else self.exchange.offered(client, number, length)
        if verdict.answer is Answer.READ:
            try:
                await self._claim(client)
                verdict = await self._read(client, number, length, chunks)
            finally:
                self.exchange.gave_up(client)
        self._metrics.add("secagg_answers_total", 1, verdict=verdict.answer.value[0], **self._labels)
        if verdict.answer is not Answer.TAKEN and (client, verdict.answer) not in self._noted:
            self._noted.add((client, verdict.answer))
            say(
                "answer not taken",
                session=self.description.session,
                client=client.value,
                verdict=verdict.answer.value[0],
            )
        return verdict

    @asynccontextmanager
    async def _only_poll(self, client: ClientId) -> AsyncGenerator[None]:
        """Hold one poll of a client; the next poll replaces it, so that a client has one connection."""
        if (older := self._polls.get(client)) is not None:
            cut_short(older)
        async with asyncio.timeout(self._limits.poll) as poll:
            self._polls[client] = poll
            try:
                yield
            finally:
                if self._polls[client] is poll:
                    del self._polls[client]

    async def told(self, seconds: float) -> None:
        """Wait until clients that may return have fetched the outcome of an ended session, or until the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.exchange.untold:
                    self._heard.clear()
                    await self._heard.wait()

    @property
    def is_running(self) -> bool:
        """Whether the session is running."""
        return self.exchange.over is None and not self._is_stopping

    async def leave(self, client: ClientId) -> None:
        """Stop waiting for a client; if it has sent nothing, it may return while the first stage is open."""
        if not self.is_running:
            return
        if self.exchange.step_away(client):
            store, self._left_at = self._store, self._clock()
            if store is not None and client in self._claimed:
                self._claimed.discard(client)  # If it returns meanwhile, it claims its name again.
                await self._written(lambda: store.claim(self.description.session, client))
            if client in self.exchange.away:
                self._admission.release(client)
        elif client not in self._leaving:
            self._leaving.add(client)
            if (participation := await self._asked(lambda: self._dropped(client))) is None:
                return
            self.exchange.leave(client, participation)
        if (client, Answer.OUT) not in self._noted:
            self._noted.add((client, Answer.OUT))
            say("client left", session=self.description.session, client=client.value)
        self._heard.set()

    def tell(self) -> None:
        """Update the gauges with the open stage's status."""
        for state, count in self.exchange.counts.items():
            self._metrics.set("secagg_clients", count, state=state, **self._labels)
        self._metrics.set("secagg_disk_wait_seconds", self.disk_seconds, **self._labels)

    def status(self, *, has_names: bool) -> dict[str, object]:
        """Return the session's status as JSON for its operator; culprits of faults are always named."""
        exchange, description, left = self.exchange, self.description, self.exchange.left()
        awaited = None if self._awaited is None else self._awaited - exchange.away

        def shown(clients: frozenset[ClientId] | None) -> object:
            if clients is None:  # Anyone may take part.
                return None
            return sorted(client.value for client in clients) if has_names else len(clients)

        return {
            "session": description.session,
            "protocol": description.protocol,
            "mode": description.mode,
            "task": description.task,
            "round": description.round_number,
            "stage": {"number": exchange.number, "name": self._stage} if self.is_running else None,
            "seconds_left": round(left, 1) if isfinite(left) else None,
            "clients": {state: shown(who) for state, who in {**exchange.clients, "awaited": awaited}.items()},
            "faults": [
                {"reason": fault.reason, "sentence": str(fault), "culprits": sorted(map(str, fault.culprits))}
                for fault in self._faults
            ],
            "bytes": {"received": self._received_bytes, "sent": self._sent_bytes},
            "ended": "" if exchange.over is None else exchange.over.sentence,
        }

    def _look(self) -> None:
        """Record the session's status; called in its thread."""
        stage = self._session.stage
        self._stage = "" if stage is None else stage.name
        self._awaited, self._faults = self._session.awaited, self._session.faults

    # --- Stages -------------------------------------------------------------------------------------------------------

    async def _released(self) -> Released:
        """Run the stages; if one fails, the session ends."""
        try:
            while (stage := await self._opened()) is not None:
                opened = self._clock()
                await self._wait()
                self._close()
                self._metrics.observe("secagg_stage_seconds", self._clock() - opened, stage=stage.name, **self._labels)
                say("stage closed", session=self.description.session, stage=stage.name, **self.exchange.counts)
                await self._do(self._session.close_stage)
            return await self._do(self._session.release)
        except Exception as found:  # noqa: BLE001 -- raise the error that ended the session
            with suppress(Exception):
                await self._do(self._look)
            # An answer that lost a helper while its stage closed has ended the session; later errors say less.
            error = self._lost or found
            why = str(error) if isinstance(error, SecAggError) else "the server or a helper failed"
            self._end(f"the session ended without a sum: {why}", is_released=False)
            if self._store is not None:
                await self._do(self._store.erase)  # A stuck disk must not delay other tasks.
            raise error from None

    async def _opened(self) -> Stage | None:
        """Store the session's next stage, then open it to clients."""
        stage, participation, awaited, snapshot = await self._do(self._prepared)
        if stage is not None:
            with snapshot or nullcontext():
                await self._written(lambda: self._remember(b"" if snapshot is None else bytes(snapshot.expose())))
            self._invited = max(self._invited, awaited)
            self._places = Places(self._limits.memory, self._limits.grace)
            self.exchange.open(stage, participation, self._longest(stage))
            say("stage opened", session=self.description.session, stage=stage.name, number=self.exchange.number)
            self._wake()
        return stage

    def _prepared(self) -> tuple[Stage | None, Participation, int, Secret | None]:
        self._look()
        stage, is_kept = self._session.stage, self._store is not None
        snapshot = self._session.snapshot() if stage is not None and is_kept else None
        return stage, self._session.participation, len(self._session.awaited or ()), snapshot

    async def _written(self, write: Callable[[], None]) -> None:
        """Write to the store; no client learns of the result until the disk accepts it."""
        with self._writing() as began:

            def tried() -> None:
                began()
                write()

            while self.is_running:
                try:
                    await self._do(tried)
                except OSError as error:
                    if str(error) != self._full:
                        self._full = str(error)
                        say(
                            "store not written, tried again",
                            logging.WARNING,
                            session=self.description.session,
                            why=self._full,
                        )
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    return

    @contextmanager
    def _writing(self) -> Generator[Callable[[], object]]:
        """Yield a function that marks the start of a write, in any thread; the block's end marks its completion."""
        write = object()
        try:
            yield lambda: self._writes.setdefault(write, self._clock())
        finally:
            self._writes.pop(write, None)

    @property
    def disk_seconds(self) -> float:
        """Number of seconds for which a disk has not accepted a write."""
        now = self._clock()
        return now - min(self._writes.copy().values(), default=now)

    def _remember(self, snapshot: bytes, ending: bytes = b"") -> None:
        """Store the session's state before the next stage or after the last."""
        if self._store is not None:
            number = self.exchange.number + (not ending)
            self._store.put(ServerRecord(self.shown, number, snapshot, ending))

    async def _claim(self, client: ClientId) -> None:
        """Store the owner of a name, before anything is sent or accepted under it."""
        store, digest = self._store, self._admission.claim_of(client)
        if store is not None and digest is not None and client not in self._claimed:
            await self._written(lambda: store.claim(self.description.session, client, digest))
            self._claimed.add(client)

    async def _wait(self) -> None:
        while (left := min(self.exchange.left(), self._left_for_return())) > 0:
            self._heard.clear()
            if self._lost is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._heard.wait()
            if self._lost is not None:
                raise self._lost

    def _left_for_return(self) -> float:
        """Return the maximum wait for clients that may return, if no other client is awaited."""
        away = self.exchange.away
        is_for_them = away and self._awaited is not None and self._awaited <= away
        return self._left_at + self._limits.stages.least - self._clock() if is_for_them else inf

    def _close(self) -> None:
        """Stop waiting, and free the places of answers that are still being read."""
        self.exchange.close()
        self._places.clear()

    def _end(
        self, sentence: str, *, is_released: bool, counted: frozenset[ClientId] = frozenset(), result: bytes = b""
    ) -> None:
        self.exchange.end(sentence, is_released=is_released, counted=counted, result=result)
        say("session ended", session=self.description.session, sentence=sentence)

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # --- Answers ------------------------------------------------------------------------------------------------------

    async def _read(self, client: ClientId, number: int, length: int | None, chunks: AsyncIterator[bytes]) -> Verdict:
        async with self._places.place(client, self.exchange.longest if length is None else length) as body:
            message = await self._body(body, number, chunks)
            if isinstance(message, Verdict):
                return message
            self._metrics.add("secagg_answer_bytes_total", len(message), **self._labels)
            self._received_bytes += len(message)
            settled = await self._asked(lambda: self._received(client, message))
        if settled is None:
            return STOPPING
        error, participation, is_awaited = settled
        verdict = self.exchange.settled(client, number, error, participation, is_awaited=is_awaited)
        self._heard.set()
        return verdict

    async def _body(self, body: Body, number: int, chunks: AsyncIterator[bytes]) -> Verdict | bytes:
        """Return a complete answer that arrived fast enough and while its stage was open."""
        longest, content = self.exchange.longest, body.content
        with suppress(TimeoutError):
            async with self._places.reading(body):
                # Check at once: the stage may have closed while this answer waited for its place.
                while (verdict := self.exchange.read(body.client, number)).answer is Answer.HAND:
                    chunk = await anext(chunks, None)
                    if chunk is None:
                        whole = bytes(content)
                        content.clear()
                        return whole
                    content += chunk
                    if len(content) > longest:
                        return self.exchange.too_long(len(content))
                    if not body.gave_way:
                        body.patience.reschedule(body.began + self._limits.seconds_for(len(content)))
                return verdict
        verdict = self.exchange.read(body.client, number)
        if verdict.answer is not Answer.HAND:
            return verdict
        why = "it was the slowest while others waited" if body.gave_way else "it came too slowly"
        return Verdict(Answer.SLOW, f"only {len(content)} bytes of the answer were read: {why}; send it again, faster")

    def _received(self, client: ClientId, message: bytes) -> tuple[PeerError | None, Participation, bool]:
        """Pass an answer to the session; return its error, the stage's status, and whether it awaits the client."""
        error: PeerError | None = None
        try:
            self._session.receive(client, message)
        except PeerError as found:
            # Its traceback would keep the whole message as long as this error is held.
            error = found.with_traceback(None)
        self._look()
        return error, self._session.participation, client in (self._awaited or ())

    def _longest(self, stage: Stage) -> int:
        if stage.per_client is None or (stage.per_client and not self._invited):
            return self.description.answer_bytes
        return min(self.description.answer_bytes, _FEW_BYTES + stage.per_client * self._invited)

    def _dropped(self, client: ClientId) -> Participation:
        self._session.drop(client)
        self._look()
        return self._session.participation

    async def _asked(self, call: Callable[[], Result]) -> Result | None:
        """Query the session for one client; None if the client is at fault or the session failed; ``run`` ends it."""
        try:
            return await self._do(call)
        except PeerError:
            return None
        except Exception as failed:  # noqa: BLE001 -- any failure ends the session
            if self._lost is None:
                # Drop the traceback, which keeps the message.
                self._lost = failed.with_traceback(None)
            self._heard.set()
            return None

    async def _do(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
