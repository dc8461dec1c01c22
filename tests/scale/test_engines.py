"""Engines: processes and Ray's workers that are killed, frozen or of another version; ``make scale`` runs Ray."""

# ruff: noqa: SLF001 -- these tests kill workers

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.scale import engines
from secagg.scale.engines import Engine, OnRay, Processes, Result, open_engine
from secagg.scale.spread import Figures, goes_on
from secagg.scale.storage import Task, add
from secagg.wire import MessageKind, message_kind
from tests.harness.one_message_sums import SumSetup
from tests.harness.spread_sums import Life, Place, live, whole
from tests.harness.wire_town import SECONDS

MANY = SumSetup(population=24, capacity=32, layout=Layout((RingSegment(12, 1 << 16),)))


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    engine = Processes(2)
    yield engine
    engine.close()


def test_a_coordinator_that_is_killed_at_any_moment_releases_once_or_never(tmp_path: Path) -> None:
    """Before or after any write; its first restart dies even earlier, and the second one continues."""
    whole_life = live(Place(tmp_path / "undisturbed"), 0)
    assert whole_life["exact"]
    count = int(whole_life["moments"])
    chosen: list[int] = np.random.default_rng(3).choice(count, 4, replace=False).tolist()
    exact = 0
    for moment in sorted(chosen):
        place, said = Place(tmp_path / str(moment)), dict[str, Any]()
        for die_at in (moment + 1, max(1, moment // 3), 0):
            if place.sent and not goes_on(place.state):
                break  # It is over: remaining tasks are never handed over.
            said = live(place, die_at)
        lists = {request for request in place.asked if message_kind(request) is MessageKind.ONE_MESSAGE_LIST}
        assert len(lists) <= 1, "holders were shown two lists"
        assert "refused" not in said
        assert said.get("exact", True)
        exact += (place.folder / "released").exists()
    assert exact >= 2


@pytest.mark.long
def test_a_coordinator_that_is_killed_before_or_after_any_write_goes_on_or_is_over(tmp_path: Path) -> None:
    count = int(live(Place(tmp_path / "undisturbed"), 0)["moments"])
    for moment in range(1, count + 1):
        place = Place(tmp_path / str(moment))
        assert live(place, moment)["killed"]
        if not place.sent or goes_on(place.state):
            assert live(place, 0)["exact"], moment
        lists = {request for request in place.asked if message_kind(request) is MessageKind.ONE_MESSAGE_LIST}
        assert len(lists) == 1, "holders were shown two lists, or none"


def processes_of(engine: Processes) -> set[int]:
    return set(engine._pool._processes or ())  # pyright: ignore[reportPrivateUsage]


def killing(engine: Processes, moments: list[int], killed: set[int]) -> Callable[[Figures], None]:
    generator, seen = np.random.default_rng(5), [0]

    def watch(_: Figures) -> None:
        seen[0] += 1
        living = sorted(processes_of(engine) - killed)
        if moments and seen[0] >= moments[0] and living:
            moments.pop(0)
            killed.add(chosen := int(generator.choice(living)))
            os.kill(chosen, signal.SIGKILL)

    return watch


def test_processes_that_are_killed_change_no_sum(tmp_path: Path, processes: Processes) -> None:
    chosen: list[int] = np.random.default_rng(7).choice(np.arange(2, 60), 6, replace=False).tolist()
    killed, turn = set[int](), 0
    watch = killing(processes, sorted(chosen), killed)
    while len(killed) < 6:
        assert turn < 32, "sums are over before anybody is killed"
        turn += 1
        place = Place(tmp_path / str(turn), MANY)
        place.settings = {"clients_in_a_task": 1}
        life = Life(place, processes, progress=watch)
        life.upload()
        assert place.is_exact(life.finish())


class Hasty(Processes):
    """Waits for other processes as long as a slow machine takes to start them."""

    again = 0

    def wait(self, seconds: float) -> list[Result]:
        return super().wait(SECONDS if seconds and self.again else seconds)

    def begin_again(self, tasks: Iterable[Task] = ()) -> None:
        self.again += 1
        super().begin_again(tasks)


def test_a_frozen_worker_with_one_task_left_ends_nobody(tmp_path: Path) -> None:
    """Nothing finished within the patience, so all running tasks are begun again by other processes."""
    engine, place = Hasty(1), Place(tmp_path / "place")
    place.settings = {"clients_in_a_task": 256, "patience": 0.5}
    try:
        (worker,) = processes_of(engine)  # It is started before it is needed.
        os.kill(worker, signal.SIGSTOP)
        life = Life(place, engine)
        life.upload()
        assert place.is_exact(life.finish())
        assert engine.again == life.sum.figures.begun_again == 1
    finally:
        engine.close()


def test_half_an_answer_of_a_worker_ends_nobody(tmp_path: Path) -> None:
    """A process that ends in the middle of its answer is lost, but its task is not."""
    engine, place = Hasty(1), Place(tmp_path / "place")
    place.settings = {"clients_in_a_task": 256, "patience": 0.5}
    try:
        queue: Any = engine._pool._result_queue  # pyright: ignore[reportPrivateUsage]
        os.write(queue._writer.fileno(), (1 << 10).to_bytes(4, "big") + b"half")
        life = Life(place, engine)
        life.upload()
        assert place.is_exact(life.finish())
        assert engine.again == 1
    finally:
        engine.close()


def test_processes_that_are_lost_again_and_again_end_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_LOSSES", 1)
    engine = Processes(1)
    engine.begin_again()
    with pytest.raises(ConnectionError, match="1 times in a row"):
        engine.begin_again()
    engine.close()


def test_processes_end_with_their_coordinator(tmp_path: Path) -> None:
    source = (
        "import time\n"
        "from secagg.scale.engines import Processes\n"
        "if __name__ == '__main__':\n"
        "    print(*Processes(2)._pool._processes, flush=True)\n"
        "    time.sleep(600)\n"
    )
    script = tmp_path / "coordinator.py"
    script.write_text(source)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as coordinator:  # noqa: S603 -- its own
        assert coordinator.stdout is not None
        workers = [int(each) for each in coordinator.stdout.readline().split()]
        assert len(workers) == 2
        coordinator.kill()
    deadline = time.monotonic() + SECONDS
    while any(Path(f"/proc/{worker}").exists() and not is_zombie(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlives its coordinator"
        time.sleep(0.05)


def is_zombie(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_a_fault_of_the_library_in_a_task_is_said(tmp_path: Path) -> None:
    class Broken(Engine):
        def submit(self, task: Task) -> None:
            super().submit(dataclasses.replace(task, cut=cast("Any", None)))

    with pytest.raises(ConnectionError, match="NoneType"):
        whole(Place(tmp_path / "place"), Broken())


def test_an_engine_is_chosen_by_name() -> None:
    assert isinstance(open_engine("memory", 1), Engine)
    with pytest.raises(InvalidParameters, match="at least one worker"):
        open_engine("processes", 0)


def stub_of_ray(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(shutdown=lambda: None, **given)


def test_ray_takes_no_signal_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is told to stop must notify its clients and save its state."""

    def taken_over(*_: object) -> NoReturn:
        sys.exit(15)

    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, taken_over)
        raise ConnectionError("there is none")

    monkeypatch.setitem(sys.modules, "ray", stub_of_ray(init=init))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(InvalidParameters, match=r"there is none\); compare addresses"):
        OnRay(1, "192.0.2.1:1")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("address", "variable", "options"),
    [
        ("", "", {"num_cpus": 3, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}),
        ("", "10.0.0.1:6379", {"address": "10.0.0.1:6379"}),
        ("10.0.0.2:6379", "10.0.0.1:6379", {"address": "10.0.0.2:6379"}),
    ],
)
def test_a_cluster_is_found_as_ray_finds_it_and_a_local_one_listens_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, address: str, variable: str, options: dict[str, Any]
) -> None:
    asked = dict[str, Any]()
    monkeypatch.setitem(sys.modules, "ray", stub_of_ray(init=asked.update))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_ADDRESS", variable)
    engines.connect(3, address)
    del asked["log_to_driver"], asked["configure_logging"]
    assert asked == options


def test_nodes_without_tokens_are_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator's environment does not describe a cluster that others have started."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    mine = engines.versions()
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert engines.versions() != mine


@pytest.mark.parametrize("mode", ["", "disabled"])
def test_a_cluster_that_lets_anybody_in_is_refused_before_it_is_joined_or_started(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def init(**_: object) -> None:
        pytest.fail("it was joined")

    monkeypatch.setitem(sys.modules, "ray", stub_of_ray(init=init))
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(InvalidParameters, match="RAY_AUTH_MODE=token"):
        engines.connect(1)


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidParameters, match=r"pip install '\.\[ray\]'"):
        OnRay(1)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Start nodes of Ray on this machine, once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", "1")
        from ray.cluster_utils import Cluster  # noqa: PLC0415 -- Ray reads its token once: `make scale` sets it

        started: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        for _ in range(2):
            started.add_node(num_cpus=1)
        patched.setenv("RAY_ADDRESS", started.address)
        try:
            yield started
        finally:
            started.shutdown()


@pytest.fixture
def on_ray(nodes: Any) -> Iterator[Engine]:
    del nodes
    engine = OnRay(2)
    yield engine
    engine.close()


@pytest.mark.scale
def test_a_sum_on_ray_is_exact(on_ray: OnRay, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    assert place.is_exact(whole(place, on_ray))


@pytest.mark.scale
def test_a_node_of_another_version_is_refused_at_the_start(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del nodes
    monkeypatch.setattr("platform.python_version", lambda: "2.7")
    with pytest.raises(InvalidParameters, match=r"node .* has secagg"):
        OnRay(2)


@pytest.mark.scale
def test_workers_of_ray_that_are_killed_change_no_sum(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six tasks kill their process, before or after they store their sum."""
    del nodes
    deaths = tmp_path / "deaths"
    deaths.mkdir()

    def dying(task: Task) -> None:  # Ray ships nested functions.
        mark, number = deaths / task.output.rpartition("/")[2], len(list(deaths.iterdir()))
        if number < 6 and not mark.exists():
            mark.touch()
            if number % 2:
                add(task)
            os.kill(os.getpid(), signal.SIGKILL)
        add(task)

    monkeypatch.setattr(engines, "add", dying)
    place, engine = Place(tmp_path / "place", MANY), OnRay(2)
    place.settings = {"clients_in_a_task": 1}
    try:
        assert place.is_exact(whole(place, engine))
    finally:
        engine.close()
    assert len(list(deaths.iterdir())) >= 6


@pytest.mark.scale
def test_a_node_that_is_killed_during_the_sum_changes_no_sum(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task runs on the node when it is killed; until then no other node does more than one."""
    victim, coordinators = tmp_path / "victim", tmp_path / "coordinators"

    def hanging(task: Task) -> None:
        here, until = ray_node(), time.monotonic() + SECONDS
        if here != coordinators.read_text():
            with suppress(FileExistsError), victim.open("x") as file:
                file.write(here)
        while time.monotonic() < until and (not victim.exists() or victim.read_text() in {"", here}):
            time.sleep(0.05)
        add(task)

    monkeypatch.setattr(engines, "add", hanging)
    place, engine = Place(tmp_path / "place", MANY), OnRay(2)
    place.settings = {"clients_in_a_task": 1}
    coordinators.write_text(ray_node())
    try:
        before, life = alive(engine), Life(place, engine)
        life.upload(place.clients[:8])
        deadline = time.monotonic() + SECONDS
        while not victim.exists() or not victim.read_text():
            assert time.monotonic() < deadline, "no other node has a task"
            time.sleep(0.05)
        (node,) = (one for one in nodes.worker_nodes if one.node_id == victim.read_text())
        nodes.remove_node(node, allow_graceful=False)
        life.upload()
        assert place.is_exact(life.finish())
        while alive(engine) == before:  # Ray takes some time to report it.
            assert time.monotonic() < deadline, "no node was killed"
            time.sleep(0.5)
    finally:
        engine.close()


def ray_node() -> str:
    ray: Any = import_module("ray")
    return str(ray.get_runtime_context().get_node_id())


def alive(engine: OnRay) -> int:
    return sum(bool(node["Alive"]) for node in engine._ray.nodes())  # pyright: ignore[reportPrivateUsage]
