"""What a holder keeps in memory, and for how long; and a round that the server begins a second time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.hpke import CLASSIC_OVERHEAD_BYTES
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.one_message.holder import HeldShare, Holder, open_share
from secagg.protocols.one_message.journal import Entry, Event, Journal
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.requests import Receipt, UploadList, Verdict
from secagg.protocols.one_message.session import Server
from secagg.protocols.one_message.tally import Tally
from secagg.session.frames import decode_refusal
from secagg.session.roles import Released
from secagg.wire import MessageKind, message_kind
from tests.adversaries.test_one_message_dealers import badly_dealt
from tests.adversaries.test_one_message_epochs import Standing, closed_journals, standing_world
from tests.harness.one_message_sums import COINS, NOW, InsecureSum, SumSetup

__all__ = ["closed_journals"]


def forgetful(world: InsecureSum, position: int, journal: Journal | None = None) -> Holder:
    """Return the holder at a position with a memory of one round; its keys are those that were offered."""
    coins = world.setup.coins_of(f"holder {position}")
    root = Secret.random("holder root", 32, coins)
    return Holder(
        world.record,
        position,
        root=root,
        nonce=bytes(coins.draw(32)),
        journal=journal or Journal(),
        floors=world.floors,
        clock=world.clock,
        signing_key=world.holder_keys[position],
        forgets=True,
    )


def accepted_words(holder: Any) -> list[Any]:
    return [accepted.share._words for work in holder._work.values() for accepted in work.accepted.values()]  # noqa: SLF001


def test_a_closed_holder_has_overwritten_its_shares_and_given_up_its_key() -> None:
    world = InsecureSum()
    server = world.collected()
    holder: Any = world.holders[0]
    words, pair = accepted_words(holder), holder._pair  # noqa: SLF001
    assert len(words) == len(world.setup.clients)
    assert all(word.any() for word in words)
    holder.close()
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


def test_shares_of_an_answered_list_are_overwritten() -> None:
    world = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER))
    server = world.collected()
    words = accepted_words(world.holders[0])
    server.fix_list()
    world.holders[0].respond(server.requests()[0])
    assert not any(word.any() for word in words)
    # Delivered again, they are not opened again.
    receipt = Receipt.decode(world.holders[0].respond(again(world, server)[0]))
    assert {judged.verdict for judged in receipt.judged} == {Verdict.ACCEPTED}
    assert not any(word.any() for word in accepted_words(world.holders[0]))


def test_a_round_that_is_offered_again_is_not_begun_again() -> None:
    """Begun again, it would have forgotten its list, and a smaller one would give the difference."""
    world = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER, round_number=1))
    world.holders[0] = forgetful(world, 0)
    offer = world.offer()
    server = world.collected(offer)
    server.fix_list()
    delivered = {position: request for position, request in again(world, server).items() if position == 0}
    world.holders[0].respond(server.requests()[0])
    assert world.holders[0].respond(offer.encode()) == world.holders[0].respond(offer.encode())
    world.holders[0].respond(delivered[0])
    smaller = replace(server.upload_list, listed=server.upload_list.listed[1:])
    with pytest.raises(PeerMisbehaved, match="one list"):
        world.holders[0].respond(smaller.encode())


def again(world: InsecureSum, server: Tally) -> dict[int, bytes]:
    """Return the deliveries of everything that the server has, from a server that begins anew."""
    other = Tally(world.offer(), world.setup.sum_id, COINS)
    world.ask(other, other.introduce())
    for client in sorted(server.taken):
        other.receive_upload(client, world.stored_upload(client))
    return other.deliver()


def test_a_later_round_overwrites_the_shares_of_the_one_before() -> None:
    world = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER, round_number=1))
    holder = world.holders[0] = forgetful(world, 0)
    world.collected()
    words = accepted_words(holder)
    assert all(word.any() for word in words)
    later = replace(world.setup, round_number=2)
    holder.respond(world.offer(setup=later).encode())
    assert not any(word.any() for word in words)


def test_neither_an_offer_nor_a_list_of_another_round_is_answered() -> None:
    world = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER, round_number=2))
    holder = world.holders[0] = forgetful(world, 0)
    server = world.collected()
    server.fix_list()
    older = replace(world.setup, round_number=1, minimum_cohort=4)
    with pytest.raises(PeerMisbehaved, match="is in round 2, and in no other") as refused:
        holder.respond(world.offer(setup=older).encode())
    assert refused.value.reason is Reason.ALREADY_SPENT
    terms = server.upload_list.terms
    before, after = (replace(server.upload_list, terms=replace(terms, round_number=number)) for number in (1, 3))
    for stray in (before, after):
        with pytest.raises(PeerMisbehaved, match="is in round 2, and in no other"):
            holder.respond(stray.encode())
    # A holder that keeps its whole epoch is in no one round, and says of it that it is of other uploads.
    with pytest.raises(PeerMisbehaved, match="another sum or model"):
        world.holders[1].respond(after.encode())


def test_the_room_of_an_epoch_is_counted_over_deliveries_and_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER))
    monkeypatch.setattr("secagg.protocols.one_message.holder.MOST_UPLOADS", len(world.setup.clients))
    world.collected()
    later, client = replace(world.setup, round_number=7), world.setup.clients[0]
    offer = world.offer(b"a second sum id.", later)
    server = Tally(offer, b"a second sum id.", COINS)
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


class Written(Journal):
    """A journal whose records are these."""

    def __init__(self, *records: Entry) -> None:
        self._records = records

    def records(self) -> Iterator[Entry]:
        return iter(self._records)


def test_records_are_not_gone_on_with_under_another_root() -> None:
    """The offers in them name the keys of the root that is gone, and nothing is answered under others."""
    world = InsecureSum()
    offered = Written(Entry(event=Event.OFFERED, parts=(world.offer().encode(),)))
    key, coins = world.holder_keys[0], world.setup.coins_of("holder 0")
    root, nonce = Secret.random("holder root", 32, coins), bytes(coins.draw(32))
    world.holder_with(world.record, 0, key=key, journal=offered, root=root, nonce=nonce)
    other = Secret("holder root", b"r" * 32)
    with pytest.raises(PeerMisbehaved, match="other keys of this holder"):
        world.holder_with(world.record, 0, key=key, journal=offered, root=other, nonce=nonce)


# --- Lists that others certified --------------------------------------------------------------------------------------


def certified_by_others(folder: Path) -> tuple[Standing, UploadList, bytes]:
    """Return a holder that signed nothing, a smaller list than the others certified, and the request for theirs."""
    world, standing = standing_world(folder, ThresholdRule.CERTIFIED)
    server = world.collected()
    server.fix_list()
    smaller = replace(server.upload_list, listed=server.upload_list.listed[1:])
    world.ask(server, server.requests(), absent={0})
    server.certify()
    return standing, smaller, server.requests()[1]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_holder_that_answered_what_others_certified_signs_no_other_list(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    """It signed nothing, so its answer alone is what it has to remember: two answers give the victim's share."""
    standing, smaller, request = certified_by_others(tmp_path)
    answer = standing.holder.respond(request)
    assert not any(word.any() for word in accepted_words(standing.holder))
    if is_restarted:
        standing.restart()
    with pytest.raises(PeerMisbehaved, match="one list"):
        standing.holder.respond(smaller.encode())
    assert standing.holder.respond(request) == answer


