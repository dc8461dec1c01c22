"""A resumed run equals an uninterrupted one: same models and metrics, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secagg.errors import InvalidParameters
from secagg.training.configuration import Configuration, changed
from secagg.training.driver import MODEL_NAME, train
from secagg.training.engines import make_engine
from secagg.training.parts import Examples
from secagg.training.records import Checkpoint, RoundRecord, read_records
from secagg.training.rounds import Pieces

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]


AVERAGED = ("server.falling=0.5", "server.averaged=3")
WHOLE = ("secagg.protocol=enclave", "compression.refresh=2", *AVERAGED)


class Interrupting:
    """Presses Ctrl-C after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def round_done(self, record: RoundRecord) -> None:  # noqa: ARG002 -- an observer's
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def close(self) -> None:
        pass


def model(folder: Path) -> dict[str, Any]:
    with np.load(folder / MODEL_NAME) as stored:
        return {name: stored[name] for name in stored.files}


def told(folder: Path) -> list[RoundRecord]:
    """Return the records without times."""
    return [
        replace(
            record,
            seconds={},
            stages=[{**stage, **{key: 0 for key in stage if "seconds" in key}} for stage in record.stages],
        )
        for record in read_records(folder)
    ]


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "changes",
    [
        ("compression.scheme=sq", "compression.wrap=true", "compression.stochastic=true"),
        ("compression.scheme=pruning", "server.optimizer=fedavgm", "server.rate=0.01", "dropouts.rate=0.2"),
        (
            "secagg.protocol=enclave",
            "compression.scheme=pq",
            "compression.refresh=2",
            "server.optimizer=fedavgm",
            "server.rate=0.3",
        ),
        ("compression.scheme=CUSTOM", *AVERAGED),
        (*WHOLE, "compression.scheme=peak", "compression.lengths=voted"),
        (*WHOLE, "compression.scheme=sketch", "compression.lengths=median"),
        (*WHOLE, "compression.scheme=peak", "compression.down=sums", "dropouts.rate=0.2"),
    ],
    ids=lambda changes: ", ".join(change.partition("=")[2] for change in changes),
)
def test_a_run_that_is_interrupted_and_resumed_equals_a_straight_one(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced, custom: str, changes: tuple[str, ...]
) -> None:
    run = toy_run("checkpoint_every=2", *(change.replace("CUSTOM", custom) for change in changes))
    train(run, tmp_path / "straight", pieces=toy_pieces(run))
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "resumed", observers=[Interrupting(3)], pieces=toy_pieces(run))
    assert not (tmp_path / "resumed" / MODEL_NAME).exists()
    stored = Checkpoint.read(tmp_path / "resumed")
    assert stored is not None
    assert stored.next_round == 3
    train(run, tmp_path / "resumed", resume=True, pieces=toy_pieces(run))
    assert same(model(tmp_path / "straight"), model(tmp_path / "resumed"))
    assert told(tmp_path / "straight") == told(tmp_path / "resumed")


