"""Random pruning: golden masks, uniform masks, exact counts, and an inner scheme for kept values."""

import hashlib
import json
from fractions import Fraction
from math import floor, prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.random_pruning import RandomPruning, exact_sparsity, kept_count, pruning_mask
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.conformance import Candidate, Law, cases
from secagg.contract import LinearDecoder
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, Misuse

VECTORS = Path(__file__).parents[1] / "vectors" / "compression" / "random_pruning.json"
SEED = bytes(range(32))
STEP = 2.0**-8
FLOATS = (np.float16, np.float32, np.float64)


def stream(**changes: Any) -> PublicStream:
    parameters: dict[str, Any] = {"seed": SEED, "round_number": 5, "tensor_name": "fc.weight", "shape": (3, 4)}
    return PublicStream(**(parameters | changes))


def quantizer(kept: int, **changes: Any) -> ScalarQuantization:
    parameters: dict[str, Any] = {"shape": (kept,), "bits": 6, "modulus_bits": 12, "scales": (STEP,)}
    return ScalarQuantization(**(parameters | changes))


def scheme(inner: LinearDecoder[Any] | None = None, sparsity: Fraction | str = "0.6", **changes: Any) -> RandomPruning:
    place = stream(**changes)
    return RandomPruning(
        stream=place, sparsity=sparsity, inner=inner or quantizer(kept_count(place.size, sparsity), zero_points=(3,))
    )


