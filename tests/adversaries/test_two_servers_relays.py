"""A server that lies to the other one while they decide about uploads."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.point_functions.shares import TreeShare
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import MAXIMUM_BATCH, decode_batch, encode_batch
from secagg.protocols.two_servers.upload import public_bytes
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound, flipped

Check = Callable[..., Any]
Item = tuple[bytes, bytes | None]
Said = tuple[bytes, bytes]
TREE = Layout((RingSegment(20, 6), IndexSegment(200, 4)))
PROPOSAL, ANSWER, CONCLUSION = (
    MessageKind.INDEXING_PROPOSAL,
    MessageKind.INDEXING_ANSWER,
    MessageKind.INDEXING_CONCLUSION,
)
POINT_FUNCTIONS = (SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS)


def items_of(made: InsecureIndexingRound, message: bytes, kind: MessageKind) -> list[Said]:
    """Return what is said of the uploads that are not refused."""
    said = decode_batch(message, kind, made.stamp(int(kind is not ANSWER)))
    return [(upload_id, blob) for upload_id, blob in said if blob is not None]


def batch(made: InsecureIndexingRound, kind: MessageKind, items: Sequence[Item]) -> bytes:
    return encode_batch(kind, made.stamp(int(kind is not ANSWER)), items)


def with_uploads(count: int, **named: Any) -> InsecureIndexingRound:
    return InsecureIndexingRound.of(IndexingSetup(population=count, **named), *range(1, count + 1))


def hears(made: InsecureIndexingRound, kind: MessageKind) -> tuple[IndexingServer, Callable[[bytes], object], bytes]:
    """Return who hears a message of this kind, with which step, and an honest one."""
    proposal = made.one.propose(made.one.waiting())
    if kind is PROPOSAL:
        return made.zero, made.zero.answer, proposal
    answer = made.zero.answer(proposal)
    if kind is ANSWER:
        return made.one, made.one.conclude, answer
    return made.zero, made.zero.settle, made.one.conclude(answer)


# --- The public part --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POINT_FUNCTIONS)
def test_server_0_rejects_an_altered_public_part_before_it_evaluates_anything(
    mode: SharingMode, sum_is_exact: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = 30
    made = with_uploads(clients + 2, layout=TREE, mode=mode, maximum_cohort=clients + 2, maximum_rejections=clients)
    size = public_bytes(made.configuration)
    honest = items_of(made, made.one.propose(made.one.waiting()), PROPOSAL)
    altered = [
        (upload_id, flipped(blob, place * (size - 1) // (clients - 1), place % 8))
        for place, (upload_id, blob) in enumerate(honest[:clients])
    ]

    def evaluate(*_: object, **__: object) -> None:
        raise AssertionError("server 0 evaluates shares under correction words that the client did not sign")

    with monkeypatch.context() as patch:
        patch.setattr(TreeShare, "accumulate", evaluate)
        patch.setattr(TreeShare, "lanes", evaluate)
        patch.setattr(opened_upload, "OneHotVerifier", evaluate)
        answer = made.zero.answer(batch(made, PROPOSAL, altered))
    assert items_of(made, answer, ANSWER) == []
    assert set(made.zero.rejected) == {ClientId(number) for number in range(1, clients + 1)}
    made.zero.settle(made.one.conclude(made.zero.answer(batch(made, PROPOSAL, honest))))
    sum_is_exact(made, clients + 1, clients + 2)


def test_server_1_cannot_relay_one_clients_public_part_for_another(sum_is_exact: Check) -> None:
    made = with_uploads(4, layout=TREE)
    size = public_bytes(made.configuration)
    (first, a), (second, b), *others = items_of(made, made.one.propose(made.one.waiting()), PROPOSAL)
    swapped = [(first, b[:size] + a[size:]), (second, a[:size] + b[size:]), *others]
    made.zero.settle(made.one.conclude(made.zero.answer(batch(made, PROPOSAL, swapped))))
    assert set(made.zero.rejected) == {ClientId(1), ClientId(2)}
    sum_is_exact(made, 3, 4)


# --- Messages that are none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER, CONCLUSION])
@pytest.mark.parametrize("what", ["round", "task", "server", "kind"])
def test_a_message_of_elsewhere_changes_nothing(what: str, kind: MessageKind, refuses: Check) -> None:
    made = with_uploads(2)
    server, hear, message = hears(made, kind)
    items, genuine = items_of(made, message, kind), made.stamp(int(kind is not ANSWER))
    other_task = InsecureIndexingRound(IndexingSetup(task=b"another task")).configuration.context
    if what == "kind":
        wrong = encode_batch(CONCLUSION if kind is not CONCLUSION else PROPOSAL, genuine, items)
        refuses(hear, wrong, UnexpectedMessage, Reason.WRONG_KIND, server.peer)
        return
    changes: dict[str, Any] = {
        "round": {"round_number": 8},
        "task": {"context": other_task},
        "server": {"server": server.server},
    }
    wrong = encode_batch(kind, replace(genuine, **changes[what]), items)
    refuses(hear, wrong, PeerMisbehaved, Reason.WRONG_SESSION, server.peer)


@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER, CONCLUSION])
def test_a_declared_length_allocates_nothing(kind: MessageKind, refuses: Check) -> None:
    made = with_uploads(2)
    server, hear, message = hears(made, kind)
    head = len(batch(made, kind, [])) - 4
    lies = {
        "uploads": message[:head] + MAXIMUM_BATCH.to_bytes(4, "big") + message[head + 4 :],
        "bytes": message[: head + 37] + b"\xff" * 4 + message[head + 41 :],
    }
    for lie in lies.values():
        tracemalloc.start()
        with pytest.raises(MalformedMessage) as caught:
            hear(lie)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert caught.value.reason is Reason.TRUNCATED
        assert peak < 1 << 16
    too_many = message[:head] + (MAXIMUM_BATCH + 1).to_bytes(4, "big") + message[head + 4 :]
    refuses(hear, too_many, MalformedMessage, Reason.LENGTH_OVER_LIMIT, server.peer)


@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER, CONCLUSION])
def test_an_upload_stands_in_a_message_once(kind: MessageKind, refuses: Check) -> None:
    made = with_uploads(2)
    server, hear, message = hears(made, kind)
    first, _ = items_of(made, message, kind)
    twice = batch(made, kind, [first, first])
    refuses(hear, twice, MalformedMessage, Reason.NOT_CANONICAL, server.peer)


@pytest.mark.parametrize("damage", ["cut", "continued", "empty"])
@pytest.mark.parametrize("kind", [PROPOSAL, ANSWER])
def test_what_is_no_word_about_an_upload_rejects_that_upload_alone(
    kind: MessageKind, damage: str, sum_is_exact: Check
) -> None:
    made = with_uploads(3)
    server, hear, message = hears(made, kind)
    (first, blob), *others = items_of(made, message, kind)
    damaged = {"cut": blob[:-1], "continued": blob + b"\0", "empty": b""}[damage]
    heard = hear(batch(made, kind, [(first, damaged), *others]))
    assert set(server.rejected) == {ClientId(1)}
    assert isinstance(heard, bytes)
    made.zero.settle(made.one.conclude(heard) if kind is PROPOSAL else heard)
    made.check()
    sum_is_exact(made, 2, 3)


# --- Said twice, or something else ------------------------------------------------------------------------------------


def test_an_upload_is_asked_about_once(refuses: Check, sum_is_exact: Check) -> None:
    """A second commitment, after server 1 has seen the opening, would let it choose what it opens."""
    made = with_uploads(2)
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    (first, blob), second = items_of(made, proposal, PROPOSAL)
    another = batch(made, PROPOSAL, [(first, flipped(blob, len(blob) - 1)), second])
    refuses(made.zero.answer, another, PeerMisbehaved, Reason.ALREADY_ANSWERED, ServerId(1))
    assert made.zero.answer(proposal) == answer
    made.zero.settle(made.one.conclude(answer))
    sum_is_exact(made, 1, 2)


def test_an_upload_that_was_decided_is_not_opened_again(memory_of: Check, sum_is_exact: Check) -> None:
    made = with_uploads(3)
    answer = made.zero.answer(made.one.propose(made.one.waiting()))
    (first, blob), (second, other), third = items_of(made, answer, ANSWER)
    lie = [(first, flipped(blob, len(blob) - 1)), (second, other), third]
    conclusion = made.one.conclude(batch(made, ANSWER, lie))
    assert [upload_id for upload_id, _ in items_of(made, conclusion, CONCLUSION)] == [second, third[0]]
    before = memory_of(made.one)
    again = made.one.conclude(answer)
    assert items_of(made, again, CONCLUSION) == []
    assert memory_of(made.one) == before
    made.zero.settle(conclusion)
    sum_is_exact(made, 2, 3)


@pytest.mark.parametrize("lie", ["opening", "commitment", "echo", "another upload"])
def test_server_0_opens_what_it_committed_to(lie: str, sum_is_exact: Check) -> None:
    made = with_uploads(4)
    proposal = made.one.propose(made.one.waiting())
    asked = dict(items_of(made, proposal, PROPOSAL))
    (first, blob), (second, other), *others = items_of(made, made.zero.answer(proposal), ANSWER)
    commitments = len(asked[first]) - public_bytes(made.configuration)
    lies = {
        "opening": flipped(blob, len(blob) - 1),
        "commitment": flipped(blob, 39),
        "echo": asked[first][-commitments:] + blob[commitments:],
        "another upload": other,
    }
    conclusion = made.one.conclude(batch(made, ANSWER, [(first, lies[lie]), (second, other), *others]))
    assert set(made.one.rejected) == {ClientId(1)}
    made.zero.settle(conclusion)
    sum_is_exact(made, 2, 3, 4)


def test_what_server_1_took_and_server_0_must_reject_ends_the_round(raises_exactly: Check) -> None:
    made = with_uploads(3)
    conclusion = made.one.conclude(made.zero.answer(made.one.propose(made.one.waiting())))
    (first, blob), *others = items_of(made, conclusion, CONCLUSION)
    made.zero.settle(batch(made, CONCLUSION, [(first, flipped(blob, len(blob) - 1)), *others]))
    assert set(made.zero.rejected) == {ClientId(1)}
    lists = made.lists()
    for server, theirs in ((made.zero, lists[1]), (made.one, lists[0])):
        raises_exactly(
            lambda server=server, theirs=theirs: server.agree(theirs),
            PeerMisbehaved,
            Reason.SERVERS_DISAGREE,
            ServerId(0),
            ServerId(1),
        )


def test_what_nobody_asked_about_is_not_taken(memory_of: Check) -> None:
    made = with_uploads(2)
    first, second = made.one.waiting()
    answer = made.zero.answer(made.one.propose([first]))
    [(_, blob)] = items_of(made, answer, ANSWER)
    conclusion = made.one.conclude(batch(made, ANSWER, [(first, blob), (second, blob), (bytes(32), blob)]))
    [(_, opening)] = items_of(made, conclusion, CONCLUSION)
    assert made.one.waiting() == (second,)
    made.zero.settle(batch(made, CONCLUSION, [(first, opening), (second, opening), (bytes(32), opening)]))
    assert made.zero.waiting() == (second,)
    before = memory_of(made.zero)
    assert items_of(made, made.zero.answer(batch(made, PROPOSAL, [(bytes(32), blob)])), ANSWER) == []
    assert memory_of(made.zero) == before
