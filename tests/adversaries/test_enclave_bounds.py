"""Norms that an enclave bounds: longer clients, spliced pieces, a host that stops or asks, energies that wrap."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg import Session, aggregate
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.ring import Ring
from secagg.errors import AuthenticationFailed, InvalidParameters, MalformedMessage, Misuse, PeerError, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.enclave import client as client_module
from secagg.protocols.enclave.client import Upload
from secagg.protocols.enclave.server import piece_message
from secagg.protocols.enclave.trusted import bounded
from secagg.protocols.enclave.trusted.buffer import BufferState
from secagg.protocols.enclave.trusted.service import EnclaveService
from secagg.session.registry import ProtocolName
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest
from tests.harness.made_secrets import Made, recorded
from tests.harness.planted import always

RING = RingSegment(24, 70)
LAYOUT = Layout((RING, RingSegment(32, 9)))
NORMS = (400, 0)
SETUP = EnclaveSetup(layout=LAYOUT, max_norms=NORMS)
HOST = ServerId()


@pytest.fixture(autouse=True)
def _several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "PIECE_VALUES", 32)


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


def handed_in(session: InsecureEnclaveSession, upload: Upload) -> Iterator[Callable[[], None]]:
    """Return the calls of a host that hands an upload in."""
    enclave = session.enclave
    yield lambda: enclave.receive(upload.sealed.encode())
    for _ in range(2):
        for number, piece in enumerate(upload.packed):
            yield lambda number=number, piece=piece: enclave.receive_piece(piece_message(number, piece))  # type: ignore[misc]


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


@given(values=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=80))
@example([-(1 << 31)] * 4)
def test_the_sum_of_squares_is_exact(values: list[int]) -> None:
    squared: Callable[[Any], int] = vars(bounded)["_squared"]
    assert squared(np.array(values, dtype=np.int32)) == sum(value * value for value in values)


@given(
    values=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=80), norm=st.integers(1, (1 << 40) - 1)
)
def test_nothing_that_was_scaled_exceeds_its_bound(values: list[int], norm: int) -> None:
    factor_of: Callable[[int, int], float] = vars(bounded)["_factor"]
    square = sum(value * value for value in values)
    scaled = (np.array(values, dtype=np.int32) * factor_of(square, norm)).astype(np.int32).tolist()
    assert sum(value * value for value in scaled) <= max(norm**2, 0)
    if square <= norm**2:
        assert scaled == values


@pytest.mark.usefixtures("lying")
def test_no_value_of_one_client_makes_a_sum_wrap() -> None:
    """The second segment has no norm, and a full buffer of greatest values stays within its ring."""
    session = opened()
    greatest = LAYOUT.require_rings()[1].ring.greatest
    for number in range(1, 7):
        payload = payload_of([0] * 70, [greatest] * 9)
        session.host.receive(session.seal(number, payload=payload).encode())
    values = lifted(released(session).values[1], LAYOUT.require_rings()[1].ring)
    assert (values == greatest // 6 * 6).all()


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


@pytest.mark.usefixtures("lying")
def test_with_noise_the_sensitivity_is_enforced() -> None:
    norms = (100, 100)
    setup = replace(SETUP, max_norms=norms, l2_bounds=norms, noise_multiplier=Fraction(1, 100), releases_per_client=9)
    session = opened(setup)
    session.upload(1, 2, 3)
    session.host.receive(session.seal(4, payload=long_payload(session, 4, 100_000)).encode())
    moved = lifted(released(session).values[0]) - lifted(session.ideal((1, 2, 3)).values[0])
    assert np.sqrt(float((moved**2).sum())) < 200


# --- Spliced pieces ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("lying")
@pytest.mark.parametrize("spliced", [0, 2])
def test_a_piece_that_was_not_measured_is_not_added(monkeypatch: pytest.MonkeyPatch, spliced: int) -> None:
    """A client and its host seal two variants of a piece under one key and number, and both open."""
    session = opened(replace(SETUP, minimum_cohort=2))
    session.upload(1)
    seal: Any = vars(client_module)["seal_piece"]
    variants = dict[int, bytes]()

    def both(key: Any, number: int, packed: Any) -> bytes:
        variants[number] = seal(key, number, b"\x10" * len(packed))
        return bytes(seal(key, number, packed))

    monkeypatch.setattr(client_module, "seal_piece", both)
    upload = session.seal(2)
    first, *calls = handed_in(session, upload)
    first()
    half = len(upload.packed)
    for call in calls[: half + spliced]:
        call()
    with pytest.raises(PeerError) as caught:
        session.enclave.receive_piece(piece_message(spliced, variants[spliced]))
    assert caught.value.reason is Reason.REPLAYED
    assert caught.value.culprits == {HOST}
    with pytest.raises(Misuse, match="hand the rest"):
        session.enclave.release()
    for call in calls[half + spliced :]:
        call()
    total, ideal = released_of(session), session.ideal((1, 2))
    assert np.array_equal(total, ideal.values[0])


def released_of(session: InsecureEnclaveSession) -> Any:
    return released(session).values[0]


def test_pieces_come_in_order_and_are_of_one_upload() -> None:
    session = opened()
    session.upload(1, 2, 3)
    upload, other = session.seal(4), session.seal(5)
    enclave = session.enclave
    with pytest.raises(Misuse, match="no upload is being read"):
        enclave.receive_piece(piece_message(0, upload.packed[0]))
    for number, piece, kind in (
        (1, upload.packed[1], Reason.WRONG_KIND),
        (0, other.packed[0], Reason.AUTHENTICATION_FAILED),
        (0, upload.packed[1], Reason.AUTHENTICATION_FAILED),
        (0, upload.packed[0][:-1], Reason.AUTHENTICATION_FAILED),
        (0, b"", Reason.AUTHENTICATION_FAILED),
    ):
        enclave.receive(upload.sealed.encode())
        with pytest.raises(PeerError) as caught:
            enclave.receive_piece(piece_message(number, piece))
        assert caught.value.reason is kind
        assert HOST in caught.value.culprits
        with pytest.raises(Misuse, match="no upload is being read"):
            enclave.receive_piece(piece_message(0, upload.packed[0]))
    for call in handed_in(session, upload):
        call()
    assert np.array_equal(released_of(session), session.ideal((1, 2, 3, 4)).values[0])


def test_a_wrong_index_is_found_before_a_value_is_added() -> None:
    layout = Layout((RingSegment(24, 40), IndexSegment(6, 5)))
    session = opened(EnclaveSetup(layout=layout, max_norms=(50,)))
    session.upload(1, 2, 3)
    values = session.setup.payload_of(4).values
    with pytest.MonkeyPatch.context() as patch:
        packed = layout.segments[1].ring.pack(np.full(5, 7, np.uint8))
        patch.setattr(client_module, "_packed_indices", always(packed))
        upload = session.seal(4, payload=Payload(layout, values))
    with pytest.raises(MalformedMessage) as caught:
        session.host.receive(upload.encode())
    assert caught.value.culprits == {ClientId(4)}
    total, ideal = released(session), session.ideal((1, 2, 3))
    assert total.contributors == 3
    assert np.array_equal(total.values[0], ideal.values[0])


# --- A host that stops, or asks ---------------------------------------------------------------------------------------


def test_a_host_that_stops_while_pieces_are_added_gets_no_sum() -> None:
    """Otherwise the rest of the sum would be of the others alone, and its last piece one client's."""
    pieces = len(opened().seal(1).packed)
    for stop in range(1, 2 * pieces + 1):
        session = opened()
        session.upload(1, 2, 3)
        calls = list(handed_in(session, session.seal(4)))
        for call in calls[:stop]:
            call()
        if stop <= pieces:
            assert np.array_equal(released_of(session), session.ideal((1, 2, 3)).values[0]), "nothing was added"
            continue
        for ask in (session.enclave.release, lambda session=session: session.upload(5)):
            with pytest.raises(Misuse, match="hand the rest of its pieces in, or give the buffer up"):
                ask()
        session.enclave.give_up_buffer()
        session.enclave.open_buffer(1, model_digest(1))
        with pytest.raises(Exception, match="uploads"):
            session.enclave.release()


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
        requests += [piece_message(number, piece) for _ in range(2) for number, piece in enumerate(upload.packed)]

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


