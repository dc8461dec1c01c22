"""Every sum within a capacity is finite: a coarse scale reduces the capacity, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secagg.compression.common import PublicStream
from secagg.compression.peak import PeakCode
from secagg.compression.rotation import JoinedRotation, RandomRotation, RoundedRotation, Sketch
from secagg.compression.scalar_quantization import DitheredQuantization, ScalarQuantization
from secagg.contract import Aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters

LENGTH = 64
GREATEST = float(np.finfo(np.float32).max)


def scalar(scale: float, *zero_points: int, bits: int = 8, **changes: Any) -> ScalarQuantization:
    scales = (scale,) * max(1, len(zero_points))
    shape = (len(scales), LENGTH // len(scales))
    return ScalarQuantization(
        shape=shape, bits=bits, modulus_bits=24, scales=scales, zero_points=zero_points, **changes
    )


def dithered(scale: float) -> DitheredQuantization:
    return DitheredQuantization(shape=(LENGTH,), bits=8, modulus_bits=24, scale=scale)


def flat(scale: float, modulus_bits: int = 24) -> ScalarQuantization:
    return ScalarQuantization(shape=(LENGTH,), bits=8, modulus_bits=modulus_bits, scales=(scale,))


def stream() -> PublicStream:
    return PublicStream(seed=bytes(32), round_number=0, tensor_name="w", shape=(LENGTH,))


def joined(scale: float = 1.0) -> JoinedRotation:
    return JoinedRotation(stream=stream(), sizes=(LENGTH,), scales=(scale,), block_size=LENGTH)


def summed(decoder: Any, update: Any, weight: int) -> Aggregate:
    """Return the sum of ``weight`` clients that all send this update."""
    payload = decoder.encode(update, SystemCoins())
    rings = [segment.ring for segment in decoder.layout.require_rings()]
    values = [
        ((value.astype(object) * weight) % (1 << ring.modulus_bits)).astype(ring.word)
        for ring, value in zip(rings, payload.values, strict=True)
    ]
    return Aggregate(decoder.layout, tuple(values), weight)


@pytest.mark.parametrize(
    "decoder",
    [
        scalar(1e33),
        scalar(2e36),
        scalar(1e33, -128, 127),
        scalar(1e33, wrapping_weight=1 << 20),
        dithered(1e33),
        dithered(2e36),
        RandomRotation(stream=stream(), block_size=LENGTH, inner=flat(1e27, 48)),
        Sketch(rotation=joined(2.0**20), kept=1, bits=1, modulus_bits=32, unit=2.0**100),
        RoundedRotation(rotation=joined(2.0**24), clip=2.0**100, l2_bound=1000, modulus_bits=24, clients=1000),
    ],
    ids=repr,
)
def test_the_largest_updates_within_the_capacity_have_a_finite_sum(decoder: Any) -> None:
    everywhere = np.full(getattr(decoder, "shape", (LENGTH,)), GREATEST, np.float32)
    one = np.zeros_like(everywhere)
    one.flat[0] = GREATEST
    assert decoder.capacity >= 1
    for update in (everywhere, -everywhere, one, -one):
        sums = decoder.decode(summed(decoder, update, decoder.capacity))
        assert np.isfinite(sums).all()


def test_a_histogram_of_peaks_within_the_capacity_decodes_to_float32() -> None:
    code = PeakCode(rotation=joined(2.0**20), places=4, unit=2.0**100)
    counts = np.zeros((code.blocks, 2 * code.places), np.uint64)
    counts[:, 0] = code.capacity
    sums = code.decode(Aggregate(code.layout, (counts,), code.capacity))
    assert np.isfinite(sums).all()
    assert code.capacity < 1 << 24


@pytest.mark.parametrize("make", [scalar, dithered])
@pytest.mark.parametrize("scale", [3e38, 2.7e36])
def test_a_scale_that_decodes_one_update_beyond_float32_is_refused(make: Any, scale: float) -> None:
    with pytest.raises(InvalidParameters, match="beyond float32"):
        make(scale)


def test_ordinary_scales_keep_their_capacity() -> None:
    assert scalar(0.01).capacity == scalar(0.01).margin
    assert RandomRotation(stream=stream(), block_size=LENGTH, inner=flat(0.01)).capacity == flat(0.01).margin
