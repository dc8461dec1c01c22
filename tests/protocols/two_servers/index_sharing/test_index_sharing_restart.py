"""A server that ends in the middle of a round of index sharing goes on with its journal, and says the same again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from secagg.errors import MalformedMessage, Misuse
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.journal import Event, FileJournal
from secagg.protocols.two_servers.server import IndexingServer
from tests.harness.indexing_rounds import InsecureIndexingRound

Begin = Callable[..., InsecureIndexingRound]


class _Journalled:
    """A round whose servers end and start again when a test says so."""

    def __init__(self, begin: Begin, folder: Path) -> None:
        self.paths = [folder / f"server_{index}" for index in (0, 1)]
        self.made = begin()
        self.opened = list[FileJournal]()
        for index in (0, 1):
            self.made.restart(index, self.open_journal(index))
        self.said = list[bytes]()

    def open_journal(self, index: int) -> FileJournal:
        """Open a server's journal, which nobody else has open."""
        self.opened.append(FileJournal(self.paths[index]))
        return self.opened[-1]

    def close_journals(self) -> None:
        """End the processes of both servers."""
        for journal in self.opened:
            journal.close()

    def restart(self, index: int) -> IndexingServer:
        """End a server's process, and start it again."""
        journal = self.made.journals[index]
        assert isinstance(journal, FileJournal)
        journal.close()
        self.made.restart(index, self.open_journal(index))
        return self.made.servers[index]

    def exchange(self, restarted: dict[str, int]) -> None:
        """Let the servers decide about all that waits; after each named step one of them starts again."""
        made = self.made

        def done(step: str, again: Callable[[], bytes]) -> bytes:
            said = again()
            if step in restarted:
                self.restart(restarted[step])
                assert again() == said, "the same bytes are sent again"
            self.said.append(said)
            return said

        waiting = made.one.waiting()
        proposal = done("propose", lambda: made.one.propose(waiting))
        answer = done("answer", lambda: made.zero.answer(proposal))
        conclusion = done("conclude", lambda: made.one.conclude(answer))
        made.zero.settle(conclusion)
        if "settle" in restarted:
            self.restart(restarted["settle"])
            made.zero.settle(conclusion)
        assert made.zero.waiting() == made.one.waiting() == ()


@pytest.fixture
def journalled(begin: Begin, tmp_path: Path) -> Generator[_Journalled]:
    """Begin a round whose servers write journals."""
    made = _Journalled(begin, tmp_path)
    yield made
    made.close_journals()


def deal(journalled: _Journalled) -> list[bytes]:
    """Hand a batch for everybody to both servers; return both halves."""
    made = journalled.made
    halves = made.dealer().deal(ClientId(number) for number in range(1, 6))
    messages = [half.encode() for half in halves]
    for server, message in zip(made.servers, messages, strict=True):
        server.deal(message)
    return messages


def assert_exact(made: InsecureIndexingRound, *numbers: int) -> None:
    """Let both servers finish, and compare with the sum in the clear."""
    for result in made.finish():
        assert result.aggregate.encode() == made.ideal(numbers).encode()


@pytest.mark.parametrize(
    ("step", "index"), [("propose", 1), ("answer", 0), ("conclude", 1), ("settle", 0), ("settle", 1)]
)
@pytest.mark.parametrize("phase", [0, 1], ids=["a batch", "uploads"])
def test_the_sum_is_exact_whenever_a_server_starts_again(
    phase: int, step: str, index: int, journalled: _Journalled
) -> None:
    made = journalled.made
    deal(journalled)
    journalled.exchange({} if phase else {step: index})
    for number in (1, 2, 4):
        made.upload(number)
    journalled.exchange({step: index} if phase else {})
    assert_exact(made, 1, 2, 4)


@pytest.mark.parametrize("index", [0, 1])
def test_a_batch_is_dealt_again_to_a_server_that_starts_again(index: int, journalled: _Journalled) -> None:
    made, messages = journalled.made, deal(journalled)
    (batch_id,) = made.servers[index].waiting()
    assert journalled.restart(index).deal(messages[index]) == batch_id
    journalled.exchange({})
    for number in (1, 2):
        made.upload(number)
    journalled.restart(index)
    journalled.exchange({})
    assert_exact(made, 1, 2)


@pytest.mark.parametrize("index", [0, 1])
def test_the_sum_is_exact_if_a_server_starts_again_after_every_step(index: int, journalled: _Journalled) -> None:
    made = journalled.made
    deal(journalled)
    journalled.restart(index)
    everywhere = {"propose": 1, "conclude": 1, "settle": 1} if index else {"answer": 0, "settle": 0}
    journalled.exchange(everywhere)
    for number in (5, 3):
        made.upload(number)
        journalled.restart(index)
    journalled.exchange(everywhere)
    journalled.restart(index)
    assert_exact(made, 3, 5)


def test_server_1_turns_its_shares_by_what_was_answered_before_it_ended(journalled: _Journalled) -> None:
    made = journalled.made
    deal(journalled)
    journalled.exchange({})
    for number in (1, 2):
        made.upload(number)
    proposal = made.one.propose(made.one.waiting())
    conclusion = made.one.conclude(made.zero.answer(proposal))
    journalled.restart(1)
    assert made.one.last_conclusion == conclusion
    made.zero.settle(conclusion)
    assert_exact(made, 1, 2)


def test_a_correlation_is_written_down_as_spent_before_a_difference_leaves(journalled: _Journalled) -> None:
    made = journalled.made
    deal(journalled)
    journalled.exchange({})
    made.upload(1)
    (upload_id,) = made.one.waiting()
    written = list[tuple[Event, bytes]]()
    for server, journal in zip(made.servers, made.journals, strict=True):
        assert isinstance(journal, FileJournal)
        append = journal.append

        def record(event: Event, *fields: bytes, append: Callable[..., None] = append) -> None:
            written.append((event, fields[0]))
            append(event, *fields)

        vars(vars(server)["_state"])["_journal"] = type("Recorded", (), {"append": staticmethod(record)})()
    proposal = made.one.propose([upload_id])
    assert written == [(Event.ASKED, upload_id)]
    made.zero.answer(proposal)
    assert written == [(Event.ASKED, upload_id)] * 2


def test_a_batch_that_a_journal_holds_opens_with_that_journal_alone(journalled: _Journalled, begin: Begin) -> None:
    messages = deal(journalled)
    stranger = begin(seed=b"another round").zero
    with pytest.raises(MalformedMessage):
        stranger.deal(messages[0][:-1])
    journalled.close_journals()
    with pytest.raises(Misuse, match="another round, configuration or server"):
        begin(round_number=8).restart(0, journalled.open_journal(0))
