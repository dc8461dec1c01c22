"""Output for users: a progress bar, tables, and numbers with units."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Any, Final

from secagg.session.durable import PUBLIC, replace, require_regular

_SHOWN: Final = 8
_BAR_CELLS: Final = 30
_BAR_PAUSE: Final = 0.1
_PIPED: Final = 100
_EMPTY: Final = {"0 B", ""}


class Bar:
    """Progress bar on standard error; shown only on a terminal."""

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._label = ""
        self._drawn = 0.0

    def update(self, label: str, done: int, count: int) -> None:
        now = perf_counter()
        if not self._is_seen or (label == self._label and done < count and now - self._drawn < _BAR_PAUSE):
            return
        self._label, self._drawn = label, now
        filled = _BAR_CELLS * done // max(done, count, 1)
        cells = "#" * filled + "." * (_BAR_CELLS - filled)
        print(f"\r{label:<20} [{cells}] {done} of {count}\033[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_seen:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def some(numbers: Sequence[int]) -> str:
    """Format the first few numbers, and how many more there are."""
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"


def in_bytes(count: float) -> str:
    """Format a number of bytes with a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def in_seconds(value: float) -> str:
    """Format a duration with a unit."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"


def peak_mib() -> int | None:
    """Return the peak memory of the process in MiB; None if the system does not report it."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak >> 20 if sys.platform == "darwin" else peak >> 10


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    cell: Callable[[dict[str, Any]], str]
    rank: int = 0
    """Narrow terminals show only columns of low rank."""


def table(title: str, rows: Sequence[tuple[str, dict[str, Any]]], columns: Sequence[Column]) -> Iterator[str]:
    """Yield the lines of a table as wide as the terminal or 100 columns; set COLUMNS=200 to see more columns."""
    width = _width()
    name_width = max(len(title), *(len(name) for name, _ in rows)) + 1
    cells = {column.name: [column.cell(row) for _, row in rows] for column in columns}
    shown: list[Column] = [column for column in columns if any(cell not in _EMPTY for cell in cells[column.name])]
    widths = {column.name: 2 + max(len(column.name), *map(len, cells[column.name])) for column in shown}
    while shown and name_width + sum(widths[column.name] for column in shown) > width:
        worst = max(column.rank for column in shown)
        if worst == 0:
            break
        shown = [column for column in shown if column.rank < worst]
    yield f"{title:<{name_width}}" + "".join(f"{column.name:>{widths[column.name]}}" for column in shown)
    for number, (name, _) in enumerate(rows):
        yield f"{name:<{name_width}}" + "".join(
            f"{cells[column.name][number]:>{widths[column.name]}}" for column in shown
        )


def shown(lines: Iterable[str], indent: str = "  ") -> None:
    """Print lines, wrapped to the width of the terminal or 100 columns."""
    width = _width()
    for line in lines:
        whole = len(line) <= width
        print(line if whole else fill(line, width, subsequent_indent=indent, break_on_hyphens=False))


def against_float32(plain_bytes: float, sent_bytes: float) -> str:
    """Compare an upload with the same values as float32."""
    if sent_bytes <= plain_bytes:
        return f"{plain_bytes / sent_bytes:.1f} times less than float32"
    return f"{sent_bytes / plain_bytes:.1f} times more than float32"


def _width() -> int:
    """Return the width of the terminal or of the variable COLUMNS; 100 without either."""
    return shutil.get_terminal_size((_PIPED, 0)).columns


def writable(path: Path) -> None:
    """Check that a file can be written, before a long computation."""
    path.parent.mkdir(parents=True, exist_ok=True)
    require_regular(path)
    existed = path.exists()
    with path.open("a", encoding="utf-8"):
        pass
    if not existed:
        path.unlink()


def write_json(path: Path, found: object) -> None:
    """Write figures as JSON; an existing file is replaced only once they are on disk."""
    replace(path, (json.dumps(found, indent=2) + "\n").encode(), PUBLIC)
