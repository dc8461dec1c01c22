"""``secagg indexing-server``: keys, two real servers and a round, and how it refuses and ends."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.cli import main
from secagg.contract import Payload, ideal_aggregate
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.floors import IndexingFloors
from secagg.protocols.two_servers.ledger import UploadLedger
from secagg.protocols.two_servers.operators.remote_server import RemoteServer
from secagg.protocols.two_servers.operators.server_keys import ServerKeys
from secagg.session.certificates import SigningKey, issue_certificate

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

PATIENCE = 60
LAYOUT = Layout((RingSegment(20, 3), IndexSegment(8, 5)))
NOW = datetime.now(UTC)
COINS = SystemCoins()


def fresh_key() -> SigningKey:
    with Secret.random("key", 32, COINS) as seed:
        return SigningKey(seed)


AUTHORITY = fresh_key()


def payload_of(number: int) -> Payload:
    indices = np.array([number % 8, 1, 7, 0, number * 3 % 8], dtype=LAYOUT.segments[1].ring.word)
    return Payload(LAYOUT, (np.arange(number, number + 3, dtype=np.uint32), indices))


@dataclass
class Deployment:
    """The files of two servers, and their processes."""

    folder: Path
    public_keys: tuple[bytes, bytes]
    started: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    def __post_init__(self) -> None:
        self.configuration = IndexingConfiguration(
            task=b"a test",
            suite=Suite.CLASSIC,
            authority=AUTHORITY.public_key,
            server_keys=self.public_keys,
            layout=LAYOUT,
            minimum_cohort=2,
            maximum_cohort=5,
            maximum_rejections=0,
            expiry=int(NOW.timestamp()) + 3600,
        )
        (self.folder / "configuration").write_bytes(self.configuration.encode())

    def arguments(self, server: int, **changes: str) -> list[str]:
        given = {
            "role": f"{server}",
            "socket": f"{self.folder / f's{server}'}",
            "peer-socket": f"{self.folder / 'p'}",
            "configuration": f"{self.folder / 'configuration'}",
            "keys": f"{self.folder / 'keys' / f'server{server}.keys'}",
            "journal": f"{self.folder / f'journal{server}'}",
            "round": "3",
        } | {name.replace("_", "-"): value for name, value in changes.items()}
        return ["indexing-server", *(part for name, value in given.items() for part in (f"--{name}", value))]

    def start(self, role: int) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(  # noqa: S603 -- this interpreter
            [sys.executable, "-m", "secagg.cli", *self.arguments(role)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    def remote(self, role: int) -> RemoteServer:
        path = self.folder / f"s{role}"
        return RemoteServer(path, self.configuration, ServerId(role), round_number=3, timeout=PATIENCE)

    def upload(self, number: int) -> None:
        key = fresh_key()
        client = Client(
            certificate=issue_certificate(AUTHORITY, ClientId(number), key.public_key),
            signing_key=key,
            floors=IndexingFloors(
                suites=frozenset({Suite.CLASSIC}),
                authority=AUTHORITY.public_key,
                server_keys=self.public_keys,
                minimum_cohort=2,
                maximum_length=100,
            ),
            layout=LAYOUT,
            capacity=1 << 10,
            ledger=UploadLedger(b"a test"),
            coins=COINS,
        )
        with self.remote(0) as zero, self.remote(1) as one:
            halves = client.share(
                payload_of(number),
                configuration=self.configuration,
                round_number=3,
                offers=(zero.offer(), one.offer()),
                now=NOW,
            )
            assert zero.upload(halves[0].encode()) == one.upload(halves[1].encode())


@pytest.fixture
def deployment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Deployment]:
    assert main(["indexing-server", "keys", "--out", str(tmp_path / "keys")]) == 0
    printed = re.findall(r"^server/[01]: ([0-9a-f]{64})  ", capsys.readouterr().out, re.MULTILINE)
    zero, one = (bytes.fromhex(key) for key in printed)
    made = Deployment(tmp_path, (zero, one))
    yield made
    for process in made.started:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_keys_are_made_for_both_servers_and_for_nobody_else_to_read(deployment: Deployment) -> None:
    files = [deployment.folder / "keys" / f"server{role}.keys" for role in (0, 1)]
    both = [ServerKeys.decode(file.read_bytes()) for file in files]
    assert [keys.server for keys in both] == [ServerId(0), ServerId(1)]
    assert tuple(keys.signing_key().public_key for keys in both) == deployment.public_keys
    assert both[0].pair_key == both[1].pair_key
    assert both[0].signing_seed != both[1].signing_seed
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]


def test_keys_that_are_there_are_not_overwritten(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    folder = deployment.folder / "keys"
    (folder / "server0.keys").unlink()
    before = (folder / "server1.keys").read_bytes()
    assert main(["indexing-server", "keys", "--out", str(folder)]) == 2
    assert "server1.keys exists" in capsys.readouterr().err
    assert (folder / "server1.keys").read_bytes() == before
    assert not (folder / "server0.keys").exists()


def test_a_round_of_two_servers_of_which_one_is_killed_and_started_again_is_exact(deployment: Deployment) -> None:
    zero, line = deployment.start(0)
    assert "server/0 of round 3 is ready at" in line
    assert "Two servers in one hand protect nobody" in line
    one, _ = deployment.start(1)
    deployment.upload(1)
    deployment.upload(2)
    zero.kill()
    zero.wait(PATIENCE)
    zero, _ = deployment.start(0)
    deployment.upload(3)
    one.kill()
    one.wait(PATIENCE)
    one, _ = deployment.start(1)
    with deployment.remote(1) as operator:
        result = operator.close_round()
    ideal = ideal_aggregate(LAYOUT, [payload_of(number) for number in (1, 2, 3)])
    assert result.aggregate.encode() == ideal.encode()
    with deployment.remote(0) as operator:
        assert operator.result().counted == result.counted == (ClientId(1), ClientId(2), ClientId(3))
    for process in (zero, one):
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert process.communicate(timeout=PATIENCE) == ("", "")
    assert not [path for path in deployment.folder.iterdir() if path.is_socket()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_a_crash_leaves_no_keys_on_the_disk(
    deployment: Deployment, number: signal.Signals
) -> None:
    process, _ = deployment.start(0)
    for name in ("s0", "p"):
        assert stat.S_IMODE((deployment.folder / name).stat().st_mode) == 0o600
    limits = Path(f"/proc/{process.pid}/limits")
    if limits.exists():
        assert next(line for line in limits.read_text().splitlines() if "core file" in line).split()[4:6] == ["0", "0"]
    with deployment.remote(0) as remote:
        remote.offer()
        process.send_signal(number)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
    assert not (deployment.folder / "s0").exists()
    assert not (deployment.folder / "p").exists()
    assert process.communicate(timeout=PATIENCE) == ("", "")


def test_a_second_process_of_the_same_round_is_refused(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment.start(0)
    assert main(deployment.arguments(0)) == 2
    assert "is open in another process" in capsys.readouterr().err
    with deployment.remote(0) as remote:
        remote.offer()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"role": "1"}, "--role is 1, and"),
        ({"threads": "0"}, "at least one thread evaluates"),
        ({"configuration": "missing"}, "cannot read missing: No such file or directory; name a file with --configurat"),
        ({"keys": "missing"}, "cannot read missing: No such file or directory; name a file with --keys"),
        ({"journal": "missing/j"}, "the journal missing/j cannot be opened"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_sentence(
    deployment: Deployment,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    sentence: str,
) -> None:
    monkeypatch.chdir(deployment.folder)
    assert main(deployment.arguments(0, **changes)) == 2
    assert sentence in capsys.readouterr().err


def test_files_that_hold_something_else_or_that_others_can_read_are_refused(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, configuration = deployment.folder / "keys" / "server0.keys", deployment.folder / "configuration"
    assert main(deployment.arguments(0, configuration=str(keys))) == 2
    assert "holds no configuration" in capsys.readouterr().err
    configuration.chmod(0o600)
    assert main(deployment.arguments(0, keys=str(configuration))) == 2
    assert "holds no keys of a server" in capsys.readouterr().err
    keys.chmod(0o640)
    assert main(deployment.arguments(0)) == 2
    assert "is readable by others; chmod it to 600" in capsys.readouterr().err
    large = deployment.folder / "large"
    large.write_bytes(bytes((1 << 22) + 1))
    assert main(deployment.arguments(0, configuration=str(large))) == 2
    assert "is larger than 4 MiB" in capsys.readouterr().err


def test_a_journal_of_another_round_is_refused(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    process, _ = deployment.start(0)
    process.kill()
    process.wait(PATIENCE)
    assert main(deployment.arguments(0, round="4")) == 2
    assert "the journal is of another round" in capsys.readouterr().err


def test_a_journal_is_erased_when_no_server_has_it_open(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    process, _ = deployment.start(0)
    journal = deployment.folder / "journal0"
    other_name = deployment.folder / "other name"
    other_name.hardlink_to(journal)
    erase = ["indexing-server", "erase", "--journal", str(journal)]
    assert main(erase) == 2
    assert "is open in another process" in capsys.readouterr().err
    process.kill()
    process.wait(PATIENCE)
    size = journal.stat().st_size
    assert main(erase) == 0
    assert "is overwritten and removed" in capsys.readouterr().out
    assert not journal.exists()
    assert other_name.read_bytes() == bytes(size)
    assert main(erase) == 2
    assert "there is no journal at" in capsys.readouterr().err
    assert not journal.exists()


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["indexing-server", "--role", "0", "--round", "1"]) == 2
    said = capsys.readouterr().err
    assert "a server also needs --socket, --peer-socket, --configuration, --keys, --journal" in said
