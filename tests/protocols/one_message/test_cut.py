"""Uploads in pieces: they are the same message, added and opened piece by piece, and a wrong one changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, MalformedMessage
from secagg.identifiers import ClientId
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.opening import Accumulator, LocalSum, OneMessageCut, Opening
from secagg.protocols.one_message.parameters import PIECE_COEFFICIENTS, Values, pieces_of
from secagg.protocols.one_message.session import choose_committee, plan
from secagg.protocols.one_message.tally import Tally
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup

LONG = Layout((RingSegment(12, PIECE_COEFFICIENTS + 5), RingSegment(7, 9)))
PARAMETERS = plan([Values(PIECE_COEFFICIENTS + 4, 12), Values(11, 7)], 8, choose_committee(5, 1))
SEED = bytes(range(32))


@pytest.fixture(scope="module")
def uploads() -> list[tuple[bytes, np.ndarray]]:
    """Three masked vectors of two pieces, and their secrets."""
    ring, made = EpochRing(PARAMETERS, SEED), list[tuple[bytes, np.ndarray]]()
    for number in range(3):
        vectors: list[RingVector] = [
            np.full(PIECE_COEFFICIENTS + 4, number + 1, np.uint16),
            np.full(11, number, np.uint8),
        ]
        coins = InsecureSeededCoins(bytes([number]))
        vector, secret = ring.mask(vectors, Secret.random("seed", 32, coins))
        made.append((vector, np.frombuffer(secret.expose(), np.int8).astype(np.int32)))
    return made


def cut_of() -> OneMessageCut:
    return OneMessageCut(bytes(32), PARAMETERS, SEED)


def test_pieces_are_added_and_opened_as_the_whole_is(uploads: list[tuple[bytes, np.ndarray]]) -> None:
    cut, ring = cut_of(), EpochRing(PARAMETERS, SEED)
    assert len(cut.lengths) == 2
    assert sum(cut.lengths) == PARAMETERS.upload_bytes
    whole, local = Accumulator(ring.parameters), LocalSum(cut)
    for vector, _ in uploads:
        whole.add(vector)
        local.add(ClientId(1), vector)
    secret = np.sum([each for _, each in uploads], axis=0).astype(np.int32)
    pieces = list(local.open(secret))
    (words,), due = zip(*pieces, strict=True), Opening(ring).unmasked(whole, secret)
    assert np.array_equal(np.concatenate(words), due[0])
    assert len(due) == 1
    opened = Opening(ring).opened(pieces, len(uploads))
    assert opened.vector(0).tolist() == [6] * (PIECE_COEFFICIENTS + 4)
    assert opened.vector(1).tolist() == [3] * 11


@pytest.fixture
def world() -> InsecureSum:
    return InsecureSum(SumSetup(layout=LONG, population=4))


def test_a_vector_that_is_not_the_signed_one_is_not_taken(world: InsecureSum) -> None:
    offer, client = world.offer(), world.setup.clients[0]
    cut, server = OneMessageCut.of(offer.agree()), Tally(offer, COINS)
    upload = Upload.decode(world.upload(client, offer))
    first, second = map(bytes, pieces_of(upload.vector, cut.lengths))
    for vector in (bytes([first[0] ^ 1]) + first[1:] + second, first + second[:-1] + bytes([second[-1] ^ 1])):
        with pytest.raises(AuthenticationFailed):
            server.receive_upload(client, replace(upload, vector=vector).encode())
    with pytest.raises(AuthenticationFailed):
        server.receive_upload(client, replace(upload, pieces=upload.pieces[::-1]).encode())
    with pytest.raises(MalformedMessage):
        server.receive_upload(client, replace(upload, pieces=upload.pieces[:1]).encode())
    assert not server.taken
