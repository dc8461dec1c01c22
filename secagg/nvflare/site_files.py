"""``secagg node nvflare``: writes files that force secure sums at a site; shows the changes first.

Reads and writes the ``local`` folder of a site's kit, without NVFlare.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.platforms.client_node import ClientNode
from secagg.platforms.settings import PREFIX
from secagg.session.durable import replace

_SCOPE: Final = "secagg"
_PACKAGE: Final = "secagg.nvflare"
_FILTER: Final = {"path": f"{_PACKAGE}.forced_site.SiteFilter"}
_CLIENT_ID, _GATE_ID = "secagg-site", "secagg-gate"
CLASSES: Final = (
    "nvflare.app_common.executors.client_api_executor.ClientAPIExecutor",
    "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
    f"{_PACKAGE}.client.SecAggClient",
    f"{_PACKAGE}.client.SecAggExecutor",
    f"{_PACKAGE}.client.SecAggFilter",
)
"""Site classes of a job made by ``secure`` from a recipe whose script runs in NVFlare's process."""
_RIGHTS: Final = ("byoc", "shell_commands", "server-predeployed-flwr")
_EVERY_RIGHT: Final = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")
SCOPE_ALONE: Final = """\
This site only answers secure sums, and refuses jobs that are not secure by mistake.
A job with its own code runs it in this site's process, and can send what it reads there past every filter:
against such jobs add --closed."""
CLOSED: Final = """\
This site only answers secure sums, and runs no code from jobs: jobs can only use classes and scripts listed in
resources.json, and nothing that they log or report leaves the site.
Anyone who can write these files or the listed scripts is trusted: let root own them."""


def write_site(options: argparse.Namespace) -> int:
    """Show the changes to a site's ``local`` folder, and with ``--write`` make them."""
    local = Path(options.kit)
    local = local if local.name == "local" else local / "local"
    if not local.is_dir():
        raise InvalidParameters(f"{local} does not exist; give the folder of a site's kit, with local and startup")
    if not options.closed and (options.script or options.allow or options.interpreter):
        raise InvalidParameters("--script, --interpreter and --allow only apply to --closed; add it")
    for path in options.interpreter:
        if not (path.is_absolute() and path.is_file()):
            raise InvalidParameters(f"--interpreter must be the absolute path of a program; got {path}")
    changed = list(_changes(local, options))
    for path, before, after in changed:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
        print("".join(unified_diff(old, new, f"{path} now", f"{path} then")))
    if options.write:
        for path, _, after in changed:
            replace(path, after.encode())
    print(CLOSED if options.closed else SCOPE_ALONE)
    if changed and not options.write:
        print("Nothing was written; run again with --write, then restart the site.")
    else:
        print(f"{len(changed)} files were written; restart the site." if changed else "Nothing changes.")
    return 0


def _changes(local: Path, options: argparse.Namespace) -> Iterator[tuple[Path, str, str]]:
    interpreters = [str(path) for path in options.interpreter]
    scripts = {str(path.resolve()): hashlib.sha256(path.read_bytes()).hexdigest() for path in options.script}
    wanted: dict[str, Any] = {
        "secagg.json": _policy(local, options.policy),
        "privacy.json": _privacy(local, tracking=options.tracking),
        "resources.json": _resources(
            local, sorted({*CLASSES, *options.allow}), scripts, interpreters, is_closed=options.closed
        ),
    }
    if options.closed:
        wanted["authorization.json"] = _authorization(local)
    for name, content in wanted.items():
        before, after = _text(_read(local, name)), _text(content)
        if before != after:
            yield local / name, before, after


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2) + "\n" if content else ""


def _read(local: Path, name: str) -> dict[str, Any]:
    """Return the operator's file, or NVFlare's; empty if there is neither."""
    for path in (local / name, local / f"{name}.default"):
        if path.exists():
            try:
                found: Any = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise InvalidParameters(f"{path} is not JSON ({error}); correct it first") from None
            if isinstance(found, dict):
                return found
            raise InvalidParameters(f"{path} is not a JSON object; correct it first")
    return {}


def _policy(local: Path, given: list[str]) -> dict[str, Any]:
    found = _read(local, "secagg.json")
    for floor in given:
        key, is_given, value = floor.partition("=")
        if not is_given:
            raise InvalidParameters(f"--policy must be KEY=VALUE, such as minimum-cohort=10; got {floor!r}")
        try:
            read: Any = json.loads(value)
        except ValueError:
            read = value
        found[PREFIX + key.removeprefix(PREFIX)] = read
    ClientNode().raised_by(found)
    return found


def _privacy(local: Path, *, tracking: bool) -> dict[str, Any]:
    """Return the scopes, each with our filter last, and the client; jobs with other scopes are refused."""
    found = _read(local, "privacy.json")
    scopes = found.setdefault("scopes", [])
    if not scopes:
        scopes.append({"name": _SCOPE, "properties": {}})
        found["default_scope"] = _SCOPE
    if not found.get("default_scope"):
        raise InvalidParameters(f"{local / 'privacy.json'} has no default_scope, so jobs without one pass; set it")
    for scope in scopes:
        for chain in ("task_data_filters", "task_result_filters"):
            scope[chain] = [one for one in scope.get(chain, []) if one != _FILTER] + [_FILTER]
    client = {"id": _CLIENT_ID, "path": f"{_PACKAGE}.forced_site.SiteClient", "args": {"tracking": tracking}}
    return found | {"components": _with(found.get("components", []), client)}


def _resources(
    local: Path, classes: list[str], scripts: dict[str, str], interpreters: list[str], *, is_closed: bool
) -> dict[str, Any]:
    found = _read(local, "resources.json")
    found["allow_log_streaming"] = False
    components: list[dict[str, Any]] = found.get("components", [])
    if not is_closed:
        listed: list[str] = found.get("class_allow_list", [])
        found["class_allow_list"] = listed + [name for name in CLASSES if not {name, "*"} & {*listed}]
        return found | {"components": [one for one in components if one.get("id") != _GATE_ID]}
    allowed = {"classes": classes, "scripts": scripts, "interpreters": interpreters}
    gate = {"id": _GATE_ID, "path": f"{_PACKAGE}.forced_site.SiteGate", "args": allowed}
    return found | {
        "class_allow_list": classes,
        "class_list_enforcement_mode": "enforce",
        "components": _with(components, gate),
    }


def _authorization(local: Path) -> dict[str, Any]:
    """Return the permissions, without jobs' own code for any role."""
    found = _read(local, "authorization.json")
    roles: dict[str, Any] = found.get("permissions", {})
    for role, rights in roles.items():
        # A single word grants every right.
        kept = dict.fromkeys(_EVERY_RIGHT, rights) if isinstance(rights, str) else rights
        roles[role] = {**kept, **dict.fromkeys(_RIGHTS, "none")}
    return found


def _with(components: list[dict[str, Any]], one: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in components if each.get("id") != one["id"]] + [one]
