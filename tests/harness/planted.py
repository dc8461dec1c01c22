"""Stand-ins for what a test plants away."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def always(value: T) -> Callable[..., T]:
    """Return a function that gives this value, whatever it is called with."""

    def stand_in(*_: object) -> T:
        return value

    return stand_in
