"""Uploads under pairwise masks whose pieces others add: every configuration, hostile pieces, killed coordinators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from secagg.contract import Layout, RingSegment
from secagg.contract.pieces import Adder, Cut, pieces_of
from secagg.crypto.labels import Label
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import release
from secagg.protocols.pairwise_mask.cut import keys_of
from secagg.protocols.pairwise_mask.graph import Topology
from secagg.protocols.pairwise_mask.masking import SignedKey
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput, signed_view, upload_digest
from secagg.protocols.pairwise_mask.server import Server
from secagg.protocols.pairwise_mask.session import PairwiseServerSession
from secagg.protocols.pairwise_mask.settled import suspects
from secagg.protocols.pairwise_mask.transitions import ServerState
from secagg.scale.journal import Journal
from secagg.scale.resumed import ResumableSession
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.workers import InProcess
from secagg.session.roles import Released
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup, same_sum

WIDE = Layout((RingSegment(12, 600_000), RingSegment(7, 3), RingSegment(20, 40)))
"""Three pieces, of which the last holds four segments."""
ROUNDED = Layout((RingSegment(9, 300_000, 4), RingSegment(20, 6)))


@dataclass
class Farm:
    """A storage, and workers in this process."""

    folder: Path
    batch: int = 2

    def adding(self, cut: Cut, memory: ResumableSession | None = None) -> Adder:
        return SpreadSum(cut, InProcess(), self.settings, coins=InsecureSeededCoins(b"audits"), memory=memory)

    @property
    def settings(self) -> SpreadSettings:
        return SpreadSettings(storage=str(self.folder), clients_in_a_batch=self.batch)

    @property
    def store(self) -> FolderStore:
        return FolderStore(self.folder)


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path / "storage")


Alter = Callable[[InsecurePairwiseSession, ClientId, MaskedInput], MaskedInput]


def altering(made: list[InsecurePairwiseSession], alter: Alter) -> Callable[[Delivery], Iterable[Delivery]]:
    """Return a network on which somebody does something to every upload."""

    def adversary(delivery: Delivery) -> Iterable[Delivery]:
        if delivery.kind is MessageKind.MASKED_INPUT and isinstance(delivery.sender, ClientId):
            session = made[0]
            upload = MaskedInput.decode(delivery.message, session.server.roster)
            yield replace(delivery, message=alter(session, delivery.sender, upload).encode())
        else:
            yield delivery

    return adversary


def played(setup: SessionSetup, farm: Farm, alter: Alter | None = None) -> InsecurePairwiseSession:
    """Return a session whose uploads the farm adds, before its first message."""
    made = list[InsecurePairwiseSession]()
    network: dict[str, Any] = {} if alter is None else {"adversary": altering(made, alter)}
    made.append(InsecurePairwiseSession(setup, adding=farm.adding, **network))
    return made[0]


def stored(farm: Farm, session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
    """Store the pieces of an upload, as its client or a gateway does, and return what is sent to the server."""
    cut = session.server.roster.cut
    short = upload.without_vector(cut, client)
    for digest, piece in zip(short.stored, pieces_of(upload.vector, cut.lengths), strict=True):
        farm.store.put(piece_name(cut.context, client, digest), piece)
    return short


def signed_again(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
    """Sign what was altered, as its client."""
    if session.setup.mode is SecurityMode.SEMI_HONEST:
        return upload
    settled = session.settled()
    digest = upload_digest(upload.pieces(settled.roster.cut, client))
    parts = signed_view(settled.roster.context, client, settled.sharers, digest)
    return replace(upload, signature=session.signing_keys[client].sign(Label.SIGNED_VIEW, *parts))


# --- Every configuration ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize(
    ("suite", "topology", "layout"),
    [
        (Suite.CLASSIC, Topology.FULL, WIDE),
        (Suite.HYBRID, Topology.FULL, Layout((RingSegment(33, 5),))),
        (Suite.CLASSIC, Topology.SPARSE, Layout((RingSegment(33, 5),))),
    ],
    ids=["wide", "hybrid", "sparse"],
)
def test_a_sum_of_pieces_is_that_of_whole_vectors(
    mode: SecurityMode, suite: Suite, topology: Topology, layout: Layout, farm: Farm
) -> None:
    """Every other client has its pieces stored; one is gone, and one leaves after its upload."""
    population = 8 if topology is Topology.FULL else 100
    setup = SessionSetup(mode=mode, suite=suite, topology=topology, layout=layout, population=population, dropped=2)

    def alter(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        return stored(farm, session, client, upload) if client.value % 2 else upload

    session = played(setup, farm, alter)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(session.client_ids[0])
    session.step()
    session.drop(session.client_ids[1])
    assert same_sum(session.finish(), session.sum_of(session.client_ids[1:]))
    assert not session.refusals
    assert session.server.left_out == {}
    assert not list(farm.folder.iterdir())


def test_rounded_values_are_added_in_pieces(farm: Farm) -> None:
    setup = SessionSetup(layout=ROUNDED)
    session = played(setup, farm, lambda session, client, upload: stored(farm, session, client, upload))
    plain = InsecurePairwiseSession(setup)
    assert same_sum(session.finish(), plain.finish())


def test_an_upload_is_the_same_with_its_vector_and_without(farm: Farm) -> None:
    """Sent in both forms it counts once, and a vector that comes later is kept: nothing was stored before."""

    def alter(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        session.server.receive(client, upload.without_vector(session.server.roster.cut, client).encode())
        return upload

    session = played(SessionSetup(layout=WIDE), farm, alter)
    assert same_sum(session.finish(), session.sum_of(session.client_ids))
    assert not session.refusals


def test_after_its_stage_a_vector_that_comes_again_changes_nothing(farm: Farm) -> None:
    session = played(SessionSetup(), farm)
    session.reach(ServerState.AWAITING_SURVIVOR_SIGNATURES)
    client = session.client_ids[0]
    for path in farm.folder.glob("*/pieces/*/*"):
        path.unlink()
    session.server.receive(client, session.sent_by(client, MessageKind.MASKED_INPUT))
    assert not list(farm.folder.glob("*/pieces/*/*"))
    assert same_sum(session.finish(), session.sum_of(session.client_ids))


def test_the_keys_that_are_written_for_workers_are_overwritten(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[bytearray]()

    def watched(keys: Iterable[SignedKey]) -> bytearray:
        written.append(keys_of(keys))
        assert any(written[0])
        return written[0]

    monkeypatch.setattr(release, "keys_of", watched)
    played(SessionSetup(), farm).finish()
    (keys,) = written
    assert keys
    assert not any(keys)


# --- Hostile pieces ---------------------------------------------------------------------------------------------------


def lost(_: Farm, session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
    return upload.without_vector(session.server.roster.cut, client)


def another(farm: Farm, session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
    short, cut = stored(farm, session, client, upload), session.server.roster.cut
    piece = bytearray(farm.store.get(name := piece_name(cut.context, client, short.stored[1]), 1 << 30))
    piece[0] ^= 1
    farm.store.put(name, bytes(piece))
    return short


def malformed(farm: Farm, session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
    """Sign bits that fill the last byte, behind the weight and its check words."""
    vector = bytearray(upload.vector)
    vector[-1] |= 0x80
    return stored(farm, session, client, signed_again(session, client, replace(upload, packed=(bytes(vector),))))


def of_another(_: Farm, session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
    """Sign the digests of another client's pieces."""
    victim = next(one for one in session.server.contributors if one != client)
    theirs = MaskedInput.decode(session.sent_by(victim, MessageKind.MASKED_INPUT), session.server.roster)
    return signed_again(session, client, replace(upload, stored=theirs.stored, packed=()))


