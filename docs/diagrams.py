"""Mermaid diagrams of transition tables and of a session's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from secagg.wire import MessageKind

_PREFIXES: Final = ("ONE_MESSAGE_", "LIGHT_SECAGG_", "TWO_SERVERS_", "ENCLAVE_")


def spoken(kind: str) -> str:
    """Return a message kind's name in words, without its protocol's name."""
    for prefix in _PREFIXES:
        kind = kind.removeprefix(prefix)
    return kind.lower().replace("_", " ")


def diagram_of(table: Mapping[Any, tuple[Any, Any]], other: str = "") -> str:
    """Draw a table that maps each state to the messages it expects and the next states.

    Args:
        other: state that follows a failure in every state with transitions; empty if there is none.
    """
    first: Any = next(iter(table))
    states = list[Any](first.__class__)
    lines = ["stateDiagram-v2", f"    [*] --> {states[0].value}"]
    ends = [state for state in states if not _kinds(table.get(state, ((), ()))[0])]
    for state, (due, following) in table.items():
        if state in ends:
            continue
        label, after = (
            ", ".join(sorted(kind.name for kind in _kinds(due))),
            sorted(_members(following), key=states.index),
        )
        lines += [f"    {state.value} --> {each.value}: {label}" for each in after]
        if other:
            lines.append(f"    {state.value} --> {other}: any failure")
    lines += [f"    {state.value} --> [*]" for state in ends]
    return "\n".join(lines)


def diagram_of_steps(first: str, steps: Iterable[tuple[str, str, str]]) -> str:
    """Draw steps; each is a state, a call, and the next state."""
    listed = list(steps)
    ends = dict.fromkeys(after for _, _, after in listed if after not in {state for state, _, _ in listed})
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {state} --> {after}: {call}" for state, call, after in listed]
    return "\n".join([*lines, *(f"    {state} --> [*]" for state in ends)])


@dataclass(frozen=True, slots=True)
class Sent:
    """A message, or the name of a stage, which has no sender."""

    text: str
    sender: str = ""
    receiver: str = ""


def sequence_of(parties: Iterable[str], sent: Iterable[Sent]) -> str:
    """Draw the messages between parties."""
    named = {party: f"P{number}" for number, party in enumerate(parties)}
    first, *_, last = named.values()
    lines = ["sequenceDiagram", *(f"    participant {short} as {party}" for party, short in named.items())]
    lines += [
        f"    {named[each.sender]}->>{named[each.receiver]}: {each.text}"
        if each.sender
        else f"    Note over {first},{last}: {each.text}"
        for each in sent
    ]
    return "\n".join(lines)


def _kinds(due: Any) -> frozenset[MessageKind]:  # noqa: ANN401 -- one kind, several, or none
    return frozenset() if due is None else frozenset(_members(due))


def _members(one_or_many: Any) -> Iterator[Any]:  # noqa: ANN401 -- likewise
    if isinstance(one_or_many, Enum):
        yield one_or_many
    else:
        yield from one_or_many
