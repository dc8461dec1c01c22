"""Sums opened exactly, over configurations; and secrets that do not belong, refused."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract import RingSegment
from secagg.contract.layout import LARGEST_MASK_NOISE
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InternalError, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.protocols.one_message import lattice, masks, opening
from secagg.protocols.one_message.decoding import SumOfSecrets
from secagg.protocols.one_message.lattice import LARGEST
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.opening import OpenedSum, Opening, WrongSecret, energy_factor, noise_energy
from secagg.protocols.one_message.parameters import (
    DEVIATIONS,
    LEAST_FINE_BITS,
    MOST_NOISE_ENERGY,
    Parameters,
    Values,
    least_guard_bits,
)
from secagg.protocols.one_message.session import choose_committee, plan, with_witnesses
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.one_message_sums import Total, opened_by

EPOCH = bytes(range(32))
PARAMETERS = plan([Values(64, 16, (-128, 127))], 100, choose_committee(5, 1), degrees=(2048,))


def seed(*name: int) -> Secret:
    return Secret("seed", bytes(InsecureSeededCoins(b"upload %r" % (name,)).draw(32)))


def vectors_of(parameters: Parameters, values: Sequence[Sequence[int]]) -> list[RingVector]:
    return [
        Ring(segment.ring_bits).from_integers(np.array(row, np.int64))
        for segment, row in zip(parameters.segments, values, strict=True)
    ]


def summed(
    parameters: Parameters, inputs: Sequence[Sequence[Sequence[int]]], epoch: bytes = EPOCH
) -> tuple[Total, SumOfSecrets]:
    """Mask and add the inputs of all clients."""
    ring = EpochRing(parameters, epoch)
    total, secrets = Total(ring.parameters), np.zeros(parameters.degree, np.int32)
    for client, values in enumerate(inputs):
        upload, secret = ring.mask(vectors_of(parameters, values), seed(client, parameters.degree))
        assert len(upload) == parameters.upload_bytes
        total.add(upload)
        secrets += np.frombuffer(secret.expose(), np.int8)
    return total, secrets


def vectors_in(parameters: Parameters, opened: OpenedSum) -> list[RingVector]:
    return [opened.vector(index) for index in range(parameters.inputs)]


def expected(parameters: Parameters, inputs: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    return [
        [sum(column) % (1 << segment.ring_bits) for column in zip(*rows, strict=True)]
        for segment, rows in zip(parameters.segments, zip(*inputs, strict=True), strict=True)
    ]


@given(data=st.data())
@settings(max_examples=25)
def test_sums_are_exact_whatever_the_layout(data: st.DataObject) -> None:
    capacity = data.draw(st.integers(1, 300))
    segments = list[Values]()
    for _ in range(data.draw(st.integers(1, 3))):
        bits, length = data.draw(st.integers(1, 64)), data.draw(st.integers(1, 70))
        low = data.draw(st.integers(-200, 0))
        high = data.draw(st.integers(low + 1, 300))
        needed = max((capacity * (high - low)).bit_length(), 11)
        bounded = data.draw(st.booleans())
        segments.append(Values(length, max(bits, needed), (low, high)) if bounded else Values(length, bits))
    parameters = with_witnesses(plan([*segments, Values(1, 1)], capacity, choose_committee(5, 1)))
    clients = min(capacity, data.draw(st.integers(1, 4)))
    edges = [s.bounds or (Ring(s.ring_bits).least, Ring(s.ring_bits).greatest) for s in segments]
    zeros = [0] * parameters.witnesses
    inputs = [
        [
            *(
                [data.draw(st.sampled_from([low, high, (low + high) // 2])) for _ in range(s.length)]
                for s, (low, high) in zip(segments, edges, strict=True)
            ),
            zeros,
        ]
        for _ in range(clients)
    ]
    total, secrets = summed(parameters, inputs)
    opened = opened_by(EpochRing(parameters, EPOCH), total, secrets)
    assert [vector.tolist() for vector in vectors_in(parameters, opened)] == expected(parameters, inputs)


@pytest.mark.parametrize("value", [-128, 127, -1])
def test_a_full_sum_at_either_edge_is_exact(value: int) -> None:
    # One upload a hundred times over has the noise of a sum ten times as long, so a hundred different ones are made.
    inputs = [[[value] * 64]] * 100
    total, secrets = summed(PARAMETERS, inputs)
    opened = opened_by(EpochRing(PARAMETERS, EPOCH), total, secrets)
    assert opened.vector(0).tolist() == [100 * value % (1 << 16)] * 64


def test_prepared_rings_mask_and_open_alike() -> None:
    parameters = plan([Values(9000, 16, (-128, 127))], 100, choose_committee(5, 1), degrees=(1024,))
    ring, prepared = EpochRing(parameters, EPOCH), EpochRing(parameters, EPOCH)
    prepared.prepare()
    vector = Ring(16).from_integers(np.arange(9000) % 256 - 128)
    total, secrets = Total(parameters), np.zeros(1024, np.int32)
    for client in range(3):
        upload, secret = ring.mask([vector], seed(client))
        again, _ = prepared.mask([vector], seed(client))
        assert upload == again
        total.add(upload)
        secrets += np.frombuffer(secret.expose(), np.int8)
    assert np.array_equal(opened_by(prepared, total, secrets).vector(0), 3 * vector)


# --- What must not be seen, and what is refused ----------------------------------------------------------------------


def test_every_block_of_an_upload_has_its_own_public_polynomial() -> None:
    # Two segments with equal values: one block used for both would leave differences as small as the noise.
    degree, blocks = 1024, masks.POLYNOMIALS_AT_ONCE
    length = degree * blocks
    parameters = plan([Values(length, 12), Values(length, 12)], 100, choose_committee(5, 1), degrees=(degree,))
    ring = EpochRing(parameters, EPOCH)
    vector = Ring(12).from_integers(np.arange(length) % degree)
    total = Total(ring.parameters)
    total.add(ring.mask([vector, vector], seed(1))[0])
    polynomials = total.coefficients()[0].reshape(2 * blocks, degree)
    modulus = np.uint64(1 << parameters.modulus_bits)
    for other in range(1, 2 * blocks):
        apart = (polynomials[other] - polynomials[0]) % modulus
        near = np.minimum(apart, modulus - apart) < modulus >> np.uint64(4)
        assert near.mean() < 0.25


def test_the_bias_of_rounding_is_taken_away() -> None:
    parameters = plan([Values(4000, 16)], 100, choose_committee(5, 1), degrees=(1024,))
    assert parameters.dropped_bits
    total, secrets = summed(parameters, [[[0] * 4000]] * 100)
    made, lowest = Opening(EpochRing(parameters, EPOCH)), masks.lowest_bit(parameters, 0)
    words = made.unmasked(total, secrets)
    made.opened([words], 100)
    noise = masks.field_of(words, 0, lowest).astype(np.int64) - (1 << lowest - 1)
    assert abs(float(noise.mean())) < 6 * (100 * parameters.noise_variance / noise.size) ** 0.5 < 10 < 1 << lowest


def test_uploads_of_one_input_differ_and_are_spread_over_the_modulus() -> None:
    ring = EpochRing(PARAMETERS, EPOCH)
    zeros = [np.zeros(64, np.uint16)]
    uploads = {ring.mask(zeros, seed(client))[0] for client in range(20)}
    assert len(uploads) == 20
    bits = np.unpackbits(np.frombuffer(b"".join(uploads), np.uint8))
    assert abs(float(bits.mean()) - 0.5) < 0.02
    assert ring.mask(zeros, seed(3))[0] == EpochRing(PARAMETERS, EPOCH).mask(zeros, seed(3))[0]
    assert ring.mask(zeros, seed(3))[0] != EpochRing(PARAMETERS, bytes(32)).mask(zeros, seed(3))[0]


def opened_sum(clients: int) -> tuple[EpochRing, Total, SumOfSecrets]:
    inputs = [[[client] * 64] for client in range(clients)]
    return EpochRing(PARAMETERS, EPOCH), *summed(PARAMETERS, inputs)


@pytest.mark.parametrize("clients", [2, 24])
def test_a_wrong_sum_of_secrets_is_refused_where_guard_bits_alone_would_not_notice(clients: int) -> None:
    ring, total, secrets = opened_sum(clients)
    opened_by(ring, total, secrets)
    for exponent in range(16):
        for change in (np.eye(1, 2048, 5, dtype=np.int32)[0], np.ones(2048, np.int32)):
            with pytest.raises(WrongSecret) as refused:
                opened_by(ring, total, secrets + (change << exponent))
            assert not refused.value.culprits


def test_adding_2_to_the_g_to_one_entry_leaves_the_guard_bits_and_is_refused_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring, total, secrets = opened_sum(24)
    secrets[5] += 1 << PARAMETERS.guard_bits
    with pytest.raises(WrongSecret, match="too large"):
        opened_by(ring, total, secrets)

    # Without the first two tests it goes through, with every value wrong.
    def accepted(*_: object) -> None:
        return

    monkeypatch.setattr(Opening, "require_plausible", accepted)
    right = [sum(range(24))] * 64
    assert opened_by(ring, total, secrets).vector(0).tolist() != right


def test_one_large_entry_is_refused_by_its_size_alone() -> None:
    """With as many clients as fill their guard bits, 2^g is so small that neither length nor noise shows it."""
    clients = 32
    filled = plan([Values(64, 16, (-128, 127))], clients, choose_committee(5, 1), degrees=(2048,))
    filled = replace(filled, dropped_bits=0, guard_bits=least_guard_bits(clients, 0))
    ring = EpochRing(filled, EPOCH)
    total, secrets = summed(filled, [[[client] * 64] for client in range(clients)])
    secrets[5] += 1 << filled.guard_bits
    squared = float(np.square(secrets, dtype=np.float64).sum())
    assert squared < 0.9 * 1.5 * 2048 * clients * 4.5**2
    with pytest.raises(WrongSecret, match="an entry is too large"):
        opened_by(ring, total, secrets)


def test_a_sum_of_secrets_that_is_long_and_flat_is_refused() -> None:
    ring, total, _ = opened_sum(24)
    flat = np.full(2048, int(DEVIATIONS * 4.5 * 24**0.5), np.int32)
    with pytest.raises(WrongSecret, match="too long"):
        opened_by(ring, total, flat)


def test_secrets_of_other_uploads_are_refused_by_the_noise_they_leave() -> None:
    ring, total, secrets = opened_sum(24)
    with pytest.raises(WrongSecret, match="more noise"):
        opened_by(ring, total, np.roll(secrets, 1))


def test_energy_may_vary_more_where_there_are_few_coefficients() -> None:
    assert energy_factor(1 << 20) == energy_factor(2048) == 1.5
    assert 4 < energy_factor(22) < 8
    assert energy_factor(1) > 50


@pytest.mark.parametrize(("energy", "is_refused"), [(2.0, False), (2.2, True), (3.5, True)])
def test_few_coefficients_have_no_more_noise_than_zeros_are_counted_for(
    energy: float,
    is_refused: bool,  # noqa: FBT001 -- a case
) -> None:
    """Their noise varies more; a liar that was allowed as much had more sums to choose from than zeros tell apart."""
    count, few = 24, PARAMETERS.coefficients
    assert energy_factor(few) > 3.5 > MOST_NOISE_ENERGY
    noise = round(math.sqrt(energy * count * PARAMETERS.noise_variance))
    words = [np.full(few, noise + count // 2, np.uint64)]
    with pytest.raises(WrongSecret, match="more noise") if is_refused else nullcontext():
        Opening(EpochRing(PARAMETERS, EPOCH)).opened([words], count)


def centred(noise: Sequence[int], lowest: int) -> list[Any]:
    """Return coefficients whose lowest bits are noise, with half of its range added; above it are values."""
    whole = [(7 << lowest) + (1 << (lowest - 1)) + one for one in noise]
    return [np.array([one >> shift & (1 << 64) - 1 for one in whole], np.uint64) for shift in (0, 64)]


@pytest.mark.parametrize("lowest", [9, 10, 40, 62, 63, 64, 65, 66, 71, 72, 100, 104])
def test_the_energy_of_noise_is_exact_below_rings_of_any_width(lowest: int) -> None:
    bits = 9
    small = [0, 1, -1, 200, -256, 255, 17]
    assert noise_energy(centred(small, lowest), lowest, bits) == sum(one * one for one in small)
    for place in range(bits - 1, lowest - 1):
        for sign in (1, -1):
            wrong = [*small, sign * (1 << place) - (sign < 0)]
            with pytest.raises(WrongSecret, match="more noise"):
                noise_energy(centred(wrong, lowest), lowest, bits)


def test_a_wrong_secret_is_noticed_in_a_ring_of_64_bits() -> None:
    """Its noise has 40 bits and more below the values; a liar moves each of the zeros by 2^16."""
    made = plan([Values(3, 64)], 24, choose_committee(5, 1), degrees=(4096,))
    parameters = replace(made, modulus_bits=104)
    lowest = parameters.modulus_bits - 64
    assert lowest > parameters.guard_bits
    with pytest.raises(WrongSecret, match="more noise"):
        noise_energy(centred([1 << 16] * 400, lowest), lowest, least_guard_bits(24, parameters.dropped_bits))


def test_malformed_uploads_change_nothing() -> None:
    parameters = plan([Values(9, 15)], 3, choose_committee(5, 1), degrees=(1024,))
    assert parameters.runs[0].plane_bits[-1] < 8
    ring = EpochRing(parameters, EPOCH)
    upload, secret = ring.mask([np.zeros(9, np.uint16)], seed(1))
    total = Total(ring.parameters)
    total.add(upload)
    altered = upload[:-1] + bytes([upload[-1] | 0xC0])
    for bad, reason in (
        (upload[:-1], Reason.TRUNCATED),
        (upload + b"\0", Reason.TRAILING_BYTES),
        (altered, Reason.NOT_CANONICAL),
    ):
        with pytest.raises(MalformedMessage) as refused:
            total.add(bad)
        assert refused.value.reason is reason
    assert total.count == 1
    opened_by(ring, total, np.frombuffer(secret.expose(), np.int8).astype(np.int32))


def test_what_a_client_may_not_mask() -> None:
    ring = EpochRing(PARAMETERS, EPOCH)
    inside = np.zeros(64, np.uint16)
    for value in (128, 1 << 15, (1 << 16) - 129):
        outside = inside.copy()
        outside[7] = value
        with pytest.raises(CapacityExceeded, match=r"bounds -128\.\.127"):
            ring.mask([outside], seed(1))
    with pytest.raises(Misuse, match="1 segments; got 2"):
        ring.mask([inside, inside], seed(1))
    with pytest.raises(InvalidParameters, match="32 bytes"):
        ring.mask([inside], Secret("seed", bytes(16)))
    with pytest.raises(InvalidParameters, match="32 bytes"):
        EpochRing(PARAMETERS, bytes(16))


def test_a_secret_is_overwritten_where_a_later_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are packed block by block, so that one beyond its bounds may follow others that are masked."""
    length = (masks.POLYNOMIALS_AT_ONCE + 1) * 1024
    parameters = plan([Values(length, 17, (0, 1000))], 100, choose_committee(5, 1), degrees=(1024,))
    vector, made, spectra, draw = np.zeros(length, np.uint32), list[Any](), lattice.spectra, lattice.Sampler.draw
    vector[-1] = 1001

    def kept(polynomials: Any) -> Any:
        made.append(spectra(polynomials))
        return made[-1]

    def drawn(self: lattice.Sampler, count: int) -> Any:
        made.append(draw(self, count))
        return made[-1]

    monkeypatch.setattr(lattice.Sampler, "draw", drawn)
    monkeypatch.setattr(lattice, "spectra", kept)
    with pytest.raises(CapacityExceeded):
        EpochRing(parameters, EPOCH).mask([vector], seed(1, 1024))
    secret, spectrum, *others = made
    assert others, "a block was masked before"
    assert secret.dtype == np.int8
    assert not secret.any()
    assert spectrum.shape == (512,)
    assert not spectrum.any()