def test_a_buffer_in_which_an_addition_breaks_off_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()
    session.upload(1, 2, 3)
    calls = list(handed_in(session, session.seal(4)))
    for call in calls[:-1]:
        call()

    def breaking_off(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bounded, "add_into", breaking_off)
    with pytest.raises(ZeroDivisionError):
        calls[-1]()
    assert session.enclave.state is BufferState.CLOSED


@pytest.mark.parametrize("end", ["release", "give_up_buffer", "destroy", "another upload", "the last piece"])
def test_no_key_of_a_reader_is_left(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    made: Made = recorded(monkeypatch)
    session = opened()
    session.upload(1, 2, 3)
    calls = list(handed_in(session, session.seal(4)))
    for call in calls if end == "the last piece" else calls[:3]:
        call()
    if end == "another upload":
        session.upload(5)
    elif end != "the last piece":
        getattr(session.enclave, end)()
    kinds = {"piece_key", "mark_key", "upload_body"}
    assert {secret.kind for secret, _ in made} >= kinds
    assert [secret.kind for secret, _ in made if secret.kind in kinds and not secret.is_wiped] == []


# --- What clients accept ----------------------------------------------------------------------------------------------


def test_a_client_can_refuse_that_a_program_sees_its_values() -> None:
    session = opened()
    floors = replace(session.floors, sealed_vectors_accepted=False)
    with pytest.raises(InvalidParameters, match="sees every client's values") as caught:
        session.new_client(1, floors=floors).admit(session.verified(), session.now)
    assert caught.value.reason is Reason.BELOW_FLOOR
    plain = InsecureEnclaveSession(replace(SETUP, max_norms=()))
    plain.new_client(1, floors=floors).admit(plain.verified(), plain.now)


def test_a_bound_that_leaves_nothing_of_anybody_is_refused() -> None:
    """It would leave only the few values of whoever has few."""
    session = opened(replace(SETUP, max_norms=(8, 0)))
    with pytest.raises(InvalidParameters, match="less than 1 steps on average"):
        session.seal(1)
    opened(replace(SETUP, max_norms=(9, 0))).seal(1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_norms": (9,)}, "2 ring segments need as many max_norms"),
        ({"max_norms": (0, 0)}, "one of them above 0"),
        ({"layout": Layout((RingSegment(33, 4), RingSegment(8, 4)))}, "rings of up to 32 bits"),
        ({"layout": Layout((RingSegment(2, 4), RingSegment(8, 4)))}, "hold the maximum cohort"),
        ({"layout": Layout((RingSegment(20, 4, 2), RingSegment(8, 4)))}, "fine bits"),
        ({"noise_multiplier": Fraction(1), "l2_bounds": (9, 9)}, "give both alike"),
    ],
)
def test_bounds_that_nobody_can_enforce_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidParameters, match=expected):
        InsecureEnclaveSession(replace(SETUP, **changes))


