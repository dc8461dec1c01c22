"""Schemes with a wrong bound on the norm of decoded updates, and the law that must reject them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.conformance import Candidate, slack
from secagg.contract import Aggregate, Layout, Payload
from secagg.contract.codewords import Tables
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation, InvalidParameters
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.broken_schemes import LAW, SEARCH

INNER = ProductQuantization(shape=(8, 4), codebooks=(Codebook(np.array([[0.0], [0.1], [-0.1], [3.0]])),))
COINS = InsecureSeededCoins(b"none are drawn")


@dataclass(frozen=True)
class Bounded:
    """Product quantization with a custom bound."""

    largest_norm: float

    @property
    def layout(self) -> Layout:
        return INNER.layout

    @property
    def capacity(self) -> int:
        return INNER.capacity

    def encode(self, update: npt.NDArray[np.float32], coins: Coins) -> Payload:
        return INNER.encode(update, coins)

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        return INNER.decode(aggregate)


@dataclass(frozen=True)
class Tabled(Bounded):
    """The same, but it also provides its table."""

    @property
    def tables(self) -> Tables:
        return INNER.tables


def check(scheme: Bounded) -> None:
    LAW["largest_norm"].check(
        Candidate(
            name="bounded",
            make=lambda: scheme,
            updates=arrays(np.float32, (8, 4), elements=st.floats(-0.125, 0.125, width=32)),
            error=0.1,
        ),
        SEARCH,
    )


EXACT = 3.0 * 32**0.5


@pytest.mark.parametrize("kind", [Bounded, Tabled])
def test_a_bound_over_all_codewords_is_accepted(kind: type[Bounded]) -> None:
    check(kind(EXACT))


@pytest.mark.parametrize("kind", [Bounded, Tabled])
@pytest.mark.parametrize("bound", [0.1 * 32**0.5, 0.01])
def test_a_bound_that_only_covers_honest_clients_is_rejected(kind: type[Bounded], bound: float) -> None:
    with pytest.raises(ContractViolation, match="largest_norm is 0"):
        check(kind(bound))


def test_a_bound_that_only_a_payload_of_longest_codewords_exceeds_is_rejected() -> None:
    with pytest.raises(ContractViolation, match="the longest codeword of every block"):
        check(Tabled(EXACT * 0.99))


@pytest.mark.parametrize("bound", [0.0, -1.0, float("inf"), float("nan"), 17])
def test_a_value_that_is_not_a_bound_is_rejected(bound: float) -> None:
    with pytest.raises(ContractViolation, match="a positive float"):
        check(Bounded(bound))


@pytest.mark.parametrize(("places", "codewords", "expected"), [(4, 32, 1.29), (8, 32, 1.05)])
def test_the_slack_of_a_learned_codebook_on_normal_values(places: int, codewords: int, expected: float) -> None:
    """One codeword per block gives most of the bound; the figures match published measurements to 0.12."""
    drawn = np.random.default_rng(1)
    book = drawn.standard_normal((codewords, places))
    points = drawn.standard_normal((20_000, places))
    for _ in range(30):
        nearest = (points @ book.T - np.square(book).sum(axis=1) / 2).argmax(axis=1)
        chosen = [points[nearest == index] for index in range(codewords)]
        book = np.array([some.mean(axis=0) if len(some) else book[index] for index, some in enumerate(chosen)])
    scheme = ProductQuantization(shape=(400, places), codebooks=(Codebook(book),))
    payloads = [scheme.encode(drawn.standard_normal((400, places)), COINS) for _ in range(5)]
    assert slack(scheme, payloads) == pytest.approx(expected, abs=0.12)


def test_slack_requires_a_bound_and_clients() -> None:
    scheme = Bounded(EXACT)
    with pytest.raises(InvalidParameters, match="and honest payloads"):
        slack(scheme, [])
