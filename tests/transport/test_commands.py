"""Refusals of ``secagg serve`` and ``contribute`` before they listen or send anything."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secagg.cli import main
from secagg.cli.shared import plan_of
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse
from secagg.identifiers import ClientId
from secagg.platforms.client_node import DIRECTORY_VARIABLE
from secagg.session.durable import claim
from secagg.session.identities import make_identities
from secagg.session.roles import LazyUpdate, Released, ServerSession, Subject
from secagg.transport.client import Join, Reply
from secagg.transport.conductor import Keep
from secagg.transport.description import SessionDescription
from secagg.transport.keeping import ServerRecord, ServerStore
from secagg.transport.server import SumServer
from tests.harness.certificates_of_tests import make_credentials
from tests.harness.commands import refusal

SERVE = ("serve", "--values", "4", "--clip", "1", "--out", "mean.npy")
URL = "http://127.0.0.1:1"


@pytest.fixture
def update(tmp_path: Path) -> str:
    np.save(tmp_path / "update.npy", np.zeros(4))
    return str(tmp_path / "update.npy")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "set --clients to the number"),
        (("--clients", "5", "--cert", "x.pem"), "must be set together"),
        (("--clients", "5", "--client-certs", "x.pem"), "requires TLS"),
        (("--clients", "5", "--listen", "8750"), "--listen must be HOST:PORT"),
        (("--clients", "5", "--listen", "localhost:99999"), "--listen must be HOST:PORT"),
        (("--clients", "5", "--listen", "0.0.0.0:0"), "in the clear"),
        (("--clients", "5", "--set", "roster"), "NAME=VALUE"),
        (("--clients", "5", "--set", "colour=red"), "colour is not a setting of `secagg serve`; there are corrupted"),
        (("--clients", "5", "--set", "protocol=enclave"), "--set cannot change protocol"),
        (("--clients", "5", "--set", "max-norm=1.0"), "use --protocol enclave and --values, or leave it out"),
        (("--clients", "5", "--set", "stage-timeout=1.0"), "use --exchange-seconds"),
        (("--clients", "5", "--set", "max-norm-unenforced=1.0"), "--set max-norm-unenforced has no effect here"),
        (("--clients", "5", "--set", "weighting=examples"), "--set cannot change weighting"),
        (
            ("--set", "rooster=keys/roster.txt"),
            "--set rooster is not a setting of `secagg serve`; did you mean roster?",
        ),
        (("--set", "secagg-roster=keys/roster.txt"), "--set roster is not a setting"),
        (("--set", "roster=none.json"), "there is no file none.json; create one with `secagg keys`"),
        (("--clients", "5", "--set", "mode=semihonest"), "--set mode must be one of"),
        (("--clients", "4", "--set", "corrupted=3"), "invite more, or lower --set corrupted"),
        (("--clients", "5", "--values", "0"), "1 to 268,435,456 values; got 0"),
        (("--clients", "5", "--values", str(1 << 40)), "1 to 268,435,456 values"),
        (("--clients", "5", "--group", "1"), "--group must be K/N"),
        (("--clients", "6", "--group", "1/2"), "--group requires --round"),
        (("--clients", "5", "--task", "\udcff"), "argument --task: invalid task value"),
        (("--clients", "2"), "--clients must be at least 3, because"),
        (("--clients", "0"), "--clients must be between 1 and"),
        (("--clients", "-5"), "--clients must be between 1 and"),
        (("--clients", "99999999999999999999"), "--clients must be between 1 and"),
        (("--clients", str(1 << 30)), "divide them with --group"),
        (("--clients", "5", "--patience", "nan"), "not negative"),
        *(
            (("--clients", "5", "--set", f"{name}={value}"), f"--set {name.replace('_', '-')} has no effect here")
            for name, value in (
                *(("clip", "2.0"), ("fraction_bits", "8")),
                *(("modulus_bits", "32"), ("metric_bound", "2.0"), ("tensors", "a"), ("compression", "scalar-8")),
                *(("stage_patience", "3.0"), ("metrics", "loss"), ("evaluation_metrics", "loss")),
            )
        ),
    ],
)
def test_a_server_refuses(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(capsys, *SERVE, *arguments)


def test_noise_is_refused(capsys: pytest.CaptureFixture[str], update: str, tmp_path: Path) -> None:
    noise = ("--set", "noise=1.0", "--set", "norm=1.0")
    assert "only --model supports noise" in refusal(capsys, *SERVE, "--clients", "5", *noise)
    client = ("contribute", URL, "--update", update, "--client", "0", "--state", str(tmp_path / "state"))
    assert "noise is not a client setting" in refusal(capsys, *client, "--set", "noise=1.0")
    assert "--set minimum_cohort must be an integer; got 'many'" in refusal(
        capsys, *client, "--set", "minimum_cohort=many"
    )
    assert "must be yes or no; got '0'" in refusal(capsys, *client, "--set", "allow_simulated_enclave=0")
    assert "is lost" in refusal(capsys, *client, "--set", "allow_simulated_enclave=true", "--patience", "0")
    assert "epsilon is not a client setting" in refusal(capsys, *client, "--set", "epsilon=1.0")


def test_a_client_refuses(capsys: pytest.CaptureFixture[str], update: str, tmp_path: Path) -> None:
    state = ("--state", str(tmp_path / "state"))
    assert "cannot read none.npy (No such" in refusal(
        capsys, "contribute", URL, "--update", "none.npy", "--client", "0", *state
    )
    for values in (np.full(4, 1j), np.array(["1.0"] * 4)):
        np.save(tmp_path / "other.npy", values)
        client = ("contribute", URL, "--update", str(tmp_path / "other.npy"), "--client", "0", *state)
        assert "is not an array of numbers" in refusal(capsys, *client)
    np.savez(tmp_path / "several.npz", np.zeros(4))
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npy").write_bytes(b"\xff\xfe not UTF-8")
    for name, said in (("several.npz", "several arrays"), ("empty.npy", "not an array"), ("text.npy", "not an array")):
        client = ("contribute", URL, "--update", str(tmp_path / name), "--client", "0", *state)
        assert said in refusal(capsys, *client)
    client = ("contribute", "http://sums.example", "--update", update, "--client", "0", *state)
    own = make_credentials(tmp_path, "own")
    for option in (("--server-cert", "none.pem"), ("--cert", str(own.certificate), "--key", "none.pem")):
        assert "there is no file none.pem" in refusal(capsys, "contribute", "https://localhost:1", *client[2:], *option)
    for option in (("--server-cert", str(own.certificate)), ("--cert", str(own.certificate), "--key", str(own.key))):
        assert "does not use TLS" in refusal(capsys, "contribute", URL, *client[2:], *option)
    for place in ("http://[::1", "http://\udcff", "http://127.0.0.1:x"):
        assert "not a server address" in refusal(capsys, "contribute", place, *client[2:])
    assert "positive" in refusal(capsys, "contribute", URL, *client[2:], "--patience", "nan")
    assert "invalid task value" in refusal(capsys, "contribute", URL, *client[2:], "--task", "\udcff")
    assert "in the clear" in refusal(capsys, *client)
    for place, meant in (("localhost:8750", "http://localhost:8750"), ("sums.example", "https://sums.example")):
        assert f"; use {meant}\n" in refusal(capsys, "contribute", place, *client[2:])
    for place in ("htp://127.0.0.1:1", "http://"):
        assert "is not a server address" in refusal(capsys, "contribute", place, *client[2:])
    client_is = ("contribute", URL, "--update", update, *state, "--identity")
    make_identities(tmp_path / "keys", [ClientId(0)], SystemCoins())
    for name, said in (
        ("none.key", "there is no file"),
        ("other.npy", "is not a client file"),
        ("keys/roster.txt", "is not a client file"),
        ("keys/authority.key", "is a file of the wrong kind ('authority'); use a client file"),
    ):
        (tmp_path / "other.npy").chmod(0o644)
        assert said in refusal(capsys, *client_is, str(tmp_path / name))
    (tmp_path / "keys" / "client-0.key").chmod(0o644)
    assert "chmod 600" in refusal(capsys, *client_is, str(tmp_path / "keys" / "client-0.key"))
    for place in (
        "http://127.0.0.1:99999",
        "http://127.0.0.1:1?x",
        "ftp://127.0.0.1:8750",
        "http://127.0.0.1:8750?x=1",
    ):
        assert "use https://HOST:PORT" in refusal(capsys, "contribute", place, *client[2:])
    assert "is lost" in refusal(capsys, "contribute", URL, *client[2:], "--patience", "0")


def test_a_client_whose_server_does_not_answer_says_so_soon(
    update: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = ("--update", update, "--client", "0", "--state", str(tmp_path / "s"), "--patience", "2.5")
    assert main(["contribute", "http://127.0.0.1:9", *client]) == 2
    [record] = [each for each in caplog.records if each.getMessage() == "no answer, tried again"]
    fields = vars(record)["fields"]
    assert fields["url"] == "http://127.0.0.1:9"
    assert "connect" in fields["why"]


@pytest.mark.parametrize(
    ("mode", "protocol"), [("semi_honest", "pairwise"), ("active", "pairwise"), ("active", "enclave")]
)
def test_a_client_says_whom_it_trusts_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update: str, mode: str, protocol: str
) -> None:
    planned = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
    name = bytes(16).hex()
    description = SessionDescription(
        session=name, protocol=protocol, task="sum", round_number=1, answer_bytes=1, mode=mode, terms=planned
    )

    async def joined(_: str, join: Join, **__: object) -> None:
        join(description, None)
        raise Misuse("it has joined")

    monkeypatch.setattr("secagg.transport.client.contribute", joined)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(Path(update).parent / "ledgers"))
    assert (
        main(["contribute", URL, "--update", update, "--client", "0", "--state", str(Path(update).parent / "s")]) == 2
    )
    said = capsys.readouterr()
    if mode == "semi_honest":
        assert said.out == f"session {name}: pairwise, semi_honest, clients trust the server to follow the protocol\n"
        assert "it has joined" in said.err
    else:
        assert not said.out
        assert ("is in active mode, but this client only accepts semi_honest" in said.err) == (protocol == "pairwise")
        assert ("its clients have keys: give this client's key with --identity FILE" in said.err) == (
            protocol == "pairwise"
        )
        assert ("add it to --set protocols if you trust" in said.err) == (protocol == "enclave")


class Taking:
    """A protocol whose clients use their update in the first message."""

    def member(self, _: object) -> Taking:
        return self

    def join(self, subject: Subject, update: LazyUpdate, _: object) -> None:
        update.take(subject.layout)
        raise Misuse("it is in the sum")


def test_a_file_is_in_one_sum_of_a_folder_whatever_number_its_client_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update: str, tmp_path: Path
) -> None:
    planned = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
    description = SessionDescription(
        session="0" * 32, protocol="pairwise", task="sum", round_number=1, answer_bytes=1, terms=planned
    )
    descriptions = [description, description, replace(description, round_number=2)]

    async def joined(_: str, join: Join, **__: object) -> None:
        join(descriptions.pop(0), None).answer(b"")

    def taking(*_: object, **__: object) -> Taking:
        return Taking()

    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    monkeypatch.setattr("secagg.transport.client.contribute", joined)
    monkeypatch.setattr("secagg.platforms.plugs.plug_of", taking)
    said = list[str]()
    for number in (0, 1, 2):
        assert (
            main(["contribute", URL, "--update", update, "--client", str(number), "--state", str(tmp_path / "s")]) == 2
        )
        said.append(capsys.readouterr().err)
    assert all("it is in the sum" in each for each in said[:2]), "clients of one sum may have equal values"
    assert "this update was already uploaded" in said[2]


@pytest.mark.parametrize("protocol", ["pairwise", "lightsecagg"])
def test_a_server_without_certified_keys_says_that_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    protocol: str,
) -> None:
    """LightSecAgg needs a trusted server, even if clients have keys."""
    descriptions = list[SessionDescription]()

    async def begun(
        self: SumServer, session: ServerSession, description: SessionDescription, *, keep: Keep, **_: object
    ) -> Released:
        del self, keep
        session.abort()
        descriptions.append(description)
        raise Misuse("it has begun")

    monkeypatch.setattr(SumServer, "run", begun)
    monkeypatch.setattr(SumServer, "told", told_nobody)
    make_identities(tmp_path / "keys", [ClientId(number) for number in range(5)], SystemCoins())
    clients = ("--clients", "5") if protocol == "pairwise" else ("--set", f"roster={tmp_path / 'keys' / 'roster.txt'}")
    assert main([*SERVE, "--protocol", protocol, "--listen", "127.0.0.1:0", *clients]) == 2
    assert descriptions[0].mode == "semi_honest"
    assert capsys.readouterr().out.endswith(", semi_honest\n")
    assert "clients trust the server to follow the protocol" in caplog.text


@pytest.mark.parametrize(("clients", "said"), [(4, "the sum needs all 4 clients"), (6, "")])
def test_a_server_says_at_once_that_it_can_lose_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, clients: int, said: str
) -> None:
    async def begun(_: SumServer, session: ServerSession, *__: object, **___: object) -> Released:
        session.abort()
        raise Misuse("it has begun")

    monkeypatch.setattr(SumServer, "run", begun)
    monkeypatch.setattr(SumServer, "told", told_nobody)
    make_identities(tmp_path / "keys", [ClientId(number) for number in range(clients)], SystemCoins())
    assert main([*SERVE, "--listen", "127.0.0.1:0", "--set", f"roster={tmp_path / 'keys' / 'roster.txt'}"]) == 2
    assert said in caplog.text
    assert bool(said) == ("the sum needs all" in caplog.text)


def test_a_sum_of_too_few_is_refused_before_the_server_hears_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update: str, tmp_path: Path
) -> None:
    planned = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
    description = SessionDescription(
        session="0" * 32, protocol="pairwise", task="sum", round_number=1, answer_bytes=1, terms=planned
    )
    asked = list[str]()

    async def ask(_: object, method: str, path: str, **__: object) -> Reply:
        asked.append(f"{method} {path}")
        return Reply(200, description.encode(), "")

    monkeypatch.setattr("secagg.transport.client.Requests.ask", ask)
    client = ("contribute", URL, "--update", update, "--client", "0", "--state", str(tmp_path / "s"))
    said = refusal(capsys, *client, "--set", "minimum_cohort=10")
    assert "the sum has 5 clients, but this client requires at least 10" in said
    assert asked == ["GET /v1/session"]


async def told_nobody(_: SumServer) -> None:
    pass


def test_a_server_goes_on_with_its_own_session_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "state"
    description = SessionDescription(
        session=bytes(16).hex(), protocol="pairwise", task="another", round_number=1, answer_bytes=1
    )
    ServerStore(folder).put(ServerRecord(description.encode(), 0, b"snapshot"))
    said = refusal(capsys, *SERVE, "--clients", "5", "--state", str(folder))
    assert "has a session of pairwise for task 'another'" in said
    planned = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
    ServerStore(folder).put(ServerRecord(replace(description, task="sum", terms=planned).encode(), 0, b"snapshot"))
    said = refusal(capsys, *SERVE, "--clients", "5", "--state", str(folder))
    assert "for task 'sum', round 1, with different arguments; use the same ones again" in said
    ServerStore(folder).put(ServerRecord(replace(description, task="sum", terms=planned).encode(), 0, b"snapshot"))
    said = refusal(capsys, *SERVE, "--bits", "8", "--clients", "5", "--state", str(folder), "--round", "2")
    assert "for task 'sum', round 1, with different arguments" in said
    for round_number, mode in ((1, "semi_honest"), (0, "active")):
        kept = replace(description, task="sum", terms=planned, round_number=round_number, mode=mode)
        ServerStore(folder).put(ServerRecord(kept.encode(), 0, b"snapshot"))
        said = refusal(capsys, *SERVE, "--bits", "8", "--clients", "5", "--state", str(folder), "--round", "0")
        assert f"for task 'sum', round {round_number}, with different arguments" in said
    (folder / "session.record").write_bytes(b"something else")
    assert "not a record of a session" in refusal(capsys, *SERVE, "--clients", "5", "--state", str(folder))
    os.chmod(folder, 0o755)  # noqa: PTH101, S103 -- which is refused
    assert "private to this user" in refusal(capsys, *SERVE, "--clients", "5", "--state", str(folder))


def test_two_servers_go_on_with_no_session_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each would hold it, and the first to end would erase the other's state."""
    folder = tmp_path / "state"
    ServerStore(folder)
    held = os.open(folder, os.O_RDONLY)
    claim(held, "")
    assert "in use by another server" in refusal(capsys, *SERVE, "--clients", "5", "--state", str(folder))
    os.close(held)


