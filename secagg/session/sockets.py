"""Addresses of helpers, and the two ends of a connection: one that asks, and one that serves."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread, Timer
from typing import Final, Protocol, Self

from secagg.errors import InternalError, InvalidParameters, MalformedMessage, PeerError, SecAggError
from secagg.wire import MessageKind, message_kind

from .frames import decode_refusal, encode_refusal, listening, receive_frame, send_frame

# --- One end that asks ------------------------------------------------------------------------------------------------

_LOG: Final = logging.getLogger(__name__)
_REFUSAL_BYTES: Final = 1 << 16
_PAUSE: Final = 0.01
Ask = Callable[[bytes], bytes]
"""Sends a request and returns its answer; raises the helper's refusal, or ``ConnectionError`` if it is lost."""
AskAll = Callable[[Mapping[int, bytes]], Iterable[tuple[int, bytes]]]
"""The same for numbered helpers at once; those that are lost, late or refuse are missing from the answers."""
_ADDRESS_PARTS: Final = 2
_ADDRESS_LIMIT: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Address:
    """Where a helper listens."""

    family: int
    place: str | tuple[int, int]

    @classmethod
    def of(cls, text: str | Path) -> Address:
        """Read ``unix:PATH``, or ``vsock:CONTEXT:PORT`` of a machine within this one; a path is one of a Unix socket.

        Raises:
            InvalidParameters: it is none.
        """
        kind, _, rest = str(text).partition(":")
        if isinstance(text, Path) or kind not in ("unix", "vsock"):
            return cls(socket.AF_UNIX, str(text))
        if kind == "unix" and rest:
            return cls(socket.AF_UNIX, rest)
        numbers = rest.split(":")
        if len(numbers) == _ADDRESS_PARTS and all(each.isdecimal() and int(each) < _ADDRESS_LIMIT for each in numbers):
            return cls(getattr(socket, "AF_VSOCK", -1), (int(numbers[0]), int(numbers[1])))
        raise InvalidParameters(f"an address is unix:PATH or vsock:CONTEXT:PORT; got {str(text)!r}")

    def connect(self, timeout: float | None) -> socket.socket:
        """Return a connection.

        Raises:
            OSError: nothing listens there, or this system has no such sockets.
        """
        if self.family < 0:
            raise OSError("this system has no vsock")
        connection = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(self.place)
        except BaseException:
            connection.close()
            raise
        return connection

    def __str__(self) -> str:
        return self.place if isinstance(self.place, str) else f"vsock:{self.place[0]}:{self.place[1]}"


class Helper(Protocol):
    """Object that ``service`` serves: one method, without sockets."""

    def answer(self, request: bytes) -> bytes:
        """Return the answer, or an encoded refusal; never raise for what the server sent."""
        ...


class HelperLost(ConnectionError):
    """A helper cannot be reached, or has forgotten what it was asked before; the session ends with it.

    It is no ``SecAggError``: nobody sent anything wrong. Another session can be begun once the helper is there again.
    """

    def __init__(self, sentence: str, cause: str = "") -> None:
        """Say it in a sentence; the cause alone is for callers who say more than this one can."""
        super().__init__(sentence)
        self.cause = cause or sentence


