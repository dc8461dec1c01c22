"""The rule 2 p <= H h: its terms, and the warning if it fails."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import secagg
from secagg.cli import main
from secagg.platforms import LOG
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from secagg.privacy.guessing import min_entropy, mixing_clients, said_guessable


def test_unequal_weights_count_as_fewer_clients() -> None:
    assert mixing_clients([1.0] * 20) == pytest.approx(20)
    assert mixing_clients([1.0, *[1 / 64] * 19]) == pytest.approx(1.67, abs=0.01)
    assert mixing_clients([1.0, *[0.25] * 19]) == pytest.approx(15.1, abs=0.1)
    assert mixing_clients([]) == 0.0


def test_entropy_is_measured_and_not_the_bits_of_a_code() -> None:
    generator = np.random.default_rng(1)
    assert min_entropy(generator.integers(0, 16, 100_000)) == pytest.approx(4, abs=0.1)
    peaked = np.where(generator.random(100_000) < 0.9, 0, generator.integers(1, 16, 100_000))
    assert min_entropy(peaked) == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize(
    ("clients", "weights", "entropy", "holds"),
    [(20, 1.0, 4.0, True), (20, 1 / 64, 4.0, False), (4, 1.0, 4.0, True), (2, 1.0, 4.0, False), (20, 1.0, 0.15, False)],
)
def test_where_it_holds(clients: int, weights: float, entropy: float, *, holds: bool) -> None:
    counted = mixing_clients([1.0, *[weights] * (clients - 1)])
    said = said_guessable(sum_bits=4 + np.log2(clients), clients=counted, entropy=entropy)
    assert (said is None) is holds
    assert said is None or "not a privacy guarantee" in said


def test_a_weighted_sum_of_flags_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    flags = [np.random.default_rng(each).integers(0, 2, 400).astype(np.float32) for each in range(4)]
    with caplog.at_level(logging.WARNING, "secagg.quick"):
        secagg.aggregate(flags, clip=1.0, examples=[100, 90, 80, 70])
    assert "can determine the values of all clients" in caplog.text
    caplog.clear()
    wide = [np.random.default_rng(each).uniform(-1, 1, 4000) for each in range(12)]
    with caplog.at_level(logging.WARNING, "secagg.quick"):
        secagg.aggregate(wide, clip=1.0, examples=[100] * 12, bits=8)
    assert "can determine" not in caplog.text


def test_a_plan_says_so_for_few_clients(capsys: pytest.CaptureFixture[str]) -> None:
    for clients, bits, is_said in (("3", "2", True), ("40", "8", False)):
        assert main(["plan", "--blocks", "10", "--clients", clients, "--bits", bits]) == 0
        assert ("can determine the values of all clients" in " ".join(capsys.readouterr().out.split())) is is_said


@pytest.mark.parametrize(("clients", "is_warned"), [(3, True), (6, False)])
@pytest.mark.parametrize("compression", ["fixed-point", "scalar-8"])
def test_a_platform_says_so_of_codes_and_of_fixed_point(
    clients: int,
    compression: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_warned: bool,
) -> None:
    monkeypatch.setattr(LOG, "propagate", True)
    rounds, sent = Rounds(SecAggSettings(compression=compression)), {"w": np.zeros((8, 8), np.float32)}
    rounds.known_of(sent).told = {"tensor/w": 0.1}
    rounds.begun(sent, clients=clients, task="t", number=1, weighted_by="n")
    assert ("can determine the values of all clients" in caplog.text) is is_warned
