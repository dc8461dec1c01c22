"""What a holder keeps in memory, and for how long; forks, and holders that start again."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.hpke import CLASSIC_OVERHEAD_BYTES
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.protocols.one_message.holder import HeldShare, open_share
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.tally import Tally
from secagg.session.frames import decode_refusal
from secagg.wire import MessageKind, message_kind
from tests.adversaries.test_one_message_dealers import badly_dealt
from tests.harness.one_message_sums import COINS, NOW, InsecureSum, SumSetup


def accepted_words(holder: Any) -> list[Any]:
    return [accepted.share._words for work in holder._work.values() for accepted in work.accepted.values()]  # noqa: SLF001


def test_a_closed_holder_has_overwritten_its_shares_and_given_up_its_key() -> None:
    world = InsecureSum()
    server = world.collected()
    holder: Any = world.holders[0]
    words, pair = accepted_words(holder), holder._pair  # noqa: SLF001
    assert len(words) == len(world.setup.clients)
    assert all(word.any() for word in words)
    holder.end()
    assert not any(word.any() for word in words)
    assert not holder._work  # noqa: SLF001
    with pytest.raises(Misuse, match="wiped"):
        pair.open("share", bytes(32 + CLASSIC_OVERHEAD_BYTES), 32, b"")
    server.fix_list()
    with pytest.raises(InvalidParameters, match="epoch is over"):
        holder.respond(server.requests()[0])


def test_a_holder_whose_epoch_is_over_answers_no_list() -> None:
    """Its keys are destroyed by the request itself, although nobody asked for the time before."""
    world = InsecureSum()
    server = world.collected()
    server.fix_list()
    words = accepted_words(world.holders[0])
    world.now = NOW + 3600
    with pytest.raises(InvalidParameters, match="epoch is over"):
        world.holders[0].respond(server.requests()[0])
    assert not any(word.any() for word in words)


def test_the_room_of_an_epoch_is_counted_over_deliveries_and_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum(SumSetup())
    monkeypatch.setattr("secagg.protocols.one_message.holder.MOST_UPLOADS", len(world.setup.clients))
    world.collected()
    later, client = replace(world.setup, round_number=7), world.setup.clients[0]
    offer = world.offer(later)
    server = Tally(offer, COINS)
    world.ask(server, server.introduce())
    server.receive_upload(client, world.upload(client, offer, later))
    with pytest.raises(PeerMisbehaved, match="at most 5 uploads"):
        world.holders[0].respond(server.deliver()[0])


def test_a_share_that_is_off_the_polynomial_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    world, held = InsecureSum(), list[Any]()
    offer, bad = world.offer(), world.setup.clients[2]
    server = world.server(offer, uploads={bad: badly_dealt(world, offer, bad, [0], monkeypatch)})

    def recorded(*arguments: Any) -> HeldShare:
        held.append(open_share(*arguments))
        return held[-1]  # type: ignore[no-any-return]

    monkeypatch.setattr("secagg.protocols.one_message.holder.open_share", recorded)
    world.holders[0].respond(server.deliver()[0])
    assert [bool(one._words.any()) for one in held].count(False) == 1  # noqa: SLF001
    assert len(held) == len(world.setup.clients)


def test_a_mask_that_is_not_made_leaves_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Secret]()

    def refuse(self: EpochRing, vectors: object, coins_seed: Secret, weight: int = 1) -> None:
        del self, vectors, weight
        seen.append(coins_seed)
        raise Misuse("planted")

    monkeypatch.setattr(EpochRing, "mask", refuse)
    world = InsecureSum()
    client = world.setup.clients[0]
    with pytest.raises(Misuse, match="planted"):
        world.member(client, coins=SystemCoins()).join(world.setup.subject, world.update(client)).answer(
            world.offer().encode()
        )
    (seed,) = seen
    with pytest.raises(Misuse):
        seed.expose()


# --- Forks ------------------------------------------------------------------------------------------------------------


def test_of_a_holder_that_was_forked_one_answers() -> None:
    """A fork has the same keys, and learns nothing of what the other process answers."""
    world = InsecureSum(SumSetup())
    server = world.collected()
    server.fix_list()
    smaller = replace(server.upload_list, listed=server.upload_list.listed[1:])
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        # Nothing of the test runner may run here.
        try:
            os.write(writing, world.holders[0].answer(smaller.encode()))
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    assert message_kind(said) is MessageKind.REFUSAL
    assert "forked" in str(decode_refusal(said))
    assert message_kind(world.holders[0].answer(server.requests()[0])) is not MessageKind.REFUSAL


def test_a_fork_of_a_holder_is_refused_whatever_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum()
    monkeypatch.setattr("secagg.protocols.one_message.holder.os.getpid", lambda: -1)
    with pytest.raises(Misuse, match="forked"):
        world.holders[0].respond(world.offer().encode())


# --- Lists that others certified --------------------------------------------------------------------------------------


def certified_by_others(world: InsecureSum) -> tuple[bytes, bytes]:
    """Return a smaller list than all but holder 0 certified, and the request for theirs."""
    server = world.collected()
    server.fix_list()
    smaller = replace(server.upload_list, listed=server.upload_list.listed[1:])
    world.ask(server, server.requests(), absent={0})
    server.certify()
    return smaller.encode(), server.requests()[1]


def test_a_holder_that_answered_what_others_certified_signs_no_other_list() -> None:
    world = InsecureSum()
    holder, (smaller, request) = world.holders[0], certified_by_others(world)
    answer = holder.respond(request)
    assert not any(word.any() for word in accepted_words(holder))
    with pytest.raises(PeerMisbehaved, match="one list"):
        holder.respond(smaller)
    assert holder.respond(request) == answer


def test_a_holder_that_signed_another_list_answers_none_that_others_certified() -> None:
    world = InsecureSum()
    holder, (smaller, request) = world.holders[0], certified_by_others(world)
    holder.respond(smaller)
    with pytest.raises(PeerMisbehaved, match="one list"):
        holder.respond(request)


def test_a_holder_that_is_started_again_promises_nothing_for_what_began_before() -> None:
    """It remembers no promise, and needs none: it has no key for the uploads that it made promises about."""
    world = InsecureSum()
    old_offer, server = world.offer(), world.collected()
    delivered, (smaller, request) = server_again(world, server), certified_by_others(world)
    world.holders[0].respond(request)
    restarted = world.holders[0] = world.holder_of_other_coins(0)
    for told in (old_offer.encode(), delivered, smaller, request):
        with pytest.raises(PeerMisbehaved, match=r"other keys of this holder|knows no offer") as refused:
            restarted.respond(told)
        assert refused.value.reason is Reason.WRONG_SESSION
    # Offered with its new keys, it knows none of the old uploads: they are bound to another T0.
    restarted.respond(world.offer().encode())
    with pytest.raises(PeerMisbehaved, match="knows no offer"):
        restarted.respond(smaller)
    later = replace(world.setup, round_number=1)
    world.setup = later
    assert world.answered(world.collected(setup=later)).open().counted == frozenset(later.clients)


def server_again(world: InsecureSum, server: Tally) -> bytes:
    other = Tally(world.offer(), COINS)
    world.ask(other, other.introduce())
    for client in sorted(server.taken):
        other.receive_upload(client, world.stored_upload(client))
    return other.deliver()[0]
