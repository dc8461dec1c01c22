"""The tutorial of a custom scheme, from the README of the compression schemes."""

from __future__ import annotations

from pathlib import Path

_README = Path(__file__).resolve().parents[2] / "compression" / "README.md"
_HEADING = "## Custom schemes"


def tutorial_scheme() -> str:
    """Return the tutorial's file."""
    return _block("python")


def tutorial_commands() -> str:
    """Return the tutorial's commands."""
    return _block("console")


def _block(kind: str) -> str:
    text = _README.read_text(encoding="utf-8")
    _, begun, rest = text[text.index(_HEADING) :].partition(f"```{kind}\n")
    assert begun, f"the tutorial has no block of {kind}"
    return rest[: rest.index("```\n")]
