"""A server 1 that is ended and started again, by a server 0 that wants a second sum of one round.

The difference of two sums that differ in one client is that client's vector. So the attacker has server 1 count five
clients, ends its process, starts it again, puts back whatever copy of its files helps, and replays the halves of four.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secagg.contract.layout import Layout, RingSegment
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.offers import Entry
from secagg.protocols.two_servers.server import IndexingServer, Server
from secagg.protocols.two_servers.server_messages import AcceptedList, BatchRequest, Beginning
from secagg.protocols.two_servers.standing_server import StandingRounds, StandingServer, asking
from secagg.session.roles import Subject
from secagg.session.store import Store
from secagg.wire import MessageKind, message_kind
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound

SETUP = IndexingSetup(layout=Layout((RingSegment(20, 6),)), population=5)
STEPS = ("nothing", "begun", "uploaded", "checked", "agreed", "opened", "released")
"""After which the attacker takes a copy of server 1's files."""


class Listening:
    """The operating system's coins, with what they gave."""

    def __init__(self) -> None:
        self.drawn = list[bytes]()

    def draw(self, count: int) -> bytearray:
        drawn = SystemCoins().draw(count)
        self.drawn.append(bytes(drawn))
        return drawn


@dataclass
class Attacker:
    """Server 0, which can end and start server 1's process and reaches its disk, but not its memory."""

    folder: Path
    coins: Coins = field(default_factory=SystemCoins)
    halves: dict[int, tuple[bytes, bytes]] = field(default_factory=dict[int, tuple[bytes, bytes]])
    opened: list[StandingRounds] = field(default_factory=list[StandingRounds])

    def __post_init__(self) -> None:
        self.disk, self.copies = self.folder / "disk", self.folder / "copies"
        self.disk.mkdir()
        self.rig = InsecureIndexingRound(SETUP)
        self.policy = SETUP.standing_policy()
        self.start()
        self.copy("nothing")

    def start(self) -> None:
        while self.opened:
            self.opened.pop().close()
        if (self.disk / "rounds").exists():
            # Whoever puts a disk back also says that it is the newest.
            Store(self.disk / "rounds", trusts=True).close()
        self.opened.append(StandingRounds(self.disk / "rounds"))
        standing = StandingServer(
            SETUP.keys_of(1), SETUP.keys_of(0).public, self.policy, self.opened[0], coins=self.coins, clock=lambda: NOW
        )
        self.ask = asking(standing.answer)

    def copy(self, name: str) -> None:
        shutil.copytree(self.disk, self.copies / name)

    def put_back(self, name: str) -> None:
        shutil.rmtree(self.disk)
        shutil.copytree(self.copies / name, self.disk)

    def zero(self) -> IndexingServer:
        """Return a server 0 of the attacker's, which has its root in every life."""
        return self.rig.new_server(0, pair_key=SETUP.keys_of(0).pair_key(SETUP.keys_of(1).public))

    def zero_list(self) -> bytes:
        """Return a list of four, which the attacker can sign whatever server 1 does."""
        zero = self.zero()
        entries = [Entry(ClientId(number), zero.receive(self.halves[number][0])) for number in (1, 2, 3, 4)]
        return AcceptedList.signed(self.rig.stamp(0), entries, SETUP.signing_key_of("server 0")).encode()

    def begin(self) -> bytes:
        return self.ask(Beginning(self.rig.configuration, SETUP.round_number).encode())

    def count(self, *numbers: int, told: Callable[[str], object] = lambda _: None) -> Any:
        zero = self.zero()
        ids = tuple(zero.receive(self.halves[number][0]) for number in numbers)
        for number in numbers:
            self.ask(self.halves[number][1])
        told("uploaded")
        zero.settle(self.ask(zero.answer(self.ask(BatchRequest(ids).encode()))))
        told("checked")
        commitment = zero.agree(self.ask(zero.close()))
        told("agreed")
        share = zero.open(self.ask(commitment))
        told("opened")
        result = zero.combine(self.ask(share))
        told("released")
        return result.aggregate.values[0]

    def first_life(self) -> Any:
        """Have five honest clients upload and be counted, with a copy of the disk after every step."""
        offers = (self.zero().offer, self.begin())
        self.copy("begun")
        for number in range(1, SETUP.population + 1):
            zero, one = self.rig.clients[number - 1].share(
                SETUP.payload_of(number),
                configuration=self.rig.configuration,
                round_number=SETUP.round_number,
                offers=offers,
                now=NOW,
            )
            self.halves[number] = zero.encode(), one.encode()
        return self.count(*self.halves, told=self.copy)


@pytest.fixture
def attacker(tmp_path: Path) -> Iterator[Attacker]:
    made = Attacker(tmp_path)
    yield made
    for rounds in made.opened:
        rounds.close()


