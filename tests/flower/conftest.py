"""Real Flower for tests: simulations in separate processes, apps under ``flwr run``, and a deployed federation.

Each started process has the test's own ``FLWR_HOME`` in its environment, and is found and ended only by that.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.protocols.two_servers import make_trial_pair
from secagg.session.identities import make_identities

APPS = Path(__file__).resolve().parent / "apps"
GRACE_SECONDS = 2
_PORTS = iter(range(20_000 + os.getpid() * 97 % 10_000, 32_000))
"""Ports below the kernel's ephemeral range, so that no connection takes one before the test's process does."""
SIMULATED = frozenset(
    {
        *("twin", "silent", "restarted", "failing_rounds", "active:drop_survivors", "statistics"),
        *("enclave_served", "enclave_told", "two_restarted", "one_holder_killed", "active:low_threshold"),
    }
)
"""Scenarios that need Flower's own processes; all others run in memory, which is faster."""
HAS_FLOWER = importlib.util.find_spec("flwr") is not None and importlib.util.find_spec("ray") is not None


def pytest_report_header() -> str:
    if not HAS_FLOWER:
        return "flwr: not installed, or without its simulation"
    return f"flwr: {importlib.metadata.version('flwr')}, ray: {importlib.metadata.version('ray')}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("flower") and not HAS_FLOWER:
            item.add_marker(pytest.mark.skip(reason="needs pip install 'secagg[flower]' 'flwr[simulation]'"))


@dataclass
class Workplace:
    """A folder, an environment, and all processes started in it."""

    folder: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])
    port: int = 0
    pause: float = 0.2
    """Seconds after which a node without a message polls again; many frequent polls delay each other."""

    def __post_init__(self) -> None:
        self.port = self.free_port()
        (self.folder / "home").mkdir()

    def free_port(self) -> int:
        """Return a free port, a different one each time."""
        for port in _PORTS:
            with socket.socket() as listener, suppress(OSError):
                listener.bind(("127.0.0.1", port))
                return port
        raise RuntimeError("every port below the kernel's own is taken")

    @property
    def environment(self) -> dict[str, str]:
        binaries = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(self.pause),
            "PYTHONPATH": os.pathsep.join([str(APPS.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "SECAGG_STATE_DIRECTORY": str(self.folder / "states"),
            "SECAGG_LEDGER_DIRECTORY": str(self.folder / "ledgers"),
            "LAB_KEYS": str(self.folder / "keys"),
            "LAB_CHAOS": str(self.folder / "chaos.json"),
            "LAB_SECOND": str(self.folder / "second.sock"),
            "LAB_SOCKET": str(self.folder / "enclave.sock"),
            "LAB_LOG": str(self.folder / "secagg.log"),
        }

    def run(self, *command: str, timeout: float, cwd: Path | None = None) -> str:
        """Run a command to its end, and return its output."""
        done = subprocess.run(  # noqa: S603 -- a test's own command
            command,
            cwd=cwd or self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-4000:]}"
        return done.stdout

    def start(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a command in the background, with its output in a file."""
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 -- a test's own command
                command, cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.started.append(process)
        return process

    def end(self, seconds: float = 120) -> None:
        """End every process started here, and its children; fail if one is left."""
        began = time.monotonic()
        while (left := self.processes()) and time.monotonic() < began + seconds:
            sign = signal.SIGTERM if time.monotonic() < began + GRACE_SECONDS else signal.SIGKILL
            # Ending one process may start another, so the list is renewed each time.
            for pid in left:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    continue
            time.sleep(0.2)
        assert not left, f"still there: {left}"
        for process in self.started:
            process.wait(timeout=60)

    def processes(self) -> list[int]:
        """Return every process with this folder in its environment, whatever its group or session."""
        mark = f"FLWR_HOME={self.folder / 'home'}".encode()
        # The kernel fills in the environment shortly after a program starts: children are known without it.
        found = {process.pid for process in self.started if process.poll() is None}
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal() and int(folder.name) != os.getpid():
                try:
                    if mark in (folder / "environ").read_bytes().split(b"\0"):
                        found.add(int(folder.name))
                except OSError:
                    continue
        return sorted(found)


@pytest.fixture(scope="session")
def make_workplace() -> Callable[[Path], Workplace]:
    """Return a function that makes a workplace in an empty folder; the caller has to end it."""
    return Workplace


@contextmanager
def _with_keys(folder: Path) -> Generator[Workplace]:
    place = Workplace(folder)
    make_identities(folder / "keys", map(ClientId, range(24)), SystemCoins())
    make_trial_pair(folder / "keys", SystemCoins())
    try:
        yield place
    finally:
        place.end()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    with _with_keys(tmp_path_factory.mktemp("flower")) as place:
        yield place


@pytest.fixture(scope="session")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the scenarios of all modules whose tests are selected: most in memory, and some in Flower's simulation."""
    modules = dict.fromkeys(item.module for item in request.session.items if isinstance(item, pytest.Function))
    wanted = [name for module in modules for name in getattr(module, "SCENARIOS", ())]
    found = dict[str, Any]()
    for where in ("memory", "simulation"):
        if names := [name for name in wanted if (name in SIMULATED) is (where == "simulation")]:
            found |= _outcomes(tmp_path_factory.mktemp(where), where, names)
    return found


def _outcomes(folder: Path, where: str, scenarios: list[str]) -> dict[str, Any]:
    output, script = folder / "outcomes.json", str(APPS / "lab_server.py")
    with _with_keys(folder) as place:
        written = place.run(sys.executable, script, where, str(output), *scenarios, timeout=3600)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    for name, outcome in found.items():
        assert "crashed" not in outcome, f"{name}: {outcome['crashed']}\n{written[-2000:]}"
    assert set(found) == set(scenarios), written[-4000:]
    return found


@pytest.fixture(scope="session")
def make_app() -> Callable[[Path], Path]:
    """Return a function that copies ``apps/federated`` into a folder, with the lab's training in it."""

    def copy(folder: Path) -> Path:
        app = shutil.copytree(APPS / "federated", folder / "federated")
        # The app's own package has one; tests/ has none, so that nothing is shadowed.
        (app / "federated" / "__init__.py").touch()
        for module in ("lab_app.py", "lab_truth.py"):
            source = (APPS / module).read_text(encoding="utf-8")
            inside = source.replace("from lab_truth", "from federated.lab_truth")
            (app / "federated" / module).write_text(inside, encoding="utf-8")
        return app

    return copy


@pytest.fixture(scope="session")
def lab() -> Any:
    """Return the module that computes the expected results of the lab's rounds."""
    pytest.importorskip("flwr")
    spec = importlib.util.spec_from_file_location("lab_truth", APPS / "lab_truth.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
