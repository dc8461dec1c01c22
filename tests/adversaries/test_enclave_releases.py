"""A host that decides when an enclave is called and with what: it gets one sum for each buffer, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
import pytest

from secagg.choices import ReleaseForm
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.ring import RingVector
from secagg.errors import Misuse, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.enclave.client import Invitation, stamp_of
from secagg.protocols.enclave.release_privacy import PrivacyLimit
from secagg.protocols.enclave.remote_enclave import SimulatedEnclave
from secagg.protocols.enclave.session import EnclaveOptions
from secagg.protocols.enclave.simulation import EnclaveSimulation
from secagg.protocols.enclave.trusted import enclave as enclave_module
from secagg.protocols.enclave.trusted.buffer import BufferState
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator
from secagg.protocols.enclave.trusted.messages import BufferRelease, ModelStamp
from secagg.session.roles import LazyUpdate, Subject, Update
from tests.harness.enclave_buffers import (
    RING_LAYOUT,
    EnclaveSetup,
    InsecureEnclaveSession,
    masked_of,
    model_digest,
    sealed_by,
)
from tests.harness.recorded_coins import WatchedCoins

HOST = ServerId()
HISTOGRAMS = EnclaveSetup(form=ReleaseForm.HISTOGRAM)
NOISED = EnclaveSetup(layout=RING_LAYOUT, noise_multiplier=Fraction(1), l2_bounds=(100, 100), releases_per_client=9)


def opened(setup: EnclaveSetup | None = None, version: int = 0) -> InsecureEnclaveSession:
    session = InsecureEnclaveSession(setup or HISTOGRAMS)
    session.host.open_buffer(version, model_digest(version))
    return session


def same_values(one: Aggregate, other: Aggregate) -> bool:
    counts = one.contributors == other.contributors
    pairs: Any = zip(one.values, other.values, strict=True)
    return counts and all(np.array_equal(left, right) for left, right in pairs)


def refusal(call: Any) -> tuple[type[SecAggError], Reason]:
    with pytest.raises(SecAggError) as caught:
        call()
    return type(caught.value), caught.value.reason


# --- Too few ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ReleaseForm)
def test_a_host_that_asks_after_every_upload_gets_one_sum_and_none_before(form: ReleaseForm) -> None:
    session = opened(EnclaveSetup(form=form, minimum_cohort=4))
    for number in (1, 2, 3):
        with pytest.raises(ThresholdNotMet) as caught:
            session.enclave.release()
        assert (caught.value.needed, caught.value.present) == (4, number - 1)
        session.upload(number)
    session.upload(4)
    first = session.enclave.release()
    assert BufferRelease.decode(first).receipt.contributors == 4
    assert session.enclave.release() == first
    with pytest.raises(Misuse):
        session.enclave.receive(session.seal(5).sealed.encode())


# --- Too many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [RING_LAYOUT, Layout((IndexSegment(8, 5),))], ids=["masks", "indices"])
def test_a_host_adds_no_upload_to_a_full_buffer(layout: Layout) -> None:
    """One more could wrap the sum, or, where the counters refuse it, cost the others their buffer."""
    session = opened(replace(HISTOGRAMS, layout=layout, minimum_cohort=2, maximum_cohort=3))
    session.upload(1, 2, 3)
    with pytest.raises(PeerMisbehaved, match="full with 3 uploads; release it") as caught:
        session.enclave.receive(session.seal(4).sealed.encode())
    assert caught.value.reason is Reason.BUFFER_FULL
    assert caught.value.culprits == {HOST}
    aggregate, _ = session.host.release()
    assert aggregate.contributors == 3
    assert same_values(aggregate, session.ideal(range(1, 4)))


# --- Models -----------------------------------------------------------------------------------------------------------


def test_a_model_gets_no_second_number() -> None:
    """Clients whose ledgers were lost would seal one update twice, and clients 1 to 3 without 4 tell client 4."""
    session = opened()
    session.upload(1, 2, 3, 4)
    session.host.release()
    for version in (1, 2, 1 << 40):
        with pytest.raises(PeerMisbehaved, match="could enter two sums") as caught:
            session.host.open_buffer(version, model_digest(0))
        assert caught.value.reason is Reason.MODEL_MISMATCH
        assert caught.value.culprits == {HOST}
    session.host.open_buffer(1, model_digest(1))
    forgetful = session.new_client(5)
    stamp = ModelStamp(version=1, digest=model_digest(0))
    sealed = sealed_by(forgetful, session.setup.payload_of(5), enclave=session.verified(), model=stamp, now=session.now)
    assert refusal(lambda: session.host.receive(sealed.encode())) == (PeerMisbehaved, Reason.MODEL_MISMATCH)


# --- Ages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ReleaseForm)
def test_the_one_client_of_another_age_counts_as_often_as_the_others(form: ReleaseForm) -> None:
    """The host hands the victim an old model, and everybody else the new one: no multiple of the others tells it."""
    session = opened(EnclaveSetup(form=form, oldest=1), version=1)
    session.upload(1, version=0)
    session.upload(2, 3, 4, 5, 6, version=1)
    aggregate, _ = session.host.release()
    assert aggregate.contributors == 6
    if form is ReleaseForm.HISTOGRAM:
        assert same_values(aggregate, session.ideal(range(1, 7)))


# --- Releasing twice --------------------------------------------------------------------------------------------------


def test_a_release_is_delivered_again_and_never_made_again() -> None:
    session = InsecureEnclaveSession(NOISED)
    coins = WatchedCoins()
    session.enclave = SimulatedEnclave(session.configuration, coins=coins)
    session.enclave.open_buffer(0, bytes(32))
    for number in (1, 2, 3):
        session.enclave.receive(session.seal(number).sealed.encode())
    before = len(coins.handed_out)
    first = session.enclave.release()
    drawn = len(coins.handed_out)
    assert drawn > before, "noise was drawn"
    assert [session.enclave.release() for _ in range(5)] == [first] * 5
    assert len(coins.handed_out) == drawn
    session.enclave.open_buffer(1, model_digest(1))
    assert refusal(session.enclave.release) == (ThresholdNotMet, Reason.THRESHOLD_NOT_MET)


def test_two_buffers_have_noise_of_their_own() -> None:
    session = InsecureEnclaveSession(NOISED)
    noises = list[list[int]]()
    for version in (0, 1):
        session.host.open_buffer(version, model_digest(version))
        session.upload(1, 2, 3, version=version)
        aggregate, _ = session.host.release()
        ideal, ring = session.ideal((1, 2, 3)), RING_LAYOUT.segments[0].ring
        noises.append(ring.lift(ring.subtract(aggregate.values[0], ideal.values[0])).tolist())
    assert noises[0] != noises[1]
    assert any(noises[0])


# --- Sums of a part, and sums that differ in one client ---------------------------------------------------------------

BYTES = Layout((RingSegment(8, 4096),))


def looks_uniform(vector: RingVector) -> bool:
    """Say whether bytes pass a chi-square test that uniform ones fail less than once in a million."""
    counts, freedom = np.bincount(vector, minlength=256), 255
    expected = vector.size / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic < freedom + 2 * sqrt(freedom * 14) + 28


@pytest.mark.parametrize("chosen", [(), (0,), (1,), (0, 1), (0, 2), (1, 2), (0, 0, 1), (0, 0, 1, 1, 2)])
def test_what_an_enclave_releases_unmasks_the_whole_sum_and_no_part_of_it(chosen: tuple[int, ...]) -> None:
    session, ring = opened(EnclaveSetup(layout=BYTES)), BYTES.segments[0].ring
    masked = list[RingVector]()
    for number in (1, 2, 3):
        upload = session.seal(number)
        session.host.receive(upload.encode())
        masked += masked_of(upload, BYTES)
    release = BufferRelease.decode(session.enclave.release())
    masks: Any = Aggregate.decode(release.aggregate, session.configuration.released).values[0]
    assert not looks_uniform(ring.subtract(ring.sum(masked, 4096), masks)), "the sum is what it is meant to be"
    part = ring.sum([masked[place] for place in chosen], 4096)
    assert looks_uniform(ring.subtract(part, masks))


# --- Restarts and budgets ---------------------------------------------------------------------------------------------


def test_an_update_is_not_sealed_again_to_the_epoch_after_a_restart() -> None:
    """The host kept the first sum; the second, without one client, would be the sum without it."""
    session = opened()
    session.upload(1, 2, 3, 4)
    session.host.release()
    session.restart()
    session.host.open_buffer(0, bytes(32))
    for number in (1, 2, 3):
        assert refusal(lambda number=number: session.seal(number)) == (PeerMisbehaved, Reason.ALREADY_ANSWERED)
    # Nor is an older one, whose model the host has kept.
    session.seal(1, version=7)
    assert refusal(lambda: session.seal(1, version=6)) == (PeerMisbehaved, Reason.ALREADY_ANSWERED)


def test_a_privacy_floor_holds_across_restarts() -> None:
    """The epsilon that the client asks for is that of two releases; a host restarts the enclave after each."""
    privacy = PrivacyLimit(epsilon=100.0, delta=1e-6)
    session = InsecureEnclaveSession(replace(NOISED, releases_per_client=2, privacy=privacy))
    for version in (0, 1):
        session.seal(1, version=version)
        session.restart()
    assert refusal(lambda: session.seal(1, version=2)) == (PeerMisbehaved, Reason.BUDGET_SPENT)


# --- The network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [MemoryError, KeyboardInterrupt])
def test_an_enclave_that_fails_in_the_middle_of_an_upload_gives_the_buffer_up(
    monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    """Otherwise a host could starve it of memory, and release sums in which one client is counted in part."""
    layout = Layout((IndexSegment(8, 5), RingSegment(20, 6), IndexSegment(4, 3)))
    session = opened(EnclaveSetup(layout=layout, form=ReleaseForm.HISTOGRAM))
    session.upload(1, 2, 3)
    message, add, calls = session.seal(4).sealed.encode(), HistogramAccumulator.add, list[int]()

    def failing(self: HistogramAccumulator, packed: memoryview, *, is_checked: bool) -> None:
        calls.append(len(calls))
        if len(calls) == 2:
            raise fault
        add(self, packed, is_checked=is_checked)

    monkeypatch.setattr(HistogramAccumulator, "add", failing)
    with pytest.raises(fault):
        session.enclave.receive(message)
    assert session.enclave.state is BufferState.CLOSED
    assert refusal(session.enclave.release)[0] is Misuse
    session.enclave.open_buffer(1, model_digest(1))
    assert refusal(lambda: session.enclave.receive(message))[0] is PeerMisbehaved


def test_an_enclave_that_fails_while_it_releases_does_not_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second attempt would draw noise anew beside whatever the first one has let out."""
    session = opened(NOISED)
    session.upload(1, 2, 3)

    def failing(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(enclave_module, "sample", failing)
        with pytest.raises(MemoryError):
            session.enclave.release()
    assert refusal(session.enclave.release)[0] is Misuse
    assert session.enclave.state is BufferState.CLOSED


def test_receipts_count_releases_so_that_none_is_hidden() -> None:
    session, numbers = opened(), list[int]()
    for version in (0, 1, 2):
        if version:
            session.host.open_buffer(version, model_digest(version))
        session.upload(1, 2, 3, version=version)
        receipt = session.host.release()[1]
        session.verified().verify_receipt(receipt)
        numbers.append(receipt.releases)
    assert [later - earlier for earlier, later in pairwise(numbers)] == [1, 1]


# --- A client that names another model first --------------------------------------------------------------------------


LAYOUT = Layout((RingSegment(20, 6),))
NEWEST = 7
MALLORY = ClientId(66)


def digest_of(version: int) -> bytes:
    return bytes([version]) * 32


def subject_of(version: int, digest: bytes | None = None) -> Subject:
    return Subject(
        task=b"a task",
        round_number=version,
        layout=LAYOUT,
        capacity=1 << 10,
        model_digest=digest_of(version) if digest is None else digest,
    )


@pytest.fixture
def world() -> Iterator[EnclaveSimulation]:
    settings = EnclaveOptions(suite=Suite.CLASSIC, oldest=2)
    made = EnclaveSimulation(settings, coins=SystemCoins(), clock=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    with closing(made):
        yield made


def upload(world: EnclaveSimulation, client: ClientId, subject: Subject, invitation: bytes) -> bytes:
    values = LAYOUT.segments[0].ring.from_integers(np.full(6, client.value))
    late = LazyUpdate(lambda: Update(Payload(LAYOUT, (values,)), subject.model_digest or b""))
    return world.member(client).join(subject, late).answer(invitation)


@pytest.mark.parametrize(
    ("version", "digest"),
    [(NEWEST - 1, b"m" * 32), (NEWEST - 2, b"m" * 32), (NEWEST - 2, digest_of(NEWEST - 1)), (NEWEST, b"m" * 32)],
)
def test_a_client_that_comes_first_shuts_nobody_out(world: EnclaveSimulation, version: int, digest: bytes) -> None:
    session = world.open(subject_of(NEWEST), None)
    claimed = subject_of(version, digest)
    stamp = stamp_of(claimed, digest)
    invited = Invitation.decode(session.invitation)
    crafted = replace(invited, version=version, model_digest=stamp.digest, is_short=False).encode()
    with pytest.raises(PeerMisbehaved) as caught:
        session.receive(MALLORY, upload(world, MALLORY, claimed, crafted))
    assert caught.value.reason is Reason.MODEL_MISMATCH
    assert caught.value.culprits == {MALLORY, ServerId()}
    clients = [ClientId(number) for number in range(1, 7)]
    for number, client in enumerate(clients):
        own = subject_of(NEWEST - number % 3)
        session.receive(client, upload(world, client, own, session.invitation_for(own)))
    assert [fault.culprits for fault in session.faults] == [{MALLORY, ServerId()}], "no honest client is named"
    session.close_stage()
    released = session.release()
    assert released.counted == set(clients)
    assert released.aggregate.values[0].tolist() == [sum(client.value for client in clients)] * 6


def test_a_client_is_in_no_more_releases_of_an_epoch_than_its_budget() -> None:
    session = InsecureEnclaveSession(replace(NOISED, releases_per_client=2))
    for version in (0, 1):
        session.host.open_buffer(version, model_digest(version))
        session.upload(1, version=version)
        session.host.give_up_buffer()
    session.host.open_buffer(2, model_digest(2))
    with pytest.raises(PeerMisbehaved) as caught:
        session.upload(1, version=2)
    assert caught.value.reason is Reason.BUDGET_SPENT
    assert caught.value.culprits == {ClientId(1), HOST}
    session.upload(2, version=2)


def test_a_destroyed_enclave_answers_nothing() -> None:
    session = opened()
    for number in (1, 2, 3):
        session.upload(number)
    message = session.seal(4).sealed.encode()
    session.enclave.release()
    session.enclave.destroy()
    calls = (session.enclave.release, lambda: session.enclave.receive(message), session.enclave.give_up_buffer)
    for call in (*calls, lambda: session.enclave.open_buffer(1, model_digest(1))):
        assert refusal(call)[0] is Misuse
    assert session.enclave.state is BufferState.DESTROYED
