"""``secagg holder``: real processes, killed at any point, that never say two things."""

from __future__ import annotations

import os
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
from secagg.platforms.keys import load_roster
from secagg.protocols.one_message.client import Ledger, OneMessageMember
from secagg.protocols.one_message.configuration import EpochRecord
from secagg.protocols.one_message.floors import Floors
from secagg.protocols.one_message.requests import Answer, UploadList
from secagg.protocols.one_message.session import (
    OneMessageHelpers,
    OneMessageSettings,
    Server,
    open_session,
)
from secagg.session.certificates import SigningKey, issue_certificate
from secagg.session.roles import LateUpdate, Released, Update
from secagg.session.sockets import NumberedHelpers
from secagg.wire import MessageKind, message_kind
from tests.harness.commands import refusal
from tests.harness.one_message_sums import SumSetup
from tests.harness.standing_holders import StandingHolders, told

SETUP = SumSetup(holders=5)


def update_of(client: ClientId) -> LateUpdate:
    return LateUpdate(lambda: Update(SETUP.values_of(client), SETUP.model))


def is_exact(released: Released) -> bool:
    ideal = ideal_aggregate(SETUP.layout, [SETUP.values_of(client) for client in SETUP.clients])
    return released.aggregate.encode() == ideal.encode()


class Deployment(StandingHolders):
    """An authority, and holders in processes of their own."""

    def __init__(self, folder: Path, rule: str) -> None:
        self.authority = told("holder", "keys", "--out", str(folder / "authority"))
        super().__init__(folder, folder / "authority", SETUP.holders, "--rule", rule)
        assert "5 holders, 4 open a sum" in self.said
        self.heard = list[tuple[int, bytes, bytes]]()
        self.before_asking: Callable[[Mapping[int, bytes]], None] = lambda _: None
        paths = {number: Path(self.socket(number)) for number in range(SETUP.holders)}
        self.helpers = NumberedHelpers(paths, patience=60)
        answers = dict(self.helpers.ask_all(dict.fromkeys(paths, self.record.encode())))
        self.holder_keys = tuple(answers[number] for number in sorted(answers))

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        self.before_asking(requests)
        for number, answer in self.helpers.ask_all(requests):
            self.heard.append((number, requests[number], answer))
            yield number, answer

    def session(self) -> Server:
        helpers = OneMessageHelpers(
            record=self.record, keys=self.holder_keys, coins=SystemCoins(), ask_all=self.ask_all
        )
        return open_session(SETUP.subject, OneMessageSettings(), frozenset(SETUP.clients), helpers)

    def upload_all(self, session: Server) -> None:
        with Secret("signing key", (self.folder / "authority").read_bytes()) as seed:
            authority = SigningKey(seed)
        for client in SETUP.clients:
            joined = self.member(client, authority).join(SETUP.subject, update_of(client))
            session.receive(client, joined.answer(session.invitation))

    def member(self, client: ClientId, authority: SigningKey) -> OneMessageMember:
        key = SETUP.key_of(str(client))
        return OneMessageMember(
            client,
            floors=Floors.usual(authority.public_key),
            ledger=lambda task: Ledger(task, lambda _: None),
            coins=SystemCoins(),
            clock=lambda: datetime.now(UTC),
            signing_key=key,
            certificate=issue_certificate(authority, client, key.public_key),
        )


