"""The plain implementation reads what the library sends, answers as its holders do, and opens the same sums."""

from __future__ import annotations

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.protocols.one_message.requests import Answer
from tests.harness.one_message_sums import InsecureSum, SumSetup
from tests.protocols.one_message.plain import plain_one_message as plain

SETUPS = {
    "packed, two blocks": SumSetup(
        population=3, layout=Layout((RingSegment(12, 9000), RingSegment(7, 5))), bounds=((-3, 3), None)
    ),
    "certified": SumSetup(population=4, holders=9, absent=1),
    "two words": SumSetup(population=3, layout=Layout((RingSegment(60, 5),))),
}


@pytest.mark.parametrize("name", SETUPS)
def test_the_library_and_the_plain_implementation_agree(name: str) -> None:
    setup = SETUPS[name]
    world = InsecureSum(setup)
    server = world.collected()
    server.fix_list()
    offer = plain.read_offer(server.offer)
    assert offer.t0 == server.agreement.t0
    assert offer.seed == server.agreement.epoch.seed
    uploads = [plain.read_upload(offer, world.stored_upload(client)) for client in setup.clients]
    assert [(one.client, one.digest) for one in uploads] == [
        (listed.client.value, listed.upload) for listed in server.upload_list.listed
    ]
    answers = dict[int, list[int]]()
    for position in range(offer.threshold):
        root = bytes(world.setup.coins_of(f"holder {position}").draw(32))
        held = [plain.open_share(offer, position, root, upload) for upload in uploads]
        answers[position] = [sum(column) % plain.P for column in zip(*held, strict=True)]
    world.ask(server, server.requests())
    server.certify()
    for position, request in server.requests().items():
        answer = world.holders[position].respond(request)
        server.receive(position, answer)
        if position in answers:
            words = [word.to_bytes(2, "little") for word in answers[position]]
            assert Answer.decode(answer).sums == b"".join(words)
    secret = plain.recover(offer, answers)
    sums = plain.open_sum(offer, [upload.vector for upload in uploads], secret)
    opened = server.open().aggregate
    assert opened.contributors == len(setup.clients)
    assert sums == [vector.tolist() for vector in opened.values]
    ideal = world.ideal(setup.clients)
    for segment, found, due in zip(setup.layout.require_rings(), opened.values, ideal.values, strict=True):
        errors = segment.ring.lift(segment.ring.subtract(found, due)).astype(np.int64)
        assert np.abs(errors).max() <= len(uploads) * segment.head_room
