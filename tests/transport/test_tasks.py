"""Several tasks of one server, with separate clients, memory, connections and ends."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest

from secagg.cli import main
from secagg.cli import serve as serving
from secagg.cli.shared import JsonLines
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse
from secagg.identifiers import ClientId
from secagg.platforms.client_node import DIRECTORY_VARIABLE
from secagg.session.identities import load_identity, load_roster, make_identities
from secagg.session.roles import LazyUpdate, Released, Subject
from secagg.session.sealed_state import StateDirectory
from secagg.transport.client import Join, contribute
from secagg.transport.conductor import counters
from secagg.transport.description import SessionDescription, WireLimits
from secagg.transport.keeping import ClientProgress, ClientStore, ServerRecord, ServerStore
from secagg.transport.listener import listening
from secagg.transport.proof import Admission, Certified, Operators, Prover, header_of
from secagg.transport.server import Front, SumServer
from tests.harness.commands import refusal
from tests.harness.documents import ROOT
from tests.harness.planted import always
from tests.harness.wire_sums import CLIENTS, LAYOUT, MODEL, headers_of, joining, plain_session, quick_limits, until
from tests.harness.wire_town import Process, Town

ONE, TWO = "heights", "weights"
TOKEN = "0123456789abcdef"  # noqa: S105 -- a test's


def subject_of(task: str) -> Subject:
    return Subject(task=task.encode(), round_number=3, layout=LAYOUT, capacity=1 << 20, model_digest=MODEL)


class Tasks:
    """Two tasks behind one front, each with a running plain sum."""

    def __init__(
        self,
        *,
        limits: WireLimits | None = None,
        admissions: Mapping[str, Admission] | None = None,
        operators: Operators | None = None,
        store: ServerStore | None = None,
    ) -> None:
        """Prepare them; the first keeps its session in the store."""
        metrics = counters()
        self.servers = {
            task: SumServer(
                task=task,
                limits=limits or quick_limits(),
                admission=(admissions or {}).get(task),
                metrics=metrics,
                store=store if task == ONE else None,
            )
            for task in (ONE, TWO)
        }
        self.front = Front([*self.servers.values()], operators)
        self.sessions = {task: plain_session(subject=subject_of(task)) for task in self.servers}
        self.descriptions = {
            task: server.description(subject_of(task), "plain") for task, server in self.servers.items()
        }
        self.running = dict[str, asyncio.Task[Released]]()

    def begin(self, task: str) -> None:
        run = self.servers[task].run(self.sessions[task], self.descriptions[task])
        self.running[task] = asyncio.create_task(run)

    def sending(self, task: str) -> int:
        """Return the number of clients whose answers have begun to arrive."""
        current = self.servers[task].current
        return 0 if current is None else current.exchange.counts["sending"]

    def path(self, task: str) -> str:
        return f"/v1/sessions/{self.descriptions[task].session}"

    @asynccontextmanager
    async def open(self, host: str = "127.0.0.1") -> AsyncGenerator[httpx.AsyncClient]:
        """Run both sessions, and connect without a socket."""
        transport = httpx.ASGITransport(app=self.front.app, client=(host, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://sums") as http:
            for task in self.servers:
                self.begin(task)
            try:
                await until(lambda: all(server.is_open for server in self.servers.values()))
                yield http
            finally:
                for each in self.running.values():
                    each.cancel()
                await asyncio.gather(*self.running.values(), return_exceptions=True)

    async def take_part(self, http: httpx.AsyncClient, task: str) -> None:
        subject = subject_of(task)
        await asyncio.gather(
            *(
                contribute(
                    "http://sums", joining(each, subject), prover=Prover(each, SystemCoins()), task=task, http=http
                )
                for each in CLIENTS
            )
        )


# --- Which task -------------------------------------------------------------------------------------------------------


async def test_clients_of_two_tasks_take_part_side_by_side() -> None:
    tasks = Tasks()
    async with tasks.open() as http:
        await asyncio.gather(*(tasks.take_part(http, task) for task in tasks.servers))
        for task in tasks.servers:
            assert (await tasks.running[task]).counted == frozenset(CLIENTS)
        status = (await http.get("/status")).json()
        assert {task: each["ended"] for task, each in status.items()} == dict.fromkeys(
            (ONE, TWO), "the sum of 5 clients was released"
        )
        assert [*(await http.get("/status", params={"task": TWO})).json()] == [TWO]
        metrics = (await http.get("/metrics")).text
        for task in tasks.servers:
            assert f'secagg_sessions_total{{outcome="released",task="{task}"}} 1' in metrics
            assert re.search(rf'secagg_stage_seconds_bucket{{le="0.5",stage="[a-z ]+",task="{task}"}} 1', metrics)


@pytest.mark.parametrize("asked", [{}, {"task": "incomes"}])
async def test_only_an_operator_learns_which_tasks_there_are(asked: dict[str, str]) -> None:
    for operators, host, headers, is_told in (
        (None, "127.0.0.1", {}, True),
        (None, "203.0.113.5", {}, False),
        (None, "127.0.0.1", {"x-forwarded-for": "203.0.113.5"}, False),
        (Operators(TOKEN), "127.0.0.1", {}, False),
        (Operators(TOKEN), "203.0.113.5", {"authorization": f"Bearer {TOKEN}"}, True),
    ):
        tasks = Tasks(operators=operators)
        async with tasks.open(host) as http:
            reply = await http.get("/v1/session", params=asked, headers=headers)
            assert reply.status_code == 403
            assert ("several tasks" if not asked else "no task of this name") in reply.text
            assert (f"{ONE!r}, {TWO!r}" in reply.text) == is_told
            for path in ("/health", "/ready"):
                public = (await http.get(path)).text
                assert ONE not in public
                assert TWO not in public
                misspelt = await http.get(path, params={"task": "no such task"})
                assert (misspelt.status_code, "no task of this name" in misspelt.text) == (403, True)


async def test_a_task_that_is_over_refuses_who_comes_late_and_another_is_still_ready() -> None:
    tasks = Tasks()
    async with tasks.open() as http:
        late = asyncio.create_task(
            http.get("/v1/session", params={"task": ONE, "after": tasks.descriptions[ONE].session})
        )
        await tasks.take_part(http, ONE)
        await tasks.running[ONE]
        tasks.servers[ONE].finish()
        for reply in (await late, await http.get("/v1/session", params={"task": ONE})):
            assert (reply.status_code, "no further session" in reply.text) == (403, True)
        member = await http.get(f"{tasks.path(ONE)}/message", headers=headers_of(CLIENTS[0]))
        assert member.status_code in {200, 401}
        for task, status in ((ONE, 503), (TWO, 200)):
            assert (await http.get("/ready", params={"task": task})).status_code == status
        assert (await http.get("/ready")).status_code == 200
        assert (await http.get("/health")).text == "stage 0\n"


# --- Attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_one_authority", [True, False])
async def test_a_client_of_one_task_is_a_stranger_in_another(tmp_path: Path, *, is_one_authority: bool) -> None:
    """It has its key and a proof for its own task; in the other task its number belongs to another client."""
    folders = {ONE: tmp_path / "one", TWO: tmp_path / "one" if is_one_authority else tmp_path / "two"}
    for folder in {*folders.values()}:
        make_identities(folder, CLIENTS, SystemCoins())
    admissions = dict[str, Admission]()
    invited = {ONE: CLIENTS[:3], TWO: CLIENTS[3:] if is_one_authority else CLIENTS}
    for task, folder in folders.items():
        roster = load_roster(folder / "roster.txt")
        named = {client: roster.certificates[client] for client in invited[task]}
        admissions[task] = Certified(roster.authority, named)
    tasks, own = Tasks(admissions=admissions), CLIENTS[0]
    prover = Prover(own, SystemCoins(), load_identity(folders[ONE] / f"client-{own.value}.key").signing_key)
    async with tasks.open() as http:

        async def status(task: str, method: str, path: str, session: str, as_client: ClientId = own) -> int:
            proof = {"authorization": header_of(as_client, prover.proof(tasks.descriptions[session].encode()))}
            return (await http.request(method, tasks.path(task) + path, headers=proof)).status_code

        assert await status(ONE, "GET", "/message", ONE) == 200
        for as_client in (own, CLIENTS[4]):
            for method, path in (
                ("GET", "/message"),
                ("POST", "/answers/0"),
                ("DELETE", "/client"),
                ("GET", "/progress"),
            ):
                for session in (ONE, TWO):
                    assert await status(TWO, method, path, session, as_client) == 401
        assert (await http.get("/status")).json()[TWO]["clients"]["out"] == 0


class StuckStore(ServerStore):
    """A store whose disk blocks reads and writes until it is released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_let = Event()

    def put(self, record: ServerRecord) -> None:
        self.is_let.wait(20)
        super().put(record)

    def erase(self) -> None:
        self.is_let.wait(20)
        super().erase()


