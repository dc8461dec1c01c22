"""Listens for requests: uvicorn handles HTTP, and this module limits the connections.

A connection counts as a stranger's until a request on it proves a name. Strangers have little time, and above the limit
the oldest stranger's connection is closed. So a crowd cannot keep clients out, even with incomplete requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.roles import Released, ServerSession, Subject

from .description import WireLimits, say
from .proof import Admission
from .server import SumServer
from .tls import ServerTls, is_loopback

try:
    import h11
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise InvalidParameters(
        "a server of sums over HTTP needs starlette and uvicorn; run pip install '.[http]' in a checkout"
    ) from error

_BACKLOG: Final = 4096
_HEAD_BYTES: Final = 1 << 14
_LOOSE: Final = re.compile(rb"(?<!\r)\n|\r\n[ \t]")
_PAUSE: Final = 0.01
_FULL_SECONDS: Final = 0.1
_STOP_SECONDS: Final = 1.0
_OTHER_FILES: Final = 128


class _Connection(H11Protocol):
    """One connection, from before its TLS handshake; speaks HTTP once there is a transport."""

    # Outside the instance's dictionary, which then shares its keys with all connections; this saves 1.4 kB each.
    __slots__ = ("_application", "_crowd", "_handshake", "_head")

    def __init__(self, crowd: _Crowd, server: uvicorn.Server) -> None:
        super().__init__(server.config, server.server_state, {})
        self._crowd, self._application, self._head = crowd, self.app, b""
        self.app = self._asked
        self._handshake = asyncio.current_task()

    def end(self) -> None:
        """Close the connection at once."""
        if self._handshake is None:
            self.transport.abort()
        else:
            self._handshake.cancel()

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 -- as asyncio has it
        self._handshake = None
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.left(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Accept heads of limited length and strict form, and one request at a time.

        h11 also accepts lines that are folded or lack a carriage return; a proxy may parse such a head differently.
        """
        if self.conn.their_state is h11.IDLE:
            self._head += data
            head, end, _ = self._head.partition(b"\r\n\r\n")
            if len(head) > _HEAD_BYTES or _LOOSE.search(head):
                self.send_400_response("the request's head is too long or malformed")
                return
            self._head = b"" if end else self._head
        super().data_received(data)
        if self.conn.their_state is h11.SEND_BODY:
            self.flow.pause_reading()  # The application reads the body once there is room, or never.
        elif self.conn.trailing_data[0]:
            self.end()  # A second request before the answer to this one would skip the check of its head.

    async def _asked(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 -- as ASGI has it
        """Run the application; a stranger may wait for its answer."""
        self._crowd.wait(self, self._crowd.limits.poll, keeps_place=True)
        scope["proved"] = partial(self._crowd.prove, self)
        try:
            await self._application(scope, receive, send)
        finally:
            if self.conn.their_state is h11.SEND_BODY:
                self.transport.close()  # Data after the rest of its body would also go unchecked.
            # The peer must read the pending data before its next request.
            self._crowd.wait(self, self.transport.get_write_buffer_size() / self._crowd.limits.slowest)


class _Crowd:
    """All connections, with strangers' in order of arrival or last answer."""

    def __init__(self, limits: WireLimits) -> None:
        self.limits, self._most = limits, allow_connections(limits)
        if self._most < limits.connections:
            why = "the limit of open files is below what clients may need; raise `ulimit -n`"
            say("fewer connections", logging.WARNING, most=self._most, wanted=limits.connections, why=why)
        self._here, self._strangers = set[_Connection](), dict[_Connection, asyncio.TimerHandle]()
        self._proved = dict[str, set[_Connection]]()

    def came(self, connection: _Connection) -> None:
        self._here.add(connection)
        self.wait(connection)
        if len(self._here) > self._most:
            oldest = next(iter(self._strangers))
            self.left(oldest)
            oldest.end()

    def wait(self, connection: _Connection, more: float = 0.0, *, keeps_place: bool = False) -> None:
        """Give a stranger time; a stranger whose request has proved nothing keeps its place in the order."""
        if connection in self._here:
            self._forget(connection)
            timer = self._strangers.get(connection) if keeps_place else self._strangers.pop(connection, None)
            if timer is not None:
                timer.cancel()
            self._strangers[connection] = asyncio.get_running_loop().call_later(
                self.limits.grace + more, connection.end
            )

    def prove(self, connection: _Connection, task: str, part: int) -> None:
        """Keep the connection of a task's client; above the task's share, close it when others come."""
        proved = self._proved.setdefault(task, set())
        if (timer := self._strangers.get(connection)) is not None:
            timer.cancel()
            if len(proved) < max(1, part * self._most // self.limits.connections):
                del self._strangers[connection]
                proved.add(connection)

    def _forget(self, connection: _Connection) -> None:
        for proved in self._proved.values():
            proved.discard(connection)

    def end(self) -> None:
        """Close every connection."""
        for connection in tuple(self._here):
            connection.end()

    def left(self, connection: _Connection) -> None:
        self._here.discard(connection)
        self._forget(connection)
        if (timer := self._strangers.pop(connection, None)) is not None:
            timer.cancel()


class _Quiet(uvicorn.Server):
    """Server that leaves signals to the caller, and accepts connections one by one, up to the limit."""

    def __init__(self, config: uvicorn.Config, limits: WireLimits, tls: ServerTls | None) -> None:
        super().__init__(config)
        self._limits, self._tls, self._crowd = limits, tls, _Crowd(limits)
        self._tasks = set[asyncio.Task[None]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers = []
        for each in sockets or ():
            each.settimeout(0)
            each.listen(_BACKLOG)
            self._start(self._accept(each))
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._tasks:
            task.cancel()
        # Do this before uvicorn cancels the remaining requests and logs a traceback for each.
        ending = asyncio.get_running_loop().call_later(_STOP_SECONDS, self._crowd.end)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        """Accept connections; asyncio's own loop would log a line for each refused connection of a backlog."""
        loop, is_said = asyncio.get_running_loop(), False
        while True:
            try:
                accepted = (await loop.sock_accept(listener))[0]
            except OSError as error:
                if not is_said:
                    is_said = True  # Log once: otherwise anyone could fill the disk.
                    say("no connection can be taken", logging.WARNING, why=str(error))
                await asyncio.sleep(_FULL_SECONDS)
                continue
            self._start(self._welcome(accepted))
            await asyncio.sleep(0)  # The connection closed for this one must go before the next one is accepted.

    async def _welcome(self, accepted: socket.socket) -> None:
        crowd, context = self._crowd, self._tls.context if self._tls else None
        connection = _Connection(crowd, self)
        crowd.came(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=context, ssl_handshake_timeout=self._limits.grace if context else None
            )
        except (OSError, asyncio.CancelledError):  # This includes TLS errors.
            crowd.left(connection)
            accepted.close()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def allow_connections(limits: WireLimits) -> int:
    """Raise this process's connection limit as far as the system allows, and return it."""
    import resource  # noqa: PLC0415 -- where there is none, there is no such limit

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OTHER_FILES
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(1, min(limits.connections, soft - _OTHER_FILES))


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
    """Serve an application until the block ends; yield the port.

    Args:
        port: 0 for any free port.
        is_behind_proxy: whether a proxy provides TLS for this host.
    """
    if tls is None and not is_loopback(host) and not is_behind_proxy:
        raise InvalidParameters(
            f"{host} is reachable from other machines, and requests would be sent in the clear; give a certificate "
            "and a key, or declare that a proxy provides TLS"
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
        timeout_graceful_shutdown=2,
    )
    config.load()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
        except OSError as error:
            raise InvalidParameters(f"cannot listen at {host}:{port} ({error}); use another address") from None
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
    """Serve one session, and stop once its clients know the outcome; ``SumServer`` serves several in turn."""
    server = SumServer(limits=limits, admission=admission)
    async with listening(server.app, host, port, tls=tls, limits=limits):
        try:
            return await server.run(session, server.description(subject, protocol))
        finally:
            await server.told()
