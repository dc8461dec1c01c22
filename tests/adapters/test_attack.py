"""The example attack on adapters recovers nearly all of one client's words, and none from a sum of eight."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def attack() -> dict[str, Any]:
    path = Path(__file__).resolve().parents[2] / "examples" / "adapters" / "attack.py"
    return runpy.run_path(str(path), run_name="attack")


@pytest.mark.parametrize("trial", [0, 1, 2])
def test_words_of_one_client_are_read_from_its_gradient_and_not_from_a_sum(attack: dict[str, Any], trial: int) -> None:
    one, two, eight = (attack["attacked"](clients, trial) for clients in (1, 2, 8))
    assert one.precision == 1
    assert one.recall > 0.9
    # All clients' words, but not whose they are.
    assert two.recall > 0.9
    assert 0.4 < two.precision < 0.9
    assert eight.recall == 0
    # 48 words a client are about 33 distinct ones, and 32 x 3 rows hold those of five manual texts.
    five, six = (attack["attacked"](clients, 0) for clients in (5, 6))
    assert five.recall > 0.9
    assert six.recall == 0
    assert [word for word, _ in one.text] == [word for word, _ in eight.text]


def test_the_picture_has_the_recovered_words_in_red(attack: dict[str, Any]) -> None:
    drawn = attack["picture"]([attack["attacked"](1), attack["attacked"](8)])
    assert drawn.count("#c62828") == sum(found for _, found in attack["attacked"](1).text)
    assert "From the sum of 8: precision 0.00, recall 0.00" in drawn
