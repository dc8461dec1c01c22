"""Coins are arguments: one file queries the operating system, and repeatable coins are named insecure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.protocols.one_message.hedged_coins import HedgedCoins
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.recorded_coins import InsecureRecordedCoins

RANDOM_BY_THEMSELVES = {
    # Operating system and standard library.
    *("urandom", "getrandom", "token_bytes", "token_hex", "SystemRandom", "uuid1", "uuid4", "RAND_bytes", "randbits"),
    # Backends: everything that makes its own key, nonce or encapsulation.
    *("generate", "generate_key", "generate_private_key", "encapsulate", "get_random_bytes", "default_rng"),
}
"""Attributes that draw randomness which no ``Coins`` argument controls."""

FILES_WITH_BACKEND_COINS = {"secagg/crypto/hybrid_key_agreement.py", "secagg/crypto/hpke.py"}
"""HPKE has no derandomised form; these files document that as a deviation, one for each suite."""

CONFINED = ("compression", "protocols", "secagg/crypto", "secagg/contract", "secagg/session")


def confined_sources(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    """Yield the core and the two rooms; simulation, training and the command may choose their coins themselves."""
    files = [*(repository / "secagg").glob("*.py")]
    files += [file for room in CONFINED for file in (repository / room).rglob("*.py")]
    for file in sorted(files):
        yield file.relative_to(repository).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def test_system_coins_are_fresh_and_of_the_length_asked_for() -> None:
    coins: Coins = SystemCoins()
    draws = {bytes(coins.draw(32)) for _ in range(50)}
    assert len(draws) == 50
    assert {len(draw) for draw in draws} == {32}


def test_the_caller_owns_the_buffer_it_drew() -> None:
    for coins in (SystemCoins(), InsecureSeededCoins(b"seed"), InsecureRecordedCoins(b"\1" * 16)):
        drawn = coins.draw(16)
        assert type(drawn) is bytearray
        drawn[:] = bytes(16)


@pytest.mark.parametrize("coins", [SystemCoins(), InsecureSeededCoins(b"")], ids=["system", "seeded"])
def test_no_coins_are_drawn_for_zero_and_a_negative_count_is_refused(coins: Coins) -> None:
    assert coins.draw(0) == b""
    with pytest.raises(InvalidParameters, match="-1"):
        coins.draw(-1)


def test_system_coins_hold_no_state_that_a_fork_could_share() -> None:
    assert not vars(SystemCoins())


def test_nothing_but_the_entropy_module_draws_randomness_of_its_own(repository: Path) -> None:
    faults: list[str] = []
    for name, tree in confined_sources(repository):
        if name == "secagg/crypto/entropy.py":
            continue
        for node in ast.walk(tree):
            reads = [node.attr] if isinstance(node, ast.Attribute) else []
            reads += [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            faults += [f"{name}:{getattr(node, 'lineno', 0)}: {read}" for read in reads if read in RANDOM_BY_THEMSELVES]
    assert not faults


def test_functions_take_coins_and_do_not_choose_them(repository: Path) -> None:
    faults = [
        f"{name}:{node.lineno}: take a Coins argument instead of SystemCoins"
        for name, tree in confined_sources(repository)
        for node in ast.walk(tree)
        if name != "secagg/crypto/entropy.py"
        and not name.endswith("__main__.py")
        and (
            (isinstance(node, ast.Name) and node.id == "SystemCoins")
            or (isinstance(node, ast.Attribute) and node.attr == "SystemCoins")
        )
    ]
    assert not faults


def test_two_files_use_the_primitive_that_draws_inside_the_backend(repository: Path) -> None:
    users = {
        name
        for name, tree in confined_sources(repository)
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").endswith("primitives.hpke"))
        or (isinstance(node, ast.Import) and any(alias.name.endswith("primitives.hpke") for alias in node.names))
    }
    assert users == FILES_WITH_BACKEND_COINS
    for file in users:
        assert "Deviation: HPKE draws the coins" in (repository / file).read_text(encoding="utf-8")


@given(seed=st.binary(max_size=40), counts=st.lists(st.integers(0, 80), max_size=6))
def test_seeded_coins_repeat(seed: bytes, counts: list[int]) -> None:
    first, again = InsecureSeededCoins(seed), InsecureSeededCoins(seed)
    assert [first.draw(count) for count in counts] == [again.draw(count) for count in counts]


@pytest.mark.parametrize("count", [5, 1 << 40, -1])
def test_an_exhausted_record_is_refused_and_does_not_move(count: int) -> None:
    coins = InsecureRecordedCoins(b"abcdef")
    coins.draw(2)
    with pytest.raises((Misuse, InvalidParameters)) as caught:
        coins.draw(count)
    if count > 0:
        assert caught.value.reason is Reason.ALREADY_SPENT
        assert "4 are left" in str(caught.value)
    assert not coins.is_exhausted
    assert coins.draw(4) == b"cdef"
    assert coins.is_exhausted


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
