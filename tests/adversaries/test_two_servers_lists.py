"""Which sums leave, and how often: sets of clients that differ in one would give that client away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import (
    AuthenticationFailed,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.offers import Due
from secagg.protocols.two_servers.point_functions.one_hot_check import OneHotCommitment, OneHotOpening
from secagg.protocols.two_servers.point_functions.one_hot_proof import Challenges, prove
from secagg.protocols.two_servers.release import Release
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import (
    NONCE_BYTES,
    AcceptedList,
    OutputCommitment,
    OutputShare,
    decode_batch,
    encode_batch,
)
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
SERVERS = ServerId(0), ServerId(1)
TWO = Layout((RingSegment(20, 6), IndexSegment(8, 5)))
SETUP = IndexingSetup(layout=TWO)


def with_uploads(*numbers: int, **named: Any) -> InsecureIndexingRound:
    return InsecureIndexingRound.of(replace(SETUP, **named), *numbers, checked=True)


def list_of(made: InsecureIndexingRound, index: int) -> AcceptedList:
    return AcceptedList.verified(made.servers[index].close(), made.configuration, made.stamp(index))


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
    dropped_at: int, raises_exactly: Check, refuses: Check, *, liar_first: bool
) -> None:
    """The other server has taken all five; the honest commitment of a whole round is at hand."""
    honest = with_uploads(1, 2, 3, 4, 5)
    liar = with_uploads(1, 2, 3, 4)
    commitments = liar.agreed()
    victim, theirs = honest.servers[1 - dropped_at], liar.servers[dropped_at].close()
    if liar_first:
        comes_too_early = UnexpectedMessage, Reason.WRONG_KIND, *SERVERS
        refuses(victim.agree, theirs, *comes_too_early)
    victim.close()
    error = raises_exactly(lambda: victim.agree(theirs), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)
    assert "4 uploads instead of 5" in str(error)
    releases_nothing(victim, theirs, commitments[dropped_at])
    releases_nothing(victim, honest.servers[dropped_at].close(), commitments[dropped_at])


def test_lists_of_equal_length_and_other_members_are_other_lists(raises_exactly: Check) -> None:
    one, other = with_uploads(1, 2, 3), with_uploads(1, 2, 4)
    one.zero.close()
    raises_exactly(lambda: one.zero.agree(other.one.close()), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)


def list_digest(made: InsecureIndexingRound) -> bytes:
    return list_of(made, 0).entries_digest


def test_a_conclusion_that_comes_after_the_list_is_not_settled(raises_exactly: Check, refuses: Check) -> None:
    """Server 1 took the upload, and server 0 has signed without it: there is no sum, rather than two."""
    made = with_uploads(1, 2, 3)
    made.upload(4)
    conclusion = made.one.conclude(made.zero.answer(made.one.propose(made.one.waiting())))
    lists = made.zero.close(), made.one.close()
    refuses(made.zero.settle, conclusion, UnexpectedMessage, Reason.WRONG_KIND, *SERVERS)
    raises_exactly(lambda: made.zero.agree(lists[1]), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)
    raises_exactly(lambda: made.one.agree(lists[0]), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)


def test_two_lists_of_one_server_end_the_round_even_after_the_share_left(raises_exactly: Check) -> None:
    made, other = with_uploads(1, 2, 3), with_uploads(1, 2)
    commitments = made.agreed()
    share = made.one.open(commitments[0])
    made.zero.open(commitments[1])
    raises_exactly(lambda: made.zero.agree(other.one.close()), PeerMisbehaved, Reason.SERVERS_DISAGREE, *SERVERS)
    with pytest.raises(UnexpectedMessage):
        made.zero.combine(share)
    releases_nothing(made.zero, made.one.close(), commitments[1])


# --- Whose list, commitment and share ---------------------------------------------------------------------------------


def forged(made: InsecureIndexingRound, forger: str, **changes: Any) -> bytes:
    """Sign the list of server 1 in another's name, or for elsewhere."""
    entries = vars(made.zero)["_rules"].counted
    return AcceptedList.signed(replace(made.stamp(1), **changes), entries, made.setup.signing_key_of(forger)).encode()