@pytest.mark.parametrize("fails", ["closing", "writing", "erasing"])
async def test_a_task_that_fails_or_stands_still_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    store = StuckStore(tmp_path)
    tasks = Tasks(store=None if fails == "closing" else store)

    def failed() -> None:
        raise Misuse("it fails")

    if fails != "writing":
        store.is_let.set()
        monkeypatch.setattr(tasks.sessions[ONE], "close_stage", failed)
    else:
        monkeypatch.setattr("secagg.transport.server._STUCK_SECONDS", 0.05)
        monkeypatch.setattr(SumServer, "is_open", property(lambda server: server.current is not None))
    try:
        async with tasks.open() as http, asyncio.timeout(10):
            if fails != "writing":
                if fails == "erasing":
                    await until(lambda: tasks.servers[ONE].current is not None)
                    store.is_let.clear()
                await tasks.take_part(http, ONE)
            await tasks.take_part(http, TWO)
            assert (await tasks.running[TWO]).counted == frozenset(CLIENTS)
            status = 503 if fails == "writing" else 200
            while (await http.get("/health")).status_code != status:
                await asyncio.wait([*tasks.running.values()], timeout=0.01)
            assert (await http.get("/health", params={"task": TWO})).status_code == 200
            store.is_let.set()
            if fails != "writing":
                with pytest.raises(Misuse, match="it fails"):
                    await tasks.running[ONE]
    finally:
        store.is_let.set()


