"""Forces secure sums at a site: privacy-scope filters that no job can remove, and a gate for job components.

``secagg node nvflare`` writes the files that name these classes. NVFlare passes every task of every job through the
filters of a site's privacy scope, before the job's own filters. The scope alone stops jobs that are insecure by
mistake. A job's code runs in the site's process, so only the gate, which runs no job code, stops a hostile job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from nvflare.apis.app_validation import AppValidationKey
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.apis.job_launcher_spec import add_launcher
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.shell_cmd import ShellCommandProcessor
from nvflare.widgets.widget import Widget, WidgetID

from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.platforms.terms import RECORD

from .client import SITE, STAGE_TASK, SecAggClient, SecAggFilter, filtered, left, stage_answered

_AUX: Final = "aux_communication"
_EVENTS: Final = "fed.event"
_PATHS: Final = ("path", "class_path", "name")
_SCRIPT: Final = "task_script_path"
_ARGUMENTS: Final = "task_script_args"
_MODE: Final = "execution_mode"
_IN_PROCESS, _EXTERNAL = "in_process", "external_process"
_UNBUFFERED: Final = "-u"
"""The only interpreter option that a job may give: others run code or import modules."""
_REFERENCE: Final = "${"
"""Prefix of placeholders that NVFlare replaces in a command with a secret of the site."""
_BROUGHT: Final = AppValidationKey.BYOC
_REFUSED: Final = ("launcher_id", "attach_id", "class_attributes", "scheme")
"""Arguments that start another program, replace arguments that the gate checked, or import a module."""


class SiteClient(SecAggClient):
    """A site's client in every job, with the operator's policy."""

    def __init__(
        self, policy: dict[str, Any] | None = None, scheme: str | None = None, *, tracking: bool = False
    ) -> None:
        """Set the policy, like ``SecAggClient``.

        Args:
            tracking: whether a job may send events, such as script logs, to its server.
        """
        super().__init__(policy, scheme)
        self.tracking, self.refused = tracking, ""
        self.answers = dict[str, Shareable]()
        """Answers to stages, by task, until the job's executor has returned."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Check the job before its first task; forget the session at its end."""
        if event_type == EventType.ABOUT_TO_START_RUN:
            self._look_at(fl_ctx.get_prop(FLContextKey.RUNNER))
            if not self.tracking:
                _stop_events(fl_ctx.get_engine())
        super().handle_event(event_type, fl_ctx)

    def _look_at(self, runner: Any) -> None:  # noqa: ANN401 -- NVFlare's client runner
        chains: Mapping[str, list[Filter]] = runner.task_result_filters
        # They would run after the protocol, where a filter for differential privacy has no effect.
        if others := sorted({type(one).__name__ for chain in chains.values() for one in chain} - {_OURS}):
            self.refused = f"the job's result filters {', '.join(others)} would run after the protocol; remove them"


_OURS: Final = SecAggFilter.__name__


