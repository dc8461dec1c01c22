"""The tutorial of a custom scheme, from the README of the compression schemes, and its file, an example."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_HEADING = "## Custom schemes"


def tutorial_scheme() -> str:
    """Return the tutorial's file."""
    return (_ROOT / "examples" / "scheme" / "my_scheme.py").read_text(encoding="utf-8")


def tutorial_commands() -> str:
    """Return the tutorial's commands."""
    text = (_ROOT / "compression" / "README.md").read_text(encoding="utf-8")
    _, begun, rest = text[text.index(_HEADING) :].partition("```console\n")
    assert begun, "the tutorial has no block of commands"
    return rest[: rest.index("```\n")]
