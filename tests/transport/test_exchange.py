"""The server's state machine for clients' messages, without sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from secagg.errors import PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.session.roles import Participation, Stage
from secagg.session.run import Limits
from secagg.transport.exchange import LEFT, Answer, Exchange, Verdict

ONE, TWO, THREE = ClientId(1), ClientId(2), ClientId(3)
STAGE = Stage(name="a stage", takes_update=False)
WRONG = PeerMisbehaved("it is wrong", reason=Reason.NOT_CANONICAL, culprits={ONE})
LATE = UnexpectedMessage(expected="something else", received="this")


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def exchange(clock: Clock) -> Exchange:
    made = Exchange(Limits(exchange=10, training=100, patience=1.0, least=1.0), 1000, clock)
    made.open(STAGE, Participation.TOO_FEW)
    return made


def sent(exchange: Exchange, client: ClientId = ONE, participation: Participation = Participation.TOO_FEW) -> Verdict:
    """Send an answer to the open stage."""
    number = exchange.number
    assert exchange.offered(client, number, 10).answer is Answer.READ
    assert exchange.read(client, number).answer is Answer.HAND
    return exchange.settled(client, number, None, participation)


def test_a_client_is_given_its_message_until_its_answer_is_taken(exchange: Exchange) -> None:
    assert exchange.asked(ONE).answer is Answer.MESSAGE
    assert exchange.asked(ONE).answer is Answer.MESSAGE
    assert sent(exchange).answer is Answer.TAKEN
    assert exchange.asked(ONE).answer is Answer.AGAIN
    exchange.open(STAGE, Participation.TOO_FEW)
    assert exchange.asked(ONE).answer is Answer.MESSAGE


def test_an_answer_that_comes_again_is_known_before_it_is_read(exchange: Exchange) -> None:
    sent(exchange)
    assert exchange.offered(ONE, 0, 10).answer is Answer.KNOWN


def test_two_answers_of_one_client_are_not_read_at_once(exchange: Exchange) -> None:
    assert exchange.offered(ONE, 0, 10).answer is Answer.READ
    assert exchange.offered(ONE, 0, 10).answer is Answer.BUSY
    assert exchange.asked(ONE).answer is Answer.AGAIN
    assert exchange.offered(TWO, 0, 10).answer is Answer.READ


def test_an_answer_that_broke_off_may_be_sent_again(exchange: Exchange) -> None:
    assert exchange.offered(ONE, 0, 10).answer is Answer.READ
    exchange.gave_up(ONE)
    assert sent(exchange).answer is Answer.TAKEN


def test_an_answer_that_is_too_long_is_refused_unread(exchange: Exchange) -> None:
    assert exchange.offered(ONE, 0, 1001).answer is Answer.LONG
    assert exchange.offered(ONE, 0, 1000).answer is Answer.READ


def test_the_limit_on_an_answers_length_is_that_of_its_stage(exchange: Exchange) -> None:
    for longest in (50, None):
        exchange.open(STAGE, Participation.TOO_FEW, longest)
        told = f"an answer to stage {exchange.number} has 51 bytes or more; the limit is 50"
        assert exchange.offered(ONE, exchange.number, 51) == Verdict(Answer.LONG, told)
        assert exchange.offered(ONE, exchange.number, None).answer is Answer.READ
        exchange.gave_up(ONE)


@pytest.mark.parametrize(("number", "answer"), [(0, Answer.LATE), (2, Answer.WRONG)])
def test_answers_to_other_stages_are_not_read(exchange: Exchange, number: int, answer: Answer) -> None:
    exchange.open(STAGE, Participation.TOO_FEW)
    assert exchange.offered(ONE, number, 10).answer is answer


def test_an_answer_that_took_longer_than_the_stage_is_not_handed_over(exchange: Exchange) -> None:
    assert exchange.offered(ONE, 0, 10).answer is Answer.READ
    exchange.close()
    assert exchange.read(ONE, 0).answer is Answer.LATE
    exchange.open(STAGE, Participation.TOO_FEW)
    assert exchange.read(ONE, 0).answer is Answer.LATE
    exchange.gave_up(ONE)
    assert sent(exchange).answer is Answer.TAKEN


def test_a_stage_that_closes_takes_nothing_more(exchange: Exchange) -> None:
    exchange.close()
    assert exchange.offered(ONE, 0, 10).answer is Answer.LATE
    assert exchange.asked(ONE).answer is Answer.AGAIN


def test_what_the_session_finds_late_blames_nobody(exchange: Exchange) -> None:
    exchange.offered(ONE, 0, 10)
    assert exchange.settled(ONE, 0, LATE, Participation.TOO_FEW).answer is Answer.LATE
    assert exchange.asked(ONE).answer is Answer.MESSAGE


def test_who_sent_something_wrong_is_out_and_told_why(exchange: Exchange) -> None:
    exchange.offered(ONE, 0, 10)
    refused = exchange.settled(ONE, 0, WRONG, Participation.TOO_FEW)
    assert refused.answer is Answer.REFUSED
    for later in (exchange.asked(ONE), exchange.offered(ONE, 0, 10)):
        assert later == Verdict(Answer.OUT, refused.sentence)
    assert "it is wrong" in refused.sentence
    assert exchange.asked(TWO).answer is Answer.MESSAGE


def test_who_left_is_out(exchange: Exchange) -> None:
    exchange.leave(ONE, Participation.COMPLETE)
    assert exchange.asked(ONE).answer is Answer.OUT
    assert exchange.offered(ONE, 0, 10).answer is Answer.OUT
    assert exchange.left() == 0


def test_who_was_refused_and_then_leaves_is_still_told_why(exchange: Exchange) -> None:
    exchange.offered(ONE, 0, 10)
    refused = exchange.settled(ONE, 0, WRONG, Participation.TOO_FEW)
    exchange.leave(ONE, Participation.TOO_FEW)
    assert exchange.asked(ONE) == Verdict(Answer.OUT, refused.sentence)


def test_who_has_sent_nothing_may_go_and_return_while_the_first_stage_is_open(exchange: Exchange) -> None:
    for client in (ONE, TWO):
        exchange.asked(client)
    assert exchange.present == 2
    assert exchange.step_away(ONE)
    assert (exchange.present, exchange.counts) == (1, {"taken": 0, "sending": 0, "out": 1})
    assert exchange.asked(ONE).answer is Answer.MESSAGE
    assert (exchange.present, exchange.counts["out"]) == (2, 0)
    assert exchange.step_away(ONE)
    exchange.close()
    assert exchange.clients == {"taken": frozenset(), "sending": frozenset(), "out": {ONE}}
    assert not exchange.away, "a stage does not wait for who can no longer return"
    assert exchange.asked(ONE) == Verdict(Answer.OUT, LEFT)
    assert exchange.present == 1


def test_who_has_sent_something_or_is_asked_for_more_does_not_step_away(exchange: Exchange) -> None:
    sent(exchange, TWO)
    exchange.offered(ONE, 0, 10)
    exchange.leave(THREE, Participation.TOO_FEW)
    assert exchange.clients == {"taken": {TWO}, "sending": {ONE}, "out": {THREE}}
    assert not any(exchange.step_away(client) for client in (ONE, TWO, THREE))
    exchange.gave_up(ONE)
    exchange.open(STAGE, Participation.TOO_FEW)
    assert not exchange.step_away(ONE)
    assert exchange.asked(ONE).answer is Answer.MESSAGE


def test_everybody_is_told_how_it_ended(exchange: Exchange) -> None:
    sent(exchange)
    sent(exchange, TWO)
    exchange.end("it is over", is_released=True)
    assert exchange.untold == 2
    assert exchange.asked(ONE) == Verdict(Answer.DONE, "it is over")
    assert exchange.untold == 1
    assert exchange.offered(TWO, 0, 10) == Verdict(Answer.DONE, "it is over")
    exchange.asked(TWO)
    assert exchange.untold == 0


def test_who_uploaded_before_a_restart_and_is_not_back_is_awaited_at_the_end(exchange: Exchange) -> None:
    """It pauses between two tries, and would find no server that knows its session's outcome."""
    sent(exchange, TWO)
    exchange.end("it is over", is_released=True, counted=frozenset({ONE, TWO}))
    assert exchange.untold == 2
    exchange.asked(TWO)
    assert exchange.untold == 1
    assert exchange.asked(ONE) == Verdict(Answer.DONE, "it is over")
    assert exchange.untold == 0


