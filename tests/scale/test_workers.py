"""Sums on processes and on a local Ray, of which workers are killed; ``make scale`` runs what needs Ray."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from secagg.cli import main
from secagg.errors import InvalidParameters
from secagg.scale.spread import Figures
from secagg.scale.store import require_usable
from secagg.scale.workers import InProcess, Processes, RayWorkers, open_workers
from secagg.training.runs.ray_cluster import cluster
from tests.harness.spread_sums import Crowd

Captured = pytest.CaptureFixture[str]
Killable = Processes | RayWorkers


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    workers = Processes(2)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Start two nodes of Ray on this machine, once, and connect to them."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 -- Ray is slow to import

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("RAY_worker_niceness", "0")
        started: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 3})
        started.add_node(num_cpus=3)
        try:
            with cluster(started.address):
                yield started
        finally:
            started.shutdown()


class Killer:
    """Ends one process or another after numbers of jobs that a generator chose."""

    def __init__(self, workers: Killable, times: int, among: int) -> None:
        self.workers, self._generator = workers, np.random.default_rng(5)
        self.moments: list[int] = sorted(self._generator.choice(np.arange(1, among), times, replace=False).tolist())
        self.done = 0

    def watch(self, figures: Figures) -> None:
        if self.moments and self.done + figures.jobs_done >= self.moments[0]:
            self.moments.pop(0)
            alive = self.workers.process_ids
            with suppress(ProcessLookupError):
                os.kill(alive[int(self._generator.integers(len(alive)))], signal.SIGKILL)


def kill(workers: Killable, folder: Path, times: int, among: int) -> None:
    """Sum until all were killed; every sum is exact."""
    killer, lost, turn = Killer(workers, times, among), 0, 0
    while killer.moments:
        crowd = Crowd(folder / str(turn), workers, progress=killer.watch)
        crowd.upload()
        left_out, total = crowd.finish()
        assert (left_out, total.tolist()) == ({}, crowd.due().tolist())
        killer.done += crowd.total.figures.jobs_done
        lost, turn = lost + crowd.total.figures.workers_lost, turn + 1
    assert lost >= times // 2  # the same process may be chosen again before its loss is noticed


def test_processes_that_are_killed_at_twenty_moments_change_no_sum(processes: Processes, tmp_path: Path) -> None:
    kill(processes, tmp_path, 20, 200)


def test_a_process_that_is_killed_while_idle_is_replaced(processes: Processes, tmp_path: Path) -> None:
    for process in processes.process_ids:
        os.kill(process, signal.SIGKILL)
    crowd = Crowd(tmp_path, processes)
    crowd.upload()
    left_out, total = crowd.finish()
    assert (left_out, total.tolist()) == ({}, crowd.due().tolist())


def test_processes_end_with_their_coordinator() -> None:
    workers = Processes(1)
    (process,) = workers.process_ids
    workers.close()
    with pytest.raises(ConnectionError, match="were ended"):
        workers.poll(0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def round_with(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["round", "--protocol", "one-message", "--clients", "12", "--dimension", "70000", *options]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("protocol", "engine"),
    [("one-message", "processes"), ("one-message", "memory"), ("pairwise", "memory"), ("enclave", "memory")],
)
def test_a_round_whose_uploads_others_add_is_exact(
    protocol: str, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, storage = tmp_path / "figures.prom", str(tmp_path / "storage")
    options = ("--protocol", protocol, "--compression", "none", "--engine", engine, "--storage", storage)
    said = round_with(capsys, *options, "--metrics", str(told))
    assert "the sum is exactly the plain sum of their inputs" in said
    assert "secagg_jobs_left 0" in told.read_text()
    assert list((tmp_path / "storage").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--protocol", "two-servers", "--engine", "memory"), "added by its server alone"),
        (("--protocol", "enclave", "--engine", "memory"), "without index segments"),
        (("--protocol", "one-message", "--storage", "x"), "say who adds the uploads"),
        (("--protocol", "one-message", "--audit", "2"), "--audit is for --engine"),
        (
            ("--protocol", "one-message", "--engine", "memory", "--ray-address", "x"),
            "--ray-address is for --engine ray",
        ),
        (("--protocol", "one-message", "--engine", "processes", "--workers", "0"), "in 1..4096"),
        (("--protocol", "one-message", "--engine", "memory", "--audit", "2"), "start another one"),
        (("--protocol", "one-message", "--engine", "processes", "--workers", "1", "--audit", "2"), "start another one"),
        (("--protocol", "one-message", "--workers", "0"), "in 1..4096"),
        (("--protocol", "one-message", "--workers", "3"), "--workers is for --engine"),
        (("--protocol", "one-message", "--engine", "memory", "--workers", "3"), "memory is the server alone"),
        (("--protocol", "one-message", "--engine", "ray", "--ray-address", "192.0.2.1:1"), "that all machines"),
    ],
)
def test_options_that_go_together_with_nothing_are_refused(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["round", "--clients", "5", "--dimension", "400", *options]) != 0
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (("--storage", "file"), "file is no storage that can be written"),
        (("--storage", "file/below"), "below is no storage that can be written"),
        (("--storage", "nowhere://bucket"), "nowhere://bucket"),
        (("--metrics", "file/below"), "name another place"),
        (("--metrics", "."), "name another place"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_anybody_uploads(
    place: tuple[str, str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def begun(*_: object) -> None:
        raise AssertionError("workers were started")

    monkeypatch.setattr("secagg.scale.workers.open_workers", begun)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    options = ("--clients", "5", "--dimension", "400", "--engine", "processes", *place)
    assert main(["round", "--protocol", "one-message", *options]) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert not said.out


def test_a_storage_that_was_tried_is_empty(tmp_path: Path) -> None:
    require_usable(str(tmp_path / "made" / "here"))
    assert list((tmp_path / "made" / "here").iterdir()) == []


def test_an_engine_is_chosen_by_name() -> None:
    assert isinstance(open_workers("memory", 1), InProcess)


# --- Ray --------------------------------------------------------------------------------------------------------------


@pytest.mark.scale
@pytest.mark.usefixtures("nodes")
def test_actors_that_are_killed_at_twenty_moments_change_no_sum(tmp_path: Path) -> None:
    workers = RayWorkers(2)
    kill(workers, tmp_path, 20, 200)
    workers.close()
    with pytest.raises(ConnectionError, match="were ended"):
        workers.poll(0)


def test_ray_takes_no_signal_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told to stop has clients to tell, and something to keep."""

    def taken_over(*_: object) -> NoReturn:
        sys.exit(15)

    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, taken_over)
        raise ConnectionError("there is none")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, is_initialized=lambda: False))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InvalidParameters, match=r"there is none\); compare addresses"):
        RayWorkers(1, "192.0.2.1:1")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.scale
@pytest.mark.usefixtures("nodes")
def test_a_round_on_ray_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    said = round_with(capsys, "--engine", "ray")
    assert "the sum is exactly the plain sum of their inputs" in said


@pytest.mark.scale
@pytest.mark.usefixtures("nodes")
def test_what_an_actor_raises_is_raised_here() -> None:
    """A worker's bug is no lost worker; whoever reads the error sees it."""
    workers = RayWorkers(1)
    try:
        workers.start(workers.idle[0], "no order")  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match="no attribute"):
            workers.poll(60)
    finally:
        workers.close()


@pytest.mark.scale
def test_a_node_that_is_lost_changes_no_sum(nodes: Any, tmp_path: Path) -> None:
    """The actors are spread over both nodes; one of these goes away in the midst of a sum."""
    workers = RayWorkers(2)
    try:
        crowd = Crowd(tmp_path, workers, 40)
        assert len({node for node, _ in workers.places}) == 2
        crowd.upload(lambda client: nodes.remove_node(nodes.worker_nodes.copy().pop()) if client.value == 20 else None)
        left_out, total = crowd.finish()
        assert (left_out, total.tolist()) == ({}, crowd.due().tolist())
        assert crowd.total.figures.workers_lost >= 1
    finally:
        workers.close()
