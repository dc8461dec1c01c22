"""Index sharing with a dealer: what is refused, and what works and is the reason why the mode is called semi-honest.

| attack | defence |
|---|---|
| the dealer deals one client's vote many times over | the one-hot check of the whole batch, before it is used |
| the dealer deals two batches, to two servers or for one client | one id for both halves; one correlation a client |
| another deals; a batch is replayed in another round | the dealer signs round, task and the list of clients |
| a client sends whatever it likes instead of its shares | every pair of shares is an index: one vote in every block |
| a correlation is used again | spent on one upload, which is written down first; burnt with it |
| a server says no index, or another one later | refused; the upload is rejected, and its correlation burnt |
| a server, or the dealer, moves a chosen client's votes | **none**: it reads the client's index |
| the dealer hears what the servers say to each other | **none**: it reads every index |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.contract import Payload
from secagg.contract.layout import IndexSegment, Layout
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import client
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.index_sharing.dealer import SemiHonestDealer
from secagg.protocols.two_servers.index_sharing.dealt_correlations import DealtHeader
from secagg.protocols.two_servers.index_sharing.index_halves import IndexSharingExchange
from secagg.protocols.two_servers.index_sharing.index_shares import Indices, add_indices, unpack_indices
from secagg.protocols.two_servers.one_hot.check import OneHotVerifier
from secagg.protocols.two_servers.point_functions.explicit_share import ExplicitShare
from secagg.protocols.two_servers.point_functions.generation import ServerShare
from secagg.protocols.two_servers.server_messages import OutputShare, RoundStamp, decode_batch, encode_batch
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound

BLOCKS, CODEWORDS = 6, 8
SEGMENT = IndexSegment(CODEWORDS, BLOCKS)
SETUP = IndexingSetup(mode=SharingMode.SEMI_HONEST_INDEX_SHARING, layout=Layout((SEGMENT,)))
EVERYBODY = tuple(ClientId(number) for number in range(1, 6))
VICTIM = EVERYBODY[1]
TIMES, SHIFT = 60, 4


@pytest.fixture
def made() -> InsecureIndexingRound:
    """Begin a round in which nothing was dealt."""
    return InsecureIndexingRound(SETUP)


def hand_over(made: InsecureIndexingRound, dealer: SemiHonestDealer, clients: Iterable[ClientId] = EVERYBODY) -> bytes:
    """Let a dealer deal to both servers, and these decide about the batch."""
    halves = dealer.deal(clients)
    batch_id, _ = (server.deal(half.encode()) for server, half in zip(made.servers, halves, strict=True))
    made.check()
    return batch_id


def upload_skewed(made: InsecureIndexingRound) -> dict[int, Any]:
    """Let everybody upload indices of 0 and 1 alone, as where two codewords are much more frequent than all others."""
    inputs = dict[int, Any]()
    for number in range(1, 6):
        drawn = np.random.default_rng(number).integers(0, 2, BLOCKS).astype(SEGMENT.ring.word)
        inputs[number] = drawn
        made.deliver(made.share(number, payload=Payload(SETUP.layout, (drawn,))))
    return inputs


def opened_sum(made: InsecureIndexingRound) -> Any:
    """Return what the servers' shares add up to, as whoever sees both reads it, whether it is a sum or not."""
    lists = made.zero.close(), made.one.close()
    commitments = made.zero.agree(lists[1]), made.one.agree(lists[0])
    group, total = made.configuration.group, np.zeros(BLOCKS * CODEWORDS, dtype=np.uint8)
    for index, share in enumerate((made.zero.open(commitments[1]), made.one.open(commitments[0]))):
        group.add_into(total, OutputShare.decode(share, made.configuration, stamp(made, index)).values[0])
    return total.reshape(BLOCKS, CODEWORDS)


def stamp(made: InsecureIndexingRound, index: int) -> RoundStamp:
    """Return what a server's messages of the round begin with."""
    return RoundStamp(context=made.configuration.context, round_number=SETUP.round_number, server=ServerId(index))


def exchange_of(made: InsecureIndexingRound, index: int, client: ClientId) -> IndexSharingExchange:
    """Return a server's side of the upload of a client that waits."""
    pending = vars(made.servers[index])["_pending"].values()
    (found,) = (one.exchange for one in pending if one.entry.client == client)
    assert type(found) is IndexSharingExchange
    return found


def said_of(made: InsecureIndexingRound, message: bytes, kind: MessageKind, index: int) -> dict[bytes, bytes]:
    """Return what a server says of each upload."""
    return {upload_id: said or b"" for upload_id, said in decode_batch(message, kind, stamp(made, index))}


