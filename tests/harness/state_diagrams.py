"""The diagram of a table of transitions, as a README shows it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from secagg.wire import MessageKind


def diagram_of(table: Mapping[StrEnum, tuple[MessageKind, frozenset[StrEnum]]], other: str) -> str:
    """Write a table in the language of Mermaid; every state that it leaves can also fail, into ``other``."""
    states = list(type(next(iter(table))))
    lines = ["stateDiagram-v2", f"    [*] --> {states[0]}"]
    for state, (due, following) in table.items():
        lines += [f"    {state} --> {after}: {due.name}" for after in sorted(following, key=states.index)]
        if other not in following:
            lines.append(f"    {state} --> {other}: any failure")
    lines += [f"    {state} --> [*]" for state in states if state not in table]
    return "\n".join(lines)
