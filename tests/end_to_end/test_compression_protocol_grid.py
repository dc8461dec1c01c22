"""Every scheme under pairwise masks: the decoded sum equals that of payloads in the clear.

The grid is scheme x mode x topology x dropouts: each scheme has one of the four places for each way to drop out, and
all of them in ``make test-long``. Sums modulo 2^p are exact, so all comparisons are of bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

from secagg.choices import Topology
from secagg.compression.common import PublicStream
from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint, Identity
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    ModelUpdate,
    Plain,
    Pruned,
    Quantized,
    Rotated,
    Sketched,
    UpdatePlan,
    decode_parameters,
    encode_parameters,
)
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract import Aggregate, LinearDecoder
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, plan_of, same_sum

SHAPE = (4, 10)
SEED = bytes(range(32))
POPULATIONS = {Topology.FULL: 8, Topology.SPARSE: 12}
SHAPES = {"conv.weight": (4, 2, 3, 3), "conv.bias": (4,), "embedding.weight": (6, 8), "fc.weight": (4, 10), "scale": ()}

Update = Any
Place = tuple[SecurityMode, Topology]


def numbers(client: ClientId) -> np.random.Generator:
    return np.random.default_rng(list(client.encode()))


def matrix(client: ClientId) -> Update:
    return numbers(client).standard_normal(SHAPE).astype(np.float32)


def vector(client: ClientId) -> Update:
    return matrix(client).reshape(-1)


def votes(client: ClientId) -> Update:
    return numbers(client).integers(-9, 10, 40)


def tensors(client: ClientId) -> Update:
    return {name: numbers(client).standard_normal(shape) for name, shape in SHAPES.items()}


def quantized(bits: int, modulus_bits: int, **more: Any) -> ScalarQuantization:
    shape = more.pop("shape", SHAPE)
    return ScalarQuantization(shape=shape, bits=bits, modulus_bits=modulus_bits, scales=(4 / 2**bits,), **more)


def fixed(length: int) -> FixedPoint:
    return FixedPoint(length=length, clip=8.0, fraction_bits=20, modulus_bits=32)


def stream() -> PublicStream:
    return PublicStream(seed=SEED, round_number=0, tensor_name="fc.weight", shape=SHAPE)


def mixed_model(epoch: int = 0, calibration: Calibration | None = None) -> ModelUpdate:
    """Return a model with one tensor in each ring scheme."""
    plan = UpdatePlan(
        shapes=SHAPES,
        plain=Plain(clip=8.0, fraction_bits=20),
        compressed=Quantized(bits=8, modulus_bits=14, affine=True, per_channel=True, rounding=Rounding.STOCHASTIC),
        chosen={
            "embedding.weight": Pruned(
                sparsity="0.5", inner=Rotated(block_size=8, inner=Quantized(bits=4, modulus_bits=14))
            ),
            "fc.weight": Sketched(rows=2, columns=8, inner=Plain(clip=64.0, fraction_bits=16)),
        },
        seed=SEED,
    )
    chosen = calibration or Calibration(CalibrationSource.PUBLIC_BATCH, tensors(ClientId(1)))
    return plan.parameters(epoch=epoch, calibration=chosen)


@dataclass(frozen=True)
class Case:
    """A scheme, and its clients' updates."""

    decoder: LinearDecoder[Any]
    update_of: Callable[[ClientId], Update] = matrix


CASES = {
    "integers": Case(Identity(length=40, bound=9, modulus_bits=11), votes),
    "fixed point": Case(fixed(40), vector),
    "2 bits in 8": Case(quantized(2, 8)),
    "4 bits in 11, affine": Case(quantized(4, 11, zero_points=(3,))),
    "8 bits in 16": Case(quantized(8, 16)),
    "8 bits in 16, affine and stochastic": Case(quantized(8, 16, zero_points=(-7,), rounding=Rounding.STOCHASTIC)),
    "16 bits in 22": Case(quantized(16, 22, rounding=Rounding.STOCHASTIC)),
    "8 bits in 8, wrapping": Case(quantized(8, 8, wrapping_weight=64)),
    "a scale for each channel": Case(
        ScalarQuantization(shape=SHAPE, bits=5, modulus_bits=12, scales=(0.1, 0.2, 0.4, 0.8), zero_points=(0, 1, -2, 3))
    ),
    "pruned to 8 bits": Case(
        RandomPruning(stream=stream(), sparsity="0.8", inner=quantized(8, 14, shape=(8,), zero_points=(5,)))
    ),
    "pruned to fixed point": Case(RandomPruning(stream=stream(), sparsity="0.9", inner=fixed(4))),
    "rotated to 4 bits": Case(RandomRotation(stream=stream(), block_size=8, inner=quantized(4, 11, shape=(40,)))),
    "sketched": Case(CountSketch(length=40, rows=3, columns=8, seed=SEED, inner=fixed(24)), vector),
    "sketched to 8 bits": Case(
        CountSketch(length=40, rows=3, columns=8, seed=SEED, inner=quantized(8, 14, shape=(24,))), vector
    ),
    "a model of all of them": Case(mixed_model(), tensors),
}

DROPOUTS: dict[str, tuple[ServerState, ...]] = {
    "nobody drops out": (),
    "one before the keys, one before the upload": (
        ServerState.AWAITING_KEY_ADVERTISEMENTS,
        ServerState.AWAITING_MASKED_INPUTS,
    ),
    "one before the upload, one after it": (ServerState.AWAITING_MASKED_INPUTS, ServerState.AWAITING_UNMASKING_SHARES),
}


