"""A site that enforces secure sums: what its filters let in and out, and which components its gate refuses."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.sec.authz import Authorizer, AuthzContext, Person
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.private.fed.utils.fed_utils import get_job_launcher
from nvflare.widgets.widget import WidgetID

from secagg.errors import InvalidParameters, Misuse, ThresholdNotMet
from secagg.nvflare.client import SITE, SITE_FILE, STAGE_TASK, SecAggClient, SecAggFilter
from secagg.nvflare.forced_site import SiteGate
from secagg.nvflare.site_files import CLASSES
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import RECORD
from tests.nvflare.sites import MODEL, SITES, Federation, Site, adding, plain_mean

pytestmark = pytest.mark.nvflare
STEP = 2.0**-16
MARK = "a-mark-of-a-hostile-job"
RUN = "path.of.Runner"
PYTHON = "/opt/secagg/.venv/bin/python"


def forced(folder: Path, **more: Any) -> Federation:
    """Return five sites whose operators enforce secure sums."""
    made = Federation(folder, SecAggSettings(), **more)
    for site in made.sites.values():
        site.force()
    return made


def plain_updates() -> list[bytes]:
    numbers = range(1, SITES + 1)
    return [(values + np.float32(number / 16)).tobytes() for number in numbers for values in MODEL.values()]


def reached_in_the_clear(made: Federation) -> bool:
    return any(plain in reached for plain in plain_updates() for reached in made.reached)


def begin(site: Site, filters: dict[str, list[Any]]) -> Any:
    """Begin a job with its own result filters, like NVFlare; return its requests to the engine."""
    sent = SimpleNamespace(fire_and_forget_request=lambda *_, **__: MARK)
    blocked = list[tuple[str, str, Any]]()
    core = SimpleNamespace(add_outgoing_request_filter=lambda *given: blocked.append(given))
    site.engine.get_widget = {WidgetID.FED_EVENT_RUNNER: sent}.get
    site.engine.get_cell = lambda: SimpleNamespace(core_cell=core)
    runner = SimpleNamespace(task_result_filters=filters)
    site.context.set_prop(FLContextKey.RUNNER, runner, private=True, sticky=False)
    site.components[SITE].handle_event(EventType.ABOUT_TO_START_RUN, site.context)
    return sent, blocked


def test_a_secure_job_gets_its_mean_and_its_own_filters_step_back(folder: Path) -> None:
    made = forced(folder)
    model, means = made.run(MODEL)
    assert means.contributors == SITES
    for name, values in plain_mean(MODEL).items():
        assert np.abs(model[name] - values).max() < STEP
    assert not reached_in_the_clear(made)
    assert all(site.client._open is None for site in made.sites.values())  # noqa: SLF001 -- the job's own did nothing


def test_a_plain_job_is_refused_before_training_and_the_search_finds_what_an_open_site_sends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = list[str]()

    def train(site: Site, model: FLModel) -> FLModel:
        trained.append(site.name)
        return adding(site, model)

    def plain(_site: str, task: str, data: Shareable) -> Shareable:
        if task == "train":
            del data[RECORD]
        return data

    made = forced(folder, train=train, meddling=plain)
    opened = made.sites["site-1"]
    opened.scope.clear()
    del opened.components[SITE]
    monkeypatch.setattr(opened.filter, "process", lambda shareable, _: shareable)
    with pytest.raises(ThresholdNotMet):
        made.run(MODEL)
    assert trained == ["site-1"]
    assert (MODEL["w"] + np.float32(1 / 16)).tobytes() in b"".join(made.reached)
    assert (MODEL["w"] + np.float32(2 / 16)).tobytes() not in b"".join(made.reached)


def test_a_task_of_any_name_is_refused_without_the_protocol(folder: Path) -> None:
    site = forced(folder).sites["site-1"]
    for task in ("validate", "submit_model", "get_properties", STAGE_TASK):
        reply = site.do(task, Federation.shareable_of(SimpleNamespace(), FLModel(params=dict(MODEL))))  # type: ignore[arg-type]
        assert reply.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR, task
        with pytest.raises(InvalidParameters, match="this site answers only secure sums"):
            site.filtered(Shareable(), FilterKey.IN)


class Hostile(Executor):
    """A job's executor, which answers stages arbitrarily."""

    def execute(self, *_: Any, **__: Any) -> Shareable:
        shareable: Shareable = DXO(DataKind.WEIGHTS, data={"w": np.full(3, 7.25, np.float32)}).to_shareable()
        shareable[MARK] = MARK
        shareable.set_return_code(MARK)
        return shareable


