"""Masked vectors of uploads to an enclave that others add: every form, hostile pieces, uploads that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
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
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore, piece_name
from secagg.scale.workers import InProcess
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.enclave_buffers import MIXED_LAYOUT, RING_LAYOUT, EnclaveSetup, InsecureEnclaveSession, model_digest

WIDE = Layout((RingSegment(12, 600_000), RingSegment(7, 3)))
"""Two pieces, of which the last holds two segments."""
ROUNDED = Layout((RingSegment(12, 300_000, 4), RingSegment(20, 6)))


class Farm:
    """A session whose vectors are added by workers of this process, out of a storage."""

    def __init__(self, folder: Path, setup: EnclaveSetup | None = None) -> None:
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
        return SpreadSum(cut, InProcess(), settings, coins=InsecureSeededCoins(b"audits"))

    def stored(self, upload: Upload) -> bytes:
        """Store the pieces, as a client or a gateway does, and return what is sent to the host."""
        client = upload.sealed.header.certificate.client
        for digest, piece in zip(upload.pieces(), self.pieces_of(upload), strict=True):
            self.store.put(piece_name(upload.cut.context, client, digest), piece)
        return upload.encode(is_stored=True)

    def pieces_of(self, upload: Upload) -> list[bytes]:
        return pieces_of(b"".join(upload.packed), upload.cut.lengths)

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
        farm.host.receive(farm.stored(upload) if number % 2 else upload.encode(), ClientId(number))
    left_out, aggregate = farm.finish()
    assert left_out == {}
    assert is_sum_of(farm, aggregate, (1, 2, 3, 4, 5))
    assert not list(farm.folder.iterdir())


def test_rounded_values_are_unbiased_as_often_as_the_enclave_took_an_upload(tmp_path: Path) -> None:
    setup = EnclaveSetup(layout=ROUNDED)
    farm, plain = Farm(tmp_path / "storage", setup), InsecureEnclaveSession(setup)
    plain.host.open_buffer(0, model_digest(0))
    for number in (1, 2, 3):
        farm.host.receive(farm.session.seal(number).encode())
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
        farm.host.receive(farm.stored(farm.session.seal(number)))
    _, aggregate = farm.finish()
    (segment,) = setup.layout.require_rings()
    assert np.std(segment.ring.lift(aggregate.values[0])) > 100


def test_a_buffer_follows_another(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for version in (0, 1):
        if version:
            farm.host.open_buffer(version, model_digest(version))
        for number in (1, 2, 3):
            farm.host.receive(farm.stored(farm.session.seal(number, version=version)))
        assert is_sum_of(farm, farm.finish()[1], (1, 2, 3))


def test_vectors_that_come_after_their_digests_are_kept(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        upload = farm.session.seal(number)
        farm.host.receive(upload.encode(is_stored=True))
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
    farm.host.receive(upload.encode(is_stored=True))
    farm.host.keep_again(upload.encode(is_stored=True))
    assert not farm.folder.exists()


def test_a_buffer_that_was_given_up_waits_for_nothing(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    farm.host.receive(farm.stored(farm.session.seal(1)))
    farm.host.give_up_buffer()
    farm.host.open_buffer(1, model_digest(1))
    for number in (1, 2, 3):
        farm.host.receive(farm.stored(farm.session.seal(number, version=1)))
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
        farm.host.receive(spoil(farm, upload) if number == 3 else farm.stored(upload))
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
        farm.host.receive(farm.stored(farm.session.seal(3)))
    for number in (1, 2, 4):
        farm.host.receive(farm.stored(farm.session.seal(number)))
    left_out, aggregate = farm.finish()
    assert left_out[ClientId(3)].reason is Reason.NOT_CANONICAL
    assert left_out[ClientId(3)].culprits == {ClientId(3), ServerId()}, "the host cannot tell who sealed it"
    assert is_sum_of(farm, aggregate, (1, 2, 4))


def test_so_many_bad_uploads_that_too_few_are_left_release_nothing(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        upload = farm.session.seal(number)
        farm.host.receive(lost(farm, upload) if number == 3 else farm.stored(upload))
    with pytest.raises(ThresholdNotMet):
        farm.finish()
    farm.host.give_up_buffer()
    assert not list(farm.folder.iterdir())


def test_digests_are_those_that_the_client_committed_to(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    message = bytearray(farm.stored(farm.session.seal(1)))
    message[-1] ^= 1
    with pytest.raises(AuthenticationFailed):
        farm.host.receive(bytes(message))
    message[-1] ^= 1
    message[-33] = 2
    with pytest.raises(MalformedMessage, match="neither"):
        farm.host.receive(bytes(message))


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
    for wrong in (message, farm.session.seal(2).encode()):
        with pytest.raises(PeerMisbehaved) as caught:
            farm.host.receive(wrong)
        assert caught.value.reason is Reason.WRONG_SESSION


def test_a_second_upload_of_a_client_is_refused(tmp_path: Path) -> None:
    """It would be added, and the enclave see one of them."""
    farm = Farm(tmp_path / "storage")
    farm.host.receive(farm.stored(farm.session.seal(1)))
    farm.session.clients[0] = farm.session.new_client(1)
    second = farm.stored(farm.session.seal(1))
    with pytest.raises(PeerMisbehaved) as caught:
        farm.host.receive(second)
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert caught.value.culprits == {ClientId(1)}


# --- The host's own order of calls ------------------------------------------------------------------------------------


def test_nothing_is_released_before_the_enclave_has_seen_what_was_added(tmp_path: Path) -> None:
    farm = Farm(tmp_path / "storage")
    for number in (1, 2, 3):
        farm.host.receive(farm.stored(farm.session.seal(number)))
    with pytest.raises(Misuse, match="settle first"):
        farm.host.release()
    assert is_sum_of(farm, farm.finish()[1], (1, 2, 3))
    for call in (farm.host.settle, farm.host.release, lambda: farm.host.receive(farm.session.seal(4).encode())):
        with pytest.raises(Misuse, match="no buffer is open"):
            call()


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
