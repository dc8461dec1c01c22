"""A standing server 1 in a process of its own: killed at any step, met by silence and a newer peer, elsewhere too."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, MalformedMessage
from secagg.identifiers import ServerId
from secagg.protocols.two_servers import process as process_module
from secagg.protocols.two_servers.process import PeerLink, serve_standing
from secagg.protocols.two_servers.server_keys import ServerKeys
from secagg.protocols.two_servers.server_messages import exchange_bytes
from secagg.session.frames import decode_refusal, receive_frame
from secagg.session.sockets import HelperLost
from tests.harness.indexing_rounds import IndexingSetup
from tests.protocols.two_servers.test_standing_server import Pair

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

SETUP = IndexingSetup(population=3)
PATIENCE = 60.0
CHILD = """
import os, signal, sys
from pathlib import Path
from secagg.cli.shared import serving
from secagg.crypto.entropy import SystemCoins
from secagg.protocols.two_servers import standing_server
from secagg.protocols.two_servers.process import serve_standing
from secagg.protocols.two_servers.standing_server import StandingRounds
from secagg.protocols.two_servers.standing_server import StandingServer
from secagg.protocols.two_servers.server import IndexingServer
from tests.harness.indexing_rounds import NOW
from tests.protocols.two_servers.test_process import SETUP
from tests.protocols.two_servers.test_standing_server import Pair

path, folder, when, step = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]

class Deadly(IndexingServer):
    def wipe(self):
        super().wipe()
        print("wiped", flush=True)

def deadly(taken):
    def take(*arguments):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = taken(*arguments)
        if when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return take

if step:
    setattr(Deadly, step, deadly(getattr(Deadly, step)))
standing_server.IndexingServer = Deadly
server = StandingServer(
    SETUP.keys_of(1), SETUP.keys_of(0).public, Pair(SETUP).policy, StandingRounds(folder / "rounds"),
    coins=SystemCoins(), clock=lambda: NOW,
)
with serving():
    serve_standing(server, path, SystemCoins(), ready=lambda: print("ready", flush=True))
