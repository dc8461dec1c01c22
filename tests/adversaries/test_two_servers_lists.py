"""Which sums leave, and how often: sets of clients that differ in one would give that client away.

| attack | defence |
|---|---|
| a client is dropped at one server only | both sign whom they took, and nothing leaves unless the lists are the same |
| a second sum, of one client more or less | a server signs one list for a round, and takes no further upload after it |
| a server shows two lists, two commitments or two shares | only what fits what was said first goes on |
| a list, a commitment or a share of elsewhere or of others | all are of one round and server, and lists signed |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import AuthenticationFailed, MalformedMessage, Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.offers import RoundStamp
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import AcceptedList, entries_digest
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
SERVERS = ServerId(0), ServerId(1)
TWO = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
SETUP = IndexingSetup(layout=TWO)


def with_uploads(*numbers: int, **named: Any) -> InsecureIndexingRound:
    made = InsecureIndexingRound(replace(SETUP, **named))
    for number in numbers:
        made.upload(number)
    made.check()
    return made


def stamp(made: InsecureIndexingRound, index: int) -> RoundStamp:
    return RoundStamp(context=made.configuration.context, round_number=made.setup.round_number, server=ServerId(index))


def list_of(made: InsecureIndexingRound, index: int) -> AcceptedList:
    return AcceptedList.decode(made.servers[index].close(), made.configuration, stamp(made, index))


def agreed(made: InsecureIndexingRound) -> tuple[bytes, bytes]:
    """Let both servers sign and agree, and return their commitments."""
    lists = made.zero.close(), made.one.close()
    return made.zero.agree(lists[1]), made.one.agree(lists[0])


def releases_nothing(server: IndexingServer, peer_list: bytes, commitment: bytes) -> None:
    """Check that a server that has given its round up lets nothing go, whatever it is told."""
    share = commitment
    for step, told in ((server.agree, peer_list), (server.open, commitment), (server.combine, share)):
        with pytest.raises(UnexpectedMessage):
            step(told)
    with pytest.raises(Misuse):
        server.close()
    with pytest.raises(UnexpectedMessage):
        server.receive(b"")


# --- One list ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped_at", [0, 1])
@pytest.mark.parametrize("liar_first", [False, True])
def test_a_client_that_one_server_drops_is_noticed_and_nothing_is_released(
    dropped_at: int, raises_exactly: Check, *, liar_first: bool
) -> None:
    """The other server has taken all five; the honest commitment of a whole round is at hand."""
    honest = with_uploads(1, 2, 3, 4, 5)
    liar = with_uploads(1, 2, 3, 4)
    commitments = agreed(liar)
    victim, theirs = honest.servers[1 - dropped_at], liar.servers[dropped_at].close()
    if liar_first:
        comes_too_early = UnexpectedMessage, Reason.WRONG_KIND, victim.peer
        raises_exactly(lambda: victim.agree(theirs), *comes_too_early, unchanged=[victim])
    victim.close()
    error = raises_exactly(lambda: victim.agree(theirs), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)
    assert "4 uploads and not 5" in str(error)
    releases_nothing(victim, theirs, commitments[dropped_at])
    releases_nothing(victim, honest.servers[dropped_at].close(), commitments[dropped_at])


def test_lists_of_equal_length_and_other_members_are_other_lists(raises_exactly: Check) -> None:
    one, other = with_uploads(1, 2, 3), with_uploads(1, 2, 4)
    one.zero.close()
    raises_exactly(lambda: one.zero.agree(other.one.close()), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)


def test_a_list_names_client_upload_and_weight() -> None:
    made = with_uploads(1, 2, 3)
    entries = vars(made.zero)["_rules"].taken()
    digests = {entries_digest(entries), entries_digest(entries[:2])}
    for changes in ({"client": ClientId(9)}, {"upload_id": bytes(32)}, {"weight": 2}):
        digests.add(entries_digest([replace(entries[0], **changes), *entries[1:]]))
    assert len(digests) == 5
    assert entries_digest(entries) == entries_digest(entries[::-1]) == list_digest(made)


def list_digest(made: InsecureIndexingRound) -> bytes:
    return list_of(made, 0).entries_digest


def test_after_the_list_no_upload_is_taken_any_more(raises_exactly: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    made.upload(4)
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    made.zero.close()
    made.one.close()
    late = made.share(5)
    for server, half in zip(made.servers, late, strict=True):
        raises_exactly(
            lambda server=server, half=half: server.receive(half.encode()),
            UnexpectedMessage,
            Reason.WRONG_KIND,
            unchanged=[server],
        )
    comes_too_late = UnexpectedMessage, Reason.WRONG_KIND
    raises_exactly(lambda: made.zero.answer(proposal), *comes_too_late, ServerId(1), unchanged=[made.zero])
    raises_exactly(lambda: made.one.conclude(answer), *comes_too_late, ServerId(0), unchanged=[made.one])
    raises_exactly(lambda: made.one.propose(made.one.waiting()), Misuse, Reason.API_MISUSE, unchanged=[made.one])
    sum_is_exact(made, 1, 2, 3)


def test_a_conclusion_that_comes_after_the_list_is_not_settled(raises_exactly: Check) -> None:
    """Server 1 took the upload, and server 0 has signed without it: there is no sum, rather than two."""
    made = with_uploads(1, 2, 3)
    made.upload(4)
    conclusion = made.one.conclude(made.zero.answer(made.one.propose(made.one.waiting())))
    lists = made.zero.close(), made.one.close()
    raises_exactly(
        lambda: made.zero.settle(conclusion),
        UnexpectedMessage,
        Reason.WRONG_KIND,
        ServerId(1),
        unchanged=[made.zero],
    )
    raises_exactly(lambda: made.zero.agree(lists[1]), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)
    raises_exactly(lambda: made.one.agree(lists[0]), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)


def test_a_server_signs_the_same_list_however_often_it_is_asked(sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    assert len({made.zero.close() for _ in range(3)}) == 1
    commitments = agreed(made)
    assert agreed(made) == commitments
    sum_is_exact(made, 1, 2, 3)
    sum_is_exact(made, 1, 2, 3)


def test_two_lists_of_one_server_end_the_round_even_after_the_share_left(raises_exactly: Check) -> None:
    made, other = with_uploads(1, 2, 3), with_uploads(1, 2)
    commitments = agreed(made)
    share = made.one.open(commitments[0])
    made.zero.open(commitments[1])
    raises_exactly(lambda: made.zero.agree(other.one.close()), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)
    with pytest.raises(UnexpectedMessage):
        made.zero.combine(share)
    releases_nothing(made.zero, made.one.close(), commitments[1])


def test_a_round_that_was_given_up_releases_nothing() -> None:
    for stage in range(3):
        made = with_uploads(1, 2, 3)
        commitments = agreed(with_uploads(1, 2, 3))
        if stage:
            made.zero.close()
        if stage == 2:
            made.zero.agree(made.one.close())
        made.zero.give_up("the operator wants it so")
        releases_nothing(made.zero, made.one.close(), commitments[1])


# --- Whose list, commitment and share ---------------------------------------------------------------------------------


def forged(made: InsecureIndexingRound, forger: str, **changes: Any) -> bytes:
    """Sign the list of server 1 in another's name, or for elsewhere."""
    entries = vars(made.zero)["_rules"].counted
    return AcceptedList.signed(replace(stamp(made, 1), **changes), entries, made.setup.signing_key_of(forger)).encode()


