"""How much the first protocol of its kind sends, as its authors count it: a measure for one's own traffic."""

from __future__ import annotations

from typing import Final

from secagg.errors import InvalidParameters

_ELEMENT_BITS: Final = 256
"""A public key and a share of a secret, each."""


def bonawitz_bits(clients: int, dimension: int, input_bits: int = 16) -> int:
    """Return how many bits one client sends and receives in a full graph in which nobody drops out.

    Two keys to and from everybody; two shares to and from everybody, and one of each shown at the end; who survived;
    and the masked vector, in as many bits as the sum of all inputs takes.

    Implements: [BIK+17], the count behind the expansion factors of its abstract; it leaves out what encryption and
        framing add.
    """
    if min(clients, dimension, input_bits) < 1:
        raise InvalidParameters(f"counts are at least 1; got {clients}, {dimension} and {input_bits}")
    ring_bits = (clients * ((1 << input_bits) - 1)).bit_length()
    keys, shares = 2 * clients * _ELEMENT_BITS, (5 * clients - 4) * _ELEMENT_BITS
    return keys + shares + clients + dimension * ring_bits


def expansion(clients: int, dimension: int, input_bits: int = 16) -> float:
    """Return that, relative to sending the input alone and in the clear."""
    return bonawitz_bits(clients, dimension, input_bits) / (dimension * input_bits)
