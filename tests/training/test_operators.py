"""The codec of each round, and its calibration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.byte_accounting import Accounting, parameter_count, upload_bytes
from secagg.compression.model_update import CalibrationSource, ModelUpdate
from secagg.compression.model_update.scales import (
    STATISTICS,
    encode_scales,
    kept_share,
    length,
    reach,
    rotated_reach,
    unit_codebooks,
)
from secagg.compression.product_quantization import ProductQuantization
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import IndexSegment, RingSegment, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.training.codec import Operators, RoundCodec
from secagg.training.configuration import CompressionSettings, Scheme, Source
from secagg.training.models import model_factory
from secagg.training.presets import preset

SHAPES = {"conv.weight": (8, 4, 3, 3), "conv.bias": (8,), "head.weight": (10, 36), "head.bias": (10,)}
CLIENTS = 5
Updates = list[dict[str, npt.NDArray[np.float32]]]


def updates(scale: float = 0.01, seed: int = 0, *, clients: int = CLIENTS, shared: float = 0.0) -> Updates:
    generator = np.random.default_rng(seed)
    common = {name: shared * generator.laplace(size=shape) for name, shape in SHAPES.items()}
    return [
        {
            name: (scale * (generator.laplace(size=shape) + common[name])).astype(np.float32)
            for name, shape in SHAPES.items()
        }
        for _ in range(clients)
    ]


def operators(weight: int = CLIENTS, **settings: Any) -> Operators:
    return Operators(CompressionSettings(**settings), SHAPES, bytes(32), weight)


def no_sample() -> dict[str, npt.NDArray[np.float32]]:
    raise AssertionError("nobody's update is asked for")


def play(
    made: Operators, number: int, given: Updates, sample: Callable[[], Any] = no_sample
) -> tuple[RoundCodec, dict[str, npt.NDArray[np.float32]]]:
    codec = made.begin(number, sample)
    payloads = [made.encode(update, SystemCoins()) for update in given]
    return codec, made.decode(ideal_aggregate(codec.update.layout, payloads))


def scheme_of(update: ModelUpdate, name: str) -> Any:
    return next(tensor.scheme for tensor in update.tensors if tensor.name == name)


def test_a_first_round_without_scales_is_sent_in_fixed_point_and_is_nearly_exact() -> None:
    given = updates()
    codec, mean = play(operators(scheme=Scheme.SCALAR, wrap=True), 0, given)
    assert not codec.is_compressed
    for name in SHAPES:
        due = np.mean([update[name] for update in given], axis=0)
        assert np.abs(mean[name] - due).max() < 2.0**-20


def test_scales_are_the_mean_of_what_the_clients_updates_reach_to() -> None:
    made, given = operators(scheme=Scheme.SCALAR, bits=6, wrap=True), updates()
    play(made, 0, given)
    codec, _ = play(made, 1, given)
    assert codec.is_compressed
    scheme = scheme_of(codec.update, "head.weight")
    assert isinstance(scheme, ScalarQuantization)
    due = np.mean([np.abs(update["head.weight"]).max() for update in given]) / (63 / 2)
    assert scheme.scales[0] == pytest.approx(due, rel=1e-3)
    assert codec.update.source is CalibrationSource.PREVIOUS_AGGREGATE


def test_a_prior_codebook_is_that_of_no_data_times_the_mean_length() -> None:
    made, given = operators(scheme=Scheme.PRODUCT, codewords=8, block_size=4), updates()
    play(made, 0, given)
    codec, _ = play(made, 1, given)
    scheme = scheme_of(codec.update, "head.weight")
    assert isinstance(scheme, ProductQuantization)
    due = np.mean([length(update["head.weight"]) for update in given])
    assert scheme.codebooks[0].values == pytest.approx(unit_codebooks(8, 4)[0] * due, rel=1e-3, abs=1e-9)


def test_statistics_are_one_number_for_each_compressed_tensor_and_no_tensor_of_the_model() -> None:
    made = operators(scheme=Scheme.SCALAR, wrap=True)
    codec, mean = play(made, 0, updates())
    sent = {tensor.name: tensor.shape for tensor in codec.update.tensors}
    assert sent[STATISTICS] == (2,)
    assert mean.keys() == SHAPES.keys()


def test_biases_are_in_32_bits_whatever_the_scheme() -> None:
    for settings in ({"scheme": Scheme.SCALAR, "wrap": True}, {"scheme": Scheme.PRUNING}, {"scheme": Scheme.PRODUCT}):
        made = operators(CLIENTS, **settings)
        play(made, 0, updates())
        codec, mean = play(made, 1, given := updates(seed=1))
        segments = scheme_of(codec.update, "head.bias").layout.segments
        assert segments == (RingSegment(32, 10),)
        assert np.abs(mean["head.bias"] - np.mean([update["head.bias"] for update in given], axis=0)).max() < 2.0**-20


def test_parameters_follow_the_updates_from_round_to_round() -> None:
    made = operators(scheme=Scheme.SCALAR, wrap=True)
    play(made, 0, updates(0.01))
    wide, _ = play(made, 1, updates(0.001))
    narrow, _ = play(made, 2, updates(0.001))
    ratio = scheme_of(wide.update, "head.weight").scales[0] / scheme_of(narrow.update, "head.weight").scales[0]
    assert ratio == pytest.approx(10, rel=0.3)


def test_a_refresh_is_made_when_it_is_due_and_broadcast_then_alone() -> None:
    made = operators(scheme=Scheme.SCALAR, wrap=True, refresh=3)
    fresh = list[bool]()
    for number in range(8):
        codec, _ = play(made, number, updates(seed=number))
        fresh.append(codec.broadcast_bytes > 0)
    assert fresh == [True, True, False, False, True, False, False, True]


def test_pruning_has_another_mask_in_each_epoch() -> None:
    made = operators(scheme=Scheme.PRUNING, sparsity="0.5", refresh=2)
    masks = list[npt.NDArray[np.bool_]]()
    for number in range(3):
        _, mean = play(made, number, updates(seed=number))
        masks.append(mean["head.weight"] != 0)
    assert (masks[0] == masks[1]).all()
    assert (masks[0] != masks[2]).any()


def test_after_a_first_round_that_failed_the_next_is_uncompressed_too() -> None:
    made = operators(scheme=Scheme.PRODUCT)
    made.begin(0, no_sample)
    codec, _ = play(made, 1, updates())
    assert not codec.is_compressed
    assert play(made, 2, updates())[0].is_compressed


def test_only_mock_and_public_ask_for_an_update_in_the_clear() -> None:
    for source in Source:
        scheme = Scheme.PRODUCT if source is Source.PRIOR else Scheme.SCALAR
        made, asked = operators(scheme=scheme, wrap=True, calibration=source), list[int]()

        def sample(asked: list[int] = asked) -> dict[str, npt.NDArray[np.float32]]:
            asked.append(1)
            return updates()[0]

        for number in range(2):
            play(made, number, updates(), sample)
        assert len(asked) == (2 if source in {Source.MOCK, Source.PUBLIC} else 0)
        due = {Source.MOCK: CalibrationSource.LEAKY_MOCK_CLIENT, Source.PUBLIC: CalibrationSource.PUBLIC_BATCH}
        assert made.codec.source is due.get(source, CalibrationSource.PREVIOUS_AGGREGATE)


def test_scales_from_the_aggregate_are_smaller_than_what_clients_send() -> None:
    made, given = operators(scheme=Scheme.SCALAR, wrap=True, calibration=Source.AGGREGATE), updates()
    play(made, 0, given)
    codec, _ = play(made, 1, given)
    reached = np.mean([reach(update["head.weight"]) for update in given])
    assert scheme_of(codec.update, "head.weight").scales[0] * 63 / 2 < 0.75 * reached


def test_a_state_that_is_stored_and_restored_gives_the_same_codecs() -> None:
    for settings in (
        {"scheme": Scheme.SCALAR, "wrap": True},
        {"scheme": Scheme.PRODUCT, "stages": 2, "refresh": 2},
        {"scheme": Scheme.PRODUCT, "calibration": Source.AGGREGATE},
    ):
        made, other = operators(CLIENTS, **settings), operators(CLIENTS, **settings)
        for number in range(3):
            play(made, number, updates(seed=number))
        other.restore(made.state())
        for number in range(3, 6):
            one, mean = play(made, number, updates(seed=number))
            two, again = play(other, number, updates(seed=number))
            assert one.update.layout == two.update.layout
            assert all(np.array_equal(mean[name], again[name]) for name in SHAPES)


def test_layers_can_have_other_codebooks_or_none() -> None:
    made = operators(scheme=Scheme.PRODUCT, layers=("conv.weight=plain", "head.weight=8/9"))
    play(made, 0, updates())
    codec, _ = play(made, 1, updates())
    assert made.recipes.compressed == ("head.weight",)
    assert scheme_of(codec.update, "head.weight").block_size == 9
    assert scheme_of(codec.update, "conv.weight").layout.segments == (RingSegment(32, 288),)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": Scheme.SCALAR}, "the capacity .* is a total weight of 4, but a round may reach 5"),
        ({"scheme": Scheme.SCALAR, "bits": 9, "modulus_bits": 8}, "do not fit a ring"),
        ({"scheme": Scheme.PRODUCT, "layers": ("head=4/4",)}, "names 'head'"),
        ({"scheme": Scheme.PRODUCT, "layers": ("head.weight=4",)}, "codewords/block_size"),
        ({"scheme": Scheme.NONE, "weight": 1 << 14}, "fraction_bits"),
    ],
)
def test_what_cannot_work_is_refused_before_any_round(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        operators(**settings)


def test_a_scheme_that_fits_no_tensor_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="fits no tensor"):
        Operators(CompressionSettings(scheme=Scheme.PRODUCT), {"weight": (2, 2)}, bytes(32), 5)


def test_unit_codebooks_are_learned_once_and_have_length_one() -> None:
    books = unit_codebooks(16, 9)
    assert unit_codebooks(16, 9) is books
    points = np.random.default_rng(1).laplace(size=(4000, 9)) / np.sqrt(2)
    nearest = np.argmin(((points[:, None] - books[0][None]) ** 2).sum(axis=2), axis=1)
    left = ((points - books[0][nearest]) ** 2).mean()
    assert 0.5 < left < 0.75  # Zeros would leave 1; four bits for nine values remove at most about 0.46.


def test_lengths_are_those_of_what_moved() -> None:
    values = np.zeros((100, 4), dtype=np.float32)
    assert length(values) == 0
    values[:5] = 2
    assert length(values) == pytest.approx(2)
    assert reach(-values) == 2
    generator = np.random.default_rng(0)
    assert rotated_reach(generator.normal(size=4096)) == pytest.approx(np.sqrt(2 * np.log(4096)), rel=0.05)


def test_a_broadcast_is_its_epoch_and_its_scales() -> None:
    assert encode_scales(7, [0.5, 0.25]) == (7).to_bytes(8, "big") + bytes.fromhex("3f0000003e800000")


def test_a_tensor_that_never_moves_is_no_problem() -> None:
    made = operators(scheme=Scheme.SCALAR, wrap=True)
    still = [{**update, "head.weight": np.zeros((10, 36), dtype=np.float32)} for update in updates()]
    means = [play(made, number, still)[1] for number in range(3)]
    assert not any(mean["head.weight"].any() for mean in means)


def second_round(given: Updates, **settings: Any) -> tuple[Operators, dict[str, npt.NDArray[np.float32]]]:
    """Return the operators after a calibrating and a compressed round, and the latter's mean."""
    made = operators(len(given), **settings)
    play(made, 0, given)
    return made, play(made, 1, given)[1]


