"""Secrets that were made while a test ran, and whether a text shows one."""

from __future__ import annotations

from typing import Any, Final, Literal

import pytest

from secagg.crypto.secret import Secret

ORDERS: Final[tuple[Literal["big", "little"], ...]] = ("big", "little")
Made = list[tuple[Secret, bytes]]
"""Every secret of 16 bytes or more, with what it held."""


def recorded(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Collect what is made from here on, but what is mostly zeros."""
    secrets, initialise = Made(), Secret.__init__

    def recording(self: Secret, kind: str, data: Any) -> None:
        held = bytes(data)
        initialise(self, kind, data)
        if len(held) >= 16 and held.count(0) < 16:
            secrets.append((self, held))

    monkeypatch.setattr(Secret, "__init__", recording)
    return secrets


def shows(text: str, held: bytes) -> bool:
    numbers = (str(int.from_bytes(held, order)) for order in ORDERS)
    return any(form in text for form in (held.hex(), repr(held)[2:-1], str(list(held))[1:-1], *numbers))
