"""SVG for the two kinds of Mermaid diagrams on this site, so that pages need no script.

A drawing is 380 units wide, like a phone, and takes its colours from the page.
"""

from __future__ import annotations

import re
from collections import Counter
from html import escape
from typing import Any, Final

from docs.diagrams import spoken

_WIDTH: Final = 380
_LINE: Final = 15
_BOX: Final = 30
_EDGE = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.*))?$")
_PARTY = re.compile(r"^\s*participant (\w+) as (.*)$")
_NOTE = re.compile(r"^\s*Note over [\w,]+: (.*)$")
_MESSAGE = re.compile(r"^\s*(\w+)->>(\w+): (.*)$")
_OUTSIDE: Final = "[*]"
_ON_A_RAIL: Final = 3
"""Minimum number of arrows into one state that are drawn as one."""
_HEAD: Final = 5
_LANE: Final = 62
"""Distance between arrows next to the column."""


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **more: Any) -> str:  # noqa: ANN401, ARG001 -- as pymdownx calls it
    """Draw a fenced block that is marked ``mermaid``."""
    return drawing(source)


def drawing(source: str) -> str:
    """Return the SVG of a diagram.

    Raises:
        ValueError: the kind of diagram or one of its lines is not supported.
    """
    kind, *lines = source.strip().splitlines()
    if kind == "stateDiagram-v2":
        return _states([_matched(_EDGE, line) for line in lines])
    if kind == "sequenceDiagram":
        return _sequence(lines)
    raise ValueError(f"{kind} is not supported; write a stateDiagram-v2 or a sequenceDiagram")


# --- States -----------------------------------------------------------------------------------------------------------


def _states(edges: list[tuple[str, ...]]) -> str:
    order = list(dict.fromkeys(name for edge in edges for name in edge[:2] if name != _OUTSIDE))
    into = Counter(after for before, after, _ in edges if before != _OUTSIDE)
    railed = next((state for state in order if into[state] >= _ON_A_RAIL and _ends(state, edges)), "")
    column = [state for state in order if state != railed] + ([railed] if railed else [])
    left, width = 26 if railed else 6, 216
    places = {state: 26 + position * (_BOX + 44) for position, state in enumerate(column)}
    drawn, height = list[str](), max(places.values()) + _BOX + 26
    middle, right = left + width // 2, left + width
    for state, top in places.items():
        drawn.append(_box(left, top, width, state.replace("_", " ")))
    joined = dict[tuple[str, str], list[str]]()
    for before, after, label in edges:
        joined.setdefault((before, after), []).append(label)
    aside = list[tuple[int, str, str]]()
    for (before, after), labels in joined.items():
        if before == _OUTSIDE:
            drawn.append(_dot(middle, places[after] - 20) + _arrow(f"M{middle} {places[after] - 16}V{places[after]}"))
        elif after == _OUTSIDE:
            below = places[before] + _BOX
            drawn.append(_arrow(f"M{middle} {below}v14") + _dot(middle, below + 18, is_end=True))
        elif after == railed:
            drawn.append(_arrow(f"M{left} {places[before] + 20}H12V{places[after] + 15}H{left}", dashed=True))
        elif column.index(after) == column.index(before) + 1:
            drawn.append(_arrow(f"M{middle} {places[before] + _BOX}V{places[after]}"))
            drawn.append(_text(middle + 8, places[before] + _BOX + 27, [_said(labels)], anchor="start"))
        else:
            aside.append((abs(column.index(after) - column.index(before)), before, after))
    # The longest go outside, so that no arrow crosses another's label.
    for number, (_, before, after) in enumerate(sorted(aside)):
        lane, start, end = right + 16 + _LANE * number, places[before] + 8 + 5 * number, places[after] + 17 + 5 * number
        drawn.append(_arrow(f"M{right} {start}H{lane}V{end}H{right}"))
        words = _said(joined[before, after]).split()
        drawn.append(_text(lane + 5, (start + end - _LINE * (len(words) - 1)) / 2 + 4, words, anchor="start"))
    if railed:
        (label, _), *_ = Counter(label for _, after, label in edges if after == railed).most_common()
        drawn.append(_text(20, places[railed] - 10, [_said([label])], anchor="start"))
    states = ", ".join(state.replace("_", " ") for state in column)
    return _svg(height, drawn, f"State diagram: {states}")


