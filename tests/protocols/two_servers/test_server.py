"""One server: every call in every state, every step again, and who is blamed for what."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from secagg.choices import SharingMode
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, Reason, SecAggError, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.opened_upload import RoundTotals
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import decode_batch, encode_batch
from secagg.protocols.two_servers.upload import Upload
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

ZERO, ONE = ServerId(0), ServerId(1)
LAYOUT = Layout((RingSegment(20, 3), IndexSegment(5, 3)))
SETUP = IndexingSetup(population=4, layout=LAYOUT, maximum_rejections=1)
TREES = replace(SETUP, depth=1, population=2)
UNCHECKED = replace(SETUP, mode=SharingMode.UNCHECKED_POINT_FUNCTIONS, depth=1, population=2)


class Round(InsecureIndexingRound):
    """A round whose clients' halves are kept."""

    def __init__(self, setup: IndexingSetup = SETUP) -> None:
        super().__init__(setup)
        self.halves = dict[int, tuple[Upload, Upload]]()
        self.heard = {"list": b"a list", "commitment": b"a commitment", "share": b"a share"}
        """What server 1 has said to server 0 at the end, as far as it has come."""

    def send(self, *numbers: int) -> list[bytes]:
        """Let clients upload to both servers, and return the uploads' ids."""
        for number in numbers:
            self.halves[number] = self.share(number)
            self.deliver(self.halves[number])
        return [self.halves[number][0].upload_id(self.configuration) for number in numbers]

    def asked(self) -> tuple[bytes, bytes]:
        """Go as far as server 0's answer, and return what was said."""
        proposal = self.one.propose(self.one.waiting())
        return proposal, self.zero.answer(proposal)


def collected(setup: IndexingSetup = SETUP) -> Round:
    """Return a round in which clients 1 and 2 were taken, where there are more 3 was asked about and 4 came."""
    made = Round(setup)
    made.send(1, 2)
    made.check()
    if setup.population > 2:
        made.send(3)
        made.asked()
        made.send(4)
    return made


STATES = ("collecting", "signed", "agreed", "opened", "wiped")


def inside(kept: object) -> dict[str, Any]:
    return vars(kept)


def remembered(server: IndexingServer) -> tuple[object, ...]:
    """Return what a step of a server could have changed."""
    release, totals = inside(inside(server)["_release"]), inside(inside(server)["_totals"])
    said = [release[name] for name in ("signed_list", "peer_commitment", "share")]
    sums = [vector.tobytes() for vector in totals["_vectors"]]
    return repr(server), server.waiting(), server.rejected, inside(server)["_concluded"], said, sums


def at(state: str) -> Round:
    made = collected()
    if state in ("signed", "agreed", "opened"):
        zero, made.heard["list"] = made.lists()
        if state != "signed":
            commitment, made.heard["commitment"] = made.zero.agree(made.heard["list"]), made.one.agree(zero)
            if state == "opened":
                made.zero.open(made.heard["commitment"])
                made.heard["share"] = made.one.open(commitment)
    if state == "wiped":
        for server in made.servers:
            server.wipe()
    return made


def is_refused(
    made: Round, call: Callable[[], object], kind: type[SecAggError], reason: Reason | None = None
) -> SecAggError:
    """Check that a call is refused in this way, and that it changes neither server."""
    before = [remembered(server) for server in made.servers]
    with pytest.raises(SecAggError) as caught:
        call()
    assert type(caught.value) is kind, repr(caught.value)
    assert reason in (None, caught.value.reason)
    assert [remembered(server) for server in made.servers] == before
    return caught.value


ALWAYS, NEVER = set[str](STATES), set[str]()
COLLECTING, CLOSED = {"collecting"}, {"signed", "agreed", "opened"}
AGREED = {"agreed", "opened"}
CALLS: dict[str, tuple[Callable[[Round], object], set[str], type[SecAggError]]] = {
    "receive": (lambda made: made.zero.receive(made.halves[1][0].encode()), COLLECTING, UnexpectedMessage),
    "waiting": (lambda made: made.zero.waiting(), ALWAYS, Misuse),
    "rejected": (lambda made: made.zero.rejected, ALWAYS, Misuse),
    "commitment": (lambda made: made.zero.commitment, AGREED, UnexpectedMessage),
    "propose": (lambda made: made.one.propose([]), COLLECTING, Misuse),
    "answer": (lambda made: made.zero.answer(empty(made, ONE)), COLLECTING, UnexpectedMessage),
    "conclude": (lambda made: made.one.conclude(empty(made, ZERO)), COLLECTING, UnexpectedMessage),
    "settle nothing": (lambda made: made.zero.settle(empty(made, ONE, settled=True)), ALWAYS, Misuse),
    "agree": (lambda made: made.zero.agree(made.heard["list"]), CLOSED, UnexpectedMessage),
    "open": (lambda made: made.zero.open(made.heard["commitment"]), AGREED, UnexpectedMessage),
    "combine": (lambda made: made.zero.combine(made.heard["share"]), {"opened"}, UnexpectedMessage),
    "opened share": (lambda made: made.zero.opened_share(), {"opened"}, UnexpectedMessage),
    "close": (lambda made: made.zero.close(), COLLECTING | CLOSED, Misuse),
    "wipe": (lambda made: made.zero.wipe(), ALWAYS, Misuse),
    "repr": (lambda made: repr(made.zero), ALWAYS, Misuse),
}