@pytest.mark.parametrize("group", [(), ("--group", "1/1", "--round", "1")])
def test_what_was_released_is_written_before_clients_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: tuple[str, ...]
) -> None:
    """A signal may end the server while it sends them, and no other party has the sum.

    The file has the given name, without the ending that numpy would append.
    """
    out, said = tmp_path / "mean", list[bool]()
    members = frozenset(map(ClientId, range(5)))

    async def run(
        self: SumServer, session: ServerSession, description: SessionDescription, *, keep: Keep, **_: object
    ) -> Released:
        del self
        session.abort()
        plan = plan_of(description.protocol, description.terms)
        total = ideal_aggregate(plan.codec.layout, [plan.encode(np.zeros(4), SystemCoins())] * 5)
        released = Released(
            aggregate=total, counted=members, left_out={}, revealed=frozenset({members}), unbounded=tuple[int, ...]()
        )
        await keep(released)
        return released

    async def told(self: SumServer) -> None:
        del self
        said.append(out.exists())
        raise SystemExit(0)

    monkeypatch.setattr(SumServer, "run", run)
    monkeypatch.setattr(SumServer, "told", told)
    options = ("--clients", "5", "--listen", "127.0.0.1:0", *group)
    assert main([*SERVE, *options, "--out", str(out)]) == 0
    assert said == [True]


