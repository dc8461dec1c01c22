"""Public parameters from an untrusted party: the memory that a short message can make its reader allocate."""

import struct
import tracemalloc
from collections.abc import Callable
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
import pytest

from secagg.compression.common import PublicStream
from secagg.compression.count_sketch import CountSketch
from secagg.compression.custom import CustomScheme
from secagg.compression.fixed_point import FixedPoint, Identity
from secagg.compression.model_update import ModelUpdate, TensorScheme, decode_parameters, encode_parameters
from secagg.compression.model_update.public_parameters import MOST_FILLED, MOST_SIGNS
from secagg.compression.model_update.public_parameters import _Tag as Tag  # pyright: ignore[reportPrivateUsage]
from secagg.compression.peak import MOST_SUMMED_PLACES, LevelCode, PeakCode, level_votes
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import JoinedRotation, RandomRotation, Sketch
from secagg.compression.scalar_quantization import DitheredQuantization, ScalarQuantization
from secagg.contract import LinearDecoder
from secagg.errors import MalformedMessage, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

VALUES = 1 << 24
SHAPE = (VALUES >> 8, 1 << 8)
SEED = bytes(range(32))
MOST = 1 << 20
"""Maximum memory for reading, and for refusing an update: a sixteenth of a byte per value."""
Scheme = LinearDecoder[Any]


def place(name: str = "w", shape: tuple[int, ...] = SHAPE) -> PublicStream:
    return PublicStream(seed=SEED, round_number=0, tensor_name=name, shape=shape)


def fixed(length: int) -> FixedPoint:
    return FixedPoint(length=length, clip=1.0, fraction_bits=8, modulus_bits=24)


def turned(name: str = "w", values: int = VALUES) -> JoinedRotation:
    return JoinedRotation(stream=place(name, (values,)), sizes=(values - 1, 1), scales=(2.0, 3.0))


def custom(**given: Any) -> FixedPoint:
    return fixed(given["values"])


def custom_scheme() -> CustomScheme:
    return CustomScheme(name="x:Y", values=VALUES, cohort=4, seed=SEED, epoch=0, factory=custom)


