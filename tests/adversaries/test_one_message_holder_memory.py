"""What a holder keeps in memory, and for how long; forks, and holders that start again."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from weakref import WeakSet

import pytest

from secagg.contract import Layout
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.hpke import CLASSIC_OVERHEAD_BYTES
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.protocols.one_message import holder as holder_module
from secagg.protocols.one_message.configuration import HolderKeys, Offer
from secagg.protocols.one_message.holder import MOST_SESSIONS, MOST_TASKS, HeldShare, Holder, open_share
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.tally import Tally
from secagg.session.frames import decode_refusal
from secagg.wire import MessageKind, message_kind
from tests.adversaries.test_one_message_dealers import badly_dealt
from tests.harness.one_message_sums import COINS, NOW, InsecureSum, SumSetup


def accepted_words(holder: Any) -> list[Any]:
    """Return the arrays themselves, which are zeros once their shares were wiped."""
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


@pytest.mark.parametrize("leave", [Holder.end, Holder.leave_fork])
def test_a_holder_whose_keys_cannot_be_wiped_is_over_all_the_same(
    leave: Callable[[Holder], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = InsecureSum()
    holder: Any = world.holders[0]

    def fail() -> None:
        raise Misuse("planted")

    monkeypatch.setattr(holder._pair, "wipe", fail)  # noqa: SLF001
    with pytest.raises(Misuse, match="planted"):
        leave(holder)
    with pytest.raises(InvalidParameters, match="epoch is over"):
        holder.respond(world.offer().encode())


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

    def refuse(self: EpochRing, vectors: object, coins_seed: Secret) -> None:
        del self, vectors
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
        with pytest.raises(PeerMisbehaved, match=r"other keys for this holder|has not received the offer") as refused:
            restarted.respond(told)
        assert refused.value.reason is Reason.WRONG_SESSION
    # Offered with its new keys, it knows none of the old uploads: they are bound to another T0.
    restarted.respond(world.offer().encode())
    with pytest.raises(PeerMisbehaved, match="has not received the offer"):
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


# --- The end of keys --------------------------------------------------------------------------------------------------

HOUR: Final = 3600


def holder_for_hours(world: InsecureSum, hours: int = 12, **brought: Any) -> Any:
    """Return holder 0 of an epoch of two days, with keys that last ``hours`` hours."""
    usual: dict[str, Any] = {
        "coins": COINS,
        "policy": world.policy,
        "clock": world.clock,
        "life": timedelta(hours=hours),
        "ticks": lambda: world.now - world.stood_still,
    }
    world.record = replace(world.record, expiry=NOW + 48 * HOUR).signed(world.authority)
    for position in world.holders:
        usual["signing_key"] = world.holder_keys[position]
        own = {**usual, **brought} if position == 0 else usual
        world.holders[position] = Holder(world.record, position, **own)
    return world.holders[0]


def test_keys_end_at_their_time_and_nothing_sealed_to_them_is_opened_again() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    server = world.collected()
    server.fix_list()
    words, keys, pair = accepted_words(holder), holder.keys, holder._pair  # noqa: SLF001
    assert HolderKeys.decode(keys).until == NOW + 12 * HOUR
    request = server.requests()[0]
    holder.respond(request)
    assert holder._list_of  # noqa: SLF001
    world.now += 12 * HOUR
    assert not holder.end_if_expired(), "the epoch goes on"
    assert not any(word.any() for word in words)
    assert not holder._list_of, "nor does it keep which uploads were on its lists"  # noqa: SLF001
    with pytest.raises(Misuse, match="wiped"):
        pair.open("share", bytes(32 + CLASSIC_OVERHEAD_BYTES), 32, b"")
    with pytest.raises(PeerMisbehaved, match="has not received the offer"):
        holder.respond(request)
    assert holder.respond(world.record.encode()) == holder.keys != keys


def test_clients_follow_no_keys_that_have_ended_or_last_for_more_than_a_day() -> None:
    world = InsecureSum()
    holder_for_hours(world, hours=25)
    client = world.setup.clients[0]
    with pytest.raises(InvalidParameters, match="the keys of a holder last 90000 s, more than 86400"):
        world.upload(client)
    holder_for_hours(world, hours=12)
    offer = world.offer()
    world.now += 12 * HOUR
    with pytest.raises(InvalidParameters, match=r"keys of holder/0.* have expired"):
        world.upload(client, offer)


def test_keys_are_replaced_at_half_their_time_but_not_under_a_sum() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    server, keys, pair = world.collected(), holder.keys, holder._pair  # noqa: SLF001
    world.now += 7 * HOUR
    assert holder.respond(world.record.encode()) == keys, "a sum waits for its list"
    assert world.answered(server).open().counted
    assert holder.respond(world.record.encode()) != keys
    with pytest.raises(Misuse, match="wiped"):
        pair.open("share", bytes(32 + CLASSIC_OVERHEAD_BYTES), 32, b"")
    assert not holder._work, "offers with the old keys"  # noqa: SLF001
    # The new keys open shares.
    later = replace(world.setup, round_number=1)
    world.setup = later
    assert world.answered(world.collected(setup=later)).open().counted == frozenset(later.clients)


def test_keys_with_half_of_their_time_left_are_kept() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    keys = holder.keys
    world.now += 6 * HOUR
    assert holder.respond(world.record.encode()) == keys
    world.now += 1
    assert holder.respond(world.record.encode()) == holder.keys != keys


def test_a_machine_that_stood_still_has_other_keys() -> None:
    """What a snapshot resumes: its wall clock is set, and its monotonic clock goes on from where it was."""
    world = InsecureSum()
    holder = holder_for_hours(world)
    server = world.collected()
    words, keys = accepted_words(holder), holder.keys
    world.now, world.stood_still = world.now + 60, 60
    assert holder.respond(world.record.encode()) == keys
    world.now, world.stood_still = world.now + 1, 61
    server.fix_list()
    with pytest.raises(PeerMisbehaved, match="has not received the offer"):
        holder.respond(server.requests()[0])
    assert holder.keys != keys
    assert not any(word.any() for word in words)


def test_a_fork_has_neither_keys_nor_shares() -> None:
    world = InsecureSum()
    world.collected()
    holder: Any = world.holders[0]
    words = accepted_words(holder)
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            left = any(word.any() for word in words) or bool(holder._work)  # noqa: SLF001
            try:
                holder._pair.open("share", bytes(32 + CLASSIC_OVERHEAD_BYTES), 32, b"")  # noqa: SLF001
            except Misuse:
                os.write(writing, b"left" if left else b"wiped")
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"wiped"
    assert all(word.any() for word in words), "its parent goes on"


class NoCoins:
    """Coins that cannot be drawn."""

    def draw(self, count: int) -> bytearray:
        del count
        raise Misuse("planted")


def test_a_fork_wipes_every_holder_also_after_one_that_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs in a fork, run here: an error in it would be printed and leave the other holders their keys."""
    monkeypatch.setattr(holder_module, "_LIVE", WeakSet[Holder]())
    world = InsecureSum()
    world.collected()
    words = [word for holder in world.holders.values() for word in accepted_words(holder)]
    with pytest.raises(Misuse, match="planted") as kept:
        world.holder_with(world.record, 0, key=world.holder_keys[0], coins=NoCoins())
    vars(holder_module)["_leave_fork"]()
    assert kept.traceback, "it keeps the holder that did not start"
    assert not any(word.any() for word in words)
    assert all(holder.end_if_expired() for holder in world.holders.values())


