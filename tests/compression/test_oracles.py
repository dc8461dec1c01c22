"""The oracles: inputs and outputs from the paper's simulator or from arithmetic; every binding case must hold.

The cases are in ``tests/vectors/compression/oracles.json`` and, if SECAGG_ORACLES names another file of the same form,
in that file. Each kind of case has one function here, from a case's input to the expected output.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression import product_quantization
from secagg.compression.byte_accounting import (
    Accounting,
    codebook_bytes,
    product_quantization_layout,
    scalar_quantization_layout,
    upload_bytes,
)
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.product_quantization import Codebook, ProductQuantization, block_geometry
from secagg.compression.random_pruning import kept_count
from secagg.compression.scalar_quantization import ScalarQuantization, calibrate, modulus_bits_for, overflowed
from secagg.contract import Aggregate, Layout, LinearDecoder, Payload, RingSegment, ideal_aggregate
from secagg.contract.decoder import capacity
from secagg.crypto.ring import Ring
from secagg.simulation.insecure_coins import InsecureSeededCoins

Case = dict[str, Any]
Results = dict[str, Any]
COMMITTED = Path(__file__).parents[1] / "vectors" / "compression" / "oracles.json"
COINS = InsecureSeededCoins(b"rounding to nearest draws none of them")
LEAST_CASES = 21


def binding_cases() -> list[Case]:
    named = os.environ.get("SECAGG_ORACLES")
    files = [COMMITTED, *([Path(named)] if named else [])]
    cases: list[Case] = [case for file in files for case in json.loads(file.read_text(encoding="utf-8"))["cases"]]
    return [case for case in cases if case["must"]]


def encoded(scheme: LinearDecoder[Any], update: npt.NDArray[Any]) -> Payload:
    return scheme.encode(update, COINS)


def codes_of(scheme: ScalarQuantization, update: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return Ring(scheme.modulus_bits).lift(encoded(scheme, update).values[0]).reshape(update.shape)


def decoded_sum(
    scheme: LinearDecoder[Any], updates: Sequence[npt.NDArray[Any]], weights: Sequence[int] | None = None
) -> Any:
    return scheme.decode(aggregated(scheme, updates, weights))


def aggregated(
    scheme: LinearDecoder[Any], updates: Sequence[npt.NDArray[Any]], weights: Sequence[int] | None = None
) -> Aggregate:
    return ideal_aggregate(scheme.layout, [encoded(scheme, update) for update in updates], weights)


def weights_of(given: Case, clients: int) -> list[int]:
    return list(given.get("integer_weights") or given.get("weights") or [1] * clients)


def floats(values: Any) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def sq_quantize(given: Case) -> Results:
    bits, update = given["b"], floats(given["quantize"])
    calibrated = calibrate(
        floats(given["calibrate_on"]), bits=bits, modulus_bits=bits + 8, affine=given["scheme"] == "affine"
    )
    scheme = replace(calibrated, shape=update.shape)
    return {
        "scale": scheme.scales[0],
        "zero_point": scheme.zero_points[0],
        "quant_min": scheme.least,
        "quant_max": scheme.greatest,
        "q": codes_of(scheme, update),
        "dequantized": decoded_sum(scheme, [update]),
    }


def sq_decompress_sum(given: Case) -> Results:
    clients = floats(given["clients"])
    weights = weights_of(given, len(clients))
    total = sum(weights)
    scheme = ScalarQuantization(
        shape=clients.shape[1:],
        bits=given["b"],
        modulus_bits=modulus_bits_for(given["b"], total),
        scales=(given["scale"],),
        zero_points=(given["zero_point"],),
    )
    decompressed = decoded_sum(scheme, list(clients), weights)
    sums = aggregated(scheme, list(clients), weights).values[0]
    return {
        "q": [codes_of(scheme, client) for client in clients],
        "sum_q": Ring(scheme.modulus_bits).lift(sums),
        "decompressed_sum": decompressed,
        "decompressed_mean": decompressed / total,
    }


def secagg_sum(given: Case) -> Results:
    return secagg_margin(given) if "q_extreme" in given else secagg_group(given)


def secagg_margin(given: Case) -> Results:
    ring, clients = Ring(given["p"]), given["N"]
    extremes = np.array([given["q_extreme"], -given["q_extreme"] - 1]) * clients
    assert (capacity(given["b"], given["p"]) >= clients) is not bool(overflowed(extremes, given["p"]).any())
    return {
        "min_sum": extremes.min(),
        "max_sum": extremes.max(),
        "group_min": ring.least,
        "group_max": ring.greatest,
        "overflow": overflowed(extremes, given["p"]).any(),
    }


def secagg_group(given: Case) -> Results:
    ring, codes = Ring(given["p"]), np.array(given["q"])
    weights = weights_of(given, len(codes))
    masks = [np.array(mask, dtype=ring.word) for mask in given.get("masks", np.zeros_like(codes))]
    layout = Layout((RingSegment(given["p"], codes.shape[1]),))
    inputs = [Payload(layout, (ring.from_integers(row),)) for row in codes]
    weighted = [ideal_aggregate(layout, [one], [weight]).values[0] for one, weight in zip(inputs, weights, strict=True)]
    masked = [ring.add(vector, mask) for vector, mask in zip(weighted, masks, strict=True)]
    masked_sum, mask_sum = ring.sum(masked, codes.shape[1]), ring.sum(masks, codes.shape[1])
    recovered = ring.lift(ring.subtract(masked_sum, mask_sum))
    assert (recovered == ring.lift(ideal_aggregate(layout, inputs, weights).values[0])).all()
    true_sum = np.array(weights) @ codes
    return {
        "masked": masked,
        "masked_sum_mod": masked_sum,
        "mask_sum_mod": mask_sum,
        "recovered_signed": recovered,
        "true_sum": true_sum,
        "overflowed": overflowed(true_sum, given["p"]),
    }


def overflow(given: Case) -> Results:
    left = overflowed(np.array(given["sums"]), given["p"])
    return {"overflowed": left, "percent": 100 * left.mean()}


def prune_kept_count(given: Case, expected: Results) -> Results:
    return {
        "kept": {
            sparsity: {name: kept_count(math.prod(shape), sparsity) for name, shape in given["shapes"].items()}
            for sparsity in expected["kept"]
        }
    }


def pq_geometry(_: Case, expected: Results) -> Results:
    rows = list[Results]()
    for row in expected["rows"]:
        geometries = {count: block_geometry(tuple(row["shape"]), row["d"], int(count)) for count in row["K"]}
        (size,) = {geometry.block_size for geometry in geometries.values()}
        (blocks,) = {geometry.blocks for geometry in geometries.values()}
        counts = {count: geometry.codewords for count, geometry in geometries.items()}
        rows.append({"shape": row["shape"], "d": row["d"], "block": size, "blocks": blocks, "K": counts})
    return {"rows": rows}


def product_scheme(given: Case, shape: tuple[int, ...]) -> ProductQuantization:
    scheme = ProductQuantization(shape=shape, codebooks=(Codebook(floats(given["codebook"])),))
    assert scheme.block_size == given["block"]
    return scheme


def assignments_of(scheme: ProductQuantization, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return encoded(scheme, weight).values[0].reshape(len(weight), -1)


def pq_assign_decode(given: Case) -> Results:
    weight = floats(given["weight"])
    scheme = product_scheme(given, weight.shape)
    decoded = decoded_sum(scheme, [weight])
    return {
        "assignments_out_by_block": assignments_of(scheme, weight),
        "decoded": decoded,
        "squared_error": ((decoded - weight) ** 2).sum(),
    }


def secind(given: Case) -> Results:
    clients = floats(given["clients"])
    weights = weights_of(given, len(clients))
    scheme = product_scheme(given, clients[0].shape)
    plain, weighted = aggregated(scheme, list(clients)), aggregated(scheme, list(clients), weights)
    histogram_shape = (len(clients[0]), -1, len(given["codebook"]))
    return {
        "assignments": [assignments_of(scheme, client) for client in clients],
        "histogram": plain.values[0].reshape(histogram_shape),
        "sum_update": scheme.decode(plain),
        "weighted_histogram": weighted.values[0].reshape(histogram_shape),
        "weighted_sum_update": scheme.decode(weighted),
    }


def kmeans(given: Case) -> Results:
    """Read the rows from a sentence such as "300 x 2: 100 rows of 1, 100 rows of 2, 100 rows of 3"."""
    size, _, groups = given["weight"].partition(":")
    height, width = (int(number) for number in size.split("x"))
    counted = re.findall(r"(\d+) rows of (-?[\d.]+)", groups)
    weight = np.concatenate([np.full((int(rows), width), float(value)) for rows, value in counted])
    assert weight.shape == (height, width)
    scheme = product_quantization.calibrate(
        weight,
        block_size=given["block"],
        codewords=given["k"],
        seed=bytes(32),
        iterations=given["iterations"],
        keep_zero=False,
    )
    codebook = scheme.codebooks[0].values
    return {
        "codebook_sorted": codebook[np.lexsort(codebook.T[::-1])],
        "decode_error": np.abs(decoded_sum(scheme, [weight]) - weight).max(),
    }


def upload_sizes(given: Case, expected: Results) -> Results:
    """Compute each size by its key: the width of the ring, or the caps on codewords and block, as in "k=8,d=4"."""
    shapes = {name: tuple(shape) for name, shape in given["shapes"].items()}
    sizes = dict[str, Any]()
    for key in expected.get("bytes", expected):
        caps = dict(part.split("=") for part in key.split(",")) if "=" in key else None
        if caps is None:
            sizes[key] = float(upload_bytes(scalar_quantization_layout(shapes, int(key)), Accounting.PAPER))
            continue
        codewords, block = int(caps["k"]), int(caps["d"])
        upload = upload_bytes(product_quantization_layout(shapes, codewords, block), Accounting.PAPER)
        books = codebook_bytes(shapes, codewords, block)
        sizes[key] = {"reported": float(upload + books), "codebooks": books, "uplink_without_codebooks": float(upload)}
    return {"bytes": sizes} if "bytes" in expected else sizes


def fedavg(given: Case) -> Results:
    updates = given["client_updates_before_minus_after"]
    weights = weights_of(given, len(updates))
    scheme = FixedPoint(length=1, clip=1.0, fraction_bits=32, modulus_bits=64)
    (total,) = decoded_sum(scheme, [np.array([update]) for update in updates], weights)
    return {"global_after": given["global_before"] - given["server_lr"] * total / sum(weights)}


KINDS: dict[str, Callable[..., Results]] = {
    "sq_quantize": sq_quantize,
    "sq_decompress_sum": sq_decompress_sum,
    "secagg_sum": secagg_sum,
    "overflow": overflow,
    "prune_kept_count": prune_kept_count,
    "pq_geometry": pq_geometry,
    "pq_assign_decode": pq_assign_decode,
    "secind": secind,
    "kmeans": kmeans,
    "bytes": upload_sizes,
    "fedavg": fedavg,
}
KEYS_FROM_EXPECTED = (prune_kept_count, pq_geometry, upload_sizes)
"""Kinds whose expected output names the parameters to compute."""


def check(case: Case) -> None:
    assert case["kind"] in KINDS, f"{case['id']} is of the kind {case['kind']}, for which a function is due here"
    compute, expected = KINDS[case["kind"]], case["expected"]
    computed = compute(case["input"], expected) if compute in KEYS_FROM_EXPECTED else compute(case["input"])
    unknown = expected.keys() - computed.keys()
    assert not unknown, f"{case['id']} expects {sorted(unknown)}, which the kind {case['kind']} does not compute"
    for key, value in expected.items():
        compare(computed[key], value, allowed(key, value, case["tolerance"]), f"{case['id']}: {key}")


def allowed(key: str, expected: Any, tolerance: Case) -> float:
    """Return the absolute tolerance of a quantity: its own or the case's common one."""
    if f"{key}_rel" in tolerance:
        return float(tolerance[f"{key}_rel"] * abs(expected))
    return float(tolerance.get(f"{key}_abs") or tolerance.get("abs") or 0.0)


