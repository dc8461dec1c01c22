"""Clipped, rotated and rounded updates: bounded, unbiased, and within steps of the plain sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis.extra.numpy import arrays

from secagg.compression.rotation import RoundedRotation
from secagg.conformance import Candidate, Law, cases
from secagg.contract import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.privacy.kinds import squared_norm
from secagg.privacy.rounding import rounded_norm
from tests.harness.rotations import rotation

SIZE = 3000
LENGTH, CLIP = 19, 4.0


def small(**changes: Any) -> RoundedRotation:
    """Return a code of few values and a wide ring, for the laws of every scheme."""
    stream = {name: changes.pop(name) for name in ("seed", "round_number", "block_size") if name in changes}
    chosen: dict[str, Any] = {"clip": CLIP, "l2_bound": 4000, "modulus_bits": 24, "clients": 20, **changes}
    return RoundedRotation(rotation=rotation(LENGTH, **stream), **chosen)


def clipped(update: Any) -> Any:
    norm = float(np.linalg.norm(update.astype(np.float64)))
    return (update * min(1.0, CLIP / norm if norm else 1.0)).astype(np.float32)


CANDIDATE = Candidate(
    name="rounded_rotation",
    make=small,
    updates=arrays(np.float32, LENGTH, elements={"min_value": -8.0, "max_value": 8.0}),
    expected=clipped,
    error=small().step * small().rotation.padded ** 0.5 + 1e-5,
    extremes=[np.full(LENGTH, 8.0, np.float32), np.full(LENGTH, -8.0, np.float32)],
    bad_updates={"two dimensions": np.zeros((LENGTH, 1))},
    others={
        "another seed": lambda: small(seed=bytes(32)),
        "another round": lambda: small(round_number=6),
        "another block": lambda: small(block_size=4),
        "another clip": lambda: small(clip=3.0),
        "another bound": lambda: small(l2_bound=4001),
        "another ring": lambda: small(modulus_bits=25),
        "more clients": lambda: small(clients=21),
    },
    stochastic=True,
    tight_capacity=False,
)


@pytest.mark.parametrize(("scheme", "law"), cases(CANDIDATE), ids=str)
def test_the_scheme_keeps_the_law(scheme: Candidate, law: Law) -> None:
    law.check(scheme)


def code(**changes: Any) -> RoundedRotation:
    turned = rotation(SIZE, 1024, round_number=changes.pop("round_number", 1))
    chosen: dict[str, Any] = {"clip": 0.5, "modulus_bits": 16, "clients": 20, "noise_share": 1.0, **changes}
    return RoundedRotation.planned(turned, **chosen)


def update(seed: int, length: float = 0.4) -> np.ndarray[Any, np.dtype[np.float32]]:
    values = np.random.default_rng(seed).standard_normal(SIZE)
    return (values * (length / np.linalg.norm(values))).astype(np.float32)


def test_a_sum_decodes_to_the_sum_of_the_updates_up_to_its_steps() -> None:
    scheme = code()
    updates = [update(seed) for seed in range(20)]
    total = ideal_aggregate(scheme.layout, [scheme.encode(one, SystemCoins()) for one in updates])
    apart = scheme.decode(total) - np.sum(updates, axis=0)
    assert np.sqrt((apart**2).mean()) == pytest.approx(scheme.step * (20 / 6) ** 0.5, rel=0.3)
    assert np.abs(apart).max() < 6 * scheme.step * 5**0.5


@pytest.mark.parametrize("length", [0.0, 0.4, 0.5, 7.0])
def test_whatever_is_encoded_is_within_the_bound(length: float) -> None:
    scheme = code(modulus_bits=20)
    payload = scheme.encode(update(1, length), SystemCoins())
    (segment,) = scheme.layout.require_rings()
    assert squared_norm(segment.ring, payload.values[0]) <= scheme.l2_bound**2
    decoded = scheme.decode(ideal_aggregate(scheme.layout, [payload]))
    assert np.linalg.norm(decoded) <= scheme.largest_norm * (1 + 1e-5)
    if length == 7:
        assert np.linalg.norm(decoded) == pytest.approx(scheme.clip, rel=0.05), "it was clipped"


def test_a_ring_that_holds_no_sum_names_one_that_does() -> None:
    with pytest.raises(InvalidParameters, match="use 9 bits"):
        code(modulus_bits=7)
    code(modulus_bits=9)


def test_a_bound_below_the_least_norm_of_the_code_is_refused() -> None:
    scheme = code()
    least = int(rounded_norm(0, scheme.rotation.padded)) + 1
    chosen: dict[str, Any] = {"rotation": scheme.rotation, "clip": 0.5, "modulus_bits": 16, "clients": 20}
    with pytest.raises(InvalidParameters, match=f"the minimum is {least}"):
        RoundedRotation(l2_bound=least - 1, **chosen)
    RoundedRotation(l2_bound=least, **chosen)


def test_parameters_out_of_range_are_refused() -> None:
    for wrong in ({"clip": float("nan")}, {"clip": 1}, {"clients": 0}):
        with pytest.raises(InvalidParameters, match=r"clip must be a float|clients must be|an integer"):
            code(**wrong)