# --- Receipts for offers ----------------------------------------------------------------------------------------------


def test_keys_of_holders_that_restarted_get_no_upload() -> None:
    """Three of five restarted, and the server has the memory that they had: it shows clients their old keys."""
    world = InsecureSum(SumSetup())
    old = world.offer()
    for position in (0, 1, 2):
        world.holders[position] = world.holder_of_other_coins(position)
    server = Tally(old, COINS)
    for position, request in server.introduce().items():
        answer = world.holders[position].answer(request)
        if message_kind(answer) is not MessageKind.REFUSAL:
            server.receive(position, answer)
    assert [one.holder for one in Offer.decode(server.offer).receipts] == [3, 4]
    client = world.setup.clients[0]
    with pytest.raises(PeerMisbehaved, match="signatures of 4 holders") as refused:
        world.upload(client, Offer.decode(server.offer))
    assert refused.value.reason is Reason.QUORUM_NOT_MET
    assert client not in world.stored, "nothing was charged"
    # Receipts of an earlier round, which the holders gave before they restarted.
    later = replace(world.setup, round_number=1)
    world.setup = later
    shown = replace(old, terms=world.offer(later).terms)
    with pytest.raises(AuthenticationFailed):
        world.upload(client, shown, later)


def test_a_holder_that_is_absent_from_the_start_is_dealt_nothing() -> None:
    world = InsecureSum(SumSetup())
    keys = [b"" if position == 1 else world.holders[position].keys for position in range(5)]
    offer = world.with_receipts(replace(world.offer(), keys=tuple(keys)), [0, 2, 3, 4])
    server = world.answered(world.collected(offer))
    assert server.present == {0, 2, 3, 4}
    upload = Upload.decode(world.stored_upload(world.setup.clients[0]))
    assert [bool(share) for share in upload.sealed] == [True, False, True, True, True]
    assert server.open().aggregate.encode() == world.ideal(world.setup.clients).encode()
    with pytest.raises(PeerMisbehaved, match="signatures of 4 holders"):
        world.upload(world.setup.clients[0], replace(offer, receipts=world.offer().receipts))


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_tasks_that_a_server_invents_are_refused() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world, tasks=[b"a task"])
    holder.respond(world.offer().encode())
    invented = replace(world.offer().configuration, task=b"another task")
    with pytest.raises(PeerMisbehaved, match="serves only") as refused:
        holder.respond(replace(world.offer(), configuration=invented).encode())
    assert refused.value.reason is Reason.NOT_ELIGIBLE