"""


@dataclass
class Operator:
    """The operator of server 1, who starts its process again when it has died."""

    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def path(self) -> Path:
        return self.folder / "socket"

    def start(self, when: str = "never", step: str = "") -> subprocess.Popen[str]:
        arguments = [str(self.path), str(self.folder), when, step]
        process = subprocess.Popen(  # noqa: S603 -- this interpreter
            [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def restart_when_killed(self) -> Thread:
        def wait() -> None:
            assert self.processes[-1].wait(PATIENCE) == -signal.SIGKILL
            self.start()

        thread = Thread(target=wait, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate(timeout=PATIENCE)


CLOSED = list[socket.socket | PeerLink]()


@pytest.fixture(autouse=True)
def _close_what_is_left() -> Iterator[None]:
    yield
    while CLOSED:
        CLOSED.pop().close()


def link_to(address: str | Path, pair: Pair, own: ServerKeys | None = None, **more: Any) -> PeerLink:
    longest = exchange_bytes(pair.rig.configuration)
    link = PeerLink(address, own or pair.keys(0), pair.keys(1).public, SystemCoins(), answer_bytes=longest, **more)
    CLOSED.append(link)
    return link


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["receive", "conclude", "open"])
def test_a_process_that_is_killed_takes_its_round_with_it_and_begins_the_next(
    operator: Operator, when: str, step: str
) -> None:
    operator.start(when, step)
    thread = operator.restart_when_killed()
    pair = Pair(SETUP)
    link = link_to(operator.path, pair, patience=PATIENCE)
    pair.asked = link.ask
    pair.begin()
    with pytest.raises(HelperLost, match="ends a round and spends the updates that were uploaded for it"):
        is_exact(pair)
    thread.join(PATIENCE)
    with pytest.raises(InvalidParameters, match="was already started"):
        pair.begin()
    assert {path.name for path in operator.folder.iterdir()} <= {"rounds", "socket"}
    later = Pair(replace(SETUP, round_number=SETUP.round_number + 1))
    later.asked = link.ask
    later.begin()
    is_exact(later)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_end_wipes_its_round(operator: Operator, number: signal.Signals) -> None:
    process, pair = operator.start(), Pair(SETUP)
    pair.asked = link_to(operator.path, pair).ask
    pair.begin()
    pair.receive(1)
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said) == (0, "wiped\n")


# --- Strangers and silence --------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> tuple[Pair, Path]:
    pair, path, listens = Pair(SETUP), tmp_path / "socket", Event()
    arguments = (pair.standing, path, SystemCoins())
    Thread(target=serve_standing, args=arguments, kwargs={"ready": listens.set}, daemon=True).start()
    assert listens.wait(PATIENCE)
    assert path.stat().st_mode & 0o077 == 0
    return pair, path


def relayed(pair: Pair, path: Path) -> PeerLink:
    link = link_to(path, pair)
    pair.asked = link.ask
    return link


def relayed_and_begun(pair: Pair, path: Path) -> PeerLink:
    link = relayed(pair, path)
    pair.begin()
    return link


def underneath(link: PeerLink) -> socket.socket:
    ask = link._connection  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    assert ask is not None
    return ask.connect()


def is_exact(pair: Pair) -> None:
    for number in (1, 2, 3):
        pair.receive(number)
    assert pair.finish().aggregate.encode() == pair.rig.ideal((1, 2, 3)).encode()


def test_the_newest_peer_is_served_and_a_silent_one_is_let_go(served: tuple[Pair, Path]) -> None:
    pair, path = served
    earlier = relayed(pair, path)
    pair.begin()
    # Server 0 died without a word: its connection stays, and says nothing any more.
    started = time.monotonic()
    relayed(pair, path)
    assert pair.begin() == pair.offers
    assert time.monotonic() - started < PATIENCE / 6
    is_exact(pair)
    with pytest.raises(ConnectionError):
        receive_frame(underneath(earlier), 1 << 10)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "PEER_PATIENCE", 2.0)


@pytest.mark.usefixtures("impatient")
def test_server_0_that_stops_in_the_midst_of_a_message_is_let_go(served: tuple[Pair, Path]) -> None:
    pair, path = served
    connection = underneath(relayed_and_begun(pair, path))
    connection.settimeout(PATIENCE)
    connection.sendall((1 << 6).to_bytes(8, "big") + b"half")
    with pytest.raises(ConnectionError):
        receive_frame(connection, 1 << 10)


def test_server_1_elsewhere_takes_part_with_server_0_alone() -> None:
    pair, listens = Pair(SETUP), Event()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"tcp:127.0.0.1:{probe.getsockname()[1]}"
    arguments = (pair.standing, address, SystemCoins())
    Thread(target=serve_standing, args=arguments, kwargs={"ready": listens.set}, daemon=True).start()
    assert listens.wait(PATIENCE)
    pair.asked = link_to(address, pair).ask
    pair.begin()
    # Another operator's server 0, and this round's server 1 as if it were server 0.
    started = time.monotonic()
    for stranger in (ServerKeys.random(ServerId(0), SystemCoins()), pair.keys(1)):
        with pytest.raises(HelperLost, match="one end does not prove the key"):
            link_to(address, pair, stranger, patience=PATIENCE).ask(b"anything")
    assert time.monotonic() - started < PATIENCE, "it is not waited for"
    is_exact(pair)


def test_a_frame_that_is_too_long_is_refused_before_it_is_read(served: tuple[Pair, Path]) -> None:
    pair, path = served
    link = relayed(pair, path)
    pair.begin()
    # What a lying server 0 sends.
    connection = underneath(link)
    connection.sendall((1 << 31).to_bytes(8, "big"))
    refusal = decode_refusal(receive_frame(connection, 1 << 14))
    assert isinstance(refusal, MalformedMessage)
    assert "the limit" in str(refusal)