@pytest.mark.parametrize("storage", [(), ("--storage", "state/there")])
def test_a_storage_within_the_state_leaves_it_to_its_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, storage: tuple[str, ...]
) -> None:
    def begun(*_: object) -> None:
        raise Misuse("it has begun")

    monkeypatch.setattr("secagg.cli.serve._Sum", begun)
    monkeypatch.chdir(tmp_path)
    certified = ("--set", "roster=roster.txt", "--set", "epoch=epoch", "--set", "holders=one.sock,two.sock")
    protocol = ("--protocol", "one-message", *certified, "--engine", "memory")
    options = ("--listen", "127.0.0.1:0", *protocol, "--state", "state", *storage)
    assert "it has begun" in refusal(capsys, *SERVE, *options)
    assert Path("state").stat().st_mode & 0o077 == 0


def test_a_server_whose_sum_could_not_be_written_does_not_begin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    async def begun(
        self: SumServer, session: ServerSession, description: SessionDescription, *, keep: Keep, **_: object
    ) -> Released:
        del self, session, description, keep
        raise Misuse("it has begun")

    monkeypatch.setattr(SumServer, "run", begun)
    (tmp_path / "file").touch()
    options = ("--clients", "5", "--listen", "127.0.0.1:0", "--out", str(tmp_path / "file" / "mean.npy"))
    assert "use another path" in refusal(capsys, *SERVE, *options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["serve", "contribute"])
def test_who_waits_for_a_sum_is_told_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], update: str, number: int, command: str
) -> None:
    async def told_to_stop(*_: object, **__: object) -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(600)

    monkeypatch.setattr(SumServer, "run", told_to_stop)
    monkeypatch.setattr(SumServer, "told", told_nobody)
    monkeypatch.setattr("secagg.transport.client.contribute", told_to_stop)
    if command == "serve":
        arguments = [*SERVE, "--clients", "5", "--listen", "127.0.0.1:0"]
    else:
        arguments = ["contribute", URL, "--update", update, "--client", "0"]
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main(arguments) == 130
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert "stopped before the end of the sum" in capsys.readouterr().err


def test_a_signal_within_a_request_ends_a_command() -> None:
    work = """
import argparse, asyncio, os, signal, time
from secagg.cli.shared import running

async def work():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
    except BaseException:
        print("lost where a request was answered", flush=True)
    await asyncio.sleep(600)

running(work, argparse.Namespace(log_level="info"))
"""
    ended = subprocess.run(  # noqa: S603 -- our own code
        [sys.executable, "-c", work], capture_output=True, text=True, timeout=90, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "")
