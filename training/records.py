"""Records of a run: metrics of each round, a summary, and checkpoints."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Protocol, Self, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.session.durable import PUBLIC, replace, replacing

from .configuration import Configuration, to_tree

CHECKPOINT_NAME: Final = "checkpoint.npz"
_TEXT: Final = "text"
_FORMAT: Final = 1
_MAY_CHANGE: Final = frozenset({"name", "rounds", "workers", "engine", "checkpoint_every", "secagg.threads"})
"""Settings that a resumed run may change: they affect results only by another engine's float rounding. Exception: a
falling rate depends on the number of rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The complete state that the next round needs."""

    next_round: int
    configuration: dict[str, Any]
    counters: dict[str, Any] = field(default_factory=dict[str, Any])
    arrays: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict[str, dict[str, npt.NDArray[Any]]])
    """Arrays by part of the run and name."""

    def write(self, folder: Path) -> Path:
        text = json.dumps(
            {
                "format": _FORMAT,
                "next_round": self.next_round,
                "configuration": self.configuration,
                "counters": self.counters,
            }
        )
        flat = {_TEXT: np.frombuffer(text.encode(), dtype=np.uint8)}
        for part, arrays in self.arrays.items():
            flat.update({f"{part}:{name}": value for name, value in arrays.items()})
        return write_arrays(folder / CHECKPOINT_NAME, flat)

    @classmethod
    def read(cls, folder: Path) -> Checkpoint | None:
        """Read a folder's checkpoint; None if there is none."""
        file = folder / CHECKPOINT_NAME
        if not file.exists():
            return None
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                flat = {name: stored[name] for name in stored.files}
            text = json.loads(flat.pop(_TEXT).tobytes())
            if text["format"] != _FORMAT:
                found = f"it has format {text['format']}, but this version reads {_FORMAT}"
                raise ValueError(found)  # noqa: TRY301 -- said below
            arrays = dict[str, dict[str, npt.NDArray[Any]]]()
            for key, value in flat.items():
                part, _, name = key.partition(":")
                arrays.setdefault(part, {})[name] = value
            return cls(
                next_round=text["next_round"],
                configuration=text["configuration"],
                counters=text["counters"],
                arrays=arrays,
            )
        # A damaged archive raises different errors, such as for a password, another compression or truncation.
        except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
            raise InvalidParameters(f"{file} is not a checkpoint ({error}); remove it and start again") from None

    def require_same(self, configuration: Configuration) -> None:
        """Refuse a configuration that differs from the started run's."""
        may_change = _MAY_CHANGE - ({"rounds"} if configuration.server.falling else set[str]())
        found = sorted(_differences(self.configuration, to_tree(configuration)) - may_change)
        if found:
            raise InvalidParameters(
                f"the run's {', '.join(found)} changed since its start; restore what it was, or use another folder"
            )

    def require_about(self, about: Mapping[str, str]) -> None:
        """Refuse data or a model other than those the run was started with."""
        stored = self.counters.get("about", {})
        if found := [name for name, digest in about.items() if stored.get(name) != digest]:
            raise InvalidParameters(
                f"the run's {' and '.join(found)} changed since its start; restore what it was, or use another folder"
            )


def write_arrays(file: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Write arrays to one file atomically."""
    named: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    with replacing(file, PUBLIC) as opened:
        np.savez(opened, **named)
    return file


def write_text(file: Path, text: str) -> None:
    """Write a text file atomically."""
    replace(file, text.encode(), PUBLIC)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> set[str]:
    found = set[str]()
    for key in before.keys() | now.keys():
        one, other = before.get(key), now.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            trees = cast("tuple[dict[str, Any], dict[str, Any]]", (one, other))
            found |= _differences(*trees, f"{path}{key}.")
        elif one != other:
            found.add(path + key)
    return found


METRICS_NAME: Final = "metrics.jsonl"
SUMMARY_NAME: Final = "summary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Result of an evaluation; all values are shares from 0 to 1."""

    accuracy: float
    """Over all test examples."""
    loss: float
    validation: float | None = None
    """Over those reserved for choosing the best model."""
    held_out: float | None = None
    """Over the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """Record of one round. Rounds count from 1 here."""

    round: int
    epoch: int
    """Number of renewals of the codec."""
    parameters: int
    """Number of parameters of the model."""
    clients: int
    contributors: int
    lost: dict[str, int] = field(default_factory=dict[str, int])
    failure: str | None = None
    """Why nothing was released; the model does not change."""
    warning: str | None = None
    """Advice on settings, from the sum."""
    loss: float | None = None
    """Training loss of the clients, before each step of the first epoch."""
    is_real: bool = False
    is_compressed: bool = True
    """False in a first round that has no scales yet."""
    payload_bytes: int = 0
    """Payload: bytes of one client's packed encoded update, without message headers."""
    paper_bytes: float = 0.0
    """The same by the paper's accounting."""
    wire_up: float = 0.0
    """Wire up: bytes that an uploading client sends, in real messages of the whole protocol."""
    model_bytes: float = 0.0
    """Bytes of model and codec parameters that a client receives before the protocol's messages."""
    wire_down: float = 0.0
    """Wire down: these and the protocol's messages, to an invited client."""
    paper_broadcast_bytes: int = 0
    overflow: float | None = None
    """Share of coordinates whose sum overflows the ring."""
    overflow_flsim: float | None = None
    """Overflow as the paper's simulator counts it."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    stages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Stages of the protocol: the name, bytes and seconds of each."""
    epsilon: float | None = None
    """Privacy cost of all rounds so far to the client in the most rounds; only with noise."""
    test: Accuracy | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=True)

    @classmethod
    def from_json(cls, line: str) -> Self:
        tree = json.loads(line)
        test = tree.pop("test")
        return cls(**tree, test=None if test is None else Accuracy(**test))


