"""A server whose process ends at the worst moment, and goes on with its journal.

| attack | defence |
|---|---|
| a server is stopped between any two steps, so that it adds an upload twice | taking and adding is one record |
| it is stopped so that it answers a second time, and differently | what was said is written down first, and compared |
| it is stopped while it writes | the beginning of a record is removed, and nothing else |
| it is stopped so that it signs a second list or opens against a second commitment | both are written down first |
| its disk is full | nothing is said or added that was not written down |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from secagg.crypto.secret import Secret
from secagg.errors import Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.journal import Event, FileJournal, Record
from secagg.protocols.two_servers.one_hot.proof import prove
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import RoundStamp, decode_batch
from secagg.protocols.two_servers.uploads import point_function_halves
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
halves: Any = point_function_halves
SETUP = IndexingSetup(weights=(1, 3))
HONEST = (1, 3, 4)
CHEAT = 2


@pytest.fixture(autouse=True)
def _closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test leaves open, as the end of a process does."""
    opened = list[FileJournal]()
    genuine = FileJournal.__init__

    def recording(self: FileJournal, path: Path) -> None:
        genuine(self, path)
        opened.append(self)

    monkeypatch.setattr(FileJournal, "__init__", recording)
    yield
    for journal in opened:
        journal.close()


def full(_: int) -> None:
    raise OSError(28, "no space left on the device")


@dataclass
class Watched:
    """A journal that remembers where its records end."""

    inner: FileJournal
    ends: list[int] = field(default_factory=list[int])

    def append(self, event: Event, *fields: bytes) -> None:
        self.inner.append(event, *fields)
        self.ends.append(self.inner.path.stat().st_size)

    def records(self) -> Iterator[Record]:
        return self.inner.records()


Step = tuple[int, str, tuple[Any, ...], Any]
"""The server, the name of the step, what it was told, and what it said."""


class Rehearsal:
    """A whole round with a cheat among the clients, whose every message is kept."""

    def __init__(self, folder: Path) -> None:
        self.paths = (folder / "zero", folder / "one")
        self.journals = tuple(Watched(FileJournal(path)) for path in self.paths)
        self.made = InsecureIndexingRound(SETUP, (self.journals[0], self.journals[1]))
        self.steps = list[Step]()
        self.uploads = [self.share(number) for number in (1, CHEAT, 3, 4)]
        self.ideal = self.made.ideal(HONEST, [1, 1, 1]).encode()

    def share(self, number: int) -> Any:
        if number != CHEAT:
            return self.made.share(number)
        with pytest.MonkeyPatch.context() as patch:

            def lie(*args: Any) -> Any:
                zero, one = prove(*args)
                return zero, replace(one, other_part=bytes(32))

            patch.setattr(halves, "prove", lie)
            return self.made.share(number)

    def does(self, index: int, name: str, *told: Any) -> Any:
        said = getattr(self.made.servers[index], name)(*told)
        self.steps.append((index, name, told, said))
        return said

    def script(self) -> Iterator[None]:
        """Go through a round, and stop after every step."""
        for upload in self.uploads[:3]:
            for index in (0, 1):
                self.does(index, "receive", upload[index].encode())
                yield
        yield from self.check()
        for index in (0, 1):
            self.does(index, "receive", self.uploads[3][index].encode())
            yield
        yield from self.check()
        for name, told in (("close", None), ("agree", "close"), ("open", "agree"), ("combine", "open")):
            for index in (0, 1):
                self.does(index, name, *([self.last(1 - index, told)] if told else []))
                yield

    def check(self) -> Iterator[None]:
        proposal = self.does(1, "propose", self.made.one.waiting())
        yield
        answer = self.does(0, "answer", proposal)
        yield
        conclusion = self.does(1, "conclude", answer)
        yield
        self.does(0, "settle", conclusion)
        yield

    def last(self, index: int, name: str) -> Any:
        return next(said for of, named, _, said in reversed(self.steps) if (of, named) == (index, name))

    def restart(self, index: int) -> None:
        self.journals[index].inner.close()
        self.made.restart(index, FileJournal(self.paths[index]))
        reopened: Any = self.made.journals[index]
        self.journals = tuple(Watched(reopened) if at == index else old for at, old in enumerate(self.journals))

    def is_exact(self) -> None:
        for index in (0, 1):
            result = self.last(index, "combine")
            assert result.aggregate.encode() == self.ideal
            assert {client.value for client in result.rejected} == {CHEAT}


