"""Coded sums and held models: exact, near the entropy, with one encoding each, and the same on every machine."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression import downlink as coder
from secagg.compression.downlink import (
    GREATEST,
    LEVELS,
    RUN,
    DownlinkSum,
    HeldModel,
    decode_sums,
    encode_sums,
    level_of,
    longest,
    pushed,
    table_of,
)
from secagg.compression.peak import PeakCode, block_size_for
from secagg.compression.rotation import Gains
from secagg.contract import Aggregate, ideal_aggregate
from secagg.crypto.labels import Label
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.rotations import SEED, rotation

Sums = npt.NDArray[np.int64]
EVERY = range(LEVELS)


def skellam(variance: float, count: int, seed: int = 0) -> Sums:
    drawn = np.random.default_rng(seed)
    return drawn.poisson(variance / 2, count) - drawn.poisson(variance / 2, count)


def bits(sums: Sums) -> float:
    return 8 * len(encode_sums(sums)) / len(sums)


def entropy(sums: Sums) -> float:
    share = np.unique(sums, return_counts=True)[1] / len(sums)
    return float(-(share * np.log2(share)).sum())


MANY = st.one_of(
    arrays(np.int64, st.integers(0, 400), elements=st.integers(-GREATEST, GREATEST)),
    arrays(np.int64, st.integers(0, 6000), elements=st.integers(-3, 3), fill=st.just(0)),
    st.builds(skellam, st.floats(1e-4, 1e5), st.integers(0, 9000), st.integers(0, 99)),
)


@given(MANY)
def test_sums_come_back_and_no_encoding_is_longer_than_said(sums: Sums) -> None:
    coded = encode_sums(sums)
    assert np.array_equal(decode_sums(coded, len(sums)), sums)
    assert len(coded) <= longest(len(sums))


@pytest.mark.parametrize(
    ("clients", "places"), [(20, 116), (20, 94), (20, 23), (20, 8), (100, 580), (2, 32768), (60, 2), (20, 1)]
)
@pytest.mark.parametrize("count", [19_456, 100_000])
def test_a_sum_of_peaks_takes_little_more_than_its_entropy(clients: int, places: int, count: int) -> None:
    """Clients choose places independently; each coder of 2,048 values costs two bytes."""
    drawn, sums = np.random.default_rng(places), np.zeros((-(-count // places), places), np.int64)
    for _ in range(clients):
        at = drawn.integers(places, size=len(sums))
        sums[np.arange(len(sums)), at] += drawn.choice([-1, 1], len(sums))
    found, least = bits(sums.reshape(-1)[:count]), entropy(sums.reshape(-1)[:count])
    assert found <= 1.005 * least + 0.025
    if (clients, places) == (20, 116):
        assert found <= 0.85


@pytest.mark.parametrize("deviation", [3.0, 12.0, 40.0, 300.0, 9000.0])
def test_sums_of_several_bits_take_little_more_than_their_entropy(deviation: float) -> None:
    sums = np.rint(np.random.default_rng(1).normal(0, deviation, 100_000)).astype(np.int64)
    due = math.log2(deviation * math.sqrt(2 * math.pi * math.e))
    assert bits(sums) <= due + 0.08


def test_tables_are_whole_numbers_that_are_pinned() -> None:
    """Only integers make them; a change of these digests is another format."""
    digest = hashlib.sha256()
    for level in EVERY:
        model = table_of(level)
        digest.update(f"{level} {model.low_bits} {model.greatest}".encode() + model.frequencies.astype(">u4").tobytes())
    assert digest.hexdigest() == TABLES


def test_an_encoding_is_pinned() -> None:
    drawn = np.frombuffer(hashlib.shake_256(b"sums").digest(60_000), np.uint8).reshape(-1, 6)
    sums = (drawn[:, :3] < 24).sum(axis=1).astype(np.int64) - (drawn[:, 3:] < 24).sum(axis=1)
    assert hashlib.sha256(encode_sums(sums)).hexdigest() == ENCODING


@pytest.mark.parametrize("level", [0, 1, 40, 100, 108, 109, 200, EVERY[-1]])
def test_a_table_is_the_law_of_a_difference_of_poisson_counts(level: int) -> None:
    model = table_of(level)
    variance = (8 + level % 8) * 2.0 ** (level // 8 - 14) / 4.0**model.low_bits
    half = variance / 2
    share = model.frequencies.astype(float) / 65536
    for value in range(min(4, model.greatest + 1)):
        terms = [
            math.exp(-variance + (2 * k + value) * math.log(half) - math.lgamma(k + 1) - math.lgamma(k + value + 1))
            for k in range(800)
        ]
        for place in (model.greatest + value, model.greatest - value):
            assert abs(share[place] - sum(terms)) < 2 / 65536
    assert model.frequencies.sum() == 65536
    assert model.frequencies[-1] >= 1


def test_levels_are_the_least_variances_that_are_large_enough() -> None:
    variances = [(8 + level % 8) * 2.0 ** (level // 8 - 14) for level in EVERY]
    assert all(1 < after / before <= 1.125 for before, after in pairwise(variances))
    for squared in (0, 1, 3, 10, 1000, 123_456, GREATEST**2):
        sums = np.zeros(4096, np.int64)
        sums[:1] = math.isqrt(squared)
        measured = math.isqrt(squared) ** 2 / 4096
        level = level_of(sums.astype(np.int32))
        assert variances[level] >= measured
        assert level == 0 or variances[level - 1] < measured


def test_a_slow_decoder_of_one_value_at_a_time_agrees() -> None:
    sums = skellam(0.5, 5000)
    coded, lanes = encode_sums(sums), 2
    model = table_of(int.from_bytes(coded[:2], "big"))
    assert model.low_bits == 0
    ends = np.cumsum(model.frequencies).tolist()
    states = [int.from_bytes(coded[2 + 4 * lane : 6 + 4 * lane], "big") for lane in range(lanes)]
    at, found = 2 + 4 * lanes, list[int]()
    for row in range(2500):
        for lane in range(lanes):
            slot = states[lane] % 65536
            symbol = next(place for place, end in enumerate(ends) if slot < end)
            frequency = int(model.frequencies[symbol])
            states[lane] = frequency * (states[lane] >> 16) + slot - (ends[symbol] - frequency)
            found.append(symbol - model.greatest)
            if states[lane] < 65536:
                states[lane] = states[lane] << 16 | int.from_bytes(coded[at : at + 2], "big")
                at += 2
        assert found[-2:] == sums[2 * row : 2 * row + 2].tolist()
    assert (at, states) == (len(coded), [65536] * lanes)


def require_canonical(data: bytes, count: int) -> bool:
    """Whether data is refused or is the encoding of its values."""
    try:
        sums = decode_sums(data, count)
    except MalformedMessage:
        return False
    assert encode_sums(sums) == data
    return True


@given(st.binary(max_size=200), st.integers(0, 40))
def test_any_bytes_are_refused_or_the_encoding_of_something(data: bytes, count: int) -> None:
    require_canonical(data, count)


@pytest.mark.parametrize("sums", [skellam(0.2, 300), skellam(900.0, 60), np.array([0, 0, 0, 900, 0, 0, 0, 0])])
def test_no_byte_can_be_changed_cut_or_added(sums: Sums) -> None:
    coded = encode_sums(sums)
    for at in range(len(coded)):
        for flipped in (1, 128, 255):
            other = coded[:at] + bytes([coded[at] ^ flipped]) + coded[at + 1 :]
            if require_canonical(other, len(sums)):
                assert not np.array_equal(decode_sums(other, len(sums)), sums)
        with pytest.raises(MalformedMessage):
            decode_sums(coded[:at], len(sums))
    for more in (b"\0", b"\0\0", b"\0\0\0\0", coded):
        with pytest.raises(MalformedMessage):
            decode_sums(coded + more, len(sums))


def test_values_that_the_table_has_are_not_told_beyond_it() -> None:
    """An escaped value of the table would be a second encoding."""
    sums = np.zeros(64, np.int64)
    sums[3] = 91
    coded = encode_sums(sums)
    assert coded[-4:] == (91 >> table_of(int.from_bytes(coded[:2], "big")).low_bits).to_bytes(4, "big")
    with pytest.raises(MalformedMessage):
        decode_sums(coded[:-4] + bytes(4), len(sums))


@pytest.mark.parametrize("parity", [0, 1])
def test_sums_of_one_parity_cost_what_their_halves_do_and_have_one_encoding(
    monkeypatch: pytest.MonkeyPatch, parity: int
) -> None:
    halves = skellam(3.0, 5000)
    coded = encode_sums(2 * halves + parity)
    assert len(coded) == len(encode_sums(halves))
    with pytest.raises(MalformedMessage, match="not canonically encoded"):
        decode_sums(bytes([coded[0] | 0xC0]) + coded[1:], len(halves))

    def mixed(_: Sums) -> int:
        return 0

    monkeypatch.setattr(coder, "parity_of", mixed)
    whole = encode_sums(2 * halves + parity)
    monkeypatch.undo()
    with pytest.raises(MalformedMessage, match="not canonically encoded"):
        decode_sums(whole, len(halves))


def test_a_state_below_its_interval_is_refused() -> None:
    coded = bytearray(encode_sums(np.zeros(10, np.int64)))
    coded[2:4] = bytes(2)
    with pytest.raises(MalformedMessage) as caught:
        decode_sums(bytes(coded), 10)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_variance_that_is_not_that_of_the_values_is_refused() -> None:
    """The next level's table gives the same values other bytes, which a lax decoder would accept."""
    sums = skellam(0.2, 100)
    level = level_of(sums.astype(np.int32))
    model = table_of(level + 1)
    states, words = pushed((sums + model.greatest).astype(np.uint16).reshape(-1, 1), model)
    other = (level + 1).to_bytes(2, "big") + states.astype(">u4").tobytes() + words.astype(">u2").tobytes()
    with pytest.raises(MalformedMessage):
        decode_sums(other, len(sums))


