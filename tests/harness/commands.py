"""Commands that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from secagg.cli import main


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """Run a command that must be refused, and return its error, which must be its only output."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert not said.out
    return said.err