def test_a_holder_that_signed_another_list_answers_none_that_others_certified(tmp_path: Path) -> None:
    standing, smaller, request = certified_by_others(tmp_path)
    standing.holder.respond(smaller.encode())
    with pytest.raises(PeerMisbehaved, match="one list"):
        standing.holder.respond(request)


# --- Before it is forgotten -------------------------------------------------------------------------------------------


def test_a_round_is_begun_in_the_journal_before_anything_is_forgotten() -> None:
    world, begun = InsecureSum(SumSetup(round_number=1)), list[tuple[Event, bytes]]()

    class Restarted(Journal):
        def restart(self, event: Event, *parts: bytes) -> None:
            begun.append((event, parts[0]))

    holder = forgetful(world, 0, Restarted())
    world.holders[0] = holder
    holder.respond(world.offer().encode())
    assert begun == [(Event.BEGUN, (1).to_bytes(8, "big"))]


class Full(Journal):
    """A journal on a disk that is full when it is to take an event."""

    def __init__(self) -> None:
        self.refused: Event | None = None
        self.written = list[Event]()

    def append(self, event: Event, *parts: bytes) -> None:
        if event is self.refused:
            raise OSError(f"no space is left for {len(parts)} parts")
        self.written.append(event)

    restart = append


@pytest.mark.parametrize("rule", ThresholdRule)
def test_what_was_not_written_down_is_not_remembered_and_is_written_when_asked_again(rule: ThresholdRule) -> None:
    """Remembered first, a request that failed would be answered the next time, and forgotten in a crash."""
    world, journal = InsecureSum(SumSetup(rule=rule, round_number=1)), Full()
    offer = world.offer()
    sound = world.holders[0]
    world.holders[0] = forgetful(world, 0, journal)

    def ask(server: Tally, requests: dict[int, bytes], *due: Event) -> None:
        for journal.refused in due:
            for _ in range(2):
                with pytest.raises(OSError, match="no space"):
                    world.holders[0].respond(requests[0])
        journal.refused, before = None, len(journal.written)
        world.ask(server, requests)
        assert journal.written[before:] == [due[-1]]

    assert sound.keys == world.holders[0].keys
    server = Tally(offer, world.setup.sum_id, COINS)
    ask(server, server.introduce(), Event.BEGUN, Event.OFFERED)
    for client in world.setup.clients:
        server.receive_upload(client, world.upload(client, offer))
    ask(server, server.deliver(), Event.DELIVERED)
    server.settle()
    server.fix_list()
    if rule is ThresholdRule.CERTIFIED:
        ask(server, server.requests(), Event.LISTED)
        server.certify()
    ask(server, server.requests(), Event.LISTED)


