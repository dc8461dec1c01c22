"""Two servers in processes of their own: real children that are killed at every stage, and what either end refuses."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from secagg.errors import (
    AuthenticationFailed,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.journal import NoJournal
from secagg.protocols.two_servers.operators.process import PeerLink, serve
from secagg.protocols.two_servers.operators.remote_server import RemoteServer, ServerLost, decode_result
from secagg.protocols.two_servers.operators.service import IndexingService, encode_result
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.upload import Upload
from secagg.session.frames import decode_refusal, listening, receive_frame, send_frame
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

SETUP = IndexingSetup(population=4, maximum_cohort=6)
CLOSE = Writer(MessageKind.CLOSE_ROUND).finish()
OFFER = Writer(MessageKind.OFFER_REQUEST).finish()
RESULT = Writer(MessageKind.RESULT_REQUEST).finish()
ANSWERED_IN = 60
CHILD = """
import os, signal, sys
from pathlib import Path
from secagg.protocols.two_servers.journal import Event, FileJournal
from secagg.protocols.two_servers.operators.process import serve
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

role, front, peer, journal, when, event = sys.argv[1:]

class Deadly(FileJournal):
    def append(self, what, *fields):
        if (when, event) == ("before", what.name):
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(what, *fields)
        if (when, event) == ("after", what.name):
            os.kill(os.getpid(), signal.SIGKILL)

