"""FedBuff: buffers, ages, and that what was stopped goes on as if it had not been."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from secagg.errors import InvalidParameters
from secagg.training.records import read_records
from secagg.training.runs.asynchronous import AsynchronousRun
from secagg.training.runs.driver import train
from secagg.training.runs.rounds import Pieces
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.sections import AsynchronousSettings
from secagg.training.sums.real_sum import LEAST_LIST

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
BUFFERED = ("asynchronous.buffer=4", "asynchronous.concurrency=8", "asynchronous.maximum_staleness=5")


def play(run: Configuration, pieces: Pieces, steps: int) -> AsynchronousRun:
    played = AsynchronousRun(run, pieces)
    for _ in range(steps):
        played.advance()
    return played


def test_an_update_counts_less_the_older_it_is() -> None:
    settings = AsynchronousSettings(levels=16, exponent=0.5, maximum_staleness=3)
    assert settings.age_weights == (16, 11, 9, 8)
    assert AsynchronousSettings(exponent=0, maximum_staleness=3).age_weights == (1, 1, 1, 1)


def test_buffered_clients_learn_and_their_ages_follow_from_the_concurrency(
    tmp_path: Path, toy_run: Make, toy_pieces: Pieced
) -> None:
    run = toy_run(*BUFFERED, "rounds=40")
    summary = train(run, tmp_path, pieces=toy_pieces(run))
    assert summary["final accuracy"] > 0.8
    records = read_records(tmp_path)
    ages = [age for record in records[10:] for age in record.staleness or []]
    assert all(len(record.staleness or []) == 4 for record in records)
    assert fmean(ages) == pytest.approx(8 / 4, rel=0.3)
    clocks = [record.clock or 0 for record in records]
    assert clocks == sorted(clocks)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("compression.scheme=pq", "compression.refresh=3"),
        ("compression.scheme=sq", "compression.modulus_bits=16"),
    ],
)
def test_a_real_enclave_gives_the_model_of_the_ideal_sum(
    toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...]
) -> None:
    models = list[dict[str, np.ndarray]]()
    for mode in ("real", "ideal"):
        run = toy_run(*BUFFERED, "asynchronous.exponent=0", "secagg.protocol=enclave", f"secagg.mode={mode}", *changes)
        models.append(play(run, toy_pieces(run), 8).parameters)
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize(
    "changes", [(), ("compression.scheme=sq", "compression.modulus_bits=20", "compression.fine_bits=8")]
)
def test_buffers_of_one_message_sum_each_age_apart(toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...]) -> None:
    """Every step is held to the sum in the clear of the ages that had enough uploads."""
    run = toy_run(
        "asynchronous.buffer=12",
        "asynchronous.concurrency=12",
        "asynchronous.maximum_staleness=3",
        "asynchronous.levels=8",
        "secagg.protocol=one-message",
        "secagg.mode=real",
        *changes,
    )
    played = AsynchronousRun(run, toy_pieces(run))
    records = [played.advance() for _ in range(5)]
    assert all(record.is_real and record.failure is None for record in records)
    for record in records:
        ages = Counter(record.staleness or [])
        assert sum(ages.values()) == 12
        assert record.contributors == sum(count for count in ages.values() if count >= LEAST_LIST)
    assert len({age for record in records for age in record.staleness or []}) > 1


@pytest.mark.parametrize("changes", [(), ("compression.scheme=pq", "secagg.protocol=enclave")])
def test_a_run_that_is_stopped_and_goes_on_equals_a_straight_one(
    toy_run: Make, toy_pieces: Pieced, tmp_path: Path, changes: tuple[str, ...]
) -> None:
    run = toy_run(*BUFFERED, *changes)
    straight = play(run, toy_pieces(run), 9)
    stopped = play(run, toy_pieces(run), 5)
    stopped.checkpoint().write(tmp_path)
    stored = type(stopped.checkpoint()).read(tmp_path)
    assert stored is not None
    resumed = AsynchronousRun(run, toy_pieces(run))
    resumed.restore(stored)
    for _ in range(4):
        resumed.advance()
    assert all(np.array_equal(straight.parameters[name], resumed.parameters[name]) for name in straight.parameters)
    assert (straight.clock, straight.starts) == (resumed.clock, resumed.starts)


def test_every_field_of_a_record_is_there_as_in_synchronous_runs(toy_run: Make, toy_pieces: Pieced) -> None:
    codes = ("compression.scheme=sq", "compression.wrap=true", "compression.bits=8", "secagg.protocol=enclave")
    for mode, stages in (("real", ["sealed upload", "release"]), ("ideal", ["clear sum"])):
        run = toy_run(*BUFFERED, *codes, "asynchronous.exponent=0", f"secagg.mode={mode}")
        played = AsynchronousRun(run, toy_pieces(run))
        first, record = played.advance(), played.advance()
        # Nothing is coded before there are scales.
        assert first.overflow is None
        assert record.overflow is not None
        assert record.overflow_flsim is not None
        assert record.overflow > 0
        assert [stage["name"] for stage in record.stages] == stages
        assert record.stages[0]["bytes_up"] == pytest.approx(4 * record.client_bytes_up)
        assert (record.contributors, record.seconds.keys() >= {"train", "encode", "decode", "protocol"}) == (4, True)


def test_too_old_updates_are_wasted_and_counted(toy_run: Make, toy_pieces: Pieced) -> None:
    run = toy_run(*BUFFERED, "asynchronous.maximum_staleness=1", "asynchronous.buffer=2")
    played = AsynchronousRun(run, toy_pieces(run))
    records = [played.advance() for _ in range(20)]
    assert sum(record.wasted for record in records) > 0
    assert all(age <= 1 for record in records for age in record.staleness or [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("secagg.mode=real",), "cohort in advance"),
        (("secagg.mode=real", "secagg.protocol=enclave"), r"asynchronous\.exponent = 0"),
        (("dropouts.rate=0.1",), "age alone"),
    ],
)
def test_what_does_not_go_together_is_refused(
    toy_run: Make, toy_pieces: Pieced, changes: tuple[str, ...], message: str
) -> None:
    run = toy_run(*BUFFERED, *changes)
    with pytest.raises(InvalidParameters, match=message):
        AsynchronousRun(run, toy_pieces(run))
