"""Remote helpers: each end knows the other's key and role, and accepts no other peer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread, current_thread, main_thread
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import HolderId, Party, ServerId
from secagg.session import sockets
from secagg.session.certificates import SigningKey
from secagg.session.frames import receive_frame, send_frame
from secagg.session.signing_keys import new_signing_key
from secagg.session.sockets import (
    PEERS_AT_ONCE,
    PROGRAM,
    Address,
    Ends,
    HelperLost,
    NumberedHelpers,
    Service,
    SocketAsk,
    WrongPeer,
    hang_up,
)
from secagg.wire import MessageKind, Writer

COINS = SystemCoins()
ONE, TWO, SERVER, STRANGER = (new_signing_key(COINS) for _ in range(4))
HOLDER = HolderId(1)
REQUEST = Writer(MessageKind.RELEASE_BUFFER).integer(7, 4).finish() + bytes(3_000_000)
LONG = 60.0


def ends(own: Party, key: SigningKey, peer: Party, peer_key: SigningKey) -> Ends:
    return Ends(own=own, key=key, peer=peer, peer_key=peer_key.public_key, coins=COINS)


ASKING = ends(ServerId(0), SERVER, HOLDER, ONE)
SERVING = ends(HOLDER, ONE, ServerId(0), SERVER)


class Echo:
    """Echoes each request and records it."""

    def __init__(self) -> None:
        self.asked = list[bytes]()

    def answer(self, request: bytes) -> bytes:
        self.asked.append(request)
        return request


class Served:
    """A helper that listens on a port."""

    def __init__(self, own: Ends = SERVING) -> None:
        self.echo, listens = Echo(), Event()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self.address = f"tcp:127.0.0.1:{self.port}"
        service = Service(self.echo, ends=own)
        Thread(target=service.serve, args=(self.address,), kwargs={"ready": listens.set}, daemon=True).start()
        assert listens.wait(LONG)

    def answers(self, asking: Ends = ASKING, address: str = "") -> bool:
        with SocketAsk(address or self.address, ends=asking, timeout=LONG) as ask:
            return ask(REQUEST) == REQUEST


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


@pytest.fixture(autouse=True)
def _still_serves_its_peer(served: Served) -> Iterator[None]:
    yield
    served.echo.asked.clear()
    assert served.answers()


# --- Keys and roles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(ends(ServerId(0), STRANGER, HOLDER, ONE), id="another key"),
        pytest.param(ends(HolderId(2), TWO, HOLDER, ONE), id="another holder of the record"),
        pytest.param(ends(ServerId(1), SERVER, HOLDER, ONE), id="the key in another role"),
        pytest.param(ends(HOLDER, ONE, HOLDER, ONE), id="its own key"),
    ],
)
def test_a_helper_serves_one_key_in_one_role(served: Served, asking: Ends) -> None:
    served.echo.asked.clear()
    with pytest.raises(HelperLost, match="one end does not prove the key") as lost:
        served.answers(asking)
    assert isinstance(lost.value.__cause__, WrongPeer)
    assert not served.echo.asked


@pytest.mark.parametrize(
    "serving",
    [
        pytest.param(ends(HOLDER, STRANGER, ServerId(0), SERVER), id="another key"),
        pytest.param(ends(HolderId(2), TWO, ServerId(0), SERVER), id="another holder of the record"),
        pytest.param(ends(HolderId(2), ONE, ServerId(0), SERVER), id="the key in another role"),
    ],
)
def test_a_server_sends_requests_to_one_key_in_one_role(serving: Ends) -> None:
    wrong = Served(serving)
    lost = dict[int, Exception]()
    helpers = NumberedHelpers({1: wrong.address}, LONG, lost.__setitem__, {1: ASKING})
    assert dict(helpers.ask_all({1: REQUEST})) == {}
    assert isinstance(lost[1].__cause__, WrongPeer)
    assert not wrong.echo.asked


def test_a_peer_that_claims_a_key_without_having_it_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger sends the server's key, but signs with its own."""
    named = sockets._name  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def lying(party: Party, key: bytes) -> Any:
        return named(party, SERVER.public_key if key == STRANGER.public_key else key)

    monkeypatch.setattr(sockets, "_name", lying)
    with pytest.raises(HelperLost):
        served.answers(ends(ServerId(0), STRANGER, HOLDER, ONE))


@pytest.mark.parametrize("hours", [-13, 13])
def test_a_statement_signed_by_a_key_expires_within_a_day(
    served: Served, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    """An attacker has stolen a process's session state, but not its key."""
    stolen = list[datetime]()

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            # This end signs its statement first; the other end's statement, and the pins on both sides, are current.
            if current_thread() is not main_thread() or stolen:
                return datetime.now(tz)
            stolen.append(datetime.now(tz) + timedelta(hours=hours))
            return stolen[0]

    monkeypatch.setattr(sockets, "datetime", Then)
    with pytest.raises(HelperLost, match="ALERT"):
        served.answers()


def test_a_key_for_which_anybody_can_sign_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="small order"):
        Ends(own=ServerId(0), key=SERVER, peer=HOLDER, peer_key=bytes(32), coins=COINS)


# --- Attacker in the middle -----------------------------------------------------------------------------------------


class Between:
    """An attacker between both ends, who reads everything and may alter what the requesting end sends."""

    def __init__(self, port: int, altered: Callable[[int, bytes], bytes] = lambda _, piece: piece) -> None:
        self.heard, self._port, self._altered = list[bytes](), port, altered
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        to = ("127.0.0.1", self._port)
        with self._listener, self._listener.accept()[0] as near, socket.create_connection(to) as far:
            back = Thread(target=self._back, args=(far, near), daemon=True)
            back.start()
            with suppress(OSError):
                while piece := near.recv(1 << 16):
                    self.heard.append(self._altered(len(self.heard), piece))
                    far.sendall(self.heard[-1])
            hang_up(far)
            back.join(LONG)

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while piece := far.recv(1 << 16):
                near.sendall(piece)
        hang_up(near)


