"""A standing server 1 and a server 0 that relays everything to it: exact sums, and what either refuses of the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from secagg.blame import between_servers
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import (
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    SecAggError,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.offers import Invitation, UploadHalves
from secagg.protocols.two_servers.server import IndexingServer, Server
from secagg.protocols.two_servers.server_keys import ServerKeys
from secagg.protocols.two_servers.server_messages import AcceptedList, BatchRequest, Beginning
from secagg.protocols.two_servers.standing_server import StandingRounds, StandingServer, asking
from secagg.session.frames import decode_refusal
from secagg.session.roles import Released, Subject
from secagg.session.sockets import HelperLost
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.indexing_rounds import NOW, IndexingSetup, InsecureIndexingRound
from tests.harness.planted import always
from tests.harness.quickest import quickest

SETUP = IndexingSetup(population=4)
Ask = Callable[[bytes], bytes]


@dataclass
class Pair:
    """Server 0 of a round, and a standing server 1 behind a call that a test can listen to or alter."""

    setup: IndexingSetup = SETUP
    alter: Callable[[bytes], bytes] | None = None
    heard: list[bytes] = field(default_factory=list[bytes])
    starts: int = 0

    def __post_init__(self) -> None:
        self.rig = InsecureIndexingRound(self.setup)
        self.policy = self.setup.standing_policy()
        self.rounds = StandingRounds()
        self.start()
        self.rig.servers[0] = self.rig.new_server(0, pair_key=self.keys(0).pair_key(self.keys(1).public))
        self.asked: Ask = self.ask

    def start(self) -> None:
        """Start server 1, or start it again with the rounds that it has begun, and fresh coins."""
        self.starts += 1
        self.standing = StandingServer(
            self.keys(1),
            self.keys(0).public,
            self.policy,
            self.rounds,
            coins=self.setup.coins_of(f"one, started {self.starts} times"),
            clock=lambda: NOW,
        )

    def keys(self, index: int) -> ServerKeys:
        return self.setup.keys_of(index)

    def ask(self, message: bytes) -> bytes:
        self.heard.append(message)
        return asking(self.standing.answer)(message if self.alter is None else self.alter(message))

    def begin(self) -> tuple[bytes, bytes]:
        """Begin the round, or begin it again: a session of the same server 0."""
        setup = self.setup
        subject = Subject(
            task=setup.task, round_number=setup.round_number, layout=setup.layout, capacity=setup.capacity
        )
        self.zero = Server(subject, self.rig.zero, self.asked, None, is_simulated=False)
        self.offers = Invitation.decode(self.zero.invitation).shown.offers
        return self.offers

    def receive(self, number: int) -> None:
        self.zero.receive(ClientId(number), self.halves(number))

    def finish(self) -> Released:
        self.zero.close_stage()
        return self.zero.release()

    def running(self) -> IndexingServer:
        server = self.standing._server  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        return server

    def halves(self, number: int) -> bytes:
        zero, one = self.rig.clients[number - 1].share(
            self.setup.payload_of(number),
            configuration=self.rig.configuration,
            round_number=self.setup.round_number,
            offers=self.offers,
            now=NOW,
        )
        return UploadHalves(zero.encode(), one.encode()).encode()


def _divide_by_zero(*_: object) -> int:
    return 1 // 0


def refused(answer: bytes) -> SecAggError:
    return decode_refusal(answer)


@pytest.mark.parametrize(
    "setup", [SETUP, IndexingSetup(population=19), IndexingSetup(population=3, layout=Layout((RingSegment(32, 40),)))]
)
def test_a_relayed_round_gives_the_exact_sum(setup: IndexingSetup) -> None:
    pair = Pair(setup)
    pair.begin()
    for number in range(1, setup.population + 1):
        pair.receive(number)
    result = pair.finish()
    assert result.aggregate.encode() == pair.rig.ideal(range(1, setup.population + 1)).encode()
    assert repr(pair.standing) == "<StandingServer None>"


def test_a_session_begins_with_server_1_alone_and_ends_with_both() -> None:
    pair = Pair()
    pair.asked = always(pair.rig.zero.offer)
    with pytest.raises(PeerMisbehaved):
        pair.begin()
    pair.asked = pair.ask
    pair.begin()
    pair.zero.abort()
    with pytest.raises(UnexpectedMessage):
        pair.rig.zero.receive(UploadHalves.decode(pair.halves(1)).both[0])


def test_an_id_that_server_1_continues_is_refused() -> None:
    pair = Pair()
    pair.begin()

    def continued(message: bytes) -> bytes:
        return pair.ask(message) + b"\0"

    pair.zero._ask = continued  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(MalformedMessage):
        pair.receive(1)


def test_a_round_that_server_1_does_not_accept_is_not_begun(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    pair.begin()
    weaker = replace(pair.rig.configuration, maximum_cohort=21)
    with caplog.at_level(logging.WARNING):
        answer = pair.standing.answer(Beginning(weaker, 8).encode())
    assert isinstance(refused(answer), InvalidParameters)
    assert "a cohort of 21 is above 20" in str(refused(answer))
    assert "server 1 refuses: " in caplog.text, "its operator sees why"
    assert "a cohort of 21 is above 20" in caplog.text
    # The round that runs goes on; what was refused ended nothing.
    pair.receive(1)


@pytest.mark.parametrize("kind", [MessageKind.INDEXING_UPLOAD, MessageKind.ACCEPTED_LIST, MessageKind.OUTPUT_SHARE])
def test_nothing_is_answered_before_a_round_begins(kind: MessageKind) -> None:
    answer = Pair().standing.answer(Writer(kind).finish())
    assert isinstance(refused(answer), Misuse)
    assert "start the next round" in str(refused(answer))


def test_steps_come_in_order_and_a_round_ends_once() -> None:
    pair = Pair()
    pair.begin()
    for kind in (MessageKind.OUTPUT_COMMITMENT, MessageKind.OUTPUT_SHARE, MessageKind.OUTPUT_COMMITMENT):
        answer = refused(pair.standing.answer(Writer(kind).finish()))
        assert isinstance(answer, UnexpectedMessage)
        assert answer.culprits == between_servers()
    for number in (1, 2):
        pair.receive(number)
    pair.finish()
    for message in pair.heard[:-1]:
        assert isinstance(refused(pair.standing.answer(message)), (Misuse, InvalidParameters))


def test_a_list_that_server_0_did_not_sign_closes_no_round() -> None:
    """Seven bytes of a list, or one of another round, come from whoever reaches server 1's socket."""
    pair = Pair()
    pair.begin()
    pair.receive(1)
    stamp = pair.rig.stamp(0)
    lists = (
        Writer(MessageKind.ACCEPTED_LIST).finish(),
        AcceptedList.signed(stamp, [], SETUP.signing_key_of("client 1")).encode(),
        AcceptedList.signed(replace(stamp, round_number=1), [], SETUP.signing_key_of("server 0")).encode(),
    )
    for message in lists:
        assert isinstance(refused(pair.standing.answer(message)), PeerError)
    pair.receive(2)
    assert pair.finish().aggregate.encode() == pair.rig.ideal((1, 2)).encode()