async def test_a_crowd_of_one_tasks_clients_leaves_another_its_connections() -> None:
    """Each proven client keeps a connection; each task has a share that the other's clients cannot take."""
    part = quick_limits(poll=600, grace=600, connections=10)
    crowd = [ClientId(number) for number in range(100, 140)]
    tasks = Tasks(limits=part)
    limits = quick_limits(poll=600, grace=600, connections=20)
    async with (
        tasks.open(),
        listening(tasks.front.app, "127.0.0.1", 0, limits=limits) as port,
        AsyncExitStack() as held,
    ):

        async def wait_as(client: ClientId) -> None:
            """Answer the stage, and wait for the next one on an open connection."""
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            held.callback(writer.close)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers_of(client).items())
            path = f"{tasks.path(ONE)}/answers/0"
            writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: 999\r\n\r\n".encode())
            del reader

        for client in crowd:
            await wait_as(client)
        await until(lambda: tasks.sending(ONE) >= part.connections)
        async with asyncio.timeout(20):
            await asyncio.gather(
                *(
                    contribute(
                        f"http://127.0.0.1:{port}",
                        joining(each, subject_of(TWO)),
                        prover=Prover(each, SystemCoins()),
                        task=TWO,
                    )
                    for each in CLIENTS
                )
            )
            assert (await tasks.running[TWO]).counted == frozenset(CLIENTS)


async def test_answers_of_one_task_that_dribble_leave_another_its_memory() -> None:
    tasks, crowd = Tasks(limits=quick_limits(bodies=2, grace=600)), [ClientId(number) for number in range(100, 120)]

    async def dribble() -> AsyncGenerator[bytes]:
        yield b"x"
        await asyncio.sleep(600)

    async with tasks.open() as http:
        slow = [
            asyncio.create_task(
                http.post(f"{tasks.path(ONE)}/answers/0", content=dribble(), headers=headers_of(client))
            )
            for client in crowd
        ]
        await until(lambda: tasks.sending(ONE) == len(crowd))
        async with asyncio.timeout(5):
            await tasks.take_part(http, TWO)
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