def test_what_a_server_may_not_open() -> None:
    ring, total, secrets = opened_sum(2)
    opening = Opening(ring)
    pieces = [opening.unmasked(total, secrets)]
    for count in (0, 101):
        with pytest.raises(InvalidParameters, match="must be 1 to 100"):
            opening.opened(pieces, count)
    with pytest.raises(InternalError, match="32 coefficients, but 0 were read"):
        opening.opened([], 2)


def test_seeds_and_secrets_are_wiped() -> None:
    coins = seed(1)
    _, secret = EpochRing(PARAMETERS, EPOCH).mask([np.zeros(64, np.uint16)], coins)
    assert coins.is_wiped
    view = np.frombuffer(secret.expose(), np.int8)
    assert view.any()
    secret.wipe()
    assert not view.any()
    with pytest.raises(Misuse, match="wiped"):
        secret.expose()
    assert "wiped" in repr(secret)


# --- Two words -------------------------------------------------------------------------------------------------------


@given(
    start=st.integers(0, (1 << 128) - 1),
    value=st.integers(-(1 << 63), (1 << 63) - 1),
    shift=st.integers(0, 127),
    signed=st.booleans(),
)
def test_wide_arithmetic_is_that_of_integers(start: int, value: int, shift: int, signed: bool) -> None:  # noqa: FBT001 -- drawn
    def words(number: int) -> list[masks.Word]:
        return [np.array([number >> 64 * index & (1 << 64) - 1], np.uint64) for index in range(2)]

    def number(pair: Sequence[masks.Word]) -> int:
        return int(pair[0][0]) | int(pair[1][0]) << 64

    summed_words = words(start)
    masks.add_shifted(summed_words, words(value)[0], shift, signed=signed)
    added = value if signed else value & (1 << 64) - 1
    assert number(summed_words) == (start + (added << shift)) % (1 << 128)
    less = words(start)
    masks.subtract_wide(less, words(value))
    assert number(less) == (start - value) % (1 << 128)
    for bits in {1, 64, min(64, 128 - shift)}:
        if shift + bits <= 128:
            assert int(masks.field_of(words(start), shift, bits)[0]) == start >> shift & (1 << bits) - 1