def test_an_attacker_in_the_middle_cannot_read_or_replay(served: Served) -> None:
    between = Between(served.port)
    assert served.answers(address=between.address)
    said = b"".join(between.heard)
    assert len(said) > len(REQUEST)
    assert REQUEST[:11] not in said
    served.echo.asked.clear()
    with socket.create_connection(("127.0.0.1", served.port)) as again:
        again.settimeout(LONG)
        with suppress(ConnectionError):
            again.sendall(said)
        with suppress(ConnectionError):
            while again.recv(1 << 16):
                pass
    assert not served.echo.asked


def test_an_attacker_in_the_middle_cannot_alter_messages(served: Served) -> None:
    served.echo.asked.clear()
    between = Between(served.port, lambda at, piece: piece[:-1] + bytes([piece[-1] ^ 1]) if at >= 2 else piece)
    with pytest.raises(HelperLost):
        served.answers(address=between.address)
    assert not served.echo.asked


@pytest.mark.parametrize("key", [STRANGER, TWO])
def test_an_attacker_in_the_middle_with_its_own_key_cannot_pose_as_either_end(served: Served, key: SigningKey) -> None:
    """It poses as another holder of the record, or as nobody, and forwards the requests to the holder."""
    outer = ends(HOLDER, key, ServerId(0), SERVER)
    middle = Served(outer)
    with pytest.raises(HelperLost):
        served.answers(address=middle.address)
    with pytest.raises(HelperLost):
        served.answers(ends(ServerId(0), key, HOLDER, ONE))
    assert not middle.echo.asked


def test_a_peer_must_prove_its_key_on_every_connection(served: Served) -> None:
    connection = ASKING.proved(socket.create_connection(("127.0.0.1", served.port)), is_server=False)
    with connection:
        connection.settimeout(LONG)
        send_frame(connection, PROGRAM)
        send_frame(connection, REQUEST)
        assert receive_frame(connection, 1 << 30) == REQUEST
        assert connection.session is not None
        assert not connection.session.has_ticket


def test_a_closed_connection_sends_nothing_in_plaintext(served: Served) -> None:
    """Another thread may be about to send."""
    with ASKING.proved(socket.create_connection(("127.0.0.1", served.port)), is_server=False) as connection:
        hang_up(connection)
        assert connection.version() == "TLSv1.3"


# --- Strangers and timeouts -----------------------------------------------------------------------------------------


def test_silent_strangers_do_not_block_others(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(2 * PEERS_AT_ONCE)]
    assert served.answers()
    silent[0].settimeout(LONG)
    assert silent[0].recv(1) == b"", "the oldest was closed to make room"
    for each in silent:
        each.close()
    monkeypatch.setattr(sockets, "PROOF_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", served.port)) as slow:
        slow.settimeout(LONG)
        slow.sendall(b"\x16\x03\x01")
        assert slow.recv(1) == b"", "there is a timeout"


def test_a_stranger_without_encryption_gets_no_answer(served: Served) -> None:
    served.echo.asked.clear()
    with socket.create_connection(("127.0.0.1", served.port)) as stranger, suppress(ConnectionError):
        stranger.settimeout(LONG)
        send_frame(stranger, REQUEST[:100])
        receive_frame(stranger, 1 << 20)
    assert not served.echo.asked


def test_a_connected_peer_is_only_replaced_by_itself_and_closes_no_stranger(served: Served) -> None:
    with SocketAsk(served.address, ends=ASKING, timeout=LONG) as first:
        assert first(REQUEST) == REQUEST
        with pytest.raises(HelperLost):
            served.answers(ends(ServerId(0), STRANGER, HOLDER, ONE))
        assert first(REQUEST) == REQUEST, "a stranger has not ended it"
        assert served.answers()
        with pytest.raises(HelperLost):
            first(REQUEST)


# --- Addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "read"),
    [
        ("unix:/run/s", "unix", "/run/s"),
        ("/run/s", "unix", "/run/s"),
        ("vsock:16:5000", "vsock", "vsock:16:5000"),
        (Path("vsock:16:5000"), "unix", "vsock:16:5000"),
        ("tcp:one.example:9443", "tcp", "tcp:one.example:9443"),
        ("tcp:[::1]:9443", "tcp", "tcp:::1:9443"),
    ],
)
def test_addresses_are_parsed(text: str | Path, kind: str, read: str) -> None:
    address = Address.of(text)
    assert (address.kind, str(address)) == (kind, read)


@pytest.mark.parametrize("text", ["unix:", "tcp:9443", "tcp::1", "tcp:a:65536", "tcp:a:b", "vsock:a:1", "vsock:1"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameters, match="an address must be unix:PATH, tcp:HOST:PORT or vsock:CONTEXT:PORT"):
        NumberedHelpers({0: text}, LONG)


def test_an_address_that_others_can_reach_requires_keys_at_both_ends() -> None:
    for address in ("tcp:127.0.0.1:0", "vsock:1:5000"):
        with pytest.raises(InvalidParameters, match="anybody may connect to"):
            Service(Echo()).serve(address)
    with pytest.raises(InvalidParameters, match="needs authentication"):
        SocketAsk("tcp:127.0.0.1:1")
    with pytest.raises(InvalidParameters, match="cannot listen at"):
        Service(Echo(), ends=SERVING).serve("tcp:192.0.2.1:1")
