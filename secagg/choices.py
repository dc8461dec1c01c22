"""Choices in a protocol's configuration; a client's policy says which ones it accepts."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum


class Topology(StrEnum):
    """Which pairs of clients share a mask."""

    FULL = "full"
    """Every pair ([BIK+17])."""
    SPARSE = "sparse"
    """Neighbours on a randomly ordered ring lattice ([BBG+20])."""


class SharingMode(IntEnum):
    """How a client's indices are shared between the servers; messages of one mode are invalid in another."""

    CHECKED_POINT_FUNCTIONS = 1
    """Point functions, and a check that rejects a client unless it votes exactly once in every block."""
    UNCHECKED_POINT_FUNCTIONS = 2
    """Point functions, unchecked: a client can set any histogram to anything. Private against one malicious server."""


class Accumulation(Enum):
    """Which counters an addition touches: the indexed ones, or all."""

    DIRECT = 1
    OBLIVIOUS = 2


class ReleaseForm(IntEnum):
    """Form in which index segments are released."""

    DECODED_SUM = 1
    """The sum of the chosen codewords of each block, which is all that a model needs."""
    HISTOGRAM = 2
    """How often each block's codewords were chosen; reveals at least as much as the decoded sum."""
