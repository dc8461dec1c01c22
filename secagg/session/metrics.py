"""Counters and gauges of a process, as text that Prometheus reads. Names and labels are the caller's: never a client's.

One object for each process; whatever serves sums, over whichever transport, adds to it.
"""

from __future__ import annotations

import re
from threading import Lock
from typing import Final

from secagg.errors import Misuse

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """Counters for any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._told = dict[str, tuple[str, str]]()
        self._values = dict[str, dict[tuple[tuple[str, str], ...], float]]()

    def counter(self, name: str, text: str) -> None:
        """Say what a number means that only goes up; its name ends in ``_total``."""
        self._tell(name, "counter", text)

    def gauge(self, name: str, text: str) -> None:
        self._tell(name, "gauge", text)

    def _tell(self, name: str, kind: str, text: str) -> None:
        if not _NAME.fullmatch(name):
            raise Misuse(f"a metric is named by small letters, digits and underscores; got {name!r}")
        self._told[name] = kind, text
        self._values.setdefault(name, {})

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            series, key = self._values[name], tuple(sorted(labels.items()))
            series[key] = series.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._values[name][tuple(sorted(labels.items()))] = value

    def text(self) -> str:
        lines = list[str]()
        with self._lock:
            for name, (kind, text) in self._told.items():
                lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
                for key, value in sorted(self._values[name].items()):
                    labels = ",".join(f'{label}="{part.translate(_ESCAPED)}"' for label, part in key)
                    lines.append(f"{name}{{{labels}}} {value:.15g}" if labels else f"{name} {value:.15g}")
        return "\n".join(lines) + "\n"
