"""HTTP client: retries requests until the server answers, and limits the length of answers."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession
from secagg.session.sealed_state import StateDirectory
from secagg.transport.description import DESCRIPTION_BYTES, LONGEST_PAUSE, STAGE_HEADER, SessionDescription, say
from secagg.transport.exchange import Answer
from secagg.transport.keeping import ClientProgress, ClientStore
from secagg.transport.proof import Prover, header_of
from secagg.transport.tls import client_context, is_loopback
from secagg.wire import require_spoken

try:
    import httpx
except ImportError as error:
    raise InvalidParameters("sums over HTTP need httpx; run pip install '.[http]' in a checkout") from error

Join = Callable[[SessionDescription, Secret | None], ClientSession]
"""Returns ``member.join(subject, update, suspended)``; the client itself decides the subject of the session."""
MESSAGE: Final = "/message"
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_ANSWERS: Final = frozenset({Answer.LATE.status, Answer.OVER.status})
"""Error statuses after which a client continues."""
_SENTENCE_BYTES: Final = 1 << 12
_PIECE_BYTES: Final = 1 << 18
_FIRST_PAUSE: Final = 0.05
_RESTED: Final = 2.0
_SAID_AFTER: Final = 1.0
"""Seconds after which a client reports that its server does not answer."""
_GOLDEN, _WHOLE = 0x9E3779B97F4A7C15, 1 << 64
_SCHEMES: Final = {"http", "https"}
_NO_TLS: Final = {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
"""OpenSSL's reasons, by version, if the peer answers without TLS."""
_UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"


class Refused(ConnectionError):
    """The server refused this client; the message is the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Limits on a client's attempts; times are seconds."""

    lost: float = 120.0
    """Seconds without an answer from the server."""
    poll: float = 60.0
    """Seconds for the answer to one request; servers hold requests for less."""
    message_bytes: int = 1 << 30
    """Maximum length of a server's message."""
    slowest: float = 1 << 14
    """Minimum bytes per second of a message, after ``poll``."""

    def __post_init__(self) -> None:
        # This form also refuses NaN.
        if not (self.lost >= 0 and all(number > 0 for number in (self.poll, self.message_bytes, self.slowest))):
            raise InvalidParameters("a client's patience must be a number of seconds, its other limits positive")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the server."""

    status: int
    body: bytes = field(repr=False)
    stage: str

    @property
    def sentence(self) -> str:
        """The server's message, with control characters removed."""
        text = self.body[:_SENTENCE_BYTES].decode(errors="replace")
        return "".join(each if each.isprintable() else " " for each in text).strip()


class Requests:
    """One client's requests to one server."""

    def __init__(self, url: str, http: httpx.AsyncClient, patience: Patience, client: ClientId) -> None:
        self._url, self._base, self._http, self._patience = url, url, http, patience
        self._headers = {"accept-encoding": "identity"}
        self._is_said = False
        self._rested, self._pause = time.monotonic(), _FIRST_PAUSE / 2
        # Spread the clients' reconnections after a restart of the server.
        self._spread = 0.5 + (client.value * _GOLDEN) % _WHOLE / _WHOLE

    def enter(self, session: str, authorization: str) -> None:
        """Use this session from now on."""
        self._base = f"{self._url}/v1/sessions/{session}"
        self._headers["authorization"] = authorization

    async def rest(self) -> None:
        """Pause after an answer without news, longer each time; a server that holds requests has already paused."""
        before, self._rested = self._rested, time.monotonic()
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if self._rested - before < _RESTED else _FIRST_PAUSE
        await asyncio.sleep(self._pause * self._spread)
        self._rested = time.monotonic()

    async def try_once(self, method: str, path: str) -> None:
        """Make one request and ignore its outcome."""
        with suppress(httpx.HTTPError, SecAggError):
            await self._exchanged(method, path, b"", None)

    async def ask(self, method: str, path: str, *, body: bytes = b"", params: dict[str, str] | None = None) -> Reply:
        """Retry a request until the server answers; raises ``ConnectionError`` if the server refuses or is lost."""
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                reply = await self._exchanged(method, path, body, params)
                if reply.status not in _RETRIED:
                    self._is_said = False
                    return _answered(reply)
                why = reply.sentence or str(reply.status)
                if reply.status == Answer.BUSY.status:
                    began = time.monotonic()  # The server is up, and has or will soon have this client's answer.
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
                if (reason := _tls_reason(error)) in _NO_TLS:
                    raise ConnectionError(
                        f"the server at {self._url} does not use TLS; if it runs on this machine, use an http:// "
                        "address; otherwise start it with --cert and --key"
                    ) from None
                if reason == _UNTRUSTED or "ALERT" in reason:
                    raise ConnectionError(
                        f"TLS verification failed at {self._url} ({why}); compare the certificates of server and client"
                    ) from None
            waited = time.monotonic() - began
            if waited > _SAID_AFTER and not self._is_said:
                self._is_said = True
                say("no answer, tried again", logging.WARNING, url=self._url, why=why, seconds=self._patience.lost)
            if waited > self._patience.lost:
                raise ConnectionError(
                    f"the connection to the server at {self._url} is lost ({why}); check the address, including "
                    "http:// or https://, or join the next sum"
                )
            await asyncio.sleep(pause * self._spread)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _exchanged(self, method: str, path: str, body: bytes, params: dict[str, str] | None) -> Reply:
        headers = self._headers | ({"content-length": str(len(body))} if body else {})
        poll = self._patience.poll
        timeout, loop = httpx.Timeout(poll, connect=10.0), asyncio.get_running_loop()

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), _PIECE_BYTES):
                yield body[start : start + _PIECE_BYTES]
                # A server may serve other clients first, but must not delay its answer piece by piece.
                wait.reschedule(loop.time() + poll)

        try:
            # This covers the whole request: httpx restarts its timeouts at each byte and each interim response.
            async with (
                asyncio.timeout(poll) as wait,
                self._http.stream(
                    method,
                    self._base + path,
                    headers=headers,
                    params=params,
                    content=pieces() if body else None,
                    timeout=timeout,
                ) as response,
            ):
                # A compressed body may be a decompression bomb.
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise MalformedMessage("the server sent a compressed body", reason=Reason.NOT_CANONICAL)
                is_message = path == MESSAGE and response.status_code == Answer.MESSAGE.status
                most = self._patience.message_bytes if is_message else DESCRIPTION_BYTES
                parts, size, began = list[bytes](), 0, loop.time()
                async for part in response.aiter_raw():
                    parts.append(part)
                    if (size := size + len(part)) > most:
                        raise MalformedMessage(
                            f"the server's answer must have at most {most} bytes", reason=Reason.LENGTH_OVER_LIMIT
                        )
                    wait.reschedule(began + poll + size / self._patience.slowest)
                return Reply(response.status_code, b"".join(parts), response.headers.get(STAGE_HEADER, ""))
        except TimeoutError:
            raise httpx.ReadTimeout("the server's answer arrives too slowly") from None