def test_nothing_that_an_executor_answers_to_a_stage_leaves_the_site(folder: Path) -> None:
    made = forced(folder)
    for site in made.sites.values():
        site.executor = Hostile()
    _, means = made.run(MODEL)
    assert means.contributors == SITES
    assert not any(found in reached for found in (MARK.encode(), np.full(3, 7.25, np.float32).tobytes())
                   for reached in made.reached)  # fmt: skip


def test_nothing_that_training_says_but_the_update_leaves_the_site(folder: Path) -> None:
    def train(site: Site, model: FLModel) -> FLModel:
        found = adding(site, model)
        found.meta[MARK] = MARK
        found.metrics[MARK] = 1.0
        if site.number == 1:
            raise RuntimeError(MARK)
        return found

    made = forced(folder, train=train)
    _, means = made.run(MODEL)
    assert means.contributors == SITES
    assert not any(MARK.encode() in reached for reached in made.reached)


def test_a_job_with_a_result_filter_of_its_own_gets_nothing_and_a_reason(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = forced(folder)
    site = made.sites["site-5"]
    begin(site, {"train/out": [SecAggFilter(), PercentilePrivacy()]})
    for other in list(made.sites.values())[:4]:
        begin(other, {"train/out": [SecAggFilter()]})
    caplog.set_level(logging.DEBUG)
    _, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    assert "PercentilePrivacy would run after the protocol" in site.components[SITE].refused


def test_a_component_under_our_id_is_not_ours(folder: Path) -> None:
    made = forced(folder)
    site = made.sites["site-5"]
    site.components[SITE] = SecAggClient({})
    _, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    with pytest.raises(Misuse, match=r"privacy\.json has no SiteClient"):
        site.filtered(Shareable(), FilterKey.IN)


def test_the_operators_policy_hold_for_every_job(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = forced(folder)
    (made.sites["site-5"].local / SITE_FILE).write_text(json.dumps({"secagg-minimum-cohort": 9}))
    caplog.set_level(logging.DEBUG, "secagg.platforms")
    _, means = made.run(MODEL)
    assert means.contributors == SITES - 1
    assert "this client left the round" in caplog.text


def test_events_of_a_job_stay_here_unless_the_operator_lets_analytics_out(folder: Path) -> None:
    closed, open_ = list(forced(folder).sites.values())[:2]
    sent, blocked = begin(closed, {})
    assert sent.fire_and_forget_request(request=Shareable()) is None
    ((channel, topic, reply),) = blocked
    assert (channel, topic) == ("aux_communication", "fed.event")
    assert reply(None).headers[MessageHeaderKey.RETURN_CODE] == "blocked"
    open_.force(tracking=True)
    sent, blocked = begin(open_, {})
    assert sent.fire_and_forget_request() == MARK
    assert not blocked


def looked_at(gate: SiteGate, component: Any) -> None:
    context = FLContext()
    context.set_prop(FLContextKey.COMPONENT_CONFIG, component, private=True, sticky=False)
    gate.handle_event(EventType.BEFORE_BUILD_COMPONENT, context)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('training')\n")
    return path


@pytest.fixture
def gate(script: Path) -> SiteGate:
    return SiteGate([*CLASSES, RUN], {str(script): hashlib.sha256(script.read_bytes()).hexdigest()}, [PYTHON])


def test_the_gate_lets_a_secure_job_with_the_operators_script_in(gate: SiteGate, script: Path) -> None:
    for name in CLASSES:
        looked_at(gate, {"path": name, "args": {}})
    looked_at(gate, {"path": CLASSES[0], "args": {"execution_mode": "in_process", "task_script_path": str(script)}})
    looked_at(gate, {"class_path": RUN})
    gate.handle_event(EventType.START_RUN, FLContext())


@pytest.mark.parametrize(
    "component",
    [
        {"path": "attacker.Attacker", "args": {}},
        {"path": "secagg.nvflare.client.SecAggClient.other"},
        {"name": "SecAggClient"},
        {"path": RUN, "class_path": "attacker.Attacker"},
        {"args": {}},
        {"path": RUN, "args": {"command": "touch leak"}},
        {"path": RUN, "args": {"launcher_id": "launcher"}},
        {"path": RUN, "args": {"attach_id": "one"}},
        {"path": RUN, "args": {"scheme": "os:system"}},
        {"path": RUN, "args": {"class_attributes": {"command": "touch leak"}}},
        {"path": RUN, "args": {"execution_mode": "external_process"}},
        {"path": RUN, "args": {"task_script_args": "--password ${secret:PASSWORD}"}},
        {"path": RUN, "args": {"execution_mode": "attach", "command": [PYTHON, "train.py"]}},
        {"path": RUN, "args": {"task_script_path": "/etc/passwd"}},
        {"path": RUN, "args": {"task_script_path": "train.py"}},
        # Unreadable jobs are refused as well: NVFlare ignores every other error.
        {"path": RUN, "args": [1]},
        {"path": [RUN], "args": {}},
        "text",
        None,
    ],
)
def test_the_gate_refuses_a_component(gate: SiteGate, component: Any) -> None:
    with pytest.raises(UnsafeComponentError):
        looked_at(gate, component)


def external(command: Any) -> dict[str, Any]:
    return {"path": CLASSES[0], "args": {"execution_mode": "external_process", "command": command}}


def test_a_listed_interpreter_runs_a_listed_script_in_a_process_of_its_own(gate: SiteGate, script: Path) -> None:
    for command in ([PYTHON, str(script)], [PYTHON, "-u", str(script), "--rate", "1e-4", "-c", "print()"]):
        looked_at(gate, external(command))
    script.write_text("print('other')\n")
    with pytest.raises(UnsafeComponentError, match="or it was changed"):
        looked_at(gate, external([PYTHON, str(script)]))


@pytest.mark.parametrize(
    "command",
    [
        None,
        [],
        PYTHON,
        f"{PYTHON} SCRIPT",
        [PYTHON],
        [PYTHON, "-u"],
        ["python3", "SCRIPT"],
        ["/usr/bin/env", PYTHON, "SCRIPT"],
        [PYTHON, "-c", "print()", "SCRIPT"],
        [PYTHON, "-m", "SCRIPT"],
        [PYTHON, "-X", "SCRIPT"],
        [PYTHON, "-u", "-u", "SCRIPT"],
        [PYTHON, "custom/train.py"],
        [PYTHON, "train.py", "SCRIPT"],
        [PYTHON, "/etc/passwd"],
        [PYTHON, "SCRIPT", "${secret:password}"],
        [PYTHON, "SCRIPT", ["list"]],
        [[PYTHON], "SCRIPT"],
        {"SCRIPT": 1},
    ],
)
def test_no_other_command_starts_a_process(gate: SiteGate, script: Path, command: Any) -> None:
    if isinstance(command, list):
        command = [str(script) if word == "SCRIPT" else word for word in command]
    elif isinstance(command, str):
        command = command.replace("SCRIPT", str(script))
    with pytest.raises(UnsafeComponentError):
        looked_at(gate, external(command))


def test_a_site_that_lists_no_interpreter_starts_no_process(script: Path) -> None:
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    with pytest.raises(UnsafeComponentError, match="is not allowed at this site"):
        looked_at(SiteGate(list(CLASSES), {str(script): digest}), external([PYTHON, str(script)]))


def test_the_gate_refuses_a_script_that_was_changed_or_is_gone(gate: SiteGate, script: Path) -> None:
    component = {"path": RUN, "args": {"task_script_path": str(script)}}
    looked_at(gate, component)
    script.write_text("print('other')\n")
    with pytest.raises(UnsafeComponentError, match="or it was changed"):
        looked_at(gate, component)
    script.unlink()
    with pytest.raises(UnsafeComponentError, match="could not be checked"):
        looked_at(gate, component)


@pytest.mark.parametrize("brings_code", [True, False])
def test_a_job_that_brings_code_is_not_started_whatever_role_the_server_says(
    gate: SiteGate, *, brings_code: bool
) -> None:
    """NVFlare's role for tests passes every authorization.json, and a server names the role of an unsigned job."""
    authorizer = Authorizer(site_org="org")
    boss = Person("anybody", "org", "super")
    assert authorizer.authorize(AuthzContext(user=boss, submitter=boss, right="byoc")) == (True, "")
    handlers, context = [ClientProcessJobLauncher(), gate], FLContext()

    @contextmanager
    def new_context() -> Iterator[FLContext]:
        yield context

    def fire_event(event: str, about: FLContext) -> None:
        for handler in handlers:
            handler.handle_event(event, about)

    engine = SimpleNamespace(new_context=new_context, fire_event=fire_event)
    asked = SimpleNamespace(get_engine=lambda: engine)
    meta = {"submitter_role": "super"} | ({"byoc": True} if brings_code else {})
    if not brings_code:
        assert get_job_launcher(meta, asked) is handlers[0]
        return
    with pytest.raises(RuntimeError, match="SiteGate"):
        get_job_launcher(meta, asked)


def test_a_closed_site_runs_no_shell_command_whether_or_not_the_server_asks_for_authorization(
    gate: SiteGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", served)
    assert any(type(one) is ShellCommandProcessor for one in served)
    gate.handle_event(EventType.SYSTEM_BOOTSTRAP, FLContext())
    assert served
    assert not any(type(one) is ShellCommandProcessor for one in served)