class Observer(Protocol):
    """Receives the record of every round."""

    def round_done(self, record: RoundRecord) -> None:
        """Receive a record."""

    def close(self) -> None:
        """Finish; no more records follow."""


class MetricsFile:
    """Appends records to ``metrics.jsonl``, and drops those that a resumed run repeats."""

    def __init__(self, folder: Path, *, keep: int = 0) -> None:
        self._path = folder / METRICS_NAME
        kept = [record for record in read_records(folder) if record.round <= keep] if keep else []
        write_text(self._path, "".join(record.to_json() + "\n" for record in kept))
        self.kept: Sequence[RoundRecord] = kept
        self._file = self._path.open("a", encoding="utf-8")

    def round_done(self, record: RoundRecord) -> None:
        self._file.write(record.to_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_records(folder: Path) -> list[RoundRecord]:
    """Read the records of a run."""
    file = folder / METRICS_NAME
    if not file.exists():
        return []
    records = list[RoundRecord]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(RoundRecord.from_json(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            # The last line of a killed run may be truncated; no other line may.
            if number == len(file.read_text(encoding="utf-8").splitlines()):
                break
            raise InvalidParameters(f"line {number} of {file} is not a record; the file is damaged") from None
    return records


def summarise(records: Iterable[RoundRecord], *, parameters: int) -> dict[str, Any]:
    """Return a run's summary: final, best and best-by-validation accuracy, bytes, overflow, time."""
    rows = list(records)
    tested = [(row, row.test) for row in rows if row.test is not None]
    compressed = [row for row in rows if row.is_compressed and row.failure is None]
    real = [row for row in compressed if row.is_real]
    overflow = [row.overflow for row in compressed if row.overflow is not None]
    flsim = [row.overflow_flsim for row in compressed if row.overflow_flsim is not None]
    summary: dict[str, Any] = {
        "rounds": len(rows),
        "failed rounds": sum(row.failure is not None for row in rows),
        "warning": next((row.warning for row in rows if row.warning is not None), None),
        "parameters": parameters,
        "final accuracy": tested[-1][1].accuracy if tested else None,
        "best accuracy": max((test.accuracy for _, test in tested), default=None),
        "accuracy of the last three evaluations": fmean(test.accuracy for _, test in tested[-3:]) if tested else None,
        "best by validation": None,
        "payload bytes": compressed[-1].payload_bytes if compressed else None,
        "paper bytes": compressed[-1].paper_bytes if compressed else None,
        "factor": 4 * parameters / compressed[-1].paper_bytes if compressed and compressed[-1].paper_bytes else None,
        "model bytes": fmean(row.model_bytes for row in compressed) if compressed else None,
        "wire up": fmean(row.wire_up for row in real) if real else None,
        "wire down": fmean(row.wire_down for row in real) if real else None,
        "bytes up in all": sum(row.wire_up * row.contributors for row in rows),
        "overflow": fmean(overflow) if overflow else None,
        "overflow_flsim": fmean(flsim) if flsim else None,
        "epsilon": next((row.epsilon for row in reversed(rows) if row.epsilon is not None), None),
        "lost clients": sum(sum(row.lost.values()) for row in rows),
        "rounds with a real protocol": sum(row.is_real for row in rows),
        "seconds of the protocol in a real round": (
            fmean(row.seconds.get("protocol", 0.0) for row in real) if real else None
        ),
        "seconds": sum(row.seconds.get("round", 0.0) for row in rows),
    }
    chosen = max(
        (
            (test.validation, -row.round, row.round, test.held_out)
            for row, test in tested
            if test.validation is not None
        ),
        default=None,
    )
    if chosen is not None:
        summary["best by validation"] = {"round": chosen[2], "accuracy on the others": chosen[3]}
    return summary
