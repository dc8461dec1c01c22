"""Records secrets made during a test, and finds them in text."""

from __future__ import annotations

from typing import Any, Final, Literal

import pytest

from secagg.crypto.secret import Secret

ORDERS: Final[tuple[Literal["big", "little"], ...]] = ("big", "little")
Made = list[tuple[Secret, bytes]]
"""Every secret of at least 16 bytes, with its content."""


def recorded(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Collect secrets made from here on, except those that are mostly zeros."""
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
