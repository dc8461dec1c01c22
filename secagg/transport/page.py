"""Serves the web page of ``clients/web``, and the headers that allow pages of other origins."""

from __future__ import annotations

import gzip
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

from secagg.errors import InvalidParameters

from .description import STAGE_HEADER

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_TYPES: Final = MappingProxyType({".js": "text/javascript", ".html": "text/html", ".css": "text/css"})
_HOME: Final = "/page/"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""The page may run only its own scripts and contact only its own server."""
_SECURE: Final[Headers] = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
]
_NEAR: Final = re.compile(rb"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_MISDIRECTED: Final = (
    b"this server listens at loopback, and answers to localhost, 127.0.0.1 and [::1]; behind a proxy it takes "
    b"--behind-proxy\n"
)
_ALLOWED: Final[Headers] = [
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization"),
    (b"access-control-max-age", b"7200"),
]


@dataclass(frozen=True, slots=True)
class _File:
    kind: bytes
    plain: bytes
    packed: bytes


def _read_files() -> dict[str, _File]:
    """Read all files of the page by path; no other file is ever served."""
    found = dict[str, _File]()
    for folder, place in (("/", files("secagg.web")), (_HOME, files("secagg.web.page"))):
        for file in place.iterdir():
            dot, suffix = file.name.rpartition(".")[1:]
            if (kind := _TYPES.get(dot + suffix)) is not None:
                plain = file.read_bytes()
                found[folder + file.name] = _File(
                    f"{kind}; charset=utf-8".encode(), plain, gzip.compress(plain, 9, mtime=0)
                )
    if f"{_HOME}index.html" not in found:
        raise InvalidParameters("the web page is not installed; install secagg from a wheel, or check out clients/web")
    found[_HOME] = found.pop(f"{_HOME}index.html")
    return found


class Paged:
    """Application that serves the page and passes on other requests."""

    def __init__(self, app: Application) -> None:
        self._app, self._files = app, _read_files()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
        elif path == "/":
            await _respond(send, 307, [(b"location", _HOME.encode())], b"")
        elif (file := self._files.get(path)) is not None:
            is_packed = b"gzip" in dict(scope["headers"]).get(b"accept-encoding", b"")
            headers = [*_SECURE, (b"content-type", file.kind), (b"vary", b"accept-encoding")]
            if is_packed:
                headers.append((b"content-encoding", b"gzip"))
            body = file.packed if is_packed else file.plain
            await _respond(send, 200, headers, b"" if scope["method"] == "HEAD" else body)
        else:
            await self._app(scope, receive, send)


class OwnHost:
    """Application that only answers requests for this machine's own names.

    Security: without it, any page in a local browser could resolve its own name to this machine, and then send requests
    as the same origin (DNS rebinding).
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        if scope["type"] != "http" or (len(hosts) == 1 and _NEAR.fullmatch(hosts[0])):
            await self._app(scope, receive, send)
        else:
            await _respond(send, 421, [(b"content-type", b"text/plain; charset=utf-8")], _MISDIRECTED)


class CrossOrigin:
    """Application that admits web pages of the listed origins."""

    def __init__(self, app: Application, origins: Collection[str]) -> None:
        """Allow origins by their exact names, such as ``https://example.org``."""
        for origin in origins:
            scheme, separator, host = origin.partition("://")
            if (
                scheme not in {"http", "https"}
                or not separator
                or not host
                or not host.isascii()
                or not host.isprintable()
                or host != host.lower()
                or set(host) & set("/*?#@ ")
            ):
                raise InvalidParameters(
                    f"an origin must be https://HOST in lower case, without a path or a star; got {origin!r}"
                )
        self._app, self._origins = app, frozenset(origin.encode() for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = dict(scope.get("headers", ())).get(b"origin") if scope["type"] == "http" else None
        if origin is None or origin not in self._origins:
            await self._app(scope, receive, send)
            return
        own: Headers = [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", STAGE_HEADER.encode()),
            (b"vary", b"origin"),
        ]
        if scope["method"] == "OPTIONS":
            await _respond(send, 204, [*own, *_ALLOWED], b"")
            return

        async def sent(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        await self._app(scope, receive, sent)


async def _respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})
