"""Mutual TLS between two operators: a Unix socket here stands for one there, whatever is said through it.

    server 0's host                                   server 1's host
    /run/one.sock <- tunnel ===== TLS 1.3 =====> tunnel -> /run/secagg.sock <- secagg two-servers serve

Helpers listen at Unix sockets that their own user alone may connect to, and stay as they are: server 1 of two servers,
holders of one message, an enclave. Each end knows the one certificate of the other, by its bytes and not by a name.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters
from secagg.session.sockets.frames import listening

from .logs import say
from .tls import PinnedTls

HANDSHAKE_SECONDS: Final = 10.0
PEERS_AT_ONCE: Final = 64
_PIECE_BYTES: Final = 1 << 18
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Who talks through a tunnel."""

    tls: PinnedTls
    socket: Path
    """The Unix socket on this side."""
    host: str
    port: int


async def serve_tunnel(ends: Ends, ready: Callable[[], None]) -> None:
    """Listen for the other operator, and connect each of its connections to the socket of the helper here."""

    async def joined(near: _Streams) -> None:
        _require(near[1], ends.tls.pin)
        await _pump(near, await asyncio.open_unix_connection(ends.socket))

    def renewed(link: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        link.context = ends.tls.context

    # What listens keeps this context; handshakes that begin later take the newest one.
    ends.tls.context.sni_callback = renewed
    try:
        server = await asyncio.start_server(
            _few(joined), ends.host, ends.port, ssl=ends.tls.context, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )
    except OSError as error:
        raise InvalidParameters(f"nothing listens at {ends.host}:{ends.port} ({error}); name another address") from None
    async with server:
        ready()
        await server.serve_forever()


async def open_tunnel(ends: Ends, ready: Callable[[], None]) -> None:
    """Listen at a socket here, and connect each of its connections to the other operator's end."""

    async def joined(near: _Streams) -> None:
        far = await asyncio.open_connection(
            ends.host, ends.port, ssl=ends.tls.context, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )
        try:
            _require(far[1], ends.tls.pin)
            await _pump(near, far)
        finally:
            far[1].close()

    with listening(ends.socket, replaces_dead=True) as listener:
        async with await asyncio.start_unix_server(_few(joined), sock=listener) as server:
            ready()
            await server.serve_forever()


# --- Private ----------------------------------------------------------------------------------------------------------


def _few(joined: Callable[[_Streams], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let so many connections be joined at once; others wait, and none ends the tunnel."""
    places = asyncio.Semaphore(PEERS_AT_ONCE)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with places:
                await joined((reader, writer))
        except (OSError, ssl.SSLError) as error:
            say("tunnel closed", logging.WARNING, sentence=str(error) or type(error).__name__)
        finally:
            writer.close()

    return handle


def _require(writer: asyncio.StreamWriter, pin: bytes) -> None:
    """Let nobody in but the one certificate, whoever else its issuer vouches for."""
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if shown is None or not compare_digest(shown, pin):
        raise ConnectionRefusedError("the other end shows another certificate than that of the peer")


async def _pump(near: _Streams, far: _Streams) -> None:
    """Carry bytes both ways, no faster than they are taken, until one side ends."""
    both = [asyncio.create_task(_carry(near[0], far[1])), asyncio.create_task(_carry(far[0], near[1]))]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        far[1].close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
