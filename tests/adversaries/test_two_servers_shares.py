"""The shares of the sum: chosen late, of no histogram, or of one light client among heavy ones.

| attack | defence |
|---|---|
| a server chooses its share once it has seen the other's | both commit before either opens |
| the other server guesses a small share from its commitment | a nonce that comes with the share alone |
| a server commits to an echo, or twice, or opens something else | a commitment is of one server, and the first counts |
| a share that makes the histogram count something else | each block counts every client's weight once |
| one client of weight 1 among many of weight 64 | weights that too few have are left out |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, ThresholdNotMet, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.offers import RoundStamp
from secagg.protocols.two_servers.release import Release
from secagg.protocols.two_servers.server_messages import NONCE_BYTES, AcceptedList, OutputCommitment, OutputShare
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
SETUP = IndexingSetup(layout=Layout((RingSegment(20, 6), IndexSegment(8, 5))))


def with_uploads(*numbers: int) -> InsecureIndexingRound:
    made = InsecureIndexingRound(SETUP)
    for number in numbers:
        made.upload(number)
    made.check()
    return made


def stamp(made: InsecureIndexingRound, index: int) -> RoundStamp:
    return RoundStamp(context=made.configuration.context, round_number=made.setup.round_number, server=ServerId(index))


def list_digest(made: InsecureIndexingRound) -> bytes:
    return AcceptedList.decode(made.zero.close(), made.configuration, stamp(made, 0)).entries_digest


def agreed(made: InsecureIndexingRound) -> tuple[bytes, bytes]:
    """Let both servers sign and agree, and return their commitments."""
    lists = made.zero.close(), made.one.close()
    return made.zero.agree(lists[1]), made.one.agree(lists[0])


def test_a_server_opens_only_against_a_commitment(raises_exactly: Check) -> None:
    made = with_uploads(1, 2, 3)
    for step, told in ((made.zero.agree, made.one.close()), (made.zero.open, b""), (made.zero.combine, b"")):
        with pytest.raises(UnexpectedMessage):
            step(told)
    commitments = agreed(made)
    share = made.one.open(commitments[0])
    raises_exactly(lambda: made.zero.combine(share), Misuse, Reason.API_MISUSE, unchanged=[made.zero])
    with pytest.raises(UnexpectedMessage):
        made.zero.open(share)


def test_a_server_commits_once_and_opens_what_it_committed_to(raises_exactly: Check, sum_is_exact: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = agreed(made)
    share = made.one.open(commitments[0])
    own = made.zero.open(commitments[1])
    another = OutputCommitment.to(stamp(made, 1), list_digest(made), share + b"\0").encode()
    raises_exactly(
        lambda: made.zero.open(another), PeerMisbehaved, Reason.ALREADY_ANSWERED, ServerId(1), unchanged=[made.zero]
    )
    assert made.zero.open(commitments[1]) == own
    for lie in (share[:-1] + bytes([share[-1] ^ 1]), own, share + b"\0"):
        raises_exactly(
            lambda lie=lie: made.zero.combine(lie),
            PeerMisbehaved,
            Reason.COMMITMENT_MISMATCH,
            ServerId(1),
            unchanged=[made.zero],
        )
    sum_is_exact(made, 1, 2, 3)


def test_a_commitment_is_bound_to_the_list(raises_exactly: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = agreed(made)
    share = made.one.open(commitments[0])
    made.zero.open(OutputCommitment.to(stamp(made, 1), bytes(32), share).encode())
    raises_exactly(lambda: made.zero.combine(share), PeerMisbehaved, Reason.COMMITMENT_MISMATCH, ServerId(1))


def test_a_server_that_has_signed_nothing_shares_nothing() -> None:
    made = with_uploads(1, 2)
    release = Release(made.configuration, stamp(made, 0), stamp(made, 1), SETUP.signing_key_of("server 0"))
    for call, sentence in ((release.own_share, "before it commits"), (release.commitment, "its own list first")):
        with pytest.raises(Misuse, match=sentence):
            call()


def test_the_echo_of_a_commitment_commits_to_nothing(raises_exactly: Check) -> None:
    """A server that sends the other's commitment back cannot send its share back afterwards."""
    made = with_uploads(1, 2, 3)
    own, _ = agreed(made)
    raises_exactly(lambda: made.zero.open(own), PeerMisbehaved, Reason.WRONG_SESSION, ServerId(1))
    digest = OutputCommitment.decode(own, made.configuration, stamp(made, 0)).digest
    echo = OutputCommitment(stamp=stamp(made, 1), digest=digest).encode()
    share = made.zero.open(echo)
    raises_exactly(lambda: made.zero.combine(share), PeerMisbehaved, Reason.COMMITMENT_MISMATCH, ServerId(1))


