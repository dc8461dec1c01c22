"""Sums of codewords instead of histograms: the same floats, bit for bit, from a tensor and from a whole model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.common import PublicStream
from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    Codebooks,
    ModelUpdate,
    Plain,
    Quantized,
    TensorScheme,
    UpdatePlan,
)
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation
from secagg.conformance.sums import summed_aggregate
from secagg.contract import Aggregate, LinearDecoder, Payload, ideal_aggregate, public_parameters_digest
from secagg.contract.codewords import CodewordTable, Tables, require_summed, summed_layout
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins

COINS = InsecureSeededCoins(b"nothing is drawn")
SEED = bytes(range(32))
CORNERS = Codebook(np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [0.5, -0.5]]))
LARGEST = 2**24 - 1
"""Maximum number of steps of a codebook's value."""
Tensor = npt.NDArray[Any]
Update = dict[str, Tensor]


def uniform(shape: tuple[int, ...], name: bytes = b"") -> npt.NDArray[np.float32]:
    """Return numbers in [-1, 1) that are the same in every run."""
    drawn = np.frombuffer(hashlib.shake_256(name).digest(4 * int(np.prod(shape))), dtype="<i4")
    return np.ldexp(drawn.astype(np.float32), -31).reshape(shape)


def quantizer(shape: tuple[int, ...] = (3, 4), *codebooks: Codebook) -> ProductQuantization:
    return ProductQuantization(shape=shape, codebooks=codebooks or (CORNERS,))


def all_of(decoder: ProductQuantization, codeword: int, weight: int) -> Aggregate:
    """Return the aggregate in which all clients chose one codeword for every block and stage."""
    histograms = list[npt.NDArray[np.uint64]]()
    for codebook in decoder.codebooks:
        histogram = np.zeros((decoder.blocks, codebook.codewords), dtype=np.uint64)
        histogram[:, codeword] = weight
        histograms.append(histogram)
    return Aggregate(decoder.layout, tuple(histograms), weight)


@st.composite
def codebooks(draw: st.DrawFn, width: int = 3) -> Codebook:
    exponent = draw(st.sampled_from([-149, -20, 0, 3, 126]))
    values = draw(arrays(np.float64, (draw(st.integers(2, 5)), width), elements=st.floats(-1.0, 1.0)))
    return Codebook(np.ldexp(values, exponent))


@given(codebooks())
def test_every_value_of_a_codebook_is_its_steps_times_a_power_of_two(codebook: Codebook) -> None:
    steps, step = codebook.steps, Fraction(2) ** codebook.step_exponent
    assert steps.dtype == np.int64
    assert int(np.abs(steps).max()) <= LARGEST
    values: list[float] = codebook.values.reshape(-1).tolist()
    assert [int(count) * step for count in steps.reshape(-1)] == [Fraction(value) for value in values]
    assert codebook.from_steps(steps).tolist() == codebook.values.tolist()


def test_the_largest_value_uses_all_bits_of_its_grid() -> None:
    just_below = float(np.nextafter(np.float32(1), np.float32(0)))
    for scale in (2.0**-125, 1.0, 2.0**127):
        codebook = Codebook(np.array([[just_below * scale], [-just_below * scale]]))
        assert codebook.steps.tolist() == [[LARGEST], [-LARGEST]]
    assert Codebook(np.zeros((2, 2))).steps.tolist() == [[0, 0], [0, 0]]


def test_stages_are_added_in_the_order_of_the_histograms() -> None:
    # In float64, the result depends on whether 2^53 is added first or last.
    stages = [Codebook(np.array([[value], [0.0]])) for value in (2.0**53, 1.0, 1.0, -(2.0**53))]
    for order in ((0, 1, 2, 3), (1, 2, 0, 3), (0, 3, 1, 2)):
        decoder = quantizer((1, 1), *(stages[at] for at in order))
        total = all_of(decoder, 0, 1)
        decoded = decoder.decode_summed(summed_aggregate(total, decoder.tables, 1))
        assert decoded.tobytes() == decoder.decode(total).tobytes()
        assert decoded.tolist() == [[0.0 if order == (0, 1, 2, 3) else 2.0]]