@given(start=st.integers(0, (1 << 128) - 1), dropped=st.integers(0, 4))
def test_rounding_adds_half_a_unit_at_most(start: int, dropped: int) -> None:
    words = [np.array([start >> 64 * index & (1 << 64) - 1], np.uint64) for index in range(2)]
    low, high = masks.round_off(words, dropped)
    due = (start + (1 << dropped >> 1)) % (1 << 128) >> dropped
    assert int(low[0]) | int(high[0]) << 64 == due


# --- Values that are rounded ------------------------------------------------------------------------------------------


def rounded_values(length: int, ring_bits: int, fine_bits: int, *others: Values) -> list[Values]:
    fine = Values(length, ring_bits, None, fine_bits)
    return [fine, *others, Values(1, 12), fine.check_words]


@settings(max_examples=20)
@given(data=st.data(), degree=st.sampled_from([1024, 2048, 4096]), clients=st.integers(1, 5))
def test_rounded_sums_are_within_half_a_step_and_the_noise_of_each_upload(
    data: st.DataObject, degree: int, clients: int
) -> None:
    fine_bits = data.draw(st.integers(7, 10))
    sent_bits = data.draw(st.integers(1, 4 if degree == 1024 else 20))
    others = data.draw(st.sampled_from([(), (Values(30, 9, (-3, 3)),), (Values(40, 8),)]))
    length = data.draw(st.sampled_from([1, 700, 3000]))
    values = rounded_values(length, sent_bits + fine_bits, fine_bits, *others)
    parameters = with_witnesses(plan(values, 40, choose_committee(5, 1), degrees=(degree,)))
    (run, *_) = parameters.runs
    assert (run.size, run.dropped, run.sent) == (length, fine_bits, sent_bits)
    ring, ones = Ring(sent_bits + fine_bits), [1] * parameters.witnesses
    inputs = [
        [[(7 * client + 5 * at) % 64 for at in range(length)], *([[1] * one.length for one in others]), ones]
        for client in range(clients)
    ]
    total, secrets = Total(EpochRing(parameters, EPOCH).parameters), np.zeros(degree, np.int32)
    for client, rows in enumerate(inputs):
        vectors = [
            Ring(segment.ring_bits).from_integers(np.array(row, np.int64) % (1 << segment.ring_bits - 1))
            for segment, row in zip(parameters.segments, rows, strict=False)
        ]
        upload, secret = EpochRing(parameters, EPOCH).mask(vectors, seed(client, degree))
        assert len(upload) == parameters.upload_bytes
        total.add(upload)
        secrets += np.frombuffer(secret.expose(), np.int8)
    opened = vectors_in(parameters, opened_by(EpochRing(parameters, EPOCH), total, secrets))
    assert opened[-1].tolist() == [clients] * len(ones)
    due = sum(np.array(rows[0], np.int64) for rows in inputs)
    due_elements = (np.asarray(due) % (1 << ring.modulus_bits)).astype(ring.word)
    errors = ring.lift(ring.subtract(opened[0], due_elements)).astype(np.int64)
    reach = clients * ((1 << fine_bits - 1) + LARGEST)
    if reach < 1 << ring.modulus_bits - 1:
        assert np.abs(errors).max() <= reach


