"""The end of a round at one server: one list, one commitment, one share, and a sum only if everything agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import Misuse, PeerError, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.offers import Entry, RoundStamp
from secagg.protocols.two_servers.release import Release
from secagg.protocols.two_servers.server_messages import AcceptedList, OutputCommitment, OutputShare
from secagg.session.certificates import SigningKey
from tests.harness.indexing_rounds import indexing_configuration

SERVERS = ZERO, ONE = ServerId(0), ServerId(1)
LAYOUT = Layout((RingSegment(7, 2), IndexSegment(3, 2)))
ENTRIES = [Entry(ClientId(number), bytes([number] * 32), weight) for number, weight in ((3, 1), (1, 1), (2, 4), (5, 4))]


RINGS, HISTOGRAM = [5, 127], [10, 0, 0, 2, 4, 4]
"""What the shares of both servers add up to."""


def signing_key(index: int) -> SigningKey:
    with Secret("signing key", bytes([10 + index] * 32)) as seed:
        return SigningKey(seed)


configuration = partial(
    indexing_configuration,
    server_keys=(signing_key(0).public_key, signing_key(1).public_key),
    layout=LAYOUT,
    maximum_cohort=6,
    weights=(1, 4),
)


CONFIGURATION = configuration()


def stamp(server: ServerId, round_number: int = 7, made: IndexingConfiguration = CONFIGURATION) -> RoundStamp:
    return RoundStamp(context=made.context, round_number=round_number, server=server)


class Totals:
    """The sums of one server, and how often they were asked for."""

    def __init__(self, made: IndexingConfiguration, server: ServerId, histogram: Sequence[int] = HISTOGRAM) -> None:
        order, word = made.group.order, made.group.word
        masks = np.arange(6) * 5 % order
        lanes = masks if server == ZERO else (np.array(histogram) - masks) % order
        rings = [100, 3] if server == ZERO else [(RINGS[0] - 100) % 128, (RINGS[1] - 3) % 128]
        self.values = np.array(rings, np.uint8), lanes.astype(word)
        self.asked = list[Sequence[int]]()

    def weighted(self, weights: Sequence[int]) -> tuple[Any, ...]:
        self.asked.append(weights)
        return tuple(value.copy() for value in self.values)


class End:
    """One server at the end of a round."""

    def __init__(
        self, server: ServerId, made: IndexingConfiguration = CONFIGURATION, histogram: Sequence[int] = HISTOGRAM
    ) -> None:
        peer = ServerId(1 - server.index)
        self.totals: Any = Totals(made, server, histogram)
        self.release = Release(made, stamp(server, made=made), stamp(peer, made=made), signing_key(server.index))

    def close(self, entries: Sequence[Entry] = ENTRIES) -> bytes:
        self.release.signed_list = self.release.sign(entries)
        return self.release.signed_list

    def commitment(self) -> bytes:
        if self.release.share is None:
            with Secret("nonce key", bytes(32)) as key:
                self.release.share = self.release.encode_share(key, self.totals, ENTRIES)
        return self.release.commitment()

    def take(self, commitment: bytes) -> bytes:
        self.release.peer_commitment = self.release.read_commitment(commitment)
        return share_of(self)

    def combined(self, share: bytes) -> Any:
        return self.release.combined(share, ENTRIES)


def ends(**named: Any) -> tuple[End, End]:
    """Return both servers, each with its own list and the other's commitment."""
    zero, one = (End(server, **named) for server in SERVERS)
    lists = zero.close(), one.close()
    zero.release.require_same_list(lists[1])
    one.release.require_same_list(lists[0])
    zero.take(one.commitment())
    one.take(zero.commitment())
    return zero, one


def is_refused(call: Callable[[], object], reason: Reason, *culprits: ServerId) -> None:
    with pytest.raises(PeerError) as caught:
        call()
    assert caught.value.reason is reason
    assert caught.value.culprits == set(culprits)


def share_of(end: End) -> bytes:
    end.commitment()
    return end.release.own_share()


# --- The sum ----------------------------------------------------------------------------------------------------------


def test_a_share_is_computed_once_over_the_weights_that_are_counted() -> None:
    zero, one = ends()
    shares = {share_of(zero) for _ in range(3)}
    zero.combined(share_of(one))
    zero.commitment()
    assert len(shares) == 1
    assert zero.totals.asked == [[1, 4]]


def test_a_commitment_is_to_the_share_and_the_list() -> None:
    zero, one = ends()
    digest = AcceptedList.decode(zero.release.signed_list or b"", CONFIGURATION, stamp(ZERO)).entries_digest
    for server, end in ((ZERO, zero), (ONE, one)):
        assert end.commitment() == OutputCommitment.to(stamp(server), digest, share_of(end)).encode()


# --- Lists ------------------------------------------------------------------------------------------------------------


def test_the_same_list_in_another_order_is_the_same() -> None:
    zero, one = End(ZERO), End(ONE)
    zero.close()
    zero.release.require_same_list(one.close(ENTRIES[::-1]))


def test_a_server_signs_its_own_list_first() -> None:
    zero, one = End(ZERO), End(ONE)
    theirs = one.close()
    for call in (lambda: zero.release.require_same_list(theirs), zero.commitment):
        with pytest.raises(Misuse, match="own list"):
            call()


# --- Commitments ------------------------------------------------------------------------------------------------------


def test_a_commitment_is_bound_to_the_list() -> None:
    zero, one = ends()
    other = OutputCommitment.to(stamp(ONE), bytes(32), share_of(one))
    zero.release.peer_commitment = other
    is_refused(lambda: zero.combined(share_of(one)), Reason.COMMITMENT_MISMATCH, ONE)


# --- Shares -----------------------------------------------------------------------------------------------------------


def committed_to(share: bytes) -> End:
    """Return server 0, to which server 1 has committed to whatever this is."""
    zero, _ = ends()
    digest = AcceptedList.decode(zero.release.signed_list or b"", CONFIGURATION, stamp(ZERO)).entries_digest
    zero.release.peer_commitment = OutputCommitment.to(stamp(ONE), digest, share)
    return zero


def test_a_share_of_another_round_is_the_other_servers_doing() -> None:
    values = Totals(CONFIGURATION, ONE).values
    wrong = OutputShare(stamp=stamp(ONE, 8), nonce=bytes(32), values=values).encode(CONFIGURATION)
    zero = committed_to(wrong)
    is_refused(lambda: zero.combined(wrong), Reason.WRONG_SESSION, ONE)


# --- The end ----------------------------------------------------------------------------------------------------------


def test_a_server_that_has_no_share_opens_none() -> None:
    end = End(ZERO)
    end.close()
    with pytest.raises(Misuse, match="agrees on a list before it commits"):
        end.release.own_share()
    with pytest.raises(Misuse, match="agrees on a list before it commits"):
        end.release.commitment()
