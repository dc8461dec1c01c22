"""Helper addresses, mutual authentication, and both ends of a connection: the client and the service.

Machines connect over TLS 1.3 using public keys that they already know, without names, issuers or certificate files.
Each end generates a key for the connection, and its identity key certifies that key and its role for a day. The other
end accepts only the key and role that it expects.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread, Timer
from typing import Final, Protocol, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from secagg.crypto.entropy import Coins
from secagg.errors import InternalError, InvalidParameters, MalformedMessage, PeerError, Reason, SecAggError
from secagg.identifiers import Party
from secagg.version import __version__
from secagg.wire import FORM, MessageKind, message_kind

from .certificates import SigningKey, is_strong_key
from .frames import decode_refusal, encode_refusal, listening, receive_frame, send_frame
from .signing_keys import new_signing_key

# --- Addresses --------------------------------------------------------------------------------------------------------

_MOST: Final = {"tcp": 1 << 16, "vsock": 1 << 32}


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a helper."""

    kind: str
    host: str
    """Path of a Unix socket, name or number of a machine, or context of a vsock."""
    port: int = 0

    @classmethod
    def of(cls, text: str | Path) -> Address:
        """Parse an address; a plain path means a Unix socket.

        Raises:
            InvalidParameters: it is not an address.
        """
        kind, _, rest = str(text).partition(":")
        if isinstance(text, Path) or kind not in ("unix", *_MOST):
            return cls("unix", str(text))
        if kind == "unix" and rest:
            return cls(kind, rest)
        host, _, port = rest.rpartition(":")
        is_named = bool(host) if kind == "tcp" else host.isdecimal() and int(host) < _MOST["vsock"]
        if kind != "unix" and is_named and port.isdecimal() and int(port) < _MOST[kind]:
            return cls(kind, host.strip("[]"), int(port))
        raise InvalidParameters(f"an address must be unix:PATH, tcp:HOST:PORT or vsock:CONTEXT:PORT; got {str(text)!r}")

    @property
    def is_here(self) -> bool:
        """Whether a file's mode decides who may connect."""
        return self.kind == "unix"

    def connect(self, timeout: float | None) -> socket.socket:
        """Return a connection; unless it is local, the other end is not authenticated yet.

        Raises:
            OSError: nothing listens there, or this system does not support the socket type.
        """
        if self.kind == "tcp":
            connection = socket.create_connection((self.host, self.port), timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(self._family(), socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(self.host if self.is_here else (int(self.host), self.port))
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def listening(self) -> Generator[socket.socket]:
        """Listen; replaces the socket of a killed process at a path.

        Raises:
            InvalidParameters: cannot listen there.
        """
        if self.is_here:
            with listening(Path(self.host), replaces_dead=True) as listener:
                yield listener
            return
        try:
            if self.kind == "tcp":
                family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
                listener = socket.create_server((self.host, self.port), family=family)
                # Connections inherit it.
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            else:
                listener = socket.socket(self._family(), socket.SOCK_STREAM)
                listener.bind((int(self.host), self.port))
                listener.listen()
        except OSError as error:
            raise InvalidParameters(f"cannot listen at {self} ({error}); use another address") from None
        with listener:
            yield listener

    def _family(self) -> int:
        if self.is_here:
            return socket.AF_UNIX
        if not hasattr(socket, "AF_VSOCK"):
            raise OSError("this system has no vsock")
        return socket.AF_VSOCK

    def __str__(self) -> str:
        return self.host if self.is_here else f"{self.kind}:{self.host}:{self.port}"


def hang_up(connection: socket.socket) -> None:
    """End a connection that another thread or process may be using."""
    with suppress(OSError):
        # A TLS connection's own method would first drop the keys, and let another thread send in the clear.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


# --- Who is at each end -----------------------------------------------------------------------------------------------

PROOF_SECONDS: Final = 10.0
"""Time limit in seconds for both ends to authenticate."""
_LIFE: Final = timedelta(hours=24)
_PROVED: Final = b"\1"
_BROKEN: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


class WrongPeer(ConnectionError):
    """The peer at an address does not prove the expected key and role, or rejects this end's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """One end of a connection, and the only peer that it accepts."""

    own: Party
    key: SigningKey
    peer: Party
    peer_key: bytes
    coins: Coins

    def __post_init__(self) -> None:
        if not is_strong_key(self.peer_key):
            raise InvalidParameters(
                f"the key of {self.peer} has small order or is not canonical; anybody can sign with it"
            )

    def proved(
        self, connection: socket.socket, *, is_server: bool, strangers: dict[socket.socket, None] | None = None
    ) -> ssl.SSLSocket:
        """Return a TLS connection over this one, once both ends are authenticated; close it if that fails.

        Args:
            strangers: lists the connection meanwhile, so that it can be closed if its place is needed.
        Raises:
            WrongPeer: someone else is there, or the peer expects someone else here.
            OSError: the connection was lost, or the peer is too slow.
        """
        strangers = {} if strangers is None else strangers
        try:
            over = self._context(is_server=is_server).wrap_socket(
                connection, server_side=is_server, do_handshake_on_connect=False
            )
        except BaseException:
            connection.close()
            raise
        strangers[over] = None
        timer = Timer(PROOF_SECONDS, hang_up, [over])
        timer.start()
        try:
            self._prove(over)
        except BaseException:
            over.close()
            raise
        finally:
            timer.cancel()
            del strangers[over]
        return over

    def _prove(self, over: ssl.SSLSocket) -> None:
        try:
            over.do_handshake()
            # The listening end checks the other's proof last, and reports the result.
            if over.server_side:
                over.sendall(_PROVED)
            elif over.recv(len(_PROVED)) != _PROVED:
                raise ConnectionResetError("the other end closed the connection")
        except _BROKEN as error:
            raise ConnectionResetError("the other end closed the connection, or was too slow") from error
        except ssl.SSLError as error:
            raise WrongPeer(
                f"one end does not prove the key that the other expects: {self.peer} with the key "
                f"{self.peer_key.hex()}, and here {self.own} with {self.key.public_key.hex()} "
                f"({getattr(error, 'verify_message', error.reason)}); compare keys, roles and clocks of both"
            ) from None

    def _context(self, *, is_server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        drawn = new_signing_key(self.coins).require_usable()
        own = _name(self.own, self.key.public_key)
        shown = _certificate(own, drawn.public_key(), self.key.require_usable(), is_anchor=False)
        # An anchor is trusted by its name and key; its signature is not checked.
        expected = Ed25519PublicKey.from_public_bytes(self.peer_key)
        anchor = _certificate(_name(self.peer, self.peer_key), expected, drawn, is_anchor=True)
        context.load_verify_locations(cadata=anchor.public_bytes(Encoding.DER))
        secret = drawn.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with _in_memory(shown.public_bytes(Encoding.PEM) + secret) as path:
            context.load_cert_chain(path)
        if is_server:
            # A peer that reconnects must prove its key again.
            context.num_tickets = 0
        return context


def _name(party: Party, key: bytes) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, str(party)),
            x509.NameAttribute(NameOID.COMMON_NAME, key.hex()),
        ]
    )


def _certificate(
    issuer: x509.Name, key: Ed25519PublicKey, signer: Ed25519PrivateKey, *, is_anchor: bool
) -> x509.Certificate:
    own, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a connection")]), datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(issuer if is_anchor else own)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # The clocks of two machines differ.
        .not_valid_before(now - _LIFE / 2)
        .not_valid_after(now + _LIFE / 2)
        .add_extension(x509.BasicConstraints(ca=is_anchor, path_length=0 if is_anchor else None), critical=True)
        .sign(signer, None)
    )


@contextmanager
def _in_memory(data: bytes) -> Generator[str]:
    """Yield a path for a function that only takes paths; the data never touch a disk."""
    if not hasattr(os, "memfd_create"):
        raise InvalidParameters("tcp: and vsock: need Linux; use unix: on this system")
    file = os.memfd_create("secagg", os.MFD_CLOEXEC)
    try:
        os.write(file, data)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)


# --- One end that asks ------------------------------------------------------------------------------------------------

_LOG: Final = logging.getLogger(__name__)
_REFUSAL_BYTES: Final = 1 << 16
PROGRAM: Final = f"secagg {__version__}, form {FORM}".encode()
"""First frame of a connection. A helper serves only its own version, so messages to it need no form."""
_MOST_PROGRAM: Final = 64
_PAUSE: Final = 0.01
Ask = Callable[[bytes], bytes]
"""Sends a request and returns its answer; raises the helper's refusal, or ``ConnectionError`` if the helper is lost."""
AskAll = Callable[[Mapping[int, bytes]], Iterable[tuple[int, bytes]]]
"""The same for several numbered helpers; those that are lost, late or refuse are missing from the answers."""


class Helper(Protocol):
    """Object that a ``Service`` serves: one method, without sockets."""

    def answer(self, request: bytes) -> bytes:
        """Return the answer, or an encoded refusal; never raise because of what the server sent."""
        ...


class HelperLost(ConnectionError):
    """A helper cannot be reached, or has forgotten earlier requests; this ends the session.

    It is not a ``SecAggError``, because nobody sent anything wrong. Start another session once the helper is back.
    """

    def __init__(self, sentence: str, cause: str = "") -> None:
        """Take an error sentence; the cause is for callers that can add to it."""
        super().__init__(sentence)
        self.cause = cause or sentence


class SocketAsk:
    """An ``Ask`` for a helper at an address; call it with a request.

    Nothing is sent twice. If an answer is missing or malformed, nobody knows whether the request was carried out. So
    the connection is closed, and the helper ends what depended on it.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        limit: int = 1 << 32,
        timeout: float | None = 600.0,
        ends: Ends | None = None,
        greets: bool = True,
    ) -> None:
        """Prepare; the first request connects.

        Args:
            address: a path, ``unix:PATH``, ``tcp:HOST:PORT`` or ``vsock:CONTEXT:PORT``.
            limit: maximum length of an answer in bytes; may be changed between two requests.
            timeout: maximum seconds for the helper to connect or to continue an answer; None for no limit.
            ends: identities of both ends; unused at a path, optional over vsock if a peer proves itself otherwise.
            greets: whether the first frame names this version, as a ``Service`` expects.
        """
        self._greets = greets
        self._address, self.limit, self._timeout = Address.of(address), limit, timeout
        self._ends = None if self._address.is_here else ends
        if self._address.kind == "tcp" and ends is None:
            raise InvalidParameters(
                f"{self._address} needs authentication; give this end a key, or use an address on this machine"
            )
        self._connection: socket.socket | None = None
        self._is_lost = False
        self._lock = Lock()
        self._bytes = 0

    @property
    def bytes_between(self) -> int:
        """Bytes sent and received; for ``Measured``."""
        return self._bytes

    def __call__(self, request: bytes) -> bytes:
        """Send a request and return its answer.

        Raises:
            HelperLost: the helper cannot be reached, went away, was too slow, or sent a malformed message. It may have
                carried out the request, and this connection cannot be used again.
            SecAggError: the helper's refusal.
        """
        with self._lock:
            if self._is_lost:
                raise HelperLost(
                    f"the connection to {self._address} is closed; start another session", "its connection was closed"
                )
            try:
                answer = self._exchanged(request)
                self._bytes += len(request) + len(answer)
                if message_kind(answer) is not MessageKind.REFUSAL:
                    return answer
                refusal = decode_refusal(answer)
            except (OSError, PeerError) as error:
                self.close()
                sentence = f"the helper at {self._address} is lost ({error}); start another session"
                raise HelperLost(sentence, str(error)) from error
            except BaseException:
                # The answer may still arrive, and would be taken for the answer to the next request.
                self.close()
                raise
        raise refusal

    def connect(self) -> socket.socket:
        """Return the connection; connect and authenticate first if needed.

        Raises:
            OSError: nothing listens at the address, the peer went away, or someone else is there.
        """
        if self._connection is None:
            connection = self._reached()
            self._connection = connection if self._ends is None else self._ends.proved(connection, is_server=False)
            if self._greets:
                send_frame(self._connection, PROGRAM)
        return self._connection

    def _reached(self) -> socket.socket:
        """Connect, and wait for a place if many others connect at once, which a socket with a timeout does not do."""
        deadline = time.monotonic() + (self._timeout or 0)
        while True:
            try:
                return self._address.connect(self._timeout)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)

    def _exchanged(self, request: bytes) -> bytes:
        connection = self.connect()
        try:
            send_frame(connection, request)
        except (BrokenPipeError, ConnectionResetError):
            # A helper that stopped reading may have said why before.
            with suppress(OSError, PeerError):
                if message_kind(said := receive_frame(connection, _REFUSAL_BYTES)) is MessageKind.REFUSAL:
                    return said
            raise
        return receive_frame(connection, self.limit)

    def close(self) -> None:
        self._is_lost = True
        if self._connection is not None:
            # The helper sees the end even if a fork of this process has the connection open.
            hang_up(self._connection)
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SocketAsk at {self._address}{', lost' if self._is_lost else ''}>"


# --- One end that serves ----------------------------------------------------------------------------------------------

DEFAULT_PATIENCE: Final = 60.0
"""Maximum seconds for a peer to continue a frame that it has begun."""
DEFAULT_LIMIT: Final = 1 << 30
PEERS_AT_ONCE: Final = 64
"""Maximum number of connections; beyond it, the oldest unauthenticated ones are closed."""


class Service:
    """Answers only the newest peer that connects."""

    def __init__(
        self,
        helper: Helper,
        *,
        limit: int | Callable[[], int] = DEFAULT_LIMIT,
        patience: float = DEFAULT_PATIENCE,
        ended: Callable[[], None] = lambda: None,
        ends: Ends | None = None,
    ) -> None:
        """Serve a helper.

        Args:
            limit: maximum length of a request in bytes, or a function that returns it before each request.
            patience: maximum seconds between two pieces of a frame, or to accept an answer.
            ended: called when a peer has gone, so that the helper ends what depended on its connection.
            ends: identities of this end and its only peer; not needed if a Unix socket's mode restricts access.
        """
        self._helper, self._patience, self._ended = helper, patience, ended
        self._limit = limit if callable(limit) else lambda: limit
        self._ends, self._strangers = ends, dict[socket.socket, None]()
        self._places = BoundedSemaphore(PEERS_AT_ONCE)
        self._turn, self._newest_lock = Lock(), Lock()
        self._newest: socket.socket | None = None

    def serve(self, address: str | Path, *, ready: Callable[[], None] = lambda: None) -> None:
        """Listen until the process is terminated; then remove the socket.

        Replaces the socket of a killed process at a path.

        Args:
            ready: called once, when a peer can connect.
        Raises:
            InvalidParameters: cannot listen there, the address is in use, or access to it is not restricted.
        """
        at = Address.of(address)
        if at.is_here:
            self._ends = None
        elif self._ends is None:
            raise InvalidParameters(f"anybody may connect to {at}; name the key of the peer to serve")
        with at.listening() as listener:
            ready()
            try:
                self.accept(listener)
            finally:
                self._take_place_of(None)
                # Finish a request in progress; then the caller may close the helper.
                with self._turn:
                    self._ended()

    def accept(self, listener: socket.socket) -> None:
        """Accept connections one after another from a listening socket, until it is closed."""
        while True:
            if not self._places.acquire(blocking=False):
                for oldest in list(self._strangers)[:1]:
                    hang_up(oldest)
                self._places.acquire()
            try:
                connection = listener.accept()[0]
            except OSError:
                self._places.release()
                if listener.fileno() < 0:
                    return
                # A stranger that disconnects is no reason to stop.
                time.sleep(_PAUSE)
                continue
            if self._ends is None:
                self._take_place_of(connection)
            # A daemon thread ends with the process, whatever it waits for.
            Thread(target=self._answer_one, args=(connection,), daemon=True).start()

    def _take_place_of(self, connection: socket.socket | None) -> None:
        """Serve the newest peer, and disconnect the previous one."""
        with self._newest_lock:
            before, self._newest = self._newest, connection
        if before is not None:
            hang_up(before)

    def _answer_one(self, connection: socket.socket) -> None:
        """Answer requests until the peer goes away, is too slow or sends no frame, or another peer connects."""
        try:
            peer = connection if self._ends is None else self._proved(connection, self._ends)
            if peer is None:
                return
            # One peer at a time, in order: the previous one has been disconnected.
            with peer, self._turn:
                try:
                    if peer is self._newest:
                        self._serve(peer)
                finally:
                    self._ended()
        finally:
            self._places.release()

    def _proved(self, connection: socket.socket, ends: Ends) -> socket.socket | None:
        """Return the authenticated connection, which becomes the newest; None for anyone else."""
        try:
            peer = ends.proved(connection, is_server=True, strangers=self._strangers)
        except OSError as error:
            _LOG.warning("refused a connection: %s", str(error))
            return None
        self._take_place_of(peer)
        return peer

    def _serve(self, connection: socket.socket) -> None:
        hello: bytes | None = None
        with suppress(OSError, MemoryError):
            while True:
                # Between two requests a peer may stay silent; nothing waits for it.
                connection.settimeout(None)
                if not (begun := connection.recv(1)):
                    return
                connection.settimeout(self._patience)
                try:
                    request = receive_frame(connection, self._limit(), begun)
                except MalformedMessage as error:
                    send_frame(connection, encode_refusal(error))
                    return
                if hello is None:
                    hello = request
                else:
                    send_frame(connection, self._answered(hello, request))

    def _answered(self, hello: bytes, request: bytes) -> bytes:
        if hello != PROGRAM:
            there = hello.decode(errors="replace") if len(hello) <= _MOST_PROGRAM else "something else"
            sentence = f"the server runs {there!r} but this helper {PROGRAM.decode()!r}; install one version on both"
            return encode_refusal(MalformedMessage(sentence, reason=Reason.WRONG_VERSION))
        try:
            return self._helper.answer(request)
        except Exception as error:  # noqa: BLE001 -- nothing that a peer sends ends the process
            self._ended()
            return encode_refusal(InternalError(f"the helper met a {type(error).__name__} and ended its session"))

    def __repr__(self) -> str:
        return f"<Service of {self._helper!r}>"


def _log(number: int, error: Exception) -> None:
    _LOG.warning("helper %d does not answer: %s", number, str(error))


class NumberedHelpers:
    """Asks helpers at addresses; each request uses a new connection, so a killed helper may come back."""

    def __init__(
        self,
        addresses: Mapping[int, str | Path],
        patience: float,
        lost: Callable[[int, Exception], None] = _log,
        ends: Mapping[int, Ends] | None = None,
    ) -> None:
        """Prepare; connects on the first request.

        Args:
            patience: maximum seconds that a helper may be silent.
            lost: called, from any thread, for each helper that does not answer, with the reason.
            ends: identities for each address that is not on this machine.
        """
        self._asks = {
            number: partial(SocketAsk, address, timeout=patience, ends=(ends or {}).get(number))
            for number, address in addresses.items()
        }
        for ask in self._asks.values():
            # Refuse invalid addresses before any helper is asked.
            ask()
        self._lost = lost

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Return the answers that arrived; for a helper that refuses, its refusal."""
        if not requests:
            return
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = threads.map(self._asked, requests.items())
            yield from (answer for answer in answers if answer is not None)

    def _asked(self, request: tuple[int, bytes]) -> tuple[int, bytes] | None:
        number, message = request
        try:
            with self._asks[number]() as ask:
                return number, ask(message)
        except ConnectionError as error:
            self._lost(number, error)
            return None
        except SecAggError as error:
            self._lost(number, error)
            return number, encode_refusal(error)