def empty(made: Round, server: ServerId, *, settled: bool = False) -> bytes:
    kind = MessageKind.INDEXING_PROPOSAL if server == ONE else MessageKind.INDEXING_ANSWER
    stamp = made.stamp(server.index)
    return encode_batch(MessageKind.INDEXING_CONCLUSION if settled else kind, stamp, [])


@pytest.mark.parametrize("state", STATES)
def test_every_call_is_for_its_states(state: str) -> None:
    made = at(state)
    for name, (call, states, kind) in CALLS.items():
        if state not in states:
            # That the other server has not been opened against yet is for the operator of this one to know.
            forgotten = (name, state) == ("combine", "agreed")
            error = is_refused(made, partial(call, made), Misuse if forgotten else kind)
            assert "array" not in str(error), name
    for call, states, _ in CALLS.values():
        # In this order: what closes comes behind what collects, and what fails and wipes comes last.
        if state in states:
            call(made)


@pytest.mark.parametrize("state", STATES)
def test_what_the_other_server_says_out_of_turn_names_both(state: str) -> None:
    made = at(state)
    zero, one = made.servers
    stamp = made.stamp(1)
    asked = made.halves[3][0].upload_id(made.configuration)
    late = encode_batch(MessageKind.INDEXING_CONCLUSION, stamp, [(asked, b"")])
    for server, peer, call, states in (
        (zero, ONE, lambda: zero.answer(empty(made, ONE)), COLLECTING),
        (one, ZERO, lambda: one.conclude(empty(made, ZERO)), COLLECTING),
        (zero, ONE, lambda: zero.settle(late), COLLECTING),
        (zero, ONE, lambda: zero.agree(b"a list"), CLOSED),
        (zero, ONE, lambda: zero.open(b"a commitment"), AGREED),
        (zero, ONE, lambda: zero.combine(b"a share"), AGREED),
    ):
        if state not in states:
            error = is_refused(made, call, UnexpectedMessage, Reason.WRONG_KIND)
            assert isinstance(error, UnexpectedMessage)
            assert error.culprits == {ZERO, ONE}
        assert server.peer == peer


def test_each_server_has_its_own_steps() -> None:
    made = collected()
    for call in (
        lambda: made.zero.propose([]),
        lambda: made.zero.conclude(empty(made, ZERO)),
        lambda: made.one.answer(empty(made, ONE)),
        lambda: made.one.settle(empty(made, ONE, settled=True)),
    ):
        is_refused(made, call, Misuse)


def test_a_list_of_uploads_that_do_not_wait_is_not_proposed() -> None:
    made = collected()
    (waiting, *_), taken = made.one.waiting(), made.halves[1][0].upload_id(made.configuration)
    for uploads in ([taken], [bytes(32)], [waiting, waiting], [waiting, bytes(32)]):
        is_refused(made, lambda uploads=uploads: made.one.propose(uploads), Misuse)  # type: ignore[misc]


def test_only_an_upload_that_was_asked_about_is_added_and_one_of_which_a_part_was_added_ends_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = collected()
    take: Callable[[IndexingServer, bytes], None] = vars(IndexingServer)["_take"]
    asked, came = (made.halves[number][0].upload_id(made.configuration) for number in (3, 4))
    is_refused(made, partial(take, made.zero, came), Misuse)
    monkeypatch.setattr(RoundTotals, "add_masks", always_full)
    with pytest.raises(MemoryError):
        take(made.zero, asked)
    with pytest.raises(Misuse, match="failed"):
        made.zero.close()


def always_full(*_: object) -> None:
    raise MemoryError


def is_ideal(made: Round, numbers: Sequence[int], results: tuple[RoundResult, RoundResult]) -> None:
    expected = made.ideal(numbers).encode()
    for result in results:
        assert result.aggregate.encode() == expected
        assert result.counted == tuple(ClientId(number) for number in numbers)


