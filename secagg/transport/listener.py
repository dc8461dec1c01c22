"""Listening for requests: uvicorn, with limits on connections that send nothing, or nothing whole."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.roles import Released, ServerSession, Subject

from .card import WireLimits
from .proof import Admission
from .server import SumServer
from .tls import ServerTls, is_loopback

try:
    import uvicorn
    from h11 import RemoteProtocolError
    from h11._receivebuffer import ReceiveBuffer
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise InvalidParameters(
        "a server of sums over HTTP needs starlette and uvicorn; pip install secagg[http]"
    ) from error

_BACKLOG: Final = 4096
_HEAD_BYTES: Final = 1 << 14
_LOOSE: Final = re.compile(rb"(?<!\r)\n|\r\n[ \t]")
_PAUSE: Final = 0.01
_OTHER_FILES: Final = 128


class _Crowd:
    """Connections that have a request to make: each has a time for it, and so many wait at once.

    Beyond the limit the connection goes that has waited longest: a crowd that says nothing keeps nobody out.
    """

    def __init__(self, limits: WireLimits) -> None:
        self.limits, self._here = limits, set[asyncio.WriteTransport]()
        self._waiting = dict[asyncio.WriteTransport, asyncio.TimerHandle]()
        """Waiting connections, in the order in which they began to wait."""

    def came(self, connection: asyncio.WriteTransport) -> None:
        self._here.add(connection)
        self.wait(connection)
        if len(self._here) > self.limits.connections:
            oldest = next(iter(self._waiting))
            self.spoke(oldest)
            oldest.abort()

    def left(self, connection: asyncio.WriteTransport) -> None:
        self._here.discard(connection)
        self.spoke(connection)

    def wait(self, connection: asyncio.WriteTransport, unsent: int = 0) -> None:
        """Wait for a whole request, which comes after what the peer has yet to take."""
        self.spoke(connection)
        seconds = self.limits.seconds_for(unsent)
        self._waiting[connection] = asyncio.get_running_loop().call_later(seconds, connection.abort)

    def spoke(self, connection: asyncio.WriteTransport) -> None:
        if (timer := self._waiting.pop(connection, None)) is not None:
            timer.cancel()


class _Head(ReceiveBuffer):
    """Bytes of a connection from which heads of requests are read, each of limited length and in one form.

    h11 counts a head that is not whole yet, and also takes lines that end without a carriage return or are folded; a
    proxy may read such a head otherwise.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        head = bytes(self).partition(b"\r\n\r\n")[0]
        if len(head) > _HEAD_BYTES:
            raise RemoteProtocolError("the head of a request is too long")
        if _LOOSE.search(head):
            raise RemoteProtocolError("the head of a request has lines of another form")
        return super().maybe_extract_lines()


class _Punctual(H11Protocol):
    """Speaks HTTP over one connection of the crowd."""

    def __init__(self, crowd: _Crowd, connection: asyncio.WriteTransport, server: uvicorn.Server) -> None:
        super().__init__(server.config, server.server_state, {})
        self.conn._receive_buffer = _Head()  # noqa: SLF001 -- h11 has no setting for this  # pyright: ignore[reportPrivateUsage]
        self._crowd, self._connection, self._early = crowd, connection, b""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 -- as asyncio has it
        super().connection_made(transport)
        self._crowd.wait(self._connection)
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        made: Any = self.transport  # None until a handshake is told of, whatever it is declared as.
        if made is None:
            self._early += data
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        made: Any = self.transport
        if made is not None:
            super().connection_lost(exc)
        self._crowd.left(self._connection)

    def handle_events(self) -> None:
        super().handle_events()
        cycle: Any = self.cycle  # None before the first request, whatever it is declared as.
        if cycle is not None and not cycle.response_complete:
            self._crowd.spoke(self._connection)

    def on_response_complete(self) -> None:
        self._crowd.wait(self._connection, self.transport.get_write_buffer_size())
        super().on_response_complete()


