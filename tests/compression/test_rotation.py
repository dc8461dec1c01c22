"""The random rotation: it is orthonormal and linear, its signs are golden, and one scale then fits every client."""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression import rotation as rotation_module
from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation, padded_size
from secagg.compression.scalar_quantization import ScalarQuantization, calibrate
from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, LinearDecoder, Payload, ideal_aggregate
from secagg.contract.layout import Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation, InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

Tensor = npt.NDArray[np.floating[Any]]
COINS = InsecureSeededCoins(b"rounding to nearest draws none of them")
SEED = bytes(range(32))
FLOATS = (np.float16, np.float32, np.float64)


def stream(**changes: Any) -> PublicStream:
    parameters: dict[str, Any] = {"seed": SEED, "round_number": 5, "tensor_name": "fc.weight", "shape": (3, 5)}
    return PublicStream(**(parameters | changes))


def scheme(inner: LinearDecoder[Any] | None = None, block_size: int = 4, **changes: Any) -> RandomRotation:
    place = stream(**changes)
    length = padded_size(place.size, block_size)
    wide = FixedPoint(length=length, clip=64.0, fraction_bits=20, modulus_bits=40)
    return RandomRotation(stream=place, block_size=block_size, inner=inner or wide)


def hadamard(size: int) -> npt.NDArray[np.float64]:
    """Return the Walsh-Hadamard matrix: the sign of an entry is the parity of the common bits of row and column."""
    return np.array([[(-1.0) ** (row & column).bit_count() for column in range(size)] for row in range(size)])


# The inner scheme's error keeps its norm when rotated back, and a coordinate is at most the norm.
FIXED = Candidate(
    name="rotation_of_fixed_point",
    make=scheme,
    updates=st.one_of([arrays(kind, (3, 5), elements={"min_value": -8.0, "max_value": 8.0}) for kind in FLOATS]),
    error=2.0**-21 * 2 + 2.0**-18,
    extremes=[scheme().rotate_back(np.full(16, sign * 64.0)) for sign in (1.0, -1.0)],
    bad_updates={"a flat update": np.zeros(15), "integers": np.zeros((3, 5), dtype=np.int64)},
    others={
        "another seed": lambda: scheme(seed=bytes(32)),
        "another round": lambda: scheme(round_number=6),
        "another tensor": lambda: scheme(tensor_name="fc.weights"),
        "another shape": lambda: scheme(shape=(5, 3)),
        "larger blocks": lambda: scheme(block_size=8),
        "another inner scheme": lambda: scheme(FixedPoint(length=16, clip=64.0, fraction_bits=19, modulus_bits=40)),
    },
    payload_bytes=80,
)


def quantized() -> RandomRotation:
    inner = ScalarQuantization(shape=(16,), bits=8, modulus_bits=16, scales=(0.25,), zero_points=(2,))
    return scheme(inner)


# In a block of four, a value of at most 4 becomes one of at most 8, which the codes hold.
QUANTIZED = Candidate(
    name="rotation_of_scalar_quantization",
    make=quantized,
    updates=arrays(np.float32, (3, 5), elements=st.floats(-4.0, 4.0, width=32)),
    error=0.125 * 2 * 1.001,
    extremes=[scheme().rotate_back(np.full(16, sign * 64.0)) for sign in (1.0, -1.0)],
    others={"fixed point inside": scheme},
    ulps=64.0,
    tight_capacity=True,
)