@pytest.mark.parametrize("scheme", [Scheme.SCALAR, Scheme.PRODUCT])
def test_biases_in_few_bits_go_through_a_ring_that_the_cohort_cannot_leave(scheme: Scheme) -> None:
    given = updates(clients=20)
    made, mean = second_round(given, scheme=scheme, wrap=scheme is Scheme.SCALAR, vector_bits=6)
    segments = scheme_of(made.codec, "head.bias").layout.segments
    assert segments == (RingSegment(11, 10),)
    exact = np.mean([update["head.bias"] for update in given], axis=0)
    reach = np.mean([np.abs(update["head.bias"]).max() for update in given])
    # A code's step is reach / 31.5; values beyond the mean reach are clipped, at single clients.
    assert np.abs(mean["head.bias"] - exact).max() < reach / 10
    # A sum at full reach stays in the ring.
    everybody = [{name: np.full(shape, 9.0, np.float32) for name, shape in SHAPES.items()}] * 20
    codec = made.begin(2, dict)
    saturated = made.decode(ideal_aggregate(codec.update.layout, [made.encode(u, SystemCoins()) for u in everybody]))
    assert (saturated["head.bias"] > 0).all()


def test_a_layer_of_its_own_may_have_more_codewords_than_it_could_teach() -> None:
    made, _ = second_round(
        updates(clients=20), scheme=Scheme.PRODUCT, codewords=16, block_size=9, layers=("conv.weight=32/3",)
    )
    own, other = scheme_of(made.codec, "conv.weight"), scheme_of(made.codec, "head.weight")
    assert isinstance(own, ProductQuantization)
    assert isinstance(other, ProductQuantization)
    assert own.layout.segments == (IndexSegment(32, 96),)
    # The others keep the paper's cap: four blocks for each codeword.
    assert other.layout.segments == (IndexSegment(8, 40),)
    ratio = own.codebooks[0].values / np.where(unit_codebooks(32, 3)[0] == 0, np.inf, unit_codebooks(32, 3)[0])
    assert np.ptp(ratio[ratio != 0]) < 1e-2 * ratio.max()