class ManifoldDealer(SemiHonestDealer):
    """Deals the votes of one client many times over, and hides it in the lane that the servers derive."""

    def _vote_shares(
        self, header: DealtHeader, number: int, segment: IndexSegment, masks: Indices
    ) -> tuple[ServerShare, ServerShare]:
        zero, one = super()._vote_shares(header, number, segment, masks)
        assert isinstance(one, ExplicitShare)
        shape, rows = one.shape, len(masks)
        lanes = shape.group.unpack(memoryview(one.encode()), rows * shape.sent_lanes).reshape(shape.sent_lanes, rows)
        first = header.clients.index(VICTIM) * segment.blocks
        for row in range(first, first + segment.blocks):
            if masks[row] < shape.sent_lanes:
                shape.group.add_into(lanes[masks[row], row : row + 1], np.array([TIMES - 1], dtype=lanes.dtype))
        return zero, ExplicitShare(shape, rows, one.binding, lanes.reshape(-1))


class ShiftingDealer(SemiHonestDealer):
    """Deals votes of one client beside the indices that it shares; each of them is a vote for one codeword."""

    def _masks(self, header: DealtHeader, number: int, segment: IndexSegment, seeds: list[Secret]) -> Indices:
        masks = super()._masks(header, number, segment, seeds)
        first = header.clients.index(VICTIM) * segment.blocks
        moved = masks[first : first + segment.blocks]
        moved[:] = (moved + SHIFT) % segment.codewords
        return masks


class RememberingDealer(SemiHonestDealer):
    """Deals honestly, and remembers what it drew."""

    drawn: Indices

    def _masks(self, header: DealtHeader, number: int, segment: IndexSegment, seeds: list[Secret]) -> Indices:
        masks = super()._masks(header, number, segment, seeds)
        self.drawn = masks.reshape(len(header.clients), segment.blocks).copy()
        return masks


def corrupt(made: InsecureIndexingRound, kind: type[SemiHonestDealer]) -> Any:
    """Make a dealer of another kind, with the key that the configuration names."""
    return kind(
        made.configuration,
        round_number=SETUP.round_number,
        offers=(made.zero.offer, made.one.offer),
        signing_key=SETUP.signing_key_of("dealer"),
        coins=SETUP.coins_of("dealer"),
    )


# --- A dealer that deals badly ----------------------------------------------------------------------------------------


def test_a_dealer_that_deals_one_clients_votes_many_times_over_is_refused(made: InsecureIndexingRound) -> None:
    halves = corrupt(made, ManifoldDealer).deal(EVERYBODY)
    (batch_id, _) = (server.deal(half.encode()) for server, half in zip(made.servers, halves, strict=True))
    upload_skewed(made)
    made.check()
    for server in made.servers:
        assert server.waiting() == ()
        assert list(server.rejected) == [ClientId(2**64 - 1)], "the dealer's batch, and no client"
        with pytest.raises(SecAggError):
            server.close()
        assert batch_id not in vars(server)["_pending"]


def test_who_was_dealt_badly_for_does_not_upload_any_more(made: InsecureIndexingRound) -> None:
    hand_over(made, corrupt(made, ManifoldDealer), EVERYBODY[:2])
    for server, half in zip(made.servers, made.share(1), strict=True):
        with pytest.raises(UnexpectedMessage):
            server.receive(half.encode())
    with pytest.raises(PeerMisbehaved) as caught:
        made.deal([1])
    assert caught.value.reason is Reason.ALREADY_ANSWERED


