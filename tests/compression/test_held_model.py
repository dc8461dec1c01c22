"""Held models: what server and clients have alike, told as sums or whole, to the last bit or not at all."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.peak import PeakCode, block_size_for
from secagg.compression.rotation import Gains
from secagg.compression.told import RUN, HeldModel, ToldSum
from secagg.contract import Aggregate, ideal_aggregate
from secagg.crypto.labels import Label
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.rotations import SEED, rotation

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
    return model.told(round_number, sums, made.rotation.scales, made.gains.times(factor))


def decoded(message: bytes) -> HeldModel:
    return HeldModel.decode(message, seed=SEED, name=NAME, sizes=SIZES)


# --- Rounding ---------------------------------------------------------------------------------------------------------


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
    """So nothing is lost where a round changes nothing, and a model that comes back from a file is still held."""
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


# --- Told sums --------------------------------------------------------------------------------------------------------


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


def test_a_told_sum_moves_the_model_by_the_decoded_mean() -> None:
    model, made = held(), code(0)
    aggregate = summed(made)
    after, _ = model.told(0, made.signs(aggregate).astype(np.int32), made.rotation.scales, made.gains.times(0.02))
    due = model.values + np.float32(0.02) * made.decode(aggregate)
    assert np.abs(after.values - due).max() <= after.steps.max() * 1.001


@pytest.mark.parametrize("sizes", [(500, 2600), (1024, 1024), (513,), (9000, 1)])
def test_whole_numbers_are_turned_back_alike_in_any_order(sizes: tuple[int, ...]) -> None:
    """A sum in float64 of any order, with one rounding for each factor, is what another machine would have."""
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


def test_a_told_sum_takes_less_than_a_bit_a_weight() -> None:
    """The bundled network at its usual rate, with everything else in the message."""
    model, drawn = held(weights(count=19_338), sizes=(19_338,)), np.random.default_rng(0)
    sums = (drawn.poisson(20 / 232, 19_456) - drawn.poisson(20 / 232, 19_456)).astype(np.int32)
    _, message = model.told(0, sums, (1.0,), Gains(1e-4))
    assert 37 * len(message) < 4 * 19_338


def test_the_next_model_is_pinned() -> None:
    """As every machine has it: integers, and one operation of float32 after another."""
    model, _ = tell(held(np.linspace(-1, 1, COUNT, dtype=np.float32)), 0)
    assert hashlib.sha256(model.codes.tobytes() + model.steps.astype(">f4").tobytes()).hexdigest() == PINNED


# --- What others may send ---------------------------------------------------------------------------------------------


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


def test_a_changed_byte_of_a_told_sum_leads_to_no_other_model() -> None:
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
            ToldSum.decode(other, 4096)
        with pytest.raises((MalformedMessage, UnexpectedMessage)):
            decoded(other)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(wrong: float) -> None:
    sums = np.zeros(4096, np.int32)
    for scales, gains in (((wrong,), Gains()), ((1.0,), Gains(wrong)), ((1.0,), Gains(1.0, 3, wrong))):
        told = ToldSum(round_number=0, scales=scales, gains=gains, digest=bytes(32), sums=sums)
        with pytest.raises(MalformedMessage):
            ToldSum.decode(told.encode(), 4096)
    with pytest.raises(MalformedMessage):
        decoded(replace(held(), steps=np.full(4, wrong, np.float32)).encode())


def test_scales_and_codes_out_of_range_are_refused() -> None:
    for scales, last in (((0.0,), 0), ((-1.0,), 0), ((1.0,), 4097)):
        told = ToldSum(
            round_number=0,
            scales=scales,
            gains=Gains(1.0, last),
            digest=bytes(32),
            sums=np.zeros(4096, np.int32),
        )
        with pytest.raises(MalformedMessage):
            ToldSum.decode(told.encode(), 4096)
    codes = np.full(COUNT, -128, np.int8)
    with pytest.raises(MalformedMessage):
        decoded(replace(held(), codes=codes).encode())


PINNED = "474b5e17f5027bfa19b3f46a6336174eb002c7334934e535573e296efb9ca811"


def test_a_sum_of_the_last_round_that_a_message_can_name_leads_to_no_model() -> None:
    told = ToldSum.decode(tell(held(), 0)[1], 4096)
    last = replace(told, round_number=(1 << 64) - 1).encode()
    with pytest.raises(PeerMisbehaved) as caught:
        held().after(last)
    assert caught.value.reason is Reason.MODEL_MISMATCH
