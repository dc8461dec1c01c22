"""``secagg serve``: serves the sums of one or several tasks over HTTP to clients that run ``secagg contribute``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from secagg.errors import CapacityExceeded, InternalError, InvalidParameters, SecAggError
from secagg.options import declared, suggestion
from secagg.session.client_policy import USUAL_BITS
from secagg.session.registry import find

from .figures import writable, write_json
from .groups import group_of, write_mean, write_sum
from .shared import (
    ACTIVE,
    TRUST,
    address,
    assigned,
    max_norms_in,
    model_terms,
    own_credentials,
    plan_for,
    running,
    stopped,
    subject_of,
    terms_of_model,
)
from .spreading import Spreading, SpreadInState, Telling, workers_for

if TYPE_CHECKING:
    from secagg.analytics import Plan
    from secagg.crypto.entropy import Coins
    from secagg.platforms.model_files import Model
    from secagg.platforms.round_task import RoundTask
    from secagg.platforms.settings import SecAggSettings
    from secagg.quick.model_session import Session
    from secagg.session.identities import Roster
    from secagg.session.roles import Released, ServerSession, Subject
    from secagg.session.run import Metrics
    from secagg.transport.description import SessionDescription, WireLimits
    from secagg.transport.keeping import ServerRecord, ServerStore
    from secagg.transport.proof import Admission

_LOG: Final = logging.getLogger("secagg")
_AGAIN_SECONDS: Final = 1.0
_THREADS: Final = 8
_START_SECONDS: Final = 5.0
"""Time that all tasks have to open, or to refuse their options, before any begins."""
_OF_UPDATES: Final = ("values", "clip", "bits")
"""Terms of a sum of arrays of values only."""
_OF_ROUNDS: Final = ("down", "rate", "harm", "metrics", "evaluation_metrics", "metric_bound")
"""Settings of updates that do not apply to a single sum of files."""
_DRAWING, _SEATS = 28 * 28, 3
"""For --page: number of values of a drawing, and the default number of visitors in a sum."""
_LEAST_ANSWER, _SHARES, _PER_CLIENT = 1 << 20, 16, 1 << 12
"""Maximum length of an answer: these bytes, plus the packed update times this factor, plus bytes per client."""
_OF_PROCESS: Final = (
    *("allow_origin", "behind_proxy", "cert", "client_certs", "key", "listen", "log_level", "memory", "metrics_token"),
    *("page", "task", "tasks"),
)
"""Options of the process, which a task in a file cannot set."""
_OF_ONE: Final = ("metrics", "out", "state", "storage")
"""Options with a path that tasks must not share."""


def run_serve(options: argparse.Namespace) -> int:
    """Run each task's sum, write its mean, and return the exit status."""
    options.is_written, tasks = False, _tasks(options)
    for each in tasks:
        with _named(each):
            _complete(each)
    try:
        running(lambda: _serve(options, tasks), options)
    except SystemExit:
        return 0 if options.is_written else stopped()
    return 0


