"""TLS 1.3 for servers, clients and operators, and where plain HTTP will do."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters
from secagg.session.frames import listening
from secagg.transport.description import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class ServerTls:
    """The context of a server, made again when its files are renewed."""

    def __init__(self, own: Credentials, clients: Path | None = None) -> None:
        """Read the files; ``clients`` has certificates of who may connect, or of their issuers, else anybody may."""
        self._own, self._clients = own, clients
        self.context = self._read()
        """Context of new connections; existing ones keep theirs."""

    def renew(self) -> None:
        """Read the files again; if they cannot be used, say so and keep the previous ones."""
        try:
            self.context = self._read()
        except InvalidParameters as error:
            say("certificate not renewed, the one of before stays", logging.WARNING, why=str(error))
        else:
            say("certificate renewed", file=str(self._own.certificate))

    def _read(self) -> ssl.SSLContext:
        context = _context(self._own, is_server=True)
        if self._clients is not None:
            _trust(context, self._clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class PinnedTls(ServerTls):
    """The context of an operator's end that talks with one other certificate, whatever names stand in it."""

    def __init__(self, own: Credentials, peer: Path, *, is_server: bool) -> None:
        self._peer, self._is_server = peer, is_server
        super().__init__(own)

    def _read(self) -> ssl.SSLContext:
        context = _context(self._own, is_server=self._is_server)
        context.check_hostname = False
        _trust(context, self._peer)
        context.verify_mode = ssl.CERT_REQUIRED
        self.pin = certificate_in(self._peer)
        return context


def client_context(server: Path | None = None, own: Credentials | None = None) -> ssl.SSLContext:
    """Return the context of a client; ``server`` is its certificate or its issuer's, else the system's issuers."""
    context = _context(own, is_server=False)
    if server is None:
        context.load_default_certs()
    else:
        _trust(context, server)
    return context


def certificate_in(path: Path) -> bytes:
    """Return the certificate in a file, as TLS shows it."""
    _require_there(path)
    try:
        return ssl.PEM_cert_to_DER_cert(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        raise InvalidParameters(f"{path} holds no certificate in PEM form; name the file that the peer gave") from None


def is_loopback(host: str) -> bool:
    """Whether traffic to a host stays on this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _context(own: Credentials | None, *, is_server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if own is not None:
        _require_there(own.certificate, own.key)
        try:
            context.load_cert_chain(own.certificate, own.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidParameters(
                f"{own.certificate} and {own.key} are not a certificate with its private key ({error})"
            ) from None
    return context


def _require_there(*paths: Path) -> None:
    if missing := [path for path in paths if not path.exists()]:
        raise InvalidParameters(f"there is no file {missing[0]}; name the PEM file of TLS")


def _trust(context: ssl.SSLContext, path: Path) -> None:
    _require_there(path)
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidParameters(f"{path} holds no certificates that can be believed ({error})") from None
    # A certificate that is named is believed as it stands, by any issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


# --- Tunnels between operators ----------------------------------------------------------------------------------------

HANDSHAKE_SECONDS: Final = 10.0
PEERS_AT_ONCE: Final = 64
_PIECE_BYTES: Final = 1 << 18
_LENGTH_BYTES: Final = 4
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_Touch = Callable[[], None]
"""Says that something came through a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Ends of a tunnel."""

    tls: PinnedTls
    socket: Path
    """The Unix socket on this side."""
    host: str
    port: int


async def serve_tunnel(ends: Ends, ready: Callable[[], None]) -> None:
    """Listen for the other operator, and connect each of its connections to the socket of the helper here."""

    async def joined(near: _Streams, touch: _Touch) -> None:
        _require(near[1], ends.tls.pin)
        # The near end is the helper, and the far end the other operator.
        await _pump(await asyncio.open_unix_connection(ends.socket), near, touch)

    def renewed(link: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        link.context = ends.tls.context

    # Listeners keep this context; handshakes that begin later take the newest one.
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

    async def joined(near: _Streams, touch: _Touch) -> None:
        far = await asyncio.open_connection(
            ends.host, ends.port, ssl=ends.tls.context, ssl_handshake_timeout=HANDSHAKE_SECONDS
        )
        try:
            _require(far[1], ends.tls.pin)
            await _pump(near, far, touch)
        finally:
            far[1].close()

    with listening(ends.socket, replaces_dead=True) as listener:
        async with await asyncio.start_unix_server(_few(joined), sock=listener) as server:
            ready()
            await server.serve_forever()


# --- Private ----------------------------------------------------------------------------------------------------------


def _few(joined: Callable[[_Streams, _Touch], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let so many connections be joined at once; beyond it the one ends that has been idle longest."""
    tasks = dict[asyncio.Task[None], None]()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def touch() -> None:
            tasks[task] = tasks.pop(task, None)

        task = asyncio.ensure_future(joined((reader, writer), touch))
        touch()
        if len(tasks) > PEERS_AT_ONCE:
            next(iter(tasks)).cancel()
        try:
            await asyncio.wait([task])
            if task.cancelled():
                say("tunnel closed", logging.WARNING, sentence="others wait, and this connection was idle longest")
            elif isinstance(error := task.exception(), OSError | EOFError | ValueError):
                say("tunnel closed", logging.WARNING, sentence=str(error) or type(error).__name__)
            elif error is not None:
                raise error
        finally:
            tasks.pop(task, None)
            task.cancel()
            writer.close()

    return handle


def _require(writer: asyncio.StreamWriter, pin: bytes) -> None:
    """Let nobody in but the one certificate, and no other of its issuer."""
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if shown is None or not compare_digest(shown, pin):
        raise ConnectionRefusedError("the other end shows another certificate than that of the peer")


async def _pump(near: _Streams, far: _Streams, touch: _Touch) -> None:
    """Carry bytes both ways, no faster than they are taken, until both sides have ended; ``near`` is a Unix socket."""
    both = [asyncio.create_task(_send(near[0], far[1], touch)), asyncio.create_task(_receive(far[0], near[1], touch))]
    try:
        await asyncio.gather(*both)
    finally:
        far[1].close()
        near[1].close()
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, touch: _Touch) -> None:
    """Send pieces, each after its length; an empty one says that the stream has ended, which TLS does not tell."""
    while True:
        piece = await reader.read(_PIECE_BYTES)
        writer.write(len(piece).to_bytes(_LENGTH_BYTES, "big") + piece)
        await writer.drain()
        if not piece:
            return
        touch()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, touch: _Touch) -> None:
    """Write pieces as they come, and end the stream where the other end says so."""
    while length := int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big"):
        if length > _PIECE_BYTES:
            raise ValueError("the other end of the tunnel is of another version")
        writer.write(await reader.readexactly(length))
        await writer.drain()
        touch()
    writer.write_eof()
