"""The service of an enclave: its self-test, where it listens, and sessions of every form behind the filter."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InternalError, Reason
from secagg.protocols.enclave.machine import self_test
from secagg.protocols.enclave.machine.listeners import Port, PortListener
from secagg.protocols.enclave.machine.serving import BoundedLog, serve_at
from secagg.protocols.enclave.remote_enclave import RemoteEnclave
from secagg.protocols.enclave.trusted.enclave import Enclave
from secagg.protocols.enclave.trusted.hosts import serve
from secagg.protocols.enclave.trusted.service import SIMULATED, EnclaveService
from secagg.session.frames import decode_refusal, receive_frame
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, start_of
from tests.harness.enclave_forms import released_by, released_here, require_same, setups
from tests.harness.planted import always

if sys.platform == "win32":
    pytest.skip("an enclave's machine runs Linux", allow_module_level=True)

import tty

PATIENCE = 30
RELEASE = Writer(MessageKind.RELEASE_BUFFER).finish()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Serve in one process for all sessions, which therefore load and open nothing that another has not."""
    path = tmp_path_factory.mktemp("enclave") / "s"
    command = [sys.executable, "-m", "secagg.protocols.enclave.machine", "--listen", f"unix:{path}"]
    with subprocess.Popen([*command, "--evidence", "simulated"], stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        assert "ready at" in process.stdout.readline()
        yield path
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("setup", [pytest.param(setup, id=name) for name, setup in setups()])
def test_a_session_of_every_form_runs_behind_the_filter(served: Path, setup: EnclaveSetup) -> None:
    with RemoteEnclave(f"unix:{served}", timeout=PATIENCE) as remote:
        require_same(setup, released_by(remote, setup), released_here(setup))


def test_the_self_test_starts_every_kind_of_epoch() -> None:
    tried = list(self_test.configurations())
    for setup in dict(setups()).values():
        assert any(each.suite is setup.suite and each.accumulation is setup.accumulation for each in tried)
    assert {each.form for each in tried} == {setup.form for setup in dict(setups()).values()}
    assert any(each.noise for each in tried)
    assert any(each.max_norms for each in tried)
    assert any(each.has_rows for each in tried)


def no_noise(*_: object) -> Any:
    return np.zeros(64)


@pytest.mark.parametrize(
    ("name", "broken", "sentence"),
    [
        ("sample", no_noise, "noise"),
        ("Enclave", None, "without uploads was released"),
        ("message_kind", always(None), "not refused"),
    ],
)
def test_nothing_is_served_where_the_self_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, sentence: str
) -> None:
    if broken is None:
        monkeypatch.setattr(Enclave, "release", always(b""))
    else:
        monkeypatch.setattr(self_test, name, broken)
    with pytest.raises(InternalError, match=sentence):
        serve_at(f"unix:{tmp_path / 's'}", evidence="simulated", coins=SystemCoins())
    assert not (tmp_path / "s").exists()


# --- A port, and what the operator reads ------------------------------------------------------------------------------


class Once(PortListener):
    """A port that takes a few hosts, and then ends the service."""

    def __init__(self, path: Path, hosts: int) -> None:
        super().__init__(path)
        self.hosts = hosts

    def accept(self) -> tuple[Port, None]:
        if not self.hosts:
            raise SystemExit
        self.hosts -= 1
        return super().accept()


class PortHost:
    """The host's end of a port: a terminal in raw mode, which carries bytes both ways."""

    def __init__(self, log: list[str], hosts: int = 2) -> None:
        self.file, device = os.openpty()
        tty.setraw(device)  # It would otherwise translate some bytes.
        listener = Once(Path(os.ttyname(device)), hosts)
        os.set_blocking(self.file, False)
        coins = InsecureSeededCoins(b"a port")

        def run() -> None:
            with suppress(SystemExit), listener:
                serve(listener, coins=coins, quote=lambda report: (SIMULATED, report), log=log.append)

        self.thread = Thread(target=run, daemon=True)
        self.thread.start()

    def send(self, data: bytes) -> None:
        Port(self.file).sendall(data)

    def answer(self) -> bytes:
        port = Port(self.file)
        port.settimeout(PATIENCE)
        return receive_frame(port, 1 << 20)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(8, "big") + message


START = start_of(InsecureEnclaveSession(EnclaveSetup()).configuration)


def test_the_next_host_of_a_port_is_in_step() -> None:
    """Whatever a host left behind would be read as the next one's requests, for good: a port is never closed."""
    log = list[str]()
    host = PortHost(log)
    host.send((1 << 62).to_bytes(8, "big") + b"x" * 100)
    assert decode_refusal(host.answer()).reason is Reason.LENGTH_OVER_LIMIT
    time.sleep(0.5)
    host.send(framed(START))
    assert message_kind(host.answer()) is MessageKind.ATTESTED_OFFER
    host.send((1 << 62).to_bytes(8, "big"))
    assert decode_refusal(host.answer()).reason is Reason.LENGTH_OVER_LIMIT
    host.thread.join(PATIENCE)
    assert not host.thread.is_alive()
    assert [line.partition(":")[0] for line in log] == ["refused a frame, length_over_limit"] * 2


def failing(_report: bytes) -> tuple[str, bytes]:
    raise OSError("the source of evidence has ended (timed out); restart the enclave")


def test_an_operator_reads_why_a_request_was_refused_and_nothing_of_a_client() -> None:
    log = list[str]()
    service = EnclaveService(coins=InsecureSeededCoins(b"log"), quote=failing, log=log.append)
    for request in (START, RELEASE, b"junk"):
        decode_refusal(service.answer(request))
    assert "START" in log[0]
    assert "the source of evidence has ended (timed out); restart the enclave" in log[0]
    assert "RELEASE_BUFFER" in log[1]
    assert "no epoch is running" in log[1]
    assert log[2].startswith("refused a request of no kind")
    session = InsecureEnclaveSession(EnclaveSetup())
    running = EnclaveService(
        coins=InsecureSeededCoins(b"log"), quote=lambda report: (SIMULATED, report), log=log.append
    )
    running.answer(start_of(session.configuration))
    refusal = decode_refusal(running.answer(Writer(MessageKind.SEALED_UPLOAD).finish()))
    assert log[3:] == [f"refused SEALED_UPLOAD, {refusal.reason}"]


def test_a_log_is_bounded_and_one_line_a_fault() -> None:
    said = list[str]()
    log = BoundedLog(said.append)
    for _ in range(9):
        log("the same")
    for number in range(10_000):
        log(f"\n\x1b[2J{number}" + "x" * 10_000)
    assert said[0] == "the same"
    assert len(said) == 200
    assert all(len(line) < 300 and line.isprintable() for line in said)
    assert "later refusals are sent to the host" in said[-1]