def test_codewords_keep_the_share_of_a_signal_that_is_said_and_more_of_them_keep_more() -> None:
    shares = [kept_share(codewords, 9) for codewords in (4, 8, 16)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    generator = np.random.default_rng(5)
    blocks = generator.laplace(size=(4000, 4)) / np.sqrt(2)
    book = unit_codebooks(16, 4)[0]
    nearest = ((blocks[:, None] - book) ** 2).sum(2).argmin(1)
    assert kept_share(16, 4) == pytest.approx(float((blocks * book[nearest]).sum() / (blocks**2).sum()), abs=0.02)


def test_lengthened_means_are_as_long_as_what_the_clients_have_in_common() -> None:
    given = updates(clients=20, shared=0.3)
    settings: dict[str, Any] = {"scheme": Scheme.PRODUCT, "codewords": 16, "block_size": 6}
    exact = np.mean([update["head.weight"] for update in given], axis=0)
    slopes = list[float]()
    for is_lengthened in (False, True):
        _, mean = second_round(given, **settings, is_lengthened=is_lengthened)
        slopes.append(float((mean["head.weight"] * exact).sum() / (exact * exact).sum()))
    made, _ = second_round(given, **settings)
    book = scheme_of(made.codec, "head.weight").codebooks[0]
    assert slopes[1] == pytest.approx(slopes[0] / kept_share(book.codewords, book.block_size), rel=1e-6)
    assert slopes[0] < 0.75
    assert slopes[1] == pytest.approx(1, abs=0.2)


def test_the_preset_of_thirty_times_is_thirty_times_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def unlearned(codewords: int, block_size: int, stages: int = 1) -> tuple[npt.NDArray[np.float64], ...]:
        return tuple(np.random.default_rng(0).normal(size=(codewords, block_size)) for _ in range(stages))

    # A layout does not depend on the codebooks' values, and large ones take long to learn.
    monkeypatch.setattr("secagg.compression.model_update.scales.unit_codebooks", unlearned)
    shapes = {
        name: tuple(value.shape)
        for name, value in model_factory("stride", classes=10, shape=(1, 28, 28))().named_parameters()
    }
    made = Operators(preset("fashion-pq30").compression, shapes, bytes(32), 20)
    assert parameter_count(shapes) * 4 / upload_bytes(made.planned().layout, Accounting.PAPER) >= 30
