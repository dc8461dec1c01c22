"""Plans for a model's tensors: defaults, calibration, refreshes, the broadcast in bytes, and a round's costs."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression import product_quantization, scalar_quantization
from secagg.compression.byte_accounting import (
    Accounting,
    codebook_bytes,
    product_quantization_layout,
    scalar_quantization_layout,
    upload_bytes,
)
from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    Codebooks,
    Dithered,
    ModelUpdate,
    Plain,
    Pruned,
    Quantized,
    Recipe,
    Rotated,
    Sketched,
    TensorScheme,
    UpdatePlan,
    decode_parameters,
    downlink_bytes,
    encode_parameters,
)
from secagg.compression.model_update.scales import Made
from secagg.compression.peak import LevelCode, PeakCode
from secagg.compression.product_quantization import ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import JoinedRotation, Sketch
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.contract import Aggregate, LinearDecoder, ideal_aggregate
from secagg.contract.layout import RingSegment
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason, UnexpectedMessage
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, Writer
from tests.harness.paper_models import CELEBA

SEED = bytes(range(32))
COINS = InsecureSeededCoins(b"for rounding")


Tensor = npt.NDArray[Any]
SHAPES = {"conv.weight": (8, 4, 3, 3), "conv.bias": (8,), "norm.weight": (8,), "fc.weight": (2, 8), "fc.bias": (2,)}
PLAIN = Plain(clip=1.0, fraction_bits=16)
EIGHT_BITS = Quantized(bits=8, modulus_bits=16)


def place(name: str, shape: tuple[int, ...]) -> PublicStream:
    return PublicStream(seed=SEED, round_number=0, tensor_name=name, shape=shape)


def fixed(length: int) -> FixedPoint:
    return FixedPoint(length=length, clip=1.0, fraction_bits=8, modulus_bits=24)


def model(schemes: Mapping[str, tuple[tuple[int, ...], LinearDecoder[Any]]], epoch: int = 0) -> ModelUpdate:
    tensors = tuple(TensorScheme(name=name, shape=shape, scheme=scheme) for name, (shape, scheme) in schemes.items())
    return ModelUpdate(tensors=tensors, epoch=epoch)


def aggregate(decoder: ModelUpdate, *clients: Mapping[str, Tensor], weights: list[int] | None = None) -> Aggregate:
    return ideal_aggregate(decoder.layout, [decoder.encode(client, COINS) for client in clients], weights)


def plan(compressed: Recipe = EIGHT_BITS, **changes: Any) -> UpdatePlan:
    parameters: dict[str, Any] = {"shapes": SHAPES, "plain": PLAIN, "compressed": compressed, "seed": SEED}
    return UpdatePlan(**(parameters | changes))


def sample(scale: float = 1.0, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, Tensor]:
    """Return normal values derived from a name."""
    generators = {name: np.random.default_rng(list(name.encode())) for name in shapes}
    return {
        name: (generators[name].standard_normal(shape) * scale / 8).astype(np.float32) for name, shape in shapes.items()
    }


def public(scale: float = 1.0) -> Calibration:
    return Calibration(CalibrationSource.PUBLIC_BATCH, sample(scale))


def scheme_of(update: ModelUpdate, name: str) -> Any:
    return update.tensors[update.names.index(name)].scheme


def test_by_default_tensors_of_more_than_one_dimension_are_compressed_and_the_others_plain() -> None:
    update = plan().parameters(calibration=public())
    kinds = {tensor.name: type(tensor.scheme) for tensor in update.tensors}
    assert kinds == {name: ScalarQuantization if len(shape) > 1 else FixedPoint for name, shape in SHAPES.items()}
    assert update.layout.segments == (RingSegment(16, 288 + 16), RingSegment(32, 18))
    assert update.source is CalibrationSource.PUBLIC_BATCH


def test_a_tensor_that_is_too_small_for_a_codebook_is_sent_plain() -> None:
    update = plan(Codebooks(block_size=4, codewords=4)).parameters(calibration=public())
    assert isinstance(scheme_of(update, "conv.weight"), ProductQuantization)
    assert isinstance(scheme_of(update, "fc.weight"), FixedPoint)


def test_a_chosen_recipe_takes_precedence_and_has_to_fit() -> None:
    chosen = {"norm.weight": EIGHT_BITS, "fc.weight": PLAIN}
    update = plan(chosen=chosen).parameters(calibration=public())
    assert isinstance(scheme_of(update, "norm.weight"), ScalarQuantization)
    assert isinstance(scheme_of(update, "fc.weight"), FixedPoint)
    with pytest.raises(InvalidParameters, match=r"'fc\.wait'"):
        plan(chosen={"fc.wait": PLAIN})
    with pytest.raises(InvalidParameters, match=r"^tensor 'fc\.weight': .* does not fit"):
        plan(chosen={"fc.weight": Codebooks(block_size=4, codewords=4)})


def test_a_plan_is_not_changed_by_what_it_was_made_from() -> None:
    shapes = dict(SHAPES)
    made = plan(shapes=shapes)
    shapes["another"] = (3,)
    assert dict(made.shapes) == SHAPES


@pytest.mark.parametrize(
    "bad",
    [{"seed": bytes(31)}, {"seed": "0" * 32}, {"shapes": {}}, {"shapes": {"a": (0,)}}, {"shapes": {"": (2,)}}],
    ids=repr,
)
def test_a_plan_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        plan(**bad)


def test_a_recipe_hands_on_everything_that_was_chosen() -> None:
    tensor = sample()["conv.weight"]
    chosen: dict[str, Any] = {
        "bits": 5,
        "modulus_bits": 9,
        "affine": True,
        "per_channel": True,
        "rounding": Rounding.STOCHASTIC,
        "wrapping_weight": 99,
        "least_scale": 0.02,
    }
    here = place("conv.weight", tensor.shape)
    assert Quantized(**chosen).make(here, tensor, None) == scalar_quantization.calibrate(tensor, **chosen)
    books = Codebooks(block_size=4, codewords=8)
    assert not books.make(here, tensor, None).codebooks[0].values[0].any()
    assert replace(books, keep_zero=False).make(here, tensor, None).codebooks[0].values[0].any()
    assert replace(books, iterations=1).make(here, tensor, None).layout != books.make(here, tensor, None).layout


def test_a_pruned_tensor_is_calibrated_on_what_is_kept_and_a_rotated_one_on_its_rotation() -> None:
    given_sample = sample()["conv.weight"]
    pruned = scheme_of(plan(Pruned(sparsity="0.9", inner=EIGHT_BITS)).parameters(calibration=public()), "conv.weight")
    assert pruned.inner.scales == pytest.approx([float(np.abs(given_sample[pruned.mask]).max()) / 127.5])
    rotated = scheme_of(plan(Rotated(block_size=32, inner=EIGHT_BITS)).parameters(calibration=public()), "conv.weight")
    assert rotated.block_size == 32
    assert rotated.inner.scales == pytest.approx([float(np.abs(rotated.rotate(given_sample)).max()) / 127.5])
    recipe = Sketched(rows=3, columns=64, inner=EIGHT_BITS)
    sketched = scheme_of(plan(recipe).parameters(calibration=public()), "conv.weight")
    table = sketched.sketch(given_sample.reshape(-1))
    assert sketched.inner.scales == pytest.approx([float(np.abs(table).max()) / 127.5])


@pytest.mark.parametrize(("size", "block_size"), [(1024, 1024), (1000, 1024), (1025, 128), (8, 8), (3, 2), (1, 2)])
def test_the_blocks_of_a_rotation_are_halved_until_little_is_filled(size: int, block_size: int) -> None:
    made = Rotated(block_size=1024, inner=PLAIN).make(place("a", (size,)), None, None)
    assert made.block_size == block_size


def test_what_needs_a_sample_is_refused_by_name_without_one() -> None:
    for recipe in (EIGHT_BITS, Codebooks(block_size=4, codewords=4), Pruned(sparsity="0.5", inner=EIGHT_BITS)):
        with pytest.raises(InvalidParameters, match=r"^tensor 'conv\.weight': there is no sample"):
            plan(recipe).parameters()
        with pytest.raises(InvalidParameters, match=r"^tensor 'conv\.weight': there is no sample"):
            plan(recipe).parameters(calibration=public(0.0))
    without = plan(Pruned(sparsity="0.5", inner=PLAIN)).parameters()
    assert without.source is CalibrationSource.NONE


def test_channels_of_what_has_none_are_refused_by_name() -> None:
    recipe = Pruned(sparsity="0.5", inner=Quantized(bits=8, modulus_bits=16, per_channel=True))
    with pytest.raises(InvalidParameters, match=r"^tensor 'conv\.weight': channels"):
        plan(recipe).parameters(calibration=public())


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        ({"fc.bias": None}, "^tensor 'fc.bias'"),
        ({"fc.bias": np.zeros(3)}, "^tensor 'fc.bias'"),
        ({"fc.weight": np.full((2, 8), np.nan)}, "^tensor 'fc.weight'"),
        ({"fc.weight": np.ones((2, 8), dtype=np.int64)}, "^tensor 'fc.weight'"),
        ({"another": np.zeros(3)}, "a sample has 'another'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sample_that_does_not_belong_to_the_model_is_refused_by_name(spoil: dict[str, Any], match: str) -> None:
    with pytest.raises((Misuse, InvalidParameters), match=match):
        plan().parameters(calibration=Calibration(CalibrationSource.PUBLIC_BATCH, {**sample(), **spoil}))


def test_a_sample_that_lacks_a_tensor_is_refused_by_name() -> None:
    with pytest.raises(Misuse, match=r"a sample lacks 'fc\.bias'"):
        plan().parameters(
            calibration=Calibration(
                CalibrationSource.PUBLIC_BATCH, {name: t for name, t in sample().items() if name != "fc.bias"}
            )
        )


def test_a_mock_client_is_called_a_leak_and_its_use_is_part_of_the_version() -> None:
    leak = plan().parameters(calibration=Calibration(CalibrationSource.LEAKY_MOCK_CLIENT, sample()))
    honest = plan().parameters(calibration=public())
    assert "LEAKY" in leak.source.name
    assert leak.layout.segments == honest.layout.segments
    assert leak.layout.version != honest.layout.version
    assert decode_parameters(encode_parameters(leak)).source is CalibrationSource.LEAKY_MOCK_CLIENT


@pytest.mark.parametrize("bad", [CalibrationSource.NONE, 1, "PUBLIC_BATCH", None], ids=repr)
def test_a_sample_from_nowhere_is_refused(bad: Any) -> None:
    with pytest.raises(Misuse, match="PUBLIC_BATCH, PREVIOUS_AGGREGATE, LEAKY_MOCK_CLIENT"):
        Calibration(bad, sample())


def test_a_previous_aggregate_calibrates_on_its_mean() -> None:
    first = plan().parameters(calibration=public(2.0))
    total = aggregate(first, sample(1.0), sample(2.0))
    calibration = Calibration(CalibrationSource.PREVIOUS_AGGREGATE, first.mean(total))
    second = plan().parameters(epoch=1, calibration=calibration, previous=first)
    largest = float(np.abs(first.decode(total)["conv.weight"]).max()) / 2
    assert scheme_of(second, "conv.weight").scales == pytest.approx([largest / 127.5])


@pytest.mark.parametrize("epoch", [3, 2, 0])
def test_epochs_only_grow(epoch: int) -> None:
    previous = plan().parameters(epoch=3, calibration=public())
    with pytest.raises(InvalidParameters, match="does not follow 3; number epochs consecutively"):
        plan().parameters(epoch=epoch, calibration=public(), previous=previous)


def test_codebooks_begin_where_the_last_ones_ended() -> None:
    recipe = Codebooks(block_size=4, codewords=8, iterations=1)
    first = plan(recipe).parameters(calibration=public())
    warm = plan(recipe).parameters(epoch=1, calibration=public(), previous=first)
    cold = plan(recipe).parameters(epoch=1, calibration=public())
    former = scheme_of(first, "conv.weight")
    by_hand = [
        product_quantization.calibrate(
            sample()["conv.weight"], block_size=4, codewords=8, seed=SEED, iterations=1, previous=previous
        ).layout
        for previous in (former, None)
    ]
    # All blocks of such a small tensor are in the sample and no place is empty, so the seed has no effect.
    assert scheme_of(warm, "conv.weight").layout == by_hand[0] != by_hand[1]
    assert scheme_of(cold, "conv.weight").layout != scheme_of(warm, "conv.weight").layout


def test_codebooks_of_another_geometry_are_learned_anew() -> None:
    first = plan(Codebooks(block_size=4, codewords=8)).parameters(calibration=public())
    changed_plan = plan(Codebooks(block_size=2, codewords=16, stages=2))
    second = changed_plan.parameters(epoch=1, calibration=public(), previous=first)
    assert [book.values.shape for book in scheme_of(second, "conv.weight").codebooks] == [(16, 2), (16, 2)]


@pytest.mark.parametrize("recipe", [EIGHT_BITS, Codebooks(block_size=4, codewords=8)], ids=repr)
def test_a_sample_of_zeros_leaves_the_parameters_as_they_were(recipe: Recipe) -> None:
    first = plan(recipe).parameters(calibration=public())
    quiet = Calibration(CalibrationSource.PUBLIC_BATCH, {**sample(), "conv.weight": np.zeros(SHAPES["conv.weight"])})
    second = plan(recipe).parameters(epoch=1, calibration=quiet, previous=first)
    assert scheme_of(second, "conv.weight").layout == scheme_of(first, "conv.weight").layout


NESTING: dict[str, Callable[[Recipe], Recipe]] = {
    "pruned": lambda inner: Pruned(sparsity="0.5", inner=inner),
    "rotated": lambda inner: Rotated(block_size=32, inner=inner),
    "sketched": lambda inner: Sketched(rows=2, columns=16, inner=inner),
}


@pytest.mark.parametrize("wrap", NESTING.values(), ids=list(NESTING))
def test_what_stands_inside_another_scheme_is_left_as_well(wrap: Callable[[Recipe], Recipe]) -> None:
    first = plan(wrap(EIGHT_BITS)).parameters(calibration=public())
    quiet = Calibration(CalibrationSource.PUBLIC_BATCH, {**sample(), "conv.weight": np.zeros(SHAPES["conv.weight"])})
    second = plan(wrap(EIGHT_BITS)).parameters(epoch=1, calibration=quiet, previous=first)
    assert scheme_of(second, "conv.weight").inner.layout == scheme_of(first, "conv.weight").inner.layout


def test_masks_and_signs_are_drawn_anew_and_hashes_stay() -> None:
    made = plan(Pruned(sparsity="0.5", inner=PLAIN))
    masks = [scheme_of(made.parameters(epoch=epoch), "conv.weight").mask for epoch in (0, 1)]
    assert (masks[0] != masks[1]).any()
    made = plan(Rotated(block_size=32, inner=PLAIN))
    signs = [scheme_of(made.parameters(epoch=epoch), "conv.weight").negative for epoch in (0, 1)]
    assert (signs[0] != signs[1]).any()
    made = plan(Sketched(rows=2, columns=16, inner=PLAIN))
    first, second = made.parameters(epoch=0), made.parameters(epoch=1)
    assert scheme_of(first, "conv.weight").seed == scheme_of(second, "conv.weight").seed
    assert scheme_of(first, "conv.weight").seed != scheme_of(first, "fc.weight").seed
    assert scheme_of(replace(made, seed=bytes(32)).parameters(), "fc.weight").seed != scheme_of(first, "fc.weight").seed


def whole(code: Callable[[JoinedRotation], LinearDecoder[Any]]) -> Recipe:
    """Return the recipe of a code of one vector, with a separate scale for its last values."""

    def made(place: PublicStream) -> LinearDecoder[Any]:
        stream = replace(place, shape=(place.size,))
        return code(JoinedRotation(stream=stream, sizes=(place.size - 2, 2), scales=(0.1, 3.0), block_size=8))

    return Made(made)


RECIPES: dict[str, Recipe] = {
    "plain": PLAIN,
    "symmetric": EIGHT_BITS,
    "affine channels": Quantized(bits=4, modulus_bits=11, affine=True, per_channel=True, rounding=Rounding.STOCHASTIC),
    "wrapping": Quantized(bits=8, modulus_bits=8, wrapping_weight=100),
    "dithered": Dithered(bits=4, modulus_bits=12),
    "dithered, pruned and rotated": Pruned(
        sparsity="0.5", inner=Rotated(block_size=16, inner=Dithered(bits=2, modulus_bits=9, fine_bits=12))
    ),
    "pruned": Pruned(sparsity=Fraction(2, 3), inner=EIGHT_BITS),
    "nothing pruned": Pruned(sparsity="0", inner=EIGHT_BITS),
    "rotated": Rotated(block_size=32, inner=Quantized(bits=2, modulus_bits=9)),
    "pruned and rotated": Pruned(sparsity="0.5", inner=Rotated(block_size=16, inner=EIGHT_BITS)),
    "sketched": Sketched(rows=3, columns=64, inner=EIGHT_BITS),
    "sketch": whole(lambda rotation: Sketch(rotation=rotation, kept=3, bits=3, modulus_bits=9, unit=0.3)),
    "peaks": whole(lambda rotation: PeakCode(rotation=rotation, places=3, unit=0.3)),
    "levels": whole(lambda rotation: LevelCode(rotation=rotation, levels=8)),
    "codebooks": Codebooks(block_size=4, codewords=8),
    "residual codebooks": Codebooks(block_size=4, codewords=8, stages=2),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_who_reads_the_broadcast_has_the_version_and_encodes_the_same(recipe: Recipe) -> None:
    server = plan(recipe).parameters(epoch=5, calibration=public())
    message = encode_parameters(server)
    client = decode_parameters(message)
    assert client.layout == server.layout
    assert (client.epoch, client.source, client.names) == (server.epoch, server.source, server.names)
    assert client.capacity == server.capacity
    assert encode_parameters(client) == message
    update = sample()
    sent = [decoder.encode(update, InsecureSeededCoins(b"coins")).encode() for decoder in (client, server)]
    assert sent[0] == sent[1]


AFFINE = ScalarQuantization(shape=(2, 3), bits=6, modulus_bits=10, scales=(2.0**-5,), zero_points=(-5,))


def test_the_bytes_of_a_broadcast_are_these() -> None:
    decoder = model({"b": ((2, 3), AFFINE), "é": ((), fixed(1))}, epoch=9)
    body = b"".join(
        [
            *(bytes.fromhex("0000000000000009"), b"\0", bytes.fromhex("00000002")),
            *(bytes.fromhex("00000001"), b"b", b"\2", struct.pack(">QQ", 2, 3)),
            *(b"\3", b"\6\x0a\1", bytes(8), b"\1", bytes.fromhex("00000001"), struct.pack(">fh", 2.0**-5, -5)),
            *(bytes.fromhex("00000002"), "é".encode(), b"\0"),
            *(b"\1", struct.pack(">d", 1.0), b"\x08\x18"),
        ]
    )
    assert encode_parameters(decoder) == b"SAGG\1" + bytes.fromhex("0004") + body


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_every_truncation_and_every_trailing_byte_is_refused(recipe: Recipe) -> None:
    shapes = {"w": (8, 4), "b": (3,)}
    made = plan(recipe, shapes=shapes)
    calibration = Calibration(CalibrationSource.PUBLIC_BATCH, sample(shapes=shapes))
    message = encode_parameters(made.parameters(calibration=calibration))
    for length in range(len(message)):
        with pytest.raises(MalformedMessage):
            decode_parameters(message[:length])
    with pytest.raises(MalformedMessage) as caught:
        decode_parameters(message + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_a_changed_byte_is_refused_or_makes_another_version(recipe: Recipe) -> None:
    shapes = {"w": (8, 4), "b": (3,)}
    made = plan(recipe, shapes=shapes)
    calibration = Calibration(CalibrationSource.PUBLIC_BATCH, sample(shapes=shapes))
    update = made.parameters(calibration=calibration)
    message = encode_parameters(update)
    for position in range(len(message)):
        for flipped in (1, 128):
            changed_message = bytearray(message)
            changed_message[position] ^= flipped
            try:
                other = decode_parameters(bytes(changed_message), maximum_elements=1 << 16)
            except (MalformedMessage, UnexpectedMessage):
                continue
            assert other.layout.version != update.layout.version
            assert encode_parameters(other) == bytes(changed_message)


def written(
    scheme: bytes, *, source: int = 0, count: int = 1, name: bytes = b"a", shape: tuple[int, ...] = (4,)
) -> bytes:
    writer = Writer(MessageKind.PUBLIC_PARAMETERS).integer(0, 8).integer(source, 1).integer(count, 4)
    writer.variable(name, 1 << 20).integer(len(shape), 1)
    for dimension in shape:
        writer.integer(dimension, 8)
    return writer.fixed(scheme, len(scheme)).finish()


FIXED = b"\1" + struct.pack(">d", 1.0) + b"\x08\x18"
PRUNED = b"\5" + SEED


@pytest.mark.parametrize(
    "message",
    [
        written(FIXED, source=4),
        written(FIXED, count=0),
        written(FIXED, count=2),
        written(FIXED, name=b""),
        written(FIXED, name=b"\xff"),
        written(FIXED, name=b"x" * (1 << 16)),
        written(FIXED, shape=(0,)),
        written(FIXED, shape=(1 << 20, 1 << 21)),
        written(FIXED, shape=(1 << 31,)),
        written(b"\0"),
        written(b"\x08"),
        written(b"\1" + struct.pack(">d", float("nan")) + b"\x08\x18"),
        written(b"\1" + struct.pack(">d", 1.0) + b"\x18\x08"),
        written(PRUNED + (5).to_bytes(8, "big") + FIXED),
        written(PRUNED + (0).to_bytes(8, "big") + FIXED),
        written((PRUNED + (4).to_bytes(8, "big")) * 8 + FIXED),
        written((PRUNED + (4).to_bytes(8, "big")) * 5000 + FIXED),
        written(b"\6" + SEED + (3).to_bytes(4, "big") + FIXED),
        written(b"\7" + SEED + b"\1" + (1 << 30).to_bytes(4, "big") + FIXED),
        written(b"\3\6\x0a\3" + bytes(8) + b"\0" + (1).to_bytes(4, "big") + struct.pack(">f", 1.0)),
        written(b"\3\6\x0a\1" + bytes(8) + b"\2" + (1).to_bytes(4, "big") + struct.pack(">fh", 1.0, 1)),
        written(b"\3\6\x0a\1" + bytes(8) + b"\1" + (1).to_bytes(4, "big") + struct.pack(">fh", 1.0, 0)),
        written(b"\3\6\x0a\1" + bytes(8) + b"\0" + (2).to_bytes(4, "big") + struct.pack(">ff", 1.0, 1.0)),
        written(b"\3\6\x0a\1" + bytes(8) + b"\0" + b"\xff" * 4),
        written(b"\4\0"),
        written(b"\4\1" + (8).to_bytes(4, "big") + bytes(8)),
    ],
    ids=lambda message: message[20:48].hex(),
)
def test_what_no_server_writes_is_refused(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_parameters(message)


def test_the_smallest_messages_that_differ_from_those_are_read() -> None:
    read = [
        decode_parameters(written(FIXED)),
        decode_parameters(written((PRUNED + (4).to_bytes(8, "big")) * 7 + FIXED)),
        decode_parameters(written(FIXED, shape=(1 << 30,))),
    ]
    assert [update.layout.segments[0].length for update in read] == [4, 4, 1 << 30]


def test_more_elements_than_a_client_wants_are_refused_before_anything_is_made_of_them() -> None:
    message = written(PRUNED + (1).to_bytes(8, "big") + FIXED)
    assert decode_parameters(message, maximum_elements=5).names == ("a",)
    with pytest.raises(MalformedMessage, match="more elements"):
        decode_parameters(message, maximum_elements=4)


def test_schemes_that_stand_too_deep_are_not_written_either() -> None:
    scheme: LinearDecoder[Any] = fixed(4)
    for _ in range(7):
        scheme = RandomPruning(stream=place("a", (4,)), sparsity="0", inner=scheme)
    encode_parameters(model({"a": ((4,), scheme)}))
    scheme = RandomPruning(stream=place("a", (4,)), sparsity="0", inner=scheme)
    with pytest.raises(InvalidParameters, match=r"^tensor 'a': more than 8"):
        encode_parameters(model({"a": ((4,), scheme)}))


def celeba(compressed: Recipe) -> ModelUpdate:
    return plan(compressed, shapes=CELEBA).parameters(
        calibration=Calibration(CalibrationSource.PUBLIC_BATCH, sample(shapes=CELEBA))
    )


def test_by_the_papers_accounting_a_model_costs_what_the_papers_tables_count() -> None:
    paper = Accounting.PAPER
    quantized = celeba(Quantized(bits=8, modulus_bits=14))
    assert upload_bytes(quantized.layout, paper) == upload_bytes(scalar_quantization_layout(CELEBA, 14), paper)
    assert downlink_bytes(quantized, paper) == 4 * 5
    indexed = celeba(Codebooks(block_size=4, codewords=8, iterations=1))
    assert upload_bytes(indexed.layout, paper) == upload_bytes(product_quantization_layout(CELEBA, 8, 4), paper)
    assert downlink_bytes(indexed, paper) == codebook_bytes(CELEBA, 8, 4)


def test_the_papers_accounting_counts_scales_and_zero_points_and_no_seeds() -> None:
    affine = Quantized(bits=8, modulus_bits=16, affine=True, per_channel=True)
    chosen = {"fc.weight": Pruned(sparsity="0.5", inner=EIGHT_BITS)}
    update = plan(affine, chosen=chosen).parameters(calibration=public())
    assert downlink_bytes(update, Accounting.PAPER) == 8 * (4 + 4) + 4
    for name, numbers in (("sketch", 3), ("peaks", 3), ("levels", 2)):
        made = plan(RECIPES[name], shapes={"w": (8, 4)}).parameters()
        assert downlink_bytes(made, Accounting.PAPER) == 4 * numbers


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=list(RECIPES))
def test_on_the_wire_a_round_costs_the_messages_that_are_sent(recipe: Recipe) -> None:
    update = plan(recipe).parameters(calibration=public())
    # No protocol sends fine bits.
    fine = sum(one.ring.packed_bytes(one.length) - one.payload_bytes for one in update.layout.segments)
    sent = len(update.encode(sample(), COINS).encode()) - fine
    assert upload_bytes(update.layout, Accounting.WIRE) == sent
    assert downlink_bytes(update, Accounting.WIRE) == len(encode_parameters(update))
