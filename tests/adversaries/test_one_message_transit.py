"""One bit is flipped in transit, in each kind of message, both ways: nobody is named without the network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from secagg.errors import SecAggError
from secagg.identifiers import HolderId, Party, ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.configuration import Offer
from secagg.session.frames import decode_refusal
from secagg.wire import MessageKind, message_kind
from tests.harness.one_message_sums import InsecureSum, SumSetup

PLACES = 12
TO_HOLDERS = (
    MessageKind.ONE_MESSAGE_OFFER,
    MessageKind.ONE_MESSAGE_DELIVERY,
    MessageKind.ONE_MESSAGE_LIST,
    MessageKind.ONE_MESSAGE_CERTIFIED_LIST,
)
FROM_HOLDERS = (
    MessageKind.ONE_MESSAGE_OFFER_RECEIPT,
    MessageKind.ONE_MESSAGE_RECEIPT,
    MessageKind.ONE_MESSAGE_LIST_SIGNATURE,
    MessageKind.ONE_MESSAGE_ANSWER,
)


@dataclass
class Link:
    """The way to holder 1, on which one byte of one kind of message is altered, once."""

    world: InsecureSum
    kind: MessageKind
    part: float
    refused: list[SecAggError] = field(default_factory=list[SecAggError])
    altered: int = 0

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, request in requests.items():
            answer = self.world.holders[position].answer(self._passed(position, request))
            if message_kind(answer) is MessageKind.REFUSAL:
                self.refused.append(decode_refusal(answer))
            yield position, self._passed(position, answer)

    def _passed(self, position: int, message: bytes) -> bytes:
        if position != 1 or self.altered or message_kind(message) is not self.kind:
            return message
        self.altered += 1
        return flipped(message, self.part)


def flipped(message: bytes, part: float) -> bytes:
    place = min(len(message) - 1, 7 + int(part * (len(message) - 7)))
    return message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]


def parts() -> Iterator[float]:
    return (place / PLACES for place in range(PLACES + 1))


def require_network_named(errors: Iterable[object], *senders: Party) -> int:
    named = [culprits for error in errors if (culprits := getattr(error, "culprits", None))]
    for culprits in named:
        assert culprits >= {ServerId(), *senders}, culprits
    return len(named)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("kind", [*TO_HOLDERS, *FROM_HOLDERS])
def test_on_the_way_to_a_holder_and_back(kind: MessageKind, mode: SecurityMode) -> None:
    found = 0
    for part in parts():
        world = InsecureSum(SumSetup(mode=mode))
        link, left = Link(world, kind, part), list[object]()
        try:
            session = world.session(link.ask_all)
            for client in world.setup.clients:
                member = world.member(client).join(world.setup.subject, world.update(client))
                session.receive(client, member.answer(session.invitation))
            session.close_stage()
            left += session.release().left_out.values()
            left += session.faults
        except SecAggError as error:
            left.append(error)
        assert link.altered == 1
        found += require_network_named(link.refused)
        found += require_network_named(left, HolderId(1))
    assert found, "something was noticed and named"


@pytest.mark.parametrize("mode", SecurityMode)
def test_on_the_way_to_a_client(mode: SecurityMode) -> None:
    for part in parts():
        world = InsecureSum(SumSetup(mode=mode))
        client, offer = world.setup.clients[0], flipped(world.offer().encode(), part)
        try:
            world.member(client).join(world.setup.subject, world.update(client)).answer(offer)
        except SecAggError as error:
            require_network_named([error])


@pytest.mark.parametrize("mode", SecurityMode)
def test_on_the_way_from_a_client(mode: SecurityMode) -> None:
    found = 0
    for part in parts():
        world = InsecureSum(SumSetup(mode=mode))
        session, altered = world.session(Link(world, MessageKind.REFUSAL, 0.0).ask_all), world.setup.clients[0]
        for client in world.setup.clients:
            member = world.member(client).join(world.setup.subject, world.update(client))
            answer = member.answer(session.invitation)
            try:
                session.receive(client, flipped(answer, part) if client == altered else answer)
            except SecAggError as error:
                found += require_network_named([error], altered)
        try:
            session.close_stage()
            released = session.release()
        except SecAggError as error:
            require_network_named([error, *session.faults])
        else:
            require_network_named([*session.faults, *released.left_out.values()], altered)
    assert found


def test_two_uploads_of_a_client_that_started_again_name_nobody() -> None:
    world, again = InsecureSum(), InsecureSum(salt=" again")
    client = world.setup.clients[0]
    session = world.session(Link(world, MessageKind.REFUSAL, 0.0).ask_all)
    offer = Offer.decode(session.invitation)
    session.receive(client, world.upload(client, offer))
    with pytest.raises(SecAggError, match="sent a second, different answer") as refused:
        session.receive(client, again.upload(client, offer))
    assert refused.value.culprits == frozenset()  # type: ignore[attr-defined]