def test_a_client_says_in_its_own_log_that_it_was_scaled(caplog: pytest.LogCaptureFixture) -> None:
    session = opened()
    with caplog.at_level(logging.WARNING):
        session.seal(1)
        assert not caplog.records
        session.seal(2, payload=long_payload(session, 2, 1000))
    assert "longer than the session's max_norm of 400 steps" in caplog.text


def test_an_altered_piece_is_found_by_the_host() -> None:
    session = opened()
    message = bytearray(session.seal(1).encode())
    message[-1] ^= 1
    with pytest.raises(AuthenticationFailed):
        session.host.receive(bytes(message))


@pytest.mark.parametrize("examples", [None, [5] * 8])
def test_one_call_sums_with_a_bound(examples: list[int] | None) -> None:
    updates = {name: np.full(1000, 0.001) for name in range(7)} | {7: np.full(1000, -1.0)}
    free = aggregate(updates, clip=1.0, protocol="enclave", examples=examples)
    held = aggregate(updates, clip=1.0, protocol="enclave", max_norm=0.1, examples=examples)
    assert np.asarray(free.mean).max() < -0.12
    assert np.abs(np.asarray(held.mean)).max() < 0.002


@pytest.mark.parametrize("protocol", ["pairwise", "one-message", "two-servers", "lightsecagg"])
def test_where_nobody_enforces_a_norm_it_is_refused_with_what_would(protocol: ProtocolName) -> None:
    with pytest.raises(InvalidParameters, match=r"nobody enforces max_norm with .*take protocol='enclave'"):
        Session.for_model(np.zeros(40), clients=10, clip=1.0, protocol=protocol, max_norm=3.0)


@pytest.mark.parametrize("norm", [0, -1.0, 1e-6, float("nan"), "3"])
def test_a_norm_below_a_step_for_each_value_is_refused_where_it_is_planned(norm: Any) -> None:
    with pytest.raises(InvalidParameters, match="max_norm is a number of at least"):
        Session.for_model(np.zeros(40), clients=10, clip=1.0, protocol="enclave", max_norm=norm)