def _said(labels: list[str]) -> str:
    kinds = [label if label.islower() else spoken(label) for all_of in labels for label in all_of.split(", ")]
    return ", ".join(kinds)


def _ends(state: str, edges: list[tuple[str, ...]]) -> bool:
    """Whether only the end follows a state."""
    return all(after == _OUTSIDE for before, after, _ in edges if before == state)


# --- Sequences --------------------------------------------------------------------------------------------------------


def _sequence(lines: list[str]) -> str:
    parties = {found[1]: found[2] for line in lines if (found := _PARTY.match(line))}
    gap = (_WIDTH - 100) / max(1, len(parties) - 1)
    places = {short: 50 + number * gap for number, short in enumerate(parties)}
    drawn, top = list[str](), 56
    for line in lines:
        if note := _NOTE.match(line):
            top += 10
            drawn.append(f'<rect class="note" x="4" y="{top}" width="{_WIDTH - 8}" height="20" rx="3"/>')
            drawn.append(_text(_WIDTH / 2, top + 14, [note[1]], css="strong"))
            top += 26
        elif message := _MESSAGE.match(line):
            start, end = places[message[1]], places[message[2]]
            drawn.append(_text((start + end) / 2, top + 12, [message[3]], css="halo"))
            drawn.append(_arrow(f"M{start:g} {top + 18}H{end:g}"))
            top += 32
        elif not _PARTY.match(line):
            raise ValueError(f"{line.strip()!r} is not supported in a sequence diagram")
    heads = [_box(place - 48, 6, 96, parties[short]) for short, place in places.items()]
    lives = [f'<path class="life" d="M{place:g} 36V{top + 8}"/>' for place in places.values()]
    return _svg(top + 14, [*lives, *heads, *drawn], f"Sequence diagram of {', '.join(parties.values())}")


# --- Strokes ----------------------------------------------------------------------------------------------------------


def _svg(height: float, drawn: list[str], label: str) -> str:
    return (
        f'<svg class="diagram" role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {height:g}">'
        f"{''.join(drawn)}</svg>"
    )


def _box(left: float, top: float, width: float, text: str) -> str:
    box = f'<rect class="box" x="{left:g}" y="{top:g}" width="{width:g}" height="{_BOX}" rx="6"/>'
    return box + _text(left + width / 2, top + 19, [text], css="strong")


def _dot(middle: float, height: float, *, is_end: bool = False) -> str:
    return f'<circle class="{"end" if is_end else "start"}" cx="{middle:g}" cy="{height:g}" r="4"/>'


def _text(left: float, top: float, lines: list[str], *, anchor: str = "middle", css: str = "") -> str:
    spans = "".join(
        f'<tspan x="{left:g}" y="{top + _LINE * number:g}">{escape(line)}</tspan>' for number, line in enumerate(lines)
    )
    return f'<text class="{css}" text-anchor="{anchor}">{spans}</text>'


def _arrow(path: str, *, dashed: bool = False) -> str:
    """Draw a path of horizontal and vertical strokes with a head at its end."""
    x, y, before = _end_of(path)
    sideways = before[1] == y
    sign = 1 if (x > before[0] if sideways else y > before[1]) else -1
    back, wide = _HEAD * sign, _HEAD * 0.6
    head = (
        f"M{x - back:g} {y - wide:g}L{x:g} {y:g}L{x - back:g} {y + wide:g}Z"
        if sideways
        else f"M{x - wide:g} {y - back:g}L{x:g} {y:g}L{x + wide:g} {y - back:g}Z"
    )
    return f'<path class="line{" dashed" if dashed else ""}" d="{path}"/><path class="head" d="{head}"/>'


def _end_of(path: str) -> tuple[float, float, tuple[float, float]]:
    """Return the end of a path and the start of its last stroke."""
    x = y = 0.0
    before = (x, y)
    for stroke in re.findall(r"[MHVv][^MHVv]*", path):
        before, numbers = (x, y), [float(number) for number in stroke[1:].split()]
        match stroke[0]:
            case "M":
                x, y = numbers
            case "H":
                x = numbers[0]
            case "V":
                y = numbers[0]
            case _:
                y += numbers[0]
    return x, y, before


def _matched(pattern: re.Pattern[str], line: str) -> tuple[str, ...]:
    found = pattern.match(line)
    if found is None:
        raise ValueError(f"{line.strip()!r} is not supported in a state diagram")
    return tuple(group or "" for group in found.groups())
