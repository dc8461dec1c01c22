"""A server that works with a client, or for a result of its own: what it gains, and what it does not.

| attack | defence |
|---|---|
| server 1 waits for the opening, and opens what makes its client's upload pass | it has committed before |
| a server adds an error to its own share of the sum | none: the sum is right only if both servers are honest |
| a server sees to it that few are counted beside a victim | the other server's minimum cohort |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import Reason, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.offers import RoundStamp
from secagg.protocols.two_servers.one_hot.check import OneHotCommitment, OneHotOpening
from secagg.protocols.two_servers.one_hot.proof import prove
from secagg.protocols.two_servers.one_hot.statement import Challenges
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
SETUP = IndexingSetup(layout=Layout((RingSegment(20, 6), IndexSegment(8, 5))))


def stamp(made: InsecureIndexingRound, index: int) -> RoundStamp:
    return RoundStamp(context=made.configuration.context, round_number=made.setup.round_number, server=ServerId(index))


def wrong_polynomial(*args: Any) -> Any:
    """Prove nothing: one value of the polynomial is another."""
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
    """Return what server 0 has opened of the only upload."""
    [(_, said)] = decode_batch(answer, MessageKind.INDEXING_ANSWER, stamp(made, 0))
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
        proposal = encode_batch(MessageKind.INDEXING_PROPOSAL, stamp(made, 1), items)
    lie = chosen_afterwards(made, opening_in(made, made.zero.answer(proposal))).encode(shape)
    conclusion = [(upload_id, lie) for upload_id in made.zero.waiting()]
    made.zero.settle(encode_batch(MessageKind.INDEXING_CONCLUSION, stamp(made, 1), conclusion))
    assert made.zero.waiting() == ()
    assert set(made.zero.rejected) == (set() if has_opened_before else {ClientId(1)})
    if not has_opened_before:
        made.check()
        for number in (2, 3):
            made.upload(number)
        made.check()
        sum_is_exact(made, 2, 3)


@pytest.mark.parametrize("moved", [0, 1])
def test_a_server_can_move_votes_in_the_sum_and_learns_nothing_by_it(moved: int) -> None:
    """The claim is privacy. Either server can add an error; the other one's share is the same as without."""
    made = InsecureIndexingRound(SETUP)
    for number in (1, 2, 3):
        made.upload(number)
    made.check()
    lists = made.zero.close(), made.one.close()
    commitments = made.zero.agree(lists[1]), made.one.agree(lists[0])
    genuine = OutputShare.decode(made.one.open(commitments[0]), made.configuration, stamp(made, 1))
    lanes = genuine.values[1].copy()
    due = np.asarray(made.ideal((1, 2, 3)).values[1]).astype(int)
    source = int(due[0].argmax())
    target = (source + 1) % 8
    for lane, change in ((source, -moved), (target, moved)):
        lanes[lane] = (int(lanes[lane]) + change) % 127
        due[0, lane] += change
    lie = replace(genuine, values=(genuine.values[0], lanes)).encode(made.configuration)
    digest = AcceptedList.decode(lists[1], made.configuration, stamp(made, 1)).entries_digest
    share = made.zero.open(OutputCommitment.to(stamp(made, 1), digest, lie).encode())
    assert np.array_equal(np.asarray(made.zero.combine(lie).aggregate.values[1]), due)
    honest = InsecureIndexingRound(SETUP)
    # HPKE draws coins of its own, so the two lists differ, and with them the nonces.
    assert without_nonce(share) == without_nonce(share_of_server_0(honest))


def without_nonce(share: bytes) -> bytes:
    head = 7 + 32 + 8 + 1
    return share[:head] + share[head + NONCE_BYTES :]


def share_of_server_0(made: InsecureIndexingRound) -> bytes:
    """Return what server 0 releases to an honest server 1."""
    for number in (1, 2, 3):
        made.upload(number)
    made.check()
    lists = made.zero.close(), made.one.close()
    made.zero.agree(lists[1])
    return made.zero.open(made.one.agree(lists[0]))


@pytest.mark.parametrize("refused", [3, 4])
def test_a_server_that_refuses_all_but_a_victim_gets_no_sum(refused: int, raises_exactly: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, maximum_rejections=5))
    for number in range(1, 6):
        made.upload(number)
    items = decode_batch(made.one.propose(made.one.waiting()), MessageKind.INDEXING_PROPOSAL, stamp(made, 1))
    lies = [(upload_id, None if place < refused else said) for place, (upload_id, said) in enumerate(items)]
    made.zero.settle(
        made.one.conclude(made.zero.answer(encode_batch(MessageKind.INDEXING_PROPOSAL, stamp(made, 1), lies)))
    )
    assert len(made.zero.rejected) == refused
    if refused == 4:
        raises_exactly(made.zero.close, ThresholdNotMet, Reason.THRESHOLD_NOT_MET, unchanged=[made.zero])
    else:
        assert made.zero.close()