rig = InsecureIndexingRound(IndexingSetup(population=4, maximum_cohort=6))
rig.restart(int(role), Deadly(Path(journal)))
serve(rig.servers[int(role)], Path(front), Path(peer), ready=lambda: print("ready", flush=True))
"""


# --- Requests and answers, without sockets ----------------------------------------------------------------------------


@dataclass
class Pair:
    """Both services of one round, whose peer connection is a call that a test can cut."""

    rig: InsecureIndexingRound = field(default_factory=lambda: InsecureIndexingRound(SETUP))
    is_cut: bool = False
    heard: list[MessageKind] = field(default_factory=list[MessageKind])

    def __post_init__(self) -> None:
        self.zero = IndexingService(self.rig.zero)
        self.one = IndexingService(self.rig.one, self.ask)

    def ask(self, message: bytes) -> bytes:
        if self.is_cut:
            raise ConnectionRefusedError("cut")
        self.heard.append(message_kind(message))
        answer = self.zero.answer_peer(message)
        if message_kind(answer) is MessageKind.REFUSAL:
            raise decode_refusal(answer)
        return answer

    def upload(self, *numbers: int) -> None:
        for number in numbers:
            for service, half in zip((self.zero, self.one), self.rig.share(number), strict=True):
                assert message_kind(service.answer(half.encode())) is MessageKind.INDEXING_DONE


@pytest.fixture
def pair() -> Pair:
    return Pair()


def refused(answer: bytes) -> SecAggError:
    return decode_refusal(answer)


def test_a_round_through_both_services_gives_the_exact_sum_to_both_operators(pair: Pair) -> None:
    assert pair.zero.answer(OFFER) == pair.rig.zero.offer
    pair.upload(1, 2, 3)
    closed = decode_result(pair.one.answer(CLOSE), pair.rig.configuration)
    assert closed.aggregate.encode() == pair.rig.ideal((1, 2, 3)).encode()
    assert closed.counted == (ClientId(1), ClientId(2), ClientId(3))
    for service in (pair.zero, pair.one):
        assert decode_result(service.answer(RESULT), pair.rig.configuration).aggregate.encode() == (
            pair.rig.ideal((1, 2, 3)).encode()
        )


def test_closing_again_gives_the_same_result(pair: Pair) -> None:
    pair.upload(1, 2)
    first = pair.one.answer(CLOSE)
    assert message_kind(first) is MessageKind.ROUND_RESULT
    assert pair.one.answer(CLOSE) == first


def test_no_result_is_given_before_the_round_is_closed_and_server_0_closes_none(pair: Pair) -> None:
    pair.upload(1, 2)
    for answer in (pair.zero.answer(RESULT), pair.one.answer(RESULT), pair.zero.answer(CLOSE)):
        assert type(refused(answer)) is Misuse
        assert "the operator of server 1 closes the round" in str(refused(answer))


def test_too_few_uploads_close_no_round_and_more_may_come(pair: Pair) -> None:
    pair.upload(1)
    assert isinstance(refused(pair.one.answer(CLOSE)), ThresholdNotMet)
    pair.upload(2)
    result = decode_result(pair.one.answer(CLOSE), pair.rig.configuration)
    assert result.aggregate.encode() == pair.rig.ideal((1, 2)).encode()


def test_a_server_that_cannot_be_reached_is_nobodys_fault_and_nothing_is_lost(pair: Pair) -> None:
    pair.upload(1, 2)
    pair.is_cut = True
    error = refused(pair.one.answer(CLOSE))
    assert isinstance(error, ThresholdNotMet)
    assert str(error) == "2 servers are needed and 1 are present"
    pair.is_cut = False
    assert message_kind(pair.one.answer(CLOSE)) is MessageKind.ROUND_RESULT


@pytest.mark.parametrize("cut_after", range(5))
def test_a_connection_that_is_cut_after_any_message_loses_nothing(pair: Pair, cut_after: int) -> None:
    pair.upload(1, 2, 3)
    asked, ask = list[bytes](), pair.ask

    def cut(message: bytes) -> bytes:
        asked.append(message)
        answer = ask(message)
        if len(asked) == cut_after + 1:
            raise ConnectionResetError("after it arrived")
        return answer

    service = IndexingService(pair.rig.one, cut)
    assert isinstance(refused(service.answer(CLOSE)), ThresholdNotMet)
    assert len(asked) == cut_after + 1
    result = decode_result(service.answer(CLOSE), pair.rig.configuration)
    assert result.aggregate.encode() == pair.rig.ideal((1, 2, 3)).encode()


def test_what_was_concluded_and_did_not_arrive_is_delivered_before_anything_else(pair: Pair) -> None:
    pair.upload(1, 2)
    one = pair.rig.one
    one.conclude(pair.rig.zero.answer(one.propose(one.waiting())))
    restarted = IndexingService(one, pair.ask)
    pair.upload(3)
    pair.heard.clear()
    assert message_kind(restarted.answer(CLOSE)) is MessageKind.ROUND_RESULT
    assert pair.heard[:3] == [
        MessageKind.INDEXING_CONCLUSION,
        MessageKind.INDEXING_PROPOSAL,
        MessageKind.INDEXING_CONCLUSION,
    ]


def test_half_an_upload_holds_nobody_up(pair: Pair) -> None:
    halves = pair.rig.share(4)
    pair.one.answer(halves[1].encode())
    pair.upload(1, 2)
    result = decode_result(pair.one.answer(CLOSE), pair.rig.configuration)
    assert result.counted == (ClientId(1), ClientId(2))
    # What still waits is not asked about in a round that is closed.
    assert message_kind(pair.one.answer(CLOSE)) is MessageKind.ROUND_RESULT


def test_what_server_0_did_not_hold_when_it_was_asked_is_asked_about_again_at_the_end(pair: Pair) -> None:
    halves = [pair.rig.share(number) for number in (1, 2)]
    for _, half in halves:
        pair.one.answer(half.encode())
    Thread(target=pair.one.keep_asking, daemon=True).start()
    deadline = time.monotonic() + ANSWERED_IN
    while MessageKind.INDEXING_PROPOSAL not in pair.heard:
        time.sleep(0.01)
        assert time.monotonic() < deadline
    for half, _ in halves:
        pair.zero.answer(half.encode())
    result = decode_result(pair.one.answer(CLOSE), pair.rig.configuration)
    assert result.counted == (ClientId(1), ClientId(2))


def test_shared_indices_are_counted_with_what_a_dealer_sends_through_the_same_sockets() -> None:
    pair = Pair(InsecureIndexingRound(IndexingSetup(population=3, mode=SharingMode.SEMI_HONEST_INDEX_SHARING)))
    halves = pair.rig.dealer().deal(ClientId(number) for number in (1, 2, 3))
    for service, half in zip((pair.zero, pair.one), halves, strict=True):
        message = half.encode()
        assert len(message) <= service.request_bytes
        assert message_kind(service.answer(message)) is MessageKind.INDEXING_DONE
    pair.upload(1, 2, 3)
    result = decode_result(pair.one.answer(CLOSE), pair.rig.configuration)
    assert result.aggregate.encode() == pair.rig.ideal((1, 2, 3)).encode()


def test_clients_are_refused_with_the_reason_and_the_culprit(pair: Pair) -> None:
    pair.upload(1)
    half, _ = pair.rig.share(2)
    wrong = bytearray(half.encode())
    wrong[-1] ^= 1
    error = refused(pair.zero.answer(bytes(wrong)))
    assert isinstance(error, AuthenticationFailed)
    assert error.culprits == {ClientId(2)}
    other = InsecureIndexingRound(SETUP)
    other.servers = pair.rig.servers
    again = refused(pair.zero.answer(other.share(1)[0].encode()))
    assert isinstance(again, PeerMisbehaved)
    assert again.reason is Reason.ALREADY_ANSWERED
    assert again.culprits == {ClientId(1)}


@pytest.mark.parametrize(
    ("request_", "kind", "reason"),
    [
        (b"", MalformedMessage, Reason.TRUNCATED),
        (b"garbage and more", MalformedMessage, Reason.NOT_CANONICAL),
        (OFFER + b"\0", MalformedMessage, Reason.TRAILING_BYTES),
        (CLOSE + b"\0", MalformedMessage, Reason.TRAILING_BYTES),
        (RESULT + b"\0", MalformedMessage, Reason.TRAILING_BYTES),
        (Writer(MessageKind.INDEXING_UPLOAD).finish(), MalformedMessage, Reason.TRUNCATED),
        (Writer(MessageKind.INDEXING_PROPOSAL).finish(), UnexpectedMessage, Reason.WRONG_KIND),
        (Writer(MessageKind.OUTPUT_SHARE).finish(), UnexpectedMessage, Reason.WRONG_KIND),
        (Writer(MessageKind.REFUSAL).finish(), UnexpectedMessage, Reason.WRONG_KIND),
    ],
)
def test_whatever_comes_to_the_front_socket_is_refused_and_changes_nothing(
    pair: Pair, request_: bytes, kind: type[SecAggError], reason: Reason
) -> None:
    for service in (pair.zero, pair.one):
        error = refused(service.answer(request_))
        assert (type(error), error.reason) == (kind, reason)
    pair.upload(1, 2)
    assert message_kind(pair.one.answer(CLOSE)) is MessageKind.ROUND_RESULT


def test_server_0_takes_only_the_other_servers_messages_and_in_order_from_its_peer(pair: Pair) -> None:
    pair.upload(1, 2)
    for request in (OFFER, CLOSE, RESULT, pair.rig.share(3)[0].encode()):
        assert isinstance(refused(pair.zero.answer_peer(request)), UnexpectedMessage)
    for kind, due in (
        (MessageKind.OUTPUT_COMMITMENT, "a list first"),
        (MessageKind.OUTPUT_SHARE, "a commitment first"),
    ):
        error = refused(pair.zero.answer_peer(Writer(kind).finish()))
        assert isinstance(error, UnexpectedMessage)
        assert error.expected == due
        assert error.culprits == {ServerId(1)}
    assert type(refused(pair.one.answer_peer(OFFER))) is Misuse
    assert message_kind(pair.one.answer(CLOSE)) is MessageKind.ROUND_RESULT


def test_an_error_that_nobody_thought_of_ends_all_answers_and_shows_no_traceback(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    half = pair.rig.share(1)[0].encode()
    monkeypatch.setattr(NoJournal, "append", full)
    for _ in range(2):
        error = refused(pair.zero.answer(half))
        assert isinstance(error, InternalError)
        assert str(error) == "the server met a OSError and answers no more; start it again with its journal"
    monkeypatch.undo()
    assert isinstance(refused(pair.zero.answer(OFFER)), InternalError)
    assert "No space left" in caplog.text


# --- Results ----------------------------------------------------------------------------------------------------------


def result_of(rig: InsecureIndexingRound, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "aggregate": rig.ideal((1, 2)),
        "counted": (ClientId(1), ClientId(2)),
        "left_out": (ClientId(4),),
        "rejected": {ClientId(3): "why \N{SNOWMAN}"},
    }
    return encode_result(RoundResult(**fields | changes))


def test_a_result_arrives_as_it_was(pair: Pair) -> None:
    decoded = decode_result(result_of(pair.rig), pair.rig.configuration)
    assert encode_result(decoded) == result_of(pair.rig)
    assert decoded.rejected == {ClientId(3): "why \N{SNOWMAN}"}
    assert decoded.left_out == (ClientId(4),)


def test_a_result_that_contradicts_itself_is_refused(pair: Pair) -> None:
    rig = pair.rig
    for wrong in (
        result_of(rig, counted=(ClientId(2), ClientId(1))),
        result_of(rig, counted=(ClientId(1), ClientId(1))),
        result_of(rig, counted=(ClientId(1),)),
        result_of(rig, left_out=(ClientId(2),)),
        result_of(rig, rejected={ClientId(1): ""}),
        result_of(rig).replace(b"\xe2\x98\x83", b"\xff\xff\xff"),
        result_of(rig) + b"\0",
        *(result_of(rig)[:length] for length in range(7, len(result_of(rig)))),
    ):
        with pytest.raises(MalformedMessage):
            decode_result(wrong, rig.configuration)


# --- Real processes ---------------------------------------------------------------------------------------------------


def _upload(half: bytes, remote: RemoteServer) -> bytes:
    return remote.upload(half)


class Children:
    """Both servers as children, each of which is started again when it died, with the next death that it is to die."""

    def __init__(self, folder: Path, deaths: dict[int, list[tuple[str, str]]] | None = None) -> None:
        self.rig = InsecureIndexingRound(SETUP)
        self.front = [folder / "f0", folder / "f1"]
        self.peer = folder / "p"
        self.journals = [folder / "j0", folder / "j1"]
        self.deaths = deaths or {}
        self.processes = dict[int, subprocess.Popen[str]]()
        self.killed = 0

    def start(self, role: int) -> subprocess.Popen[str]:
        due = self.deaths.get(role) or [("never", "")]
        when, event = due.pop(0)
        paths = map(str, (self.front[role], self.peer, self.journals[role]))
        process = subprocess.Popen(  # noqa: S603 -- this interpreter
            [sys.executable, "-c", CHILD, str(role), *paths, when, event], stdout=subprocess.PIPE, text=True
        )
        self.processes[role] = process
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def keep_alive(self) -> None:
        for role in (0, 1):
            process = self.processes.get(role)
            # A child may die before it is ready, of what its journal makes it write.
            while process is None or process.poll() is not None:
                if process is not None:
                    process.communicate(timeout=ANSWERED_IN)
                    assert process.returncode == -signal.SIGKILL
                    self.killed += 1
                process = self.start(role)

    def remote(self, role: int) -> RemoteServer:
        return RemoteServer(
            self.front[role],
            self.rig.configuration,
            ServerId(role),
            round_number=SETUP.round_number,
            timeout=ANSWERED_IN,
        )

    def insist(self, role: int, do: Callable[[RemoteServer], Any]) -> Any:
        """Ask until there is an answer, starting again whoever died."""
        for _ in range(40):
            self.keep_alive()
            with suppress(OSError, ThresholdNotMet), self.remote(role) as remote:
                return do(remote)
            time.sleep(0.1)
        raise AssertionError("no answer, however often")

    def share(self, number: int) -> tuple[Upload, Upload]:
        offers = (self.insist(0, RemoteServer.offer), self.insist(1, RemoteServer.offer))
        return self.rig.clients[number - 1].share(
            SETUP.payload_of(number),
            configuration=self.rig.configuration,
            round_number=SETUP.round_number,
            offers=offers,
            now=NOW,
        )

    def deliver(self, halves: Sequence[Upload], order: Sequence[int] = (0, 1)) -> None:
        for role in order:
            message = halves[role].encode()
            self.insist(role, partial(_upload, message))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate(timeout=ANSWERED_IN)


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Callable[..., Children]]:
    made = list[Children]()

    def make(**deaths: list[tuple[str, str]]) -> Children:
        made.append(Children(tmp_path, {int(role[-1]): list(due) for role, due in deaths.items()}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_two_processes_give_the_sum_that_one_gives(children: Callable[..., Children]) -> None:
    both = children()
    for number in (1, 2, 3):
        both.deliver(both.share(number))
    with both.remote(1) as operator:
        closed = operator.close_round()
    assert closed.aggregate.encode() == both.rig.ideal((1, 2, 3)).encode()
    with both.remote(0) as operator:
        assert operator.result().aggregate.encode() == closed.aggregate.encode()
    for path in (*both.front, both.peer):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    for journal in both.journals:
        assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    with both.remote(0) as late, pytest.raises(UnexpectedMessage, match="the round is closed"):
        late.upload(both.share(4)[0].encode())


STAGES = {
    0: ("RECEIVED", "ASKED", "TAKEN", "SIGNED", "AGREED", "OPENED"),
    1: ("RECEIVED", "ASKED", "CONCLUDED", "SIGNED", "AGREED", "OPENED"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("role", [0, 1])
def test_a_server_that_is_killed_at_every_stage_goes_on_and_adds_nothing_twice(
    children: Callable[..., Children], role: int, when: str
) -> None:
    """Whether the record of the stage was lost with the process or not."""
    stages = STAGES[role]
    both = children(**{f"server{role}": [(when, stage) for stage in stages]})
    # What server 1 holds first waits for the end, where all uploads make one batch.
    for number in (1, 2, 3):
        both.deliver(both.share(number), order=(1, 0))
    result = both.insist(1, RemoteServer.close_round)
    assert result.aggregate.encode() == both.rig.ideal((1, 2, 3)).encode()
    assert result.rejected == {}
    assert both.killed == len(stages)
    again = both.insist(1, RemoteServer.close_round)
    assert again.aggregate.encode() == result.aggregate.encode()
    assert both.insist(0, RemoteServer.result).aggregate.encode() == result.aggregate.encode()


def test_uploads_are_asked_about_as_they_come_and_a_kill_between_loses_none(children: Callable[..., Children]) -> None:
    both = children(server0=[("after", "TAKEN")], server1=[("after", "CONCLUDED")])
    for number in (1, 2, 3, 4):
        both.deliver(both.share(number))
    deadline = time.monotonic() + ANSWERED_IN
    while both.killed < 2:
        both.keep_alive()
        time.sleep(0.05)
        assert time.monotonic() < deadline
    result = both.insist(1, RemoteServer.close_round)
    assert result.aggregate.encode() == both.rig.ideal((1, 2, 3, 4)).encode()


def test_who_is_killed_leaves_sockets_that_the_next_one_replaces_and_a_live_one_is_left_alone(
    children: Callable[..., Children], tmp_path: Path
) -> None:
    both = children()
    both.keep_alive()
    os.kill(both.processes[0].pid, signal.SIGKILL)
    both.processes[0].wait(ANSWERED_IN)
    assert both.front[0].is_socket()
    assert both.peer.is_socket()
    both.keep_alive()
    with both.remote(0) as remote:
        remote.offer()
    for path in (both.front[0], tmp_path / "mine"):
        (tmp_path / "mine").write_text("mine")
        with pytest.raises(InvalidParameters, match="name another path"):
            serve(both.rig.zero, path, tmp_path / "other")
    assert (tmp_path / "mine").read_text() == "mine"
    with both.remote(0) as remote:
        remote.offer()


def test_a_client_that_says_nothing_or_nonsense_keeps_nobody_waiting(children: Callable[..., Children]) -> None:
    both = children()
    both.keep_alive()
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as greedy:
        silent.connect(str(both.front[0]))
        silent.sendall(b"\0\0")
        greedy.settimeout(ANSWERED_IN)
        greedy.connect(str(both.front[0]))
        greedy.sendall((1 << 40).to_bytes(8, "big"))
        error = decode_refusal(receive_frame(greedy, 1 << 16))
        assert error.reason is Reason.LENGTH_OVER_LIMIT
        assert greedy.recv(1) == b""
        with both.remote(0) as remote:
            remote.offer()
    with socket.socket(socket.AF_UNIX) as talkative:
        talkative.settimeout(ANSWERED_IN)
        talkative.connect(str(both.front[0]))
        for garbage in (b"", b"?" * 100, CLOSE):
            send_frame(talkative, garbage)
            decode_refusal(receive_frame(talkative, 1 << 16))
        send_frame(talkative, OFFER)
        assert message_kind(receive_frame(talkative, 1 << 16)) is MessageKind.INDEXING_OFFER


# --- The front end's side ---------------------------------------------------------------------------------------------


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Callable[[bytes], RemoteServer]]:
    """Return a connection to what answers everything with the same bytes."""
    made = list[RemoteServer]()

    def make(answer: bytes) -> RemoteServer:
        path = tmp_path / f"fake{len(made)}"

        def answer_one() -> None:
            with listening(path) as listener, listener.accept()[0] as connection, suppress(OSError, MalformedMessage):
                while True:
                    receive_frame(connection, 1 << 24)
                    send_frame(connection, answer)

        Thread(target=answer_one, daemon=True).start()
        rig = InsecureIndexingRound(SETUP)
        for _ in range(200):
            with suppress(OSError):
                remote = RemoteServer(
                    path, rig.configuration, ServerId(1), round_number=SETUP.round_number, timeout=ANSWERED_IN
                )
                made.append(remote)
                return remote
            time.sleep(0.01)
        raise AssertionError("nobody listens")

    yield make
    for remote in made:
        remote.close()


def test_a_front_end_relays_uploads_and_no_other_request(
    answering: Callable[[bytes], RemoteServer], pair: Pair
) -> None:
    remote = answering(Writer(MessageKind.INDEXING_DONE).fixed(bytes(32), 32).finish())
    for request in (CLOSE, RESULT, Writer(MessageKind.INDEXING_PROPOSAL).finish()):
        with pytest.raises(UnexpectedMessage):
            remote.upload(request)
    half = pair.rig.share(1)[1].encode()
    with pytest.raises(MalformedMessage) as caught:
        remote.upload(half + b"\0")
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT
    assert remote.upload(half) == bytes(32)
    with pytest.raises(UnexpectedMessage):
        remote.deal(half)
    with pytest.raises(MalformedMessage):
        remote.deal(Writer(MessageKind.DEALT_CORRELATIONS).finish())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage and more",
        OFFER,
        Writer(MessageKind.INDEXING_DONE).finish(),
        Writer(MessageKind.REFUSAL).finish(),
        Writer(MessageKind.ROUND_RESULT).integer(1 << 60, 8).finish(),
    ],
)
def test_a_server_that_answers_nonsense_is_lost_and_not_believed(
    answering: Callable[[bytes], RemoteServer], answer: bytes, pair: Pair
) -> None:
    half = pair.rig.share(1)[1].encode()
    requests: tuple[Callable[[RemoteServer], object], ...] = (
        RemoteServer.offer,
        RemoteServer.close_round,
        RemoteServer.result,
        partial(_upload, half),
    )
    for do in requests:
        remote = answering(answer)
        with pytest.raises(ServerLost, match="start it again with its journal"):
            do(remote)
        with pytest.raises(ServerLost, match="its connection was closed"):
            remote.offer()


def test_an_offer_of_the_other_server_is_not_relayed(answering: Callable[[bytes], RemoteServer], pair: Pair) -> None:
    assert answering(pair.rig.one.offer).offer() == pair.rig.one.offer
    with pytest.raises(ServerLost, match="another configuration, round or server"):
        answering(pair.rig.zero.offer).offer()


def test_a_lost_connection_to_the_other_server_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "p"
    link = PeerLink(path)
    with pytest.raises(OSError, match="No such file"):
        link.ask(b"1")
    for _ in range(2):

        def answer_once() -> None:
            with listening(path, replaces_dead=True) as listener, listener.accept()[0] as connection:
                send_frame(connection, receive_frame(connection, 1 << 10))

        answering_thread = Thread(target=answer_once)
        answering_thread.start()
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.05)
        assert link.ask(OFFER) == OFFER
        answering_thread.join(ANSWERED_IN)
        with pytest.raises(OSError, match=r"closed|Broken|reset"):
            link.ask(OFFER)
    link.close()
