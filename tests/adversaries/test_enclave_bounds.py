"""Norms that an enclave bounds: longer clients, energies that wrap, zero points, a host that alters or asks."""

from __future__ import annotations

import gc
import logging
import sys
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg import Session, aggregate
from secagg.choices import ReleaseForm
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.ring import Ring
from secagg.errors import InvalidParameters, MalformedMessage, PeerError, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.enclave import client as client_module
from secagg.protocols.enclave.trusted import bounded
from secagg.protocols.enclave.trusted.buffer import BufferState
from secagg.protocols.enclave.trusted.service import EnclaveService
from secagg.session.ledger import Spent
from secagg.session.registry import ProtocolName
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest
from tests.harness.planted import always

RING = RingSegment(24, 70)
LAYOUT = Layout((RING, RingSegment(32, 9)))
NORMS = (400, 0)
SETUP = EnclaveSetup(layout=LAYOUT, max_norms=NORMS)
HOST = ServerId()


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients seal whatever they like."""
    monkeypatch.setattr(client_module, "clip_into", always(None))


def opened(setup: EnclaveSetup = SETUP) -> InsecureEnclaveSession:
    session = InsecureEnclaveSession(setup)
    session.host.open_buffer(0, model_digest(0))
    return session


def payload_of(*vectors: Any, layout: Layout = LAYOUT) -> Payload:
    pairs = zip(layout.segments, vectors, strict=True)
    return Payload(layout, tuple(segment.ring.from_integers(np.asarray(vector)) for segment, vector in pairs))


def long_payload(session: InsecureEnclaveSession, number: int, times: int) -> Payload:
    """Return a client's update, flipped and as many times as long."""
    first, *others = session.setup.payload_of(number).values
    return Payload(LAYOUT, (RING.ring.from_integers(-times * RING.ring.lift(first).astype(np.int64)), *others))


def lifted(vector: Any, ring: Ring = RING.ring) -> Any:
    return ring.lift(vector).astype(np.int64)


def released(session: InsecureEnclaveSession) -> Aggregate:
    return session.host.release()[0]


# --- Sums -------------------------------------------------------------------------------------------------------------


def test_what_keeps_the_bound_is_summed_exactly_and_the_host_adds_nothing() -> None:
    session = opened()
    session.upload(1, 2, 3)
    total = released(session)
    ideal = session.ideal((1, 2, 3))
    assert all(np.array_equal(left, right) for left, right in zip(total.values, ideal.values, strict=True))


@pytest.mark.usefixtures("lying")
def test_a_client_that_is_longer_moves_the_sum_by_the_bound_and_no_more() -> None:
    session = opened()
    session.upload(1, 2, 3)
    own = long_payload(session, 4, 100_000)
    session.host.receive(session.seal(4, payload=own).encode())
    total = lifted(released(session).values[0])
    moved = total - lifted(session.ideal((1, 2, 3)).values[0])
    assert 0.9 * NORMS[0] < np.sqrt(float((moved**2).sum())) <= NORMS[0]
    direction = lifted(own.values[0])
    assert (moved * direction >= 0).all(), "it is scaled, not replaced"


@pytest.mark.usefixtures("lying")
@pytest.mark.parametrize("value", [-(1 << 31), (1 << 31) - 1, 1 << 16, 65535, -65536])
def test_energies_that_wrap_are_measured_as_integers(value: int) -> None:
    """Four words of -2^31 have an energy of 2^64, which is 0 modulo 2^64."""
    layout = Layout((RingSegment(32, 4),))
    session = opened(EnclaveSetup(layout=layout, max_norms=(40,), minimum_cohort=2))
    zeros = payload_of([0] * 4, layout=layout)
    for number, payload in ((1, zeros), (2, payload_of([value] * 4, layout=layout))):
        session.host.receive(session.seal(number, payload=payload).encode())
    moved = lifted(released(session).values[0], layout.segments[0].ring)
    assert 30 < np.sqrt(float((moved**2).sum())) <= 40


def element(bits: int) -> st.SearchStrategy[int]:
    """Return integers of a width, the outermost ones often."""
    least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.one_of(st.integers(least, greatest), st.sampled_from([least, least + 1, -1, 0, 1, greatest]))


