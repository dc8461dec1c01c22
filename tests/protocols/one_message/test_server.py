"""What a server of one sum does in one order alone, and whom it goes on without."""

from __future__ import annotations

import pytest

from secagg.errors import InvalidParameters, Misuse, ThresholdNotMet, UnexpectedMessage
from secagg.protocols.one_message.server import Server
from tests.harness.one_message_sums import SUM_ID, InsecureSum


@pytest.mark.parametrize("name", [b"", bytes(16), SUM_ID + b"x", SUM_ID[1:]])
def test_a_sum_has_a_name(name: bytes) -> None:
    with pytest.raises(InvalidParameters, match="a sum is named by 16 bytes"):
        Server(InsecureSum().offer(), name)


def test_an_upload_that_comes_again_is_delivered_once() -> None:
    world = InsecureSum()
    client, server = world.setup.clients[0], Server(world.offer(), SUM_ID)
    upload = world.upload(client)
    world.ask(server, server.introduce())
    server.receive_upload(client, upload)
    server.receive_upload(client, upload)
    assert server.waiting == 1
    world.ask(server, server.deliver())
    with pytest.raises(Misuse, match="settle the last delivery first"):
        server.deliver()
    server.settle()
    server.receive_upload(client, upload)
    assert (server.waiting, server.listed) == (0, frozenset({client}))


def test_nothing_is_collected_once_the_list_is_fixed() -> None:
    world = InsecureSum()
    server, client = world.collected(), world.setup.clients[0]
    upload = world.upload(client)
    server.fix_list()
    for call in (server.introduce, server.deliver, server.settle, server.fix_list):
        with pytest.raises(UnexpectedMessage):
            call()
    with pytest.raises(UnexpectedMessage):
        server.receive_upload(client, upload)


def test_a_holder_that_judges_no_delivery_is_lost() -> None:
    world = InsecureSum()
    client, server = world.setup.clients[0], Server(world.offer(), SUM_ID)
    world.ask(server, server.introduce())
    server.receive_upload(client, world.upload(client))
    requests = server.deliver()
    requests.pop(2)
    world.ask(server, requests)
    server.settle()
    assert server.present == {0, 1, 3, 4}


def test_too_few_holders_open_nothing() -> None:
    world = InsecureSum()
    server = Server(world.offer(), SUM_ID)
    server.require_holders()
    for position in range(4):
        server.lose(position)
    with pytest.raises(ThresholdNotMet):
        server.require_holders()