def test_who_is_in_the_sum_and_was_heard_of_is_not_awaited_twice(exchange: Exchange) -> None:
    """A client that uploaded, but left before the last stage."""
    sent(exchange)
    exchange.close()
    exchange.open(STAGE, Participation.TOO_FEW)
    exchange.end("it is over", is_released=True, counted=frozenset({ONE}))
    assert exchange.untold == 0


def test_who_has_asked_since_a_restart_hears_of_the_end_as_it_waits(exchange: Exchange) -> None:
    assert exchange.asked(ONE).answer is Answer.MESSAGE
    exchange.end("it is over", is_released=True, counted=frozenset({ONE}))
    assert exchange.untold == 0


def test_who_answered_an_earlier_stage_alone_is_not_awaited_at_the_end(exchange: Exchange) -> None:
    """It is gone, and otherwise a server would wait for it as for any client."""
    sent(exchange)
    sent(exchange, TWO)
    exchange.close()
    exchange.open(STAGE, Participation.TOO_FEW)
    sent(exchange)
    exchange.end("it is over", is_released=True)
    assert exchange.untold == 1


def test_a_stage_waits_until_its_time_is_over(exchange: Exchange, clock: Clock) -> None:
    assert exchange.left() == 10
    clock.now = 4
    assert exchange.left() == 6
    sent(exchange, participation=Participation.ENOUGH)
    assert exchange.left() == 4
    clock.now = 8
    assert exchange.left() == 0


