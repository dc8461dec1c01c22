"""The integers modulo the prime 2^256 - 189, over which secrets are shared.

It is the largest prime below 2^256, so almost every 32-byte string is an element. An element is a plain ``int`` in
[0, PRIME), and sums and products are written as integer expressions where they are used.

Not constant time: CPython's integers take longer for larger values and skip leading zeros, so precise timing reveals
something about the sizes of the values. An ``int`` cannot be overwritten either: intermediate values stay in memory
until the interpreter reuses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason, require_length

from .entropy import Coins
from .secret import Secret, draw_exactly, overwrite

PRIME = 2**256 - 189
ELEMENT_BYTES = 32

_PRIME_ENCODING = PRIME.to_bytes(ELEMENT_BYTES, "big")
# A draw is rejected with probability below 2^-248; coins that need more rounds are not uniform.
_REJECTION_ROUNDS = 8


def encode(element: int) -> bytes:
    """Return the canonical encoding of an element: 32 bytes, most significant first."""
    if not 0 <= element < PRIME:
        raise InvalidParameters("only integers in [0, 2^256 - 189) are field elements; reduce the value first")
    return element.to_bytes(ELEMENT_BYTES, "big")


def decode(data: bytes | bytearray | memoryview) -> int:
    """Decode a canonical element; refuse another length, and a number that is not below the prime."""
    require_length("a field element", len(data), ELEMENT_BYTES)
    element = int.from_bytes(data, "big")
    if element >= PRIME:
        raise MalformedMessage(
            "the bytes encode a number that is not below 2^256 - 189; encode the reduced value",
            reason=Reason.NOT_CANONICAL,
        )
    return element


def sample(count: int, coins: Coins) -> list[int]:
    """Draw independent uniform elements.

    The coins are read 32 bytes at a time, most significant byte first; a value that is not below the prime is skipped.
    The result is the first ``count`` elements in the coins, regardless of the number of draws.

    Security: the coins' buffers are overwritten; the returned integers cannot be.
    """
    if count < 0:
        raise InvalidParameters(f"cannot sample {count} elements; the count must not be negative")
    elements: list[int] = []
    for _ in range(_REJECTION_ROUNDS):
        drawn = draw_exactly((count - len(elements)) * ELEMENT_BYTES, coins)
        view = memoryview(drawn)
        try:
            for start in range(0, len(drawn), ELEMENT_BYTES):
                candidate = int.from_bytes(view[start : start + ELEMENT_BYTES], "big")
                if candidate < PRIME:
                    elements.append(candidate)
        finally:
            overwrite(drawn)
        if len(elements) == count:
            return elements
    raise _not_uniform()


def random_root(kind: str, coins: Coins) -> Secret:
    """Draw a uniform 32-byte secret that is a field element, so that it can be shared.

    Security: the distance from uniform 32-byte strings is below 2^-248.
    """
    for _ in range(_REJECTION_ROUNDS):
        drawn = draw_exactly(ELEMENT_BYTES, coins)
        try:
            # Byte strings of equal length sort like their numbers, so no integer copy is made.
            if drawn < _PRIME_ENCODING:
                return Secret(kind, drawn)
        finally:
            overwrite(drawn)
    raise _not_uniform()


def invert_all(elements: Sequence[int]) -> list[int]:
    """Return the inverse of every element at the cost of one inversion; inputs need not be reduced.

    Implements: [Mon87], simultaneous inversion.
    """
    products = [1]
    for element in elements:
        products.append(products[-1] * element % PRIME)
    if products[-1] == 0:
        raise InvalidParameters("zero has no inverse; remove the multiples of 2^256 - 189 first")
    inverse_of_rest = pow(products[-1], -1, PRIME)
    inverses = [0] * len(elements)
    for index in range(len(elements) - 1, -1, -1):
        inverses[index] = inverse_of_rest * products[index] % PRIME
        inverse_of_rest = inverse_of_rest * elements[index] % PRIME
    return inverses


def _not_uniform() -> Misuse:
    return Misuse(f"the coins gave values above the prime {_REJECTION_ROUNDS} times in a row; pass uniform coins")
