"""HTTP server: authenticates requests, and runs each task's sessions one after another.

With ``server = SumServer()``, ``async with listening(server.app, "127.0.0.1", 8750):`` opens a port, and
``released = await server.run(session, server.description(subject, "pairwise"))`` holds a session. A ``Front`` serves
several tasks at one address.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.session.roles import Released, ServerSession, Subject
from secagg.session.run import CONTENT_TYPE, Metrics

from .conductor import RESTARTED, STOPPING, Conductor, Keep, counters
from .description import BACK_SECONDS, STAGE_HEADER, TASK, SessionDescription, WireLimits, new_name, say
from .exchange import Answer, Verdict
from .keeping import ServerStore
from .places import cut_short
from .proof import PROOF_BYTES, Admission, FirstCome, Operators, read_header

try:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as error:
    raise InvalidParameters(
        "a server of sums over HTTP needs starlette and uvicorn; run pip install '.[http]' in a checkout"
    ) from error

_REMEMBERED: Final = 64
_STAGE: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_LENGTH: Final = re.compile(r"0|[1-9][0-9]{0,14}", re.ASCII)
_SINGLE: Final = ("authorization", "content-length", "content-encoding", "transfer-encoding")
_FORWARDING: Final = frozenset(
    ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
)
_STUCK_SECONDS: Final = 10.0
_STRANGER: Final = Verdict(
    Answer.STRANGER,
    "authentication failed: this client's key is not on the session's roster (if clients have keys, name yours "
    "with --identity), or its number is not invited, or another client has it",
)
_STARTING: Final = Verdict(Answer.STOPPING, "the server has no session yet; ask again")
_FINISHED: Final = Verdict(Answer.OUT, "the server runs no further session of this task; ask its operator")
_WRONG: Final = Verdict(Answer.WRONG, "unknown request; server and client need the same version of secagg")
_NO_SEAT: Final = Verdict(
    Answer.OUT, "all seats of this sum are taken, or its clients need keys; wait for the next one"
)
_NO_OPERATOR: Final = Verdict(
    Answer.STRANGER,
    "this is only available on the server's machine, or with the token of --metrics-token: Authorization: Bearer TOKEN",
)
_PROOF_DIGITS: Final = 2 * PROOF_BYTES
_PROOF: Final = re.compile(rb"[0-9a-f]{%d}" % _PROOF_DIGITS)
_PLAIN: Final = "text/plain; charset=utf-8"


class SumServer:
    """Runs one task's sessions, one after another; ``app`` is an ASGI application."""

    def __init__(  # noqa: PLR0913 -- all have defaults
        self,
        *,
        task: str | None = None,
        limits: WireLimits | None = None,
        admission: Admission | None = None,
        store: ServerStore | None = None,
        coins: Coins | None = None,
        operators: Operators | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Create a server without a session.

        Args:
            task: name under which clients ask for its sessions (default: any).
            admission: check of clients' names (default: the first request under each name).
            store: storage of a session that another process may resume.
            operators: access to status and metrics (default: this machine).
            metrics: shared by the tasks of a process, from ``counters``.
        """
        self.task, self.limits, self.metrics = task, limits or WireLimits(), metrics or counters()
        self._admission, self._store, self._coins = admission or FirstCome(), store, coins or SystemCoins()
        self.current: Conductor | None = None
        """The running session, or the last one."""
        self._news = asyncio.Event()
        self._closing: Verdict | None = None
        """Why there is no further session."""
        self._asking = dict[asyncio.Timeout, None]()
        """Unauthenticated requests that wait for a session, in order of arrival."""
        self._strange = ""
        self._past = dict[str, Verdict]()
        self._members = dict[str, dict[ClientId, bytes]]()
        """Per session, the digest of each client's last request header while it ran; these may see its result."""
        self.app = Front([self], operators).app

    # --- Sessions -----------------------------------------------------------------------------------------------------

    def description(
        self, subject: Subject, protocol: str, terms: Mapping[str, Any] | None = None, mode: str = "semi_honest"
    ) -> SessionDescription:
        """Return the description of a session about a subject."""
        return SessionDescription(
            session=new_name(self._coins),
            protocol=protocol,
            task=subject.task.decode(),
            round_number=subject.round_number,
            answer_bytes=self.limits.answer_bytes,
            terms=dict(terms or {}),
            mode=mode,
        )

    async def run(
        self,
        session: ServerSession,
        description: SessionDescription,
        *,
        number: int = 0,
        keep: Keep | None = None,
        admission: Admission | None = None,
    ) -> Released:
        """Serve a session until its sum is released.

        Args:
            number: number of a restored session's open stage; ``ServerRecord`` has it.
            keep: stores the sum before any client learns of it.
            admission: replaces the previous check of names.
        Raises:
            SecAggError, OSError: nothing is released, or ``keep`` raised the error; then the session stays in the
            store.
        """
        if self.current is not None and self.current.is_running:
            raise Misuse("a server runs one session at a time; wait for the previous one")
        self._admission = admission or self._admission
        conductor = Conductor(
            session,
            description,
            limits=self.limits,
            admission=self._admission,
            metrics=self.metrics,
            store=self._store,
            number=number,
        )
        self.current, self._closing = conductor, None
        self._wake()
        try:
            return await conductor.run(keep)
        finally:
            self._past[description.session] = conductor.exchange.over or RESTARTED
            while len(self._past) > _REMEMBERED:
                del self._past[oldest := next(iter(self._past))]
                self._members.pop(oldest, None)

    def recall(self, description: SessionDescription, sentence: str) -> None:
        """Report to clients a session whose sum another process has released and stored."""
        self._past[description.session] = Verdict(Answer.DONE, sentence)

    async def told(self, seconds: float = BACK_SECONDS) -> None:
        """Wait until the last session's clients know the outcome, or until the time is up; then forget the session.

        Clients that wait for a session must ask again, because this server stops listening.
        """
        current = self.current
        try:
            if current is None or current.exchange.over is not None:
                await (asyncio.sleep(seconds) if current is None else current.told(seconds))
        finally:
            self.finish(STOPPING)
            if self._store is not None and (current is None or current.exchange.over is not None):
                await asyncio.to_thread(self._store.erase)

    def finish(self, why: Verdict = _FINISHED) -> None:
        """Run no further session: waiting clients learn why; clients of the last one still get its outcome."""
        self._closing = why
        for wait in tuple(self._asking):
            cut_short(wait)

    def nearness(self, name: str) -> int:
        """Return 3 if the session runs or ran here; 2 if it may begin here; 1 if other sessions did."""
        if self.current is None:
            return 3 if name in self._past else 2 * (self._closing is None)
        return 3 if name in self._past or name == self.current.description.session else 1

    @property
    def is_open(self) -> bool:
        """Whether a stage is open."""
        return (conductor := self._open()) is not None and conductor.exchange.number >= 0

    @property
    def disk_seconds(self) -> float:
        """Number of seconds for which a disk has not accepted a write of this task."""
        return 0.0 if self.current is None else self.current.disk_seconds

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def describe(self, request: Request) -> Response:
        """Return the session's description; wait for a session other than the one named in ``after``."""
        after = request.query_params.get("after", "")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.poll) as wait:
                while (conductor := self._open()) is None or conductor.description.session == after:
                    if self._closing is not None:
                        return _response(self._closing)
                    self._asking[wait] = None
                    if len(self._asking) > max(1, self.limits.connections // 2):
                        # These requests are not authenticated yet, so their waits must not take connections from others
                        # that are.
                        oldest = next(iter(self._asking))
                        del self._asking[oldest]
                        cut_short(oldest)
                    try:
                        await self._news.wait()
                    finally:
                        self._asking.pop(wait, None)
                return Response(conductor.shown, media_type="application/json", headers=_HEADERS)
        return _response(self._closing or Verdict(Answer.AGAIN))

    def _open(self) -> Conductor | None:
        return self.current if self.current is not None and self.current.is_running else None

    async def message(self, request: Request) -> Response:
        """Return the open stage's message for a client, or wait for the next stage."""
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        conductor, client = found
        verdict, message = await conductor.message(client)
        if verdict.answer is not Answer.MESSAGE:
            return self._told_of(request, verdict)
        headers = {**_HEADERS, STAGE_HEADER: verdict.sentence}
        return Response(message, media_type="application/octet-stream", headers=headers)

    async def answer(self, request: Request) -> Response:
        """Accept a client's answer to a stage."""
        stage, headers = request.path_params["stage"], request.headers
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        conductor, client = found
        length = headers.get("content-length")
        if not _STAGE.fullmatch(stage) or (length is not None and not _LENGTH.fullmatch(length)):
            return _response(_WRONG)
        if headers.get("content-encoding", "identity") != "identity":
            return _response(Verdict(Answer.ENCODED, "send answers without a content encoding"))
        try:
            declared = None if length is None else int(length)
            return self._told_of(request, await conductor.answer(client, int(stage), declared, _body(request)))
        except ClientDisconnect:
            return _response(Verdict(Answer.SLOW, "the answer arrived incomplete"))

    async def leave(self, request: Request) -> Response:
        """Let a client leave."""
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        conductor, client = found
        await conductor.leave(client)
        if client in conductor.exchange.away:
            self._members.get(conductor.description.session, {}).pop(client, None)
        return _response(Verdict(Answer.AGAIN))

    async def progress(self, request: Request) -> Response:
        """Show a client the number of connected clients, and the seconds left of the open stage."""
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        exchange = found[0].exchange
        left = exchange.left()
        shown = {"present": exchange.present, "seconds_left": round(left, 1) if isfinite(left) else None}
        return Response(json.dumps(shown), media_type="application/json", headers=_HEADERS)

    async def seat(self, request: Request) -> Response:
        """Give a free name to a visitor whose proof is the body; the same proof gets the same name."""
        name, proof = request.path_params["name"], b""
        try:
            async with asyncio.timeout(self.limits.grace):
                async for chunk in request.stream():
                    proof += chunk
                    if len(proof) > _PROOF_DIGITS:
                        return _response(_WRONG)
        except (TimeoutError, ClientDisconnect):
            return _response(Verdict(Answer.SLOW, "the request arrived incomplete"))
        if not _PROOF.fullmatch(proof):
            return _response(_WRONG)
        if (conductor := self.current) is None:
            return _response(_STARTING)
        # A client that arrives after the first stage is not in the sum, and should not wait for its end.
        is_open = conductor.is_running and conductor.exchange.number <= 0 and name == conductor.description.session
        seat = self._admission.seat(conductor.shown, bytes.fromhex(proof.decode())) if is_open else None
        return _response(_NO_SEAT) if seat is None else Response(str(seat.value), 201, _HEADERS, _PLAIN)

    def _admitted(self, request: Request) -> tuple[Conductor, ClientId] | Verdict:
        """Return the session that a request names and its client, or the response that refuses it."""
        if any(len(request.headers.getlist(name)) > 1 for name in _SINGLE):
            return _WRONG
        name, sender = request.path_params["name"], read_header(request.headers.get("authorization", ""))
        conductor = self.current
        if conductor is None or name != conductor.description.session:
            return self._past.get(name, _STARTING if conductor is None else RESTARTED)
        if sender is None or not self._admission.admits(conductor.shown, *sender):
            self.metrics.add("secagg_strangers_total", task=conductor.description.task)
            if name != self._strange:
                # Log once per session: otherwise anyone could fill the disk.
                self._strange = name
                say("stranger", logging.WARNING, session=name, client=-1 if sender is None else sender[0].value)
            return _STRANGER
        TASK.set(conductor.description.task)  # For this request's log lines.
        if (prove := request.scope.get("proved")) is not None:
            prove(conductor.description.task, self.limits.connections)  # Its connection is authenticated from here on.
        known, own = self._members.setdefault(name, {}), _digest_of(request)
        if conductor.is_running and known.get(sender[0]) != own:
            known[sender[0]] = own
            self.metrics.add("secagg_clients_total", newest_form=str(sender[1][0]), task=conductor.description.task)
        return conductor, sender[0]

    def _told_of(self, request: Request, verdict: Verdict) -> Response:
        """Return a verdict as a response; the result is only for clients that took part while the session ran."""
        members = self._members.get(request.path_params["name"], {})
        is_told = not verdict.result or _digest_of(request) in members.values()
        return _response(verdict if is_told else replace(verdict, result=b""))


class Front:
    """HTTP front of one or several tasks: passes each request to its task's server; operators see all tasks."""

    def __init__(self, servers: Sequence[SumServer], operators: Operators | None = None) -> None:
        """Serve tasks; their names must differ."""
        self._servers, self._operators = servers, operators or Operators()
        session = "/v1/sessions/{name}"
        self.app = Starlette(
            routes=[
                Route("/v1/session", self._description, methods=["GET"]),
                Route(f"{session}/message", self._of(SumServer.message), methods=["GET"]),
                Route(session + "/answers/{stage}", self._of(SumServer.answer), methods=["POST"]),
                Route(f"{session}/client", self._of(SumServer.leave), methods=["DELETE"]),
                Route(f"{session}/progress", self._of(SumServer.progress), methods=["GET"]),
                Route(f"{session}/seats", self._of(SumServer.seat), methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/ready", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/status", self._status, methods=["GET"]),
            ]
        )
        self.app.router.redirect_slashes = False

    def _of(
        self, answer: Callable[[SumServer, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint of sessions; the server that knows the session answers, or one that may still start it."""

        async def answered(request: Request) -> Response:
            name = request.path_params["name"]
            return await answer(max(self._servers, key=lambda each: each.nearness(name)), request)

        return answered

    def _asked(self, request: Request) -> Sequence[SumServer]:
        """Return the servers of the task that a request names, or of all tasks."""
        task = request.query_params.get("task")
        return [each for each in self._servers if task is None or each.task in {None, task}]

    async def _description(self, request: Request) -> Response:
        if len(asked := self._asked(request)) == 1:
            return await asked[0].describe(request)
        return self._misnamed(request, "several tasks" if asked else "no task of this name")

    def _misnamed(self, request: Request, held: str = "no task of this name") -> Response:
        known = ", ".join(repr(each.task) for each in self._servers)
        is_told = self._is_operators(request)
        said = f"this server has {held}; choose a task with --task: "
        return _response(Verdict(Answer.OUT, said + (known if is_told else "ask its operator for their names")))

    async def _health(self, request: Request) -> Response:
        """Report that the process is alive, and whether a disk has stopped accepting writes."""
        if not (asked := self._asked(request)):
            return self._misnamed(request)
        if (seconds := max(each.disk_seconds for each in asked)) >= _STUCK_SECONDS:
            return Response(f"a disk has accepted no write for {seconds:.0f} s\n", 503, _HEADERS, _PLAIN)
        running = [each.current for each in asked if each.current is not None and each.current.is_running]
        state = ", ".join(f"stage {each.exchange.number}" for each in running) or "idle"
        return Response(f"{state}\n", media_type=_PLAIN, headers=_HEADERS)

    async def _ready(self, request: Request) -> Response:
        """Report whether clients can take part in a session."""
        asked = self._asked(request)
        is_idle = asked and not any(each.is_open for each in asked)
        return _response(_STARTING) if is_idle else await self._health(request)

    async def _metrics(self, request: Request) -> Response:
        if not self._is_operators(request):
            return _response(_NO_OPERATOR)
        for each in self._servers:
            if each.current is not None:
                each.current.tell()
        return Response(self._servers[0].metrics.text(), media_type=CONTENT_TYPE, headers=_HEADERS)

    async def _status(self, request: Request) -> Response:
        """Show the status of each task's session; ``?names`` names its clients."""
        if not self._is_operators(request):
            return _response(_NO_OPERATOR)
        if not (asked := self._asked(request)):
            return self._misnamed(request)
        found = dict[str, object]()
        for each in asked:
            if each.current is not None:
                found[each.current.description.task] = each.current.status(has_names="names" in request.query_params)
            elif each.task is not None:
                found[each.task] = None
        return Response(json.dumps(found, indent=2) + "\n", media_type="application/json", headers=_HEADERS)

    def _is_operators(self, request: Request) -> bool:
        host = "" if request.client is None else request.client.host
        # A proxy that was not declared also runs on this machine; nginx uses HTTP/1.0 by default.
        if request.scope.get("http_version") == "1.0" or not _FORWARDING.isdisjoint(request.headers.keys()):
            host = ""
        return self._operators.admits(host, request.headers.get("authorization", ""))


def _digest_of(request: Request) -> bytes:
    return hashlib.sha256(request.headers.get("authorization", "").encode()).digest()


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for chunk in request.stream():
        yield chunk


_HEADERS: Final = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_WITH_BODY_READ: Final = {Answer.TAKEN, Answer.AGAIN, Answer.REFUSED}


def _response(verdict: Verdict) -> Response:
    """Return a verdict as a response; closes the connection if the body may be left unread."""
    headers = _HEADERS if verdict.answer in _WITH_BODY_READ else {**_HEADERS, "connection": "close"}
    if verdict.answer in (Answer.BUSY, Answer.STOPPING):
        headers = {**headers, "retry-after": "1"}
    if verdict.result:
        return Response(verdict.result, verdict.answer.status, headers, "application/json")
    if verdict.answer is Answer.AGAIN:
        return Response(status_code=verdict.answer.status, headers=headers)
    return Response(verdict.sentence + "\n", verdict.answer.status, headers, _PLAIN)