@given(data=st.data(), bits=st.integers(2, 32), repeats=st.sampled_from([1, 700, 1024, 2500]))
def test_the_sum_of_squares_is_exact(data: st.DataObject, bits: int, repeats: int) -> None:
    """Also of a row of outermost values, whose sum is exact in no double and wraps in every word."""
    # About a zero point, values have twice the size.
    values = np.resize(data.draw(st.lists(element(min(32, bits + 1)), min_size=1, max_size=9)), repeats)
    rows = np.zeros(-(-repeats // 1024) * 1024, np.int32)
    rows[:repeats] = values
    assert bounded.squared(rows, np.empty(rows.size), bits) == sum(value * value for value in values.tolist())


@given(data=st.data(), bits=st.integers(4, 32), clients=st.integers(2, 4), norm=st.integers(0, 1 << 33))
def test_no_client_moves_a_sum_by_more_than_its_bound(data: st.DataObject, bits: int, clients: int, norm: int) -> None:
    """Whatever it seals and whatever the zero point is; what keeps all bounds is added as it is.

    In 32 bits a difference from the zero point is an element of the ring too; it wraps only beyond the bounds.
    """
    segment = RingSegment(bits, 33)
    least, greatest = -(-segment.ring.least // clients), segment.ring.greatest // clients
    zero = data.draw(st.one_of(st.just(0), st.integers(least, greatest)))
    total, sums = bounded.BoundedSum(segment, norm, zero, clients), np.zeros(33, np.int64)
    for number in range(1, clients + 1):
        values = np.resize(data.draw(st.lists(element(bits), min_size=1, max_size=9)), 33)
        sealed = b"".join(client_module.side_by_side(segment, segment.ring.from_integers(values)))
        total.add(total.measure(memoryview(sealed)))
        after = lifted(total.released(number), segment.ring)
        # A sum that wraps would move by a power of two.
        moved, about = after - sums - zero, (values - zero).astype(np.int32).astype(np.int64)
        square, whole = (sum(value**2 for value in each.tolist()) for each in (moved, about))
        assert square <= (norm**2 or whole)
        assert (np.abs(moved) <= np.abs(about)).all()
        assert (moved * about >= 0).all()
        assert (least <= moved + zero).all()
        assert (moved + zero <= greatest).all()
        if whole <= (norm**2 or whole) and least <= values.min() and values.max() <= greatest:
            assert (moved == about).all()
        sums = after


@pytest.mark.parametrize("bits", [24, 32])
def test_a_factor_is_rounded_down(bits: int) -> None:
    """A norm that is longer by a step has a factor that is 1 as a float."""
    segment = RingSegment(bits, 1000)
    values = np.full(1000, segment.ring.greatest)
    square = sum(value**2 for value in values.tolist())
    total = bounded.BoundedSum(segment, isqrt(square) - 1, 0, 1)
    sealed = b"".join(client_module.side_by_side(segment, segment.ring.from_integers(values)))
    total.add(total.measure(memoryview(sealed)))
    moved = lifted(total.released(1), segment.ring).tolist()
    assert 0.999 * square < sum(value**2 for value in moved) <= (isqrt(square) - 1) ** 2


@pytest.mark.usefixtures("lying")
def test_no_value_of_one_client_makes_a_sum_wrap() -> None:
    """The second segment has no norm, and a full buffer of greatest values stays within its ring."""
    session = opened()
    greatest = LAYOUT.require_rings()[1].ring.greatest
    for number in range(1, 7):
        payload = payload_of([0] * 70, [greatest] * 9)
        session.host.receive(session.seal(number, payload=payload).encode())
    values = lifted(released(session).values[1], LAYOUT.require_rings()[1].ring)
    assert (values >= greatest // 6 * 6 - 6 * 4096).all()


def test_a_session_names_the_segments_that_nobody_bounds() -> None:
    for setup, expected in (
        (SETUP, (1,)),
        (replace(SETUP, max_norms=(9, 9)), ()),
        (replace(SETUP, max_norms=()), (0, 1)),
    ):
        session = opened(setup)
        for number in (1, 2, 3):
            session.host.server.receive(ClientId(number), session.seal(number).encode())
        session.host.server.close_stage()
        assert session.host.server.release().unbounded == expected


# --- Zero points ------------------------------------------------------------------------------------------------------

OFFSET = ScalarQuantization(shape=(200,), bits=8, modulus_bits=16, scales=(0.01,), zero_points=(100,))
"""Codes; 100 stands for 0.0, and the code 0 is -1.0."""


def offset_sum(norm: int, updates: list[Any], zero_points: tuple[int, ...] = (100,)) -> tuple[Any, Any]:
    """Return the decoded sum through an enclave, and the exact sum of the decoded updates."""
    setup = EnclaveSetup(
        layout=OFFSET.layout, max_norms=(norm,), zero_points=zero_points, capacity=OFFSET.capacity, minimum_cohort=2
    )
    session, payloads = opened(setup), [OFFSET.encode(update, setup.coins_of("codec")) for update in updates]
    for number, payload in enumerate(payloads, start=1):
        session.host.receive(session.seal(number, payload=payload).encode())
    exact = sum(OFFSET.decode(Aggregate(OFFSET.layout, payload.values, 1)) for payload in payloads)
    return OFFSET.decode(released(session)), exact


def test_a_norm_is_measured_about_the_zero_point() -> None:
    """An update of small values has large codes, and one of codes 0 is as long as can be."""
    rng = np.random.default_rng(5)
    updates = [rng.uniform(-0.05, 0.05, 200).astype(np.float32) for _ in range(3)]
    # Each is shorter than 71 steps; about 0 it would be longer than 1,400, and lose most of its values.
    total, exact = offset_sum(71, updates)
    assert np.allclose(total, exact, atol=1e-6)
    wrong, _ = offset_sum(71, updates, zero_points=())
    assert np.abs(wrong - exact).max() > 1


@pytest.mark.usefixtures("lying")
@pytest.mark.parametrize("value", [-2.28, -1.0, 0.27])
def test_codes_that_look_short_are_scaled_towards_the_zero_point(value: float) -> None:
    zeros, long = np.zeros(200, np.float32), np.full(200, value, np.float32)
    total, _ = offset_sum(71, [zeros, long])
    assert 0.5 < np.linalg.norm(total) <= 0.71 + 1e-6
    assert (total * value >= 0).all()


def test_a_client_refuses_norms_about_another_zero_point_than_its_codec_has() -> None:
    """About another one, a host would choose the update that loses least."""
    subject = EnclaveSetup(layout=OFFSET.layout, zero_points=(100,), capacity=OFFSET.capacity)
    for other in ((), (101,)):
        session = opened(replace(subject, max_norms=(300,), zero_points=other))
        client = session.new_client(1, about=replace(session.subject, zero_points=(100,)))
        with pytest.raises(InvalidParameters, match="zero_points differ from those of this client's codec") as caught:
            client.admit(session.verified(), session.now)
        assert caught.value.reason is Reason.BELOW_FLOOR
    right = opened(replace(subject, max_norms=(300,)))
    right.new_client(1).admit(right.verified(), right.now)


def test_a_client_that_knows_its_tasks_norms_refuses_others() -> None:
    """A host that chooses them anew for each client bisects its norm."""
    session = opened()
    for other in ((), (399, 0), (400, 1)):
        with pytest.raises(InvalidParameters, match="max_norms differ from those of this client's task") as caught:
            session.new_client(1, max_norms=other).admit(session.verified(), session.now)
        assert caught.value.reason is Reason.BELOW_FLOOR
    for own in (NORMS, None):
        session.new_client(1, max_norms=own).admit(session.verified(), session.now)


@pytest.mark.parametrize("zeros", [(128,), (-129,), (100, 1), (0,), (1.0,), (True,)])
def test_a_zero_point_that_a_full_buffer_cannot_hold_is_refused(zeros: Any) -> None:
    layout = Layout((RingSegment(10, 4),))
    with pytest.raises(InvalidParameters, match=r"zero.point"):
        opened(EnclaveSetup(layout=layout, max_norms=(40,), zero_points=zeros, maximum_cohort=4))


@pytest.mark.usefixtures("lying")
def test_with_noise_the_sensitivity_is_enforced() -> None:
    norms = (100, 100)
    setup = replace(SETUP, max_norms=norms, l2_bounds=norms, noise_multiplier=Fraction(1, 100), releases_per_client=9)
    session = opened(setup)
    session.upload(1, 2, 3)
    session.host.receive(session.seal(4, payload=long_payload(session, 4, 100_000)).encode())
    moved = lifted(released(session).values[0]) - lifted(session.ideal((1, 2, 3)).values[0])
    assert np.sqrt(float((moved**2).sum())) < 200


# --- What a host can do to an upload ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [LAYOUT, Layout((RingSegment(32, 2000), IndexSegment(6, 5)))])
def test_no_part_of_the_values_can_be_altered_repeated_left_out_or_taken_from_another(layout: Layout) -> None:
    """One seal holds all values, so that a host hands in all of them or none; nothing of them is in its hands."""
    session = opened(EnclaveSetup(layout=layout, max_norms=(10**6, 0)[: len(layout.ring_positions)]))
    session.upload(1, 2, 3)
    upload, other = session.seal(4).sealed, session.seal(5).sealed
    for sealed, foreign in (("sealed_seed", other.sealed_seed), ("sealed_indices", other.sealed_indices)):
        own = bytes(getattr(upload, sealed))
        if not own:
            continue
        half = len(own) // 2
        for forged in (bytes(foreign), own[half:] + own[:half], bytes([*own[:-1], own[-1] ^ 1]), own[:half] * 2):
            changes: dict[str, Any] = {sealed: forged.ljust(len(own), b"x")}
            with pytest.raises(PeerError) as caught:
                session.enclave.receive(replace(upload, **changes).encode())
            assert HOST in caught.value.culprits
    for cut in (upload.encode()[:-1], upload.encode() + b"x"):
        with pytest.raises(MalformedMessage):
            session.enclave.receive(cut)
    session.enclave.receive(upload.encode())
    total, ideal = released(session), session.ideal((1, 2, 3, 4))
    assert np.array_equal(total.values[0], ideal.values[0])


def test_a_host_holds_nothing_of_a_vector() -> None:
    upload = opened().seal(1)
    assert list(upload.packed) == []
    assert upload.nonce == bytes(32)


def test_a_wrong_index_is_found_before_a_value_is_added() -> None:
    layout = Layout((RingSegment(24, 40), IndexSegment(6, 5)))
    session = opened(EnclaveSetup(layout=layout, max_norms=(50,)))
    session.upload(1, 2, 3)
    values = session.setup.payload_of(4).values
    with pytest.MonkeyPatch.context() as patch:
        packed = layout.segments[1].ring.pack(np.full(5, 7, np.uint8)) + b"\1" * bounded.packed_bytes(
            RingSegment(24, 40)
        )
        patch.setattr(client_module, "packed_in", always(packed))
        upload = session.seal(4, payload=Payload(layout, values))
    with pytest.raises(MalformedMessage) as caught:
        session.host.receive(upload.encode())
    assert caught.value.culprits == {ClientId(4)}
    total, ideal = released(session), session.ideal((1, 2, 3))
    assert total.contributors == 3
    assert np.array_equal(total.values[0], ideal.values[0])


# --- A host that asks -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("lying")
def test_nothing_that_a_host_sees_depends_on_whether_a_client_was_scaled(caplog: pytest.LogCaptureFixture) -> None:
    """Answers, log lines and the functions that run are the same for every upload; there is no count to ask for."""
    traces = list[list[str]]()
    answers = list[list[bytes]]()
    # The first is for caches.
    for times in (1, 0, 1, 100_000):
        session = InsecureEnclaveSession(SETUP)
        service = EnclaveService(coins=session.setup.coins_of("service"), quote=lambda binding: ("simulated", binding))
        session.host.open_buffer(0, model_digest(0))
        vars(service)["_enclave"] = session.enclave
        upload, called = session.seal(1, payload=long_payload(session, 1, times)), list[str]()
        requests = [upload.sealed.encode()]

        def watch(frame: Any, event: str, _: object, called: list[str] = called) -> None:
            if frame.f_globals.get("__name__", "").startswith("secagg."):
                called.append(f"{event} {frame.f_code.co_name}")

        with caplog.at_level(logging.DEBUG):
            caplog.clear()
            gc.collect()
            gc.disable()
            sys.setprofile(watch)
            try:
                answers.append([service.answer(request) for request in requests])
            finally:
                sys.setprofile(None)
                gc.enable()
            assert not caplog.records
        traces.append(called)
    assert traces[1] == traces[2] == traces[3]
    assert answers[1] == answers[2] == answers[3]
    assert len(set(answers[0])) == 1


@pytest.mark.parametrize("broken", ["add_into", "unpack_into", "squared", "scale_into"])
def test_a_buffer_in_which_an_addition_breaks_off_is_given_up(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Otherwise the sum would hold a part of one client, or its indices without its values."""
    session = opened()
    session.upload(1, 2, 3)

    def breaking_off(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bounded, broken, breaking_off)
    with pytest.raises(ZeroDivisionError):
        session.enclave.receive(session.seal(4).sealed.encode())
    assert session.enclave.state is BufferState.CLOSED


@pytest.mark.parametrize("end", ["an upload", "release", "give_up_buffer", "destroy"])
def test_no_value_of_a_client_is_left(end: str) -> None:
    session = opened()
    sums: list[object] = vars(session.enclave)["_sums"]
    session.upload(1, 2, 3)
    if end != "an upload":
        getattr(session.enclave, end)()
        assert not any(vars(total)["_total"].any() for total in sums)
    assert not any(vars(total)["_values"].any() for total in sums)


# --- What clients accept ----------------------------------------------------------------------------------------------


def test_a_client_can_refuse_that_a_program_sees_its_values() -> None:
    session = opened()
    policy = replace(session.policy, sealed_vectors_accepted=False)
    with pytest.raises(InvalidParameters, match="sees every client's values") as caught:
        session.new_client(1, policy=policy).admit(session.verified(), session.now)
    assert caught.value.reason is Reason.BELOW_FLOOR
    plain = InsecureEnclaveSession(replace(SETUP, max_norms=()))
    plain.new_client(1, policy=policy).admit(plain.verified(), plain.now)


@pytest.mark.parametrize("bounds", ["max_norms", "l2_bounds"])
def test_a_client_holds_a_task_to_its_first_bounds(bounds: str) -> None:
    """A host that chooses a bound for each buffer bisects a client's norm; without any it learns nothing new."""
    changes: dict[str, Any] = {"max_norms": (), bounds: (400, 90)}
    if bounds == "l2_bounds":
        changes |= {"noise_multiplier": Fraction(1, 100), "releases_per_client": 9}
    setup = replace(SETUP, **changes)
    first, other = opened(setup), opened(replace(setup, **(changes | {bounds: (300, 90)})))
    client = first.new_client(1)
    client.charge(Spent(first.configuration.task, 0, model_digest(0)), first.configuration)
    with pytest.raises(InvalidParameters, match=r"max_norms is \(300, 90\), but was \(400, 90\)") as caught:
        client.charge(Spent(other.configuration.task, 1, model_digest(1)), other.configuration)
    assert caught.value.reason is Reason.BELOW_FLOOR
    client.charge(Spent(first.configuration.task, 1, model_digest(1)), first.configuration)


# --- Noise covers every value -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"l2_bounds": (400,)},
        {"l2_bounds": (400, 0)},
        {"max_norms": (400, 0), "l2_bounds": (400, 9)},
        {"max_norms": (), "l2_bounds": ()},
    ],
)
def test_with_noise_every_segment_has_a_bound_and_noise(changes: dict[str, Any]) -> None:
    """Counts up to 1,024 beside a vector whose bound is 10 have a sensitivity of 1,024."""
    noised: dict[str, Any] = {"noise_multiplier": Fraction(1), "l2_bounds": (400, 9), "max_norms": (400, 9)}
    opened(replace(SETUP, **noised))
    with pytest.raises(InvalidParameters, match=r"[Bb]ound|variance"):
        opened(replace(SETUP, **(noised | changes)))
    planned = opened(replace(SETUP, **noised)).configuration.noise
    assert planned is not None
    for variances in (planned.variances[:1], (planned.variances[0], Fraction(0))):
        with pytest.raises(InvalidParameters, match="variance"):
            replace(opened().configuration, max_norms=(400, 9), noise=replace(planned, variances=variances))


def test_a_bound_that_leaves_nothing_of_anybody_is_refused() -> None:
    """It would leave only the few values of a client that has few."""
    session = opened(replace(SETUP, max_norms=(8, 0)))
    with pytest.raises(InvalidParameters, match="less than 1 steps on average"):
        session.seal(1)
    opened(replace(SETUP, max_norms=(9, 0))).seal(1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_norms": (9,)}, "2 ring segments need one max_norm each"),
        ({"max_norms": (0, 0)}, "one of them above 0"),
        ({"layout": Layout((RingSegment(33, 4), RingSegment(8, 4)))}, "rings of at most 32 bits"),
        ({"layout": Layout((RingSegment(2, 4), RingSegment(8, 4)))}, "hold the maximum cohort"),
        ({"layout": Layout((RingSegment(20, 4, 2), RingSegment(8, 4)))}, "fine bits"),
        ({"noise_multiplier": Fraction(1), "l2_bounds": (9, 9)}, "max_norms must equal the L2 bounds"),
    ],
)
def test_bounds_that_nobody_can_enforce_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidParameters, match=expected):
        InsecureEnclaveSession(replace(SETUP, **changes))


@pytest.mark.parametrize(
    ("layout", "norms"),
    [(Layout((RingSegment(32, 1 << 29),)), (1 << 30,)), (Layout((IndexSegment(256, 1 << 31),)), ())],
)
def test_more_than_one_seal_holds_is_refused_before_an_update_is_spent(layout: Layout, norms: tuple[int, ...]) -> None:
    made = opened().configuration
    with pytest.raises(InvalidParameters, match="one seal holds at most 2147483631"):
        replace(made, layout=layout, max_norms=norms, tables=())


def test_a_ring_that_just_holds_the_cohort_and_a_seal_that_is_full_are_accepted() -> None:
    made, most = opened().configuration, 2147483631
    narrow = replace(made, layout=Layout((RingSegment(4, 4),)), max_norms=(9,), maximum_cohort=7)
    with pytest.raises(InvalidParameters, match="hold the maximum cohort"):
        replace(narrow, maximum_cohort=8)
    for blocks in (most, most + 1):
        full = Layout((IndexSegment(256, blocks),))
        with nullcontext() if blocks == most else pytest.raises(InvalidParameters, match="one seal holds at most"):
            replace(made, layout=full, max_norms=(), form=ReleaseForm.HISTOGRAM)


def test_a_client_says_in_its_own_log_that_it_was_scaled(caplog: pytest.LogCaptureFixture) -> None:
    session = opened()
    with caplog.at_level(logging.WARNING):
        session.seal(1)
        session.seal(3, payload=payload_of([NORMS[0]] + [0] * 69, [0] * 9))
        assert not caplog.records
        session.seal(2, payload=long_payload(session, 2, 1000))
    assert "exceeds max_norm (400 steps" in caplog.text
    packed = client_module.packed_in(session.configuration, long_payload(session, 2, 1000))
    sealed = memoryview(packed)[: bounded.packed_bytes(RING)]
    assert bounded.BoundedSum(RING, NORMS[0], 0, 6).measure(sealed) == 1, "nothing is left for the enclave to scale"


@pytest.mark.parametrize("examples", [None, [5] * 8])
def test_one_call_sums_with_a_bound(examples: list[int] | None) -> None:
    updates = {name: np.full(1000, 0.001) for name in range(7)} | {7: np.full(1000, -1.0)}
    free = aggregate(updates, clip=1.0, protocol="enclave", examples=examples)
    held = aggregate(updates, clip=1.0, protocol="enclave", max_norm=0.1, examples=examples)
    assert np.asarray(free.mean).max() < -0.12
    assert np.abs(np.asarray(held.mean)).max() < 0.002


@pytest.mark.parametrize("protocol", ["pairwise", "one-message", "two-servers", "lightsecagg"])
def test_where_nobody_enforces_a_norm_it_is_refused_with_what_would(protocol: ProtocolName) -> None:
    with pytest.raises(InvalidParameters, match=r"cannot enforce max_norm, .*use protocol='enclave'"):
        Session.for_model(np.zeros(40), clients=10, clip=1.0, protocol=protocol, max_norm=3.0)


@pytest.mark.parametrize("protocol", ["pairwise", "enclave"])
def test_honest_clients_keep_a_norm_that_nobody_enforces(
    protocol: ProtocolName, caplog: pytest.LogCaptureFixture
) -> None:
    updates = {name: np.full(1000, 0.001) for name in range(7)} | {7: np.full(1000, -1.0)}
    with caplog.at_level(logging.WARNING):
        held = aggregate(updates, clip=1.0, protocol=protocol, max_norm_unenforced=0.1)
    assert np.abs(np.asarray(held.mean)).max() < 0.002
    assert "the update of 7 has a norm of 31.6 and was scaled down to 0.1" in caplog.text
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidParameters, match="max_norm_unenforced must be positive"):
            aggregate(updates, clip=1.0, protocol=protocol, max_norm_unenforced=wrong)


@pytest.mark.parametrize("norm", [0, -1.0, 1e-6, float("nan"), "3"])
def test_a_norm_below_a_step_for_each_value_is_refused_where_it_is_planned(norm: Any) -> None:
    with pytest.raises(InvalidParameters, match="max_norm must be at least"):
        Session.for_model(np.zeros(40), clients=10, clip=1.0, protocol="enclave", max_norm=norm)
