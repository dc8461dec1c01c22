"""Where an application listens: uvicorn, with limits on connections that say nothing, or nothing whole."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.roles import Released, ServerSession, Subject

from .card import WireLimits
from .proof import Admission
from .server import SumServer
from .tls import is_loopback

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise InvalidParameters(
        "a server of sums over HTTP needs starlette and uvicorn; pip install secagg[http]"
    ) from error

_BACKLOG: Final = 4096
_HEAD_BYTES: Final = 1 << 14
_PAUSE: Final = 0.01
_OTHER_FILES: Final = 128


class _Quiet(uvicorn.Server):
    """Leaves signals to the caller."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _punctual(limits: WireLimits) -> type[H11Protocol]:
    """Return a protocol whose peers say a whole head in time, and of which so many wait at once.

    Beyond the limit the connection goes that has waited longest: a crowd that says nothing keeps nobody out.
    """
    waiting = dict[asyncio.Transport, None]()
    """In the order in which they came."""
    count = 0

    class Punctual(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:  # noqa: ANN401 -- as asyncio has it
            nonlocal count
            super().connection_made(transport)
            count += 1
            self._await_head()
            if count > limits.connections:
                oldest = next(iter(waiting))
                waiting.pop(oldest)
                oldest.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            nonlocal count
            count -= 1
            self._head_came()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            cycle: Any = self.cycle  # None before the first request, whatever it is declared as.
            if cycle is not None and not cycle.response_complete:
                self._head_came()

        def on_response_complete(self) -> None:
            self._await_head()
            super().on_response_complete()

        def _await_head(self) -> None:
            self._head_came()
            waiting[self.transport] = None
            self._timer = self.loop.call_later(limits.grace, self.transport.abort)

        def _head_came(self) -> None:
            waiting.pop(self.transport, None)
            if self._timer is not None:
                self._timer.cancel()

    return Punctual


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
    tls: ssl.SSLContext | None = None,
    limits: WireLimits | None = None,
    is_behind_proxy: bool = False,
) -> AsyncGenerator[int]:
    """Serve an application until the block ends; yields the port.

    Args:
        port: 0 for any that is free.
        is_behind_proxy: whether something else brings TLS to this host.
    Raises:
        InvalidParameters: the address cannot be listened at, or others would hear what is said there.
    """
    if tls is None and not is_loopback(host) and not is_behind_proxy:
        raise InvalidParameters(
            f"{host} can be reached from outside, and requests would travel in the clear; give a certificate and a "
            "key, or say that a proxy brings TLS"
        )
    bounds = limits or WireLimits()
    config = uvicorn.Config(
        app,
        http=_punctual(bounds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        timeout_keep_alive=int(bounds.poll) + 1,
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.ssl = tls
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
        except OSError as error:
            raise InvalidParameters(f"nothing can listen at {host}:{port} ({error}); name another address") from None
        server = _Quiet(config)
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
    tls: ssl.SSLContext | None = None,
    limits: WireLimits | None = None,
) -> Released:
    """Hold one session, and stop once its clients know how it ended; ``SumServer`` holds one after another."""
    server = SumServer(limits=limits, admission=admission)
    async with listening(server.app, host, port, tls=tls, limits=limits):
        try:
            return await server.run(session, server.card(subject, protocol))
        finally:
            await server.told()