TWO_PIECES = Layout((RingSegment(12, 540_000), RingSegment(5, 3)))
HARMS = {
    "lost": (lost, Reason.COMMITMENT_MISMATCH),
    "another": (another, Reason.COMMITMENT_MISMATCH),
    "malformed": (malformed, Reason.NOT_CANONICAL),
    "of another client": (of_another, Reason.COMMITMENT_MISMATCH),
}


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("harm", HARMS)
def test_a_client_whose_pieces_are_wrong_is_left_out_and_counts_as_dropped(
    harm: str, mode: SecurityMode, farm: Farm
) -> None:
    """The sum of the others comes out, without its masks; the committee and the neighbours hear of them alone."""
    (spoil, reason), seen = HARMS[harm], list[ClientId]()

    def alter(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        seen.append(client)
        return (spoil if len(seen) == 3 else stored_by)(farm, session, client, upload)

    def stored_by(_: Farm, session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        return stored(farm, session, client, upload)

    session = played(SessionSetup(mode=mode, layout=TWO_PIECES), farm, alter)
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    bad, others = seen[2], [client for client in session.client_ids if client != seen[2]]
    assert {outgoing.receiver for outgoing in session.pending} == set(others)
    assert session.server.message_to(bad) is None
    assert same_sum(session.finish(), session.sum_of(others))
    assert session.server.contributors == frozenset(others)
    assert session.server.revealed == frozenset({frozenset(others)})
    error = session.server.left_out[bad]
    assert error in session.server.faults
    assert isinstance(error, PeerMisbehaved)
    assert error.reason is reason
    is_certain = harm == "malformed" and mode is SecurityMode.ACTIVE
    assert error.culprits == (frozenset({bad}) if is_certain else suspects(bad))


def test_so_many_wrong_pieces_that_too_few_are_left_release_nothing(farm: Farm) -> None:
    def alter(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        is_good = client in session.client_ids[:2]
        return upload if is_good else lost(farm, session, client, upload)

    session = played(SessionSetup(), farm, alter)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    with pytest.raises(ThresholdNotMet):
        session.step()
    assert session.server.state is ServerState.ABORTED
    assert not farm.folder.exists() or not list(farm.folder.iterdir())


def test_digests_of_another_vector_are_another_upload(farm: Farm) -> None:
    session = played(SessionSetup(), farm)
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending)
    client, roster = session.client_ids[0], session.server.roster
    upload = MaskedInput.decode(session.sent_by(client, MessageKind.MASKED_INPUT), roster)
    for other in (replace(upload, stored=(bytes(32),), packed=()), replace(upload, signature=bytes(64))):
        with pytest.raises(PeerMisbehaved) as caught:
            session.server.receive(client, other.encode())
        assert caught.value.reason is Reason.ALREADY_ANSWERED


def test_nobody_alters_stored_digests_on_the_way(farm: Farm) -> None:
    """In active mode the client signs them."""
    bad = SessionSetup().client_ids[2]

    def alter(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        short = stored(farm, session, client, upload)
        return replace(short, stored=(bytes(32),)) if client == bad else short

    session = played(SessionSetup(), farm, alter)
    assert same_sum(session.finish(), session.sum_of(client for client in session.client_ids if client != bad))
    ((client, error),) = session.refusals
    assert client == bad
    assert error.reason is Reason.AUTHENTICATION_FAILED


def test_a_server_without_a_storage_takes_no_digests() -> None:
    made = list[InsecurePairwiseSession]()

    def alter(session: InsecurePairwiseSession, client: ClientId, upload: MaskedInput) -> MaskedInput:
        return upload.without_vector(session.server.roster.cut, client)

    made.append(InsecurePairwiseSession(SessionSetup(), adversary=altering(made, alter)))
    (session,) = made
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.deliver(session.pending)
    assert len(session.refusals) == len(session.client_ids)
    for error_of, error in session.refusals:
        assert isinstance(error, MalformedMessage)
        assert "no storage" in str(error)
        assert error.culprits == suspects(error_of)  # the way can take a vector out and leave the signature
    assert session.server.contributors == frozenset()


def test_a_server_whose_uploads_others_add_gives_no_snapshot(farm: Farm) -> None:
    """It would lack their sum."""
    session = played(SessionSetup(), farm)
    with pytest.raises(Misuse, match="journal"):
        session.server.snapshot()
    assert PairwiseServerSession(session.server, None).snapshot() is None


# --- Killed coordinators ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The coordinator ends without a word."""


class Writes:
    """Counts what is written down, and kills at one of the writes, before it or after."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed, self.die_at = 0, 0
        for owner, name in ((Journal, "append"), (FolderStore, "put"), (FolderStore, "remove")):
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            self._pass()
            result = original(*arguments, **named)
            self._pass()
            return result

        return watched

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self.die_at:
            raise Killed


class Town:
    """Clients that outlive their coordinator, and whose messages come again until they were taken."""

    def __init__(self, folder: Path) -> None:
        self.farm, self.journal = Farm(folder / "storage"), folder / "journal" / "records"
        self.world = InsecurePairwiseSession(
            SessionSetup(population=8, dropped=2, layout=Layout((RingSegment(9, 40),)))
        )
        self.answers = dict[tuple[ClientId, bytes], list[bytes]]()
        self.released = list[Released]()

    def open_session(self, memory: ResumableSession, _: object) -> PairwiseServerSession:
        setup = self.world.setup
        plan = setup.plan(self.world.authority.public_key)
        self.server = Server(plan, adding=lambda cut: self.farm.adding(cut, memory))
        return PairwiseServerSession(self.server, frozenset(setup.client_ids))

    def live(self) -> None:
        """Run until the release; the first client never uploads."""
        journal = Journal(self.journal)
        try:
            session = ResumableSession(journal, InsecureSeededCoins(b"coordinator"), self.open_session)
            while session.stage is not None:
                for client in sorted(session.awaited or ()):
                    self._answer(session, client)
                session.close_stage()
            self.released.append(session.release())
        finally:
            journal.close()

    def _answer(self, session: ResumableSession, client: ClientId) -> None:
        message = session.message_to(client)
        assert message is not None
        assert session.stage is not None
        if session.stage.takes_update and client == self.world.client_ids[0]:
            return
        if (client, message) not in self.answers:
            self.answers[client, message] = self.world.clients[client].receive(message)
        for answer in self.answers[client, message]:
            session.receive(client, answer)

    @property
    def due(self) -> Any:
        return self.world.sum_of(self.world.client_ids[1:])


def test_a_coordinator_that_is_killed_at_any_write_shows_clients_the_same_and_releases_once_or_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients answer a stage once, so a coordinator that showed another list in its next life would stand alone."""
    writes = Writes(monkeypatch)
    first = Town(tmp_path / "undisturbed")
    first.live()
    count, released = writes.passed, 0
    assert same_sum(first.released[0].aggregate, first.due)
    for moment in range(1, count + 1, 3):
        town = Town(tmp_path / str(moment))
        for die_at in (moment, 1 + moment // 2, 0):
            writes.passed, writes.die_at = 0, die_at
            try:
                town.live()
            except (Killed, Misuse):
                continue
            break
        writes.die_at = 0
        released += len(town.released)
        assert len(town.released) <= 1
        for one in town.released:
            assert same_sum(one.aggregate, town.due)
        if not town.released:
            with pytest.raises(Misuse, match="is over"):
                town.live()
        assert not town.released or not list(town.farm.folder.iterdir())
    assert released >= count // 3 - 5


def test_the_journal_has_no_vector(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.live()
    journal = Journal(town.journal)
    journal.close()
    vectors = [
        MaskedInput.decode(message, town.server.roster).stored
        for record in journal.past
        for message in record.parts[1:]
        if message[5:7] == MessageKind.MASKED_INPUT.to_bytes(2, "big")
    ]
    assert len(vectors) == 7
    assert all(vectors)


def test_who_was_left_out_before_a_crash_is_left_out_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committee may have seen a list without it; that its pieces are found later changes nothing."""
    town, gone, close = Town(tmp_path), dict[Path, bytes](), ResumableSession.close_stage
    bad, others = town.world.client_ids[-1], town.world.client_ids[1:-1]

    def closing(session: ResumableSession) -> None:
        is_first = session.stage is not None and session.stage.takes_update and not gone
        if is_first:
            gone.update({path: path.read_bytes() for path in town.farm.folder.glob(f"*/pieces/{bad.value}/*")})
            for path in gone:
                path.unlink()
        close(session)
        if is_first:
            raise Killed

    monkeypatch.setattr(ResumableSession, "close_stage", closing)
    with pytest.raises(Killed):
        town.live()
    assert gone
    for path, data in gone.items():
        path.write_bytes(data)
    town.live()
    (released,) = town.released
    assert released.left_out.keys() == {bad}
    assert released.counted == frozenset(others)
    assert same_sum(released.aggregate, town.world.sum_of(others))
