"""A helper over real sockets: refusals, slow and silent peers, partial frames, the newest peer, and stale sockets."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest

from secagg.errors import InternalError, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.session import sockets
from secagg.session.frames import decode_refusal, encode_refusal, receive_frame, send_frame
from secagg.session.sockets import HelperLost, Service, SocketAsk
from secagg.wire import MessageKind, Writer

REQUEST = Writer(MessageKind.RELEASE_BUFFER).integer(7, 4).finish()
LONG = 60.0
"""Timeout in seconds that is never reached, even on a slow machine."""
LIMIT = 1 << 12


class Echo:
    """Echoes requests, refuses one, fails at one, and hangs at one."""

    def __init__(self) -> None:
        self.asked = list[bytes]()
        self.go_on = Event()

    def answer(self, request: bytes) -> bytes:
        self.asked.append(request)
        if b"refuse" in request:
            return encode_refusal(Misuse("not now"))
        if b"fail" in request:
            raise ZeroDivisionError
        if b"hang" in request:
            self.go_on.wait(10)
        return request


class Served:
    """A service in a thread of this process."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.echo, self.ends = path, Echo(), list[int]()
        listening = Event()
        service = Service(self.echo, limit=LIMIT, ended=lambda: self.ends.append(1), **options)
        Thread(target=service.serve, args=(path,), kwargs={"ready": listening.set}, daemon=True).start()
        assert listening.wait(LONG)

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(LONG)
        connection.connect(str(self.path))
        return connection

    def ask(self, **options: float) -> SocketAsk:
        return SocketAsk(self.path, **options)  # type: ignore[arg-type]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "s", patience=0.3)
    yield served
    served.echo.go_on.set()


def request(word: bytes = b"") -> bytes:
    return Writer(MessageKind.RELEASE_BUFFER).variable(word, 100).finish()


def test_requests_are_answered_and_bytes_are_counted(served: Served) -> None:
    with served.ask() as ask:
        assert [ask(request(word)) for word in (b"a", b"bb")] == [request(b"a"), request(b"bb")]
        assert ask.bytes_between == 2 * (len(request(b"a")) + len(request(b"bb")))


def test_a_refusal_is_raised_unchanged_and_the_connection_stays_open(served: Served) -> None:
    with served.ask() as ask:
        with pytest.raises(Misuse, match="not now"):
            ask(request(b"refuse"))
        assert ask(REQUEST) == REQUEST


def test_a_failing_helper_ends_its_session_but_not_the_service(served: Served) -> None:
    with served.ask() as ask:
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            ask(request(b"fail"))
        assert served.ends == [1]
        assert ask(REQUEST) == REQUEST


def test_the_newest_peer_is_served_while_another_is_silent(served: Served) -> None:
    with served.raw() as silent:
        with served.ask(timeout=LONG) as ask:
            assert ask(REQUEST) == REQUEST
        assert silent.recv(1) == b"", "it was cut off"


def test_a_replaced_peer_reports_that_it_was_lost(served: Served) -> None:
    with served.ask() as first, served.ask() as second:
        assert first(REQUEST) == REQUEST
        assert second(REQUEST) == REQUEST
        with pytest.raises(HelperLost, match="start another session"):
            first(REQUEST)
        with pytest.raises(HelperLost, match="is closed"):
            first(REQUEST)
        assert second(REQUEST) == REQUEST
    assert served.ends, "the state of the first connection is gone"


@pytest.mark.parametrize("other", [b"secagg 9.9.9, form 3", b"secagg 0.3.0, form 2", b"", bytes(100), request()])
def test_a_server_of_another_version_is_refused_by_name_and_sends_no_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, other: bytes
) -> None:
    # The version that the requesting end sends; the helper compares it with its own.
    sent = send_frame

    def altered(to: Any, frame: bytes) -> None:
        sent(to, other if frame == sockets.PROGRAM else frame)

    monkeypatch.setattr("secagg.session.sockets.send_frame", altered)
    named = other.decode() if other.startswith(b"secagg") else ""
    with served.ask() as ask:
        for _ in range(2):
            with pytest.raises(MalformedMessage, match=f"the server runs .*{named}.* this helper 'secagg") as refused:
                ask(REQUEST)
            assert refused.value.reason is Reason.WRONG_VERSION
    assert not served.echo.asked
    monkeypatch.undo()
    with served.ask() as ask:
        assert ask(REQUEST) == REQUEST


