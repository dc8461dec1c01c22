"""Coins of one operation: as fresh as their source, and never those of another operation."""

from __future__ import annotations

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.hedged_coins import HedgedCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.simulation.insecure_coins import InsecureSeededCoins


def drawn(seed: bytes, *inputs: bytes) -> list[bytes]:
    with HedgedCoins(InsecureSeededCoins(seed), *inputs) as coins:
        return [bytes(coins.draw(count)) for count in (32, 32, 10_000)]


def test_the_same_operation_with_the_same_coins_draws_the_same() -> None:
    assert drawn(b"seed", b"a", b"b") == drawn(b"seed", b"a", b"b")


@pytest.mark.parametrize(
    "other", [(b"seed", b"a", b"c"), (b"seed", b"ab", b""), (b"seed", b"a"), (b"other", b"a", b"b")]
)
def test_another_operation_or_other_coins_draw_nothing_alike(other: tuple[bytes, ...]) -> None:
    one, two = drawn(b"seed", b"a", b"b"), drawn(*other)
    assert not {*one} & {*two}
    assert len({*one, *two}) == 6


def test_a_source_is_asked_for_each_operation_anew() -> None:
    assert HedgedCoins(SystemCoins(), b"a").draw(32) != HedgedCoins(SystemCoins(), b"a").draw(32)


def test_what_cannot_be_drawn() -> None:
    coins = HedgedCoins(SystemCoins())
    assert (len(coins.draw(0)), len(coins.draw(100_000))) == (0, 100_000)
    with pytest.raises(InvalidParameters, match="must not be negative"):
        coins.draw(-1)
    coins.wipe()
    with pytest.raises(Misuse, match="wiped"):
        coins.draw(1)
