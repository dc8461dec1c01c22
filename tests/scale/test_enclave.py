"""Masked vectors of uploads to an enclave that others add: every form, hostile pieces, uploads that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from errno import ENOSPC
from fractions import Fraction
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from secagg.contract import Aggregate, Layout, RingSegment
from secagg.contract.pieces import Cut, Retractable, pieces_of
from secagg.crypto.ring import RingVector
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.enclave.client import Upload
from secagg.protocols.enclave.host import Host
from secagg.protocols.enclave.session import EnclaveServerSession, stamp_of
from secagg.protocols.enclave.trusted.buffer import BufferState
from secagg.protocols.enclave.unattested import SimulatedEnclave
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.work import Kind, Order, Outcome, perform
from secagg.scale.workers import Answer, InProcess, Workers
from secagg.session.roles import Subject, Turnout
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.enclave_buffers import MIXED_LAYOUT, RING_LAYOUT, EnclaveSetup, InsecureEnclaveSession, model_digest
from tests.harness.spread_sums import Unruly

WIDE = Layout((RingSegment(12, 600_000), RingSegment(7, 3)))
"""Two pieces, of which the last holds two segments."""
MANY = EnclaveSetup(layout=RING_LAYOUT, population=34, maximum_cohort=34)
"""Seventeen batches of two."""
ROUNDED = Layout((RingSegment(12, 300_000, 4), RingSegment(20, 6)))


class Farm:
    """A session whose vectors are added by workers of this process, out of a storage."""

    def __init__(self, folder: Path, setup: EnclaveSetup | None = None, workers: Workers | None = None) -> None:
        self.workers = workers or InProcess()
        self.session = InsecureEnclaveSession(setup or EnclaveSetup(layout=RING_LAYOUT))
        self.folder, self.store = folder, FolderStore(folder)
        self.host = Host(
            self.session.configuration,
            self.session.enclave,
            epoch=self.session.enclave.offer.epoch,
            adding=self.adding,
        )
        self.host.open_buffer(0, model_digest(0))

    def adding(self, cut: Cut) -> Retractable:
        settings = SpreadSettings(storage=str(self.folder), clients_in_a_batch=2)
        return SpreadSum(cut, self.workers, settings, coins=InsecureSeededCoins(b"audits"))

    def stored(self, upload: Upload) -> bytes:
        """Store the pieces, as a client or a gateway does, and return what is sent to the host."""
        client = upload.sealed.header.certificate.client
        for digest, piece in zip(upload.pieces(), self.pieces_of(upload), strict=True):
            self.store.put(piece_name(upload.cut.context, client, digest), piece)
        return upload.encode(is_stored=True)

    def pieces_of(self, upload: Upload) -> list[bytes]:
        return pieces_of(b"".join(upload.packed), upload.cut.lengths)

    def send(self, number: int, message: bytes) -> None:
        """Hand over what a client sent."""
        self.host.receive(message, ClientId(number))

    def finish(self) -> tuple[dict[ClientId, PeerError], Aggregate]:
        left_out = self.host.settle()
        return left_out, self.host.release()[0]


def is_sum_of(farm: Farm, aggregate: Aggregate, numbers: tuple[int, ...]) -> bool:
    due = farm.session.ideal(numbers)
    same = all(np.array_equal(a, b) for a, b in zip(aggregate.values, due.values, strict=True))
    return same and aggregate.contributors == len(numbers)


# --- Every form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("layout", [RING_LAYOUT, WIDE], ids=["small", "wide"])
def test_a_sum_of_pieces_is_that_of_whole_vectors(layout: Layout, suite: Suite, tmp_path: Path) -> None:
    """Every other client has its pieces stored."""
    farm = Farm(tmp_path / "storage", EnclaveSetup(layout=layout, suite=suite))
    for number in range(1, 6):
        upload = farm.session.seal(number)
        farm.send(number, farm.stored(upload) if number % 2 else upload.encode())
    left_out, aggregate = farm.finish()
    assert left_out == {}
    assert is_sum_of(farm, aggregate, (1, 2, 3, 4, 5))
    assert not list(farm.folder.iterdir())


def test_rounded_values_are_unbiased_as_often_as_the_enclave_took_an_upload(tmp_path: Path) -> None:
    setup = EnclaveSetup(layout=ROUNDED)
    farm, plain = Farm(tmp_path / "storage", setup), InsecureEnclaveSession(setup)
    plain.host.open_buffer(0, model_digest(0))
    for number in (1, 2, 3):
        farm.send(number, farm.session.seal(number).encode())
        plain.upload(number)
    _, aggregate = farm.finish()
    whole, _ = plain.host.release()
    assert all(np.array_equal(a, b) for a, b in zip(aggregate.values, whole.values, strict=True))


def test_noise_is_the_enclaves_and_stays(tmp_path: Path) -> None:
    setup = EnclaveSetup(
        layout=Layout((RingSegment(30, 4_000),)), noise_multiplier=Fraction(20), l2_bounds=(200,), capacity=1 << 20
    )
    farm = Farm(tmp_path / "storage", setup)
    for number in (1, 2, 3):
        farm.send(number, farm.stored(farm.session.seal(number)))
    _, aggregate = farm.finish()
    (segment,) = setup.layout.require_rings()
    assert np.std(segment.ring.lift(aggregate.values[0])) > 100


def test_a_buffer_follows_another(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for version in (0, 1):
        if version:
            farm.host.open_buffer(version, model_digest(version))
        for number in (1, 2, 3):
            farm.send(number, farm.stored(farm.session.seal(number, version=version)))
        assert is_sum_of(farm, farm.finish()[1], (1, 2, 3))


def test_vectors_that_come_after_their_digests_are_kept(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        upload = farm.session.seal(number)
        farm.send(number, upload.encode(is_stored=True))
        farm.host.keep_again(upload.encode())
    left_out, aggregate = farm.finish()
    assert left_out == {}
    assert is_sum_of(farm, aggregate, (1, 2, 3))


def test_what_is_not_waited_for_is_not_kept(tmp_path: Path) -> None:
    """Nobody fills the storage with an upload that was not taken, or with the digests of one that was."""
    farm = Farm(tmp_path / "storage")
    upload = farm.session.seal(1)
    farm.host.keep_again(upload.encode())
    assert not farm.folder.exists()
    farm.send(1, upload.encode(is_stored=True))
    farm.host.keep_again(upload.encode(is_stored=True))
    assert not farm.folder.exists()


def test_a_buffer_that_was_given_up_waits_for_nothing(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    farm.send(1, farm.stored(farm.session.seal(1)))
    farm.host.give_up_buffer()
    farm.host.open_buffer(1, model_digest(1))
    for number in (1, 2, 3):
        farm.send(number, farm.stored(farm.session.seal(number, version=1)))
    assert is_sum_of(farm, farm.finish()[1], (1, 2, 3))


# --- Hostile pieces ---------------------------------------------------------------------------------------------------


def lost(_: Farm, upload: Upload) -> bytes:
    return upload.encode(is_stored=True)


def another(farm: Farm, upload: Upload) -> bytes:
    message, client = farm.stored(upload), upload.sealed.header.certificate.client
    name = piece_name(upload.cut.context, client, upload.pieces()[-1])
    farm.store.put(name, farm.store.get(name, 1 << 30)[:-1] + b"\x55")
    return message


def refused_by_the_enclave(farm: Farm, upload: Upload) -> bytes:
    """Alter what is sealed."""
    seed = bytearray(upload.sealed.sealed_seed)
    seed[-1] ^= 1
    return farm.stored(replace(upload, sealed=replace(upload.sealed, sealed_seed=bytes(seed))))


HARMS: dict[str, tuple[Callable[[Farm, Upload], bytes], type[PeerError]]] = {
    "lost": (lost, PeerMisbehaved),
    "another": (another, PeerMisbehaved),
    "refused by the enclave": (refused_by_the_enclave, AuthenticationFailed),
}


@pytest.mark.parametrize("layout", [RING_LAYOUT, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_client_whose_upload_is_bad_is_in_neither_sum(harm: str, layout: Layout, tmp_path: Path) -> None:
    """The enclave cannot give back an upload that it took, and workers have added one that it refuses."""
    farm = Farm(tmp_path / "storage", EnclaveSetup(layout=layout))
    spoil, kind = HARMS[harm]
    for number in range(1, 6):
        upload = farm.session.seal(number)
        farm.send(number, spoil(farm, upload) if number == 3 else farm.stored(upload))
    left_out, aggregate = farm.finish()
    assert left_out.keys() == {ClientId(3)}
    assert type(left_out[ClientId(3)]) is kind
    if kind is PeerMisbehaved:
        assert left_out[ClientId(3)].culprits == {ClientId(3), ServerId()}
    assert is_sum_of(farm, aggregate, (1, 2, 4, 5))


def test_a_client_that_commits_to_filling_bits_is_in_neither_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm, pack = Farm(tmp_path / "storage"), RingSegment.pack_sent

    def spoiled(segment: RingSegment, masked: RingVector) -> bytes:
        return bytes(pack(segment, masked))[:-1] + b"\xff"

    with monkeypatch.context() as patched:
        patched.setattr(RingSegment, "pack_sent", spoiled)
        farm.send(3, farm.stored(farm.session.seal(3)))
    for number in (1, 2, 4):
        farm.send(number, farm.stored(farm.session.seal(number)))
    left_out, aggregate = farm.finish()
    assert left_out[ClientId(3)].reason is Reason.NOT_CANONICAL
    assert left_out[ClientId(3)].culprits == {ClientId(3), ServerId()}, "the host cannot tell who sealed it"
    assert is_sum_of(farm, aggregate, (1, 2, 4))


def test_so_many_bad_uploads_that_too_few_are_left_release_nothing(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        upload = farm.session.seal(number)
        farm.send(number, lost(farm, upload) if number == 3 else farm.stored(upload))
    with pytest.raises(ThresholdNotMet):
        farm.finish()
    farm.host.give_up_buffer()
    assert not list(farm.folder.iterdir())


def test_digests_are_those_that_the_client_committed_to(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    message = bytearray(farm.stored(farm.session.seal(1)))
    message[-1] ^= 1
    with pytest.raises(AuthenticationFailed):
        farm.send(1, bytes(message))
    message[-1] ^= 1
    message[-33] = 2
    with pytest.raises(MalformedMessage, match="neither"):
        farm.send(1, bytes(message))


def test_pieces_of_another_model_client_or_epoch_have_other_digests(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    first, other = farm.session.seal(1), farm.session.seal(2)
    later = farm.session.seal(1, version=1)
    farm.session.restart()
    farm.session.clients[0] = farm.session.new_client(1)
    again = farm.session.seal(1)
    assert len({upload.cut.context for upload in (first, later, again)}) == 3
    assert other.cut.context == first.cut.context
    masked = replace(other, masked=first.masked)
    assert masked.pieces() != first.pieces()


def test_an_upload_for_another_epoch_or_model_is_refused_at_once(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    message = farm.session.seal(1, version=1).encode()
    farm.session.restart()
    for number, wrong in ((1, message), (2, farm.session.seal(2).encode())):
        with pytest.raises(PeerMisbehaved) as caught:
            farm.send(number, wrong)
        assert caught.value.reason is Reason.WRONG_SESSION


def test_a_second_upload_of_a_client_is_refused(tmp_path: Path) -> None:
    """It would be added, and the enclave see one of them."""
    farm = Farm(tmp_path / "storage")
    farm.send(1, farm.stored(farm.session.seal(1)))
    farm.session.clients[0] = farm.session.new_client(1)
    second = farm.stored(farm.session.seal(1))
    with pytest.raises(PeerMisbehaved) as caught:
        farm.send(1, second)
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert caught.value.culprits == {ClientId(1)}


@pytest.mark.parametrize(
    ("wrong", "refused"),
    [({2, 5}, {1, 33}), ({1, 2}, {3, 4}), (set[int](), set(range(1, 35)) - {1, 17, 34}), ({7}, {1, 2, 7})],
    ids=["in several batches", "whole batches", "nearly everybody", "wrong and refused"],
)
def test_uploads_of_any_batches_are_taken_out(wrong: set[int], refused: set[int], tmp_path: Path) -> None:
    """In more batches than are merged at once."""
    farm = Farm(tmp_path / "storage", MANY)
    for number in range(1, 35):
        upload = farm.session.seal(number)
        message = refused_by_the_enclave(farm, upload) if number in refused else farm.stored(upload)
        if number in wrong:
            another(farm, upload)
        farm.send(number, message)
    left_out, aggregate = farm.finish()
    assert left_out.keys() == set(map(ClientId, wrong | refused))
    assert is_sum_of(farm, aggregate, tuple(sorted(set(range(1, 35)) - wrong - refused)))


def test_if_everybody_is_refused_nothing_is_released(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        farm.send(number, refused_by_the_enclave(farm, farm.session.seal(number)))
    assert len(farm.host.settle()) == 3
    with pytest.raises(ThresholdNotMet):
        farm.host.release()


def test_of_more_than_a_buffer_holds_the_first_count(tmp_path: Path) -> None:
    """The workers' sum has them all; who is beyond the enclave's largest cohort is taken out, and not to blame."""
    farm = Farm(tmp_path / "storage", EnclaveSetup(layout=RING_LAYOUT, maximum_cohort=3, maximum_weight=5))
    for number in (5, 1, 4, 2, 3):
        upload = farm.session.seal(number, weight=2)
        farm.send(number, lost(farm, upload) if number == 1 else farm.stored(upload))
    left_out, aggregate = farm.host.settle(), farm.host.release()[0]
    assert left_out.keys() == {ClientId(1), ClientId(3)}
    assert left_out[ClientId(3)].reason is Reason.BUFFER_FULL
    assert left_out[ClientId(3)].culprits == {ServerId()}
    due = farm.session.ideal((5, 4, 2), (2, 2, 2))
    assert all(np.array_equal(a, b) for a, b in zip(aggregate.values, due.values, strict=True))


def test_a_weight_that_dominates_releases_nothing(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage", EnclaveSetup(layout=RING_LAYOUT, maximum_weight=50))
    for number, weight in ((1, 50), (2, 1), (3, 1)):
        farm.send(number, farm.stored(farm.session.seal(number, weight=weight)))
    assert farm.host.settle() == {}
    with pytest.raises(PeerMisbehaved) as caught:
        farm.host.release()
    assert caught.value.reason is Reason.WEIGHTS_UNEVEN


class Between(SimulatedEnclave):
    """An enclave at which something happens before the upload that it receives next."""

    happens: Callable[[], None] | None = None

    def receive(self, message: bytes) -> int:
        if self.happens is not None:
            self.happens()
        return super().receive(message)


def test_a_piece_that_is_lost_while_others_are_taken_out_ends_the_sum(tmp_path: Path) -> None:
    """The enclave has taken its client, so a sum without it would be under a mask that is not taken off."""
    farm, enclave = between(tmp_path)
    uploads = {number: farm.session.seal(number) for number in (1, 2, 3, 4, 5)}
    for number, upload in uploads.items():
        farm.send(number, refused_by_the_enclave(farm, upload) if number == 2 else farm.stored(upload))
    # In the batch of the second, which is added again without it.
    name = piece_name(uploads[1].cut.context, ClientId(1), uploads[1].pieces()[0])
    enclave.happens = lambda: (farm.folder / name).unlink(missing_ok=True)
    with pytest.raises(ConnectionError, match="lost pieces of client/1"):
        farm.host.settle()
    with pytest.raises(Misuse, match="no buffer is open"):
        farm.host.release()


class Straggling(Unruly):
    """Whoever has the first order does it when everything is being merged; another one has helped out by then."""

    def poll(self, seconds: float) -> list[Answer]:
        is_late = all(order.kind is Kind.ADD for order in self.orders)
        held = [given for given in self._given if is_late and given[1] is self.orders[0]]
        self._given = [given for given in self._given if given not in held]
        answers = super().poll(seconds)
        self._given += held
        return answers


def test_a_straggler_that_finds_a_piece_gone_takes_nobody_out_whom_the_enclave_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client withdraws it once it is added, and another makes the enclave refuse its upload."""

    def conduct(_: int, order: Order) -> Outcome:
        if any(other.kind is Kind.MERGE for other in workers.orders):
            (farm.folder / name).unlink(missing_ok=True)
        return perform(order)

    hours = count(0, 3600)
    monkeypatch.setattr("secagg.scale.spread.monotonic", lambda: float(next(hours)))
    workers = Straggling(2, conduct)
    farm = Farm(tmp_path / "storage", workers=workers)
    uploads = {number: farm.session.seal(number) for number in range(1, 6)}
    name = piece_name(uploads[1].cut.context, ClientId(1), uploads[1].pieces()[0])
    for number, upload in uploads.items():
        farm.send(number, refused_by_the_enclave(farm, upload) if number == 4 else farm.stored(upload))
    with pytest.raises(ConnectionError, match="lost pieces of client/1"):
        farm.finish()
    assert sum(order.entries == workers.orders[0].entries for order in workers.orders) == 2


