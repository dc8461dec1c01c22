"""``secagg enclave serve``: its output, its address, and its end."""

from __future__ import annotations

import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from secagg.contract.layout import Layout, RingSegment
from secagg.parameters import Suite
from secagg.protocols.enclave.remote_enclave import EnclaveLost, RemoteEnclave, SimulatedEvidence
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from tests.harness.commands import refusal

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

PATIENCE = 30
SIMULATED = ("--evidence", "simulated", "--threads", "2")
CONFIGURATION = EnclaveConfiguration(
    task=b"a test",
    suite=Suite.CLASSIC,
    authority=b"\1" * 32,
    layout=Layout((RingSegment(16, 4),)),
    minimum_cohort=2,
    maximum_cohort=4,
    expiry=1 << 32,
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], Path, str]]]:
    started = list[subprocess.Popen[str]]()

    def serve() -> tuple[subprocess.Popen[str], Path, str]:
        path = tmp_path / "s"
        command = [sys.executable, "-m", "secagg.cli", "enclave", "serve", "--listen", f"unix:{path}", *SIMULATED]
        process = subprocess.Popen(  # noqa: S603 -- this interpreter
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, path, process.stdout.readline()

    yield serve
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_it_says_in_one_line_where_it_is_and_whom_it_does_not_protect(
    start: Callable[[], tuple[subprocess.Popen[str], Path, str]],
) -> None:
    process, path, line = start()
    assert f"ready at unix:{path}" in line
    assert "simulated" in line
    assert "protects nobody from the owner of this machine" in line
    with RemoteEnclave(path, timeout=PATIENCE) as remote:
        offer, evidence = remote.start(CONFIGURATION)
        assert evidence == SimulatedEvidence(offer.binding)
    with RemoteEnclave(path, timeout=PATIENCE) as remote:
        assert remote.start(CONFIGURATION)[0].epoch != offer.epoch
    process.terminate()
    assert process.communicate(timeout=PATIENCE) == ("", "")


def test_only_its_user_may_connect_and_a_crash_leaves_no_keys_on_the_disk(
    start: Callable[[], tuple[subprocess.Popen[str], Path, str]],
) -> None:
    process, path, _ = start()
    mode = path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    limits = Path(f"/proc/{process.pid}/limits")
    if limits.exists():
        assert next(line for line in limits.read_text().splitlines() if "core file" in line).split()[4:6] == ["0", "0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("is_in_use", [False, True])
def test_a_signal_ends_it_cleanly_and_removes_the_socket(
    start: Callable[[], tuple[subprocess.Popen[str], Path, str]], number: signal.Signals, *, is_in_use: bool
) -> None:
    process, path, _ = start()
    if is_in_use:
        with RemoteEnclave(path, timeout=PATIENCE) as remote:
            remote.start(CONFIGURATION)
            remote.open_buffer(1, bytes(32))
            process.send_signal(number)
            assert process.wait(PATIENCE) == 0
            with pytest.raises(EnclaveLost):
                remote.release()
    else:
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
    assert not path.exists()
    assert process.communicate(timeout=PATIENCE) == ("", "")


def test_a_path_that_exists_is_refused_in_one_sentence_and_left_alone(
    start: Callable[[], tuple[subprocess.Popen[str], Path, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, path, _ = start()
    second, _, line = start()
    assert line == ""
    assert second.wait(PATIENCE) == 2
    assert second.stderr is not None
    assert "remove an old socket, or use another path" in second.stderr.read()
    with RemoteEnclave(path, timeout=PATIENCE) as remote:
        remote.start(CONFIGURATION)
    assert capsys.readouterr().err == ""


def test_what_cannot_be_served_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = ("enclave", "serve", "--listen", f"unix:{tmp_path / 's'}", *SIMULATED)
    assert "at least 1 thread" in refusal(capsys, *serve, "--threads", "0")
    assert "raise --threads or --memory" in refusal(capsys, *serve, "--memory", "0")
    assert "unix:PATH, vsock:PORT or virtio:NAME; got 'nowhere'" in refusal(capsys, *serve, "--listen", "nowhere")
    assert "cannot provide 'nsm' evidence" in refusal(capsys, *serve, "--evidence", "nsm")
    monkeypatch.delattr(socket, "AF_UNIX")
    assert "no Unix sockets" in refusal(capsys, *serve)


def test_evidence_is_named_and_never_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: --evidence" in refusal(capsys, "enclave", "serve", "--listen", f"unix:{tmp_path / 's'}")


@pytest.mark.parametrize("path", ["missing/s", "x" * 200])
def test_a_path_that_cannot_be_is_refused_in_one_sentence(tmp_path: Path, path: str) -> None:
    command = [
        sys.executable,
        "-m",
        "secagg.cli",
        "enclave",
        "serve",
        "--listen",
        f"unix:{tmp_path / path}",
        *SIMULATED,
    ]
    finished = subprocess.run(  # noqa: S603 -- this interpreter
        command, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "use another path" in finished.stderr
    assert "Traceback" not in finished.stderr