class SiteFilter(Filter):
    """Last filter of the site's privacy scope: admits only the protocol's tasks, and releases only its answers."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        client = fl_ctx.get_engine().get_component(SITE)
        if type(client) is not SiteClient:
            raise Misuse(f"privacy.json has no SiteClient with the id {SITE!r}; write it with `secagg node nvflare`")
        is_stage = fl_ctx.get_prop(FLContextKey.TASK_NAME) == STAGE_TASK
        task = str(fl_ctx.get_prop(FLContextKey.TASK_ID))
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            if client.refused:
                raise InvalidParameters(client.refused, reason=Reason.BELOW_FLOOR)
            if RECORD not in shareable:
                raise InvalidParameters(
                    "this site answers only secure sums; make the job secure with secagg.nvflare.secure",
                    reason=Reason.BELOW_FLOOR,
                )
            if not is_stage:
                return filtered(client, shareable, fl_ctx)
            client.answers[task] = stage_answered(client, shareable, fl_ctx)
            # Keep the rest: NVFlare copies a cookie from it into the reply, which identifies the task to the server.
            del shareable[RECORD]
            return shareable
        if not is_stage:
            return filtered(client, shareable, fl_ctx)
        answer = client.answers.pop(task, None)
        return answer or left(client, Misuse("no stage waits for an answer", reason=Reason.ALREADY_SPENT))


class SiteGate(Widget):
    """Checks each component of a job before it is built: classes by name, scripts by content."""

    def __init__(self, classes: list[str], scripts: dict[str, str], interpreters: list[str] | None = None) -> None:
        """Allow jobs to use classes, by full name, and scripts, by absolute path and SHA-256.

        Args:
            interpreters: absolute paths of programs that may run these scripts in a separate process.
        """
        super().__init__()
        self.classes, self.scripts, self.interpreters = list(classes), dict(scripts), list(interpreters or [])

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            # The server itself requests authorization, or skips it, and could read the site's files.
            served = ClientRequestProcessors.request_processors
            served[:] = [one for one in served if type(one) is not ShellCommandProcessor]
        launched = event_type == EventType.BEFORE_JOB_LAUNCH
        if launched and (fl_ctx.get_prop(FLContextKey.JOB_META) or {_BROUGHT: True}).get(_BROUGHT):
            # The server asserts the roles in authorization.json, and "super" passes it. NVFlare checks for code itself,
            # and starts no job that two launchers claim.
            add_launcher(self, fl_ctx)
        if event_type != EventType.BEFORE_BUILD_COMPONENT:
            return
        try:
            fault = next(self._faults(fl_ctx.get_prop(FLContextKey.COMPONENT_CONFIG)), None)
        except Exception as error:  # noqa: BLE001 -- a component's description may be malformed in any way
            raise UnsafeComponentError(f"a component could not be checked: {error}") from None
        if fault is not None:
            raise UnsafeComponentError(f"{fault}; ask the site's operator")

    def _faults(self, found: Mapping[str, Any]) -> Iterator[str]:
        named = [found[key] for key in _PATHS if key in found]
        if len(named) != 1 or named[0] not in self.classes:
            yield f"{', '.join(map(str, named)) or 'a component without a path'} is not a class that this site allows"
        arguments: Mapping[str, Any] = found.get("args") or {}
        for name in _REFUSED:
            if arguments.get(name):
                yield f"{name} of {named[0]} is not allowed at this site"
        mode, script, command = arguments.get(_MODE, _IN_PROCESS), arguments.get(_SCRIPT), arguments.get("command")
        if mode not in (_IN_PROCESS, _EXTERNAL):
            yield f"{_MODE} {mode!r} is not allowed at this site, only {_IN_PROCESS!r} and {_EXTERNAL!r}"
        if mode == _EXTERNAL:
            yield from self._faults_of_command(command)
        yield from self._faults_of_arguments([arguments.get(_ARGUMENTS, "")])
        if command and mode != _EXTERNAL:
            yield f"command of {named[0]} is not allowed at this site"
        if script is not None:
            yield from self._faults_of_script(script)

    def _faults_of_command(self, command: object) -> Iterator[str]:
        """Yield a command's faults; NVFlare uses no shell, so later arguments are the script's."""
        words = list(cast("list[object]", command)) if isinstance(command, list) else []
        interpreter, *rest = words or [None]
        script, *given = (rest[1:] if rest[:1] == [_UNBUFFERED] else rest) or [None]
        if interpreter not in self.interpreters:
            yield f"the interpreter {interpreter} is not allowed at this site; it must be one of --interpreter"
        yield from self._faults_of_script(script)
        yield from self._faults_of_arguments(given)

    def _faults_of_arguments(self, given: list[object]) -> Iterator[str]:
        if any(type(one) is not str or _REFERENCE in one for one in given):
            yield "an argument of the script is not allowed at this site: it names a secret, or is not a string"

    def _faults_of_script(self, script: object) -> Iterator[str]:
        # NVFlare first looks for a relative path in the job's own folder.
        path = script if isinstance(script, str) and Path(script).is_absolute() and script in self.scripts else None
        if path is None or hashlib.sha256(Path(path).read_bytes()).hexdigest() != self.scripts[path]:
            yield f"{script} is not a script that this site allows, or it was changed"


def _stop_events(engine: Any) -> None:  # noqa: ANN401 -- NVFlare's client engine
    """Block events that a job would send to its server; NVFlare has no setting for this."""
    engine.get_widget(WidgetID.FED_EVENT_RUNNER).fire_and_forget_request = lambda *_, **__: None
    engine.get_cell().core_cell.add_outgoing_request_filter(_AUX, _EVENTS, _blocked)


def _blocked(message: object) -> Any:  # noqa: ANN401 -- NVFlare's own message
    del message
    return make_reply("blocked", "the site's operator blocks events")