def masked(update: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.where(scheme().mask, np.clip(update.astype(np.float64), -35 * STEP, 28 * STEP), 0.0)


QUANTIZED = Candidate(
    name="random_pruning",
    make=scheme,
    updates=st.one_of([arrays(kind, (3, 4), elements={"min_value": -0.25, "max_value": 0.25}) for kind in FLOATS]),
    error=STEP / 2 * 1.001,
    expected=masked,
    extremes=[np.full((3, 4), 1.0), np.full((3, 4), -1.0)],
    bad_updates={"what is kept": np.zeros(5), "integers": np.zeros((3, 4), dtype=np.int64)},
    others={
        "another seed": lambda: scheme(seed=bytes(32)),
        "another round": lambda: scheme(round_number=6),
        "another tensor": lambda: scheme(tensor_name="fc.weights"),
        "another shape": lambda: scheme(shape=(4, 3)),
        "another sparsity": lambda: scheme(sparsity="0.5"),
        "another inner scheme": lambda: scheme(quantizer(5)),
    },
    payload_bytes=8,
)

FIXED = Candidate(
    name="random_pruning_of_fixed_point",
    make=lambda: scheme(FixedPoint(length=5, clip=1.0, fraction_bits=10, modulus_bits=20)),
    updates=arrays(np.float64, (3, 4), elements=st.floats(-1.0, 1.0)),
    error=2.0**-11,
    expected=lambda update: np.where(scheme().mask, update, 0.0),
    extremes=[np.full((3, 4), 1.0), np.full((3, 4), -1.0)],
    others={"codes inside": scheme},
)


@pytest.mark.parametrize(("candidate", "law"), cases(QUANTIZED, FIXED), ids=str)
def test_the_scheme_keeps_the_law(candidate: Candidate, law: Law) -> None:
    law.check(candidate)


def mask_by_definition(place: PublicStream, sparsity: Fraction, attempt: int) -> list[bool] | None:
    """Follow the words of the module's documentation without numpy; None if the attempt must be repeated."""
    size = prod(place.shape)
    kept = size - floor(sparsity * size)
    dimensions = b"".join(dimension.to_bytes(8, "big") for dimension in place.shape)
    parts = [attempt.to_bytes(4, "big"), place.seed, place.round_number.to_bytes(8, "big")]
    parts += [place.tensor_name.encode("utf-8"), dimensions]
    hashed = b"secagg/1/pruning-mask" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    drawn = hashlib.shake_256(hashed).digest(4 * size)
    words = [int.from_bytes(drawn[4 * position : 4 * position + 4], "little") for position in range(size)]
    ordered = sorted(words)
    if kept < size and ordered[kept - 1] == ordered[kept]:
        return None
    return [word <= ordered[kept - 1] for word in words]


@pytest.mark.parametrize("case", json.loads(VECTORS.read_text(encoding="utf-8"))["cases"], ids=lambda c: c["comment"])
def test_masks_are_the_golden_ones(case: dict[str, Any]) -> None:
    place = PublicStream(
        seed=bytes.fromhex(case["seed"]),
        round_number=int(case["round_number"]),
        tensor_name=case["tensor_name"],
        shape=tuple(int(dimension) for dimension in case["shape"]),
    )
    mask = pruning_mask(place, case["sparsity"])
    assert mask.shape == place.shape
    assert int(mask.sum()) == kept_count(place.size, case["sparsity"]) == int(case["kept"])
    if "positions" in case:
        assert np.flatnonzero(mask).tolist() == [int(position) for position in case["positions"]]
    packed = np.packbits(mask.reshape(-1), bitorder="little").tobytes()
    assert hashlib.sha256(packed).hexdigest() == case["mask_sha256"]
    for attempt in range(int(case["attempt"])):
        assert mask_by_definition(place, Fraction(case["sparsity"]), attempt) is None


@given(
    st.binary(min_size=32, max_size=32),
    st.integers(0, (1 << 64) - 1),
    st.text(max_size=5).filter(lambda text: text.isprintable()),
    st.lists(st.integers(1, 6), max_size=3).map(tuple),
    st.fractions(0, Fraction(99, 100)),
)
def test_masks_are_what_their_definition_says(
    seed: bytes, round_number: int, name: str, shape: tuple[int, ...], sparsity: Fraction
) -> None:
    place = PublicStream(seed=seed, round_number=round_number, tensor_name=name, shape=shape)
    assert pruning_mask(place, sparsity).reshape(-1).tolist() == mask_by_definition(place, sparsity, 0)


def test_a_boundary_between_equal_words_is_decided_by_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = list[int]()
    drawn = [[5, 5, 5, 9], [1, 7, 7, 0], [4, 6, 6, 2], [3, 3, 8, 9]]

    def read(_: PublicStream, label: Label, count: int, attempt: int = 0) -> bytes:
        assert (label, count) == (Label.PRUNING_MASK, 16)
        attempts.append(attempt)
        return b"".join(word.to_bytes(4, "little") for word in drawn[attempt])

    monkeypatch.setattr(PublicStream, "read", read)
    assert pruning_mask(stream(shape=(4,)), "0.25").tolist() == [True, True, True, False]
    # Equal words that are all kept, or all removed, need no new attempt.
    assert pruning_mask(stream(shape=(4,)), "0.5").tolist() == [True, False, False, True]
    assert attempts == [0, 0, 1]


@pytest.mark.parametrize(
    ("size", "sparsity", "kept"),
    [
        (100, "0.29", 71),
        (864, "0.1", 778),
        (9216, "0.97", 277),
        (32, "0.7", 10),
        (32, "0.99", 1),
        (1, "0.999", 1),
        (3, "1/3", 2),
        (3, "0.3333", 3),
        (7, "1e-1", 7),
        (10**7, "0.29", 7_100_000),
        (2**40, "0", 2**40),
    ],
)
def test_counts_are_exact(size: int, sparsity: str, kept: int) -> None:
    assert kept_count(size, sparsity) == kept_count(size, Fraction(sparsity)) == kept


def test_floats_are_refused_as_sparsities() -> None:
    bad: Any
    for bad in (0.29, np.float64(0.5), 0, None):
        with pytest.raises(Misuse, match="Fraction"):
            exact_sparsity(bad)
        with pytest.raises(Misuse, match="Fraction"):
            scheme(quantizer(5), sparsity=bad)


@pytest.mark.parametrize("bad", ["1", "1.5", "-0.1", "half", "", "1/0", "nan", Fraction(1), Fraction(-1, 9)])
def test_a_sparsity_is_at_least_zero_and_below_one(bad: Fraction | str) -> None:
    with pytest.raises(InvalidParameters, match=r"sparsity|number"):
        kept_count(10, bad)


def test_a_size_is_a_positive_integer() -> None:
    bad: Any
    for bad in (0, -1, 10.0, True):
        with pytest.raises(InvalidParameters, match="size"):
            kept_count(bad, "0.5")


def test_the_version_is_pinned() -> None:
    assert scheme().layout.version.hex() == "52a26ac1b348d74b3bbd30670a58efe6b72f28d8b01f67366ece69af14b92b5b"


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"seed": bytes(31)}, "seed"),
        ({"seed": bytearray(32)}, "seed"),
        ({"round_number": -1}, "round_number"),
        ({"round_number": 1 << 64}, "round_number"),
        ({"round_number": True}, "round_number"),
        ({"tensor_name": "\ud800"}, "UTF-8"),
        ({"shape": (0,)}, "shape"),
        ({"shape": [3]}, "shape"),
        ({"shape": (1 << 20, 1 << 21)}, "2\\^40"),
    ],
    ids=repr,
)
def test_a_stream_is_made_from_what_has_one_encoding(bad: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidParameters, match=named):
        stream(**bad)


def test_a_name_that_is_no_text_is_misuse() -> None:
    with pytest.raises(Misuse, match="name"):
        stream(tensor_name=b"fc.weight")


def test_no_two_streams_have_one_encoding() -> None:
    parts = st.tuples(st.text("ab\0\1", max_size=12), st.lists(st.integers(1, 3), max_size=3).map(tuple))

    @given(parts, parts)
    def encodings_differ(one: tuple[str, tuple[int, ...]], other: tuple[str, tuple[int, ...]]) -> None:
        encodings = [stream(tensor_name=name, shape=shape).encode() for name, shape in (one, other)]
        assert (encodings[0] == encodings[1]) == (one == other)
        assert encodings[0] == encodings[1] or not encodings[0].startswith(encodings[1])

    encodings_differ()
