"""``secagg serve``: one sum over HTTP, for clients that run ``secagg contribute``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from secagg.cli.figures import writable
from secagg.cli.spreading import Spreading, workers_for
from secagg.errors import InvalidParameters
from secagg.session.registry import find

from .groups import group_of, write_mean, write_sum
from .shared import address, assigned, now, own_credentials, plan_of, plug_for, running, stopped, subject_of

if TYPE_CHECKING:
    from secagg.crypto.entropy import Coins
    from secagg.identifiers import ClientId
    from secagg.platforms.keys.identities import Roster
    from secagg.platforms.settings import SecAggSettings
    from secagg.scale.resumed import ResumableSession
    from secagg.scale.spread import Figures
    from secagg.session.roles import Released, ServerSession, Subject
    from secagg.short.model_session import Session
    from secagg.transport.card import Card
    from secagg.transport.keeping import ServerStore
    from secagg.transport.proof import Admission

_LOG: Final = logging.getLogger("secagg")
_PROGRESS_SECONDS: Final = 10.0
_LEAST_ANSWER, _SHARES, _PER_CLIENT = 1 << 20, 16, 1 << 12
"""No answer is longer than these bytes, times the packed update, and for each client."""


def run_serve(options: argparse.Namespace) -> int:
    """Hold a sum, write its mean, and return the exit status."""
    options.is_written = False
    try:
        running(lambda: _serve(options))
    except SystemExit:
        return 0 if options.is_written else stopped()
    return 0


def _write(options: argparse.Namespace, held: _Held, released: Released) -> None:
    """Write the mean, or the sum of a group, and say so."""
    if options.group is None:
        write_mean(options.out, held.plan.mean(released))
        what = f"the mean of {len(released.counted)} clients' updates"
    else:
        write_sum(options.out, held.card, released)
        what = f"the sum of {len(released.counted)} clients of group {options.group}, for `secagg add`"
    options.is_written = True
    print(f"{options.out}: {what}", flush=True)


async def _serve(options: argparse.Namespace) -> None:
    from secagg.platforms.settings import PREFIX, SecAggSettings
    from secagg.scale.resumed import ResumableSession
    from secagg.session.durable import require_own_folder
    from secagg.session.patience import Limits
    from secagg.transport.card import BACK_SECONDS, WireLimits
    from secagg.transport.listener import allow_connections, listening
    from secagg.transport.server import SumServer
    from secagg.transport.tls import ServerTls

    given = {PREFIX + name.replace("_", "-"): value for name, value in assigned(options.set).items()}
    if options.protocol == "pairwise" and f"{PREFIX}roster" in given:
        # Who certified the clients meant them to believe certificates and not the server.
        given.setdefault(f"{PREFIX}mode", "active")
    alike = {f"{PREFIX}protocol": options.protocol, f"{PREFIX}weighting": "uniform"}
    if twice := sorted(alike.keys() & given.keys()):
        raise InvalidParameters(
            f"{twice[0]} is no matter of --set: --protocol names one, and all updates weigh the same"
        )
    settings = SecAggSettings.from_run_config({**given, **alike})
    if settings.noise:
        raise InvalidParameters(
            "`secagg serve` plans no noise: its rings have no room for any; leave noise out of --set"
        )
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
    with ExitStack() as resources:
        workers = resources.enter_context(workers_for(find(options.protocol), options, _Telling()))
        held = _Held.of(options, settings, resources, workers)
        limits = WireLimits(
            stages=Limits(
                exchange=options.exchange_seconds,
                training=options.training_seconds,
                patience=options.patience,
                training_patience=options.patience,
                least=BACK_SECONDS,
            ),
            answer_bytes=held.card.answer_bytes,
        )
        allow_connections(limits)
        writable(options.out)
        server = SumServer(limits=limits, admission=held.admission, store=held.store)
        workers.metrics = server.metrics
        async with listening(
            server.app, host, port, tls=tls, limits=limits, is_behind_proxy=options.behind_proxy
        ) as listened:
            print(f"listening at {host}:{listened}, session {held.card.session}", flush=True)
            try:
                released = await server.run(held.session, held.card, number=held.number)
                # Before clients are told: a signal while they are must not cost the sum.
                await asyncio.to_thread(_write, options, held, released)
            except asyncio.CancelledError:
                # Its workers are ended next, and what they are at fails.
                if isinstance(held.session, ResumableSession):
                    held.session.leave()
                raise
            finally:
                await server.told()


class _Telling:
    """Writes to the log how far workers are; ``/metrics`` has the same at any time."""

    def __init__(self) -> None:
        self._due, self._said = 0.0, ""

    def __call__(self, figures: Figures) -> None:
        from secagg.scale.telling import sentence

        said = sentence(figures)
        if said != self._said and (time.monotonic() >= self._due or not figures.jobs_left):
            self._due, self._said = time.monotonic() + _PROGRESS_SECONDS, said
            _LOG.info("workers: %s", said)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What a server holds: a session that was opened now, or one that a process before this one has left."""

    session: ServerSession
    card: Card
    plan: Session
    admission: Admission
    store: ServerStore | None
    number: int = 0

    @classmethod
    def of(
        cls, options: argparse.Namespace, settings: SecAggSettings, resources: ExitStack, workers: Spreading
    ) -> _Held:
        from secagg.crypto.entropy import SystemCoins
        from secagg.crypto.secret import Secret
        from secagg.platforms.keys.identities import load_roster
        from secagg.session.durable import erase
        from secagg.transport.card import Card, new_name
        from secagg.transport.proof import Certified, FirstCome

        from .journaled import JournaledSession, goes_on

        roster = load_roster(Path(settings.roster)) if settings.roster else None
        invited, roster, terms = group_of(options, roster)
        admission = FirstCome(invited) if roster is None else Certified(roster.authority, roster.certificates)
        folder: Path | None = options.state
        store = None if folder is None else _store_in(folder, resources)
        kept, restore = None if store is None else store.get(), find(options.protocol).restore
        about = partial(_opened, options.protocol, settings, invited, roster, resources, workers)
        # Of a session whose uploads others add a journal goes on; of another one, a snapshot.
        has_journal = workers.adding is not None and find(options.protocol).resumes
        journal = folder / "sum.journal" if folder is not None and has_journal else None
        if folder is not None and kept is not None:
            _require_engine(folder, is_spread=journal is not None, was_spread=not kept.snapshot)
        if kept is not None and (kept.snapshot or (journal is not None and goes_on(journal))):
            card = Card.decode(kept.card)
            same = (options.protocol, options.task, options.round or card.round_number, terms)
            if (card.protocol, card.task, card.round_number, card.terms) != same:
                raise InvalidParameters(
                    f"{options.state} keeps a session of {card.protocol} about {card.task!r}, round "
                    f"{card.round_number}, of other arguments; give the same ones again, or name another --state"
                )
            if roster is None:
                admission = FirstCome(invited, card.session, {claim.client: claim.digest for claim in kept.claims})
            plan = plan_of(card.protocol, card.terms)
            if store is not None and journal is not None:
                subject = subject_of(plan, options.task, card.round_number, card.terms)
                resumed = JournaledSession(journal, store, partial(about, subject))
                number = resumed.number
                return cls(session=resumed, card=card, plan=plan, admission=admission, store=store, number=number)
            if restore is None:
                raise InvalidParameters(f"{options.state} keeps a session of another version; name another --state")
            with Secret("server snapshot", kept.snapshot) as snapshot:
                session = restore(snapshot, invited)
            return cls(session=session, card=card, plan=plan, admission=admission, store=store, number=kept.stage)
        if kept is not None:
            _LOG.warning("the session of before cannot go on; this is another one")
        plan = plan_of(options.protocol, terms)
        number = int(time.time()) if options.round is None else options.round
        subject = subject_of(plan, options.task, number, terms)
        card = Card(
            session=new_name(SystemCoins()),
            protocol=options.protocol,
            task=options.task,
            round_number=number,
            answer_bytes=_LEAST_ANSWER + _SHARES * subject.layout.payload_bytes + _PER_CLIENT * len(invited),
            terms=terms,
        )
        if store is None or journal is None:
            session = about(subject)
        else:
            erase(journal)
            session = JournaledSession(journal, store, partial(about, subject))
        return cls(session=session, card=card, plan=plan, admission=admission, store=store)