def test_check_words_are_of_values_that_were_all_masked_once() -> None:
    parameters = plan(rounded_values(4096, 16, 7), 40, choose_committee(5, 1), degrees=(2048,))
    words = np.zeros(2048, np.uint64)
    for starts in ((), (0,), (0, 0, 2048)):
        rounding = masks.Rounding(parameters, EPOCH)
        for start in starts:
            rounding.keep([words], words, start)
        with pytest.raises(InternalError, match="each masked once"):
            rounding.with_check_words()


def test_what_roundings_add_on_average_is_taken_off() -> None:
    clients, size = 40, 16_384
    parameters = plan(rounded_values(size, 16, 7), clients, choose_committee(5, 1), degrees=(2048,))
    ring = EpochRing(parameters, EPOCH)
    ring.prepare()
    total, secrets = Total(ring.parameters), np.zeros(2048, np.int32)
    for client in range(clients):
        upload, secret = ring.mask([np.zeros(size, np.uint16), np.ones(1, np.uint16)], seed(client, 79))
        total.add(upload)
        secrets += np.frombuffer(secret.expose(), np.int8)
    errors = Ring(16).lift(opened_by(ring, total, secrets).vector(0)).astype(np.int64)
    allowed = 6 * (clients * (128**2 / 12 + 4.5**2) / size) ** 0.5
    # Half a fine step for each upload would be twice as far.
    assert abs(errors.mean()) < allowed < clients / 3
    assert errors.std() == pytest.approx((clients * (128**2 / 12 + 4.5**2)) ** 0.5, rel=0.05)