class _Door(asyncio.Protocol):
    """Takes a connection into the crowd before anything is said, and then lets it speak TLS, or HTTP at once."""

    def __init__(self, crowd: _Crowd, server: uvicorn.Server, tls: ssl.SSLContext | None) -> None:
        self._crowd, self._server, self._tls = crowd, server, tls

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 -- as asyncio has it
        self._crowd.came(transport)
        inner = _Punctual(self._crowd, transport, self._server)
        if self._tls is None:
            transport.set_protocol(inner)
            inner.connection_made(transport)
        else:
            transport.pause_reading()
            self._handshake = asyncio.create_task(self._secured(transport, inner, self._tls))

    async def _secured(self, transport: asyncio.Transport, inner: _Punctual, tls: ssl.SSLContext) -> None:
        loop, seconds = asyncio.get_running_loop(), self._crowd.limits.grace
        over: asyncio.Transport | None = None
        with suppress(OSError):  # TLS errors among them
            over = await loop.start_tls(transport, inner, tls, server_side=True, ssl_handshake_timeout=seconds)
        if over is None or over.is_closing():
            self._crowd.left(transport)
        else:
            inner.connection_made(over)


class _Quiet(uvicorn.Server):
    """Leaves signals to the caller, and listens by a door of ours."""

    def __init__(self, config: uvicorn.Config, limits: WireLimits, tls: ServerTls | None) -> None:
        super().__init__(config)
        self._limits, self._tls = limits, tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        crowd, loop = _Crowd(self._limits), asyncio.get_running_loop()

        def door() -> _Door:
            return _Door(crowd, self, self._tls.context if self._tls else None)

        self.servers = [await loop.create_server(door, sock=each, backlog=_BACKLOG) for each in sockets or ()]
        self.started = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def allow_connections(limits: WireLimits) -> None:
    """Let this process have so many connections, as far as the system does."""
    import resource  # noqa: PLC0415 -- where there is none, there is no such limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OTHER_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@asynccontextmanager
async def listening(  # noqa: PLR0913 -- all but three have defaults
    app: Any,  # noqa: ANN401 -- an ASGI application
    host: str,
    port: int,
    *,
    tls: ServerTls | None = None,
    limits: WireLimits | None = None,
    is_behind_proxy: bool = False,
) -> AsyncGenerator[int]:
    """Serve an application until the block ends; yields the port.

    Args:
        port: 0 for any that is free.
        is_behind_proxy: whether something else brings TLS to this host.
    """
    if tls is None and not is_loopback(host) and not is_behind_proxy:
        raise InvalidParameters(
            f"{host} can be reached from outside, and requests would travel in the clear; give a certificate and a "
            "key, or say that a proxy brings TLS"
        )
    bounds = limits or WireLimits()
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=int(bounds.poll) + 1,
        timeout_graceful_shutdown=1,
    )
    config.load()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
        except OSError as error:
            raise InvalidParameters(f"nothing can listen at {host}:{port} ({error}); name another address") from None
        server = _Quiet(config, bounds, tls)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started and not task.done():  # noqa: ASYNC110 -- uvicorn has no event for it
            await asyncio.sleep(_PAUSE)
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await task


async def hold(  # noqa: PLR0913 -- all but three have defaults
    session: ServerSession,
    subject: Subject,
    protocol: str,
    *,
    admission: Admission | None = None,
    host: str = "127.0.0.1",
    port: int = 8750,
    tls: ServerTls | None = None,
    limits: WireLimits | None = None,
) -> Released:
    """Hold one session, and stop once its clients know how it ended; ``SumServer`` holds one after another."""
    server = SumServer(limits=limits, admission=admission)
    async with listening(server.app, host, port, tls=tls, limits=limits):
        try:
            return await server.run(session, server.card(subject, protocol))
        finally:
            await server.told()
