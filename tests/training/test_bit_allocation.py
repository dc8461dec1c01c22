"""Where bits go in an update: biases and norms, layers of their own, and the length that codewords lose."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.model_update.summed_values import kept_share, unit_codebooks
from secagg.compression.product_quantization import ProductQuantization
from secagg.contract import IndexSegment, RingSegment, ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.training.codec import Operators
from secagg.training.runs.driver import train
from secagg.training.settings.configuration import CompressionSettings, Scheme, changed
from secagg.training.settings.presets import preset

SHAPES = {"conv.weight": (8, 4, 3, 3), "conv.bias": (8,), "head.weight": (10, 36), "head.bias": (10,)}
CLIENTS = 20
Updates = list[dict[str, npt.NDArray[np.float32]]]


def updates(scale: float = 0.01, shared: float = 0.0, seed: int = 0) -> Updates:
    generator = np.random.default_rng(seed)
    common = {name: shared * generator.laplace(size=shape) for name, shape in SHAPES.items()}
    return [
        {
            name: (scale * (generator.laplace(size=shape) + common[name])).astype(np.float32)
            for name, shape in SHAPES.items()
        }
        for _ in range(CLIENTS)
    ]


def second_round(given: Updates, **settings: Any) -> tuple[Operators, dict[str, npt.NDArray[np.float32]]]:
    """Return the operators after a round that calibrates and one that is compressed, and the mean of that one."""
    made = Operators(CompressionSettings(**settings), SHAPES, bytes(32), CLIENTS)
    mean = dict[str, npt.NDArray[np.float32]]()
    for number in range(2):
        codec = made.begin(number, dict)
        payloads = [made.encode(update, SystemCoins()) for update in given]
        mean = made.decode(ideal_aggregate(codec.update.layout, payloads))
    return made, mean


def scheme_of(made: Operators, name: str) -> Any:
    return next(tensor.scheme for tensor in made.codec.tensors if tensor.name == name)


@pytest.mark.parametrize("scheme", [Scheme.SCALAR, Scheme.PRODUCT])
def test_biases_in_few_bits_go_through_a_ring_that_the_cohort_cannot_leave(scheme: Scheme) -> None:
    given = updates()
    made, mean = second_round(given, scheme=scheme, wrap=scheme is Scheme.SCALAR, vector_bits=6)
    segments = scheme_of(made, "head.bias").layout.segments
    assert segments == (RingSegment(11, 10),)
    exact = np.mean([update["head.bias"] for update in given], axis=0)
    reach = np.mean([np.abs(update["head.bias"]).max() for update in given])
    # A code's step is reach / 31.5; what reaches beyond the mean reach is clipped, in single clients.
    assert np.abs(mean["head.bias"] - exact).max() < reach / 10
    # What everybody sends at full reach stays in the ring.
    everybody = [{name: np.full(shape, 9.0, np.float32) for name, shape in SHAPES.items()}] * CLIENTS
    codec = made.begin(2, dict)
    saturated = made.decode(ideal_aggregate(codec.update.layout, [made.encode(u, SystemCoins()) for u in everybody]))
    assert (saturated["head.bias"] > 0).all()


def test_a_layer_of_its_own_may_have_more_codewords_than_it_could_teach() -> None:
    made, _ = second_round(updates(), scheme=Scheme.PRODUCT, codewords=16, block_size=9, layers=("conv.weight=64/3",))
    own, other = scheme_of(made, "conv.weight"), scheme_of(made, "head.weight")
    assert isinstance(own, ProductQuantization)
    assert isinstance(other, ProductQuantization)
    assert own.layout.segments == (IndexSegment(64, 96),)
    # The others keep the paper's cap: four blocks for each codeword.
    assert other.layout.segments == (IndexSegment(8, 40),)
    ratio = own.codebooks[0].values / np.where(unit_codebooks(64, 3)[0] == 0, np.inf, unit_codebooks(64, 3)[0])
    assert np.ptp(ratio[ratio != 0]) < 1e-2 * ratio.max()


def test_codewords_keep_the_share_of_a_signal_that_is_said_and_more_of_them_keep_more() -> None:
    shares = [kept_share(codewords, 9) for codewords in (4, 16, 64)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    generator = np.random.default_rng(5)
    blocks = generator.laplace(size=(4000, 4)) / np.sqrt(2)
    book = unit_codebooks(16, 4)[0]
    nearest = ((blocks[:, None] - book) ** 2).sum(2).argmin(1)
    assert kept_share(16, 4) == pytest.approx(float((blocks * book[nearest]).sum() / (blocks**2).sum()), abs=0.02)


def test_lengthened_means_are_as_long_as_what_the_clients_have_in_common() -> None:
    given = updates(shared=0.3)
    settings: dict[str, Any] = {"scheme": Scheme.PRODUCT, "codewords": 16, "block_size": 6}
    exact = np.mean([update["head.weight"] for update in given], axis=0)
    slopes = list[float]()
    for is_lengthened in (False, True):
        _, mean = second_round(given, **settings, is_lengthened=is_lengthened)
        slopes.append(float((mean["head.weight"] * exact).sum() / (exact * exact).sum()))
    made, _ = second_round(given, **settings)
    book = scheme_of(made, "head.weight").codebooks[0]
    assert slopes[1] == pytest.approx(slopes[0] / kept_share(book.codewords, book.block_size), rel=1e-6)
    assert slopes[0] < 0.75
    assert slopes[1] == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["compression.scheme=pruning", "compression.vector_bits=6"], "vector_bits takes scales"),
        (["compression.calibration=mock", "compression.vector_bits=6"], "vector_bits takes scales"),
        (["compression.vector_bits=17"], "compression.vector_bits is in 0..16"),
        (["compression.calibration=mock", "compression.is_lengthened=true"], "codebooks of no data"),
        (["compression.scheme=sq", "compression.is_lengthened=true"], "codebooks of no data"),
    ],
)
def test_what_cannot_be_combined_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InvalidParameters, match=message):
        changed(preset("fashion-pq"), changes)


def test_the_preset_of_thirty_times_goes_through_the_enclave_and_is_thirty_times_smaller() -> None:
    run = changed(preset("fashion-pq30"), ["rounds=2", "secagg.mode=real", "clients_per_round=3"])
    assert train(run)["factor"] >= 30