def lying_share(configuration: IndexingConfiguration, share: OutputShare) -> OutputShare:
    """Move a vote from one block to another, where no block counts every client any more."""
    ring, lanes = share.values[0], share.values[1].copy()
    lanes[0] = (int(lanes[0]) + 1) % configuration.group.order
    lanes[8] = (int(lanes[8]) + configuration.group.order - 1) % configuration.group.order
    return replace(share, values=(ring, lanes))


def test_shares_that_add_up_to_no_histogram_are_nobodys_sum(raises_exactly: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = agreed(made)
    genuine = OutputShare.decode(made.one.open(commitments[0]), made.configuration, stamp(made, 1))
    lie = lying_share(made.configuration, genuine).encode(made.configuration)
    made.zero.open(OutputCommitment.to(stamp(made, 1), list_digest(made), lie).encode())
    raises_exactly(lambda: made.zero.combine(lie), PeerMisbehaved, Reason.SERVERS_DISAGREE, unchanged=[made.zero])


def test_a_lane_that_the_group_does_not_have_is_no_share(raises_exactly: Check) -> None:
    made = with_uploads(1, 2, 3)
    commitments = agreed(made)
    share = made.one.open(commitments[0])
    for lie in (share[:-1] + b"\xff", share[:-5] + b"\xff" * 5):
        again = with_uploads(1, 2, 3)
        agreed(again)
        again.zero.open(OutputCommitment.to(stamp(again, 1), list_digest(again), lie).encode())
        raises_exactly(
            lambda lie=lie, again=again: again.zero.combine(lie), MalformedMessage, Reason.NOT_CANONICAL, ServerId(1)
        )


# --- Weights ----------------------------------------------------------------------------------------------------------


def test_one_light_client_among_heavy_ones_is_left_out_of_the_sum(sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, weights=(1, 64)))
    for number, weight in ((1, 1), (2, 64), (3, 64), (4, 64)):
        made.upload(number, weight=weight)
    made.check()
    results = made.finish()
    for result in results:
        assert (result.counted, result.left_out) == (tuple(map(ClientId, (2, 3, 4))), {ClientId(1): 1})
        histogram = np.asarray(result.aggregate.values[1])
        assert not (histogram % 64).any()
    # With it, the remainders would be its votes: this is what leaves it out.
    together = np.asarray(made.ideal((1, 2, 3, 4), [1, 64, 64, 64]).values[1])
    assert np.array_equal((together % 64).argmax(axis=1), made.setup.payload_of(1).values[1])
    sum_is_exact(made, 2, 3, 4, weights=[64, 64, 64])


def test_weights_that_nobody_has_enough_of_are_nobodys_sum() -> None:
    made = InsecureIndexingRound(replace(SETUP, weights=(1, 2, 64)))
    for number, weight in ((1, 1), (2, 2), (3, 64)):
        made.upload(number, weight=weight)
    made.check()
    for server in made.servers:
        with pytest.raises(ThresholdNotMet, match="2 uploads of one weight are needed and 1 are present"):
            server.close()


def test_a_commitment_does_not_tell_the_share() -> None:
    """A sum of one ring element has 2^16 shares: whoever hears a commitment tries them all."""
    setup = IndexingSetup(layout=Layout((RingSegment(16, 1),)), capacity=1 << 16)
    made = InsecureIndexingRound(setup)
    for number in (1, 2):
        made.upload(number)
    made.check()
    lists = made.zero.close(), made.one.close()
    commitment = made.zero.agree(lists[1])
    share = made.zero.open(made.one.agree(lists[0]))
    stamp = RoundStamp(context=made.configuration.context, round_number=setup.round_number, server=ServerId(0))
    listed = AcceptedList.decode(lists[0], made.configuration, stamp).entries_digest

    def found(nonce: bytes) -> bool:
        guesses = (share[: -2 - NONCE_BYTES] + nonce + guess.to_bytes(2, "little") for guess in range(1 << 16))
        return any(OutputCommitment.to(stamp, listed, guess).encode() == commitment for guess in guesses)

    assert not found(bytes(NONCE_BYTES)), "the nonce is needed, and comes with the share alone"
    assert found(share[-2 - NONCE_BYTES : -2])
    again = InsecureIndexingRound(setup)
    for number in (1, 2, 3):
        again.upload(number)
    again.check()
    more = again.zero.close(), again.one.close()
    again.zero.agree(more[1])
    other = again.zero.open(again.one.agree(more[0]))
    assert other[-2 - NONCE_BYTES : -2] != share[-2 - NONCE_BYTES : -2], "another list has another nonce"
