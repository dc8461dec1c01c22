"""Fixtures of the planner's tests."""

import pytest

from secagg.planning import costs
from secagg.session.registry import names


@pytest.fixture
def without_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare all protocols except one message, whose parameter search takes most of the time."""
    monkeypatch.setattr(costs, "names", lambda: tuple(name for name in names() if name != "one-message"))
