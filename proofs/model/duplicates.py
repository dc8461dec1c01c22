"""Copies of a client's state, so that different next messages can be compared.

The library rightly refuses to copy objects with secrets. Here nobody is protected: a client that has taken some
messages is copied field by field, instead of leading a new client through the same messages a thousand times.
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
    """Return a client that answers as this one would, and shares no mutable state with it."""
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
            # Everything else is immutable.
            return value
    made[id(value)] = copied
    return copied


def _fields(value: object) -> Iterator[str]:
    yield from getattr(value, "__dict__", ())
    for parent in type(value).__mro__:
        for name in getattr(parent, "__slots__", ()):
            if hasattr(value, name) and not name.startswith("__"):
                yield name
