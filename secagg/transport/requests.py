"""Requests of a client: made again until the server answers, read as they stand, and never longer than a limit."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from secagg.errors import InvalidParameters, MalformedMessage, Reason, SecAggError
from secagg.identifiers import ClientId

from .card import CARD_BYTES, LONGEST_PAUSE, STAGE_HEADER
from .exchange import Answer

try:
    import httpx
except ImportError as error:
    raise InvalidParameters("a client of sums over HTTP needs httpx; pip install secagg[http]") from error

MESSAGE: Final = "/message"
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_ANSWERS: Final = frozenset({Answer.LATE.status, Answer.OVER.status})
"""Statuses of errors after which a client continues."""
_SENTENCE_BYTES: Final = 1 << 12
_PIECE_BYTES: Final = 1 << 18
_FIRST_PAUSE: Final = 0.05
_RESTED: Final = 2.0
_GOLDEN, _WHOLE = 0x9E3779B97F4A7C15, 1 << 64


class Refused(ConnectionError):
    """The server awaits this client no more; the sentence is the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a client tries; times are seconds."""

    lost: float = 120.0
    """Without a word from the server."""
    poll: float = 60.0
    """For the answer to one request, which a server holds back for less."""
    message_bytes: int = 1 << 30
    """No message of a server is longer."""
    slowest: float = 1 << 14
    """Bytes each second of a message, at least, after ``poll``."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if not (self.lost >= 0 and all(number > 0 for number in (self.poll, self.message_bytes, self.slowest))):
            raise InvalidParameters("a client's patience is a number of seconds, and the limits of a wire are positive")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the server answered."""

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
        """Ask for nothing yet."""
        self._url, self._base, self._http, self._patience = url, url, http, patience
        self._headers = {"accept-encoding": "identity"}
        self._rested, self._pause = time.monotonic(), _FIRST_PAUSE / 2
        # Clients whose server restarts do not come back all at once.
        self._spread = 0.5 + (client.value * _GOLDEN) % _WHOLE / _WHOLE

    def enter(self, session: str, authorization: str) -> None:
        """Ask about one session from now on."""
        self._base = f"{self._url}/v1/sessions/{session}"
        self._headers["authorization"] = authorization

    async def rest(self) -> None:
        """Pause after what brought no news, longer each time; a server that holds requests back has paused already."""
        before, self._rested = self._rested, time.monotonic()
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if self._rested - before < _RESTED else _FIRST_PAUSE
        await asyncio.sleep(self._pause * self._spread)
        self._rested = time.monotonic()

    async def try_once(self, method: str, path: str) -> None:
        """Make a request whose answer changes nothing."""
        with suppress(httpx.HTTPError, SecAggError):
            await self._exchanged(method, path, b"", None)

    async def ask(self, method: str, path: str, *, body: bytes = b"", params: dict[str, str] | None = None) -> Reply:
        """Make a request until it gets an answer of the server's.

        Raises:
            MalformedMessage: the answer is no answer.
            ConnectionError: the server refused, or nobody answered for long.
        """
        began, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                reply = await self._exchanged(method, path, body, params)
                if reply.status not in _RETRIED:
                    return _answered(reply)
                why = reply.sentence or str(reply.status)
                if reply.status == Answer.BUSY.status:
                    began = time.monotonic()  # It is there, and has this client's answer already or soon.
            except httpx.TransportError as error:
                why = str(error) or type(error).__name__
                if _is_of_tls(error):
                    sentence = f"the server at {self._url} and this client do not believe each other ({why})"
                    raise ConnectionError(f"{sentence}; compare certificates") from None
            if time.monotonic() - began > self._patience.lost:
                raise ConnectionError(
                    f"the server at {self._url} is lost ({why}); compare addresses, or join the next sum"
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
                # A server may have others before this client, but not say so piece by piece.
                wait.reschedule(loop.time() + poll)

        try:
            # Around everything: what httpx counts begins again with each byte, and with each interim response.
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
                # What is compressed may be a bomb.
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise MalformedMessage("the server sends what was compressed", reason=Reason.NOT_CANONICAL)
                is_message = path == MESSAGE and response.status_code == Answer.MESSAGE.status
                most = self._patience.message_bytes if is_message else CARD_BYTES
                parts, size, began = list[bytes](), 0, loop.time()
                async for part in response.aiter_raw():
                    parts.append(part)
                    if (size := size + len(part)) > most:
                        raise MalformedMessage(
                            f"a server's answer here has at most {most} bytes", reason=Reason.LENGTH_OVER_LIMIT
                        )
                    wait.reschedule(began + poll + size / self._patience.slowest)
                return Reply(response.status_code, b"".join(parts), response.headers.get(STAGE_HEADER, ""))
        except TimeoutError:
            raise httpx.ReadTimeout("the server's answer dribbles") from None


def _answered(reply: Reply) -> Reply:
    if reply.status >= HTTPStatus.MULTIPLE_CHOICES and reply.status not in _ANSWERS:
        raise Refused(f"the server refused this client: {reply.sentence or reply.status}")
    return reply


def _is_of_tls(error: BaseException | None) -> bool:
    """Whether a certificate was not believed, here or there; a connection that only broke is tried again."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None and ("ALERT" in (error.reason or "") or isinstance(error, ssl.SSLCertVerificationError))