@pytest.mark.parametrize("weight", [1, 2, 127, 128, 2**29 - 1, 2**29])
def test_a_ring_has_room_for_everybody_at_either_end_and_no_bit_more(weight: int) -> None:
    ends = Codebook(np.array([[1.0 - 2.0**-24], [-1.0 + 2.0**-24], [0.0]]))
    decoder = quantizer((1, 2), ends)
    (segment,) = summed_layout(decoder.layout, decoder.tables, weight).require_rings()
    assert segment == RingSegment((weight * LARGEST).bit_length() + 1, 2)
    for codeword, sign in ((0, 1), (1, -1)):
        total = all_of(decoder, codeword, weight)
        summed = summed_aggregate(total, decoder.tables, weight)
        lifted = segment.ring.lift(summed.values[0])
        assert lifted.tolist() == [sign * weight * LARGEST] * 2
        assert decoder.decode_summed(summed).tolist() == [[sign * weight * (1.0 - 2.0**-24)] * 2]
    with pytest.raises(CapacityExceeded):
        Ring(segment.modulus_bits - 1).from_integers([weight * LARGEST])


def test_one_client_more_than_the_rings_were_made_for_is_refused() -> None:
    decoder = quantizer((1, 2), Codebook(np.array([[0.5], [-0.5]])))
    # A half is 2^23 steps of 2^-24, and 4 more bits hold at most seven clients' halves.
    bits = 27
    summed = summed_layout(decoder.layout, decoder.tables, 7)
    assert decoder.tables[0][0].largest == 2**23
    assert summed.segments == (RingSegment(bits, 2),)
    for weight, refused in ((7, False), (8, True)):
        aggregate = Aggregate(summed, (Ring(bits).zeros(2),), weight)
        if refused:
            with pytest.raises(CapacityExceeded, match="needs 28 bits, but a segment has 27"):
                decoder.decode_summed(aggregate)
        else:
            assert not decoder.decode_summed(aggregate).any()


SHAPES = {
    "conv.weight": (16, 4, 3, 3),
    "conv.bias": (16,),
    "norm.weight": (16,),
    "fc.weight": (24, 32),
    "fc.bias": (24,),
    "gate.weight": (8, 16),
    "head.weight": (10, 24),
    "temperature": (),
}


def planned(epoch: int = 0) -> ModelUpdate:
    """Return a plan of a small model: two stages for a convolution, one for a layer, biases in fixed point."""
    plan = UpdatePlan(
        shapes=SHAPES,
        plain=Plain(clip=4.0, fraction_bits=12, modulus_bits=32),
        compressed=Codebooks(block_size=4, codewords=16),
        chosen={
            "conv.weight": Codebooks(block_size=9, codewords=16, stages=2),
            "gate.weight": Quantized(bits=6, modulus_bits=16),
            "head.weight": Codebooks(block_size=3, codewords=8, stages=2),
        },
        seed=SEED,
    )
    sample = {name: uniform(shape, name.encode()) for name, shape in SHAPES.items()}
    return plan.parameters(epoch=epoch, calibration=Calibration(CalibrationSource.PUBLIC_BATCH, sample))


MODEL = planned()


def client(number: int) -> Update:
    return {name: uniform(shape, b"%d %s" % (number, name.encode())) for name, shape in SHAPES.items()}


def aggregated(decoder: ModelUpdate, clients: int, weights: list[int] | None = None) -> Aggregate:
    payloads = [decoder.encode(client(number), COINS) for number in range(clients)]
    return ideal_aggregate(decoder.layout, payloads, weights)


def require_same(left: Update, right: Update) -> None:
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert tensor.shape == right[name].shape
        assert tensor.dtype == right[name].dtype
        assert tensor.tobytes() == right[name].tobytes(), name


def test_the_tables_of_a_model_stand_in_the_order_of_its_blocks() -> None:
    assert MODEL.layout.segments == (
        IndexSegment(16, 64 + 64 + 192),
        RingSegment(32, 16 + 16 + 24 + 1),
        RingSegment(16, 8 * 16),
        IndexSegment(8, 80 + 80),
    )
    schemes = {tensor.name: tensor.scheme for tensor in MODEL.tensors}
    expected = [("conv.weight", 0), ("conv.weight", 1), ("fc.weight", 0)], [("head.weight", 0), ("head.weight", 1)]
    for tables, places in zip(MODEL.tables, expected, strict=True):
        assert len(tables) == len(places)
        for table, (name, stage) in zip(tables, places, strict=True):
            scheme = schemes[name]
            assert isinstance(scheme, ProductQuantization)
            assert table.encode() == scheme.tables[stage][0].encode()