def compare(computed: Any, expected: Any, tolerance: float, place: str) -> None:
    children = children_of(expected)
    if children is None:
        assert abs(float(computed) - float(expected)) <= tolerance, f"{place}: {computed} instead of {expected}"
        return
    assert len(computed) == len(children), place
    for key, value in children.items():
        compare(computed[key], value, tolerance, f"{place}[{key}]")


def children_of(tree: Any) -> dict[Any, Any] | None:
    """Return the items of a list or an object by index or name; None for a number or a boolean."""
    match tree:
        case dict():
            return dict(cast("Mapping[Any, Any]", tree))
        case list():
            return dict(enumerate(cast("Sequence[Any]", tree)))
        case _:
            return None


@pytest.mark.parametrize("case", binding_cases(), ids=lambda case: str(case["id"]))
def test_the_case_holds(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", binding_cases(), ids=lambda case: str(case["id"]))
def test_the_case_would_notice_another_result(case: Case) -> None:
    for key in case["expected"]:
        spoiled = copy.deepcopy(case)
        spoil(spoiled["expected"], key)
        with pytest.raises(AssertionError):
            check(spoiled)


def spoil(tree: Any, key: Any) -> None:
    """Change the last number or boolean below a key."""
    children = children_of(tree[key])
    if children is None:
        tree[key] = not tree[key] if type(tree[key]) is bool else tree[key] + 1
    else:
        spoil(tree[key], next(reversed(children)))


def test_every_kind_is_among_the_committed_cases() -> None:
    committed = [case for case in json.loads(COMMITTED.read_text(encoding="utf-8"))["cases"] if case["must"]]
    assert len(committed) >= LEAST_CASES
    assert {case["kind"] for case in committed} == KINDS.keys()
