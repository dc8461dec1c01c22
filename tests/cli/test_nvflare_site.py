"""``secagg node nvflare``: it shows changes, writes them on request, and describes the result."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from secagg.cli import main

RESOURCES = {"class_allow_list": ["nvflare.a.B"], "allow_log_streaming": True, "components": [{"id": "manager"}]}
AUTHORIZATION = {"permissions": {"project_admin": "any", "lead": {"byoc": "any", "view": "any"}}}


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """Return a site's folder as provisioned by NVFlare."""
    local = tmp_path / "site-1" / "local"
    local.mkdir(parents=True)
    (local / "resources.json.default").write_text(json.dumps(RESOURCES))
    (local / "authorization.json.default").write_text(json.dumps(AUTHORIZATION))
    return local.parent


def written(kit: Path, name: str) -> Any:
    return json.loads((kit / "local" / name).read_text())


def forced(kit: Path, *more: str) -> int:
    return main(["node", "nvflare", str(kit), *more])


def test_it_shows_what_changes_and_changes_nothing(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(kit.rglob("*"))
    assert forced(kit, "--policy", "minimum-cohort=10", "--closed") == 0
    shown = capsys.readouterr().out
    assert sorted(kit.rglob("*")) == before
    assert '+  "secagg-minimum-cohort": 10' in shown
    assert '-  "allow_log_streaming": true' in shown
    assert '-    "project_admin": "any"' in shown
    assert "Nothing was written; run again with --write" in shown


def test_the_scope_has_our_filter_last_and_jobs_that_send_logs_have_nothing(
    kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forced(kit, "--policy", "minimum-cohort=10", "identity=/etc/secagg/client-3.key", "--write") == 0
    assert written(kit, "secagg.json") == {"secagg-minimum-cohort": 10, "secagg-identity": "/etc/secagg/client-3.key"}
    (scope,) = written(kit, "privacy.json")["scopes"]
    ours = [{"path": "secagg.nvflare.forced_site.SiteFilter"}]
    assert scope["task_data_filters"] == scope["task_result_filters"] == ours
    resources = written(kit, "resources.json")
    assert resources["allow_log_streaming"] is False
    assert resources["class_allow_list"][0] == "nvflare.a.B"
    assert "secagg.nvflare.client.SecAggFilter" in resources["class_allow_list"]
    assert not (kit / "local" / "authorization.json").exists()
    assert "can send what it reads there past every filter" in capsys.readouterr().out
    assert forced(kit, "--write") == 0
    assert "Nothing changes." in capsys.readouterr().out


def test_a_closed_site_lists_classes_and_scripts_and_gives_nobody_the_right_to_bring_code(
    kit: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    assert forced(kit, "--closed", "--script", str(script), "--allow", "mine.Executor", "--write") == 0
    resources = written(kit, "resources.json")
    manager, gate = resources["components"]
    assert manager == {"id": "manager"}
    assert gate["args"]["scripts"] == {str(script): hashlib.sha256(script.read_bytes()).hexdigest()}
    assert gate["args"]["classes"] == resources["class_allow_list"]
    assert "mine.Executor" in resources["class_allow_list"]
    assert "nvflare.a.B" not in resources["class_allow_list"]
    for rights in written(kit, "authorization.json")["permissions"].values():
        assert (rights["byoc"], rights["shell_commands"], rights["view"]) == ("none", "none", "any")
    assert "runs no code from jobs" in capsys.readouterr().out
    # After reopening, the gate is gone, but forbidden actions stay until the operator changes them.
    assert forced(kit, "--write") == 0
    assert written(kit, "resources.json")["components"] == [{"id": "manager"}]


def test_filters_that_an_operator_has_stay_and_come_first(kit: Path) -> None:
    noise: dict[str, Any] = {"name": "AddNoiseToMinMax", "args": {}}
    scopes: list[dict[str, Any]] = [{"name": name, "task_result_filters": [noise]} for name in ("public", "private")]
    (kit / "local" / "privacy.json").write_text(json.dumps({"scopes": scopes, "default_scope": "public"}))
    for _ in range(2):
        assert forced(kit, "--write") == 0
        for scope in written(kit, "privacy.json")["scopes"]:
            assert scope["task_result_filters"] == [noise, {"path": "secagg.nvflare.forced_site.SiteFilter"}]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--policy", "minimum-cohort"], "must be KEY=VALUE"),
        (["--policy", "minimum-cohort=many"], "minimum_cohort must be an integer"),
        (["--script", "train.py"], "only apply to --closed"),
        (["--interpreter", "/bin/sh"], "only apply to --closed"),
        (["--closed", "--interpreter", "python"], "the absolute path of a program; got python"),
        (["--closed", "--interpreter", "/no/such/python"], "the absolute path of a program"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    kit: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forced(kit, *more, "--write") == 2
    assert said in capsys.readouterr().err
    assert not (kit / "local" / "privacy.json").exists()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("privacy.json", "[", "is not JSON"),
        ("resources.json", "[]", "is not a JSON object"),
        ("privacy.json", '{"scopes": [{"name": "public"}]}', "has no default_scope"),
    ],
)
def test_files_that_cannot_be_read_are_not_replaced(
    kit: Path, name: str, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (kit / "local" / name).write_text(text)
    assert forced(kit, "--write") == 2
    assert said in capsys.readouterr().err
    assert (kit / "local" / name).read_text() == text
    assert forced(kit / "startup") == 2
    assert "give the folder of a site's kit" in capsys.readouterr().err