@pytest.mark.parametrize("count", [8192, 1 << 20, 1 << 32])
def test_a_short_message_costs_no_memory(count: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode_sums(b"\0" * 6, count)
    assert caught.value.reason is Reason.TRUNCATED


@pytest.mark.parametrize(
    "sums", [np.zeros(3), np.zeros((2, 2), np.int64), [1], np.array([GREATEST + 1]), np.zeros(2, np.uint8)]
)
def test_other_things_are_misuse(sums: Any) -> None:
    with pytest.raises(Misuse):
        encode_sums(sums)


TABLES = "51a1b9db997d5175b5d37cbcf88377ede33874195f37bf4ab5d2d77dcc04cc63"
ENCODING = "0c48bb4b1c33d3d75bd3a5718bd6ed3074bbefad1813ff43b6bba3052513d9b7"


NAME = "update"
SIZES, SCALES = (500, 2600), (0.5, 0.75)
COUNT = sum(SIZES)
COINS = InsecureSeededCoins(b"for blocks of zeros alone")
Floats = npt.NDArray[np.float32]


def weights(seed: int = 0, count: int = COUNT) -> Floats:
    return np.random.default_rng(seed).normal(0, 0.1, count).astype(np.float32)


def held(values: Floats | None = None, sizes: tuple[int, ...] = SIZES, round_number: int = 0) -> HeldModel:
    given = weights(count=sum(sizes)) if values is None else values
    return HeldModel.rounded(given, seed=SEED, name=NAME, sizes=sizes, round_number=round_number)


def code(round_number: int, sizes: tuple[int, ...] = SIZES, places: int = 12) -> PeakCode:
    count, scales = sum(sizes), SCALES[: len(sizes)]
    turned = rotation(count, block_size_for(count), sizes=sizes, scales=scales, round_number=round_number)
    return PeakCode(rotation=turned, places=places)


def summed(made: PeakCode, clients: int = 5) -> Aggregate:
    count = made.length
    payloads = [made.encode(weights(7 + client, count), COINS) for client in range(clients)]
    return ideal_aggregate(made.layout, payloads)


def tell(model: HeldModel, round_number: int, factor: float = 0.01) -> tuple[HeldModel, bytes]:
    made = code(round_number, model.sizes)
    sums = made.signs(summed(made)).astype(np.int32)
    return model.advanced(round_number, sums, made.rotation.scales, made.gains.times(factor))


def decoded(message: bytes) -> HeldModel:
    return HeldModel.decode(message, seed=SEED, name=NAME, sizes=SIZES)


def test_rounding_is_unbiased_and_within_a_step() -> None:
    values, total, rounds = weights(), np.zeros(COUNT), 400
    model = held(values)
    for number in range(rounds):
        model = held(values, round_number=number)
        assert np.all(np.abs(model.values - values) <= np.repeat(model.steps, RUN)[:COUNT] * 1.00001)
        total += model.values
    step = float(model.steps.max())
    assert np.abs(total / rounds - values).max() < 5 * step / 2 / rounds**0.5
    assert abs(float((total / rounds - values).mean())) < 4 * step / 2 / (rounds * COUNT) ** 0.5


def test_a_held_model_is_rounded_to_itself() -> None:
    """A round without changes loses nothing, and a model restored from a file is still held."""
    model = held(round_number=3)
    again = held(model.values, round_number=9)
    assert np.array_equal(again.values, model.values)


def test_strange_models_are_rounded_all_the_same() -> None:
    values = np.zeros(COUNT, np.float32)
    assert not held(values).values.any()
    values[:4] = np.nan, np.inf, -np.inf, 1e-38
    model = held(values)
    assert np.isfinite(model.values).all()
    assert decoded(model.encode()).digest == model.digest


def test_values_of_another_size_or_type_are_misuse() -> None:
    for values in (weights(count=9), weights().astype(int)):
        with pytest.raises(Misuse):
            HeldModel.rounded(values, seed=SEED, name=NAME, sizes=SIZES, round_number=0)


def test_a_model_comes_back_from_its_message_at_a_quarter_of_its_size() -> None:
    model = held(weights(count=40_000), sizes=(40_000,), round_number=4)
    message = model.encode()
    again = HeldModel.decode(message, seed=SEED, name=NAME, sizes=(40_000,))
    assert np.array_equal(again.values, model.values)
    assert (again.digest, again.round_number, again.encode()) == (model.digest, 4, message)
    assert 4.2 * len(message) < 4 * 40_000


def test_clients_follow_the_server_to_the_last_bit() -> None:
    server = held()
    client, late = decoded(server.encode()), None
    for number in (0, 1, 4, 5):
        before = server.values
        server, message = tell(server, number)
        client = client.after(message)
        late = client if late is None else late.after(message)
        assert np.array_equal(client.values, server.values)
        assert not np.array_equal(server.values, before)
        assert client.digest == late.digest == server.digest
    assert server.round_number == 6


def test_a_downlink_sum_moves_the_model_by_the_decoded_mean() -> None:
    model, made = held(), code(0)
    aggregate = summed(made)
    after, _ = model.advanced(0, made.signs(aggregate).astype(np.int32), made.rotation.scales, made.gains.times(0.02))
    due = model.values + np.float32(0.02) * made.decode(aggregate)
    assert np.abs(after.values - due).max() <= after.steps.max() * 1.001


@pytest.mark.parametrize("sizes", [(500, 2600), (1024, 1024), (513,), (9000, 1)])
def test_whole_numbers_are_turned_back_alike_in_any_order(sizes: tuple[int, ...]) -> None:
    """A float64 sum in any order, with one rounding per factor, is the same on every machine."""
    made = code(2, sizes)
    aggregate = summed(made)
    signs = made.signs(aggregate).astype(np.float64)
    size = made.rotation.block_size
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    gains, apart = made.gains, signs.copy()
    apart[: len(signs) - gains.last] = 0
    turned = [
        (matrix @ part.reshape(size, -1) / size**0.5).astype(np.float32).reshape(-1) * np.float32(gain)
        for part, gain in ((signs - apart, gains.gain), (apart, gains.last_gain))
    ]
    factors = made.rotation.stream.read(Label.ROTATION_SIGNS, -(-made.rotation.padded // 8))
    negative = np.unpackbits(np.frombuffer(factors, np.uint8), count=sum(sizes), bitorder="little") == 1
    divisors = np.float32(1) / np.repeat(np.array(SCALES[: len(sizes)], np.float32), sizes)
    due = (turned[0] + turned[1])[: sum(sizes)] / np.where(negative, -divisors, divisors)
    assert np.array_equal(made.decode(aggregate), due)


def test_a_downlink_sum_takes_less_than_a_bit_a_weight() -> None:
    """The bundled network at its usual rate, with everything else in the message."""
    model, drawn = held(weights(count=19_338), sizes=(19_338,)), np.random.default_rng(0)
    sums = (drawn.poisson(20 / 232, 19_456) - drawn.poisson(20 / 232, 19_456)).astype(np.int32)
    _, message = model.advanced(0, sums, (1.0,), Gains(1e-4))
    assert 37 * len(message) < 4 * 19_338


def test_the_next_model_is_pinned() -> None:
    """It is the same on every machine: integers, and single float32 operations."""
    model, _ = tell(held(np.linspace(-1, 1, COUNT, dtype=np.float32)), 0)
    assert hashlib.sha256(model.codes.tobytes() + model.steps.astype(">f4").tobytes()).hexdigest() == PINNED


def test_another_model_is_noticed_and_nothing_is_changed() -> None:
    server = held()
    _, message = tell(server, 0)
    other = replace(server, codes=np.where(np.arange(COUNT) == 17, server.codes ^ 1, server.codes).astype(np.int8))
    for model in (other, held(round_number=1), replace(server, seed=bytes(32))):
        before = model.digest
        with pytest.raises(PeerMisbehaved) as caught:
            model.after(message)
        assert caught.value.reason is Reason.MODEL_MISMATCH
        assert model.digest == before


def test_a_changed_byte_of_a_downlink_sum_leads_to_no_other_model() -> None:
    server = held()
    after, message = tell(server, 0)
    refused = 0
    for at in range(0, len(message), 19):
        other = message[:at] + bytes([message[at] ^ 64]) + message[at + 1 :]
        try:
            assert server.after(other).digest == after.digest
        except (MalformedMessage, PeerMisbehaved, UnexpectedMessage):
            refused += 1
    assert refused > 0.95 * len(message) / 19


@pytest.mark.parametrize("make", [lambda: tell(held(), 0)[1], lambda: held().encode()])
def test_a_message_that_is_cut_or_longer_is_refused(make: Any) -> None:
    message = make()
    for other in [message[:at] for at in range(0, len(message), 41)] + [message + b"\0", message + b"\0\0"]:
        with pytest.raises((MalformedMessage, UnexpectedMessage)):
            DownlinkSum.decode(other, 4096)
        with pytest.raises((MalformedMessage, UnexpectedMessage)):
            decoded(other)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    sums = np.zeros(4096, np.int32)
    for scales, gains in (((wrong,), Gains()), ((1.0,), Gains(wrong)), ((1.0,), Gains(1.0, 3, wrong))):
        told = DownlinkSum(round_number=0, scales=scales, gains=gains, digest=bytes(32), sums=sums)
        with pytest.raises(MalformedMessage):
            DownlinkSum.decode(told.encode(), 4096)
    with pytest.raises(MalformedMessage):
        decoded(replace(held(), steps=np.full(4, wrong, np.float32)).encode())


def test_scales_and_codes_out_of_range_are_refused() -> None:
    for scales, last in (((0.0,), 0), ((-1.0,), 0), ((1.0,), 4097)):
        told = DownlinkSum(
            round_number=0, scales=scales, gains=Gains(1.0, last), digest=bytes(32), sums=np.zeros(4096, np.int32)
        )
        with pytest.raises(MalformedMessage):
            DownlinkSum.decode(told.encode(), 4096)
    codes = np.full(COUNT, -128, np.int8)
    with pytest.raises(MalformedMessage):
        decoded(replace(held(), codes=codes).encode())


PINNED = "474b5e17f5027bfa19b3f46a6336174eb002c7334934e535573e296efb9ca811"


def test_a_sum_of_the_last_round_that_a_message_can_name_leads_to_no_model() -> None:
    told = DownlinkSum.decode(tell(held(), 0)[1], 4096)
    last = replace(told, round_number=(1 << 64) - 1).encode()
    with pytest.raises(PeerMisbehaved) as caught:
        held().after(last)
    assert caught.value.reason is Reason.MODEL_MISMATCH