def test_the_keys_of_server_0_do_not_stand_as_server_1() -> None:
    pair = Pair()
    zero, one = pair.keys(0), pair.keys(1)
    crossed = ServerKeys(ServerId(1), zero.signing_seed)
    for keys, peer in ((zero, one), (crossed, zero), (one, crossed)):
        with pytest.raises(InvalidParameters, match="not those that the policy names for server 1"):
            StandingServer(keys, peer.public, pair.policy, StandingRounds(), coins=SETUP.coins_of("one"))


def test_an_error_that_nobody_thought_of_ends_the_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    pair.begin()
    monkeypatch.setattr("secagg.protocols.two_servers.server.IndexingServer.propose", _divide_by_zero)
    with caplog.at_level(logging.ERROR):
        answer = refused(pair.standing.answer(BatchRequest(()).encode()))
    assert isinstance(answer, InternalError)
    assert "ZeroDivisionError" in str(answer)
    assert "_divide_by_zero" in caplog.text, "its operator is told where"
    assert isinstance(refused(pair.standing.answer(BatchRequest(()).encode())), Misuse)


def test_a_failure_between_the_servers_is_not_blamed_on_whoever_uploaded_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.protocols.two_servers.server.BATCH", 2)
    pair = Pair()
    pair.begin()

    def other_batch(message: bytes) -> bytes:
        is_request = message_kind(message) is MessageKind.PROPOSE_UPLOADS
        return BatchRequest((bytes(32),)).encode() if is_request else message

    pair.alter = other_batch
    for number in (1, 2):
        pair.receive(number)
    asked = [message_kind(message) for message in pair.heard].count(MessageKind.PROPOSE_UPLOADS)
    assert asked == 1, "a full batch is decided at once"
    pair.alter = None
    with pytest.raises(HelperLost, match="only waiting uploads"):
        pair.finish()