@pytest.mark.parametrize("survives", [False, True], ids=["dies", "is reached again"])
def test_an_enclave_that_is_lost_while_it_takes_uploads_ends_the_sum(survives: bool, tmp_path: Path) -> None:  # noqa: FBT001 -- a case
    """Asked again it refuses what it has taken, and workers would take that out of a sum whose mask has it."""
    farm, enclave = between(tmp_path)
    for number in (1, 2, 3, 4, 5):
        farm.send(number, farm.stored(farm.session.seal(number)))
    left = iter(range(3))

    def happens() -> None:
        if next(left, None) is None:
            enclave.happens = None if survives else happens
            raise ConnectionError("the enclave is gone")

    enclave.happens = happens
    with pytest.raises(ConnectionError, match="gone"):
        farm.host.settle()
    for call in (farm.host.settle, farm.host.release):
        with pytest.raises(Misuse, match="no buffer is open"):
            call()
    assert not list(farm.folder.iterdir())


def between(folder: Path, *, is_open: bool = True) -> tuple[Farm, Between]:
    """Return a farm in front of such an enclave."""
    farm = Farm(folder / "storage")
    setup = farm.session.setup
    farm.session.enclave = enclave = Between(farm.session.configuration, coins=setup.coins_of("another enclave"))
    farm.host = Host(farm.session.configuration, enclave, epoch=enclave.offer.epoch, adding=farm.adding)
    if is_open:
        farm.host.open_buffer(0, model_digest(0))
    return farm, enclave


