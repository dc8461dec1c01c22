"""The round loop: its memory, its counts, and a platform's own pieces."""

from __future__ import annotations

import io
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update.weighting import COUNTS
from secagg.errors import InvalidParameters
from secagg.training.configuration import Configuration, LocalTraining, ServerSettings, changed
from secagg.training.driver import Progress, estimate, in_time, train
from secagg.training.parts import Assignment, Tensors, TrainedClient
from secagg.training.records import Accuracy, Checkpoint, MetricsFile, RoundRecord, read_records, summarise
from secagg.training.rounds import Pieces, Run, ServerOptimizer

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]


def test_a_run_learns_and_tells_what_it_did(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(
        "rounds=20", "compression.scheme=pq", "secagg.protocol=enclave", "secagg.mode=real", "secagg.every=10"
    )
    summary = train(run, tmp_path, pieces=toy_pieces(run))
    records = read_records(tmp_path)
    assert summary["final accuracy"] > 0.8
    assert [record.is_real for record in records] == [number % 10 == 0 for number in range(20)]
    assert [record.is_compressed for record in records] == [False] + [True] * 19
    assert records[5].wire_up < records[0].wire_up / 4
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert {file.name for file in tmp_path.iterdir()} == {
        "best.npz",
        "checkpoint.npz",
        "configuration.toml",
        "metrics.jsonl",
        "model.npz",
        "summary.json",
    }


@pytest.mark.parametrize(
    "changes",
    [
        ("compression.scheme=pq", "secagg.protocol=two-servers", 'secagg.settings=["is_checked=no", "suite=hybrid"]'),
        ("dropouts.rate=0.1",),
    ],
)
def test_a_real_protocol_and_an_ideal_sum_give_one_model(
    toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...]
) -> None:
    models = list[Any]()
    for mode in ("real", "ideal"):
        own = () if any("secagg." in change for change in changes) else ('secagg.settings=["topology=full"]',)
        run = toy_run("clients_per_round=10", "rounds=3", f"secagg.mode={mode}", *own, *changes)
        played = Run(run, toy_pieces(run))
        records = [played.advance() for _ in range(3)]
        assert all(record.is_real is (mode == "real") for record in records)
        models.append(played.parameters)
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


class CountingEngine:
    """Records the number of updates alive at a time."""

    name = "counting"

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.alive = weakref.WeakSet[Any]()
        self.most = 0

    def train(
        self, start: Tensors, assignments: Sequence[Assignment], settings: LocalTraining
    ) -> Iterator[TrainedClient]:
        for assignment in assignments:
            (trained,) = self._inner.train(start, [assignment], settings)
            held = Held(**trained.update)
            self.alive.add(held)
            self.most = max(self.most, len(self.alive))
            yield replace(trained, update=held)
            del trained, held


