"""Traffic of the original protocol [BIK+17] by its authors' count, as a baseline for our traffic."""

from __future__ import annotations

from typing import Final

from secagg.errors import InvalidParameters

_ELEMENT_BITS: Final = 256
"""A public key and a share of a secret, each."""


def bonawitz_bits(clients: int, dimension: int, input_bits: int = 16) -> int:
    """Return the bits that one client sends and receives in a full graph without dropouts.

    Two keys to and from every client; two shares to and from every client, one of which is shown at the end; the
    survivors; and the masked vector, with the bits of the sum of all inputs.

    Implements: [BIK+17], the count behind the expansion factors of its abstract; it omits encryption and framing.
    """
    if min(clients, dimension, input_bits) < 1:
        raise InvalidParameters(f"counts are at least 1; got {clients}, {dimension} and {input_bits}")
    ring_bits = (clients * ((1 << input_bits) - 1)).bit_length()
    keys, shares = 2 * clients * _ELEMENT_BITS, (5 * clients - 4) * _ELEMENT_BITS
    return keys + shares + clients + dimension * ring_bits


def expansion(clients: int, dimension: int, input_bits: int = 16) -> float:
    """Return these bits relative to sending only the plain input."""
    return bonawitz_bits(clients, dimension, input_bits) / (dimension * input_bits)