# --- A session --------------------------------------------------------------------------------------------------------


def session_of(folder: Path) -> tuple[Farm, EnclaveServerSession, dict[int, Upload]]:
    """Return a session of five invited clients, whose seals are made."""
    farm, enclave = between(folder, is_open=False)
    farm.session.enclave = enclave
    subject = Subject(task=farm.session.setup.task, round_number=0, layout=RING_LAYOUT, capacity=1 << 10)
    session = EnclaveServerSession(farm.host, b"", subject, frozenset(map(ClientId, range(1, 6))))
    digest = stamp_of(subject, None).digest
    return farm, session, {number: farm.session.seal(number, digest=digest) for number in range(1, 6)}


def test_a_session_counts_who_is_in_both_sums(tmp_path: Path) -> None:
    farm, session, uploads = session_of(tmp_path)
    for number, spoil in ((1, None), (2, lost), (3, refused_by_the_enclave), (4, None)):
        message = farm.stored(uploads[number]) if spoil is None else spoil(farm, uploads[number])
        session.receive(ClientId(number), message)
    session.drop(ClientId(1))
    session.receive(ClientId(4), uploads[4].encode())
    with pytest.raises(PeerMisbehaved):
        session.receive(ClientId(5), uploads[1].encode())
    session.drop(ClientId(5))
    assert session.turnout is Turnout.COMPLETE
    session.close_stage()
    assert len(session.faults) == 3
    with pytest.raises(ThresholdNotMet):  # Of four that are taken, the enclave has two.
        session.release()
    assert not list(farm.folder.iterdir())