def test_a_round_that_could_not_be_begun_leaves_the_one_before_as_it_was() -> None:
    world, journal = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER, round_number=1)), Full()
    world.holders[0] = forgetful(world, 0, journal)
    server = world.collected()
    server.fix_list()
    journal.refused = Event.BEGUN
    with pytest.raises(OSError, match="no space"):
        world.holders[0].respond(world.offer(setup=replace(world.setup, round_number=2)).encode())
    world.holders[0].respond(server.requests()[0])
    assert journal.written[-1] is Event.LISTED


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


# --- Holders that are restored ----------------------------------------------------------------------------------------


LIAR: Final = 3


class Restored(Standing):
    """A standing holder that can be stopped, copied and put back."""

    is_away = False

    @property
    def backup(self) -> Path:
        return self.folder.with_name("backup")

    def stop(self) -> None:
        self.journal.close()
        self.is_away = True

    def copy(self, *patterns: str) -> None:
        """Copy files as they are, whatever the holder is doing."""
        self.backup.mkdir(exist_ok=True)
        for pattern in patterns:
            for file in self.folder.glob(pattern):
                shutil.copy2(file, self.backup / file.name)

    def put_back(self) -> None:
        """Put back what was copied, file by file; what was not copied stays. Nothing holds where that is refused."""
        for file in self.backup.iterdir():
            shutil.copy2(file, self.folder / file.name)
        with suppress(SecAggError):
            self.begin()
            self.is_away = False


