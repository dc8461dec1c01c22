"""HTTP server: requests, their authentication, and sessions one after another.

With ``server = SumServer()``, ``async with listening(server.app, "127.0.0.1", 8750):`` opens a port, and
``released = await server.run(session, server.description(subject, "pairwise"))`` holds a session.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.session.certificates import SIGNATURE_BYTES
from secagg.session.roles import Released, ServerSession, Subject
from secagg.session.run import CONTENT_TYPE

from .conductor import RESTARTED, STOPPING, Conductor, Keep, counters
from .description import BACK_SECONDS, STAGE_HEADER, SessionDescription, WireLimits, new_name, say
from .exchange import Answer, Verdict
from .keeping import ServerStore
from .places import cut_short
from .proof import Admission, FirstCome, Operators, read_header

try:
    from starlette.applications import Starlette
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as error:
    raise InvalidParameters(
        "a server of sums over HTTP needs starlette and uvicorn; pip install '.[http]' in a checkout"
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
    "authentication failed: this client's key is not on the session's roster (where clients have keys, --identity "
    "names one), or its number is not invited, or taken by another client",
)
_STARTING: Final = Verdict(Answer.STOPPING, "the server listens and holds no session yet; ask again")
_WRONG: Final = Verdict(Answer.WRONG, "the server does not know this request; both ends need one version of secagg")
_NO_SEAT: Final = Verdict(
    Answer.OUT, "every seat of this sum is taken, or its clients have keys; wait for the next one"
)
_NO_OPERATOR: Final = Verdict(
    Answer.STRANGER,
    "this is for the server's machine, or for the token of --metrics-token: Authorization: Bearer TOKEN",
)
_PROOF_DIGITS: Final = 2 * SIGNATURE_BYTES
_PROOF: Final = re.compile(rb"[0-9a-f]{%d}" % _PROOF_DIGITS)
_PLAIN: Final = "text/plain; charset=utf-8"


class SumServer:
    """Server of one session after another; ``app`` is an ASGI application."""

    def __init__(
        self,
        *,
        limits: WireLimits | None = None,
        admission: Admission | None = None,
        store: ServerStore | None = None,
        coins: Coins | None = None,
        operators: Operators | None = None,
    ) -> None:
        """Create a server without a session.

        Args:
            admission: check of clients' names (default: the first request under each name).
            store: storage of a session that another process may resume.
            operators: access to status and metrics (default: this machine).
        """
        self.limits, self.metrics = limits or WireLimits(), counters()
        self._admission, self._store, self._coins = admission or FirstCome(), store, coins or SystemCoins()
        self._operators = operators or Operators()
        self._current: Conductor | None = None
        self._news = asyncio.Event()
        self._is_closing = False
        self._asking = dict[asyncio.Timeout, None]()
        """Requests that wait for a session, in order of arrival; none has proved a name."""
        self._strange = ""
        self._past = dict[str, Verdict]()
        self._members = dict[str, set[bytes]]()
        """Per session, digests of the proofs admitted while it ran; these clients may see its result."""
        self.app = Starlette(
            routes=[
                Route("/v1/session", self._description, methods=["GET"]),
                Route("/v1/sessions/{name}/message", self._message, methods=["GET"]),
                Route("/v1/sessions/{name}/answers/{stage}", self._answer, methods=["POST"]),
                Route("/v1/sessions/{name}/client", self._leave, methods=["DELETE"]),
                Route("/v1/sessions/{name}/progress", self._progress, methods=["GET"]),
                Route("/v1/sessions/{name}/seats", self._seat, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
                Route("/ready", self._ready, methods=["GET"]),
                Route("/metrics", self._metrics, methods=["GET"]),
                Route("/status", self._status, methods=["GET"]),
            ],
        )
        self.app.router.redirect_slashes = False

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
        if self._current is not None and self._current.is_running:
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
        self._current, self._is_closing = conductor, False
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

        Clients that wait for a session are told to ask again, because this server stops listening.
        """
        current = self._current
        try:
            if current is None or current.exchange.over is not None:
                await (asyncio.sleep(seconds) if current is None else current.told(seconds))
        finally:
            self._is_closing = True
            for wait in tuple(self._asking):
                cut_short(wait)
            if self._store is not None and (current is None or current.exchange.over is not None):
                self._store.erase()

    @property
    def is_open(self) -> bool:
        """Whether a stage is open."""
        return self._open_description() is not None and self._current is not None and self._current.exchange.number >= 0

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def _description(self, request: Request) -> Response:
        """Return the session's description; waits for a session other than the one named in ``after``."""
        after = request.query_params.get("after", "")
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.poll) as wait:
                while (description := self._open_description()) is None or description.session == after:
                    if self._is_closing:
                        return _response(STOPPING)
                    self._asking[wait] = None
                    if len(self._asking) > max(1, self.limits.connections // 2):
                        # These requests have proved no name yet, so long waits must not take connections from those
                        # that have.
                        oldest = next(iter(self._asking))
                        del self._asking[oldest]
                        cut_short(oldest)
                    try:
                        await self._news.wait()
                    finally:
                        self._asking.pop(wait, None)
                return Response(description.encode(), media_type="application/json", headers=_HEADERS)
        return _response(STOPPING if self._is_closing else Verdict(Answer.AGAIN))

    def _open_description(self) -> SessionDescription | None:
        return self._current.description if self._current is not None and self._current.is_running else None

    async def _message(self, request: Request) -> Response:
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        conductor, client = found
        verdict, message = await conductor.message(client)
        if verdict.answer is not Answer.MESSAGE:
            return self._told_of(request, verdict)
        headers = {**_HEADERS, STAGE_HEADER: verdict.sentence}
        return Response(message, media_type="application/octet-stream", headers=headers)

    async def _answer(self, request: Request) -> Response:
        stage, headers = request.path_params["stage"], request.headers
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        conductor, client = found
        length = headers.get("content-length")
        if not _STAGE.fullmatch(stage) or (length is not None and not _LENGTH.fullmatch(length)):
            return _response(_WRONG)
        if headers.get("content-encoding", "identity") != "identity":
            return _response(Verdict(Answer.ENCODED, "answers are sent as they are, without a content encoding"))
        try:
            declared = None if length is None else int(length)
            return self._told_of(request, await conductor.answer(client, int(stage), declared, _body(request)))
        except ClientDisconnect:
            return _response(Verdict(Answer.SLOW, "the answer did not arrive whole"))

    async def _leave(self, request: Request) -> Response:
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        conductor, client = found
        await conductor.leave(client)
        return _response(Verdict(Answer.AGAIN))

    async def _progress(self, request: Request) -> Response:
        """Show a client the number of connected clients, and the seconds left of the open stage."""
        found = self._admitted(request)
        if isinstance(found, Verdict):
            return self._told_of(request, found)
        exchange = found[0].exchange
        left = exchange.left()
        shown = {"present": exchange.present, "seconds_left": round(left, 1) if isfinite(left) else None}
        return Response(json.dumps(shown), media_type="application/json", headers=_HEADERS)

    async def _seat(self, request: Request) -> Response:
        """Give a free name to a visitor whose proof is the body; the same proof gets the same name."""
        name, proof = request.path_params["name"], b""
        try:
            async with asyncio.timeout(self.limits.grace):
                async for chunk in request.stream():
                    proof += chunk
                    if len(proof) > _PROOF_DIGITS:
                        return _response(_WRONG)
        except (TimeoutError, ClientDisconnect):
            return _response(Verdict(Answer.SLOW, "the request did not arrive whole"))
        if not _PROOF.fullmatch(proof):
            return _response(_WRONG)
        if (conductor := self._current) is None:
            return _response(_STARTING)
        # A client that arrives after the first stage is not in the sum, and should not wait for its end.
        is_open = conductor.is_running and conductor.exchange.number <= 0 and name == conductor.description.session
        seat = self._admission.seat(name, bytes.fromhex(proof.decode())) if is_open else None
        return _response(_NO_SEAT) if seat is None else Response(str(seat.value), 201, _HEADERS, _PLAIN)

    def _admitted(self, request: Request) -> tuple[Conductor, ClientId] | Verdict:
        """Return the session that a request names and its client, or the response that refuses it."""
        if any(len(request.headers.getlist(name)) > 1 for name in _SINGLE):
            return _WRONG
        name, sender = request.path_params["name"], read_header(request.headers.get("authorization", ""))
        conductor = self._current
        if conductor is None or name != conductor.description.session:
            return self._past.get(name, _STARTING if conductor is None else RESTARTED)
        if sender is None or not self._admission.admits(name, *sender):
            self.metrics.add("secagg_strangers_total")
            if name != self._strange:
                # Log once per session: otherwise anyone could fill the disk.
                self._strange = name
                say("stranger", logging.WARNING, session=name, client=-1 if sender is None else sender[0].value)
            return _STRANGER
        request.scope.get("proved", lambda: None)()  # Its connection is authenticated from here on.
        if conductor.is_running:
            self._members.setdefault(name, set()).add(_digest_of(request))
        return conductor, sender[0]

    def _told_of(self, request: Request, verdict: Verdict) -> Response:
        """Return a verdict as a response; the result is only for clients that took part while the session ran."""
        members = self._members.get(request.path_params["name"], ())
        return _response(verdict if _digest_of(request) in members else replace(verdict, result=b""))

    async def _health(self, request: Request) -> Response:
        """Report that the process is alive, and whether a disk has stopped accepting writes."""
        del request
        current = self._current
        if current is not None and (seconds := current.disk_seconds) >= _STUCK_SECONDS:
            return Response(f"no disk takes what is written, for {seconds:.0f} s\n", 503, _HEADERS, _PLAIN)
        state = f"stage {current.exchange.number}" if current is not None and current.is_running else "idle"
        return Response(f"{state}\n", media_type=_PLAIN, headers=_HEADERS)

    async def _ready(self, request: Request) -> Response:
        """Report whether clients can take part in a session."""
        return await self._health(request) if self.is_open else _response(_STARTING)

    async def _metrics(self, request: Request) -> Response:
        if not self._is_operators(request):
            return _response(_NO_OPERATOR)
        if self._current is not None:
            self._current.tell()
        return Response(self.metrics.text(), media_type=CONTENT_TYPE, headers=_HEADERS)

    async def _status(self, request: Request) -> Response:
        """Show the session's status; ``?names`` names its clients."""
        if not self._is_operators(request):
            return _response(_NO_OPERATOR)
        current = self._current
        found = None if current is None else current.status(has_names="names" in request.query_params)
        return Response(json.dumps(found, indent=2) + "\n", media_type="application/json", headers=_HEADERS)

    def _is_operators(self, request: Request) -> bool:
        host = "" if request.client is None else request.client.host
        # An undeclared proxy also runs on this machine; nginx uses HTTP/1.0 by default.
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