PLACES: tuple[Place, ...] = tuple(product(SecurityMode, Topology))
GRID = [
    pytest.param(
        case,
        place,
        dropouts,
        id=f"{name}-{'-'.join(place)}-{way}",
        marks=() if at == (number + turn) % len(PLACES) else pytest.mark.long,
    )
    for number, (name, case) in enumerate(CASES.items())
    for turn, (way, dropouts) in enumerate(DROPOUTS.items())
    for at, place in enumerate(PLACES)
]


def session_of(
    decoder: LinearDecoder[Any],
    update_of: Callable[[ClientId], Update],
    *,
    place: Place = (SecurityMode.ACTIVE, Topology.FULL),
    late: int = 0,
    capacity: int | None = None,
) -> InsecurePairwiseSession:
    """Start a session whose clients require the capacity of their decoder, or another one."""
    mode, topology = place
    setup = SessionSetup(
        population=POPULATIONS[topology],
        mode=mode,
        topology=topology,
        late=late,
        dropped=2 - late,
        layout=decoder.layout,
    )
    session = InsecurePairwiseSession(
        setup, payload_of=lambda client: decoder.encode(update_of(client), InsecureSeededCoins(client.encode()))
    )
    granted = decoder.capacity if capacity is None else capacity
    session.clients = {client: session.enrol(client, capacity=granted) for client in session.client_ids}
    return session


def play(session: InsecurePairwiseSession, dropouts: tuple[ServerState, ...] = ()) -> tuple[Aggregate, list[ClientId]]:
    """Run to the end, with one dropout in each of the states; return the sum and its clients."""
    contributors = list(session.client_ids)
    for position, state in enumerate(dropouts):
        session.reach(state)
        session.drop(session.client_ids[3 * position])
        if state is not ServerState.AWAITING_UNMASKING_SHARES:
            contributors.remove(session.client_ids[3 * position])
    total = session.finish()
    assert not session.errors
    assert not session.refusals
    return total, contributors


def same_trees(one: Any, other: Any) -> bool:
    if hasattr(one, "keys"):
        return one.keys() == other.keys() and all(same_trees(one[name], other[name]) for name in one)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize(("case", "place", "dropouts"), GRID)
def test_the_server_decodes_what_it_would_decode_from_payloads_in_the_clear(
    case: Case, place: Place, dropouts: tuple[ServerState, ...]
) -> None:
    late = dropouts.count(ServerState.AWAITING_KEY_ADVERTISEMENTS)
    session = session_of(case.decoder, case.update_of, place=place, late=late)
    total, contributors = play(session, dropouts)
    ideal = session.sum_of(contributors)
    assert same_sum(total, ideal)
    assert (
        total.contributors
        == len(contributors)
        == POPULATIONS[place[1]] - len(dropouts) + dropouts.count(ServerState.AWAITING_UNMASKING_SHARES)
    )
    assert same_trees(case.decoder.decode(total), case.decoder.decode(ideal))


def test_clients_and_server_need_nothing_in_common_but_the_broadcast() -> None:
    broadcast = encode_parameters(mixed_model())
    server = decode_parameters(broadcast)
    session = session_of(server, tensors)
    session.payloads = {
        client: decode_parameters(broadcast).encode(tensors(client), InsecureSeededCoins(client.encode()))
        for client in session.client_ids
    }
    session.clients = {client: session.enrol(client, capacity=server.capacity) for client in session.client_ids}
    total, contributors = play(session)
    mean = server.mean(total)
    expected = np.mean([tensors(client)["conv.bias"] for client in contributors], axis=0)
    assert np.abs(mean["conv.bias"] - expected).max() <= 2.0**-21


def test_the_sum_of_one_round_calibrates_the_next_and_an_update_of_the_old_epoch_counts_as_zeros() -> None:
    first = mixed_model()
    total, _ = play(session_of(first, tensors))
    second = mixed_model(epoch=1, calibration=Calibration(CalibrationSource.PREVIOUS_AGGREGATE, first.mean(total)))
    session = session_of(second, tensors)
    stale = session.client_ids[0]
    session.payloads[stale] = first.encode(tensors(stale), InsecureSeededCoins(b"stale"))
    session.clients[stale] = session.enrol(stale, capacity=second.capacity)
    refreshed = session.finish()
    assert not session.errors
    assert session.refusals == []
    fresh = session.sum_of(session.client_ids[1:])
    assert refreshed.contributors == fresh.contributors + 1
    for found, expected in zip(refreshed.values, fresh.values, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(Misuse, match="does not have the public parameters of epoch 1"):
        second.require_layout(first.layout)
    with pytest.raises(Misuse):
        first.decode(refreshed)


@pytest.mark.parametrize("mode", SecurityMode)
def test_a_protocol_of_sums_refuses_indices(mode: SecurityMode) -> None:
    decoder = ProductQuantization(shape=SHAPE, codebooks=(Codebook(np.eye(4, 2)),))
    authority, coins = bytes(31) + b"1" if mode is SecurityMode.ACTIVE else bytes(32), InsecureSeededCoins(b"plan")
    place: dict[str, Any] = {"mode": mode, "topology": Topology.FULL, "authority": authority}
    with pytest.raises(InvalidParameters, match="contains indices"):
        plan_of(decoder.layout, coins, population=8, corrupted=1, dropped=1, **place)