def whole(folder: Path) -> Rehearsal:
    folder.mkdir(exist_ok=True)
    rehearsal = Rehearsal(folder)
    for _ in rehearsal.script():
        pass
    rehearsal.is_exact()
    for journal in rehearsal.journals:
        journal.inner.close()
    return rehearsal


STEPS = 6 + 4 + 2 + 4 + 8


def test_the_script_has_so_many_steps(tmp_path: Path) -> None:
    assert len(whole(tmp_path).steps) == STEPS


@pytest.mark.parametrize("step", range(STEPS))
def test_a_server_may_end_after_any_step_and_says_the_same_again(step: int, tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    for at, _ in enumerate(rehearsal.script()):
        if at != step:
            continue
        index, name, told, said = rehearsal.steps[-1]
        offer = rehearsal.made.servers[index].offer
        for stopped in (1 - index, index):
            rehearsal.restart(stopped)
        assert rehearsal.made.servers[index].offer == offer
        again = getattr(rehearsal.made.servers[index], name)(*told)
        if name == "combine":
            assert again.aggregate.encode() == said.aggregate.encode()
        elif name == "answer":
            assert spoken(0, again) == spoken(0, said), "what it refused for good, it may leave out or say again"
        else:
            assert again == said
    rehearsal.is_exact()


# --- A journal that is cut --------------------------------------------------------------------------------------------


def spoken(index: int, message: bytes) -> dict[bytes, bytes]:
    """Return what a message says of the uploads that are not refused."""
    kind = MessageKind.INDEXING_PROPOSAL if index else MessageKind.INDEXING_ANSWER
    stamp = RoundStamp(context=SETUP.configuration.context, round_number=SETUP.round_number, server=ServerId(index))
    return {upload_id: said for upload_id, said in decode_batch(message, kind, stamp) if said is not None}


def told_again(server: IndexingServer, rehearsal: Rehearsal) -> None:
    """Tell a server all that it was told, and check that it says nothing else than it did."""
    for index, name, told, said in rehearsal.steps:
        if index != server.server.index:
            continue
        if name == "propose":
            waiting = [upload_id for upload_id in told[0] if upload_id in server.waiting()]
            with suppress(Misuse):
                assert spoken(1, server.propose(waiting)).items() <= spoken(1, said).items()
        elif name in {"receive", "answer"}:
            with suppress(UnexpectedMessage):
                again = getattr(server, name)(*told)
                if name == "receive":
                    assert again == said
                else:
                    assert spoken(0, again).items() <= spoken(0, said).items()
        elif name == "conclude":
            # Only the last conclusion is kept; of what was decided before that, nothing is said any more.
            with suppress(UnexpectedMessage):
                assert server.conclude(*told) is not None
        elif name == "combine":
            assert server.combine(*told).aggregate.encode() == rehearsal.ideal
        else:
            assert getattr(server, name)(*told) == said, name


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("beyond", [0, 24, -1, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 40))])
def test_a_server_goes_on_from_any_beginning_of_its_journal(index: int, beyond: int, tmp_path: Path) -> None:
    """Whatever the crash left: nothing is added twice, nothing is said otherwise, and the share is the same."""
    rehearsal = whole(tmp_path / "whole")
    journal, path = rehearsal.paths[index].read_bytes(), tmp_path / "cut"
    ends = rehearsal.journals[index].ends
    assert ends[-1] == len(journal)
    for first, stop in pairwise([*ends, len(journal) + 1]):
        size = stop - 1 if beyond < 0 else min(first + beyond, stop - 1)
        path.write_bytes(journal[:size])
        path.chmod(0o600)
        rehearsal.made.restart(index, cut := FileJournal(path))
        assert path.stat().st_size == first, "what was begun is removed, and nothing else"
        told_again(rehearsal.made.servers[index], rehearsal)
        cut.close()


# --- A server that could be asked twice -------------------------------------------------------------------------------


def stopped_after(name: str, index: int, folder: Path) -> Rehearsal:
    """Run until a server has done this for the last time, and start it again."""
    rehearsal = Rehearsal(folder)
    last = {"answer": 2}.get(name, 1)
    for _ in rehearsal.script():
        last -= rehearsal.steps[-1][:2] == (index, name)
        if not last:
            break
    rehearsal.restart(index)
    return rehearsal


