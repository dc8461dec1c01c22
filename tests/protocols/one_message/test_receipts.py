"""Whose upload counts and who is to blame, from a table of words; no cryptography."""

from __future__ import annotations

import pytest

from secagg.identifiers import ClientId, HolderId, ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.requests import Verdict
from secagg.protocols.one_message.tally import LEAST_REFUSALS, REFUSAL_SHARE, Receipts

YES, OFF, FORGED = Verdict.ACCEPTED, Verdict.OFF_POLYNOMIAL, Verdict.NOT_AUTHENTIC
HOLDERS = 5


def said(**refusing: Verdict) -> dict[int, Verdict]:
    """Return what five holders say: yes, but for those that are named h0, h1, ..."""
    return {position: refusing.get(f"h{position}", YES) for position in range(HOLDERS)}


def clients(count: int, first: int = 0) -> list[ClientId]:
    return [ClientId(first + index) for index in range(count)]


def test_a_holder_that_refuses_alone_too_often_is_named_and_absent() -> None:
    receipts = Receipts(corrupted=1, corrupted_clients=2)
    most = max(LEAST_REFUSALS, 2)
    left_out, faults = receipts.settle({client: said(h1=OFF) for client in clients(most)})
    assert not faults
    assert {client: error.culprits for client, error in left_out.items()} == {
        client: {client, HolderId(1)} for client in clients(most)
    }
    left_out, faults = receipts.settle({ClientId(50): said(h1=OFF)})
    assert not left_out
    assert [fault.culprits for fault in faults] == [{HolderId(1)}]
    assert receipts.absent == {1}


def test_a_refusal_that_more_share_than_can_lie_is_the_clients_and_counts_against_nobody() -> None:
    receipts = Receipts(corrupted=1, corrupted_clients=1)
    left_out, faults = receipts.settle({client: said(h1=OFF, h2=OFF) for client in clients(20)})
    assert not faults
    assert all(error.culprits == {client} for client, error in left_out.items())
    assert receipts.refused == dict.fromkeys(range(HOLDERS), 0)


@pytest.mark.parametrize("bad_clients", [1, 5])
def test_the_share_grows_with_the_uploads_and_with_the_clients_that_may_be_bad(bad_clients: int) -> None:
    receipts, count = Receipts(corrupted=1, corrupted_clients=bad_clients), 4 * REFUSAL_SHARE
    words = {client: said() for client in clients(count)}
    allowed = max(count // REFUSAL_SHARE, bad_clients)
    words |= {client: said(h0=OFF) for client in clients(allowed)}
    assert not receipts.settle(words)[1]
    assert [fault.culprits for fault in receipts.settle({ClientId(99): said(h0=OFF)})[1]] == [{HolderId(0)}]


def test_a_client_that_exactly_so_many_refuse_as_may_lie_is_not_named_alone() -> None:
    receipts = Receipts(corrupted=2, corrupted_clients=3)
    left_out, _ = receipts.settle({ClientId(1): said(h0=OFF, h4=OFF), ClientId(2): said(h0=OFF, h2=OFF, h4=OFF)})
    assert left_out[ClientId(1)].culprits == {ClientId(1), HolderId(0), HolderId(4)}
    assert left_out[ClientId(2)].culprits == {ClientId(2)}


def test_without_signatures_the_way_is_named_with_client_and_holder() -> None:
    """The network can upload bad shares in a client's name, or refuse good ones in a holder's; both are honest then."""
    receipts = Receipts(corrupted=1, corrupted_clients=1, mode=SecurityMode.SEMI_HONEST)
    left_out, _ = receipts.settle({ClientId(1): said(h2=OFF), ClientId(2): said(h0=OFF, h1=OFF)})
    assert left_out[ClientId(1)].culprits == {ClientId(1), HolderId(2), ServerId()}
    assert left_out[ClientId(2)].culprits == {ClientId(2), ServerId()}