class SocketAsk:
    """An ``Ask`` of a helper at an address; call it with a request.

    Nothing is sent twice. Once an answer is missing or makes no sense, nobody knows whether the request was carried
    out, so the connection is closed, by which the helper ends what lived on it.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        limit: int = 1 << 32,
        timeout: float | None = 600.0,
        greet: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """Connect to nothing yet; the first request does.

        Args:
            address: a path, ``unix:PATH`` or ``vsock:CONTEXT:PORT``.
            limit: the largest length of an answer, in bytes; it may be changed between two requests.
            timeout: how many seconds the helper may take to connect, or to continue an answer; None for any.
            greet: the greeting between both ends before the first request.
        """
        self._address, self.limit, self._timeout, self._greet = Address.of(address), limit, timeout, greet
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
            HelperLost: the helper cannot be reached, went away, was too slow, or sent something else than a message.
                The request was carried out or not, and this connection asks nothing more.
            SecAggError: what the helper refused with.
        """
        with self._lock:
            if self._is_lost:
                raise HelperLost(
                    f"the connection to {self._address} was closed before; begin another session",
                    "its connection was closed",
                )
            try:
                answer = self._exchanged(request)
                self._bytes += len(request) + len(answer)
                if message_kind(answer) is not MessageKind.REFUSAL:
                    return answer
                refusal = decode_refusal(answer)
            except (OSError, PeerError) as error:
                self.close()
                sentence = f"the helper at {self._address} is lost ({error}); begin another session"
                raise HelperLost(sentence, str(error)) from error
            except BaseException:
                # The answer is still to come, and would be taken for that of the next request.
                self.close()
                raise
        raise refusal

    def connect(self) -> socket.socket:
        """Return the connection; connect and greet first, if that was not done yet.

        Raises:
            OSError: nothing listens at the address, or it went away.
            SecAggError: what the greeting found.
        """
        if self._connection is None:
            connection = self._reached()
            try:
                if self._greet is not None:
                    self._greet(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _reached(self) -> socket.socket:
        """Connect, and wait for a place where many others connect at once: a socket with a timeout does not."""
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
            # A helper that reads no further may have said why before it went.
            with suppress(OSError, PeerError):
                if message_kind(said := receive_frame(connection, _REFUSAL_BYTES)) is MessageKind.REFUSAL:
                    return said
            raise
        return receive_frame(connection, self.limit)

    def close(self) -> None:
        self._is_lost = True
        if self._connection is not None:
            # The helper sees the end even where a fork of this process holds the connection too.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SocketAsk at {self._address}{', lost' if self._is_lost else ''}>"


# --- One end that serves ----------------------------------------------------------------------------------------------

DEFAULT_PATIENCE: Final = 60.0
"""Seconds that a peer may take to continue a frame that it has begun."""
DEFAULT_LIMIT: Final = 1 << 30
GREETING_PATIENCE: Final = 10.0
"""Seconds that a whole greeting may take, so that silent strangers keep nobody out for long."""
PEERS_AT_ONCE: Final = 64
Greet = Callable[[socket.socket], None]
"""Finds out over a new connection who is there; raises ``PeerError`` for somebody who is not served."""


class Service:
    """Answers the newest peer that connects, and no other."""

    def __init__(  # noqa: PLR0913 -- all but the first have defaults
        self,
        helper: Helper,
        *,
        limit: int | Callable[[], int] = DEFAULT_LIMIT,
        patience: float = DEFAULT_PATIENCE,
        ended: Callable[[], None] = lambda: None,
        greet: Greet | None = None,
        greeting_patience: float = GREETING_PATIENCE,
    ) -> None:
        """Serve a helper.

        Args:
            limit: how many bytes a request has at most, or what tells it before each.
            patience: how long a peer may take between two pieces of one frame, or to take an answer.
            ended: called when a peer has gone, so that the helper ends what lives no longer than its connection.
            greet: tells a peer from a stranger; without it, the mode of the socket alone does.
        """
        self._helper, self._patience, self._ended = helper, patience, ended
        self._limit = limit if callable(limit) else lambda: limit
        self._greet, self._greeting_patience = greet, greeting_patience
        self._places = BoundedSemaphore(PEERS_AT_ONCE)
        self._turn, self._newest_lock = Lock(), Lock()
        self._newest: socket.socket | None = None

    def serve(self, path: Path, *, ready: Callable[[], None] = lambda: None) -> None:
        """Listen until the process is told to end; then remove the socket.

        A socket that a killed process has left at the path is replaced.

        Args:
            ready: called once, when a peer can connect.
        Raises:
            InvalidParameters: no socket can be made at the path, or somebody listens there.
        """
        with listening(path, replaces_dead=True) as listener:
            ready()
            try:
                self.accept(listener)
            finally:
                self._take_place_of(None)
                # A request in progress is answered first; then the caller may close the helper.
                with self._turn:
                    self._ended()

    def accept(self, listener: socket.socket) -> None:
        """Take one connection after the other from a socket that listens, until it is closed."""
        while True:
            self._places.acquire()
            try:
                connection = listener.accept()[0]
            except OSError:
                self._places.release()
                return
            if self._greet is None:
                self._take_place_of(connection)
            # A daemon: the end of the process is the end of whatever it waits for.
            Thread(target=self._answer_one, args=(connection,), daemon=True).start()

    def _take_place_of(self, connection: socket.socket | None) -> None:
        """Let the newest peer be served, and cut off the one before."""
        with self._newest_lock:
            before, self._newest = self._newest, connection
        if before is not None:
            _hang_up(before)

    def _answer_one(self, connection: socket.socket) -> None:
        """Answer until the peer goes away, is too slow or sends no frame, or until another one has connected."""
        try:
            with connection:
                if self._greet is not None:
                    if not self._has_greeted(connection, self._greet):
                        return
                    self._take_place_of(connection)
                # One peer at a time, in the order in which they came: the one before has been cut off.
                with self._turn:
                    try:
                        if connection is self._newest:
                            self._serve(connection)
                    finally:
                        self._ended()
        finally:
            self._places.release()

    def _has_greeted(self, connection: socket.socket, greet: Greet) -> bool:
        timer = Timer(self._greeting_patience, _hang_up, [connection])
        timer.start()
        with suppress(OSError, MemoryError):
            try:
                greet(connection)
            except PeerError as error:
                send_frame(connection, encode_refusal(error))
            else:
                return True
            finally:
                timer.cancel()
        return False

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, MemoryError):
            while True:
                # Between two requests a peer may be silent as long as it likes; nobody waits for it.
                connection.settimeout(None)
                if not connection.recv(1, socket.MSG_PEEK):
                    return
                connection.settimeout(self._patience)
                try:
                    request = receive_frame(connection, self._limit())
                except MalformedMessage as error:
                    send_frame(connection, encode_refusal(error))
                    return
                send_frame(connection, self._answered(request))

    def _answered(self, request: bytes) -> bytes:
        try:
            return self._helper.answer(request)
        except Exception as error:  # noqa: BLE001 -- nothing that a peer sends ends the process
            self._ended()
            return encode_refusal(InternalError(f"the helper met a {type(error).__name__}, and has ended its session"))

    def __repr__(self) -> str:
        return f"<Service of {self._helper!r}>"


def _hang_up(connection: socket.socket) -> None:
    """End a connection that another thread reads from."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _log(number: int, error: Exception) -> None:
    _LOG.warning("helper %d does not answer: %s", number, str(error))


class NumberedHelpers:
    """Asks helpers at their sockets; each request is a connection of its own, so a killed helper may come back."""

    def __init__(
        self, paths: Mapping[int, Path], patience: float, lost: Callable[[int, Exception], None] = _log
    ) -> None:
        """Connect to nobody yet.

        Args:
            patience: the seconds that a helper may be silent.
            lost: told, from any thread, who does not answer and why.
        """
        self._paths, self._patience, self._lost = dict(paths), patience, lost

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Return the answers that came; of a helper that refuses, the refusal."""
        if not requests:
            return
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = threads.map(self._asked, requests.items())
            yield from (answer for answer in answers if answer is not None)

    def _asked(self, request: tuple[int, bytes]) -> tuple[int, bytes] | None:
        number, message = request
        try:
            with SocketAsk(self._paths[number], timeout=self._patience) as ask:
                return number, ask(message)
        except ConnectionError as error:
            self._lost(number, error)
            return None
        except SecAggError as error:
            self._lost(number, error)
            return number, encode_refusal(error)
