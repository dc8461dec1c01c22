"""Which uploads may be asked about, and when: the rules of a round with a dealer."""

from __future__ import annotations

from itertools import product

import pytest

from secagg.errors import Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.index_sharing.dealing_rules import DealingRules
from secagg.protocols.two_servers.index_sharing.dealt_correlations import DEALER
from secagg.protocols.two_servers.round_rules import Entry, Standing

BATCH, ANOTHER = bytes(32), bytes([1]) * 32
FIRST, SECOND, THIRD = (Entry(ClientId(number), bytes([16 + number]) * 32, 1) for number in (1, 2, 3))


@pytest.fixture
def rules() -> DealingRules:
    """Begin a round, with one batch for two clients."""
    begun = DealingRules(minimum_cohort=2, maximum_cohort=5, maximum_rejections=1, weights=(1,))
    begun.receive_batch(BATCH, [ClientId(1), ClientId(2)])
    return begun


def take(rules: DealingRules, *ids: bytes) -> None:
    """Ask about these, and take them."""
    for one in ids:
        rules.ask(one)
        rules.take(one)


def test_an_upload_waits_behind_its_batch(rules: DealingRules) -> None:
    rules.receive(FIRST)
    assert rules.waiting() == (BATCH,)
    rules.ask(BATCH)
    assert (rules.waiting(), rules.is_ready(FIRST.client)) == ((BATCH,), False)
    rules.take(BATCH)
    assert (rules.waiting(), rules.is_ready(FIRST.client)) == ((FIRST.upload_id,), True)
    rules.receive(SECOND)
    assert rules.waiting() == (FIRST.upload_id, SECOND.upload_id)


def test_a_rejected_batch_is_burnt_and_so_are_the_uploads_of_its_clients(rules: DealingRules) -> None:
    rules.receive(FIRST)
    rules.ask(BATCH)
    rules.reject(BATCH)
    assert rules.waiting() == ()
    with pytest.raises(UnexpectedMessage):
        rules.receive(SECOND)
    with pytest.raises(PeerMisbehaved) as caught:
        rules.receive_batch(ANOTHER, [ClientId(2), ClientId(3)])
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    rules.receive_batch(ANOTHER, [ClientId(3)])
    take(rules, ANOTHER)
    rules.receive(THIRD)
    assert rules.waiting() == (THIRD.upload_id,)


def test_nobody_uploads_who_was_not_dealt_for(rules: DealingRules) -> None:
    with pytest.raises(UnexpectedMessage) as caught:
        rules.receive(THIRD)
    assert caught.value.culprits == {THIRD.client}
    assert rules.standing(THIRD.upload_id) is None


def test_a_client_has_one_upload_whatever_was_dealt(rules: DealingRules) -> None:
    rules.receive(FIRST)
    with pytest.raises(PeerMisbehaved):
        rules.receive(Entry(FIRST.client, ANOTHER, 1))
    assert not rules.require_new(FIRST)


@pytest.mark.parametrize(("before", "step"), list(product(Standing, ["ask", "take", "reject", "require_asked"])))
def test_a_batch_moves_only_as_an_upload_does(before: Standing, step: str, rules: DealingRules) -> None:
    if before is not Standing.RECEIVED:
        rules.ask(BATCH)
    if before is Standing.TAKEN:
        rules.take(BATCH)
    if before is Standing.REJECTED:
        rules.reject(BATCH)
    allowed = {
        "ask": {Standing.RECEIVED, Standing.ASKED},
        "take": {Standing.ASKED},
        "reject": {Standing.RECEIVED, Standing.ASKED},
        "require_asked": {Standing.ASKED},
    }
    if before in allowed[step]:
        getattr(rules, step)(BATCH)
        return
    with pytest.raises(Misuse):
        getattr(rules, step)(BATCH)
    assert rules.standing(BATCH) is before


def test_batches_are_no_uploads_in_the_list_that_is_signed(rules: DealingRules) -> None:
    take(rules, BATCH)
    for entry in (FIRST, SECOND):
        rules.receive(entry)
    take(rules, FIRST.upload_id, SECOND.upload_id)
    assert rules.entry(BATCH) == Entry(DEALER, BATCH, 0)
    assert rules.list_to_sign() == (FIRST, SECOND) == rules.taken()
    rules.sign()
    with pytest.raises(Misuse):
        rules.receive_batch(ANOTHER, [ClientId(3)])


def test_the_same_batch_again_changes_nothing(rules: DealingRules) -> None:
    assert not rules.require_new_batch(BATCH, [ClientId(1), ClientId(2)])
    take(rules, BATCH)
    rules.receive_batch(BATCH, [ClientId(1), ClientId(2)])
    assert rules.standing(BATCH) is Standing.TAKEN
