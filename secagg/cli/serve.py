"""``secagg serve``: one sum over HTTP, for clients that run ``secagg contribute``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from secagg.errors import CapacityExceeded, InternalError, InvalidParameters, SecAggError
from secagg.options import declared, suggestion
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
    from secagg.transport.description import SessionDescription, WireLimits
    from secagg.transport.keeping import ServerRecord, ServerStore
    from secagg.transport.proof import Admission
    from secagg.transport.server import SumServer

_LOG: Final = logging.getLogger("secagg")
_AGAIN_SECONDS: Final = 1.0
_OF_UPDATES: Final = ("values", "clip", "bits")
"""Terms of a sum of arrays of values only."""
_BITS: Final = 16
_OF_ROUNDS: Final = ("down", "rate", "harm", "metrics", "evaluation_metrics", "metric_bound")
"""Settings of updates that one sum of files has no use for."""
_DRAWING, _SEATS = 28 * 28, 3
"""For a page: values of a drawing, and the default number of visitors of a sum."""
_LEAST_ANSWER, _SHARES, _PER_CLIENT = 1 << 20, 16, 1 << 12
"""No answer is longer than these bytes, times the packed update, and for each client."""


def run_serve(options: argparse.Namespace) -> int:
    """Hold a sum, write its mean, and return the exit status."""
    options.is_written = False
    _complete(options)
    try:
        running(lambda: _serve(options), options)
    except SystemExit:
        return 0 if options.is_written else stopped()
    return 0


def _complete(options: argparse.Namespace) -> None:
    """Fill in what a page, a model or a declaration decides, or refuse what is missing or cannot be combined."""
    options.declared = None
    is_encoded = options.values is not None or options.bits is not None
    options.bits = _BITS if options.bits is None else options.bits
    if options.model is not None:
        _complete_model(options, is_encoded=is_encoded)
    if options.statistics is not None:
        from secagg.analytics import Declaration

        options.declared = Declaration.read(options.statistics)
        if options.page or options.group or options.values is not None or options.clip is not None:
            raise InvalidParameters(
                "--statistics decides --values and --clip, and goes with neither --page nor --group; leave them out"
            )
        options.values, options.clip = 0, 0.0
    if not options.page:
        needed = ("values", "clip", "out") if options.model is None else ("out",)
        if missing := [name for name in needed if getattr(options, name) is None]:
            raise InvalidParameters(
                f"give --{', --'.join(missing)} as well"
                + ("" if options.model else ", or --page for a page that decides them")
            )
        return
    if options.state or options.group or options.engine or options.values is not None or options.round is not None:
        raise InvalidParameters(
            "--page decides --values and --round, and goes with none of --state, --group and --engine"
        )
    if options.protocol != "pairwise":
        raise InvalidParameters("the page takes part by pairwise masks; leave --protocol out")
    options.values, options.clip = _DRAWING, 1.0 if options.clip is None else options.clip
    if options.clients is None and not any(each.startswith("roster=") for each in options.set):
        options.clients = _SEATS


def _complete_model(options: argparse.Namespace, *, is_encoded: bool) -> None:
    from secagg.platforms.model_files import require_form

    if is_encoded or options.page or options.group or options.engine or options.statistics is not None:
        raise InvalidParameters(
            "--model has its tensors summed as a Flower app's are, so it cannot be combined with --values, --bits, "
            "--statistics, --page, --group or --engine; leave these out"
        )
    if options.out is not None:
        require_form(options.out)
    options.values = 0


def _shown(plan: Session[Any], released: Released) -> bytes:
    mean, count = plan.mean(released), len(released.counted)
    sentence = f"the sum of {count} clients was released"
    return json.dumps({"sentence": sentence, "count": count, "mean": [round(float(x), 6) for x in mean]}).encode()


def _write(options: argparse.Namespace, held: _Held, released: Released) -> str:
    """Write the mean, the statistics or a group's sum, and return its description; it is on disk when this returns."""
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
    """Write the sum; as long as there is no room for it, it is in this process alone, which tries again."""
    shown, said = _shown(cast("Session[Any]", held.plan), released) if options.page else b"", ""
    while options.out is not None:
        try:
            written = await asyncio.to_thread(_write, options, held, released)
        except OSError as error:
            if said != (said := str(error)):
                _LOG.warning("the sum is released and cannot be written (%s); make room, this tries again", said)
            await asyncio.sleep(_AGAIN_SECONDS)
        else:
            print(f"{options.out}: {written}", flush=True)
            break
    return shown


