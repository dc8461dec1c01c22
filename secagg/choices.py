"""Choices in a protocol's configuration; a client's policy accepts some of them."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum


class Topology(StrEnum):
    """Which pairs of clients share a mask."""

    FULL = "full"
    """Every pair ([BIK+17])."""
    SPARSE = "sparse"
    """Neighbours on a ring lattice in a random order ([BBG+20])."""


class SharingMode(IntEnum):
    """Sharing of a client's indices between the servers; messages of one mode have no meaning in another."""

    CHECKED_POINT_FUNCTIONS = 1
    """Point functions, and a check that rejects a client unless it votes exactly once in every block."""
    UNCHECKED_POINT_FUNCTIONS = 2
    """Point functions alone: a client can set any histogram to anything. Private against one malicious server."""


class Accumulation(Enum):
    """Which counters an addition touches: those that the indices name, or all."""

    DIRECT = 1
    OBLIVIOUS = 2


class ReleaseForm(IntEnum):
    """Form in which index segments are released."""

    DECODED_SUM = 1
    """The sum of the codewords that were chosen, block by block: what a model needs, and no more."""
    HISTOGRAM = 2
    """Number of choices of each codeword for each block; never less informative than the decoded sum."""
