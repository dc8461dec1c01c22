"""The aggregated tensors of a model, their schemes, and the model made from a mean."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import decode_parameters, encode_parameters
from secagg.compression.model_update.arrays import TENSOR, aggregated_names, applied, differences, model_digest
from secagg.compression.model_update.summed_values import (
    TOLD,
    clipped_share,
    integer_bound,
    rounded_at_random,
    steps_in,
    taken_told,
    with_told,
)
from secagg.compression.model_update.weighting import weighted
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.platforms.schemes import HEADROOM, SchemeChoice
from secagg.platforms.settings import SecAggSettings

SEED = bytes(32)


def model() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "b": np.ones(2, dtype=np.float64),
        "h": np.ones(3, dtype=np.float16),
        "n": np.array(7, dtype=np.int64),
        "u": np.array([250, 3], dtype=np.uint8),
        "e": np.zeros((0, 2), dtype=np.float32),
    }


def trained(by: float, count: int) -> dict[str, np.ndarray[Any, Any]]:
    after = {name: array.copy() for name, array in model().items()}
    for name in ("w", "b", "h"):
        after[name] = (after[name] + by).astype(after[name].dtype)
    after["n"] = np.asarray(after["n"] + count)
    after["u"] = (after["u"] - 2).astype(np.uint8)
    return after


def parameters(settings: SecAggSettings | None = None, clients: int = 100, **changes: Any) -> Any:
    given: dict[str, Any] = {"seed": SEED, "epoch": 1, **changes}
    return SchemeChoice(settings or SecAggSettings(), clients).parameters(model(), **given)


def test_means_of_differences_give_the_model_back_with_every_dtype_kept() -> None:
    """Floats are weighted by examples; integers, whose low bits would distinguish clients, have equal weights."""
    update, payloads = parameters(), list[Any]()
    for by, count, examples in ((0.5, 4, 256), (-0.1, 8, 768)):
        values = differences(model(), trained(by, count), integer_bound(update, model()))
        values = weighted(update.schemes, values, examples, SystemCoins())
        payloads.append(update.encode(values, SystemCoins(), partial(rounded_at_random, SystemCoins())))
    mean = update.mean(ideal_aggregate(update.layout, payloads))
    result = applied(model(), mean)
    assert {name: array.dtype for name, array in result.items()} == {n: a.dtype for n, a in model().items()}
    assert np.allclose(result["w"], model()["w"] + 0.05, atol=2**-14)
    assert np.allclose(result["b"], model()["b"] + 0.05, atol=2**-14)
    assert result["n"] == 7 + 6
    assert result["u"].tolist() == [248, 1]
    assert result["e"].shape == (0, 2)


def test_the_mean_of_integers_is_rounded_to_the_nearest() -> None:
    mean = {TENSOR + "n": np.array(2.5001)}
    assert applied({"n": np.array(7, dtype=np.int32)}, mean)["n"] == 10


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"w": np.zeros((3, 4), np.float32)}, "did not return these tensors"),
        ({**trained(0, 0), "extra": np.zeros(1)}, "did not return these tensors"),
        ({**trained(0, 0), "w": np.zeros((4, 3), np.float32)}, "'w' was sent with shape"),
        ({**trained(0, 0), "n": np.array(7.5)}, "'n' was sent as int64 but returned as float64"),
        ({**trained(0, 0), "w": np.zeros((3, 4), bool)}, "'w' was sent as float32 but returned as bool"),
    ],
)
def test_what_is_no_update_of_the_model_is_refused_by_name(after: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        differences(model(), after, 1000.0)


@pytest.mark.parametrize("change", [-1001, 1001])
def test_an_integer_that_changed_too_much_counts_as_its_bound(change: int) -> None:
    assert differences(model(), trained(0, change), 1000.0)[TENSOR + "n"] == np.sign(change) * 1000


@pytest.mark.parametrize(("after", "change"), [(11.0, 4), (7.0, 0), (np.inf, 1000), (-1e300, -1000)])
def test_whole_numbers_that_training_made_floats_of_are_counted(after: float, change: int) -> None:
    returned = {**trained(0, 0), "n": np.array(after)}
    assert differences(model(), returned, 1000.0)[TENSOR + "n"] == change
    with pytest.raises(InvalidParameters, match="'n' was sent as int64"):
        differences(model(), {**returned, "n": np.array(np.nan)}, 1000.0)


@pytest.mark.parametrize("dtype", [complex, "U3"])
def test_a_dtype_without_a_sum_is_refused_by_name(dtype: Any) -> None:
    with pytest.raises(InvalidParameters, match="'odd' is of dtype"):
        aggregated_names({"w": np.zeros(2), "odd": np.zeros(2).astype(dtype)})


def test_a_model_without_elements_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="no non-empty tensor"):
        aggregated_names({"e": np.zeros((0, 3))})


def test_the_digest_covers_names_dtypes_shapes_order_and_values() -> None:
    base = {"a": np.zeros(4, np.float32), "b": np.ones(2, np.float32)}
    others: list[dict[str, Any]] = [
        {"a": np.zeros(4, np.float32), "c": np.ones(2, np.float32)},
        {"a": np.zeros(4, np.int32), "b": np.ones(2, np.float32)},
        {"a": np.zeros((2, 2), np.float32), "b": np.ones(2, np.float32)},
        {"b": np.ones(2, np.float32), "a": np.zeros(4, np.float32)},
        {"a": np.full(4, 1e-30, np.float32), "b": np.ones(2, np.float32)},
    ]
    digests = [model_digest(each) for each in (base, *others)]
    assert len(set(digests)) == len(digests)
    assert model_digest({**base}) == digests[0]


def test_scales_come_from_what_clients_told_and_travel_as_bytes() -> None:
    settings = SecAggSettings(compression="scalar-8")
    first = parameters(settings)
    assert not any(isinstance(tensor.scheme, ScalarQuantization) for tensor in first.tensors)
    assert [tensor.shape for tensor in first.tensors if tensor.name in TOLD] == [(1,)]
    second = parameters(settings, told={TENSOR + "w": 0.01})
    (quantized,) = [tensor for tensor in second.tensors if isinstance(tensor.scheme, ScalarQuantization)]
    assert quantized.name == TENSOR + "w"
    assert quantized.scheme.scales[0] * 127.5 == pytest.approx(HEADROOM * 0.01)
    assert decode_parameters(encode_parameters(second)).layout == second.layout
    assert second.capacity >= 100


@pytest.mark.parametrize(("compression", "told"), [("scalar-8", 0.5), ("pq-4x2", 0.25)])
def test_clients_tell_how_far_a_tensor_reaches_or_how_long_it_is(compression: str, told: float) -> None:
    settings = SecAggSettings(
        compression=compression, protocol="enclave", roster="keys/roster.txt", weighting="uniform"
    )
    update, values = parameters(settings), differences(model(), trained(0.0, 0), 1000.0)
    values[TENSOR + "w"] = np.full_like(values[TENSOR + "w"], 0.25)
    values[TENSOR + "w"][0, 0] = 0.5 if compression == "scalar-8" else 0.0
    values = with_told(update, values, model())
    values = weighted(update.schemes, values, 1, SystemCoins())
    mean = update.mean(ideal_aggregate(update.layout, [update.encode(values, SystemCoins())]))
    assert taken_told(mean, model()) == {TENSOR + "w": pytest.approx(told, abs=1e-6)}
    assert not mean.keys() & TOLD.keys()


def test_what_did_not_move_has_no_scale_and_travels_in_fixed_point() -> None:
    still = parameters(SecAggSettings(compression="scalar-8"), told={TENSOR + "w": 0.0})
    assert not any(isinstance(tensor.scheme, ScalarQuantization) for tensor in still.tensors)


@pytest.mark.parametrize("clients", [1, 100, 8000, 20_000, 10**7])
@pytest.mark.parametrize("bits", [8, 16])
def test_no_sum_leaves_its_ring_and_the_step_is_the_one_that_was_configured(clients: int, bits: int) -> None:
    update = parameters(SecAggSettings(fraction_bits=bits, metrics="loss", metric_bound=16.0), clients=clients)
    assert update.capacity >= clients
    steps = {t.name: t.scheme.fraction_bits for t in update.tensors if isinstance(t.scheme, FixedPoint)}
    assert steps[TENSOR + "w"] == steps[TENSOR + "b"] == bits
    wider = {t.scheme.modulus_bits for t in update.tensors if t.name == TENSOR + "w"}
    assert wider == {max(8, (4 * 2**bits * clients).bit_length() + 1)}


def test_rounding_at_random_loses_nothing_on_average_and_moves_nothing_by_more_than_a_step() -> None:
    values = {TENSOR + "w": np.full((300, 300), 0.3 * 2**-16)}
    update = SchemeChoice(SecAggSettings(), 8).parameters({"w": values[TENSOR + "w"]}, seed=SEED, epoch=1)
    (tensor,) = (tensor for tensor in update.tensors if tensor.name == TENSOR + "w")
    rounded = rounded_at_random(SystemCoins(), tensor, values[tensor.name])
    assert set(np.unique(rounded)) == {0.0, 2**-16}
    # Six standard deviations of the mean of 90,000.
    assert abs(float(rounded.mean()) * 2**16 - 0.3) < 6 * 0.46 / 300
    assert steps_in(update, values) == pytest.approx(0.3)


def test_metrics_whose_steps_would_be_coarse_are_refused() -> None:
    with pytest.raises(InvalidParameters, match="lower secagg-metric-bound"):
        parameters(SecAggSettings(metrics="loss", metric_bound=1e9), clients=1 << 20)


def test_a_ring_that_is_too_narrow_is_refused_with_the_keys_that_repair_it() -> None:
    with pytest.raises(InvalidParameters, match="secagg-clip or secagg-fraction-bits"):
        parameters(SecAggSettings(modulus_bits=16), clients=8000)


def test_what_is_cut_off_is_counted() -> None:
    update = parameters()
    values = differences(model(), trained(0.0, 0), 1000.0)
    assert clipped_share(update, values) == 0.0
    values[TENSOR + "w"][0, 0] = 5.0
    assert clipped_share(update, values) == pytest.approx(1 / 20)