def _answered(reply: Reply) -> Reply:
    if reply.status >= HTTPStatus.MULTIPLE_CHOICES and reply.status not in _ANSWERS:
        if reply.status == HTTPStatus.NOT_FOUND:
            raise Refused("the server has no sums at this address; use https://HOST:PORT without a path")
        raise Refused(f"the server refused this client: {reply.sentence or reply.status}")
    return reply


def _tls_reason(error: BaseException | None) -> str:
    """Return OpenSSL's reason if TLS failed; a broken connection has none and is retried."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return "" if error is None else error.reason or ""


# --- Taking part ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a session for a client that stayed to the end."""

    description: SessionDescription
    stages: int
    """Number of stages answered by this process."""
    is_released: bool
    """Whether the server reports a sum."""
    sentence: str
    """The server's message about how it ended."""


async def contribute(  # noqa: PLR0913 -- all but three have defaults
    url: str,
    join: Join,
    *,
    prover: Prover,
    task: str = "",
    after: str = "",
    tls: ssl.SSLContext | None = None,
    states: StateDirectory | None = None,
    patience: Patience | None = None,
    http: httpx.AsyncClient | None = None,
) -> Outcome:
    """Take part in one session from its first message to its end.

    Args:
        task: name under which a server of several tasks holds the session.
        after: name of this client's previous session; the client waits for another one.
        tls: needed if the system does not trust the server's issuer, or if the server asks for a client certificate.
        states: directory of sealed progress, from which a killed process can be resumed.
        http: an existing HTTP client, which stays open.
    Raises:
        SecAggError: this client left. The server learns that it left, but not why.
        ConnectionError: the server refused this client, or is unreachable.
    """
    try:
        place = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise InvalidParameters("this is not a server address; use https://HOST:PORT") from None
    if "://" not in url:
        scheme = "http" if is_loopback(url.rpartition(":")[0] or url) else "https"
        raise InvalidParameters(f"{url} has neither http:// nor https://; use {scheme}://{url}")
    if place.scheme not in _SCHEMES or not place.host:
        raise InvalidParameters(f"{url} is not a server address; use https://HOST:PORT")
    if tls is not None and place.scheme == "http":
        raise InvalidParameters(f"{url} does not use TLS, so certificates have no effect; use an https:// address")
    if place.scheme != "https" and not is_loopback(place.host) and http is None:
        raise InvalidParameters(f"{url} would send answers in the clear; use https://, or http:// on this machine")
    if place.userinfo or place.query or not 0 <= (place.port or 0) < 1 << 16:
        raise InvalidParameters("a server address must have no password and no query; use https://HOST:PORT")
    async with AsyncExitStack() as stack:
        if http is None:
            # Ignore the environment: its proxies and passwords are not meant for this connection.
            own = httpx.AsyncClient(
                verify=tls or (client_context() if place.scheme == "https" else False), trust_env=False
            )
            http = await stack.enter_async_context(own)
        requests = Requests(url.rstrip("/"), http, patience or Patience(), prover.client)
        store = None if states is None else ClientStore(states, url.rstrip("/"), prover.client, task)
        if store is not None:
            stack.enter_context(store.held())
        return await _Part(requests, join, prover, store).run({"task": task, "after": after})