@pytest.mark.parametrize("copy", STEPS)
def test_no_copy_of_its_files_lets_server_1_count_a_round_again(attacker: Attacker, copy: str) -> None:
    first = attacker.first_life()
    assert first.tobytes() == attacker.rig.ideal(attacker.halves).values[0].tobytes()
    attacker.put_back(copy)
    attacker.start()
    if copy != "nothing":
        with pytest.raises(InvalidParameters, match="the updates uploaded for it are spent") as refused:
            attacker.begin()
        assert refused.value.reason is Reason.ALREADY_ANSWERED
        with pytest.raises(Misuse, match="no round is running at server 1"):
            attacker.count(1, 2, 3, 4)
        return
    offer = attacker.begin()
    for _, half in attacker.halves.values():
        with pytest.raises(AuthenticationFailed):
            attacker.ask(half)
    with pytest.raises(ThresholdNotMet):
        attacker.ask(attacker.zero_list())
    with pytest.raises(PeerMisbehaved) as again:
        attacker.rig.clients[0].share(
            SETUP.payload_of(1),
            configuration=attacker.rig.configuration,
            round_number=SETUP.round_number,
            offers=(attacker.zero().offer, offer),
            now=NOW,
        )
    assert again.value.reason is Reason.ALREADY_ANSWERED


def test_nothing_that_server_1_drew_is_on_its_disk(tmp_path: Path) -> None:
    attacker = Attacker(tmp_path, coins=(coins := Listening()))
    attacker.first_life()
    drawn = {piece for piece in coins.drawn if len(piece) >= 16}
    assert drawn
    for path in sorted(tmp_path.rglob("*")):
        if path.is_file():
            held = path.read_bytes()
            assert [piece for piece in drawn if piece in held] == []
            assert not any(half in held for pair in attacker.halves.values() for half in pair)
    assert [path.name for path in attacker.disk.iterdir()] == ["rounds"]
    attacker.opened[0].close()


def test_no_offer_leaves_before_the_round_is_written_down(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InvalidParameters, match="cannot record the start of round 7"):
            attacker.begin()
    assert message_kind(attacker.begin()) is MessageKind.INDEXING_OFFER
    attacker.start()
    with pytest.raises(InvalidParameters, match="was already started"):
        attacker.begin()


# --- Through the session that platforms see ---------------------------------------------------------------------------


class Platform:
    """A server 0 that opens sessions at a server 1 whose process it can end, and clients with ledgers."""

    def __init__(self, attacker: Attacker) -> None:
        self.attacker = attacker
        self.members = {number: attacker.rig.clients[number - 1] for number in range(1, SETUP.population + 1)}

    def opened(self, round_number: int, *, minimum_cohort: int = 2) -> Server:
        """Open a session of a round; its server 0 has a root of its own."""
        configuration = replace(self.attacker.rig.configuration, minimum_cohort=minimum_cohort)
        key = SETUP.keys_of(0).pair_key(SETUP.keys_of(1).public)
        zero = self.attacker.rig.new_server(
            0, configuration, pair_key=key, round_number=round_number, coins=SystemCoins()
        )
        subject = Subject(task=SETUP.task, round_number=round_number, layout=SETUP.layout, capacity=SETUP.capacity)
        return Server(subject, zero, self.ask, None, is_simulated=False)

    def ask(self, message: bytes) -> bytes:
        return self.attacker.ask(message)

    def upload(self, session: Server, number: int, round_number: int) -> bytes:
        joined = self.members[number].session(SETUP.payload_of(number), task=SETUP.task, round_number=round_number)
        return joined.answer(session.invitation)


@pytest.fixture
def platform(attacker: Attacker) -> Platform:
    return Platform(attacker)


@pytest.mark.parametrize("when", ["begun", "uploaded", "closed"])
def test_a_session_whose_server_1_was_started_again_is_over_and_so_is_its_round(platform: Platform, when: str) -> None:
    session, uploads = platform.opened(7), dict[int, bytes]()
    if when != "begun":
        for number in (1, 2, 3):
            uploads[number] = platform.upload(session, number, 7)
            session.receive(ClientId(number), uploads[number])
    if when == "closed":
        session.close_stage()
    late = partial(session.receive, ClientId(4), platform.upload(session, 4, 7))
    platform.attacker.start()
    with pytest.raises(ConnectionError, match="ends a round and spends the updates that were uploaded for it"):
        session.release() if when == "closed" else late()
    assert session.stage is None
    with pytest.raises(Misuse):
        session.release()
    for number, least in ((7, 2), (7, 3), (6, 2), (0, 2)):
        with pytest.raises(InvalidParameters, match="was already started"):
            platform.opened(number, minimum_cohort=least)
    later = platform.opened(8)
    for number, upload in uploads.items():
        with pytest.raises(PeerError):
            later.receive(ClientId(number), upload)
    for number in range(1, SETUP.population + 1):
        later.receive(ClientId(number), platform.upload(later, number, 8))
    later.close_stage()
    ideal = platform.attacker.rig.ideal(range(1, SETUP.population + 1))
    assert later.release().aggregate.values[0].tobytes() == ideal.values[0].tobytes()


def test_a_round_that_a_process_began_is_offered_in_the_same_bytes_by_that_process_alone(platform: Platform) -> None:
    message = Beginning(platform.attacker.rig.configuration, 7).encode()
    offers = {platform.attacker.ask(message) for _ in range(3)}
    assert len(offers) == 1
    weaker = Beginning(replace(platform.attacker.rig.configuration, maximum_rejections=0), 7).encode()
    with pytest.raises(InvalidParameters, match="was already started"):
        platform.attacker.ask(weaker)
    assert platform.attacker.ask(message) in offers
    platform.attacker.start()
    with pytest.raises(InvalidParameters, match="the updates uploaded for it are spent"):
        platform.attacker.ask(message)