class World:
    """Four holders, of whom one works with the server, and five clients whose uploads the server keeps."""

    def __init__(self, folder: Path) -> None:
        self.sum = InsecureSum(SumSetup(holders=4, rule=ThresholdRule.CERTIFIED))
        self.standing = [Restored(self.sum, folder / str(position) / "holder", position) for position in range(LIAR)]
        self.sum.holders |= {one.position: one.holder for one in self.standing}
        # The liar remembers no list, so it signs and answers any.
        vars(self.sum.holders[LIAR])["_place"] = self.forget
        self.uploads = {client: self.sum.upload(client) for client in self.sum.setup.clients}

    @staticmethod
    def forget(*_: object) -> None:
        """Remember nothing."""

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, request in requests.items():
            if position == LIAR or not self.standing[position].is_away:
                yield position, self.sum.holders[position].answer(request)

    def opened(self, clients: Iterable[ClientId]) -> Server:
        coins = {"coins": SystemCoins()}
        session = self.sum.session(self.ask_all, helpers=coins, capacity=self.sum.setup.capacity, delivered_at_once=1)
        for client in clients:
            session.receive(client, self.uploads[client])
        return session

    def difference(self, first: Released, clients: Iterable[ClientId]) -> list[np.ndarray]:
        """Return what a second sum of these clients leaves of the first one."""
        session = self.opened(clients)
        session.close_stage()
        second = session.release()
        rings = self.sum.setup.layout.require_rings()
        pairs = zip(rings, first.aggregate.values, second.aggregate.values, strict=True)
        return [segment.ring.subtract(one, other) for segment, one, other in pairs]

    def is_of(self, client: ClientId, vectors: list[np.ndarray]) -> bool:
        values = self.sum.setup.values_of(client).values
        return all((one == other).all() for one, other in zip(vectors, values, strict=True))


# --- A victim's vector ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("head", "records"), ("head", "records", "secret", "mark.*")])
@pytest.mark.parametrize("how", ["a stray byte", "head before records"])
def test_two_restored_holders_and_one_liar_give_no_second_list(
    how: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """A second list without the victim would give its vector exactly: it is the difference of the two sums.

    An archiver copies two holders' folders while they write down a delivery, before they have signed anything.
    """
    world = World(tmp_path)
    *others, last = world.sum.setup.clients
    victim, restored = others[2], world.standing[:2]
    session = world.opened(others)
    for one in restored:
        one.copy("head" if how == "head before records" else "nothing")
    session.receive(last, world.uploads[last])
    for one in restored:
        one.copy(*(name for name in names if name != "head" or how == "a stray byte"))
        if how == "a stray byte":
            with one.backup.joinpath("records").open("ab") as records:
                records.write(b"\0")
    session.close_stage()
    first = session.release()
    assert first.counted == {*others, last}
    for one in restored:
        one.stop()
        one.put_back()
    stolen: list[np.ndarray] | None = None
    with suppress(ThresholdNotMet):
        stolen = world.difference(first, [client for client in (*others, last) if client != victim])
    assert stolen is None or not world.is_of(victim, stolen), "the server has the victim's vector"
    assert stolen is None
    assert all(one.is_away for one in restored)


@pytest.mark.parametrize("rule", ThresholdRule)
def test_of_a_holder_that_was_forked_one_answers(rule: ThresholdRule) -> None:
    """A fork has the lock of the folder and the memory, and hears nothing of what the other answers."""
    world = InsecureSum(SumSetup(rule=rule))
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


# --- What fails half-way ----------------------------------------------------------------------------------------------


def test_a_fork_of_a_holder_is_refused_whatever_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    world = InsecureSum()
    monkeypatch.setattr("secagg.protocols.one_message.holder.os.getpid", lambda: -1)
    with pytest.raises(Misuse, match="forked"):
        world.holders[0].respond(world.offer().encode())


def test_an_offer_below_the_floors_begins_no_round() -> None:
    """Begun, it would have forgotten the promises of the round before."""
    world, journal = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER, round_number=1)), Full()
    world.holders[0] = forgetful(world, 0, journal)
    server = world.collected()
    server.fix_list()
    world.holders[0]._floors = replace(world.floors, least_holders=6)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(InvalidParameters, match="fewer than 6") as refused:
        world.holders[0].respond(world.offer(setup=replace(world.setup, round_number=2)).encode())
    assert refused.value.reason is Reason.BELOW_FLOOR
    assert journal.written.count(Event.BEGUN) == 1
    world.holders[0].respond(server.requests()[0])


def test_a_holder_whose_files_cannot_be_erased_has_overwritten_its_memory() -> None:
    class Stuck(Journal):
        def erase(self) -> None:
            raise OSError("planted")

    world = InsecureSum(SumSetup(rule=ThresholdRule.ONE_ANSWER, round_number=1))
    holder = world.holders[0] = forgetful(world, 0, Stuck())
    world.collected()
    words = accepted_words(holder)
    with pytest.raises(OSError, match="planted"):
        holder.end()
    assert not any(word.any() for word in words)