class Taking:
    """A protocol whose clients use their update in the first message."""

    def member(self, _: object) -> Taking:
        return self

    def join(self, subject: Subject, update: LazyUpdate, _: object) -> None:
        update.take(subject.layout)
        raise Misuse("it is in the sum")


@pytest.mark.parametrize("are_named", [True, False])
def test_one_upload_is_in_one_of_two_tasks_of_an_authority(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, *, are_named: bool
) -> None:
    """The difference of two sums is an update that is only in one; also for a second authority's client."""
    planned = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
    asked = list[str]()

    async def joined(_: str, join: Join, *, task: str, **__: object) -> None:
        asked.append(task)
        join(
            SessionDescription(
                session="0" * 32,
                protocol="pairwise",
                task=task,
                round_number=len(asked),
                answer_bytes=1,
                mode="active",
                terms=planned,
            ),
            None,
        ).answer(b"")

    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    monkeypatch.setattr("secagg.transport.client.contribute", joined)
    monkeypatch.setattr("secagg.platforms.plugs.plug_of", always(Taking()))
    np.save(tmp_path / "update.npy", np.zeros(4))
    for place in ("one", "two"):
        make_identities(tmp_path / place, [ClientId(0)], SystemCoins())
    said = list[str]()
    for task, place in ((ONE, "one"), (TWO, "one"), (TWO, "two")):
        key, state = str(tmp_path / place / "client-0.key"), str(tmp_path / "s")
        options = ("--update", str(tmp_path / "update.npy"), "--identity", key, "--state", state, "--task", task)
        data = ("--set", "data_name=clinic") if are_named else ()
        assert main(["contribute", "http://127.0.0.1:1", *options, *data]) == 2
        said.append(capsys.readouterr().err)
    assert "it is in the sum" in said[0]
    assert all("this update was already uploaded" in each for each in said[1:])


# --- The file of tasks ------------------------------------------------------------------------------------------------


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


GOOD = "[heights]\nvalues = 4\nclip = 1\nclients = 5\nout = 'one.npy'\n"


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("heights = 3", (), "must have a table [NAME]"),
        ("", (), "must have a table [NAME]"),
        ("['']\nvalues = 3", (), "must have a table [NAME]"),
        (GOOD.replace("heights", '"a\\nb"'), (), "no control characters"),
        ("[heights", (), "is not valid TOML"),
        (GOOD + "colour = 'red'", (), "tasks.toml, [heights]: there is no --colour"),
        (GOOD + "listen = '127.0.0.1:1'", (), "[heights]: --listen applies to all tasks; set it on the command line"),
        (GOOD + "memory = 5", (), "[heights]: --memory applies to all tasks"),
        (GOOD + "metrics_token = 'file'", (), "applies to all tasks"),
        (GOOD + "mem = 5", (), "tasks.toml, [heights]: there is no --mem"),
        (GOOD + "page = true", (), "[heights]: --page applies to all tasks"),
        (GOOD + "bits = [1]", (), "bits must be a string, a number, true, or a table of settings; got [1]"),
        (GOOD + "bits = 'x'", (), "[heights]: argument --bits: invalid int value: 'x'"),
        (GOOD + "[heights.set]\ncolour = 'red'", (), "[heights]: --set colour is not a setting"),
        (GOOD + "[heights.set]\nroster = 'none.txt'", (), "[heights]: there is no file none.txt"),
        (GOOD.replace("clip = 1\n", ""), (), "[heights]: also set --clip"),
        (GOOD + GOOD.replace("heights", "weights"), (), "heights and weights share --out, one.npy; use two"),
        (
            GOOD + GOOD.replace("heights", "weights").replace("one.npy", "away/../one.npy"),
            (),
            "heights and weights share --out, away/../one.npy; use two",
        ),
        (GOOD + "[weights]\nout = 'two.npy'", ("--state", "s"), "share --state, s; use two"),
        (GOOD, ("--page",), "--task and --page cannot be combined"),
        (GOOD, ("--task", "x"), "--task and --page cannot be combined"),
        (
            GOOD + GOOD.replace("heights", "weights").replace("one.npy", "two.npy").replace("= 4", "= 9000000"),
            ("--memory", "64"),
            "[weights]: an upload of this size needs up to",
        ),
    ],
)
def test_a_file_of_tasks_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], text: str, more: tuple[str, ...], said: str
) -> None:
    (place / "tasks.toml").write_text(text, encoding="utf-8")
    shared = () if text.startswith("[heights]\nvalues") else ("--values", "4")
    assert said in refusal(capsys, "serve", "--tasks", "tasks.toml", "--listen", "127.0.0.1:0", *shared, *more)


