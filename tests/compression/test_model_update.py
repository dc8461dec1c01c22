"""A whole model as one update: the conformance laws, merged segments, and refusals by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.common import PublicStream
from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint, Identity
from secagg.compression.model_update import CalibrationSource, ModelUpdate, TensorScheme, encode_parameters
from secagg.compression.peak import PeakCode
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import JoinedRotation, RandomRotation
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.conformance import Candidate, Law, cases
from secagg.contract import Aggregate, LinearDecoder, Payload, ideal_aggregate
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters, Misuse, Reason, SecAggError
from secagg.simulation.insecure_coins import InsecureSeededCoins

SEED = bytes(range(32))
COINS = InsecureSeededCoins(b"for rounding")
STEP = 2.0**-5
CORNERS = np.array([[0.0, 0.0], [1.0, 1.0], [-1.0, 1.0], [0.5, -0.5]])
Tensor = npt.NDArray[Any]


def place(name: str, shape: tuple[int, ...], epoch: int = 0) -> PublicStream:
    return PublicStream(seed=SEED, round_number=epoch, tensor_name=name, shape=shape)


def quantizer(shape: tuple[int, ...], **changes: Any) -> ScalarQuantization:
    parameters: dict[str, Any] = {"shape": shape, "bits": 6, "modulus_bits": 10, "scales": (STEP,)}
    return ScalarQuantization(**(parameters | changes))


def fixed(length: int, **changes: Any) -> FixedPoint:
    parameters: dict[str, Any] = {"length": length, "clip": 1.0, "fraction_bits": 8, "modulus_bits": 24}
    return FixedPoint(**(parameters | changes))


def schemes(epoch: int = 0) -> dict[str, tuple[tuple[int, ...], LinearDecoder[Any]]]:
    """Return tensors of every dimension, in schemes of every kind; two of them share a ring, two a codebook size."""
    return {
        "conv.weight": ((2, 2, 1, 2), quantizer((2, 2, 1, 2), rounding=Rounding.STOCHASTIC)),
        "conv.bias": ((2,), fixed(2)),
        "embedding.weight": ((3, 4), ProductQuantization(shape=(3, 4), codebooks=(Codebook(CORNERS),))),
        "fc.weight": (
            (3, 4),
            RandomPruning(stream=place("fc.weight", (3, 4), epoch), sparsity="0.5", inner=quantizer((6,))),
        ),
        "temperature": ((), fixed(1)),
        "head.weight": ((2, 2), ProductQuantization(shape=(2, 2), codebooks=(Codebook(CORNERS / 2),))),
    }


def model(
    given: Mapping[str, tuple[tuple[int, ...], LinearDecoder[Any]]] | None = None,
    *,
    epoch: int = 0,
    source: CalibrationSource = CalibrationSource.NONE,
) -> ModelUpdate:
    chosen = schemes(epoch) if given is None else given
    tensors = tuple(TensorScheme(name=name, shape=shape, scheme=scheme) for name, (shape, scheme) in chosen.items())
    return ModelUpdate(tensors=tensors, epoch=epoch, source=source)


def changed(name: str, shape: tuple[int, ...], scheme: LinearDecoder[Any]) -> ModelUpdate:
    return model({**schemes(), name: (shape, scheme)})


def update_of(value: float = 0.25, decoder: ModelUpdate | None = None) -> dict[str, Tensor]:
    return {tensor.name: np.full(tensor.shape, value, np.float32) for tensor in (decoder or model()).tensors}


def aggregate(decoder: ModelUpdate, *clients: Mapping[str, Tensor], weights: list[int] | None = None) -> Aggregate:
    return ideal_aggregate(decoder.layout, [decoder.encode(client, COINS) for client in clients], weights)


def expected(update: dict[str, Tensor]) -> dict[str, Tensor]:
    """Clip values like quantizers and fixed point, and drop masked ones."""
    wide = {name: tensor.astype(np.float64) for name, tensor in update.items()}
    pruning = schemes()["fc.weight"][1]
    assert isinstance(pruning, RandomPruning)
    wide["conv.weight"] = np.clip(wide["conv.weight"], -32 * STEP, 31 * STEP)
    wide["fc.weight"] = np.where(pruning.mask, np.clip(wide["fc.weight"], -32 * STEP, 31 * STEP), 0.0)
    return wide


ERRORS = {
    "conv.weight": STEP * 1.001,
    "conv.bias": 2.0**-9,
    "embedding.weight": 2.0,
    "fc.weight": STEP / 2 * 1.001,
    "temperature": 2.0**-9,
    "head.weight": 2.0,
}


@st.composite
def updates(draw: st.DrawFn) -> dict[str, Tensor]:
    kinds = st.sampled_from([np.float16, np.float32, np.float64])
    return {
        name: draw(arrays(draw(kinds), shape, elements=st.floats(-1.0, 1.0, width=16)))
        for name, (shape, _) in schemes().items()
    }


def in_another_order() -> ModelUpdate:
    return model(dict(reversed(schemes().items())))


CANDIDATE = Candidate(
    name="model_update",
    make=model,
    updates=updates(),
    error=lambda update: {name: np.full(tensor.shape, ERRORS[name]) for name, tensor in update.items()},
    expected=expected,
    extremes=[update_of(-1.0), update_of(1.0)],
    bad_updates={
        "integers": {**update_of(), "conv.bias": np.zeros(2, dtype=np.int64)},
        "a list of tensors": list(update_of().values()),
        "no tensor": {},
        "a tensor of another name": {**update_of(), 7: np.zeros(2)},
    },
    others={
        "another epoch": lambda: model(epoch=1),
        "another source": lambda: model(source=CalibrationSource.PUBLIC_BATCH),
        "another order": in_another_order,
        "another name": lambda: model({("bias" if name == "conv.bias" else name): s for name, s in schemes().items()}),
        "another shape": lambda: changed("conv.bias", (1, 2), fixed(2)),
        "another scale": lambda: changed("conv.weight", (2, 2, 1, 2), quantizer((2, 2, 1, 2))),
        "another codebook": lambda: changed(
            "head.weight", (2, 2), ProductQuantization(shape=(2, 2), codebooks=(Codebook(CORNERS),))
        ),
        "a tensor fewer": lambda: model({name: s for name, s in schemes().items() if name != "conv.bias"}),
    },
    stochastic=True,
    payload_bytes=-(-14 * 10 // 8) + 3 * 3 + -(-8 * 2 // 8),
)


@pytest.mark.parametrize(("candidate", "law"), cases(CANDIDATE), ids=str)
def test_a_model_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def test_segments_of_one_kind_become_one_in_the_order_of_their_first_tensor() -> None:
    assert model().layout.segments == (RingSegment(10, 8 + 6), RingSegment(24, 2 + 1), IndexSegment(4, 6 + 2))
    assert in_another_order().layout.segments == (IndexSegment(4, 8), RingSegment(24, 3), RingSegment(10, 14))


def test_rings_of_one_width_and_indices_of_one_size_are_not_confused() -> None:
    books = {
        "a": ((2, 4), ProductQuantization(shape=(2, 4), codebooks=(Codebook(CORNERS), Codebook(np.zeros((8, 2))))))
    }
    decoder = model({**books, "b": ((5,), Identity(length=5, bound=3, modulus_bits=4))})
    assert decoder.layout.segments == (IndexSegment(4, 4), IndexSegment(8, 4), RingSegment(4, 5))


@given(st.lists(updates(), min_size=1, max_size=3))
def test_each_tensor_comes_back_as_from_its_scheme_alone(clients: list[dict[str, Tensor]]) -> None:
    given_schemes = {**schemes(), "conv.weight": ((2, 2, 1, 2), quantizer((2, 2, 1, 2), zero_points=(3,)))}
    weights = list(range(1, len(clients) + 1))
    decoded = model(given_schemes).decode(aggregate(model(given_schemes), *clients, weights=weights))
    assert list(decoded) == list(given_schemes)
    for name, (shape, scheme) in given_schemes.items():
        flat = (-1,) if isinstance(scheme, FixedPoint) else shape
        alone = [scheme.encode(client[name].reshape(flat), COINS) for client in clients]
        total = scheme.decode(ideal_aggregate(scheme.layout, alone, weights))
        assert decoded[name].tobytes() == total.tobytes()
        assert decoded[name].shape == shape
        assert decoded[name].dtype == total.dtype


def test_the_order_of_an_updates_tensors_does_not_matter() -> None:
    update = {name: np.full(shape, index / 8) for index, (name, (shape, _)) in enumerate(schemes().items())}
    backwards = dict(reversed(update.items()))
    one, other = (model().encode(given, InsecureSeededCoins(b"coins")) for given in (update, backwards))
    assert one.encode() == other.encode()


def test_a_tensor_without_dimensions_may_be_a_numpy_scalar_and_comes_back_as_an_array() -> None:
    decoder = model()
    client: dict[str, Any] = {**update_of(), "temperature": np.float32(0.5)}
    total = aggregate(decoder, client, client)
    assert type(decoder.mean(total)["temperature"]) is np.ndarray
    assert decoder.mean(total)["temperature"] == 0.5
    client["temperature"] = 0.5
    with pytest.raises(Misuse, match=r"^tensor 'temperature'"):
        decoder.encode(client, COINS)


def test_one_tensors_part_serves_its_scheme() -> None:
    sketch = CountSketch(length=6, rows=3, columns=8, seed=SEED, inner=fixed(24, clip=16.0))
    decoder = model({"bias": ((5,), fixed(5)), "weight": ((2, 3), sketch)})
    client = {"bias": np.zeros(5), "weight": np.array([[0.0, 4.0, 0.0], [0.0, 0.0, -2.0]])}
    total = aggregate(decoder, client)
    table = sketch.table_of(decoder.part(total, "weight"))
    assert table.tolist() == sketch.sketch(client["weight"].reshape(-1)).tolist()
    with pytest.raises(Misuse, match="'wait'"):
        decoder.part(total, "wait")


def test_a_weight_beyond_one_schemes_capacity_is_refused_by_name() -> None:
    decoder = model({"a": ((2,), fixed(2)), "b": ((2,), quantizer((2,), modulus_bits=7))})
    decoder.decode(aggregate(decoder, update_of(1.0, decoder), weights=[2]))
    with pytest.raises(CapacityExceeded, match=r"^tensor 'b': ") as caught:
        decoder.decode(aggregate(decoder, update_of(1.0, decoder), weights=[3]))
    assert caught.value.reason is Reason.CAPACITY_EXCEEDED


SPOILERS: dict[str, Callable[[Tensor], Any]] = {
    "a dimension more": lambda tensor: tensor[np.newaxis],
    "values more": lambda tensor: np.zeros((*tensor.shape, 2)),
    "integers": lambda tensor: tensor.astype(np.int64),
    "complex numbers": lambda tensor: tensor.astype(np.complex128),
    "a list": lambda tensor: tensor.tolist(),
    "a masked array": lambda tensor: np.ma.masked_array(tensor, mask=True),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("name", list(schemes()))
@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=list(SPOILERS))
def test_a_tensor_of_the_wrong_kind_is_refused_by_name(name: str, spoil: Callable[[Tensor], Any]) -> None:
    with pytest.raises(Misuse, match=rf"^tensor '{name}': "):
        model().encode({**update_of(), name: spoil(update_of()[name])}, COINS)


def test_missing_and_unknown_tensors_are_listed() -> None:
    update = update_of()
    del update["fc.weight"], update["temperature"]
    with pytest.raises(Misuse, match=r"lacks 'fc\.weight', 'temperature'"):
        model().encode(update, COINS)
    with pytest.raises(Misuse, match="has 'extra', 'more', which the model lacks"):
        model().encode({**update_of(), "extra": np.zeros(1), "more": np.zeros(1)}, COINS)
    with pytest.raises(Misuse, match="'a1', 'a2', 'a3', 'a4' and 96 more"):
        model().encode({**update_of(), **{f"a{number}": np.zeros(1) for number in range(1, 101)}}, COINS)


def test_an_update_of_another_epoch_is_refused() -> None:
    old, new = model(epoch=3), model(epoch=4)
    stale = aggregate(old, update_of())
    with pytest.raises(
        Misuse, match=r"^the layout does not have the public parameters of epoch 4; get the parameters of epoch 4"
    ) as caught:
        new.decode(stale)
    assert caught.value.reason is Reason.LAYOUT_MISMATCH
    new.require_layout(new.layout)


def test_a_layout_of_other_segments_is_said_to_be_of_another_model() -> None:
    with pytest.raises(Misuse, match="does not have the tensors or schemes"):
        model().require_layout(Layout((RingSegment(10, 3),)))


@pytest.mark.parametrize(
    ("shape", "scheme"),
    [
        ((3,), fixed(2)),
        ((3, 2), quantizer((2, 3))),
        ((2, 2), ProductQuantization(shape=(3, 2), codebooks=(Codebook(CORNERS),))),
        ((6,), RandomPruning(stream=place("a", (2, 3), epoch=7), sparsity="0.5", inner=quantizer((3,)))),
        ((6,), RandomPruning(stream=place("b", (6,), epoch=7), sparsity="0.5", inner=quantizer((3,)))),
        ((6,), RandomPruning(stream=place("a", (6,), epoch=6), sparsity="0.5", inner=quantizer((3,)))),
        ((6,), RandomPruning(stream=place("a", (6,), epoch=7), sparsity="0.5", inner=quantizer((4,)))),
        ((6,), RandomRotation(stream=place("a", (6,), epoch=8), block_size=2, inner=quantizer((6,)))),
        ((6,), RandomRotation(stream=place("a", (6,), epoch=7), block_size=4, inner=fixed(6))),
        ((6,), CountSketch(length=5, rows=1, columns=4, seed=SEED, inner=fixed(4))),
        ((6,), CountSketch(length=6, rows=1, columns=4, seed=SEED, inner=quantizer((2, 2)))),
        ((6,), PeakCode(rotation=JoinedRotation(stream=place("a", (6,), epoch=8), block_size=2), places=2)),
        ((0,), fixed(1)),
        ((2.0,), fixed(2)),
    ],
)
def test_a_scheme_for_another_shape_tensor_or_epoch_is_refused_by_name(shape: Any, scheme: LinearDecoder[Any]) -> None:
    with pytest.raises(InvalidParameters, match=r"^tensor 'a': "):
        model({"first": ((2,), fixed(2)), "a": (shape, scheme)}, epoch=7)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"tensors": ()}, Misuse),
        ({"tensors": [TensorScheme(name="a", shape=(2,), scheme=fixed(2))]}, Misuse),
        ({"tensors": (fixed(2),)}, Misuse),
        ({"epoch": -1}, InvalidParameters),
        ({"epoch": 1 << 64}, InvalidParameters),
        ({"epoch": True}, InvalidParameters),
        ({"source": 1}, Misuse),
    ],
    ids=repr,
)
def test_a_model_that_makes_no_sense_is_refused(bad: dict[str, Any], error: type[SecAggError]) -> None:
    parameters: dict[str, Any] = {"tensors": (TensorScheme(name="a", shape=(2,), scheme=fixed(2)),)}
    ModelUpdate(**parameters)
    with pytest.raises(error):
        ModelUpdate(**(parameters | bad))


@pytest.mark.parametrize("bad", ["", "x" * (1 << 16), "\ud800", 7, None], ids=lambda name: repr(name)[:10])
def test_a_name_that_is_none_is_refused(bad: Any) -> None:
    with pytest.raises((Misuse, InvalidParameters), match="name"):
        TensorScheme(name=bad, shape=(2,), scheme=fixed(2))


def test_a_name_that_stands_twice_is_refused() -> None:
    tensor = TensorScheme(name="twin", shape=(2,), scheme=fixed(2))
    with pytest.raises(InvalidParameters, match="'twin'"):
        ModelUpdate(tensors=(tensor, TensorScheme(name="a", shape=(2,), scheme=fixed(2)), tensor))


class Outsider:
    """A custom scheme: unchanged integers of any shape."""

    capacity = 100

    def __init__(self, version: bytes = bytes(31) + b"1", decodes_to: tuple[int, ...] = (2, 2)) -> None:
        self.layout = Layout((RingSegment(12, 4),), version)
        self.decodes_to = decodes_to

    def encode(self, update: Tensor, coins: Coins) -> Payload:  # noqa: ARG002
        return Payload(self.layout, (Ring(12).from_integers(update.reshape(-1)),))

    def decode(self, aggregate: Aggregate) -> Tensor:
        return np.resize(Ring(12).lift(aggregate.values[0]), self.decodes_to)


def test_a_scheme_from_elsewhere_can_be_part_of_a_model() -> None:
    decoder = model({"a": ((2, 2), Outsider()), "b": ((3,), fixed(3))})
    client = {"a": np.array([[1, -2], [3, 4]]), "b": np.zeros(3)}
    assert decoder.decode(aggregate(decoder, client, client))["a"].tolist() == [[2, -4], [6, 8]]
    with pytest.raises(InvalidParameters, match=r"^tensor 'a': .*Outsider"):
        encode_parameters(decoder)


def test_a_scheme_without_a_version_is_refused_by_name() -> None:
    with pytest.raises(ContractViolation, match=r"^tensor 'a': .*version"):
        TensorScheme(name="a", shape=(2, 2), scheme=Outsider(version=bytes(32)))


def test_a_scheme_that_decodes_to_another_shape_is_refused_by_name() -> None:
    decoder = model({"a": ((2, 2), Outsider(decodes_to=(4,)))})
    with pytest.raises(ContractViolation, match=r"^tensor 'a': .*decodes to"):
        decoder.decode(aggregate(decoder, {"a": np.zeros((2, 2), dtype=np.int64)}))