def _store_in(folder: Path, resources: ExitStack) -> ServerStore:
    from secagg.session.durable import claim
    from secagg.transport.keeping import ServerStore

    store = ServerStore(folder)
    resources.callback(os.close, held := os.open(folder, os.O_RDONLY))
    claim(held, f"{folder} is in use; one server at a time goes on with its session")
    return store


def _require_engine(folder: Path, *, is_spread: bool, was_spread: bool) -> None:
    """Refuse to go on with a session by other means than those that it was begun with."""
    from .journaled import goes_on

    if is_spread and not was_spread:
        raise InvalidParameters(
            f"{folder} keeps a session whose server adds the uploads; go on without --engine, or name another --state"
        )
    if was_spread and not is_spread and goes_on(folder / "sum.journal"):
        raise InvalidParameters(
            f"{folder} keeps a session whose uploads workers add; go on with --engine, or name another --state"
        )


def _opened(  # noqa: PLR0913, PLR0917 -- what a plug is given
    protocol: str,
    settings: SecAggSettings,
    invited: frozenset[ClientId],
    roster: Roster | None,
    resources: ExitStack,
    workers: Spreading,
    subject: Subject,
    memory: ResumableSession | None = None,
    coins: Coins | None = None,
) -> Any:  # noqa: ANN401 -- a session, of a kind that the protocol knows
    from secagg.crypto.entropy import SystemCoins
    from secagg.platforms.plugs import ServerSide
    from secagg.privacy.client_noise import NO_NOISE

    side = ServerSide(
        settings=settings,
        subject=subject,
        population=len(invited),
        invited=invited,
        roster=roster,
        bounds=(None,) * len(subject.layout.segments),
        noise=NO_NOISE,
        coins=coins or SystemCoins(),
        clock=now,
        resources=resources,
        adding=workers.adding,
    )
    if memory is not None and workers.adding is not None:
        side = replace(side, adding=partial(workers.adding, memory=memory), through=memory.through)
    return plug_for(protocol).open(side)