@dataclass(slots=True)
class _Part:
    """One client's participation in one session."""

    requests: Requests
    join: Join
    prover: Prover
    store: ClientStore | None
    session: ClientSession | None = None
    stages: int = 0

    async def run(self, asked: dict[str, str]) -> Outcome:
        progress = None if self.store is None else self.store.take()
        description = await self._description(asked | {"after": ""} if progress else asked)
        if progress is None or progress.session.hex() != description.session:
            # The suspended state of a finished session is useless.
            progress = ClientProgress(
                bytes.fromhex(description.session),
                self.prover.proof(description.encode()),
                0,
                b"",
                is_last=False,
                suspended=b"",
            )
        self.requests.enter(description.session, header_of(self.prover.client, progress.proof))
        try:
            require_spoken(description.form)
        except MalformedMessage:
            # The proof shows the operator which clients this form excludes; another task's server may not have it.
            if asked["task"] in {"", description.task}:
                await self.requests.try_once("DELETE", "/client")
            raise
        if not progress.answer:
            # A client that refuses the description has not claimed a name yet, and may return with other options.
            self.session = await asyncio.to_thread(self.join, description, None)
        try:
            last = await self._exchange(description, progress)
        except SecAggError:
            # Sent once and without a reason; a server that misses it closes the stage without this client anyway.
            await self.requests.try_once("DELETE", "/client")
            self._forget()
            raise
        except Refused:
            self._forget()
            raise
        finally:
            if self.session is not None:
                self.session.abort()
        self._forget()
        is_released = last.status == Answer.DONE.status
        return Outcome(description=description, stages=self.stages, is_released=is_released, sentence=last.sentence)

    async def _description(self, asked: dict[str, str]) -> SessionDescription:
        params = {name: value for name, value in asked.items() if value} or None
        while True:
            reply = await self.requests.ask("GET", "/v1/session", params=params)
            if reply.status != Answer.AGAIN.status:
                return SessionDescription.decode(reply.body)
            await self.requests.rest()

    async def _exchange(self, description: SessionDescription, progress: ClientProgress) -> Reply:
        if progress.answer:
            await self._send(progress)
        while True:
            reply = await self.requests.ask("GET", MESSAGE)
            if reply.status == Answer.OVER.status or (reply.status != Answer.AGAIN.status and not reply.stage):
                return reply
            if reply.status == Answer.AGAIN.status:
                await self.requests.rest()
                continue
            number = _number(reply)
            if not progress.answer or number != progress.stage:
                progress = await self._answered(description, progress, number, reply.body)
            else:
                await self.requests.rest()
            await self._send(progress)

    async def _send(self, progress: ClientProgress) -> None:
        """Send an answer until the server accepts it or it is too late; the next message shows which."""
        await self.requests.ask("POST", f"/answers/{progress.stage}", body=progress.answer)

    async def _answered(
        self, description: SessionDescription, before: ClientProgress, number: int, message: bytes
    ) -> ClientProgress:
        """Compute an answer in a separate thread, and store it before sending it."""
        if before.is_last:
            raise MalformedMessage("the server asked again after this client's last answer", reason=Reason.WRONG_KIND)
        progress = await asyncio.to_thread(self._computed, description, before, number, message)
        self.stages += 1
        if (size := len(progress.answer)) > (most := description.answer_bytes):
            raise InvalidParameters(f"this client's answer has {size} bytes, but the server accepts at most {most}")
        if self.store is not None:
            try:
                self.store.put(progress)
            except OSError as error:
                # A client that cannot store its answer must not send it, so it leaves.
                raise InvalidParameters(f"this client cannot store its answer ({error}); free disk space") from None
        return progress

    def _computed(
        self, description: SessionDescription, before: ClientProgress, number: int, message: bytes
    ) -> ClientProgress:
        if self.session is None:
            suspended = Secret("suspended session", before.suspended) if before.suspended else None
            self.session = self.join(description, suspended)
        answer = self.session.answer(message)
        for fault in self.session.faults:
            say("fault", client=self.prover.client.value, sentence=str(fault))
        if self.store is None:
            return replace(before, stage=number, answer=answer)
        rest, self.session = self.session.suspend(), None
        if rest is None:
            return replace(before, stage=number, answer=answer, is_last=True, suspended=b"")
        with rest:
            return replace(before, stage=number, answer=answer, suspended=bytes(rest.expose()))

    def _forget(self) -> None:
        if self.store is not None:
            self.store.erase()


def _number(reply: Reply) -> int:
    if reply.stage[3:] or not (reply.stage.isascii() and reply.stage.isdecimal()):
        raise MalformedMessage("the server's message does not name its stage", reason=Reason.NOT_CANONICAL)
    return int(reply.stage)