def test_an_operator_that_names_no_task_holds_for_a_few() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    offer = world.offer()
    for number in range(MOST_TASKS):
        named = replace(offer.configuration, task=b"task %d" % number)
        holder.respond(replace(offer, configuration=named).encode())
    with pytest.raises(PeerMisbehaved, match=f"the first {MOST_TASKS} tasks"):
        holder.respond(offer.encode())


def test_offers_of_one_task_push_out_the_oldest_and_no_promise() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    server = world.collected()
    words = accepted_words(holder)
    delivered = server_again(world, server)
    server.fix_list()
    request = server.requests()[0]
    holder.respond(request)
    offer = world.offer()
    for number in range(MOST_SESSIONS):
        layout = Layout((*offer.configuration.layout.segments,), (1 + number).to_bytes(32, "big"))
        holder.respond(replace(offer, configuration=replace(offer.configuration, layout=layout)).encode())
    assert not any(word.any() for word in words)
    with pytest.raises(PeerMisbehaved, match="has not received the offer"):
        holder.respond(request)
    # Offered and delivered again, the uploads are still promised to that list.
    holder.respond(offer.encode())
    holder.respond(delivered)
    smaller = replace(server.upload_list, listed=server.upload_list.listed[1:])
    with pytest.raises(PeerMisbehaved, match="one list"):
        holder.respond(smaller.encode())


def test_a_later_round_of_a_task_gives_up_the_shares_of_earlier_ones() -> None:
    """Where there is no memory for both."""
    world = InsecureSum()
    holder = holder_for_hours(world, memory=15_000)
    world.collected()
    words = accepted_words(holder)
    later = replace(world.setup, round_number=1)
    world.setup = later
    world.collected(setup=later)
    assert not any(word.any() for word in words)
    assert all(word.any() for word in accepted_words(holder))


def test_shares_beyond_the_memory_of_a_holder_are_refused_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    world, held = InsecureSum(), list[Any]()
    holder = holder_for_hours(world, memory=5_000)

    def recorded(*arguments: Any) -> HeldShare:
        share = open_share(*arguments)
        held.append(share._words)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return share

    monkeypatch.setattr("secagg.protocols.one_message.holder.open_share", recorded)
    server = world.server()
    with pytest.raises(PeerMisbehaved, match="bytes are in use; run sums one after another") as refused:
        holder.respond(server.deliver()[0])
    assert refused.value.reason is Reason.BUFFER_FULL
    assert len(held) == len(world.setup.clients)
    assert not any(words.any() for words in held)