async def _serve(options: argparse.Namespace) -> None:
    from secagg.session.durable import require_own_folder
    from secagg.transport.listener import listening
    from secagg.transport.proof import Operators
    from secagg.transport.server import SumServer
    from secagg.transport.tls import ServerTls

    settings = _settings(options)
    if options.state is not None:
        require_own_folder(options.state)  # A storage may be within it, and is tried first.
        options.storage = options.storage or (str(options.state / "storage") if options.engine else None)
    own = own_credentials(options)
    tls = None if own is None else ServerTls(own, options.client_certs)
    if tls is None and options.client_certs is not None:
        raise InvalidParameters("--client-certs is about TLS; give --cert and --key as well")
    if tls is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, tls.renew)
    host, port = address("--listen", options.listen)
    token = options.metrics_token and options.metrics_token.read_text(errors="replace").strip()
    operators = Operators(token, is_behind_proxy=options.behind_proxy)
    with ExitStack() as resources:
        workers = resources.enter_context(workers_for(find(options.protocol), options, Telling()))
        sums = _Sum(options, settings, resources, workers)
        held = sums.held()
        limits = _limits(options, held.description)
        if options.out is not None:
            writable(options.out)
        server = SumServer(limits=limits, admission=held.admission, store=sums.store, operators=operators)
        workers.metrics = server.metrics
        app = _with_page(server.app, options)
        async with listening(app, host, port, tls=tls, limits=limits, is_behind_proxy=options.behind_proxy) as listened:
            print(
                f"listening at {host}:{listened}, session {held.description.session}, {held.description.mode}",
                flush=True,
            )
            if held.description.mode != ACTIVE:
                _LOG.warning("%s; --set roster=FILE has them trust certified keys", TRUST[False])
            if not settings.tolerated_dropouts(clients := len(sums.invited)):
                _LOG.warning("all %d clients are needed for a sum; invite more, so that some may be lost", clients)
            try:
                if held.session is None:
                    server.recall(held.description, held.ending)
                    print(f"the process before this one wrote {options.out}: {held.ending}", flush=True)
                elif options.page:
                    await _follow(options, server, sums, held)
                else:
                    await server.run(
                        held.session, held.description, number=held.number, keep=partial(_keep, options, held)
                    )
                # From here on a signal only cuts short what clients are told.
                options.is_written = True
            finally:
                await server.told()


async def _follow(options: argparse.Namespace, server: SumServer, sums: _Sum, held: _Held) -> None:
    """Hold one session after another until a signal; one that ends without a sum ends no other."""
    while held.session is not None:
        try:
            keep = partial(_keep, options, held)
            await server.run(held.session, held.description, keep=keep, admission=held.admission)
        except (SecAggError, ConnectionError) as error:
            _LOG.warning("a session ended without a sum: %s", str(error))
        held = await sums.next(held.description.round_number + 1)


def _with_page(app: Any, options: argparse.Namespace) -> Any:  # noqa: ANN401 -- ASGI applications
    from secagg.transport.page import CrossOrigin, OwnHost, Paged

    app = Paged(app) if options.page else app
    app = CrossOrigin(app, options.allow_origin) if options.allow_origin else app
    return app if options.cert or options.behind_proxy else OwnHost(app)


