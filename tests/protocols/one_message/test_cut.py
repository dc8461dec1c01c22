"""Uploads in pieces: they are the same message, added and opened piece by piece, and a wrong one changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.contract.pieces import LocalSum, pieces_of
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, MalformedMessage
from secagg.identifiers import ClientId
from secagg.protocols.one_message import in_parts
from secagg.protocols.one_message.cut import OneMessageCut, joined, key_of
from secagg.protocols.one_message.fitting import choose_committee, plan
from secagg.protocols.one_message.lattice.masks import EpochRing
from secagg.protocols.one_message.lattice.values import PIECE_COEFFICIENTS, Values
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.server import Server
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.workers import InProcess
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.one_message_sums import InsecureSum, SumSetup

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
        made.append((vector, secret.expose().astype(np.int32)))
    return made


def cut_of() -> OneMessageCut:
    return OneMessageCut(bytes(32), PARAMETERS, SEED)


def test_pieces_are_added_and_opened_as_the_whole_is(uploads: list[tuple[bytes, np.ndarray]]) -> None:
    cut, ring = cut_of(), EpochRing(PARAMETERS, SEED)
    assert len(cut.lengths) == 2
    assert sum(cut.lengths) == PARAMETERS.upload_bytes
    whole, local = ring.accumulator(), LocalSum(cut)
    for vector, _ in uploads:
        whole.add(vector)
        local.add(None, (), vector)  # type: ignore[arg-type]
    secret = np.sum([each for _, each in uploads], axis=0).astype(np.int32)
    words = joined(local.open(key_of(secret)))
    assert all(np.array_equal(one, other) for one, other in zip(words, ring.unmasked(whole, secret), strict=True))
    opened = ring.opened(words, len(uploads))
    assert opened.vector(0, 3).tolist() == [6] * (PIECE_COEFFICIENTS + 4)
    assert opened.vector(1, 3).tolist() == [3] * 11


def test_a_vector_whose_last_piece_does_not_decode_adds_nothing(uploads: list[tuple[bytes, np.ndarray]]) -> None:
    """Its first piece would: a server that found out later would keep that."""
    cut, (vector, secret) = cut_of(), uploads[0]
    local = LocalSum(cut)
    before = [total.copy() for piece in local.open(key_of(secret)) for total in piece]
    with pytest.raises(MalformedMessage):
        local.add(None, (), vector[:-1] + b"\xff")  # type: ignore[arg-type]
    after = [total for piece in local.open(key_of(secret)) for total in piece]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


# --- Whole sums -------------------------------------------------------------------------------------------------------


@pytest.fixture
def world() -> InsecureSum:
    return InsecureSum(SumSetup(layout=LONG, population=4))


def collected(world: InsecureSum, server: Server, messages: Mapping[ClientId, bytes]) -> Server:
    world.ask(server, server.introduce())
    for client, message in messages.items():
        server.receive_upload(client, message)
    world.ask(server, server.deliver())
    server.settle()
    return server


def test_a_client_leaves_its_pieces_in_a_storage_and_sends_the_rest(world: InsecureSum, tmp_path: Path) -> None:
    """What is signed is the same, so the holders see no difference; one that stored too little is left out."""
    offer, store, lazy = world.offer(), FolderStore(tmp_path), world.setup.clients[-1]
    cut, messages = offer.agree().cut, dict[ClientId, bytes]()
    for client in world.setup.clients:
        whole = world.upload(client, offer)
        message, pieces = in_parts(cut, whole)
        assert len(message) == len(whole) - sum(cut.lengths)
        for digest, piece in zip(Upload.decode(message).pieces, pieces, strict=True):
            store.put(piece_name(cut.context, client, digest), piece)
            if client == lazy:
                break
        messages[client] = message
    server = Server(
        offer,
        world.setup.sum_id,
        lambda cut: SpreadSum(cut, InProcess(), SpreadSettings(storage=str(tmp_path)), coins=InsecureSeededCoins(b"")),
    )
    collected(world, server, messages).fix_list()
    assert set(server.left_out) == {lazy}
    assert server.faults == list(server.left_out.values())
    world.ask(server, server.requests())
    opened = server.open()
    due = world.ideal(world.setup.clients[:-1])
    assert opened.counted == frozenset(world.setup.clients[:-1])
    assert all((one == other).all() for one, other in zip(opened.aggregate.values, due.values, strict=True))
    assert list(tmp_path.iterdir()) == []


def test_pieces_that_were_not_stored_after_all_are_taken_with_the_upload(world: InsecureSum, tmp_path: Path) -> None:
    offer, late = world.offer(), world.setup.clients[0]
    server = Server(
        offer,
        world.setup.sum_id,
        lambda cut: SpreadSum(cut, InProcess(), SpreadSettings(storage=str(tmp_path)), coins=InsecureSeededCoins(b"")),
    )
    whole = {client: world.upload(client, offer) for client in world.setup.clients}
    message, _ = in_parts(offer.agree().cut, whole[late])
    for _ in range(2):
        server.receive_upload(late, message)
    collected(world, server, whole).fix_list()
    assert not server.left_out


def test_an_upload_of_another_length_is_not_cut(world: InsecureSum) -> None:
    offer = world.offer()
    upload = Upload.decode(world.upload(world.setup.clients[0], offer))
    with pytest.raises(MalformedMessage, match="another vector than this sum's"):
        in_parts(offer.agree().cut, replace(upload, vector=upload.vector[:-1]).encode())


def test_a_server_without_a_storage_takes_whole_uploads_alone(world: InsecureSum) -> None:
    offer, client = world.offer(), world.setup.clients[0]
    server = Server(offer, world.setup.sum_id)
    message, pieces = in_parts(offer.agree().cut, world.upload(client, offer))
    with pytest.raises(MalformedMessage, match="no storage to look into"):
        server.receive_upload(client, message)
    assert server.taken == frozenset()
    server.receive_upload(client, replace(Upload.decode(message), vector=b"".join(pieces)).encode())
    assert server.taken == {client}


def test_a_vector_that_is_not_the_signed_one_is_not_taken(world: InsecureSum) -> None:
    offer, client = world.offer(), world.setup.clients[0]
    cut, server = offer.agree().cut, Server(offer, world.setup.sum_id)
    upload = Upload.decode(world.upload(client, offer))
    first, second = pieces_of(upload.vector, cut.lengths)
    for vector in (bytes([first[0] ^ 1]) + first[1:] + second, first + second[:-1] + bytes([second[-1] ^ 1])):
        with pytest.raises(AuthenticationFailed):
            server.receive_upload(client, replace(upload, vector=vector).encode())
    with pytest.raises(AuthenticationFailed):
        server.receive_upload(client, replace(upload, pieces=upload.pieces[::-1]).encode())
    with pytest.raises(MalformedMessage):
        server.receive_upload(client, replace(upload, pieces=upload.pieces[:1]).encode())
    assert server.taken == frozenset()


def test_an_upload_of_another_length_has_no_parts(world: InsecureSum) -> None:
    offer = world.offer()
    upload = Upload.decode(world.upload(world.setup.clients[0], offer))
    with pytest.raises(MalformedMessage, match="another vector"):
        in_parts(offer.agree().cut, replace(upload, vector=upload.vector[1:]).encode())