@pytest.fixture(params=["one_answer", "certified"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, request.param)
    yield made
    made.end()


def test_holders_killed_before_every_request_and_started_again_say_one_thing(deployment: Deployment) -> None:
    """SIGKILL before each request, and twice after: the sum is exact, and the same request has the same answer."""
    turn = 0

    def kill_one(requests: Mapping[int, bytes]) -> None:
        nonlocal turn
        number = sorted(requests)[turn % len(requests)]
        deployment.kill(number)
        deployment.start(number)
        turn += 1

    deployment.before_asking = kill_one
    session = deployment.session()
    deployment.upload_all(session)
    session.close_stage()
    assert is_exact(session.release())
    answers = [(number, request, said) for number, request, said in deployment.heard if is_answer(said)]
    assert len(answers) >= 4
    for number, request, said in answers[:2]:
        deployment.kill(number)
        deployment.start(number)
        assert dict(deployment.helpers.ask_all({number: request})) == {number: said}


def is_answer(message: bytes) -> bool:
    return message_kind(message) is MessageKind.ONE_MESSAGE_ANSWER


@pytest.mark.parametrize("deployment", ["one_answer"], indirect=True)
def test_a_holder_killed_while_it_answers_gives_one_answer(deployment: Deployment) -> None:
    """Two lists of one sum, asked in a row around a kill at a random moment: one of them is answered, ever."""
    session = deployment.session()
    deployment.upload_all(session)
    session.close_stage()
    # What a server that cheats would change.
    upload_list = session.tally.upload_list
    whole = upload_list.encode()
    smaller = UploadList(t0=upload_list.t0, terms=upload_list.terms, listed=upload_list.listed[1:]).encode()
    for number, delay in enumerate((0.0, 0.001, 0.003, 0.01)):
        child = os.fork()
        if child == 0:
            list(deployment.helpers.ask_all({number: smaller}))
            os._exit(0)
        time.sleep(delay)
        deployment.kill(number)
        os.waitpid(child, 0)
        deployment.start(number)
        answers = [deployment.helpers.ask_all({number: asked}) for asked in (whole, smaller, whole)]
        said = [answer for one in answers for _, answer in one]
        given = [answer for answer in said if message_kind(answer) is not MessageKind.REFUSAL]
        assert len({Answer.decode(answer).upload_list for answer in given}) == 1
        assert 0 < len(given) < len(said) == len(answers), "the other list is refused"


@pytest.mark.parametrize("deployment", ["one_answer"], indirect=True)
def test_too_few_holders_release_nothing_until_they_are_back(deployment: Deployment) -> None:
    session = deployment.session()
    deployment.upload_all(session)
    session.close_stage()
    deployment.kill(0)
    deployment.kill(4)
    with pytest.raises(ThresholdNotMet, match="missing: holder/0, holder/4"):
        session.release()
    deployment.start(0)
    deployment.start(4)
    assert is_exact(session.release())


def test_a_holder_that_is_told_to_end_wipes_its_keys_and_keeps_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    public = list[str]()
    for name in ("authority", *map(str, range(4))):
        assert main(["holder", "keys", "--out", str(tmp_path / name)]) == 0
        public.append(capsys.readouterr().out.strip())
    listed = [part for key in public[1:] for part in ("--holder", key)]
    record = ["--authority", str(tmp_path / "authority"), "--number", "1", "--out", str(tmp_path / "record")]
    assert main(["holder", "record", *record, *listed]) == 0
    # Of another authority it keeps nothing.
    believed = ["--authority", public[1], "--key", str(tmp_path / "0"), "--socket", str(tmp_path / "socket")]
    strange = ["holder", "serve", "--record", str(tmp_path / "record"), "--journal", str(tmp_path / "strange")]
    assert "another authority" in refusal(capsys, *strange, *believed)
    assert not (tmp_path / "strange").exists()
    served = list[dict[str, Any]]()

    def serve(service: Any, *_: object, **__: object) -> None:
        inside = cast("dict[str, Any]", vars(service._helper))  # noqa: SLF001
        served.append(inside)
        assert not inside["_journal"].root.is_wiped
        raise InvalidParameters("somebody listens there")

    monkeypatch.setattr("secagg.cli.operators.Service.serve", serve)
    assert (
        main(
            [
                *("holder", "serve", "--record", str(tmp_path / "record"), "--socket", str(tmp_path / "socket")),
                *("--journal", str(tmp_path / "journal"), "--authority", public[0], "--key", str(tmp_path / "0")),
            ]
        )
        == 2
    )
    (inside,) = served
    with pytest.raises(Misuse, match="wiped"):
        inside["_key"].sign(Label.ONE_MESSAGE_RECORD, b"")
    with pytest.raises(Misuse, match="wiped"):
        inside["_pair"].open("share", bytes(64), 16, b"", culprits=())
    assert inside["_journal"].root.is_wiped
    assert (tmp_path / "journal" / "secret").exists()


def test_arguments_that_are_no_deployment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    assert main(["holder", "keys", "--out", str(key)]) == 0
    public = capsys.readouterr().out.strip()
    assert "remove the key that is there" in refusal(capsys, "holder", "keys", "--out", str(key))
    record = ["holder", "record", "--authority", str(key), "--number", "1", "--out", str(tmp_path / "record")]
    assert "hexadecimal digits" in refusal(capsys, *record, "--holder", "00")
    others = [part for number in range(3) for part in ("--holder", f"{number + 1:064x}")]
    assert "3 holders cannot do without 1 corrupted" in refusal(capsys, *record, *others)
    for changes, said in (
        (["--number", "-1"], "--number is in 0.."),
        (["--hours", "nan"], "--hours is above 0"),
        (["--hours", "-5"], "--hours is above 0"),
        (["--hours", "1e15"], "at most 8784"),
        (["--roster", "roster.json"], "name those that hold with --client"),
    ):
        assert said in refusal(capsys, *record, *others, "--holder", f"{9:064x}", *changes)
    assert main([*record[:2], "--authority", str(tmp_path / "none"), *record[4:], "--holder", public]) == 2
    assert "none cannot be read" in capsys.readouterr().err
    assert main([*record, *others, "--holder", public]) == 0
    serve = ["holder", "serve", "--record", str(tmp_path / "record"), "--socket", str(tmp_path / "socket")]
    serve += ["--journal", str(tmp_path / "journal"), "--authority", public, "--key"]
    for floors in (["--minimum-holders", "5"], ["--corrupted", "2"]):
        assert "lower --minimum-holders or --corrupted" in refusal(capsys, *serve, str(key), *floors)
    assert main([*serve, str(key), "--minimum-cohort", "1"]) == 2
    assert "with 0 corrupted clients it is at least 2" in capsys.readouterr().err
    other = tmp_path / "other"
    assert main(["holder", "keys", "--out", str(other)]) == 0
    capsys.readouterr()
    assert "no holder with the key" in refusal(capsys, *serve, str(other))
    key.chmod(0o644)
    assert "chmod it to 600" in refusal(capsys, *serve, str(key))


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
"""A holder whose clock is set a year ahead when it is told to."""


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
    serve += ["--journal", str(tmp_path / "journal"), "--authority", public["authority"]]
    process = subprocess.Popen(  # noqa: S603 -- our own command
        [sys.executable, "-c", A_YEAR_IN_A_MOMENT, *serve, "--socket", str(tmp_path / "socket")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "is ready" in process.stdout.readline()
        assert (tmp_path / "journal" / "secret").exists()
        process.stdin.write("on\n")
        process.stdin.flush()
        assert "its keys are destroyed" in process.stdout.readline()
        assert not list((tmp_path / "journal").iterdir())
        helpers = NumberedHelpers({0: tmp_path / "socket"}, patience=60)
        (answer,) = dict(helpers.ask_all({0: (tmp_path / "record").read_bytes()})).values()
        assert message_kind(answer) is MessageKind.REFUSAL
    finally:
        process.kill()
        process.communicate()


def test_a_committee_of_clients_is_signed_from_their_roster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    assert main(["keys", "--clients", "6", "--out", str(keys)]) == 0
    record = ["holder", "record", "--authority", str(keys / "authority.key"), "--number", "1"]
    record += ["--out", str(tmp_path / "record")]
    clients = [part for client in (0, 2, 3, 5) for part in ("--client", str(client))]
    assert "give --roster" in refusal(capsys, *record, *clients)
    record += ["--roster", str(keys / "roster.json")]
    assert "has no client 7" in refusal(capsys, *record, *clients, "--client", "7")
    assert main([*record, *clients, "--client", "5"]) == 2
    assert "one client twice" in capsys.readouterr().err
    assert main([*record, *clients]) == 0
    signed = EpochRecord.decode((tmp_path / "record").read_bytes())
    listed = load_roster(keys / "roster.json").certificates
    due = [(number, listed[ClientId(number)].public_key) for number in (0, 2, 3, 5)]
    assert [(one.number, one.public_key) for one in signed.holders] == due