@pytest.mark.parametrize("end", ["released", "given up", "replaced"])
def test_a_round_that_ends_is_overwritten(end: str) -> None:
    pair = Pair()
    pair.standing.end_round()
    pair.begin()
    server = pair.running()
    if end == "released":
        for number in (1, 2):
            pair.receive(number)
        pair.finish()
    elif end == "given up":
        pair.standing.end_round()
    else:
        pair.standing.answer(Beginning(pair.rig.configuration, 8).encode())
    assert "failed" in repr(server)


# --- What is asked again ----------------------------------------------------------------------------------------------


def test_the_share_that_was_released_is_kept_until_the_next_round_begins() -> None:
    pair = Pair()
    pair.begin()
    for number in (1, 2):
        pair.receive(number)
    pair.finish()
    share = pair.heard[-1]
    assert message_kind(share) is MessageKind.OUTPUT_SHARE
    again = pair.standing.answer(share)
    assert message_kind(again) is MessageKind.OUTPUT_SHARE
    assert pair.standing.answer(share) == again
    assert pair.standing.request_bytes >= len(share)
    other = share[:-1] + bytes([share[-1] ^ 1])
    assert isinstance(refused(pair.standing.answer(other)), Misuse)
    later = pair.standing.answer(Beginning(pair.rig.configuration, 8).encode())
    assert message_kind(later) is MessageKind.INDEXING_OFFER
    with pytest.raises(SecAggError):
        asking(pair.standing.answer)(share)


def test_of_two_tasks_the_one_that_was_begun_before_the_other_is_over() -> None:
    pair, other = Pair(), Pair(replace(SETUP, task=b"a task too"))
    other.standing = pair.standing
    pair.begin()
    other.begin()
    with pytest.raises(InvalidParameters, match="was already started"):
        pair.begin()
    assert other.begin() == other.offers


LAST = 3 + 2 + 3 - 1
"""The place of the last message of a round of three clients: uploads, a check, and the end."""


@pytest.mark.parametrize("step", range(LAST + 1))
@pytest.mark.parametrize("arrived", [False, True], ids=["before", "after"])
def test_a_connection_that_is_lost_at_any_message_loses_nothing(step: int, *, arrived: bool) -> None:
    """Whether server 1 got the message or not; a process takes its round with it."""
    pair, asked = Pair(IndexingSetup(population=3)), list[bytes]()

    def lossy(message: bytes) -> bytes:
        asked.append(message)
        if len(asked) != step + 1:
            return pair.ask(message)
        if arrived:
            pair.ask(message)
        raise ConnectionResetError("lost")

    pair.begin()
    pair.zero._ask = lossy  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    for number in (1, 2, 3):
        pair.receive(number)
    assert pair.finish().aggregate.encode() == pair.rig.ideal((1, 2, 3)).encode()
    assert len(asked) == LAST + 2
    assert asked[step] == asked[step + 1]


# --- What a request may cost ------------------------------------------------------------------------------------------


def test_no_request_is_longer_than_the_round_needs() -> None:
    pair = Pair()
    assert pair.standing.request_bytes == 1 << 19
    pair.begin()
    assert pair.standing.request_bytes == 1 << 19, "of a beginning, with the longest list of revoked keys"
    assert pair.standing.request_bytes >= max(map(len, UploadHalves.decode(pair.halves(1)).both))


def test_a_configuration_of_many_segments_is_refused_within_a_moment() -> None:
    """65,536 segments in 852 kB took 9 s before any floor was looked at."""
    segments = tuple(IndexSegment(2 + number % 4000, 1 + number) for number in range(1 << 16))
    layout = Layout(segments).encode()
    encoded = SETUP.configuration.encode()
    place = 7 + 4 + len(SETUP.task) + 1 + 3 * 32
    old = SETUP.layout.encode()
    wide = encoded[:place] + len(layout).to_bytes(4, "big") + layout + encoded[place + 4 + len(old) :]
    request = Writer(MessageKind.BEGIN_ROUND).integer(7, 8).borrowed(wide).finish()
    standing = Pair().standing
    assert isinstance(refused(standing.answer(request)), MalformedMessage)
    assert quickest(lambda: standing.answer(request)) < 0.1
    with pytest.raises(InvalidParameters, match="65536 segments; two servers accept at most 1024"):
        replace(SETUP.configuration, layout=Layout(segments))


def test_a_batch_is_as_small_as_the_servers_agreed_on() -> None:
    pair = Pair()
    pair.begin()
    request = Writer(MessageKind.PROPOSE_UPLOADS).integer(17, 4).borrowed(bytes(17 * 32)).finish()
    assert isinstance(refused(pair.standing.answer(request)), MalformedMessage)
