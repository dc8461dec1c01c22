"""Statistics in NVFlare: sites in memory by every protocol, and a job in the simulator."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from secagg.analytics import summed
from secagg.errors import SecAggError
from secagg.nvflare.analytics import RESULT, SITE_FILE, StatisticsClient, StatisticsController
from secagg.nvflare.client import COMPONENT, TASK_FILE, SecAggExecutor, failure_in
from secagg.platforms import Left
from tests.harness.platform_keys import PROTOCOLS, named
from tests.harness.town_of_sites import TABLE, functions, people, write_declaration, write_people
from tests.nvflare.sites import JOB, SITES, crossed

pytestmark = pytest.mark.nvflare


class Site:
    """One site's process, and its own files."""

    def __init__(self, number: int, root: Path, policy: dict[str, Any]) -> None:
        self.name, self.local = f"site-{number}", root / f"site-{number}" / "local"
        write_files(self.local, number)
        (root / self.name / JOB).mkdir()
        self.client, self.executor = StatisticsClient(policy), SecAggExecutor()
        workspace = SimpleNamespace(
            get_run_dir=lambda job: str(root / self.name / job), get_site_config_dir=lambda: str(self.local)
        )
        engine = SimpleNamespace(get_component={COMPONENT: self.client}.get, get_workspace=lambda: workspace)
        self.context = context_of(engine, self.name)


def write_files(folder: Path, number: int, version: str = "1") -> None:
    """Write the files in a site operator's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_declaration(folder / "outcomes.toml")
    write_people(folder / "people.csv", people(number, 20 * number))
    said = {"declaration": "outcomes.toml", "data": "people.csv", "version": version}
    (folder / SITE_FILE).write_text("\n".join(f'{name} = "{value}"' for name, value in said.items()), encoding="utf-8")


def context_of(engine: Any, name: str) -> FLContext:
    context = FLContext()
    for key, value in ((ReservedKey.ENGINE, engine), (ReservedKey.IDENTITY_NAME, name), (ReservedKey.RUN_NUM, JOB)):
        context.put(key=key, value=value, private=True, sticky=False)
    return context


class Job(StatisticsController):
    """A job whose tasks are done immediately."""

    def __init__(self, root: Path, settings: dict[str, Any], policy: dict[str, Any], **changed: Any) -> None:
        super().__init__({**TABLE, **changed}, {"weighting": "uniform", **settings}, 60.0)
        (root / JOB).mkdir()
        self.root, self.sites = root, {f"site-{n}": Site(n, root, policy) for n in range(1, SITES + 1)}
        self.answered = list[tuple[str, int]]()
        self.failed = dict[str, Left]()

    def run(self) -> Any:
        """Run the job in a new folder, like a simulation."""
        for file in self.root.rglob(TASK_FILE):
            file.unlink()
        workspace = SimpleNamespace(get_run_dir=lambda job: str(self.root / job))
        clients = [SimpleNamespace(name=name) for name in self.sites]
        engine = SimpleNamespace(get_workspace=lambda: workspace, get_clients=lambda: clients)
        self.control_flow(Signal(), context_of(engine, "server"))
        return json.loads((self.root / JOB / RESULT).read_text(encoding="utf-8"))

    def send(self, *, task: Any, fl_ctx: FLContext, targets: list[str]) -> None:
        (name,) = targets
        site = self.sites[name]
        reply = site.executor.execute(task.name, crossed(task.data)[1], site.context, Signal())
        data, arrived = crossed(reply)
        if (code := failure_in(arrived)) is not None:
            self.failed[name] = code
        self.answered.append((name, len(data)))
        client: Any = SimpleNamespace(client=SimpleNamespace(name=name), result=arrived)
        task.result_received_cb(client_task=client, fl_ctx=fl_ctx)
        task.completion_status = "ok"

    def cancel_task(self, task: Any, **_: Any) -> None:
        task.completion_status = "cancelled"

    def get_client_disconnect_time(self, client_name: str) -> float | None:
        del client_name
        return None


def here(**changed: Any) -> Any:
    declaration = import_module("secagg.analytics").Declaration.of({**TABLE, **changed})
    results = summed(declaration, [functions(people(number, 20 * number)) for number in range(1, SITES + 1)])
    return json.loads(json.dumps(results.statistics))


@pytest.mark.parametrize(("protocol", "settings", "policy"), PROTOCOLS)
def test_statistics_of_sites_are_those_of_all_their_people(
    folder: Path, protocol: str, settings: dict[str, Any], policy: dict[str, Any]
) -> None:
    keys = named(folder, protocol, settings, range(1, SITES + 1))
    (folder / "keys").mkdir(exist_ok=True)
    job = Job(folder, {"protocol": protocol, **settings, **keys}, {"identity": str(folder / "keys"), **policy})
    assert job.run()["statistics"] == here()


def test_a_site_answers_its_own_declaration_alone(folder: Path) -> None:
    job = Job(folder, {}, {}, name="others")
    with pytest.raises(SecAggError):
        job.run()
    assert job.failed == dict.fromkeys(job.sites, Left.TERMS)


def test_a_site_answers_once_for_each_version_of_its_data(folder: Path) -> None:
    active = {"mode": "active"}
    keys = named(folder, "pairwise", active, range(1, SITES + 1))
    job = Job(folder, {**active, **keys}, {"identity": str(folder / "keys")})
    job.run()
    with pytest.raises(SecAggError):
        job.run()
    assert job.failed == dict.fromkeys(job.sites, Left.LEFT)
    for number, site in enumerate(job.sites.values(), 1):
        write_files(site.local, number, "2")
    assert job.run()["statistics"] == here()


def test_a_server_sees_the_same_of_a_site_whatever_its_people_are(folder: Path) -> None:
    seen = list[list[tuple[str, int]]]()
    for number, text in enumerate((None, ",".join(TABLE["variables"]) + "\n", "\ufffd,age\n1,2\n")):
        (folder / str(number)).mkdir()
        job = Job(folder / str(number), {}, {})
        if text is not None:
            header = ",".join(TABLE["variables"])
            (job.sites["site-2"].local / "people.csv").write_text(header + "\n" + text, encoding="utf-8")
        job.run()
        seen.append(job.answered)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    "said", ["", 'declaration = "outcomes.toml"', "declaration = 1\ndata = 2\nversion = 3", "version ="]
)
def test_a_site_whose_file_says_nothing_leaves(folder: Path, said: str) -> None:
    job = Job(folder, {}, {})
    (job.sites["site-3"].local / SITE_FILE).write_text(said, encoding="utf-8")
    job.run()
    assert job.failed == {"site-3": Left.TERMS}


def test_a_task_without_a_message_is_refused(folder: Path) -> None:
    site = Site(1, folder, {})
    assert failure_in(site.executor.execute("secagg", Shareable(), site.context, Signal())) is not None