def test_without_the_check_that_dealer_would_read_the_clients_index(
    made: InsecureIndexingRound, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accept(*_: object) -> None:
        """Check nothing."""

    monkeypatch.setattr(OneHotVerifier, "decide", accept)
    hand_over(made, corrupt(made, ManifoldDealer))
    inputs = upload_skewed(made)
    made.check()
    counts = opened_sum(made)
    read = [
        [codeword for codeword in range(CODEWORDS) if TIMES <= counts[block, codeword] <= TIMES + 5]
        for block in range(BLOCKS)
    ]
    found = {block: hot[0] for block, hot in enumerate(read) if len(hot) == 1}
    assert len(found) >= BLOCKS // 2
    assert all(inputs[VICTIM.value][block] == codeword for block, codeword in found.items())


def test_one_bad_batch_leaves_the_others_in_use(made: InsecureIndexingRound) -> None:
    hand_over(made, corrupt(made, ManifoldDealer), EVERYBODY[:2])
    made.deal([3, 4, 5])
    for number in (3, 4, 5):
        made.upload(number)
    made.check()
    for result in made.finish():
        assert result.aggregate.encode() == made.ideal([3, 4, 5]).encode()


@pytest.mark.parametrize("index", [0, 1])
def test_two_halves_of_two_batches_are_used_by_neither_server(index: int, made: InsecureIndexingRound) -> None:
    first, second = made.dealer().deal(EVERYBODY), made.dealer().deal(EVERYBODY)
    made.servers[index].deal(first[index].encode())
    made.servers[1 - index].deal(second[1 - index].encode())
    upload_skewed(made)
    made.check()
    for server in made.servers:
        assert len(server.waiting()) == 1, "the batch, and no upload behind it"
        with pytest.raises(SecAggError):
            server.close()


def test_nobody_else_deals(made: InsecureIndexingRound) -> None:
    half = made.dealer().deal(EVERYBODY)[0]
    parts = (half.header.digest(made.configuration), *half.sealed_seeds)
    for party in ("server 1", "authority", "client 1"):
        signature = SETUP.signing_key_of(party).sign(Label.INDEXING_SIGNED_DEALING, *parts)
        with pytest.raises(AuthenticationFailed):
            made.zero.deal(replace(half, signature=signature).encode())
    with pytest.raises(InvalidParameters, match="keys of their own"):
        replace(made.configuration, dealer_key=made.configuration.server_keys[0])


def test_a_batch_of_another_round_or_task_is_refused(made: InsecureIndexingRound) -> None:
    message = made.dealer().deal(EVERYBODY)[0].encode()
    with pytest.raises(PeerMisbehaved) as caught:
        InsecureIndexingRound(replace(SETUP, round_number=8)).zero.deal(message)
    assert caught.value.reason is Reason.WRONG_SESSION
    with pytest.raises(AuthenticationFailed):
        InsecureIndexingRound(replace(SETUP, task=b"another task")).zero.deal(message)


# --- A client that sends whatever it likes ----------------------------------------------------------------------------


def test_whatever_a_client_sends_is_one_vote_in_every_block(
    made: InsecureIndexingRound, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.deal()
    for number in range(2, 6):
        made.upload(number)

    def any_bytes(*_: object) -> list[bytes]:
        return [bytes([0xA5, 0x5A, 0x03])]

    monkeypatch.setattr(client, "masked_indices", any_bytes)
    made.upload(1)
    made.check()
    for result in made.finish():
        counts = np.asarray(result.aggregate.values[0]).astype(int)
        for number in range(2, 6):
            counts[np.arange(BLOCKS), SETUP.payload_of(number).values[0]] -= 1
        assert counts.min() == 0
        assert (counts.sum(axis=1) == 1).all()


# --- A server that lies -----------------------------------------------------------------------------------------------


def altered(message: bytes, kind: MessageKind, said_by: RoundStamp, change: Callable[[bytes], bytes]) -> bytes:
    """Change what a server says of every upload."""
    items = [(one, None if blob is None else change(blob)) for one, blob in decode_batch(message, kind, said_by)]
    return encode_batch(kind, said_by, items)


@pytest.mark.parametrize("change", [-1, 1, -3])
@pytest.mark.parametrize("liar", [0, 1])
def test_a_server_that_says_no_indices_ends_the_upload_and_burns_its_correlation(
    liar: int, change: int, made: InsecureIndexingRound
) -> None:
    def resized(blob: bytes) -> bytes:
        return (blob + bytes(1))[: len(blob) + change]

    made.deal()
    made.upload(1)
    proposal = made.one.propose(made.one.waiting())
    if liar:
        proposal = altered(proposal, MessageKind.INDEXING_PROPOSAL, stamp(made, 1), resized)
        made.zero.answer(proposal)
    else:
        answer = altered(made.zero.answer(proposal), MessageKind.INDEXING_ANSWER, stamp(made, 0), resized)
        made.one.conclude(answer)
    victim = made.servers[1 - liar]
    assert list(victim.rejected) == [ClientId(1)]
    assert victim.waiting() == ()
    with pytest.raises(PeerError):
        victim.receive(made.with_setup(seed=b"again").share(1)[victim.server.index].encode())


def test_a_server_that_asks_twice_with_other_differences_is_refused(made: InsecureIndexingRound) -> None:
    made.deal()
    made.upload(1)
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    other = altered(
        proposal, MessageKind.INDEXING_PROPOSAL, stamp(made, 1), lambda blob: bytes([blob[0] ^ 1]) + blob[1:]
    )
    with pytest.raises(PeerMisbehaved) as caught:
        made.zero.answer(other)
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert caught.value.culprits == {ServerId(1)}
    assert made.zero.answer(proposal) == answer


def test_a_client_cannot_have_its_correlation_used_twice(made: InsecureIndexingRound) -> None:
    made.deal()
    made.upload(1)
    made.one.propose(made.one.waiting())
    again = made.new_client(1)
    second = again.share(
        SETUP.payload_of(2),
        configuration=made.configuration,
        round_number=SETUP.round_number,
        offers=(made.zero.offer, made.one.offer),
        now=NOW,
    )
    for server, half in zip(made.servers, second, strict=True):
        with pytest.raises(PeerMisbehaved) as caught:
            server.receive(half.encode())
        assert caught.value.reason is Reason.ALREADY_ANSWERED
    # Nor would a server's own mistake: the correlation itself knows what it was spent on.
    exchange = exchange_of(made, 1, ClientId(1))
    batch = vars(exchange)["_correlations"].of(ClientId(1))
    with pytest.raises(Misuse) as spent:
        batch.use(ClientId(1), bytes(32))
    assert spent.value.reason is Reason.ALREADY_SPENT


def test_what_the_servers_say_to_each_other_is_uniform_without_the_dealer() -> None:
    blocks = 8000
    layout = Layout((IndexSegment(5, blocks),))
    made = InsecureIndexingRound(replace(SETUP, layout=layout))
    made.deal()
    same = np.full(blocks, 3, dtype=IndexSegment(5, blocks).ring.word)
    made.deliver(made.share(1, payload=Payload(layout, (same,))))
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    segment = IndexSegment(5, blocks)
    said = [
        unpack_indices(segment, next(iter(said_of(made, message, kind, index).values())))
        for message, kind, index in (
            (proposal, MessageKind.INDEXING_PROPOSAL, 1),
            (answer, MessageKind.INDEXING_ANSWER, 0),
        )
    ]
    for seen in (*said, add_indices(said[0], said[1], 5)):
        counts = np.bincount(seen, minlength=5)
        assert float(((counts - blocks / 5) ** 2 / (blocks / 5)).sum()) < 30


# --- Why the mode is called semi-honest -------------------------------------------------------------------------------


def test_a_server_that_turns_a_chosen_client_reads_its_index_which_is_why_the_mode_is_semi_honest(
    made: InsecureIndexingRound,
) -> None:
    made.deal()
    inputs = upload_skewed(made)
    proposal = made.one.propose(made.one.waiting())
    # Server 0 adds to the difference that it says of one client, and turns its own share alike.
    exchange = exchange_of(made, 0, VICTIM)
    upload_id: bytes = vars(exchange)["_entry"].upload_id
    exchange.answer(said_of(made, proposal, MessageKind.INDEXING_PROPOSAL, 1)[upload_id])
    (honest,) = vars(exchange)["_said"]
    vars(exchange)["_said"] = ((honest + SHIFT) % CODEWORDS,)
    made.zero.settle(made.one.conclude(made.zero.answer(proposal)))
    results = made.finish()
    counts = np.asarray(results[1].aggregate.values[0])
    read = np.argmax(counts[:, SHIFT : SHIFT + 2], axis=1)
    assert (counts[:, SHIFT : SHIFT + 2].sum(axis=1) == 1).all(), "one vote stands where nobody votes"
    assert (read == inputs[VICTIM.value]).all(), "and it is the client's"


def test_a_dealer_that_deals_beside_what_it_shares_reads_an_index_which_is_why_the_mode_is_semi_honest(
    made: InsecureIndexingRound,
) -> None:
    hand_over(made, corrupt(made, ShiftingDealer))
    inputs = upload_skewed(made)
    made.check()
    counts = np.asarray(made.finish()[0].aggregate.values[0])
    assert (np.argmax(counts[:, SHIFT : SHIFT + 2], axis=1) == inputs[VICTIM.value]).all()


def test_a_dealer_that_hears_the_servers_reads_every_index_which_is_why_their_channel_is_hidden_from_it(
    made: InsecureIndexingRound,
) -> None:
    dealer = corrupt(made, RememberingDealer)
    hand_over(made, dealer)
    inputs = upload_skewed(made)
    places = {upload: vars(made.one)["_pending"][upload].entry.client for upload in made.one.waiting()}
    proposal = made.one.propose(made.one.waiting())
    answer = made.zero.answer(proposal)
    ones = dict(decode_batch(proposal, MessageKind.INDEXING_PROPOSAL, stamp(made, 1)))
    zeros = dict(decode_batch(answer, MessageKind.INDEXING_ANSWER, stamp(made, 0)))
    for upload, sender in places.items():
        said = add_indices(
            unpack_indices(SEGMENT, ones[upload] or b""), unpack_indices(SEGMENT, zeros[upload] or b""), 8
        )
        assert (add_indices(said, dealer.drawn[sender.value - 1], 8) == inputs[sender.value]).all()