def _settings(options: argparse.Namespace) -> SecAggSettings:
    from secagg.platforms.settings import ENCLAVE, PREFIX, SecAggSettings

    given = {PREFIX + name.replace("_", "-"): value for name, value in assigned(options.set, SecAggSettings).items()}
    alike: dict[str, Any] = {f"{PREFIX}protocol": options.protocol}
    parts, idle = {""}, tuple[str, ...]()
    if options.model is None:
        alike[f"{PREFIX}weighting"] = "uniform"
        why = "only --model has noise, and --clip, --bits and --values say how updates are encoded"
    else:
        alike |= {} if options.clip is None else {f"{PREFIX}clip": options.clip}
        parts, idle, why = {"", "updates"}, (*_OF_ROUNDS, "clip"), "--clip cuts changes, and one sum has no rounds"
    if twice := sorted((alike.keys() - {f"{PREFIX}clip"}) & given.keys()):
        raise InvalidParameters(
            f"--set cannot change {twice[0].removeprefix(PREFIX)}: --protocol chooses the protocol, and only clients "
            "of --model weigh by their examples"
        )
    used = {
        name.replace("_", "-"): each.option.part in parts and name not in idle
        for name, each in declared(SecAggSettings).items()
    }
    known = sorted(name for name, is_used in used.items() if is_used and PREFIX + name not in alike)
    if strange := [name for key in given if (name := key.removeprefix(PREFIX)) not in known]:
        name = strange[0]
        raise InvalidParameters(
            f"--set {name} would do nothing here: {why}; leave it out"
            if name in used
            else f"--set {name} is no setting of `secagg serve`; {suggestion(name, known)}"
        )
    if f"{PREFIX}max-norm" in given and (options.protocol != ENCLAVE or options.declared is not None):
        raise InvalidParameters(
            f"--set max-norm bounds updates that an enclave sees, and --protocol {options.protocol} or --statistics "
            "has none: take --protocol enclave and --values, or leave it out"
        )
    settings = SecAggSettings.from_run_config({**given, **alike})
    if settings.is_calibrated or settings.custom or settings.turns > 1:
        raise InvalidParameters(
            "--set compression takes fixed-point, pruning-0.9 and the like, or peak here, and --set tensors no turns: "
            "what scales and turns follow from is learned in earlier rounds, which one sum does not have"
        )
    if options.declared is not None:
        from secagg.analytics.on_platforms import settings_of

        settings = settings_of(settings, options.declared)
    if options.page and settings.suite not in {None, "classic"}:
        raise InvalidParameters(
            "the page speaks suite classic: WebCrypto has ML-KEM in few browsers; leave --set suite out, or --page"
        )
    return settings


