"""A second client in the state of a first, so that what both take next can be compared.

The library refuses to copy what holds secrets, and is right to. Here nobody is protected: a client that has taken some
messages is copied, field by field, rather than made anew and led through the same messages a thousand times.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock
from typing import Any

import ideal
from secagg.crypto.secret import Confined, Secret
from secagg.protocols.pairwise_mask.client import Client
from secagg.simulation.insecure_coins import InsecureSeededCoins

_LOCK = type(RLock())


def duplicate(client: Client) -> Client:
    """Return a client that will answer as this one would, and shares nothing with it that either can change."""
    made: Client = _copied(client, {})
    return made


def _copied(value: Any, made: dict[int, Any]) -> Any:  # noqa: ANN401 -- anything that a client holds
    if id(value) in made:
        return made[id(value)]
    copied: Any
    match value:
        case dict():
            copied = {key: _copied(item, made) for key, item in value.items()}
        case list():
            copied = [_copied(item, made) for item in value]
        case set():
            copied = set(value)
        case Secret():
            copied = Secret(value.kind, b"")
            copied._buffer[:] = value._buffer  # noqa: SLF001
            copied._wiped = value._wiped  # noqa: SLF001
        case Confined() | InsecureSeededCoins() | ideal.IdealSealingPair():
            copied = object.__new__(type(value))
            made[id(value)] = copied
            for name in _fields(value):
                setattr(copied, name, _copied(getattr(value, name), made))
        case _ if isinstance(value, _LOCK):
            copied = RLock()
        case _:
            # What is left cannot be changed by anybody.
            return value
    made[id(value)] = copied
    return copied


def _fields(value: object) -> Iterator[str]:
    yield from getattr(value, "__dict__", ())
    for parent in type(value).__mro__:
        for name in getattr(parent, "__slots__", ()):
            if hasattr(value, name) and not name.startswith("__"):
                yield name