def test_a_summed_layout_of_a_model_has_a_ring_for_each_codebook_and_keeps_the_others() -> None:
    summed = summed_layout(MODEL.layout, MODEL.tables, 100)
    lengths = [64 * 9, 64 * 9, 192 * 4, 57, 128, 80 * 3, 80 * 3]
    rings = summed.require_rings()
    assert [segment.length for segment in rings] == lengths
    assert rings[3:5] == (RingSegment(32, 57), RingSegment(16, 128))
    tables = [table for some in MODEL.tables for table in some]
    bits = [segment.modulus_bits for segment in (*rings[:3], *rings[5:])]
    assert bits == [(100 * table.largest).bit_length() + 1 for table in tables]
    # The largest learned value is in the upper half of 24 bits.
    assert all(24 + 6 < width <= 24 + 8 for width in bits)


@pytest.mark.parametrize("weights", [None, [1, 1, 1], [40, 1, 7]])
def test_a_model_decodes_sums_to_the_bits_that_histograms_decode_to(weights: list[int] | None) -> None:
    total = aggregated(MODEL, 3, weights)
    expected = MODEL.decode(total)
    assert all(tensor.any() for tensor in expected.values())
    for largest in (total.contributors, 1000):
        summed = summed_aggregate(total, MODEL.tables, largest)
        received = Aggregate.decode(summed.encode(), summed.layout)
        require_same(MODEL.decode_summed(received), expected)
        require_same(MODEL.mean(received), MODEL.mean(total))


def test_noise_on_released_sums_is_decoded_as_steps_of_the_codebook_that_it_was_added_to() -> None:
    total = aggregated(MODEL, 2)
    summed = summed_aggregate(total, MODEL.tables, 1000)
    rings = summed.layout.require_rings()
    plain = MODEL.decode(total)
    for at, name in ((0, "conv.weight"), (2, "fc.weight"), (6, "head.weight")):
        values = list(summed.values)
        values[at] = rings[at].ring.add(values[at], rings[at].ring.from_integers(np.full(rings[at].length, -5)))
        noisy = MODEL.decode_summed(replace(summed, values=tuple(values)))
        scheme = next(tensor.scheme for tensor in MODEL.tensors if tensor.name == name)
        assert isinstance(scheme, ProductQuantization)
        stage = -1 if name == "head.weight" else 0
        step = 2.0 ** scheme.codebooks[stage].step_exponent
        assert np.allclose(noisy[name] - plain[name], -5 * step, rtol=1e-6, atol=0)
        require_same({**noisy, name: plain[name]}, plain)


def test_a_model_without_indices_has_no_tables_and_decodes_its_rings() -> None:
    scheme = FixedPoint(length=3, clip=1.0, fraction_bits=4, modulus_bits=16)
    decoder = ModelUpdate(tensors=(TensorScheme(name="bias", shape=(3,), scheme=scheme),))
    assert decoder.tables == ()
    update = {"bias": np.array([1.0, -0.5, 0.25])}
    total = ideal_aggregate(decoder.layout, [decoder.encode(update, COINS)], [4])
    summed = summed_aggregate(total, (), 9)
    assert summed.layout.segments == decoder.layout.segments
    require_same(decoder.decode_summed(summed), {"bias": np.array([4.0, -2.0, 1.0])})
    with pytest.raises(Misuse):
        decoder.decode_summed(total)


@dataclass(frozen=True)
class Signs:
    """A vector as indices of -1, 0 and 1, with its length in a ring before them: a custom scheme."""

    length: int

    @property
    def layout(self) -> Layout:
        segments = (IndexSegment(3, self.length), RingSegment(20, 1), IndexSegment(3, self.length))
        return Layout(segments, public_parameters_digest("signs", self.length.to_bytes(8, "big")))

    @property
    def capacity(self) -> int:
        return 1000

    def encode(self, update: Tensor, coins: Coins) -> Payload:  # noqa: ARG002
        indices = (np.sign(update) + 1).astype(np.uint8)
        return Payload(self.layout, (indices, Ring(20).from_integers([self.length]), indices[::-1].copy()))

    def decode(self, aggregate: Aggregate) -> Tensor:
        histogram: Any = aggregate.values[0]
        decoded: Tensor = (histogram[:, 2].astype(np.int64) - histogram[:, 0].astype(np.int64)).astype(np.float64)
        return decoded