def test_a_stage_that_everybody_answered_waits_no_longer(exchange: Exchange) -> None:
    sent(exchange, participation=Participation.COMPLETE)
    assert exchange.left() == 0


def test_an_answer_of_the_stage_before_says_nothing_of_this_one(exchange: Exchange) -> None:
    exchange.offered(ONE, 0, 10)
    exchange.read(ONE, 0)
    exchange.open(STAGE, Participation.TOO_FEW)
    assert exchange.settled(ONE, 0, None, Participation.COMPLETE).answer is Answer.TAKEN
    assert exchange.left() == 10
    assert exchange.asked(ONE).answer is Answer.MESSAGE


def test_a_restarted_server_counts_stages_on() -> None:
    exchange = Exchange(Limits(exchange=1, training=1), 1000, Clock(), number=3)
    assert exchange.offered(ONE, 3, 10).answer is Answer.BUSY
    assert exchange.offered(ONE, 4, 10).answer is Answer.WRONG
    exchange.open(STAGE, Participation.TOO_FEW)
    assert exchange.number == 3
    assert exchange.offered(ONE, 2, 10).answer is Answer.LATE
    assert sent(exchange).answer is Answer.TAKEN


def test_the_readme_has_every_answer_with_its_status(repository: Path) -> None:
    rows = (repository / "secagg" / "transport" / "README.md").read_text(encoding="utf-8")
    listed = [
        row.split("|")[1:3]
        for row in rows.splitlines()
        if row.startswith("| ") and row.split("|")[2].strip().isdecimal()
    ]
    due = [[name, str(status)] for name, status in (each.value for each in Answer) if status != 100]
    assert [[name.strip(), status.strip()] for name, status in listed] == due


CLIENTS = st.builds(ClientId, st.integers(0, 4))
PARTICIPATION = st.sampled_from(Participation)