class Held(dict[str, Any]):
    """An update that supports weak references."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@pytest.mark.parametrize("mode", ["ideal", "real"])
def test_updates_are_dropped_one_by_one(toy_run: Make, toy_pieces: Pieced, mode: str) -> None:
    run = toy_run("clients_per_round=10", f"secagg.mode={mode}", 'secagg.settings=["topology=full"]')
    pieces = toy_pieces(run)
    counting = CountingEngine(pieces.engine)
    Run(run, replace(pieces, engine=counting)).advance()
    assert counting.most <= 2


def test_a_round_that_loses_too_many_changes_nothing(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run("rounds=8", "dropouts.rate=0.6", 'dropouts.stages=["masked input"]')
    played = Run(run, toy_pieces(run))
    failed = 0
    for _ in range(8):
        before = played.parameters
        record = played.advance()
        if record.failure is not None:
            failed += 1
            assert played.parameters is before
            assert record.contributors == 0
        assert sum(record.lost.values()) + record.contributors >= (0 if record.failure else record.clients)
    assert 0 < failed < 8


def test_weights_follow_the_number_of_examples(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run("server.weighting=examples")
    pieces = toy_pieces(run)
    played = Run(run, pieces)
    played.advance()
    counts = played.operators.codec.schemes[COUNTS]
    assert isinstance(counts, FixedPoint)
    assert counts.clip == pieces.data.sizes.max()


def test_nobody_is_sampled_twice_in_a_round_and_rounds_differ(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run()
    played = Run(run, toy_pieces(run))
    drawn = [played.sample(number) for number in range(10)]
    assert all(len(set(some)) == len(some) == 7 for some in drawn)
    assert len(set(drawn)) == 10


def test_overflow_is_counted_in_both_ways(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run("compression.scheme=sq", "compression.bits=8", "compression.wrap=true")
    summary = train(run, pieces=toy_pieces(run))
    assert 0.02 < summary["overflow"] < 0.9
    assert summary["overflow_flsim"] != summary["overflow"]
    wide = changed(run, ["compression.modulus_bits=12"])
    assert train(wide, pieces=toy_pieces(wide))["overflow"] == 0


def step(settings: ServerSettings, *means: float) -> list[float]:
    optimizer, parameters = ServerOptimizer(settings), {"w": np.zeros(1, dtype=np.float32)}
    path = list[float]()
    for mean in means:
        parameters = optimizer.step(parameters, {"w": np.full(1, mean, dtype=np.float32)})
        path.append(float(parameters["w"][0]))
    return path


def test_fedavg_moves_by_the_rate_times_the_mean() -> None:
    assert step(ServerSettings(rate=0.5), 1, 1) == [0.5, 1.0]


def test_fedavgm_remembers() -> None:
    settings = ServerSettings(optimizer="fedavgm", rate=1, momentum=0.5)  # type: ignore[arg-type]
    assert step(settings, 1, 1, 0) == [1.0, 2.5, 3.25]


def record(number: int, accuracy: float | None = None, **more: Any) -> RoundRecord:
    test = None if accuracy is None else Accuracy(accuracy=accuracy, loss=1, validation=1 - accuracy, held_out=accuracy)
    base: dict[str, Any] = {"epoch": 0, "parameters": 100, "clients": 5, "contributors": 5, "paper_bytes": 40.0}
    return RoundRecord(round=number, test=test, **{**base, **more})


def test_final_best_and_best_by_validation_are_told_apart() -> None:
    summary = summarise([record(1, 0.5), record(2, 0.9), record(3, 0.7)], parameters=100)
    assert (summary["final accuracy"], summary["best accuracy"]) == (0.7, 0.9)
    assert summary["best by validation"] == {"round": 1, "accuracy on the others": 0.5}
    assert summary["factor"] == 10


def test_of_models_that_are_equally_good_by_validation_the_first_is_chosen() -> None:
    summary = summarise([record(1, 0.5), record(2, 0.5)], parameters=100)
    assert summary["best by validation"]["round"] == 1


def test_records_are_read_back_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path)
    for one in (record(1), record(2, 0.5, lost={"before_keys": 1})):
        metrics.round_done(one)
    metrics.close()
    file = tmp_path / "metrics.jsonl"
    whole = read_records(tmp_path)
    assert whole == [record(1), record(2, 0.5, lost={"before_keys": 1})]
    file.write_text(file.read_text()[:-20])
    assert read_records(tmp_path) == whole[:1]
    file.write_text("nothing\n" + file.read_text())
    with pytest.raises(InvalidParameters, match="line 1"):
        read_records(tmp_path)


class Terminal(io.StringIO):
    """A stream that is, or is not, a terminal."""

    def __init__(self, *, seen: bool) -> None:
        super().__init__()
        self.seen = seen

    def isatty(self) -> bool:
        return self.seen


def test_a_terminal_sees_one_line_and_a_log_one_for_each_evaluation() -> None:
    shown, logged = Terminal(seen=True), Terminal(seen=False)
    for stream in (shown, logged):
        progress = Progress("a run", 4, stream=stream)
        for number in range(1, 5):
            progress.round_done(record(number, 0.5 if number % 2 == 0 else None, lost={"before_keys": 1}))
        progress.close()
    assert shown.getvalue().count("\n") == 1
    assert "4/4" in shown.getvalue()
    assert logged.getvalue().splitlines() == [
        "a run: round 2 of 4, accuracy 50.0 %, 0.0 KB up, 2 lost",
        "a run: round 4 of 4, accuracy 50.0 %, 0.0 KB up, 4 lost",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(5.4, "5 s"), (65, "1:05 min"), (3700, "1:01 h")])
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert in_time(seconds) == text


def test_an_estimate_says_what_a_run_sends(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run("compression.scheme=pq", "secagg.protocol=enclave", "secagg.mode=real")
    found = estimate(run, toy_pieces(run))
    played = Run(run, toy_pieces(run))
    sent = [played.advance() for _ in range(2)][-1]
    assert found.payload_bytes == sent.payload_bytes
    assert found.paper_bytes == sent.paper_bytes
    assert found.round_seconds > 0
    assert found.bytes_up_in_all == found.payload_bytes * 24


class SignStep:
    """A platform's own optimiser: it moves every value by the same amount, and counts its steps."""

    def __init__(self) -> None:
        self.steps = np.zeros(1, dtype=np.int64)

    def step(self, parameters: Any, mean: Any) -> dict[str, Any]:
        self.steps = self.steps + 1
        return {name: value + np.float32(0.01) * np.sign(mean[name]) for name, value in parameters.items()}

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def restore(self, stored: Any) -> None:
        self.steps = stored["steps"]


def test_a_platforms_own_optimiser_fits_in_and_is_resumed(toy_run: Make, toy_pieces: Pieced, tmp_path: Path) -> None:
    run = toy_run()
    pieces = replace(toy_pieces(run), optimizer=SignStep)
    straight, stopped, resumed = (Run(run, pieces) for _ in range(3))
    for played, rounds in ((straight, 4), (stopped, 2)):
        for _ in range(rounds):
            played.advance()
    stopped.checkpoint().write(tmp_path)
    stored = Checkpoint.read(tmp_path)
    assert stored is not None
    resumed.restore(stored)
    for _ in range(2):
        resumed.advance()
    assert all(np.array_equal(straight.parameters[name], resumed.parameters[name]) for name in straight.parameters)
    assert isinstance(resumed.optimizer, SignStep)
    assert resumed.optimizer.steps == 4
