"""Tabled noise against its exact distribution function, its sums against their convolutions, and bad coins."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.ring import Ring
from secagg.errors import InvalidParameters, Misuse
from secagg.privacy import noise_table
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.noise import place_in
from secagg.privacy.noise_table import GREATEST_TABLED, add_noise_into, pieces
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.distributions import PMFS, WORST_DEVIATION, Vector, deviation_from

Table = noise_table._Table  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
KINDS = pytest.mark.parametrize("kind", list(NoiseKind), ids=lambda kind: kind.name.lower())
VARIANCES = [Fraction(1, 16), Fraction(1), Fraction(22, 7), Fraction(100), Fraction(1000)]


def drawn(kind: NoiseKind, variance: Fraction | int, length: int, seed: str = "table") -> Vector:
    coins = InsecureSeededCoins(f"{seed} {kind} {variance}".encode())
    return np.concatenate([piece.copy() for piece in pieces(kind, Fraction(variance), length, coins)])


@KINDS
@pytest.mark.parametrize("variance", VARIANCES)
def test_the_table_is_the_distribution_function_to_112_bits(kind: NoiseKind, variance: Fraction) -> None:
    table = Table(kind, variance)
    high, low = table._boundaries  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    found = [(int(upper) << 64) + int(lower) for upper, lower in zip(high, low, strict=True)]
    pmf = PMFS[kind](variance)
    signed = [*reversed(pmf[1:]), *pmf]
    with localcontext(prec=80):
        below = list(accumulate(signed, initial=Decimal(0)))[1:-1]
        # One of the two reaches further into the tail.
        more = (len(found) - len(below)) // 2
        for mine, due in zip(found[max(0, more) :], below[max(0, -more) :], strict=False):
            assert abs(mine - due * (1 << 128)) < 1 << 16
    assert found == sorted(found)
    assert found[0] < 1 << 28
    assert found[-1] > (1 << 128) - (1 << 28)


@KINDS
@pytest.mark.parametrize("variance", [Fraction(1, 16), Fraction(10), Fraction(5000)])
def test_what_16_bits_decide_is_what_all_128_would(kind: NoiseKind, variance: Fraction) -> None:
    table = Table(kind, variance)
    prefixes = np.arange(1 << 16, dtype=np.uint64)
    coins = InsecureSeededCoins(b"ties")
    decided = table.values_of(prefixes.astype(np.uint16), coins)
    boundaries, least = table._boundaries, table._least  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    first = place_in(boundaries, prefixes << np.uint64(48), coins) + least
    last = place_in(boundaries, (prefixes << np.uint64(48)) + np.uint64((1 << 48) - 1), coins) + least
    assert (first <= decided).all()
    assert (decided <= last).all()
    assert (first < last).any(), "some are left open"


@KINDS
@pytest.mark.parametrize("variance", [*VARIANCES, Fraction(12345, 100)])
def test_drawn_values_have_their_distribution(kind: NoiseKind, variance: Fraction) -> None:
    assert abs(deviation_from(drawn(kind, variance, 200_000), PMFS[kind](variance))) < WORST_DEVIATION


@KINDS
@pytest.mark.parametrize("clients", [2, 5])
def test_sums_of_clients_noise_have_the_distribution_of_the_sum(kind: NoiseKind, clients: int) -> None:
    variance = Fraction(4)
    total = np.sum([drawn(kind, variance, 100_000, f"client {client}") for client in range(clients)], axis=0)
    pmf = [float(probability) for probability in PMFS[kind](variance)]
    one = np.array([*reversed(pmf[1:]), *pmf])
    folded = one
    for _ in range(clients - 1):
        folded = np.convolve(folded, one)
    due = [Decimal(max(probability, 1e-60)) for probability in folded[folded.size // 2 :].tolist()]
    assert abs(deviation_from(total, due)) < WORST_DEVIATION
    if kind is NoiseKind.SKELLAM:
        assert abs(deviation_from(total, PMFS[kind](clients * variance))) < WORST_DEVIATION


@KINDS
@pytest.mark.parametrize("variance", [10**4, 4 * 10**6, GREATEST_TABLED + 1])
def test_large_noise_has_its_variance(kind: NoiseKind, variance: int) -> None:
    values = drawn(kind, variance, 60_000) / variance**0.5
    assert abs(values.mean()) < 4 / values.size**0.5
    assert abs((values**2).mean() - 1) < 4 * (2 / values.size) ** 0.5


@pytest.mark.parametrize("bits", [5, 16, 33])
def test_noise_is_added_modulo_the_ring(bits: int) -> None:
    ring, length = Ring(bits), 70_000
    start = ring.from_integers(np.full(length, ring.greatest))
    vector = start.copy()
    add_noise_into(vector, ring, NoiseKind.SKELLAM, Fraction(9), InsecureSeededCoins(b"ring"))
    ring.require_vector(vector)
    due = np.concatenate(
        [piece.copy() for piece in pieces(NoiseKind.SKELLAM, Fraction(9), length, InsecureSeededCoins(b"ring"))]
    )
    assert ((vector.astype(np.int64) - start.astype(np.int64) - due) % (1 << bits) == 0).all()
    assert due.any()


def test_two_draws_share_nothing() -> None:
    left, right = (next(pieces(NoiseKind.SKELLAM, Fraction(100), 100, SystemCoins())) for _ in range(2))
    assert (left != right).any()


def test_no_key_makes_more_than_its_part_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_table, "_KEY_VALUES", 1000)
    values = drawn(NoiseKind.DISCRETE_GAUSSIAN, 10**4, 4000)
    assert (values[:1000] != values[1000:2000]).mean() > 0.9


@pytest.mark.parametrize("kind", [NoiseKind.SKELLAM, NoiseKind.DISCRETE_GAUSSIAN])
@pytest.mark.parametrize("variance", [100, 2 * GREATEST_TABLED])
def test_pieces_are_overwritten_once_they_were_used(kind: NoiseKind, variance: int) -> None:
    kept = [*pieces(kind, Fraction(variance), 100_000, SystemCoins())]
    assert not any(piece.any() for piece in kept)


class ShortCoins:
    """Coins that return one byte too few."""

    def draw(self, count: int) -> bytearray:
        return bytearray(count - 1)


def test_bad_coins_and_variances_are_refused_before_anything_is_added() -> None:
    vector = Ring(16).zeros(8)
    with pytest.raises(Misuse, match="returned 15 bytes"):
        add_noise_into(vector, Ring(16), NoiseKind.SKELLAM, Fraction(9), ShortCoins())
    with pytest.raises(InvalidParameters, match="variance of SKELLAM"):
        add_noise_into(vector, Ring(16), NoiseKind.SKELLAM, Fraction(1, 100), SystemCoins())
    with pytest.raises(Misuse, match="over 8 bits"):
        add_noise_into(vector, Ring(8), NoiseKind.SKELLAM, Fraction(9), SystemCoins())
    assert not vector.any()
