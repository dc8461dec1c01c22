"""Proposals of a clip: an update's total loss by clipping and rounding is minimal there."""

from __future__ import annotations

import numpy as np
import pytest

import secagg
from secagg.quick.model_session import clip_for


def lost(update: np.ndarray, clip: float, bits: int) -> float:
    """Return the error of three clients with one update, by the library's own encoding."""
    return float(np.square(secagg.mean([update] * 3, clip=clip, bits=bits) - update).sum())


@pytest.mark.parametrize("bits", [4, 8])
def test_no_other_clip_loses_much_less(bits: int) -> None:
    update = np.random.default_rng(1).standard_t(3, 4096)
    best = clip_for(update, bits=bits) / 1.5
    # Three clients' roundings average, so the minimum is slightly larger than one client's.
    assert lost(update, best, bits) < 0.5 * min(lost(update, best * 4, bits), lost(update, best / 4, bits))
    assert (best < 0.9 * np.abs(update).max()) == (bits == 4)


def test_with_many_bits_nothing_is_cut() -> None:
    update = {"a": np.array([0.25, -0.5]), "b": [np.array(0.125), np.zeros(3)]}
    assert clip_for(update) == 0.75
    assert secagg.aggregate([update] * 3, clip=clip_for(update)).clipped == 0
    assert clip_for({**update, "c": np.array([np.nan, np.inf])}) == 0.75


def test_an_update_that_changes_nothing_is_refused() -> None:
    for update in (np.zeros(5), np.array([np.nan])):
        with pytest.raises(secagg.InvalidParameters, match="no finite value except 0"):
            clip_for(update)