def test_noise_takes_less_than_the_head_room_that_the_contract_gives_it() -> None:
    assert LARGEST <= LARGEST_MASK_NOISE
    assert RingSegment(1, 1, LEAST_FINE_BITS).head_room - (1 << LEAST_FINE_BITS - 1) >= LARGEST


def test_a_wrong_secret_that_leaves_the_guard_bits_is_noticed_by_the_check_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rule D18: rounded values have no guard bits, and uniform garbage looks like any sum."""
    parameters = plan(rounded_values(2000, 16, 8), 24, choose_committee(5, 1), degrees=(2048,))
    ring = EpochRing(parameters, EPOCH)
    total, secrets = Total(ring.parameters), np.zeros(2048, np.int32)
    for client in range(3):
        upload, secret = ring.mask([np.zeros(2000, np.uint16), np.ones(1, np.uint16)], seed(client, 77))
        total.add(upload)
        secrets += np.frombuffer(secret.expose(), np.int8)
    opened_by(ring, total, secrets)
    wrong = secrets.copy()
    wrong[5] += 1

    def nothing(*_: object) -> int:
        return 0

    # A liar that leaves the few exact coefficients alone would be seen by nothing else.
    monkeypatch.setattr(opening, "noise_energy", nothing)
    with pytest.raises(WrongSecret, match="check words"):
        opened_by(ring, total, wrong)

    def accepted(*_: object) -> None:
        pass

    monkeypatch.setattr(OpenedSum, "require_honest", accepted)
    garbage = opened_by(ring, total, wrong).vector(0)
    assert np.abs(Ring(16).lift(garbage)).max() > 1 << 14


@pytest.mark.parametrize("place", [0, -1])
def test_an_altered_rounded_upload_is_noticed_by_the_check_words(place: int) -> None:
    parameters = plan(rounded_values(64, 16, 8), 24, choose_committee(5, 1), degrees=(2048,))
    ring = EpochRing(parameters, EPOCH)
    upload, secret = ring.mask([np.zeros(64, np.uint16), np.ones(1, np.uint16)], seed(1, 78))
    altered = bytearray(upload)
    altered[place if place == 0 else 63] ^= 1
    total = Total(ring.parameters)
    total.add(altered)
    with pytest.raises(WrongSecret, match="check words"):
        opened_by(ring, total, np.frombuffer(secret.expose(), np.int8).astype(np.int32))


def test_rounded_values_travel_in_exactly_their_bits_and_check_words() -> None:
    parameters = plan(rounded_values(1 << 14, 20, 8), 100, choose_committee(5, 1), degrees=(2048,))
    check = parameters.segments[-1]
    assert check == Values(6, 20)
    assert parameters.upload_bytes == (1 << 14) * 12 // 8 + parameters.runs[1].sent_bytes
    assert parameters.runs[1].size == 1 + 6


@pytest.mark.parametrize(
    ("length", "ring_bits", "bounds", "fine_bits"),
    [(4, 16, None, 6), (4, 8, None, 8), (4, 16, (0, 3), 8), (4, 16, None, -1)],
)
def test_values_that_noise_would_move_too_far_are_refused(
    length: int, ring_bits: int, bounds: tuple[int, int] | None, fine_bits: int
) -> None:
    with pytest.raises(InvalidParameters, match="at least 7 fine bits"):
        Values(length, ring_bits, bounds, fine_bits)