def _limits(options: argparse.Namespace, description: SessionDescription) -> WireLimits:
    from secagg.session.run import Limits
    from secagg.transport.description import BACK_SECONDS, WireLimits

    return WireLimits(
        stages=Limits(
            exchange=options.exchange_seconds,
            training=options.training_seconds,
            patience=options.patience,
            training_patience=options.patience,
            least=BACK_SECONDS,
        ),
        answer_bytes=description.answer_bytes,
        memory=options.memory << 20,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Session of a server: opened now, or left by an earlier process."""

    session: ServerSession | None
    """None where its sum is written, and clients are only to be told."""
    description: SessionDescription
    plan: Session[Any] | Plan | RoundTask
    admission: Admission
    number: int = 0
    """Number of the stage that is open."""
    ending: str = ""


class _Sum:
    """The sum that the options ask for, and how a session of it is opened or resumed."""

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
        """Invite who is on the roster, or on one that an earlier process kept, and write down what they are told."""
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
        """Read the roster again, and open another session; wait until clients suffice for one."""
        said = ""
        while True:
            try:
                self._invite()
                return self.held(least)
            except (InvalidParameters, CapacityExceeded) as error:
                if said != (said := str(error)):
                    _LOG.warning("no session can begin: %s; the roster is read again every second", said)
                await asyncio.sleep(_AGAIN_SECONDS)

    def held(self, least: int = 0) -> _Held:
        """Resume the session of the store, or open another one, whose round is not below ``least``."""
        from secagg.transport.description import SessionDescription

        if self.store is None or (kept := self.store.get()) is None:
            return self._begun(least)
        if self.store.roster.exists():  # The authority's may have grown since the session began.
            self._invite(self.store.roster)
        description = SessionDescription.decode(kept.description)
        if kept.ending and self._is_about(description):
            # The sum is written, and its clients may not have been told.
            return self._held_for(description, None, ending=kept.ending.decode())
        if not kept.ending and self._can_go_on(kept):
            return self._gone_on(description, kept)
        _LOG.warning("the earlier session is over, or cannot be resumed; this is a new one")
        self._invite()
        return self._begun()

    def _can_go_on(self, kept: ServerRecord) -> bool:
        """Whether the session outlived its process; it is refused to a server that adds its uploads in another way."""
        is_spread, by_workers = self._spread.goes_on, self.options.engine is not None
        if (is_spread and not by_workers) or (kept.snapshot and by_workers):
            who, how = ("workers add", "resume with") if is_spread else ("its server adds", "leave out")
            raise InvalidParameters(
                f"{self.options.state} keeps a session whose uploads {who}; {how} --engine, or name another --state"
            )
        return bool(kept.snapshot) or is_spread

    def _gone_on(self, description: SessionDescription, kept: ServerRecord) -> _Held:
        if not self._is_about(description):
            raise InvalidParameters(
                f"{self.options.state} keeps a session of {description.protocol} about {description.task!r}, round "
                f"{description.round_number}, of other arguments; give the same ones again, or name another --state"
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
        """Return the session of a session description; names that were claimed stay with who claimed them."""
        from secagg.transport.proof import Certified, FirstCome

        plan = self._plan_in(description)
        if self.roster is not None:
            admission: Admission = Certified(self.roster.authority, self.roster.certificates)
        else:
            claims = {} if self.store is None else self.store.claims(description.session)
            admission = FirstCome(self.invited, description.session, claims)
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
        )
        if (length := len(description.encode())) > DESCRIPTION_BYTES:
            raise InvalidParameters(
                f"clients read descriptions of at most {DESCRIPTION_BYTES:,} bytes, and this one has {length:,}, some "
                "for each tensor: name fewer by --set tensors, or join some of them"
            )
        if self.store is not None and self.options.engine is not None:
            session = self._spread.opened(partial(self._opened, plan, subject), begins=True)
        else:
            self.workers.opened(session := self._opened(plan, subject))
        return self._held_for(description, session)

    def _planned(self, number: int) -> Session[Any] | Plan | RoundTask:
        """Return how updates of a round are encoded, and put what follows from a model into the terms."""
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
        """Return how long an answer may be: with room for every protocol's shares as far as memory has that."""
        from secagg.transport.description import COPIES

        base = _LEAST_ANSWER + _PER_CLIENT * len(self.invited)
        most: int = (self.options.memory << 20) // COPIES
        if (least := base + packed) > most:
            raise InvalidParameters(
                f"an update of this size travels in up to {least:,} bytes, which are held "
                f"twice while they are read; give --memory {1 + (COPIES * least >> 20)} or more (MiB)"
            )
        return min(base + _SHARES * packed, most)

    def _is_about(self, description: SessionDescription) -> bool:
        options, number = self.options, description.round_number
        given = (options.protocol, options.task, number if options.round is None else options.round, self._mode)
        self._planned(number)
        # Those of a model hold a seed, which the session keeps.
        terms, own = ({**each, "parameters": None} for each in (description.terms, self.terms))
        return (description.protocol, description.task, number, description.mode, terms) == (*given, own)

    @property
    def _mode(self) -> str:
        from secagg.platforms.settings import LIGHT_SECAGG

        if self.options.protocol == "pairwise":
            return str(self.settings.trust)
        # LightSecAgg is for a server that follows the protocol, also where clients are certified.
        return ACTIVE if self.roster and self.options.protocol != LIGHT_SECAGG else "semi_honest"

    @property
    def _spread(self) -> SpreadInState:
        store = self.store
        if store is None:
            raise InternalError("a sum that is kept stands in the folder of a store")
        return SpreadInState(
            self.options.state / "sum", self.workers, lambda: (kept := store.get()) is not None and not kept.ending
        )

    def _session_of(self, stored: bytes) -> ServerSession:
        from secagg.crypto.secret import Secret

        if (restore := find(self.options.protocol).restore) is None:
            raise InvalidParameters(f"{self.options.state} keeps a session of another version; name another --state")
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
    claim(held, f"{folder} is in use; one server at a time resumes its session")
    return store