def test_a_list_is_signed_by_the_other_server(raises_exactly: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    own = made.zero.close()
    for forger in ("server 0", "client 1", "authority"):
        raises_exactly(
            lambda forger=forger: made.zero.agree(forged(made, forger)),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
            ServerId(1),
            unchanged=[made.zero],
        )
    raises_exactly(
        lambda: made.zero.agree(own), PeerMisbehaved, Reason.WRONG_SESSION, ServerId(1), unchanged=[made.zero]
    )
    genuine = list_of(made, 1)
    for altered in (
        replace(genuine, contributors=4),
        replace(genuine, entries_digest=bytes(32)),
        replace(genuine, signature=bytes(64)),
    ):
        raises_exactly(
            lambda altered=altered: made.zero.agree(altered.encode()),
            AuthenticationFailed,
            Reason.AUTHENTICATION_FAILED,
            ServerId(1),
            unchanged=[made.zero],
        )
    sum_is_exact(made, 1, 2, 3)


@pytest.mark.parametrize("what", ["round", "task"])
def test_what_is_of_another_round_ends_nothing(what: str, raises_exactly: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    changes: Any = {"round": {"round_number": 8}, "task": {"task": b"another task"}}[what]
    other = with_uploads(1, 2, 3, **changes)
    commitments = agreed(other)
    lists, shares = other.one.close(), other.one.open(commitments[0])
    made.zero.close()

    def is_of_elsewhere(step: Callable[[bytes], object], message: bytes) -> None:
        raises_exactly(lambda: step(message), PeerMisbehaved, Reason.WRONG_SESSION, ServerId(1), unchanged=[made.zero])

    is_of_elsewhere(made.zero.agree, lists)
    genuine = agreed(made)
    is_of_elsewhere(made.zero.open, commitments[1])
    made.zero.open(genuine[1])
    raises_exactly(
        lambda: made.zero.combine(shares),
        PeerMisbehaved,
        Reason.COMMITMENT_MISMATCH,
        ServerId(1),
        unchanged=[made.zero],
    )
    sum_is_exact(made, 1, 2, 3)


@pytest.mark.parametrize("step", ["agree", "open", "combine"])
def test_a_message_that_is_cut_or_continued_changes_nothing(step: str, sum_is_exact: Check, memory_of: Check) -> None:
    made = with_uploads(1, 2, 3)
    lists = made.zero.close(), made.one.close()
    message = lists[1]
    if step != "agree":
        message = made.one.agree(lists[0])
        made.zero.agree(lists[1])
    if step == "combine":
        made.zero.open(message)
        message = made.one.open(made.zero.agree(lists[1]))
    before, hear = memory_of(made.zero), getattr(made.zero, step)
    for altered in (*(message[:cut] for cut in range(len(message))), message + b"\0", message * 2):
        with pytest.raises((MalformedMessage, PeerMisbehaved)) as caught:
            hear(altered)
        assert caught.value.culprits <= {ServerId(1)}
    with pytest.raises((UnexpectedMessage, PeerMisbehaved)):
        hear(made.configuration.encode())
    assert memory_of(made.zero) == before
    sum_is_exact(made, 1, 2, 3)