def test_a_run_can_be_made_longer(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run()
    train(run, tmp_path / "straight", pieces=toy_pieces(run))
    train(replace(run, rounds=2), tmp_path / "longer", pieces=toy_pieces(replace(run, rounds=2)))
    train(run, tmp_path / "longer", resume=True, pieces=toy_pieces(run))
    assert same(model(tmp_path / "straight"), model(tmp_path / "longer"))


def test_a_rate_that_falls_keeps_to_its_rounds(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run("rounds=2", "server.falling=0.5")
    train(run, tmp_path, pieces=toy_pieces(run))
    longer = changed(run, ["rounds=4"])
    with pytest.raises(InvalidParameters, match="the run's rounds changed since its start"):
        train(longer, tmp_path, resume=True, pieces=toy_pieces(longer))


@pytest.mark.parametrize(("change", "named"), [("seed=1", "seed"), ("compression.bits=4", "compression.bits")])
def test_a_resume_with_another_configuration_is_refused(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced, change: str, named: str
) -> None:
    run = toy_run("rounds=1")
    train(run, tmp_path, pieces=toy_pieces(run))
    with pytest.raises(InvalidParameters, match=named):
        train(changed(run, [change]), tmp_path, resume=True, pieces=toy_pieces(run))


def test_a_finished_run_is_never_overwritten(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run("rounds=1")
    train(run, tmp_path, pieces=toy_pieces(run))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InvalidParameters, match="has a finished run; use another folder"):
        train(toy_run("rounds=2"), tmp_path, pieces=toy_pieces(run))
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def test_a_run_that_did_not_finish_starts_anew_without_resume(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced
) -> None:
    run = toy_run()
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path, observers=[Interrupting(3)], pieces=toy_pieces(run))
    train(run, tmp_path, pieces=toy_pieces(run))
    assert [record.round for record in read_records(tmp_path)] == [1, 2, 3, 4]


class OtherTargets:
    """The toy data with one changed label, of the last client or of the test data."""

    def __init__(self, inner: Any, where: str) -> None:
        self._inner, self._where = inner, where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def client(self, number: int) -> Examples:
        return self._changed(self._inner.client(number), self._where == "client" and number == 15)

    def test(self) -> Examples:
        return self._changed(self._inner.test(), self._where == "test")

    def _changed(self, examples: Examples, is_changed: bool) -> Examples:  # noqa: FBT001 -- private
        targets = examples.targets.clone()
        targets[0] = (targets[0] + is_changed) % 3
        return Examples(examples.inputs, targets)


@pytest.mark.parametrize("where", ["client", "test"])
def test_a_resume_on_other_data_is_refused(tmp_path: Path, toy_run: Make, toy_pieces: Pieced, where: str) -> None:
    run = toy_run("rounds=2")
    pieces = toy_pieces(run)
    train(replace(run, rounds=1), tmp_path, pieces=pieces)
    with pytest.raises(InvalidParameters, match="the run's data changed since its start"):
        train(run, tmp_path, resume=True, pieces=replace(pieces, data=OtherTargets(pieces.data, where)))
    train(run, tmp_path, resume=True, pieces=replace(pieces, data=OtherTargets(pieces.data, "nowhere")))


def other_activation() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Tanh(), torch.nn.Linear(24, 3))


def narrower() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


@pytest.mark.parametrize("factory", [other_activation, narrower])
def test_a_resume_of_another_model_is_refused(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced, factory: Callable[[], torch.nn.Module]
) -> None:
    run = toy_run("rounds=2")
    pieces = toy_pieces(run)
    train(replace(run, rounds=1), tmp_path, pieces=pieces)
    engine = make_engine("sequential", factory)
    with pytest.raises(InvalidParameters, match="the run's model changed since its start"):
        train(run, tmp_path, resume=True, pieces=replace(pieces, factory=factory, engine=engine))


def encrypted(archive: bytes) -> bytes:
    """Mark every file in an archive as encrypted, as one flipped bit would."""
    damaged = bytearray(archive)
    place = damaged.find(b"PK\x01\x02")
    while place >= 0:
        damaged[place + 8] |= 1
        place = damaged.find(b"PK\x01\x02", place + 4)
    return bytes(damaged)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "begun": lambda _: b"PK\x03\x04 and nothing more",
    "cut": lambda whole: whole[:-30],
    "empty": lambda whole: whole[:0],
    "a flipped bit": encrypted,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_refused(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced, damage: Callable[[bytes], bytes]
) -> None:
    file = Checkpoint(next_round=1, configuration={}, counters={"engine": "threads"}).write(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InvalidParameters, match="not a checkpoint"):
        train(toy_run(), tmp_path, resume=True, pieces=toy_pieces(toy_run()))


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Checkpoint(next_round=1, configuration={})
    before.write(tmp_path)
    break_writing(monkeypatch)
    with pytest.raises(OSError, match="full"):
        Checkpoint(next_round=2, configuration={}).write(tmp_path)
    stored = Checkpoint.read(tmp_path)
    assert stored is not None
    assert stored.next_round == 1
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.npz"]


def break_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, **_: Any) -> None:
        file.write(b"a beginning")
        raise OSError("the disk is full")

    broken: Callable[..., None] = full
    monkeypatch.setattr("secagg.training.records.np.savez", broken)