def test_a_list_is_signed_by_the_other_server(refuses: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    own = made.zero.close()
    for forger in ("server 0", "client 1", "authority"):
        refuses(made.zero.agree, forged(made, forger), AuthenticationFailed, Reason.AUTHENTICATION_FAILED, *SERVERS)
    refuses(made.zero.agree, own, PeerMisbehaved, Reason.WRONG_SESSION, *SERVERS)
    genuine = list_of(made, 1)
    for altered in (
        replace(genuine, contributors=4),
        replace(genuine, entries_digest=bytes(32)),
        replace(genuine, signature=bytes(64)),
    ):
        refuses(made.zero.agree, altered.encode(), AuthenticationFailed, Reason.AUTHENTICATION_FAILED, *SERVERS)
    sum_is_exact(made, 1, 2, 3)


@pytest.mark.parametrize("what", ["round", "task"])
def test_what_is_of_another_round_ends_nothing(what: str, refuses: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    changes: Any = {"round": {"round_number": 8}, "task": {"task": b"another task"}}[what]
    other = with_uploads(1, 2, 3, **changes)
    commitments = other.agreed()
    lists, shares = other.one.close(), other.one.open(commitments[0])
    made.zero.close()

    def is_of_elsewhere(step: Callable[[bytes], object], message: bytes) -> None:
        refuses(step, message, PeerMisbehaved, Reason.WRONG_SESSION, *SERVERS)

    is_of_elsewhere(made.zero.agree, lists)
    genuine = made.agreed()
    is_of_elsewhere(made.zero.open, commitments[1])
    made.zero.open(genuine[1])
    refuses(made.zero.combine, shares, PeerMisbehaved, Reason.COMMITMENT_MISMATCH, *SERVERS)
    sum_is_exact(made, 1, 2, 3)


# --- Commitments and shares -------------------------------------------------------------------------------------------


def test_a_server_commits_once_and_opens_what_it_committed_to(refuses: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = made.agreed()
    share = made.one.open(commitments[0])
    own = made.zero.open(commitments[1])
    another = OutputCommitment.to(made.stamp(1), list_digest(made), share + b"\0").encode()
    refuses(made.zero.open, another, PeerMisbehaved, Reason.ALREADY_ANSWERED, *SERVERS)
    assert made.zero.open(commitments[1]) == own
    for lie in (share[:-1] + bytes([share[-1] ^ 1]), own, share + b"\0"):
        refuses(made.zero.combine, lie, PeerMisbehaved, Reason.COMMITMENT_MISMATCH, *SERVERS)
    sum_is_exact(made, 1, 2, 3)


def test_a_commitment_is_bound_to_the_list(raises_exactly: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = made.agreed()
    share = made.one.open(commitments[0])
    made.zero.open(OutputCommitment.to(made.stamp(1), bytes(32), share).encode())
    raises_exactly(lambda: made.zero.combine(share), PeerMisbehaved, Reason.COMMITMENT_MISMATCH, *SERVERS)


def test_a_server_that_has_signed_nothing_shares_nothing() -> None:
    made = with_uploads(1, 2)
    release = Release(made.configuration, made.stamp(0), made.stamp(1), SETUP.signing_key_of("server 0"))
    for call, sentence in ((release.own_share, "before it commits"), (release.commitment, "its own list first")):
        with pytest.raises(Misuse, match=sentence):
            call()


def test_the_echo_of_a_commitment_commits_to_nothing(raises_exactly: Check) -> None:
    """A server that sends the other's commitment back cannot send its share back afterwards."""
    made = with_uploads(1, 2, 3)
    own, _ = made.agreed()
    raises_exactly(lambda: made.zero.open(own), PeerMisbehaved, Reason.WRONG_SESSION, *SERVERS)
    digest = OutputCommitment.decode(own, made.stamp(0)).digest
    echo = OutputCommitment(stamp=made.stamp(1), digest=digest).encode()
    share = made.zero.open(echo)
    raises_exactly(lambda: made.zero.combine(share), PeerMisbehaved, Reason.COMMITMENT_MISMATCH, *SERVERS)


def values_in(made: InsecureIndexingRound, share: bytes) -> tuple[Any, ...]:
    return OutputShare.decode(share, Due(made.stamp(1), made.configuration)).values(made.configuration)


def with_values(made: InsecureIndexingRound, share: bytes, values: tuple[Any, ...]) -> bytes:
    nonce = OutputShare.decode(share, Due(made.stamp(1), made.configuration)).nonce
    return OutputShare.of(made.configuration, made.stamp(1), nonce, values).encode()


def lying_share(made: InsecureIndexingRound, share: bytes) -> bytes:
    """Move a vote from one block to another, where no block counts every client any more."""
    group, (ring, lanes) = made.configuration.group, values_in(made, share)
    lanes = lanes.copy()
    lanes[0] = (int(lanes[0]) + 1) % group.order
    lanes[8] = (int(lanes[8]) + group.order - 1) % group.order
    return with_values(made, share, (ring, lanes))


def test_shares_that_add_up_to_no_histogram_are_nobodys_sum(refuses: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = made.agreed()
    lie = lying_share(made, made.one.open(commitments[0]))
    made.zero.open(OutputCommitment.to(made.stamp(1), list_digest(made), lie).encode())
    refuses(made.zero.combine, lie, PeerMisbehaved, Reason.SERVERS_DISAGREE)


def test_a_lane_that_the_group_does_not_have_is_no_share(raises_exactly: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = made.agreed()
    share = made.one.open(commitments[0])
    for lie in (share[:-1] + b"\xff", share[:-5] + b"\xff" * 5):
        again = with_uploads(1, 2, 3)
        again.agreed()
        again.zero.open(OutputCommitment.to(again.stamp(1), list_digest(again), lie).encode())
        raises_exactly(
            lambda lie=lie, again=again: again.zero.combine(lie), MalformedMessage, Reason.NOT_CANONICAL, *SERVERS
        )


# --- Commitments ------------------------------------------------------------------------------------------------------


def test_a_commitment_does_not_tell_the_share() -> None:
    """A sum of one ring element has 2^16 shares: anybody who hears a commitment tries them all."""
    setup: dict[str, Any] = {"layout": Layout((RingSegment(16, 1),)), "capacity": 1 << 16}
    made = with_uploads(1, 2, **setup)
    commitments, listed = made.agreed(), list_digest(made)
    share = made.zero.open(commitments[1])

    def found(nonce: bytes) -> bool:
        guesses = (share[: -2 - NONCE_BYTES] + nonce + guess.to_bytes(2, "little") for guess in range(1 << 16))
        return any(OutputCommitment.to(made.stamp(0), listed, guess).encode() == commitments[0] for guess in guesses)

    assert not found(bytes(NONCE_BYTES)), "the nonce is needed, and comes with the share alone"
    assert found(share[-2 - NONCE_BYTES : -2])
    other = share_of_server_0(with_uploads(1, 2, 3, **setup))
    assert other[-2 - NONCE_BYTES : -2] != share[-2 - NONCE_BYTES : -2], "another list has another nonce"


# --- Collusion --------------------------------------------------------------------------------------------------------


def wrong_polynomial(*args: Any) -> Any:
    zero, one = prove(*args)
    return zero, replace(one, polynomial=(one.polynomial + 1) % 127)


def chosen_afterwards(made: InsecureIndexingRound, opening: OneHotOpening) -> OneHotOpening:
    """Open as server 1 whatever makes both equations hold, now that server 0 has opened."""
    shape = made.configuration.check_shape(made.configuration.index_segments[0][1])
    field, challenges = shape.field, Challenges.of(shape, opening.joint)
    squares = field.inner_product(challenges.row, field.multiply(opening.rows, opening.rows))
    return replace(
        opening,
        server=ServerId(1),
        rows=np.zeros_like(opening.rows),
        polynomial=field.subtract(squares, opening.polynomial),
        linear=field.subtract(np.zeros_like(opening.linear), opening.linear),
    )


def opening_in(made: InsecureIndexingRound, answer: bytes) -> OneHotOpening:
    [(_, said)] = decode_batch(answer, MessageKind.INDEXING_ANSWER, made.stamp(0))
    assert said is not None
    shape = made.configuration.check_shape(made.configuration.index_segments[0][1])
    return OneHotOpening.decode(said[OneHotCommitment.encoded_bytes() :], shape)


@pytest.mark.parametrize("has_opened_before", [False, True])
def test_a_server_that_opens_last_cannot_make_an_upload_pass(sum_is_exact: Check, *, has_opened_before: bool) -> None:
    """It can where server 0 has forgotten what it opened and kept its root: the attack is a real one."""
    made = InsecureIndexingRound(SETUP)
    shape = made.configuration.check_shape(made.configuration.index_segments[0][1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upload_module, "prove", wrong_polynomial)
        halves = made.share(1)
    made.deliver(halves)
    proposal = made.one.propose(made.one.waiting())
    if has_opened_before:
        forgetful = made.new_server(0)
        forgetful.receive(halves[0].encode())
        opening = opening_in(made, forgetful.answer(proposal))
        lie = chosen_afterwards(made, opening).encode(shape)
        commitment = OneHotCommitment.to(ServerId(1), opening.statement, lie).encode()
        items = [(upload_id, commitment) for upload_id in made.one.waiting()]
        proposal = encode_batch(MessageKind.INDEXING_PROPOSAL, made.stamp(1), items)
    lie = chosen_afterwards(made, opening_in(made, made.zero.answer(proposal))).encode(shape)
    conclusion = [(upload_id, lie) for upload_id in made.zero.waiting()]
    made.zero.settle(encode_batch(MessageKind.INDEXING_CONCLUSION, made.stamp(1), conclusion))
    assert made.zero.waiting() == ()
    assert set(made.zero.rejected) == (set() if has_opened_before else {ClientId(1)})
    if not has_opened_before:
        made.check()
        made.upload(2, 3)
        made.check()
        sum_is_exact(made, 2, 3)


@pytest.mark.parametrize("moved", [0, 1])
def test_a_server_can_move_votes_in_the_sum_and_learns_nothing_by_it(moved: int) -> None:
    """The claim is privacy. Either server can add an error; the other one's share is the same as without."""
    made = with_uploads(1, 2, 3)
    commitments, lists = made.agreed(), made.lists()
    genuine = made.one.open(commitments[0])
    ring, lanes = values_in(made, genuine)
    lanes = lanes.copy()
    due = np.asarray(made.ideal((1, 2, 3)).values[1]).astype(int)
    source = int(due[0].argmax())
    target = (source + 1) % 8
    for lane, change in ((source, -moved), (target, moved)):
        lanes[lane] = (int(lanes[lane]) + change) % 127
        due[0, lane] += change
    lie = with_values(made, genuine, (ring, lanes))
    digest = AcceptedList.verified(lists[1], made.configuration, made.stamp(1)).entries_digest
    share = made.zero.open(OutputCommitment.to(made.stamp(1), digest, lie).encode())
    assert np.array_equal(np.asarray(made.zero.combine(lie).aggregate.values[1]), due)
    honest = with_uploads(1, 2, 3)
    # HPKE draws coins of its own, so the two lists differ, and with them the nonces.
    assert without_nonce(share) == without_nonce(share_of_server_0(honest))


def without_nonce(share: bytes) -> bytes:
    head = 7 + 32 + 8 + 1
    return share[:head] + share[head + NONCE_BYTES :]


def share_of_server_0(made: InsecureIndexingRound) -> bytes:
    lists = made.zero.close(), made.one.close()
    made.zero.agree(lists[1])
    return made.zero.open(made.one.agree(lists[0]))


@pytest.mark.parametrize("refused", [3, 4])
def test_a_server_that_refuses_all_but_a_victim_gets_no_sum(refused: int, raises_exactly: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, maximum_rejections=5))
    made.upload(*range(1, 6))
    items = decode_batch(made.one.propose(made.one.waiting()), MessageKind.INDEXING_PROPOSAL, made.stamp(1))
    lies = [(upload_id, None if place < refused else said) for place, (upload_id, said) in enumerate(items)]
    made.zero.settle(
        made.one.conclude(made.zero.answer(encode_batch(MessageKind.INDEXING_PROPOSAL, made.stamp(1), lies)))
    )
    assert len(made.zero.rejected) == refused
    if refused == 4:
        raises_exactly(made.zero.close, ThresholdNotMet, Reason.THRESHOLD_NOT_MET, unchanged=[made.zero])
    else:
        assert made.zero.close()


def test_a_server_opens_only_against_a_commitment(refuses: Check) -> None:
    made = with_uploads(1, 2, 3)
    for step, told in ((made.zero.agree, made.one.close()), (made.zero.open, b""), (made.zero.combine, b"")):
        with pytest.raises(UnexpectedMessage):
            step(told)
    commitments = made.agreed()
    share = made.one.open(commitments[0])
    refuses(made.zero.combine, share, Misuse, Reason.API_MISUSE)
    with pytest.raises(UnexpectedMessage):
        made.zero.open(share)
