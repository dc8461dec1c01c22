"""``secagg holder``: real processes, killed at any point, never give two different answers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from secagg.cli import main
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.one_message.client import Ledger, OneMessageMember
from secagg.protocols.one_message.session import OneMessageHelpers, OneMessageOptions, Server, open_session
from secagg.session.certificates import SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.roles import LazyUpdate, Released, Update
from secagg.session.signing_keys import issue_certificate
from secagg.session.sockets import NumberedHelpers
from secagg.wire import MessageKind, message_kind
from tests.harness.commands import refusal
from tests.harness.one_message_sums import SumSetup
from tests.harness.standing_holders import StandingHolders, told

SETUP = SumSetup(holders=5)


def update_of(client: ClientId) -> LazyUpdate:
    return LazyUpdate(lambda: Update(SETUP.values_of(client), SETUP.model))


def is_exact(released: Released) -> bool:
    ideal = ideal_aggregate(SETUP.layout, [SETUP.values_of(client) for client in SETUP.clients])
    return released.aggregate.encode() == ideal.encode()


class Deployment(StandingHolders):
    """An authority, and holders in separate processes."""

    def __init__(self, folder: Path) -> None:
        self.authority = told("holder", "keys", "--out", str(folder / "authority"))
        super().__init__(folder, folder / "authority", SETUP.holders)
        assert "5 holders, of which 4 must sign a list and 4 open a sum" in self.said
        self.before_asking: Callable[[Mapping[int, bytes]], None] = lambda _: None
        paths = {number: Path(self.socket(number)) for number in range(SETUP.holders)}
        self.helpers = NumberedHelpers(paths, patience=60)
        answers = dict(self.helpers.ask_all(dict.fromkeys(paths, self.record.encode())))
        self.holder_keys = tuple(answers[number] for number in sorted(answers))

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        self.before_asking(requests)
        yield from self.helpers.ask_all(requests)

    def session(self) -> Server:
        standing = Standing(number=int(time.time())).signed(self.authority_key)
        helpers = OneMessageHelpers(
            record=self.record, keys=self.holder_keys, coins=SystemCoins(), ask_all=self.ask_all, standing=standing
        )
        return open_session(SETUP.subject, OneMessageOptions(), frozenset(SETUP.clients), helpers)

    @property
    def authority_key(self) -> SigningKey:
        with Secret("signing key", (self.folder / "authority").read_bytes()) as seed:
            return SigningKey(seed)

    def upload_all(self, session: Server) -> None:
        for client in SETUP.clients:
            joined = self.member(client, self.authority_key).join(SETUP.subject, update_of(client))
            session.receive(client, joined.answer(session.invitation))

    def member(self, client: ClientId, authority: SigningKey) -> OneMessageMember:
        key = SETUP.key_of(str(client))
        return OneMessageMember(
            client,
            policy=ClientPolicy(authority=authority.public_key),
            ledger=lambda task: Ledger(task, lambda _: None),
            coins=SystemCoins(),
            clock=lambda: datetime.now(UTC),
            signing_key=key,
            certificate=issue_certificate(authority, client, key.public_key),
        )


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("request_number", range(4))
def test_a_holder_that_is_killed_and_started_again_is_absent_from_the_sum(
    deployment: Deployment, request_number: int
) -> None:
    """SIGKILL before the offer, the delivery, the list or the certified list: the sum is exact without that holder."""
    asked = list[Mapping[int, bytes]]()

    def restart_one(requests: Mapping[int, bytes]) -> None:
        if len(asked) == request_number:
            deployment.kill(2)
            deployment.start(2)
        asked.append(requests)

    deployment.before_asking = restart_one
    session = deployment.session()
    deployment.upload_all(session)
    session.close_stage()
    assert is_exact(session.release())
    # Its new process has other keys, and signs nothing that the previous one received.
    for requests in asked:
        ((_, answer),) = deployment.helpers.ask_all({2: next(iter(requests.values()))})
        assert message_kind(answer) is MessageKind.REFUSAL
    ((_, keys),) = deployment.helpers.ask_all({2: deployment.record.encode()})
    assert keys != deployment.holder_keys[2]


def test_too_few_holders_release_nothing(deployment: Deployment) -> None:
    session = deployment.session()
    deployment.upload_all(session)
    session.close_stage()
    deployment.kill(0)
    deployment.kill(4)
    with pytest.raises(ThresholdNotMet, match="missing: holder/0, holder/4"):
        session.release()
    deployment.start(0)
    deployment.start(4)
    with pytest.raises(ThresholdNotMet):
        session.release()


def test_a_holder_that_is_told_to_end_wipes_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    public = list[str]()
    for name in ("authority", *map(str, range(4))):
        assert main(["holder", "keys", "--out", str(tmp_path / name)]) == 0
        public.append(capsys.readouterr().out.strip())
    listed = [part for key in public[1:] for part in ("--holder", key)]
    record = ["--authority", str(tmp_path / "authority"), "--number", "1", "--out", str(tmp_path / "record")]
    assert main(["holder", "record", *record, *listed]) == 0
    serve = ["holder", "serve", "--record", str(tmp_path / "record"), "--listen", str(tmp_path / "socket")]
    serve += ["--key", str(tmp_path / "0"), "--authority"]
    assert "an authority that this holder does not trust" in refusal(capsys, *serve, public[1])
    served = list[dict[str, Any]]()

    def serve_one(service: Any, *_: object, **__: object) -> None:
        served.append(cast("dict[str, Any]", vars(service._helper)))  # noqa: SLF001
        raise InvalidParameters("somebody listens there")

    monkeypatch.setattr("secagg.cli.operators.Service.serve", serve_one)
    assert main([*serve, public[0]]) == 2
    (inside,) = served
    with pytest.raises(Misuse, match="wiped"):
        inside["_key"].sign(Label.ONE_MESSAGE_RECORD, b"")
    with pytest.raises(Misuse, match="wiped"):
        inside["_pair"].open("share", bytes(64), 16, b"", culprits=())


def test_arguments_that_are_no_deployment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    assert main(["holder", "keys", "--out", str(key)]) == 0
    public = capsys.readouterr().out.strip()
    assert "remove the old key" in refusal(capsys, "holder", "keys", "--out", str(key))
    record = ["holder", "record", "--authority", str(key), "--number", "1", "--out", str(tmp_path / "record")]
    assert "hex digits" in refusal(capsys, *record, "--holder", "00")
    others = [part for number in range(3) for part in ("--holder", f"{number + 1:064x}")]
    assert "3 holders do not tolerate 1 corrupted" in refusal(capsys, *record, *others)
    for changes, said in (
        (["--number", "-1"], "--number must be between 0 and"),
        (["--hours", "nan"], "--hours must be above 0"),
        (["--hours", "-5"], "--hours must be above 0"),
        (["--hours", "1e15"], "at most 8784"),
    ):
        assert said in refusal(capsys, *record, *others, "--holder", f"{9:064x}", *changes)
    assert main([*record[:2], "--authority", str(tmp_path / "none"), *record[4:], "--holder", public]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main([*record, *others, "--holder", public]) == 0
    serve = ["holder", "serve", "--record", str(tmp_path / "record"), "--listen", str(tmp_path / "socket")]
    serve += ["--authority", public, "--key"]
    for policy in (["--minimum-holders", "5"], ["--corrupted", "2"]):
        assert "lower --minimum-holders or --corrupted" in refusal(capsys, *serve, str(key), *policy)
    assert main([*serve, str(key), "--minimum-cohort", "1"]) == 2
    assert "minimum_cohort must be an integer in 2" in capsys.readouterr().err
    other = tmp_path / "other"
    assert main(["holder", "keys", "--out", str(other)]) == 0
    capsys.readouterr()
    assert "no holder with the key" in refusal(capsys, *serve, str(other))
    key.chmod(0o644)
    assert "run chmod 600" in refusal(capsys, *serve, str(key))


A_YEAR_IN_A_MOMENT = """
import sys
from datetime import datetime, timedelta
from threading import Thread
from secagg.cli import main, operators