class AnyOrder(RuleBasedStateMachine):
    """Requests in any order: one answer of a client is accepted in a stage, and none for another stage."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.exchange = Exchange(Limits(exchange=10, training=10), 100, self.clock)
        self.reading = dict[ClientId, int]()
        self.handed = dict[ClientId, int]()
        self.taken, self.out = set[tuple[ClientId, int]](), set[ClientId]()
        self.is_over = False

    @rule(participation=PARTICIPATION)
    def open(self, participation: Participation) -> None:
        if not self.is_over and not self.handed:
            self.exchange.close()
            self.exchange.open(STAGE, participation)

    @rule()
    def end(self) -> None:
        if not self.handed:
            self.exchange.end("over", is_released=False)
            self.is_over = True

    @rule(client=CLIENTS, back=st.integers(-1, 2), length=st.none() | st.integers(0, 200))
    def offer(self, client: ClientId, back: int, length: int | None) -> None:
        number = self.exchange.number - back
        answer = self.exchange.offered(client, number, length).answer
        if answer is Answer.READ:
            assert back == 0
            assert not self.is_over
            assert client not in self.out
            assert client not in self.reading
            assert client not in self.handed
            assert (client, number) not in self.taken
            assert length is None or length <= 100
            self.reading[client] = number
        elif self.is_over:
            assert answer is Answer.OVER

    @rule(client=CLIENTS)
    def finish(self, client: ClientId) -> None:
        if client in self.reading:
            number = self.reading.pop(client)
            if self.exchange.read(client, number).answer is Answer.HAND:
                assert number == self.exchange.number
                self.handed[client] = number

    @rule(client=CLIENTS)
    def lose(self, client: ClientId) -> None:
        if self.reading.pop(client, None) is not None:
            self.exchange.gave_up(client)

    @rule(client=CLIENTS, participation=PARTICIPATION, error=st.sampled_from([None, WRONG, LATE]))
    def settle(
        self, client: ClientId, participation: Participation, error: PeerMisbehaved | UnexpectedMessage | None
    ) -> None:
        if client in self.handed:
            number = self.handed.pop(client)
            answer = self.exchange.settled(client, number, error, participation).answer
            if error is None:
                assert answer is Answer.TAKEN
                assert (client, number) not in self.taken
                self.taken.add((client, number))
            elif error is WRONG:
                assert answer is Answer.REFUSED
                self.out.add(client)

    @rule(client=CLIENTS, participation=PARTICIPATION)
    def leave(self, client: ClientId, participation: Participation) -> None:
        if client not in self.handed:
            self.exchange.leave(client, participation)
            self.out.add(client)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def nobody_is_asked_in_vain(self) -> None:
        for client in map(ClientId, range(5)):
            if self.exchange.asked(client).answer is Answer.MESSAGE:
                assert not self.is_over
                assert client not in self.out
                assert (client, self.exchange.number) not in self.taken
        assert self.exchange.left() >= 0


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_client_that_leaves_again_and_again_has_left_for_good(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time is stored and synced."""
    monkeypatch.setattr("secagg.transport.exchange._MOST_DEPARTURES", 3)
    for _ in range(3):
        assert exchange.step_away(ONE)
        assert exchange.asked(ONE).answer is Answer.MESSAGE
    assert not exchange.step_away(ONE)


def test_who_is_awaited_all_the_same_may_answer_again(exchange: Exchange) -> None:
    """The session may have refused a message that others sent in its name."""
    exchange.offered(ONE, 0, 10)
    refused = exchange.settled(ONE, 0, WRONG, Participation.TOO_FEW, is_awaited=True)
    assert refused.answer is Answer.REFUSED
    assert "it is wrong" in refused.sentence
    assert exchange.asked(ONE).answer is Answer.MESSAGE
    exchange.offered(ONE, 0, 10)
    assert exchange.settled(ONE, 0, None, Participation.TOO_FEW, is_awaited=True).answer is Answer.TAKEN
