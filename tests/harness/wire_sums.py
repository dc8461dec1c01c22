"""Sums over HTTP for tests: plain sums, without the cost of cryptography, and updates derived from ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import numpy as np

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession, LazyUpdate, Released, ServerSession, Subject, Update
from secagg.session.run import Limits
from secagg.transport.client import Join, Outcome, contribute
from secagg.transport.description import SessionDescription, WireLimits
from secagg.transport.listener import listening
from secagg.transport.proof import Prover, header_of
from secagg.transport.server import Front, SumServer
from secagg.transport.tls import ServerTls
from tests.harness.plain_sum import PlainMember, PlainSettings, open_session

LAYOUT = Layout((RingSegment(32, 4),))
MODEL = bytes(32)
SUBJECT = Subject(task=b"a task", round_number=3, layout=LAYOUT, capacity=1 << 20, model_digest=MODEL)
CLIENTS = tuple(ClientId(number) for number in range(1, 6))
ANSWER_BYTES = 1000
PROOF = bytes([3]) + bytes(64)


def quick_limits(
    *, seconds: float = 20.0, poll: float = 5.0, grace: float = 5.0, connections: int = 100, bodies: int = 4
) -> WireLimits:
    """Return limits for tests; a failing test waits at most these seconds."""
    return WireLimits(
        stages=Limits(exchange=seconds, training=seconds),
        answer_bytes=ANSWER_BYTES,
        poll=poll,
        grace=grace,
        connections=connections,
        memory=2 * ANSWER_BYTES * bodies,
    )


def update_of(client: ClientId, layout: Layout = LAYOUT) -> LazyUpdate:
    """Return an update whose values are the client's number."""
    (segment,) = layout.segments
    assert isinstance(segment, RingSegment)
    values = segment.ring.from_integers(np.full(segment.length, client.value, dtype=np.int64))
    return LazyUpdate(lambda: Update(Payload(layout, (values,)), MODEL))


def plain_session(
    clients: Collection[ClientId] = CLIENTS, minimum: int = 3, subject: Subject = SUBJECT
) -> ServerSession:
    """Open a plain sum."""
    return open_session(subject, PlainSettings(minimum_cohort=minimum), frozenset(clients))


def joining(client: ClientId, subject: Subject = SUBJECT) -> Join:
    """Return how a client joins a plain sum."""

    def join(description: SessionDescription, suspended: Secret | None) -> ClientSession:
        del description
        return PlainMember(client).join(subject, update_of(client, subject.layout), suspended)

    return join


def answer_of(client: ClientId, session: ServerSession) -> bytes:
    """Return a client's answer to the invitation of a plain sum."""
    return PlainMember(client).join(SUBJECT, update_of(client)).answer(session.invitation)


def headers_of(client: ClientId, proof: bytes = PROOF) -> dict[str, str]:
    """Return the headers of a client's request."""
    return {"authorization": header_of(client, proof)}


@asynccontextmanager
async def in_memory(server: SumServer) -> AsyncGenerator[httpx.AsyncClient]:
    """Connect to a server without a socket."""
    transport = httpx.ASGITransport(app=server.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://sums") as http:
        yield http


class Held:
    """A server that runs a plain sum, for handmade requests."""

    def __init__(
        self, server: SumServer, http: httpx.AsyncClient, session: ServerSession, description: SessionDescription
    ) -> None:
        self.server, self.http, self.session, self.description = server, http, session, description
        self.base = f"/v1/sessions/{description.session}"

    async def post(self, client: ClientId, body: bytes | None = None, stage: int | str = 0, **headers: str) -> int:
        """Send an answer, and return the status."""
        content = answer_of(client, self.session) if body is None else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = await self.http.post(
            f"{self.base}/answers/{stage}", content=content, headers={**headers_of(client), **named}
        )
        return reply.status_code

    async def ask(self, client: ClientId) -> httpx.Response:
        """Ask for a message."""
        return await self.http.get(f"{self.base}/message", headers=headers_of(client))


Receive = Callable[[], Awaitable[dict[str, Any]]]


async def past_httpx(
    server: SumServer, path: str, receive: Receive, *more: tuple[str, str], client: ClientId | None = CLIENTS[0]
) -> int:
    """Post a request that httpx would not send, and return the status."""
    said = list[Any]()

    async def send(message: Any) -> None:
        said.append(message)

    named = ({} if client is None else headers_of(client)).items()
    headers = [(name.encode(), value.encode()) for name, value in (*named, *more)]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await server.app(scope, receive, send)
    return int(said[0]["status"])


async def disconnected() -> dict[str, Any]:
    """Receive the end of a connection."""
    return {"type": "http.disconnect"}


@asynccontextmanager
async def holding(
    server: SumServer | None = None, session: ServerSession | None = None
) -> AsyncGenerator[tuple[Held, asyncio.Task[Released]]]:
    """Run a plain sum, whose task ends with the block."""
    server, session = server or SumServer(limits=quick_limits()), session or plain_session()
    description = server.description(SUBJECT, "plain")
    async with in_memory(server) as http:
        task = asyncio.create_task(server.run(session, description))
        try:
            # The session description exists before the first stage opens, and a message only after.
            held = Held(server, http, session, description)
            await held.http.get("/v1/session")
            await until(lambda: server.is_open)
            yield held, task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def served(
    limits: WireLimits, tls: ServerTls | None = None, tasks: int = 1
) -> AsyncGenerator[tuple[SumServer, int, str]]:
    """Serve plain sums at a socket; yields the first task's server, the port, and the path of its session."""
    part = replace(limits, memory=limits.memory // tasks, connections=limits.connections // tasks)
    subjects = [SUBJECT, *(replace(SUBJECT, task=b"task %d" % number) for number in range(1, tasks))]
    servers = [SumServer(task=each.task.decode(), limits=part) for each in subjects]
    descriptions = [server.description(each, "plain") for server, each in zip(servers, subjects, strict=True)]
    async with listening(Front(servers).app, "127.0.0.1", 0, tls=tls, limits=limits) as port:
        running = [
            asyncio.create_task(server.run(plain_session(subject=subject), description))
            for server, subject, description in zip(servers, subjects, descriptions, strict=True)
        ]
        try:
            await until(lambda: all(server.is_open for server in servers))
            yield servers[0], port, f"/v1/sessions/{descriptions[0].session}"
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


async def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 -- most conditions depend on another process
            await asyncio.sleep(0.005)


async def taking_part(
    url: str, client: ClientId, join: Join | None = None, http: httpx.AsyncClient | None = None
) -> Outcome:
    """Take part in a plain sum as a client."""
    prover, task = Prover(client, SystemCoins()), SUBJECT.task.decode()
    return await contribute(url, join or joining(client), prover=prover, task=task, http=http)
