"""A batch at a server: checked once for all of its clients, and burnt if it is not what it has to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from secagg.contract.layout import IndexSegment
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.index_sharing.dealer import SemiHonestDealer
from secagg.protocols.two_servers.index_sharing.dealt_batches import Correlations, DealtBatch
from secagg.protocols.two_servers.index_sharing.dealt_correlations import DEALER, DealtHeader
from secagg.protocols.two_servers.index_sharing.index_shares import Indices
from secagg.protocols.two_servers.point_functions.generation import ServerShare
from tests.harness.indexing_rounds import InsecureIndexingRound

Begin = Callable[..., InsecureIndexingRound]
CLIENTS = tuple(ClientId(number) for number in (1, 2, 5))


class _CarelessDealer(SemiHonestDealer):
    """Proves other votes than it deals."""

    def _vote_shares(
        self, header: DealtHeader, number: int, segment: IndexSegment, masks: Indices
    ) -> tuple[ServerShare, ServerShare]:
        other = masks.copy()
        other[0] = (other[0] + 1) % segment.codewords
        return super()._vote_shares(header, number, segment, other)


@pytest.fixture
def careless(begin: Begin) -> InsecureIndexingRound:
    """Deal carelessly to both servers, which have checked nothing yet."""
    made = begin()
    dealer = _CarelessDealer(
        made.configuration,
        round_number=made.setup.round_number,
        offers=(made.zero.offer, made.one.offer),
        signing_key=made.setup.signing_key_of("dealer"),
        coins=made.setup.coins_of("dealer"),
    )
    for server, half in zip(made.servers, dealer.deal(CLIENTS), strict=True):
        server.deal(half.encode())
    return made


@pytest.fixture
def batches(
    careless: InsecureIndexingRound, correlations_of: Callable[[InsecureIndexingRound, int], Correlations]
) -> tuple[DealtBatch, DealtBatch]:
    """Return what both servers hold."""
    zero, one = (correlations_of(careless, index).of(ClientId(1)) for index in (0, 1))
    assert zero is not None
    assert one is not None
    return zero, one


def is_wiped(batch: DealtBatch) -> bool:
    """Whether nothing is left of a batch that says where a vote is."""
    return all(
        part.mask_key.is_wiped
        and part.proof.seed.is_wiped
        and (part.share.seed.is_wiped if part.lanes is None else not part.lanes.any())
        for part in vars(batch)["_segments"].values()
    )


def test_a_batch_that_is_refuted_blames_nobody_for_the_dealer_is_no_party(
    batches: tuple[DealtBatch, DealtBatch],
) -> None:
    zero, one = batches
    answer = zero.answer(one.propose())
    for _ in range(2):
        with pytest.raises(PeerMisbehaved) as caught:
            one.conclude(answer)
        assert caught.value.reason is Reason.ONE_HOT_REFUTED
        assert caught.value.culprits == frozenset()


@pytest.mark.parametrize("size", [0, 10, 10_000])
def test_an_answer_that_is_none_is_the_other_servers_doing(size: int, batches: tuple[DealtBatch, DealtBatch]) -> None:
    batches[1].propose()
    with pytest.raises(MalformedMessage) as caught:
        batches[1].conclude(bytes(size))
    assert caught.value.culprits == {ServerId(0)}


def test_a_rejected_batch_is_burnt_at_once(
    careless: InsecureIndexingRound, batches: tuple[DealtBatch, DealtBatch]
) -> None:
    careless.check()
    for server, batch in zip(careless.servers, batches, strict=True):
        assert list(server.rejected) == [DEALER]
        assert is_wiped(batch)
        with pytest.raises(Misuse):
            batch.use(ClientId(1), bytes(32))


def test_a_batch_that_was_taken_keeps_what_uploads_need_and_no_more(
    dealt: InsecureIndexingRound, correlations_of: Callable[[InsecureIndexingRound, int], Correlations]
) -> None:
    for index in (0, 1):
        batch = correlations_of(dealt, index).of(ClientId(1))
        assert batch is not None
        assert batch.is_checked
        for part in vars(batch)["_segments"].values():
            assert part.proof.seed.is_wiped
            assert not part.mask_key.is_wiped
