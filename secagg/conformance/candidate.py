"""What the kit must know of a scheme: how it is made, what it takes, what it refuses, and how exact it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis.strategies import SearchStrategy

from secagg.contract import LinearDecoder

Update = Any
"""An array, or arrays in a dict, tuple or list of any depth."""


def _itself(update: Update) -> Update:
    return update


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A scheme under test, with one choice of its public parameters."""

    name: str
    """What stands in the names of tests and in messages."""
    make: Callable[[], LinearDecoder[Any]]
    """Build the decoder anew from public parameters alone; called often, so expensive parameters are made once."""
    updates: SearchStrategy[Update]
    """Updates that the scheme takes, in every dtype that it takes; small ones, for speed."""
    error: float | Callable[[Update], Any]
    """The most by which a coordinate, decoded alone, differs from ``expected``: a number, or of each update a number or
    a tree of arrays like it."""
    expected: Callable[[Update], Update] = _itself
    """What the decoded update would be without rounding: clipped, or with zeros where a mask removes a coordinate."""
    extremes: Sequence[Update] = ()
    """Updates that drive the codes to both ends of their range; needed where the layout has rings."""
    bad_updates: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the scheme must refuse, by name; NaN, infinity, wrong shapes and wrong types are tried in any case."""
    others: Mapping[str, Callable[[], LinearDecoder[Any]]] = field(
        default_factory=dict[str, Callable[[], LinearDecoder[Any]]]
    )
    """The scheme with one public parameter changed, by what was changed; one for every parameter."""
    stochastic: bool = False
    """Whether encoding draws coins."""
    tight_capacity: bool = True
    """Whether one more than the capacity, with all at an extreme, leaves a ring; say False where another bound, such as
    the exactness of floats, is met first."""
    payload_bytes: int | None = None
    """How many bytes the values of one client have by the author's own count, where there is one."""
    ulps: float = 8.0
    """How many units in the last place of the largest summand the decoder's floats may be off."""

    def __str__(self) -> str:
        return self.name