@pytest.mark.parametrize(("candidate", "law"), cases(FIXED, QUANTIZED), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


@pytest.mark.parametrize("block_size", [2, 4, 8, 32])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 31, 100])
def test_it_is_the_matrix_that_its_definition_says(block_size: int, size: int) -> None:
    decoder = scheme(block_size=block_size, shape=(size,))
    padded = -(-size // block_size) * block_size
    dimensions = size.to_bytes(8, "big")
    parts = [bytes(4), SEED, (5).to_bytes(8, "big"), b"fc.weight", dimensions]
    hashed = b"secagg/1/rotation-signs" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    bits = int.from_bytes(hashlib.shake_256(hashed).digest(-(-padded // 8)), "little")
    signs = np.array([-1.0 if bits >> position & 1 else 1.0 for position in range(padded)])
    update = np.sin(np.arange(size) ** 2 + 1.0)
    filled = np.concatenate([update, np.zeros(padded - size)])
    expected = hadamard(block_size) @ (filled * signs).reshape(block_size, -1) / math.sqrt(block_size)
    assert np.allclose(decoder.rotate(update), expected.reshape(-1), rtol=0, atol=1e-14)
    assert np.allclose(decoder.rotate_back(decoder.rotate(update)), update, rtol=0, atol=1e-14)


@pytest.mark.parametrize("block", [1, 3, 64, 1 << 16])
def test_the_columns_that_are_transformed_together_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = scheme(block_size=16, shape=(10, 33))
    update = np.sin(np.arange(330.0) ** 2).reshape(10, 33)
    whole = decoder.rotate(update)
    monkeypatch.setattr(rotation_module, "_ELEMENTS", block)
    # Matrix products of another width may be summed in another order.
    assert np.allclose(decoder.rotate(update), whole, rtol=0, atol=1e-14)


def test_float32_is_rotated_in_float32_and_float16_too() -> None:
    decoder = scheme()
    for narrow, wide in ((np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)):
        rotated = decoder.rotate(np.ones((3, 5), dtype=narrow))
        assert rotated.dtype == wide
        assert decoder.rotate_back(rotated).dtype == wide


@pytest.mark.parametrize("block_size", [64, 1024, 4096])
def test_a_single_large_coordinate_is_spread_over_its_block(block_size: int) -> None:
    one_hot = np.zeros(3 * block_size, dtype=np.float32)
    one_hot[block_size + 5] = 7.0
    rotated = scheme(block_size=block_size, shape=one_hot.shape).rotate(one_hot)
    assert np.abs(one_hot).max() / one_hot.std() > math.sqrt(block_size)
    largest = np.abs(rotated).max()
    assert largest == pytest.approx(7.0 / math.sqrt(block_size), rel=1e-5)
    assert largest / rotated.std() == pytest.approx(math.sqrt(3), rel=0.01)


def test_one_scale_fits_every_client() -> None:
    # Each client's norm is in different coordinates, and so is the public sample's.
    size, clients = 4096, 8
    updates = np.zeros((clients, size), dtype=np.float32)
    for client in range(clients):
        updates[client, 100 * client : 100 * client + 4] = (1.0, -2.0, 3.0, -1.0)
    sample = np.zeros(size, dtype=np.float32)
    sample[3000:3015] = 1.0
    before = scheme(block_size=1024, shape=(size,))
    plain = calibrate(sample, bits=8, modulus_bits=16)
    turned = calibrate(2 * before.rotate(sample), bits=8, modulus_bits=16)
    decoder = scheme(turned, block_size=1024, shape=(size,))
    errors = list[float]()
    for encoder in (plain, decoder):
        payloads = [encoder.encode(update, COINS) for update in updates]
        total = encoder.decode(ideal_aggregate(encoder.layout, payloads))
        errors.append(float(np.linalg.norm(total - updates.sum(axis=0)) / np.linalg.norm(updates.sum(axis=0))))
    assert errors[0] > 0.5
    assert errors[1] < 0.05


@pytest.mark.parametrize("bad", [0, 1, 3, 1 << 17, 4.0, -4, True])
def test_a_block_is_a_power_of_two(bad: Any) -> None:
    with pytest.raises(InvalidParameters, match="block_size"):
        padded_size(100, bad)
    with pytest.raises(InvalidParameters, match="block_size"):
        RandomRotation(stream=stream(), block_size=bad, inner=scheme().inner)


class Constant:
    """An inner scheme that encodes zeros and decodes a given number of values."""

    capacity = 1

    def __init__(self, length: int, decoded: int) -> None:
        self.layout = Layout((RingSegment(8, length),))
        self.decoded = decoded

    def encode(self, update: Tensor, coins: Coins) -> Payload:  # noqa: ARG002
        return Payload(self.layout, (self.layout.segments[0].ring.zeros(self.layout.segments[0].length),))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:  # noqa: ARG002
        return np.ones(self.decoded)


def pruned(inner: LinearDecoder[Any]) -> RandomPruning:
    return RandomPruning(stream=stream(), sparsity="0.2", inner=inner)


@pytest.mark.parametrize(("wrap", "length"), [(scheme, 16), (pruned, 12)])
def test_an_inner_scheme_of_another_length_is_refused(
    wrap: Callable[[LinearDecoder[Any]], LinearDecoder[Tensor]], length: int
) -> None:
    shorter = wrap(FixedPoint(length=length - 1, clip=1.0, fraction_bits=8, modulus_bits=16))
    with pytest.raises(Misuse):
        shorter.encode(np.zeros((3, 5)), COINS)
    decoder = wrap(Constant(length, 8))
    total = ideal_aggregate(decoder.layout, [decoder.encode(np.zeros((3, 5)), COINS)])
    with pytest.raises(ContractViolation, match=str(length)):
        decoder.decode(total)


def test_what_the_inner_scheme_decoded_is_left_alone() -> None:
    decoder, rotated = scheme(), np.arange(16.0)
    rotated.flags.writeable = False
    decoder.rotate_back(rotated)
    assert rotated.tolist() == list(range(16))


def test_the_version_is_pinned() -> None:
    assert scheme().layout.version.hex() == "8cf35438d3d13607cc602566991456b511f4fdaa70bd0609ae882abe1e2ccecc"