def test_offers_beyond_the_memory_of_a_holder_are_refused_and_not_kept() -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    offers = offers_of(world, 2)
    holder._memory = 2 * len(offers[0]) - 1  # noqa: SLF001
    holder.respond(offers[0])
    for _ in range(2):
        with pytest.raises(PeerMisbehaved, match="bytes are in use; run sums one after another") as refused:
            holder.respond(offers[1])
        assert refused.value.reason is Reason.BUFFER_FULL
    assert len(holder._work) == 1  # noqa: SLF001
    holder._memory += 1  # noqa: SLF001
    holder.respond(offers[1])


def test_a_new_offer_takes_the_memory_of_the_oldest_that_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder_module, "MOST_SESSIONS", 2)
    world = InsecureSum()
    holder = holder_for_hours(world)
    offers = offers_of(world, 3)
    holder._memory = 2 * len(offers[0])  # noqa: SLF001
    for offer in offers:
        holder.respond(offer)
    assert list(holder._work) == [Offer.decode(offer).agree().t0 for offer in offers[1:]]  # noqa: SLF001


def offers_of(world: InsecureSum, count: int) -> list[bytes]:
    """Return offers of one task and one length, that differ in the layout's digest."""
    offer, made = world.offer(), list[bytes]()
    for number in range(count):
        layout = Layout(offer.configuration.layout.segments, (1 + number).to_bytes(32, "big"))
        made.append(replace(offer, configuration=replace(offer.configuration, layout=layout)).encode())
    assert len({len(one) for one in made}) == 1
    return made


def test_shares_of_the_same_round_are_not_discarded_for_others() -> None:
    """A sum whose uploads are delivered in two parts keeps the first when there is no memory for the second."""
    world = InsecureSum()
    holder, offer = holder_for_hours(world), world.offer()
    first, second = (
        world.server(offer, clients).deliver()[0] for clients in (world.setup.clients[:3], world.setup.clients[3:])
    )
    holder.respond(first)
    words, holder._memory = accepted_words(holder), holder._held  # noqa: SLF001
    with pytest.raises(PeerMisbehaved, match="bytes are in use"):
        holder.respond(second)
    assert len(accepted_words(holder)) == len(words) == 3
    assert all(word.any() for word in words)


@pytest.mark.parametrize("missing", [0, 1])
def test_shares_of_an_earlier_round_are_discarded_only_where_memory_is_short(missing: int) -> None:
    world = InsecureSum()
    holder = holder_for_hours(world)
    world.collected()
    words, shares = accepted_words(holder), next(iter(holder._work.values())).waiting  # noqa: SLF001
    later = replace(world.setup, round_number=1)
    server = world.server(setup=later)
    holder._memory = holder._held + shares - missing  # noqa: SLF001
    holder.respond(server.deliver()[0])
    assert [bool(word.any()) for word in words] == [not missing] * len(world.setup.clients)
    assert len(accepted_words(holder)) == len(words) * (2 - missing)


# --- Deliveries that repeat -------------------------------------------------------------------------------------------


def test_an_upload_that_is_delivered_again_brings_back_no_share() -> None:
    """It is accepted as before and not opened: after its answer a holder has nothing to tell about it."""
    world = InsecureSum()
    holder: Any = world.holders[0]
    server = world.server()
    deliveries = server.deliver()
    world.ask(server, deliveries)
    server.settle()
    receipt, words = holder.respond(deliveries[0]), accepted_words(holder)
    assert holder.respond(deliveries[0]) == receipt
    assert all(one is other for one, other in zip(words, accepted_words(holder), strict=True))
    world.answered(server)
    assert holder.respond(deliveries[0]) == receipt
    assert [word.size for word in accepted_words(holder)] == [0] * len(words)