@pytest.mark.parametrize("part", [1, 7, 8, 12])
def test_a_peer_that_sends_a_partial_frame_is_disconnected(served: Served, part: int) -> None:
    with served.raw() as slow:
        slow.sendall((len(REQUEST).to_bytes(8, "big") + REQUEST)[:part])
        began = monotonic()
        assert slow.recv(1) == b""
        assert monotonic() - began < LONG
    with served.ask() as ask:
        assert ask(REQUEST) == REQUEST


def test_a_peer_that_is_silent_between_requests_stays_connected(served: Served) -> None:
    with served.ask() as ask:
        assert ask(REQUEST) == REQUEST
        sleep(0.5)
        assert ask(REQUEST) == REQUEST


def test_a_frame_over_the_limit_is_refused_before_it_is_read(served: Served) -> None:
    with served.raw() as large:
        large.sendall((LIMIT + 1).to_bytes(8, "big"))
        assert isinstance(decode_refusal(receive_frame(large, LIMIT)), MalformedMessage)
        assert large.recv(1) == b""
    assert not served.echo.asked


def test_a_long_frame_over_the_limit_is_refused_without_losing_the_peer(served: Served) -> None:
    with served.ask() as ask, pytest.raises(MalformedMessage, match=f"{1 << 22} bytes, but the limit is {LIMIT}"):
        ask(bytes(1 << 22))


def test_a_peer_waits_for_a_free_place(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            first.connect(str(tmp_path / "s"))
            ask = SocketAsk(tmp_path / "s", timeout=LONG)
            connecting = Thread(target=ask.connect, daemon=True)
            connecting.start()
            sleep(0.1)
            assert connecting.is_alive()
            listener.accept()[0].close()
            connecting.join(LONG)
            assert not connecting.is_alive()
            listener.accept()[0].close()
            ask.close()


def test_a_helper_that_is_too_slow_is_lost(served: Served) -> None:
    with served.ask(timeout=0.2) as ask, pytest.raises(HelperLost, match="timed out"):
        ask(request(b"hang"))
    served.echo.go_on.set()
    with served.ask() as ask:
        assert ask(REQUEST) == REQUEST


@pytest.mark.parametrize("answer", [b"", b"no message", b"SAGG\x01\xff\xff"])
def test_a_malformed_answer_loses_the_helper(tmp_path: Path, answer: bytes) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def lie() -> None:
        with listener.accept()[0] as connection:
            receive_frame(connection, LIMIT)
            with suppress(BrokenPipeError):  # the length shows that no valid answer follows
                send_frame(connection, answer)

    liar = Thread(target=lie)
    liar.start()
    with SocketAsk(tmp_path / "s", timeout=LONG) as ask, pytest.raises(HelperLost):
        ask(REQUEST)
    liar.join()
    listener.close()


def test_a_helper_without_a_listening_socket_is_lost(tmp_path: Path) -> None:
    with pytest.raises(HelperLost, match="No such file"):
        SocketAsk(tmp_path / "nowhere")(REQUEST)


def test_a_stale_socket_is_replaced_but_a_serving_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    program = (
        "import sys\nfrom pathlib import Path\nfrom secagg.session.sockets import Service\n"
        "class Echo:\n    def answer(self, request): return request\n"
        "Service(Echo()).serve(Path(sys.argv[1]), ready=lambda: print('ready', flush=True))\n"
    )
    child = subprocess.Popen(  # noqa: S603 -- fixed command
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, env=os.environ
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"ready\n"
        with pytest.raises(InvalidParameters, match="cannot create a socket"):
            Service(Echo()).serve(path)
        with SocketAsk(path, timeout=LONG) as ask:
            assert ask(REQUEST) == REQUEST
            child.send_signal(signal.SIGKILL)
            child.wait()
            with pytest.raises(HelperLost):
                ask(REQUEST)
    assert path.is_socket(), "a killed process leaves its socket"
    served = Served(path)
    with served.ask() as again:
        assert again(REQUEST) == REQUEST
    assert path.stat().st_mode & 0o777 == 0o600
