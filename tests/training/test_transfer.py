"""The study of transfer: its lockstep trains like the engines, and its methods decode as declared."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secagg.training.configuration import Configuration
from secagg.training.rounds import Pieces, Run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from lockstep import Kept, Lockstep, play
from transfer_methods import RotatedSigns, TopK


def test_runs_in_lockstep_are_those_that_are_played_alone(
    toy_run: Callable[..., Configuration], toy_pieces: Callable[[Configuration], Pieces]
) -> None:
    chosen = [toy_run("server.rate=1.0"), toy_run("server.rate=0.5", "seed=3")]
    alone = [Run(one, toy_pieces(one)) for one in chosen]
    kept = Kept(toy_pieces(chosen[0]).data, "cpu")
    lockstep = Lockstep(toy_pieces(chosen[0]).factory, chosen[0].local, "cpu")
    together = [Run(one, replace(toy_pieces(one), data=kept, engine=lockstep.join(kept))) for one in chosen]
    for run in alone:
        for _ in range(3):
            run.advance()
    play([lambda run=run: [run.advance() for _ in range(3)] for run in together], lockstep.leave)  # type: ignore[misc]
    for one, other in zip(alone, together, strict=True):
        for name, value in one.parameters.items():
            np.testing.assert_allclose(other.parameters[name], value, rtol=1e-4, atol=1e-6)


def test_what_top_k_leaves_out_is_sent_later() -> None:
    method, update = TopK(size=3, values=8), np.arange(1, 9, dtype=np.float32)[np.newaxis]
    sent = method.mean(update, (0,), 0)
    assert np.count_nonzero(sent) == method.kept == 1
    again = method.mean(np.zeros_like(update), (0,), 1)
    assert again.max() == 7


def test_rotated_signs_are_unbiased() -> None:
    method = RotatedSigns(size=4 + 16, values=500)
    update = np.random.default_rng(0).standard_normal((1, 500)).astype(np.float32)
    mean = np.mean([method.mean(update, (0,), number) for number in range(300)], axis=0)
    assert float(mean @ update[0] / (update[0] @ update[0])) == pytest.approx(1, abs=0.05)