class SummedSigns(Signs):
    """The same, for protocols that release sums."""

    @property
    def tables(self) -> Tables:
        entries = np.array([[-1], [0], [1]], dtype=np.int64)
        first, rest = CodewordTable(1, entries), CodewordTable(self.length - 1, entries)
        return ((first, rest), (CodewordTable(self.length, entries),))

    def decode_summed(self, aggregate: Aggregate) -> Tensor:
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
        rings = aggregate.layout.require_rings()
        parts = [rings[at].ring.lift(aggregate.values[at]) for at in (0, 1)]
        backwards = rings[3].ring.lift(aggregate.values[3])
        assert np.concatenate(parts).tolist() == backwards[::-1].tolist()
        return np.concatenate(parts).astype(np.float64)


def model_of(**schemes: LinearDecoder[Any]) -> ModelUpdate:
    return ModelUpdate(
        tensors=tuple(TensorScheme(name=name, shape=(3, 4), scheme=scheme) for name, scheme in schemes.items())
    )


def test_a_custom_scheme_with_several_tables_and_a_ring_is_merged_with_the_others() -> None:
    triple = Codebook(np.array([[0.0, 0.0], [1.0, 0.25], [-1.0, 0.0]]))
    decoder = model_of(a=quantizer((3, 4), triple), b=SummedSigns(12), c=SummedSigns(12), d=quantizer((3, 4), triple))
    assert decoder.layout.segments == (IndexSegment(3, 6 + 4 * 12 + 6), RingSegment(20, 2))
    assert [table.blocks for table in decoder.tables[0]] == [6, 1, 11, 12, 1, 11, 12, 6]
    updates = [{name: uniform((3, 4), b"%d%s" % (number, name.encode())) for name in "abcd"} for number in range(3)]
    total = ideal_aggregate(decoder.layout, [decoder.encode(update, COINS) for update in updates], [1, 5, 2])
    summed = summed_aggregate(total, decoder.tables, 8)
    require_same(decoder.decode_summed(summed), decoder.decode(total))


def stream(shape: tuple[int, ...]) -> PublicStream:
    return PublicStream(seed=SEED, round_number=0, tensor_name="odd", shape=shape)


@pytest.mark.parametrize(
    "scheme",
    [
        Signs(12),
        RandomPruning(stream=stream((3, 4)), sparsity="0.5", inner=SummedSigns(6)),
        RandomRotation(stream=stream((3, 4)), block_size=4, inner=SummedSigns(12)),
    ],
    ids=lambda scheme: type(scheme).__name__,
)
def test_indices_that_only_histograms_decode_are_refused_by_the_name_of_the_tensor(scheme: LinearDecoder[Any]) -> None:
    decoder = model_of(fine=quantizer(), odd=scheme)
    with pytest.raises(InvalidParameters, match=f"tensor 'odd': its {type(scheme).__name__} sends indices"):
        _ = decoder.tables
    update = {"fine": np.ones((3, 4)), "odd": np.ones((3, 4))}
    total = ideal_aggregate(decoder.layout, [decoder.encode(update, COINS)])
    assert decoder.decode(total)["fine"].all()
    with pytest.raises(InvalidParameters, match="tensor 'odd'"):
        decoder.decode_summed(total)


def test_a_sketch_has_no_indices_in_it() -> None:
    with pytest.raises(InvalidParameters, match="contains indices"):
        CountSketch(length=12, rows=1, columns=8, seed=SEED, inner=SummedSigns(8))


def test_tables_that_do_not_fit_are_refused_by_the_name_of_the_tensor() -> None:
    class Short(SummedSigns):
        """A block lacks its table."""

        @property
        def tables(self) -> Tables:
            return (super().tables[0][:1], super().tables[1])

    with pytest.raises(InvalidParameters, match="tensor 'odd': the tables of a segment must cover 12 blocks"):
        _ = model_of(odd=Short(12)).tables