def _tasks(options: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the options of each task: the command's, overridden by its table in the file of tasks."""
    path, options.label = options.tasks, ""
    if path is None:
        return [options]
    if options.page or options.task != options.usual("task"):
        raise InvalidParameters(f"--task and --page cannot be combined with --tasks {path}; leave them out")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameters(f"{path} is not valid TOML ({error}); see `secagg serve --help`") from None
    if not tables or "" in tables or not all(isinstance(table, dict) for table in tables.values()):
        raise InvalidParameters(f"{path} must have a table [NAME] for each task, with its options below")
    tasks = list[argparse.Namespace]()
    for name, table in tables.items():
        own = argparse.Namespace(**{**vars(options), "task": name, "label": f"{path}, [{name}]: "})
        with _named(own):
            tasks.append(options.parsed(_arguments(table), own))
    for name in _OF_ONE:
        taken = dict[Path, str]()
        for each in tasks:
            if (value := getattr(each, name)) is not None:
                other = taken.setdefault(Path(value).resolve(), each.task)
                if other != each.task:
                    raise InvalidParameters(f"{path}: {other} and {each.task} share --{name}, {value}; use two")
    return tasks


def _arguments(table: Mapping[str, Any]) -> list[str]:
    """Return a task's options as command-line arguments; settings are a table, and a flag is true."""
    found = list[str]()
    for key, value in table.items():
        name = key.replace("_", "-")
        if name.replace("-", "_") in _OF_PROCESS:
            raise InvalidParameters(f"--{name} applies to all tasks; set it on the command line")
        if isinstance(value, dict):
            settings = cast("dict[str, Any]", value)
            found += (f"--{name}={setting}={one}" for setting, one in settings.items())
        elif isinstance(value, bool):
            found += [f"--{name}"] * value
        elif isinstance(value, str | int | float):
            found.append(f"--{name}={value}")
        else:
            raise InvalidParameters(f"{name} must be a string, a number, true, or a table of settings; got {value!r}")
    return found


@contextmanager
def _named(options: argparse.Namespace) -> Generator[None]:
    """Prefix errors with their task, if tasks come from a file."""
    try:
        yield
    except SecAggError as error:
        error.args = (f"{options.label}{error}",)
        raise


def _complete(options: argparse.Namespace) -> None:
    """Fill in options that a page, a model or a declaration determines; refuse missing or conflicting ones."""
    options.declared = None
    is_encoded = options.values is not None or options.bits is not None
    options.bits = USUAL_BITS if options.bits is None else options.bits
    if options.model is not None:
        _complete_model(options, is_encoded=is_encoded)
    if options.statistics is not None:
        from secagg.analytics import Declaration

        options.declared = Declaration.read(options.statistics)
        if options.page or options.group or options.values is not None or options.clip is not None:
            raise InvalidParameters(
                "--statistics cannot be combined with --values, --clip, --page or --group; leave these out"
            )
        options.values, options.clip = 0, 0.0
    if not options.page:
        needed = ("values", "clip", "out") if options.model is None else ("out",)
        if missing := [name for name in needed if getattr(options, name) is None]:
            raise InvalidParameters(
                f"also set --{', --'.join(missing)}" + ("" if options.model else ", or use --page, which sets them")
            )
        return
    if options.state or options.group or options.engine or options.values is not None or options.round is not None:
        raise InvalidParameters(
            "--page cannot be combined with --values, --round, --state, --group or --engine; leave these out"
        )
    if options.protocol != "pairwise":
        raise InvalidParameters("--page only supports --protocol pairwise; leave --protocol out")
    options.values, options.clip = _DRAWING, 1.0 if options.clip is None else options.clip
    if options.clients is None and not any(each.startswith("roster=") for each in options.set):
        options.clients = _SEATS


def _complete_model(options: argparse.Namespace, *, is_encoded: bool) -> None:
    from secagg.platforms.model_files import require_form

    if is_encoded or options.page or options.group or options.engine or options.statistics is not None:
        raise InvalidParameters(
            "--model sums tensors like a Flower app, so it cannot be combined with --values, --bits, --statistics, "
            "--page, --group or --engine; leave these out"
        )
    if options.out is not None:
        require_form(options.out)
    options.values = 0


def _shown(plan: Session[Any], released: Released) -> bytes:
    mean, count = plan.mean(released), len(released.counted)
    sentence = f"the sum of {count} clients was released"
    return json.dumps({"sentence": sentence, "count": count, "mean": [round(float(x), 6) for x in mean]}).encode()


def _write(options: argparse.Namespace, held: _Held, released: Released) -> str:
    """Write the mean, the statistics or a group's sum to disk, and return its description."""
    from secagg.analytics import Plan
    from secagg.platforms.round_task import RoundTask

    if isinstance(held.plan, RoundTask):
        return _write_model(options, held, held.plan, released)
    if isinstance(held.plan, Plan):
        results = held.plan.results(released.aggregate)
        write_json(options.out, results.record)
        return f"statistics of {results.sites} sites"
    if options.group is None:
        write_mean(options.out, held.plan.mean(released))
        return f"the mean of {len(released.counted)} clients' updates"
    write_sum(options.out, held.description, released)
    return f"the sum of {len(released.counted)} clients of group {options.group}, for `secagg add`"


def _write_model(options: argparse.Namespace, held: _Held, task: RoundTask, released: Released) -> str:
    from secagg.compression.model_update.arrays import applied
    from secagg.platforms.model_files import write_model

    means = task.means(released.aggregate)
    if held.session is not None:
        task.say_if_noise_alone(held.session, released.aggregate)
    write_model(options.out, applied(task.sent, means.tensors), options.model)
    return f"{options.model} with the mean change of {means.contributors} clients, {means.counted.sentence}"


async def _keep(options: argparse.Namespace, held: _Held, released: Released) -> bytes:
    """Write the sum; if the disk is full, keep it in memory and retry."""
    shown, said = _shown(cast("Session[Any]", held.plan), released) if options.page else b"", ""
    while options.out is not None:
        try:
            written = await asyncio.to_thread(_write, options, held, released)
        except OSError as error:
            if said != (said := str(error)):
                _LOG.warning("the sum is released but cannot be written (%s); free disk space, this retries", said)
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            print(f"{options.out}: {written}", flush=True)
            break
    return shown


async def _serve(options: argparse.Namespace, each: Sequence[argparse.Namespace]) -> None:
    from secagg.transport.conductor import counters
    from secagg.transport.description import WireLimits
    from secagg.transport.listener import listening
    from secagg.transport.proof import Operators
    from secagg.transport.server import Front
    from secagg.transport.tls import ServerTls

    own, loop = own_credentials(options), asyncio.get_running_loop()
    tls = None if own is None else ServerTls(own, options.client_certs)
    if tls is None and options.client_certs is not None:
        raise InvalidParameters("--client-certs requires TLS; also set --cert and --key")
    if tls is not None:
        loop.add_signal_handler(signal.SIGHUP, tls.renew)
    host, port = address("--listen", options.listen)
    token = options.metrics_token and options.metrics_token.read_text(errors="replace").strip()
    operators = Operators(token, is_behind_proxy=options.behind_proxy)
    # One more thread per task, so that a task that waits for a disk or a helper does not delay others.
    loop.set_default_executor(ThreadPoolExecutor(_THREADS + len(each)))
    with ExitStack() as resources:
        tasks, metrics = list[_Task](), counters()
        for one in each:
            with _named(one):
                tasks.append(_Task(one, len(each), metrics, resources))
        openings = [task.opening for task in tasks]
        await asyncio.wait(openings, timeout=None if len(tasks) == 1 else _START_SECONDS)
        for task in tasks:
            error = task.opening.exception() if task.opening.done() else None
            if isinstance(error, SecAggError) or (error is not None and len(tasks) == 1):
                with _named(task.options):
                    raise error
        limits = WireLimits(connections=sum(task.server.limits.connections for task in tasks))
        app = _with_page(Front([task.server for task in tasks], operators).app, options)
        async with listening(app, host, port, tls=tls, limits=limits, is_behind_proxy=options.behind_proxy) as listened:
            try:
                errors = await asyncio.gather(*(task.run(f"{host}:{listened}") for task in tasks))
                # From here on a signal only stops notifying clients.
                options.is_written = not any(errors)
            finally:
                await asyncio.gather(*(task.server.told() for task in tasks if task.is_begun))
        if failed := [task.options.task for task, error in zip(tasks, errors, strict=True) if error is not None]:
            raise ConnectionError(
                f"{len(failed)} of {len(tasks)} tasks ended without a sum: {', '.join(failed)}; see the log"
            )


class _Task:
    """One task of a server, with its sum and sessions; its errors do not affect other tasks."""

    def __init__(self, options: argparse.Namespace, count: int, metrics: Metrics, resources: ExitStack) -> None:
        """Prepare one of ``count`` tasks, which share memory and spare connections equally."""
        from secagg.session.durable import require_own_folder
        from secagg.transport.server import SumServer

        self.options, self.is_begun, self._is_one = options, False, count == 1
        options.share, options.parts = (options.memory << 20) // count, count
        self._settings = _settings(options)
        if options.state is not None:
            require_own_folder(options.state)  # The storage may be in this folder, and is tried first.
            options.storage = options.storage or (str(options.state / "storage") if options.engine else None)
        workers = resources.enter_context(workers_for(find(options.protocol), options, Telling()))
        self._sums = _Sum(options, self._settings, resources, workers)
        workers.metrics = metrics
        if options.out is not None:
            writable(options.out)
        self.opening = asyncio.create_task(self._open())
        """Opens the first session, which may wait for a helper while other tasks begin."""
        limits = _limits(options, len(self._sums.invited))
        self.server = SumServer(task=options.task, limits=limits, store=self._sums.store, metrics=metrics)

    async def _open(self) -> _Held:
        from secagg.transport.description import TASK

        TASK.set(self.options.task)
        return await asyncio.to_thread(self._sums.held)

    async def run(self, place: str) -> Exception | None:
        """Run the task's sessions; raise the error of a single task, but return that of one of several."""
        from secagg.transport.description import TASK

        TASK.set(self.options.task)
        error: Exception | None = None
        try:
            await self._run(place)
        except Exception as found:
            if self._is_one:
                raise
            is_known, error = isinstance(found, SecAggError | OSError), found
            _LOG.error("the task ended without a sum: %s", str(found), exc_info=None if is_known else found)
        if not self._is_one:
            self.server.finish()
        return error

    async def _run(self, place: str) -> None:
        options, sums, held = self.options, self._sums, await self.opening
        name = "" if self._is_one else f", task {options.task}"
        print(f"listening at {place}, session {held.description.session}, {held.description.mode}{name}", flush=True)
        if held.description.mode != ACTIVE:
            _LOG.warning("%s; with --set roster=FILE they trust certified keys instead", TRUST[False])
        if not self._settings.tolerated_dropouts(clients := len(sums.invited)):
            _LOG.warning("the sum needs all %d clients; invite more to tolerate dropouts", clients)
        self.is_begun = True
        if held.session is None:
            self.server.recall(held.description, held.ending)
            print(f"an earlier process wrote {options.out}: {held.ending}", flush=True)
            return
        while held.session is not None:
            try:
                keep = partial(_keep, options, held)
                await self.server.run(
                    held.session, held.description, number=held.number, keep=keep, admission=held.admission
                )
            except (SecAggError, ConnectionError) as error:
                if not options.page:
                    raise
                _LOG.warning("a session ended without a sum: %s", str(error))
            if not options.page:
                return
            # Run one session after another until a signal, even if a session ends without a sum.
            held = await sums.next(held.description.round_number + 1)


def _with_page(app: Any, options: argparse.Namespace) -> Any:  # noqa: ANN401 -- ASGI applications
    from secagg.transport.page import CrossOrigin, OwnHost, Paged

    app = Paged(app) if options.page else app
    app = CrossOrigin(app, options.allow_origin) if options.allow_origin else app
    return app if options.cert or options.behind_proxy else OwnHost(app)


def _settings(options: argparse.Namespace) -> SecAggSettings:
    from secagg.platforms.settings import ENCLAVE, ONE_MESSAGE, PREFIX, SecAggSettings

    given = {PREFIX + name.replace("_", "-"): value for name, value in assigned(options.set, SecAggSettings).items()}
    alike: dict[str, Any] = {f"{PREFIX}protocol": options.protocol, f"{PREFIX}form": options.form}
    parts, idle = {""}, tuple[str, ...]()
    if options.model is None:
        alike[f"{PREFIX}weighting"] = "uniform"
        why = "only --model supports noise, and --clip, --bits and --values determine how updates are encoded"
    else:
        alike |= {} if options.clip is None else {f"{PREFIX}clip": options.clip}
        parts, idle, why = {"", "updates"}, (*_OF_ROUNDS, "clip"), "--clip limits changes, and a sum has no rounds"
    if twice := sorted((alike.keys() - {f"{PREFIX}clip"}) & given.keys()):
        raise InvalidParameters(
            f"--set cannot change {twice[0].removeprefix(PREFIX)}: use --protocol and --form; weights by examples "
            "need --model"
        )
    used = {
        name.replace("_", "-"): each.option.part in parts and name not in idle
        for name, each in declared(SecAggSettings).items()
    }
    known = sorted(name for name, is_used in used.items() if is_used and PREFIX + name not in alike)
    if strange := [name for key in given if (name := key.removeprefix(PREFIX)) not in known]:
        name = strange[0]
        raise InvalidParameters(
            f"--set {name} has no effect here: {why}; leave it out"
            if name in used
            else f"--set {name} is not a setting of `secagg serve`; {suggestion(name, known)}"
        )
    if f"{PREFIX}max-norm" in given and (options.protocol != ENCLAVE or options.declared is not None):
        raise InvalidParameters(
            f"--set max-norm needs an enclave that sees updates, which --protocol {options.protocol} or "
            "--statistics lacks: use --protocol enclave and --values, or leave it out"
        )
    if f"{PREFIX}stage-timeout" in given and options.protocol not in (ENCLAVE, ONE_MESSAGE):
        raise InvalidParameters(
            f"--set stage-timeout limits answers of an enclave or of holders, which {options.protocol} does not "
            "have: use --exchange-seconds for the clients' answers"
        )
    settings = SecAggSettings.from_run_config({**given, **alike})
    if settings.is_calibrated or settings.custom or settings.turns > 1:
        raise InvalidParameters(
            "here --set compression must be fixed-point, pruning-0.9 or similar, or peak, and --set tensors must "
            "have no turns: other schemes and turns need earlier rounds, which a single sum does not have"
        )
    if options.declared is not None:
        from secagg.analytics.on_platforms import settings_of

        settings = settings_of(settings, options.declared)
    if options.page and settings.suite not in {None, "classic"}:
        raise InvalidParameters(
            "--page only supports suite classic: few browsers have ML-KEM in WebCrypto; leave out --set suite or --page"
        )
    return settings


def _limits(options: argparse.Namespace, clients: int) -> WireLimits:
    from secagg.session.run import Limits
    from secagg.transport.description import BACK_SECONDS, COPIES, WireLimits

    return WireLimits(
        stages=Limits(
            exchange=options.exchange_seconds,
            training=options.training_seconds,
            patience=options.patience,
            training_patience=options.patience,
            least=BACK_SECONDS,
        ),
        answer_bytes=options.share // COPIES,
        memory=options.share,
        connections=clients + WireLimits().connections // options.parts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A server's session: a new one, or one left by an earlier process."""

    session: ServerSession | None
    """None if its sum is written and only clients must still be notified."""
    description: SessionDescription
    plan: Session[Any] | Plan | RoundTask
    admission: Admission
    number: int = 0
    """Number of the open stage."""
    ending: str = ""


class _Sum:
    """The sum that the options describe; opens and resumes its sessions."""

    def __init__(
        self, options: argparse.Namespace, settings: SecAggSettings, resources: ExitStack, workers: Spreading
    ) -> None:
        self.options, self.settings, self.resources, self.workers = options, settings, resources, workers
        self.roster: Roster | None = None
        self.model: Model | None = None
        self._invite()
        if options.model is not None:
            from secagg.platforms.model_files import read_model
            from secagg.platforms.round_task import Rounds

            self.model, self.rounds = read_model(options.model), Rounds(settings)
        self.store = None if options.state is None else _store_in(options.state, resources)

    def _invite(self, kept: Path | None = None) -> None:
        """Invite the clients of the roster, or of an earlier process's roster, and set their terms."""
        from secagg.session.identities import load_roster

        options, settings = self.options, self.settings
        path, known = (Path(settings.roster), self.roster) if kept is None else (kept, None)
        roster = load_roster(path, known) if settings.roster else None
        self.invited, self.roster, planned = group_of(options, roster)
        self.terms: dict[str, Any] = {**planned}
        if settings.max_norm:
            self.terms["max_norm"] = settings.max_norm
        if options.declared is not None or options.model is not None:
            self.terms = {name: self.terms[name] for name in planned if name not in _OF_UPDATES}
        if options.declared is not None:
            self.terms["statistics"] = options.declared.digest.hex()

    async def next(self, least: int) -> _Held:
        """Read the roster again, and open another session once there are enough clients."""
        said = ""
        while True:
            try:
                self._invite()
                return self.held(least)
            except (InvalidParameters, CapacityExceeded) as error:
                if said != (said := str(error)):
                    _LOG.warning("no session can begin: %s; the roster is reread every second", said)
                await asyncio.sleep(_AGAIN_SECONDS)

    def held(self, least: int = 0) -> _Held:
        """Resume the stored session, or open a new one with a round number of at least ``least``."""
        from secagg.transport.description import SessionDescription

        if self.store is None or (kept := self.store.get()) is None:
            return self._begun(least)
        if self.store.roster.exists():  # The authority's roster may have grown since the session began.
            self._invite(self.store.roster)
        description = SessionDescription.decode(kept.description)
        if kept.ending and self._is_about(description):
            # The sum is written, but clients may not have been notified.
            return self._held_for(description, None, ending=kept.ending.decode())
        if not kept.ending and self._can_go_on(kept):
            return self._gone_on(description, kept)
        _LOG.warning("the earlier session is over, or cannot be resumed; starting a new one")
        self._invite()
        return self._begun()

    def _can_go_on(self, kept: ServerRecord) -> bool:
        """Whether the session can be resumed; refuse a server that adds uploads in another way."""
        is_spread, by_workers = self._spread.goes_on, self.options.engine is not None
        if (is_spread and not by_workers) or (kept.snapshot and by_workers):
            who, how = ("workers add", "resume with") if is_spread else ("its server adds", "leave out")
            raise InvalidParameters(
                f"{self.options.state} has a session whose uploads {who}; {how} --engine, or use another --state"
            )
        return bool(kept.snapshot) or is_spread

    def _gone_on(self, description: SessionDescription, kept: ServerRecord) -> _Held:
        if not self._is_about(description):
            raise InvalidParameters(
                f"{self.options.state} has a session of {description.protocol} for task {description.task!r}, round "
                f"{description.round_number}, with different arguments; use the same ones again, or another --state"
            )
        if kept.snapshot:
            return self._held_for(description, self._session_of(kept.snapshot), number=kept.stage)
        plan = self._plan_in(description)
        subject = _subject(plan, description.task, description.round_number, description.terms)
        session = self._spread.opened(partial(self._opened, plan, subject))
        return self._held_for(description, session, number=int(session.stage is None))

    def _held_for(
        self, description: SessionDescription, session: ServerSession | None, *, number: int = 0, ending: str = ""
    ) -> _Held:
        """Return the session of a session description; claimed names stay with their owners."""
        from secagg.transport.proof import Certified, FirstCome

        plan = self._plan_in(description)
        if self.roster is not None:
            admission: Admission = Certified(self.roster.authority, self.roster.certificates)
        else:
            claims = {} if self.store is None else self.store.claims(description.session)
            admission = FirstCome(self.invited, description.encode(), claims)
        return _Held(
            session=session, description=description, plan=plan, admission=admission, number=number, ending=ending
        )

    def _begun(self, least: int = 0) -> _Held:
        from secagg.crypto.entropy import SystemCoins
        from secagg.session.durable import PUBLIC, replace
        from secagg.transport.description import DESCRIPTION_BYTES, SessionDescription, new_name

        options = self.options
        if self.store is not None and self.roster is not None:
            replace(self.store.roster, self.roster.text.encode("ascii"), PUBLIC)
        number = max(least, int(time.time())) if options.round is None else options.round
        plan = self._planned(number)
        subject = _subject(plan, options.task, number, self.terms)
        description = SessionDescription(
            session=new_name(SystemCoins()),
            protocol=options.protocol,
            task=options.task,
            round_number=number,
            answer_bytes=self._longest_answer(subject.layout.payload_bytes),
            terms=self.terms,
            mode=self._mode,
            form=self.settings.form,
        )
        if (length := len(description.encode())) > DESCRIPTION_BYTES:
            raise InvalidParameters(
                f"clients accept descriptions of at most {DESCRIPTION_BYTES:,} bytes, but this one has {length:,}, "
                "because every tensor adds some: select fewer with --set tensors, or join some"
            )
        if self.store is not None and self.options.engine is not None:
            session = self._spread.opened(partial(self._opened, plan, subject), begins=True)
        else:
            self.workers.opened(session := self._opened(plan, subject))
        return self._held_for(description, session)

    def _planned(self, number: int) -> Session[Any] | Plan | RoundTask:
        """Return the plan of a round's updates; for a model, add its terms."""
        options = self.options
        if self.model is None:
            return plan_for(options.declared, options.protocol, self.terms)
        from secagg.platforms.round_task import OF_FILES

        clients = len(self.invited)
        task = self.rounds.begun(self.model, clients=clients, task=options.task, number=number, weighted_by=OF_FILES)
        self.terms |= model_terms(task)
        return task

    def _plan_in(self, description: SessionDescription) -> Session[Any] | Plan | RoundTask:
        if self.model is None:
            return plan_for(self.options.declared, description.protocol, description.terms)
        from secagg.compression.model_update import decode_parameters
        from secagg.platforms.round_task import RoundTask

        terms = terms_of_model(description)
        return RoundTask(
            settings=self.settings,
            roster=self.roster,
            terms=terms,
            sent=self.model,
            update=decode_parameters(terms.parameters),
        )

    def _longest_answer(self, packed: int) -> int:
        """Return the maximum length of an answer, with room for every protocol's shares if memory permits."""
        from secagg.transport.description import COPIES

        base = _LEAST_ANSWER + _PER_CLIENT * len(self.invited)
        most: int = self.options.share // COPIES
        if (least := base + packed) > most:
            parts = self.options.parts
            raise InvalidParameters(
                f"an upload of this size needs up to {least:,} bytes, which are held twice while they are "
                f"read{f', and {parts} tasks share the memory' if parts > 1 else ''}; raise --memory to "
                f"{parts * (1 + (COPIES * least >> 20))} or more (MiB)"
            )
        return min(base + _SHARES * packed, most)

    def _is_about(self, description: SessionDescription) -> bool:
        options, number = self.options, description.round_number
        given = (options.protocol, options.task, number if options.round is None else options.round, self._mode)
        self._planned(number)
        # A model's parameters contain a seed, which the session stores.
        terms, own = ({**each, "parameters": None} for each in (description.terms, self.terms))
        said = (description.protocol, description.task, number, description.mode, description.form, terms)
        return said == (*given, self.settings.form, own)

    @property
    def _mode(self) -> str:
        from secagg.platforms.settings import LIGHT_SECAGG

        if self.options.protocol == "pairwise":
            return str(self.settings.trust)
        # LightSecAgg assumes a server that follows the protocol, even if clients are certified.
        return ACTIVE if self.roster and self.options.protocol != LIGHT_SECAGG else "semi_honest"

    @property
    def _spread(self) -> SpreadInState:
        store = self.store
        if store is None:
            raise InternalError("a resumable sum needs a store")
        return SpreadInState(
            self.options.state / "sum", self.workers, lambda: (kept := store.get()) is not None and not kept.ending
        )

    def _session_of(self, stored: bytes) -> ServerSession:
        from secagg.crypto.secret import Secret

        if (restore := find(self.options.protocol).restore) is None:
            raise InvalidParameters(f"{self.options.state} has a session of a different version; use another --state")
        with Secret("server snapshot", stored) as snapshot:
            return restore(snapshot, self.invited)

    def _opened(
        self, plan: Session[Any] | Plan | RoundTask, subject: Subject, coins: Coins | None = None
    ) -> ServerSession:
        from secagg.crypto.entropy import SystemCoins
        from secagg.platforms.plugs import ServerSide, plug_of
        from secagg.platforms.round_task import RoundTask

        limits: dict[str, Any] = {
            "bounds": (None,) * len(subject.layout.segments),
            "max_norms": max_norms_in(self.options.protocol, self.terms),
        }
        side = ServerSide(
            settings=self.settings,
            subject=subject,
            population=len(self.invited),
            invited=self.invited,
            roster=self.roster,
            coins=coins or SystemCoins(),
            resources=self.resources,
            **(plan.limits if isinstance(plan, RoundTask) else limits),
        )
        session = plug_of(self.options.protocol, is_suspended=False).open(side)
        if isinstance(plan, RoundTask):
            plan.say_noise(session, releases=1)
        return session


def _subject(plan: Session[Any] | Plan | RoundTask, task: str, number: int, terms: Mapping[str, Any]) -> Subject:
    from secagg.platforms.round_task import RoundTask

    return plan.subject if isinstance(plan, RoundTask) else subject_of(plan, task, number, terms)


def _store_in(folder: Path, resources: ExitStack) -> ServerStore:
    from secagg.session.durable import claim
    from secagg.transport.keeping import ServerStore

    store = ServerStore(folder)
    resources.callback(os.close, held := os.open(folder, os.O_RDONLY))
    claim(held, f"{folder} is in use by another server; use another --state")
    return store
