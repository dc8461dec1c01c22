"""How far a run is: one line that moves where somebody is looking, and a line for each evaluation elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from time import perf_counter
from typing import Final, TextIO

from secagg.training.records.metrics import RoundRecord

_RECENT: Final = 20
"""Rounds that the estimate of the time left is taken from."""
_CELLS: Final = 24
_PAUSE: Final = 0.1
_KILO: Final = 1024


class Progress:
    """Shows rounds, accuracy, bytes of a client, clients that were lost, and the time left."""

    def __init__(self, name: str, rounds: int, *, stream: TextIO | None = None) -> None:
        """Begin; nothing is written before the first round is done."""
        self._name, self._rounds = name, rounds
        self._stream = sys.stderr if stream is None else stream
        self._is_seen = self._stream.isatty()
        self._times = deque[float]([perf_counter()], maxlen=_RECENT + 1)
        self._accuracy: float | None = None
        self._lost = 0
        self._drawn = 0.0
        self._is_warned = False

    def round_done(self, record: RoundRecord) -> None:
        """Show a round."""
        self._times.append(perf_counter())
        self._lost += sum(record.lost.values())
        if record.test is not None:
            self._accuracy = record.test.accuracy
        if record.failure is not None:
            self._line(f"round {record.round} released nothing: {record.failure}")
        if record.warning is not None and not self._is_warned:
            self._is_warned = True
            self._line(f"round {record.round}: {record.warning}")
        if self._is_seen:
            if record.round == self._rounds or self._times[-1] - self._drawn >= _PAUSE:
                self._drawn = self._times[-1]
                print(f"\r{self._bar(record)}\033[K", end="", file=self._stream, flush=True)
        elif record.test is not None:
            self._line(f"{self._name}: round {record.round} of {self._rounds}, {self._figures(record)}")

    def close(self) -> None:
        """Leave the last line as it is."""
        if self._is_seen and len(self._times) > 1:
            print(file=self._stream, flush=True)

    @property
    def seconds_a_round(self) -> float:
        """How long the last rounds took, each."""
        return (self._times[-1] - self._times[0]) / max(1, len(self._times) - 1)

    def _bar(self, record: RoundRecord) -> str:
        filled = _CELLS * record.round // max(self._rounds, 1)
        left = self.seconds_a_round * (self._rounds - record.round)
        cells = "#" * filled + "." * (_CELLS - filled)
        return f"{self._name} [{cells}] {record.round}/{self._rounds}, {in_time(left)} left, {self._figures(record)}"

    def _figures(self, record: RoundRecord) -> str:
        parts = [f"{record.client_bytes_up / _KILO:.1f} KB up"]
        if self._accuracy is not None:
            parts.insert(0, f"accuracy {100 * self._accuracy:.1f} %")
        if record.overflow:
            parts.append(f"overflow {100 * record.overflow:.2g} %")
        if self._lost:
            parts.append(f"{self._lost} lost")
        return ", ".join(parts)

    def _line(self, text: str) -> None:
        start = "\r" if self._is_seen else ""
        print(f"{start}{text}" + ("\033[K" if self._is_seen else ""), file=self._stream, flush=True)


def in_time(seconds: float) -> str:
    """Write a duration for people."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{whole % 60:02d} min" if minutes else f"{whole} s"
