"""The field: its prime, the one encoding of an element, uniform sampling and inversion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto import prime_field
from secagg.crypto.prime_field import ELEMENT_BYTES, PRIME
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason

ALL_ONES = b"\xff" * ELEMENT_BYTES

# For each prime p above 10^7: a base of order p - 1, and the primes that divide p - 1 [Pra75].
CERTIFICATE = {
    PRIME: (2, (2, 3, 29, 222587, 1521613, 4463413, 440208639276132997491800604758226661590679912188273141493)),
    440208639276132997491800604758226661590679912188273141493: (
        2,
        (2, 3, 7, 13, 1219974856409, 23236691026952546459, 14220365526706201077871),
    ),
    14220365526706201077871: (6, (2, 3, 5, 23, 2221, 36151, 87881, 973591)),
    23236691026952546459: (2, (2, 7, 41, 587, 68964293214041)),
    68964293214041: (12, (2, 5, 7, 246301047193)),
    246301047193: (5, (2, 3, 10262543633)),
    10262543633: (3, (2, 11, 83, 702529)),
    1219974856409: (6, (2, 7, 11, 3761, 526583)),
}

elements = st.integers(0, PRIME - 1)


class TapeCoins:
    """Coins read from a tape, which remembers the buffers it handed out."""

    def __init__(self, tape: bytes, *, endless: bool = False) -> None:
        self.tape = tape
        self.endless = endless
        self.requests: list[int] = []
        self.buffers: list[bytearray] = []

    def draw(self, count: int) -> bytearray:
        """Return the next bytes of the tape."""
        self.requests.append(count)
        if self.endless:
            buffer = bytearray((self.tape * count)[:count])
        elif count > len(self.tape):
            raise EOFError("the tape of coins is at its end")
        else:
            buffer, self.tape = bytearray(self.tape[:count]), self.tape[count:]
        self.buffers.append(buffer)
        return buffer


class ShortCoins(TapeCoins):
    """Coins that return one byte less than requested."""

    def draw(self, count: int) -> bytearray:
        """Return one byte too few."""
        return super().draw(count - 1)


def test_the_modulus_is_proved_prime() -> None:
    def is_prime(number: int) -> bool:
        if number < 10**7:
            return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))
        base, factors = CERTIFICATE[number]
        rest = number - 1
        for factor in factors:
            assert is_prime(factor)
            assert rest % factor == 0
            while rest % factor == 0:
                rest //= factor
            assert pow(base, (number - 1) // factor, number) != 1
        return rest == 1 and pow(base, number - 1, number) == 1

    assert PRIME == 2**256 - 189
    assert is_prime(PRIME)


@given(elements)
def test_decode_undoes_encode(element: int) -> None:
    encoding = prime_field.encode(element)
    assert len(encoding) == ELEMENT_BYTES
    assert prime_field.decode(encoding) == element
    assert prime_field.decode(memoryview(bytearray(encoding))) == element


def test_the_encoding_is_big_endian() -> None:
    assert prime_field.encode(1) == bytes(31) + b"\x01"
    assert prime_field.encode(PRIME - 1) == b"\xff" * 31 + bytes([0xFF - 189])


@pytest.mark.parametrize("value", [-1, PRIME, PRIME + 1, 2**256])
def test_encode_refuses_an_integer_outside_the_field(value: int) -> None:
    with pytest.raises(InvalidParameters) as caught:
        prime_field.encode(value)
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE


@pytest.mark.parametrize("value", [PRIME, PRIME + 1, 2**256 - 1])
def test_decode_refuses_a_second_encoding(value: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        prime_field.decode(value.to_bytes(ELEMENT_BYTES, "big"))
    assert caught.value.reason is Reason.NOT_CANONICAL
    assert not caught.value.culprits


@pytest.mark.parametrize(
    ("length", "reason"),
    [(0, Reason.TRUNCATED), (31, Reason.TRUNCATED), (33, Reason.TRAILING_BYTES), (64, Reason.TRAILING_BYTES)],
)
def test_decode_refuses_another_length(length: int, reason: Reason) -> None:
    with pytest.raises(MalformedMessage) as caught:
        prime_field.decode(bytes(length))
    assert caught.value.reason is reason


@given(st.lists(elements, max_size=20))
def test_sample_returns_the_elements_that_the_coins_spell(values: list[int]) -> None:
    coins = TapeCoins(b"".join(map(prime_field.encode, values)))
    assert prime_field.sample(len(values), coins) == values
    assert not coins.tape


def test_sample_draws_in_bulk_and_redraws_only_what_was_rejected() -> None:
    first, second, third = (bytes([byte]) * ELEMENT_BYTES for byte in (1, 2, 3))
    coins = TapeCoins(ALL_ONES + first + ALL_ONES + second + ALL_ONES + third)
    assert prime_field.sample(3, coins) == [int.from_bytes(data, "big") for data in (first, second, third)]
    assert coins.requests == [3 * ELEMENT_BYTES, 2 * ELEMENT_BYTES, ELEMENT_BYTES]


def test_sample_accepts_the_largest_element_and_rejects_the_prime() -> None:
    largest = (PRIME - 1).to_bytes(ELEMENT_BYTES, "big")
    prime = PRIME.to_bytes(ELEMENT_BYTES, "big")
    assert prime_field.sample(1, TapeCoins(prime + largest)) == [PRIME - 1]
    assert prime_field.sample(1, TapeCoins(bytes(ELEMENT_BYTES))) == [0]


def test_random_root_redraws_a_value_that_is_not_below_the_prime() -> None:
    prime = PRIME.to_bytes(ELEMENT_BYTES, "big")
    largest = (PRIME - 1).to_bytes(ELEMENT_BYTES, "big")
    coins = TapeCoins(ALL_ONES + prime + largest)
    root = prime_field.random_root("test root", coins)
    assert root.expose() == largest
    assert root.kind == "test root"
    assert coins.requests == [ELEMENT_BYTES] * 3


def test_every_drawn_buffer_is_overwritten() -> None:
    coins = TapeCoins(ALL_ONES + b"\x01" * 96)
    prime_field.sample(2, coins)
    prime_field.random_root("test root", coins)
    assert len(coins.buffers) == 3
    assert not any(map(any, coins.buffers))


def test_coins_that_always_give_rejected_values_are_refused() -> None:
    attempts: tuple[Callable[[TapeCoins], object], ...] = (
        lambda coins: prime_field.sample(2, coins),
        lambda coins: prime_field.random_root("test root", coins),
    )
    for attempt in attempts:
        coins = TapeCoins(b"\xff", endless=True)
        with pytest.raises(Misuse) as caught:
            attempt(coins)
        assert caught.value.reason is Reason.API_MISUSE
        assert not any(map(any, coins.buffers))


def test_coins_that_return_too_few_bytes_are_refused() -> None:
    coins = ShortCoins(b"\x01" * 200)
    with pytest.raises(Misuse):
        prime_field.sample(2, coins)
    with pytest.raises(Misuse):
        prime_field.random_root("test root", coins)
    assert not any(map(any, coins.buffers))


def test_the_error_of_exhausted_coins_reaches_the_caller() -> None:
    coins = TapeCoins(ALL_ONES + b"\x01" * 32)
    with pytest.raises(EOFError):
        prime_field.sample(2, coins)
    assert not any(map(any, coins.buffers))


def test_sample_refuses_a_negative_count() -> None:
    with pytest.raises(InvalidParameters):
        prime_field.sample(-1, TapeCoins(b""))


@given(st.lists(st.integers(-(2**300), 2**300).filter(lambda value: value % PRIME != 0), max_size=20))
def test_invert_all_returns_the_inverse_of_each(values: list[int]) -> None:
    inverses = prime_field.invert_all(values)
    assert len(inverses) == len(values)
    assert all(0 < inverse < PRIME for inverse in inverses)
    assert all(value * inverse % PRIME == 1 for value, inverse in zip(values, inverses, strict=True))


@pytest.mark.parametrize("values", [[0], [3, 0, 5], [7, PRIME], [-PRIME, 1]])
def test_invert_all_refuses_zero(values: list[int]) -> None:
    with pytest.raises(InvalidParameters):
        prime_field.invert_all(values)