class Clock(datetime):
    ahead = timedelta()
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + cls.ahead

def go_on():
    sys.stdin.readline()
    Clock.ahead = timedelta(days=366)

operators.datetime, operators._MOST_PAUSE = Clock, 0.05
Thread(target=go_on, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""
"""A holder whose clock is set a year ahead on request."""


def test_an_idle_holder_destroys_its_keys_when_the_epoch_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = dict[str, str]()
    for name in ("authority", "key"):
        assert main(["holder", "keys", "--out", str(tmp_path / name)]) == 0
        public[name] = capsys.readouterr().out.strip()
    others = [part for number in range(3) for part in ("--holder", f"{number + 1:064x}")]
    record = ["holder", "record", "--authority", str(tmp_path / "authority"), "--number", "1"]
    assert main([*record, "--holder", public["key"], *others, "--out", str(tmp_path / "record")]) == 0
    serve = ["holder", "serve", "--record", str(tmp_path / "record"), "--key", str(tmp_path / "key")]
    serve += ["--authority", public["authority"]]
    process = subprocess.Popen(  # noqa: S603 -- our own command
        [sys.executable, "-c", A_YEAR_IN_A_MOMENT, *serve, "--listen", str(tmp_path / "socket")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "is ready" in process.stdout.readline()
        process.stdin.write("on\n")
        process.stdin.flush()
        assert "its keys are destroyed" in process.stdout.readline()
        helpers = NumberedHelpers({0: tmp_path / "socket"}, patience=60)
        (answer,) = dict(helpers.ask_all({0: (tmp_path / "record").read_bytes()})).values()
        assert message_kind(answer) is MessageKind.REFUSAL
    finally:
        process.kill()
        process.communicate()
