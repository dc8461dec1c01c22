"""Masked rounding in every protocol that masks: the bytes of whole steps, and the error of a uniform dither.

| attack or slip | test |
|---|---|
| an upload altered in transit by a whole step | `test_an_altered_rounded_value_is_noticed` |
| rounding before masking, whose error follows the values | `test_the_error_does_not_depend_on_the_values` |
| a bias that is not subtracted, or subtracted twice | `test_a_sum_has_no_bias` |
| a ring without room for rounding errors | `test_sums_at_the_capacity_do_not_wrap` |
| a protocol that does not round takes fine bits | `test_a_protocol_that_does_not_round_refuses_fine_bits` |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from secagg.choices import Topology
from secagg.compression.scalar_quantization import DitheredQuantization, dithered_ring
from secagg.contract import Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.enclave.session import EnclaveOptions
from secagg.protocols.one_message.session import OneMessageOptions
from secagg.protocols.pairwise_mask import PairwiseOptions
from secagg.session.registry import find, names
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from secagg.wire import MessageKind, message_kind
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest

SIZE: Final = 4096
CLIENTS: Final = 6
MODEL: Final = bytes(32)
FULL: Final[dict[str, Any]] = {"topology": Topology.FULL, "minimum_cohort": 3, "population": CLIENTS}
SETTINGS: Final[dict[str, tuple[str, Any]]] = {
    "pairwise, semi-honest": ("pairwise", PairwiseOptions(mode=SecurityMode.SEMI_HONEST, **FULL)),
    "pairwise, active": ("pairwise", PairwiseOptions(mode=SecurityMode.ACTIVE, **FULL)),
    "enclave": ("enclave", EnclaveOptions()),
    "one message": ("one-message", OneMessageOptions(capacity=CLIENTS)),
    "one message, certified": ("one-message", OneMessageOptions(capacity=CLIENTS)),
}
"""Name and settings of every protocol that masks."""

Wire = Callable[[ClientId, bytes], bytes]


def late(update: Update) -> LazyUpdate:
    return LazyUpdate(lambda: update)


class Session:
    """One session of clients whose values are fine steps."""

    def __init__(self, name: str, layout: Layout, capacity: int, **changed: Any) -> None:
        self.entry, self.settings = find(SETTINGS[name][0]), replace(SETTINGS[name][1], **changed)
        self.subject = Subject(
            task=b"rounding", round_number=1, layout=layout, capacity=capacity, model_digest=MODEL, terms=bytes(32)
        )
        self.uploads = dict[ClientId, int]()

    def run(self, payloads: Mapping[ClientId, Payload], wire: Wire | None = None) -> Released:
        coins, world_of = SystemCoins(), self.entry.simulate
        with closing(world_of(self.settings, coins=coins, clock=lambda: datetime.now(UTC))) as world:
            session = Measured(world.open(self.subject, frozenset(payloads)))
            members = list[Any]()
            for client, payload in payloads.items():
                update = Update(payload, MODEL)
                member = world.member(client).join(self.subject, late(update))
                members.append(member if wire is None else _Wired(member, wire))
            released = run(session, members)
            figures = next(stage for stage in session.figures if stage.takes_update)
            self.uploads = {client: figures.bytes_up // len(figures.answered) for client in figures.answered}
            return released


class _Wired:
    """A client whose messages pass through an attacker."""

    def __init__(self, session: Any, wire: Wire) -> None:
        self._session, self._wire = session, wire

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def answer(self, message: bytes) -> bytes:
        return self._wire(self._session.client, self._session.answer(message))


def clients_of(count: int = CLIENTS) -> list[ClientId]:
    return [ClientId(100 + number) for number in range(count)]


def layout_of(size: int = SIZE, modulus_bits: int = 9, fine_bits: int = 8) -> Layout:
    return Layout((RingSegment(modulus_bits, size, fine_bits), RingSegment(16, 3)))


def payload_of(layout: Layout, fine_steps: int) -> Payload:
    fine, exact = layout.require_rings()
    values = np.full(fine.length, fine_steps)
    return Payload(layout, (fine.ring.from_integers(values), exact.ring.from_integers(np.arange(exact.length))))


def errors_of(released: Released, payloads: Mapping[ClientId, Payload]) -> npt.NDArray[np.int64]:
    """Return the error of the sum in fine steps; segments without fine bits are exact."""
    layout = released.aggregate.layout
    due = ideal_aggregate(layout, [*payloads.values()])
    assert released.counted == frozenset(payloads)
    assert (released.aggregate.values[1] == due.values[1]).all()
    ring = layout.require_rings()[0].ring
    return ring.lift(ring.subtract(released.aggregate.values[0], due.values[0])).astype(np.int64)


def require_dither(errors: npt.NDArray[np.int64], roundings: int, step: int, tolerance: float = 0.1) -> None:
    deviation = step * (roundings / 12) ** 0.5
    assert abs(errors.mean()) < 6 * deviation / errors.size**0.5
    assert errors.std() == pytest.approx(deviation, rel=tolerance)


def require_no_bias(errors: npt.NDArray[np.int64], roundings: int, step: int) -> None:
    """Require a mean of zero; half a fine step for each rounding would be far outside."""
    allowed = 6 * step * (roundings / 12 / errors.size) ** 0.5
    assert allowed < roundings / 4
    assert abs(errors.mean()) < allowed


@pytest.mark.parametrize("name", [name for name in SETTINGS if "one message" not in name])
def test_a_sum_has_no_bias(name: str) -> None:
    """With four fine steps per step, each rounding adds an eighth of a step on average."""
    layout = layout_of(fine_bits=2)
    payloads = {client: payload_of(layout, number) for number, client in enumerate(clients_of())}
    require_no_bias(errors_of(Session(name, layout, 1 << 7).run(payloads), payloads), CLIENTS, 4)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_error_does_not_depend_on_the_values(name: str) -> None:
    """For values a quarter of a step above a whole one, rounding before masking always errs to one side."""
    layout = layout_of()
    for fine_steps in (-64, 0, 64, 127):
        payloads = {client: payload_of(layout, fine_steps) for client in clients_of()}
        errors = errors_of(Session(name, layout, 1 << 7).run(payloads), payloads)
        require_dither(errors, CLIENTS, 256)
        assert np.abs(errors).max() > 256 * CLIENTS / 4


@pytest.mark.parametrize("name", SETTINGS)
def test_an_upload_has_the_bytes_of_whole_steps(name: str) -> None:
    """An upload grows by exactly the modulus bits of a value, whatever the fine bits."""
    sizes = dict[tuple[int, int], int]()
    for size in (SIZE, 2 * SIZE):
        for fine_bits in (8, 12):
            layout = layout_of(size, 8, fine_bits)
            session = Session(name, layout, 1 << 6)
            session.run({client: payload_of(layout, 5) for client in clients_of()})
            sizes[size, fine_bits] = session.uploads[clients_of()[0]]
    assert sizes[2 * SIZE, 8] - sizes[SIZE, 8] == SIZE
    assert sizes[2 * SIZE, 12] - sizes[SIZE, 12] == SIZE


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_sums_at_the_capacity_do_not_wrap(name: str, sign: int) -> None:
    scheme = DitheredQuantization(shape=(512,), bits=2, modulus_bits=dithered_ring(2, CLIENTS), scale=0.5, fine_bits=8)
    ring = scheme.layout.require_rings()[0].modulus_bits
    assert DitheredQuantization(shape=(1,), bits=2, modulus_bits=ring - 1, scale=0.5).capacity < CLIENTS
    update = np.full(512, sign * 1e6)
    payload = scheme.encode(update, SystemCoins())
    released = Session(name, scheme.layout, scheme.capacity).run(dict.fromkeys(clients_of(), payload))
    decoded = scheme.decode(released.aggregate)
    assert np.abs(decoded - sign * CLIENTS).max() <= CLIENTS * 0.25


def test_an_altered_rounded_value_is_noticed() -> None:
    """The check words cover the sent values minus the mask; one more step in one value, and they disagree."""
    layout, victim = layout_of(64), clients_of()[2]
    payloads = {client: payload_of(layout, 3) for client in clients_of()}

    def alter(client: ClientId, message: bytes) -> bytes:
        if client != victim or message_kind(message) is not MessageKind.MASKED_INPUT:
            return message
        # Values come first, after the header and the context.
        return message[:60] + bytes([message[60] ^ 4]) + message[61:]

    with pytest.raises(PeerMisbehaved) as caught:
        Session("pairwise, semi-honest", layout, 1 << 7).run(payloads, wire=alter)
    assert caught.value.reason is Reason.CHECK_WORDS_MISMATCH


def test_the_bias_of_a_buffer_is_that_of_its_uploads_whatever_their_age() -> None:
    setup = EnclaveSetup(layout=layout_of(fine_bits=2), oldest=1, population=6, maximum_cohort=6)
    session = InsecureEnclaveSession(setup)
    session.host.open_buffer(1, model_digest(1))
    for number in range(1, 7):
        session.upload(number, version=number % 2)
    aggregate, _ = session.host.release()
    ring = setup.layout.require_rings()[0].ring
    errors = ring.lift(ring.subtract(aggregate.values[0], session.ideal(range(1, 7)).values[0])).astype(np.int64)
    # Each upload is rounded once, to the nearest of four fine steps.
    assert abs(errors.mean()) < 6 * 4 * (6 / 12 / SIZE) ** 0.5 < 1
    assert errors.std() == pytest.approx(4 * (6 / 12 * 15 / 16) ** 0.5, rel=0.1)


def test_noise_of_an_enclave_is_of_fine_steps() -> None:
    """A host's view follows from the sum of fine steps, so noise is added to those; rounding gives no privacy."""
    setup = EnclaveSetup(
        layout=Layout((RingSegment(16, SIZE, 8),)), noise_multiplier=Fraction(4), l2_bounds=(512,), population=6
    )
    session = InsecureEnclaveSession(setup)
    session.host.open_buffer(0, model_digest(0))
    for number in range(1, 7):
        session.upload(number)
    aggregate, _ = session.host.release()
    ring = setup.layout.require_rings()[0].ring
    errors = ring.lift(ring.subtract(aggregate.values[0], session.ideal(range(1, 7)).values[0])).astype(np.int64)
    assert session.configuration.noise is not None
    variance = float(session.configuration.noise.variances[0])
    assert variance > 0
    assert errors.var() == pytest.approx(variance + 256**2 * 6 / 12, rel=0.15)


@pytest.mark.parametrize("name", [name for name in names() if not find(name).rounds])
def test_a_protocol_that_does_not_round_refuses_fine_bits(name: str) -> None:
    layout, entry = layout_of(4), find(name)
    with pytest.raises(InvalidParameters, match="choose a scheme without fine bits"):
        entry.require_segments(layout)
    subject = Subject(task=b"t", round_number=1, layout=layout, capacity=16, model_digest=MODEL)
    world = entry.simulate(entry.settings(), coins=SystemCoins(), clock=lambda: datetime.now(UTC))
    # A session opened without a prior check is refused by its configuration.
    with closing(world), pytest.raises(InvalidParameters, match="choose a scheme without fine bits"):
        world.open(subject, frozenset(clients_of()))


def test_every_protocol_that_masks_alone_rounds() -> None:
    assert {name for name in names() if find(name).rounds} == {"pairwise", "enclave", "one-message"}
