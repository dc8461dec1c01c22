"""Finds secrets that were created, and secrets that are reachable from an object."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from secagg.crypto.secret import Secret


def secrets_from_now(monkeypatch: pytest.MonkeyPatch) -> list[Secret]:
    made, initialise = list[Secret](), Secret.__init__

    def collect(self: Secret, kind: str, data: bytes | bytearray | memoryview) -> None:
        initialise(self, kind, data)
        made.append(self)

    monkeypatch.setattr(Secret, "__init__", collect)
    return made


def reachable(root: object) -> Iterator[object]:
    """Traverse the library's objects reachable from one."""
    seen, queue = set[int](), [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, str | bytes | int | type):
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            queue += [*item.values()]  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(item, list | tuple | set | frozenset):
            queue += [*item]  # pyright: ignore[reportUnknownArgumentType]
        elif type(item).__module__.startswith("secagg."):
            yield item
            names = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
            queue += [getattr(item, name) for name in [*names, *getattr(item, "__dict__", {})] if hasattr(item, name)]


def held_by(root: object) -> list[Secret]:
    return [item for item in reachable(root) if isinstance(item, Secret)]


def left_over(made: list[Secret]) -> list[str]:
    return [secret.kind for secret in made if not secret.is_wiped]