@pytest.mark.parametrize("is_again", [False, True], ids=["first", "again"])
def test_a_storage_that_fails_ends_the_session(
    is_again: bool,  # noqa: FBT001 -- a case
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody could say any more who is in the sum."""
    farm, session, uploads = session_of(tmp_path)
    for number in (1, 2, 3):
        session.receive(ClientId(number), farm.stored(uploads[number]))

    def full(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "no space left")

    monkeypatch.setattr(FolderStore, "put", full)
    with pytest.raises(ConnectionError, match="no space left"):
        session.receive(ClientId(3 if is_again else 4), uploads[3 if is_again else 4].encode())
    assert session.stage is None
    assert farm.session.enclave.state is BufferState.CLOSED
    assert not list(farm.folder.iterdir())


# --- The host's own order of calls ------------------------------------------------------------------------------------


def test_nothing_is_released_before_the_enclave_has_seen_what_was_added(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        farm.send(number, farm.stored(farm.session.seal(number)))
    with pytest.raises(Misuse, match="settle first"):
        farm.host.release()
    assert is_sum_of(farm, farm.finish()[1], (1, 2, 3))
    for call in (farm.host.settle, farm.host.release, lambda: farm.send(4, farm.session.seal(4).encode())):
        with pytest.raises(Misuse, match="no buffer is open"):
            call()


def test_a_buffer_that_is_settled_takes_nothing_more(tmp_path: Path) -> None:
    """A second upload of a client would be added, refused, and both of them taken out of a sum whose mask has one."""
    farm = Farm(tmp_path / "storage")
    uploads = {number: farm.session.seal(number) for number in (1, 2, 3)}
    for number, upload in uploads.items():
        farm.send(number, farm.stored(upload))
    assert farm.host.settle() == {}
    for call in (lambda: farm.send(1, uploads[1].encode()), farm.host.settle):
        with pytest.raises(Misuse, match="is settled"):
            call()
    own = farm.folder / piece_name(uploads[1].cut.context, ClientId(1), uploads[1].pieces()[0])
    own.unlink()
    farm.host.keep_again(uploads[1].encode())
    assert not own.exists()
    assert is_sum_of(farm, farm.host.release()[0], (1, 2, 3))


def test_nobody_takes_another_clients_place(tmp_path: Path) -> None:
    """Whose seal it is nobody knows before the enclave has opened it; certificates are public."""
    farm = Farm(tmp_path / "storage")
    forged = refused_by_the_enclave(farm, farm.session.seal(1))
    with pytest.raises(Misuse, match="say who sent it"):
        farm.host.receive(forged)
    with pytest.raises(PeerMisbehaved) as caught:
        farm.send(2, forged)
    assert caught.value.culprits == {ClientId(2)}
    farm.session.clients[0] = farm.session.new_client(1)
    for number in (1, 2, 3):
        farm.send(number, farm.stored(farm.session.seal(number)))
    assert is_sum_of(farm, farm.finish()[1], (1, 2, 3))


def test_a_buffer_is_not_open_where_nobody_can_add(tmp_path: Path) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=RING_LAYOUT))
    settings = SpreadSettings(storage=str(tmp_path), audited=1)
    adding = partial(SpreadSum, workers=InProcess(), settings=settings, coins=InsecureSeededCoins(b"audits"))
    host = Host(session.configuration, session.enclave, epoch=session.enclave.offer.epoch, adding=adding)
    with pytest.raises(InvalidParameters, match="start another one"):
        host.open_buffer(0, model_digest(0))
    session.host.open_buffer(0, model_digest(0))


def test_a_host_without_a_storage_takes_no_digests() -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=RING_LAYOUT))
    session.host.open_buffer(0, model_digest(0))
    with pytest.raises(MalformedMessage, match="no storage"):
        session.host.receive(session.seal(1).encode(is_stored=True))
    assert session.host.settle() == {}


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (EnclaveSetup(layout=MIXED_LAYOUT), "without index segments"),
        (EnclaveSetup(layout=RING_LAYOUT, staleness_weights=(2, 1)), "staleness_weights of 1"),
    ],
    ids=["indices", "ages"],
)
def test_what_others_cannot_add_is_refused(setup: EnclaveSetup, why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match=why):
        Farm(tmp_path, setup)
