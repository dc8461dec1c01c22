"""What a run tells: a record for each round, in ``metrics.jsonl``, and a summary of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Protocol, Self

from secagg.errors import InvalidParameters

from .checkpoint import write_text

FILE_NAME: Final = "metrics.jsonl"
SUMMARY_NAME: Final = "summary.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What an evaluation found; all are shares from 0 to 1."""

    accuracy: float
    """Over all test examples."""
    loss: float
    validation: float | None = None
    """Over those that are set aside for choosing the best model."""
    held_out: float | None = None
    """Over the others."""
    user_mean: float | None = None
    user_tenth: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """What one round did. Rounds count from 1 here, as people do."""

    round: int
    epoch: int
    """How often the codec was made anew."""
    parameters: int
    """Of the model."""
    clients: int
    contributors: int
    lost: dict[str, int] = field(default_factory=dict[str, int])
    failure: str | None = None
    """Why nothing was released; the model stays as it is."""
    warning: str | None = None
    """What the sum gives reason to change."""
    loss: float | None = None
    """Of the clients' training, before each step of the first epoch."""
    is_real: bool = False
    is_compressed: bool = True
    """False in a first round that has no scales yet."""
    client_bytes_up: float = 0.0
    """Of one client that uploads, in real messages of all rounds of the protocol."""
    payload_bytes: int = 0
    """Of its encoded update alone, as it is serialised."""
    paper_bytes: float = 0.0
    """The same by the paper's accounting."""
    client_bytes_down: float = 0.0
    """The model, the codec's parameters when they are new, and the protocol's messages."""
    paper_broadcast_bytes: int = 0
    overflow: float | None = None
    """The share of coordinates whose sum leaves the ring."""
    overflow_flsim: float | None = None
    """As the paper's simulator counts."""
    staleness: list[int] | None = None
    """In asynchronous runs: of the updates in the buffer."""
    wasted: int = 0
    """In asynchronous runs: uploads since the last step that were of no use."""
    clock: float | None = None
    """In asynchronous runs: the simulated time."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    stages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What each stage of the protocol took: its name, bytes and seconds."""
    epsilon: float | None = None
    """With noise: what all rounds so far cost the client that was in most of them."""
    test: Accuracy | None = None

    def to_json(self) -> str:
        """Return one line."""
        return json.dumps(asdict(self), allow_nan=True)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Read a line back."""
        tree = json.loads(line)
        test = tree.pop("test")
        return cls(**tree, test=None if test is None else Accuracy(**test))


class Observer(Protocol):
    """Told of every round."""

    def round_done(self, record: RoundRecord) -> None:
        """Take a record."""

    def close(self) -> None:
        """Finish; no record follows."""


class MetricsFile:
    """Appends records to ``metrics.jsonl``, and drops those that a resumed run will make again."""

    def __init__(self, folder: Path, *, keep: int = 0) -> None:
        """Open the file, with its first rounds kept."""
        self._path = folder / FILE_NAME
        kept = [record for record in read_records(folder) if record.round <= keep] if keep else []
        write_text(self._path, "".join(record.to_json() + "\n" for record in kept))
        self.kept: Sequence[RoundRecord] = kept
        self._file = self._path.open("a", encoding="utf-8")

    def round_done(self, record: RoundRecord) -> None:
        """Append a record."""
        self._file.write(record.to_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoard:
    """Writes the figures of each round for TensorBoard, which has to be installed."""

    def __init__(self, folder: Path) -> None:
        """Open the log.

        Raises:
            InvalidParameters: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard.writer import SummaryWriter  # noqa: PLC0415 -- an extra
        except ImportError:
            raise InvalidParameters("TensorBoard is not installed: pip install tensorboard") from None
        self._writer: Any = SummaryWriter(str(folder))

    def round_done(self, record: RoundRecord) -> None:
        """Write a record's figures."""
        figures = {
            "training/loss": record.loss,
            "uplink/bytes of a client": record.client_bytes_up,
            "overflow/share": record.overflow,
            "privacy/epsilon": record.epsilon,
            "test/accuracy": None if record.test is None else record.test.accuracy,
            "test/loss": None if record.test is None else record.test.loss,
            **{f"seconds/{name}": value for name, value in record.seconds.items()},
        }
        for name, value in figures.items():
            if value is not None:
                self._writer.add_scalar(name, value, record.round)

    def close(self) -> None:
        """Close the log."""
        self._writer.close()


def read_records(folder: Path) -> list[RoundRecord]:
    """Read the records of a run; none if it has none.

    Raises:
        InvalidParameters: a line is no record.
    """
    file = folder / FILE_NAME
    if not file.exists():
        return []
    records = list[RoundRecord]()
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            records.append(RoundRecord.from_json(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            # The last line of a run that was killed may be cut off; nothing else may.
            if number == len(file.read_text(encoding="utf-8").splitlines()):
                break
            raise InvalidParameters(f"line {number} of {file} is no record; the file is damaged") from None
    return records


def summarise(records: Iterable[RoundRecord], *, parameters: int) -> dict[str, Any]:
    """Return what a run comes to: final, best and best-by-validation accuracy, bytes, overflow, time."""
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
        "bytes up of a client, protocol included": fmean(row.client_bytes_up for row in real) if real else None,
        "bytes down of a client": fmean(row.client_bytes_down for row in compressed) if compressed else None,
        "bytes up in all": sum(row.client_bytes_up * row.contributors for row in rows),
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