def test_another_question_after_a_crash_is_refused(tmp_path: Path, raises_exactly: Check) -> None:
    """Asked twice, server 0 would open before the commitment that counts."""
    rehearsal = stopped_after("answer", 0, tmp_path)
    proposal = rehearsal.last(1, "propose")
    another = proposal[:-1] + bytes([proposal[-1] ^ 1])
    zero = rehearsal.made.zero
    raises_exactly(lambda: zero.answer(another), PeerMisbehaved, Reason.ALREADY_ANSWERED, ServerId(1), unchanged=[zero])
    assert zero.answer(proposal) == rehearsal.last(0, "answer")


def test_another_pair_key_after_a_crash_is_noticed(tmp_path: Path) -> None:
    """With it, the rows of an upload would be opened at a second point."""
    rehearsal = stopped_after("answer", 0, tmp_path)
    rehearsal.journals[0].inner.close()
    with Secret("pair key", bytes(32)) as key:
        zero = IndexingServer(
            rehearsal.made.configuration,
            ServerId(0),
            round_number=SETUP.round_number,
            signing_key=SETUP.signing_key_of("server 0"),
            pair_key=key,
            journal=FileJournal(rehearsal.paths[0]),
            coins=SETUP.coins_of("server 0"),
        )
    with pytest.raises(Misuse, match="the same pair key"):
        zero.answer(rehearsal.last(1, "propose"))


def test_no_second_list_after_a_crash(tmp_path: Path) -> None:
    rehearsal = stopped_after("close", 0, tmp_path)
    zero = rehearsal.made.zero
    late = rehearsal.made.share(5)
    with pytest.raises(UnexpectedMessage):
        zero.receive(late[0].encode())
    assert zero.close() == rehearsal.last(0, "close")


def test_no_second_commitment_after_a_crash(tmp_path: Path, raises_exactly: Check) -> None:
    rehearsal = stopped_after("open", 0, tmp_path)
    genuine = rehearsal.last(1, "agree")
    another = genuine[:-1] + bytes([genuine[-1] ^ 1])
    zero = rehearsal.made.zero
    raises_exactly(lambda: zero.open(another), PeerMisbehaved, Reason.ALREADY_ANSWERED, ServerId(1), unchanged=[zero])
    assert zero.open(genuine) == rehearsal.last(0, "open")


def test_a_round_that_was_given_up_stays_so_after_a_crash(tmp_path: Path) -> None:
    rehearsal = stopped_after("agree", 0, tmp_path)
    rehearsal.made.zero.give_up("enough")
    rehearsal.restart(0)
    zero = rehearsal.made.zero
    for step in (zero.close, lambda: zero.open(b""), lambda: zero.agree(b""), lambda: zero.combine(b"")):
        with pytest.raises((Misuse, UnexpectedMessage)):
            step()


# --- A full disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["receive", "answer", "settle", "close", "agree", "open"])
def test_nothing_is_said_or_added_that_could_not_be_written_down(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_of: Check
) -> None:
    """And what may have been written half is settled when the server starts again."""
    rehearsal = Rehearsal(tmp_path)

    script = rehearsal.script()
    next_steps = {"receive": 0, "answer": 7, "settle": 9, "close": 16, "agree": 18, "open": 20}
    for _ in range(next_steps[step]):
        next(script)
    before = memory_of(rehearsal.made.zero)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            next(script)
    assert memory_of(rehearsal.made.zero) == before
    assert len(rehearsal.steps) == next_steps[step]
    rehearsal.restart(0)
    again = finish(rehearsal, step)
    assert again.aggregate.encode() == rehearsal.ideal


def finish(rehearsal: Rehearsal, step: str) -> Any:
    """Go on from where a step failed at server 0."""
    made = rehearsal.made
    if step == "receive":
        made.deliver(rehearsal.uploads[0])
    if step in {"receive", "answer", "settle"}:
        for upload in rehearsal.uploads if step == "receive" else rehearsal.uploads[3:]:
            made.deliver(upload)
        with suppress(StopIteration):
            made.zero.settle(rehearsal.last(1, "conclude"))
        made.check()
    return made.finish()[0]