def test_tasks_share_memory_and_spare_connections(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    (place / "tasks.toml").write_text(GOOD + "[weights]\nvalues = 8\nout = 'two.npy'\nclients = 7\n", encoding="utf-8")
    found = list[Any]()

    async def seen(_: Namespace, each: list[Namespace]) -> None:
        with ExitStack() as resources:
            found.extend(serving._Task(one, len(each), counters(), resources) for one in each)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            await asyncio.gather(*(task.opening for task in found))
        raise Misuse("seen")

    monkeypatch.setattr(serving, "_serve", seen)
    assert main(["serve", "--tasks", "tasks.toml", "--clip", "2", "--memory", "100", "--set", "corrupted=1"]) == 2
    limits = [task.server.limits for task in found]
    assert [each.memory for each in limits] == [50 << 20] * 2
    assert [each.connections for each in limits] == [1005, 1007]
    assert [(task.options.clip, task.options.set) for task in found] == [(1.0, ["corrupted=1"]), (2.0, ["corrupted=1"])]


async def test_each_line_of_a_log_says_of_which_task_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "secagg")
    lines, tasks = list[dict[str, str]](), Tasks()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines(Namespace()).format(record)))

    handler = Lines()
    logging.getLogger("secagg").addHandler(handler)
    close = tasks.sessions[ONE].close_stage

    def closing() -> None:
        logging.getLogger("secagg.protocols").info("said in a session's thread")
        close()

    tasks.sessions[ONE].close_stage = closing  # type: ignore[method-assign]
    try:
        async with tasks.open() as http:
            await http.get(f"{tasks.path(TWO)}/message", headers=headers_of(CLIENTS[0]))
            await http.post(f"{tasks.path(TWO)}/answers/7", headers=headers_of(CLIENTS[0]))
            await tasks.take_part(http, ONE)
            await tasks.running[ONE]
    finally:
        logging.getLogger("secagg").removeHandler(handler)
    said = {(line["event"], line.get("task")) for line in lines}
    assert {("said in a session's thread", ONE), ("answer not taken", TWO), ("session ended", ONE)} <= said
    assert {line.get("task") for line in lines} == {ONE, TWO}


# --- Processes --------------------------------------------------------------------------------------------------------


def serve(town: Town, file: Path, *more: str) -> Process:
    server = town.command(
        "serve", "--tasks", str(file), "--listen", f"127.0.0.1:{town.port}", "--exchange-seconds", "600", *more
    )
    found = re.search(r":(\d+),", server.wait_for("listening at "))
    assert found is not None
    town.port = int(found[1])
    return server


def written(town: Town) -> Path:
    """Write a file of two tasks, each with its own authority's keys."""
    file, text = town.folder / "tasks.toml", ""
    for task in (ONE, TWO):
        keys, place = town.folder / f"keys-{task}", town.folder / task
        assert town.command("keys", "--clients", "5", "--out", str(keys)).ended() == 0
        text += f"[{task}]\nvalues = 8\nclip = 1\nout = '{place}.npy'\nstate = '{place}'\n"
        text += f"[{task}.set]\nroster = '{keys}/roster.txt'\n"
    file.write_text(text, encoding="utf-8")
    return file


def contributed(town: Town, task: str, number: int, *, as_of: str = "", is_paused: bool = False) -> Process:
    update, key = town.folder / f"{task}-{number}.npy", town.folder / f"keys-{as_of or task}" / f"client-{number}.key"
    np.save(update, np.full(8, number / 100 + (task == TWO) / 10))
    state = town.folder / f"state-{task}-{as_of}-{number}"
    return town.command(
        "contribute",
        f"{town.url}:{town.port}",
        *("--update", str(update), "--identity", str(key), "--state", str(state), "--task", task),
        *("--set", f"data_name={task}-{number}"),
        is_paused=is_paused,
    )