def test_what_one_server_refuses_is_refused_by_the_other() -> None:
    """Each says so in its turn: server 1 in its proposal or conclusion, and server 0 in its answer."""
    made = Round()
    uploads = made.send(1, 2, 3)
    stamp = made.stamp(1)
    proposal = made.one.propose(uploads)
    items = decode_batch(proposal, MessageKind.INDEXING_PROPOSAL, stamp)
    refusing = encode_batch(MessageKind.INDEXING_PROPOSAL, stamp, [(uploads[0], None), *items[1:]])
    answer = made.zero.answer(refusing)
    assert set(made.zero.rejected) == {ClientId(1)}
    answers = decode_batch(answer, MessageKind.INDEXING_ANSWER, replace(stamp, server=ZERO))
    assert [upload for upload, _ in answers] == uploads[1:]
    refused = encode_batch(MessageKind.INDEXING_ANSWER, replace(stamp, server=ZERO), [(uploads[1], None), answers[1]])
    conclusion = made.one.conclude(refused)
    assert set(made.one.rejected) == {ClientId(2)}
    concluded = decode_batch(conclusion, MessageKind.INDEXING_CONCLUSION, stamp)
    assert concluded[0] == (uploads[1], None)
    made.zero.settle(conclusion)
    assert set(made.zero.rejected) == {ClientId(1), ClientId(2)}
    assert made.zero.waiting() == ()
    again = decode_batch(made.zero.answer(proposal), MessageKind.INDEXING_ANSWER, replace(stamp, server=ZERO))
    assert again == [(uploads[0], None), (uploads[1], None)], "what was rejected is said again"
    last = made.one.conclude(encode_batch(MessageKind.INDEXING_ANSWER, replace(stamp, server=ZERO), again))
    assert decode_batch(last, MessageKind.INDEXING_CONCLUSION, stamp) == again, "by both"
    assert set(made.one.rejected) == {ClientId(1), ClientId(2)}


@pytest.mark.parametrize(
    "setup", [replace(SETUP, population=2), TREES, UNCHECKED], ids=["explicit", "trees", "unchecked"]
)
def test_every_step_again_gives_the_same_bytes(setup: IndexingSetup) -> None:
    made = Round(setup)

    def step(index: int, call: Callable[[IndexingServer], Any]) -> Any:
        """Let a server do something, and again."""
        server = made.servers[index]
        said = call(server)
        before = remembered(server)
        assert call(server) == said
        assert remembered(server) == before
        return said

    for number in (1, 2):
        made.halves[number] = made.share(number)
        for index in (0, 1):
            step(index, lambda server, half=made.halves[number][index]: server.receive(half.encode()))  # type: ignore[misc]
    uploads = made.one.waiting()
    proposal = step(1, lambda server: server.propose(uploads))
    answer = step(0, lambda server: server.answer(proposal))
    conclusion = step(1, lambda server: server.conclude(answer))
    step(0, lambda server: server.settle(conclusion))
    lists = [step(index, lambda server: server.close()) for index in (0, 1)]
    commitments = [step(index, lambda server, index=index: server.agree(lists[1 - index])) for index in (0, 1)]  # type: ignore[misc]
    shares = [step(index, lambda server, index=index: server.open(commitments[1 - index])) for index in (0, 1)]  # type: ignore[misc]
    for index in (0, 1):
        for _ in range(2):
            result = made.servers[index].combine(shares[1 - index])
            assert result.aggregate.encode() == made.ideal([1, 2]).encode()


def started(**changes: Any) -> IndexingServer:
    chosen: dict[str, Any] = {
        "configuration": SETUP.configuration,
        "server": ZERO,
        "round_number": 7,
        "signing_key": SETUP.signing_key_of("server 0"),
        "pair_key": SETUP.pair_key(),
        "coins": SETUP.coins_of("server 0"),
    } | changes
    return IndexingServer(chosen.pop("configuration"), chosen.pop("server"), **chosen)


@pytest.mark.parametrize(
    "changes",
    [{"configuration": None}, {"configuration": SETUP.configuration.encode()}, {"server": 0}, {"round_number": -1}],
)
def test_a_server_is_one_of_two_in_a_round(changes: dict[str, Any]) -> None:
    with pytest.raises((Misuse, InvalidParameters)):
        started(**changes)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_pair_key_has_32_bytes(length: int) -> None:
    with pytest.raises(SecAggError):
        started(pair_key=Secret("pair key", bytes(length)))
    plain: Any = bytes(32)
    with pytest.raises(SecAggError):
        started(pair_key=plain)


def test_a_servers_key_is_of_one_round() -> None:
    coins = [SETUP.coins_of("server 0"), SETUP.coins_of("server 0, later")]
    assert started(coins=coins[0]).offer != started(coins=coins[1]).offer
    pair_key = SETUP.pair_key()
    started(pair_key=pair_key)
    assert not pair_key.is_wiped, "which the caller keeps"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_takes_no_step_of_a_round() -> None:
    """It holds the root and what was uploaded as well: parent and child would sign lists of their own."""
    made = at("agreed")
    child = os.fork()
    if not child:
        refused = 0
        for call in (made.zero.close, lambda: made.zero.commitment, lambda: made.zero.open(made.heard["commitment"])):
            with suppress(Misuse):
                call()
                os._exit(1)
            refused += 1
        made.zero.wipe()
        os._exit(0 if refused == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    is_ideal(made, [1, 2], made.finish())


def test_a_tree_is_not_evaluated_before_its_correction_words_are_there() -> None:
    made = InsecureIndexingRound.of(IndexingSetup(depth=1), 1)
    [pending] = vars(made.zero)["_pending"].values()
    with pytest.raises(Misuse, match="must accept the correction words of a proposal first"):
        pending.exchange.propose()
