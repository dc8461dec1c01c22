"""Replacements for functions that a test disables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def always(value: T) -> Callable[..., T]:
    """Return a function that returns this value for any arguments."""

    def stand_in(*_: object, **__: object) -> T:
        return value

    return stand_in