@pytest.mark.wire
def test_two_tasks_of_one_process_that_is_killed_in_between(town: Town) -> None:
    """The first is over, and does not begin again; the second continues with its clients."""
    file = written(town)
    server = serve(town, file)
    ones = [contributed(town, ONE, number) for number in range(5)]
    assert [client.ended() for client in ones] == [0] * 5
    twos = [contributed(town, TWO, number) for number in range(4)]
    last = contributed(town, TWO, 4, is_paused=True)
    last.wait_for("asked 0")
    before = (town.folder / f"{ONE}.npy").stat().st_mtime_ns
    server.kill()
    server = serve(town, file)
    server.wait_for("an earlier process wrote")
    refused = contributed(town, ONE, 0)
    assert refused.ended() == 2
    assert "no further session of this task" in refused.text
    strange = contributed(town, "incomes", 0, as_of=ONE)
    assert strange.ended() == 2
    assert f"no task of this name; choose a task with --task: {ONE!r}, {TWO!r}" in strange.text
    foreign = contributed(town, TWO, 3, as_of=ONE)
    assert foreign.ended() == 2
    assert "authentication failed" in foreign.text
    for stage in range(5):
        last.go_on()
        last.wait_for(f"stored {stage}")
        last.go_on()
        if stage < 4:
            last.wait_for(f"asked {stage + 1}")
    assert [client.ended() for client in (*twos, last)] == [0] * 5
    assert server.ended() == 0
    means = [np.load(town.folder / f"{task}.npy")[0] for task in (ONE, TWO)]
    assert np.allclose(means, [0.02, 0.12], atol=1e-3)
    assert (town.folder / f"{ONE}.npy").stat().st_mtime_ns == before
    assert not [*(town.folder / ONE).glob("session*"), *(town.folder / TWO).glob("session*")]


@pytest.mark.wire
def test_a_task_without_a_sum_is_told_at_the_end_and_stops_no_other(town: Town) -> None:
    file = written(town)
    text = file.read_text(encoding="utf-8").replace(f"[{TWO}]\n", f"[{TWO}]\nexchange-seconds = 1\n")
    file.write_text(text, encoding="utf-8")
    server = serve(town, file)
    server.wait_for("the task ended without a sum")
    ones = [contributed(town, ONE, number) for number in range(5)]
    assert [client.ended() for client in ones] == [0] * 5
    assert server.ended() == 2
    assert f"1 of 2 tasks ended without a sum: {TWO}; see the log" in server.text
    assert (town.folder / f"{ONE}.npy").exists()
    assert not (town.folder / f"{TWO}.npy").exists()


def test_a_client_keeps_the_progress_of_each_task(tmp_path: Path) -> None:
    """Its process in one task neither waits for the other's nor takes its state."""
    states = StateDirectory(tmp_path, coins=SystemCoins())
    one, two = (ClientStore(states, "http://sums", CLIENTS[0], task) for task in (ONE, TWO))
    progress = ClientProgress(bytes(16), bytes(65), 0, b"an answer", is_last=False, suspended=b"")
    with one.held(), two.held():
        one.put(progress)
        assert two.take() is None
        two.put(replace(progress, answer=b"another"))
        assert one.take() == progress
        two.erase()
    assert (again := ClientStore(states, "http://sums", CLIENTS[0], ONE).take()) == progress, again


def test_the_file_of_the_guide_is_read(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    guide = (ROOT / "secagg" / "transport" / "README.md").read_text(encoding="utf-8")
    (place / "tasks.toml").write_text(guide.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    found = list[Namespace]()
    monkeypatch.setattr(serving, "_complete", found.append)
    monkeypatch.setattr(serving, "running", always(None))
    assert main(["serve", "--tasks", "tasks.toml", "--protocol", "enclave"]) == 0
    assert [(each.task, each.protocol, each.set) for each in found] == [
        ("heights", "enclave", ["roster=keys/clinics.txt"]),
        ("survey", "enclave", []),
    ]