SCHEMES: dict[Tag, Callable[[], Scheme]] = {
    Tag.FIXED_POINT: lambda: fixed(VALUES),
    Tag.IDENTITY: lambda: Identity(length=VALUES, bound=1, modulus_bits=20),
    Tag.SCALAR_QUANTIZATION: lambda: ScalarQuantization(shape=SHAPE, bits=8, modulus_bits=16, scales=(0.5,)),
    Tag.DITHERED_QUANTIZATION: lambda: DitheredQuantization(shape=SHAPE, bits=4, modulus_bits=12, scale=0.5),
    Tag.PRODUCT_QUANTIZATION: lambda: ProductQuantization(shape=SHAPE, codebooks=(Codebook(np.eye(4)),)),
    Tag.RANDOM_PRUNING: lambda: RandomPruning(stream=place(), sparsity=Fraction(1, 4), inner=fixed(3 * VALUES // 4)),
    Tag.ROTATION: lambda: RandomRotation(stream=place(), block_size=1 << 16, inner=fixed(VALUES)),
    Tag.COUNT_SKETCH: lambda: CountSketch(length=VALUES, rows=2, columns=VALUES // 2, seed=SEED, inner=fixed(VALUES)),
    Tag.LEVELS: lambda: LevelCode(rotation=turned(), levels=4),
    Tag.PEAK: lambda: PeakCode(rotation=turned(), places=16),
    Tag.SKETCH: lambda: Sketch(rotation=turned(), kept=VALUES // 2, bits=1, modulus_bits=5),
    Tag.CUSTOM: custom_scheme,
    Tag.VOTES: lambda: level_votes(SHAPE[0]),
}


def broadcast(scheme: Scheme) -> bytes:
    return encode_parameters(ModelUpdate(tensors=(TensorScheme(name="w", shape=SHAPE, scheme=scheme),)))


def allocated(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_every_scheme_that_travels_is_in_the_table() -> None:
    assert set(SCHEMES) == set(Tag)


@pytest.mark.parametrize("tag", SCHEMES, ids=lambda tag: tag.name.lower())
def test_a_short_message_allocates_nothing_by_the_numbers_in_it(tag: Tag) -> None:
    message = broadcast(SCHEMES[tag]())
    assert len(message) < 200
    # The scheme follows the tensor's name and shape, and begins with its tag.
    assert message[len(broadcast_head()) :][0] == tag

    def read() -> None:
        update = decode_parameters(message, custom={"x:Y": custom})
        assert update.capacity > 0
        has_table = tag in {Tag.LEVELS, Tag.PEAK, Tag.PRODUCT_QUANTIZATION, Tag.VOTES}
        assert len(update.tables) == has_table
        # The client's own model is small, which is checked before anything is allocated for the large one.
        with pytest.raises(Misuse, match="expected an array"):
            update.encode({"w": np.zeros((2, 2), np.float32)}, InsecureSeededCoins(b"coins"))

    read()
    # Votes have a codebook of a fixed size, once in a message.
    assert allocated(read) < (3 * MOST if tag is Tag.VOTES else MOST)


def broadcast_head() -> bytes:
    message = broadcast(fixed(VALUES))
    return message[: message.index(struct.pack(f">{len(SHAPE)}Q", *SHAPE)) + 8 * len(SHAPE)]


def test_a_table_larger_than_what_it_sketches_is_refused_where_it_is_read() -> None:
    """Otherwise a client would allocate the table for its small tensor."""

    def message(length: int) -> bytes:
        scheme = CountSketch(length=length, rows=2, columns=MOST_FILLED, seed=SEED, inner=fixed(2 * MOST_FILLED))
        return encode_parameters(ModelUpdate(tensors=(TensorScheme(name="w", shape=(length,), scheme=scheme),)))

    assert decode_parameters(message(MOST_FILLED)).names == ("w",)
    with pytest.raises(MalformedMessage, match="saves nothing"):
        decode_parameters(message(MOST_FILLED - 1))


def test_a_message_has_votes_once() -> None:
    def message(count: int) -> bytes:
        tensors = [TensorScheme(name=f"w{at}", shape=(3, 256), scheme=level_votes(3)) for at in range(count)]
        return encode_parameters(ModelUpdate(tensors=tuple(tensors)))

    assert len(decode_parameters(message(1)).tensors) == 1
    with pytest.raises(MalformedMessage, match="votes for all lengths"):
        decode_parameters(message(2))


def test_many_peak_codes_do_not_take_a_table_each() -> None:
    def message(places: list[int]) -> bytes:
        names = [f"w{number}" for number in range(len(places))]
        tensors = tuple(
            TensorScheme(name=name, shape=(8,), scheme=PeakCode(rotation=turned(name, 8), places=one))
            for name, one in zip(names, places, strict=True)
        )
        return encode_parameters(ModelUpdate(tensors=tensors))

    most = MOST_SUMMED_PLACES
    for places in ([most], [most // 2] * 4, [16] * 20, [most, most + 1, most + 1]):
        assert sum(2 * one**2 for one in places if one <= most) <= MOST_SIGNS
        assert len(decode_parameters(message(places)).tensors) == len(places)
    for places in ([most, 1], [most - 1] * 2, [most // 2] * 5):
        with pytest.raises(MalformedMessage, match="peak codes take too much memory"):
            decode_parameters(message(places))


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_one_large_tensor_beside_small_ones_allocates_nothing_either(*, first: bool) -> None:
    names = ["large", "small"] if first else ["small", "large"]
    shapes = {"large": SHAPE, "small": (2,)}
    tensors = tuple(TensorScheme(name=name, shape=shapes[name], scheme=fixed(prod(shapes[name]))) for name in names)
    update = decode_parameters(encode_parameters(ModelUpdate(tensors=tensors)))

    def encode() -> None:
        with pytest.raises(Misuse, match=r"^tensor 'large'"):
            update.encode({name: np.zeros(2) for name in names}, InsecureSeededCoins(b"coins"))

    encode()
    assert allocated(encode) < MOST
