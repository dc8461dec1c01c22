"""``secagg contribute``: one update for the sum that a server holds."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from secagg.errors import InvalidParameters, Reason

from .shared import (
    ACTIVE,
    TRUST,
    assigned,
    max_norms_in,
    own_credentials,
    plan_for,
    plan_of,
    running,
    stopped,
    subject_of,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from secagg.crypto.secret import Secret
    from secagg.errors import Fault
    from secagg.identifiers import ClientId
    from secagg.platforms.client_node import ClientNode
    from secagg.session.identities import ClientIdentity
    from secagg.session.ledger import SpentUpdates
    from secagg.session.roles import ClientSession, LazyUpdate, Member, Subject
    from secagg.transport.client import Outcome
    from secagg.transport.description import SessionDescription

    _UpdateFor = Callable[[SessionDescription, SpentUpdates, Secret | None], tuple[Subject, LazyUpdate]]

_UNPLANNED: Final = {"noise", "norm", "epsilon", "delta", "identity"}
"""Settings that this command cannot encode, and those that have an option of their own."""


def run_contribute(options: argparse.Namespace) -> int:
    """Add one update, and return the exit status."""
    try:
        outcome = running(lambda: _contribute(options), options.log_level)
    except SystemExit:
        return stopped()
    print(outcome.sentence)
    return 0 if outcome.is_released else 1


async def _contribute(options: argparse.Namespace) -> Outcome:
    from secagg.crypto.entropy import SystemCoins
    from secagg.identifiers import ClientId
    from secagg.platforms.plugs import NodeSide, plug_of
    from secagg.session.identities import load_identity
    from secagg.session.sealed_state import StateDirectory
    from secagg.transport.client import Patience, contribute
    from secagg.transport.proof import Prover
    from secagg.transport.tls import client_context

    identity = None if options.identity is None else load_identity(options.identity)
    floors, update_for = _offered(options, identity)
    coins, states = SystemCoins(), StateDirectory(options.state, coins=SystemCoins())
    client = ClientId(options.client) if identity is None else identity.client
    charges = floors.charges(identity, states, client, is_one_folder=True)
    side = NodeSide(settings=floors, client=client, certified=identity, states=states)

    def joined(description: SessionDescription, suspended: Secret | None) -> tuple[Subject, LazyUpdate]:
        floors.require_protocol(description.protocol)
        modes = floors.policy.modes
        if description.mode not in modes:
            advice = (
                "its clients have keys: give this client's with --identity FILE"
                if identity is None
                else "start the server with --set roster=FILE, or give --set modes=semi_honest if you trust it"
            )
            raise InvalidParameters(
                f"the server holds a session that is {description.mode}, and this client accepts {', '.join(modes)}; "
                + advice
            )
        # Before a name is claimed: nobody waits for a client that is refused here.
        if type(clients := description.terms.get("clients")) is int and clients < floors.policy.minimum_cohort:
            raise InvalidParameters(
                f"the sum is of {clients} clients, and this client accepts {floors.policy.minimum_cohort} or more; "
                "lower --set minimum_cohort, or take part in another sum",
                reason=Reason.BELOW_FLOOR,
            )
        if said[-1:] != [description.session]:
            said.append(description.session)
            print(
                f"session {description.session}: {description.protocol}, {description.mode}, "
                f"{TRUST[description.mode == ACTIVE]}",
                flush=True,
            )
        return update_for(description, charges, suspended)

    def join(description: SessionDescription, suspended: Secret | None) -> ClientSession:
        subject, update = joined(description, suspended)

        def begin(message: bytes) -> ClientSession:
            # A plug looks at the first message; the member that it makes may then keep a suspended state.
            if not members:
                first = message if suspended is None else b""
                plug = plug_of(description.protocol, is_suspended=False)
                norms = max_norms_in(description.protocol, description.terms)
                members.append(plug.member(replace(side, invitation=first, max_norms=norms)))
            return members[0].join(subject, update, suspended)

        return _PluggedSession(client, begin)

    members: list[Member] = []
    said: list[str] = []
    own = own_credentials(options)
    return await contribute(
        options.url,
        join,
        prover=Prover(client, coins, None if identity is None else identity.signing_key),
        tls=None if own is None and options.server_cert is None else client_context(options.server_cert, own),
        states=states,
        patience=Patience(lost=options.patience),
    )


def _offered(options: argparse.Namespace, identity: ClientIdentity | None) -> tuple[ClientNode, _UpdateFor]:
    """Return this client's node, and what makes its update for a session description: from values, or from people."""
    # A client with a key trusts its authority, and not the server.
    usual = {
        "protocols": (options.protocol,),
        "modes": "semi_honest" if options.identity is None else "active",
    }
    if options.statistics is not None:
        return _statistics(options, usual, identity)
    values = _values(options.update)
    return _node(usual, options.set, _UNPLANNED), partial(_update_of, values, options.task)


def _update_of(
    values: NDArray[np.float64],
    task: str,
    description: SessionDescription,
    charges: SpentUpdates,
    suspended: Secret | None,
) -> tuple[Subject, LazyUpdate]:
    from secagg.crypto.entropy import SystemCoins
    from secagg.crypto.labels import Label, bind
    from secagg.session.ledger import NO_MODEL, Spent
    from secagg.session.roles import LazyUpdate, Update

    plan, coins = plan_of(description.protocol, description.terms), SystemCoins()
    if description.task != task or values.shape != (description.terms["values"],):
        raise InvalidParameters(
            f"the server sums {description.terms['values']} values of {description.task!r}; this client has an array "
            f"of shape {values.shape} for {task!r}; name another --update or --task, or another server"
        )
    subject = subject_of(plan, description.task, description.round_number, description.terms)

    # A server that changes a bound from sum to sum bisects what it cuts.
    bounds = {name: repr(description.terms.get(name, 0.0)) for name in ("clip", "max_norm")}
    charges.require_kept(subject.task, bounds)

    # The file was there before any server was asked, so it may be known by its values.
    digest = hashlib.sha256(bind(Label.SPENT_VALUES, values.tobytes())).digest()
    spent, model = Spent(subject.task, subject.round_number, update=digest), subject.model_digest or NO_MODEL
    if suspended is None:
        charges.require_open(spent)  # Before a name is claimed: nobody waits for an update that is refused later.

    def charge() -> None:
        charges.keep(subject.task, bounds)
        charges.charge(spent)

    late = LazyUpdate(
        lambda: Update(plan.encode(values, coins), model), model, charge=charge, together=charges.transaction
    )
    return subject, late


def _statistics(
    options: argparse.Namespace, usual: Mapping[str, Any], identity: ClientIdentity | None
) -> tuple[ClientNode, _UpdateFor]:
    from secagg.analytics import Declaration, read_site
    from secagg.analytics.on_platforms import ONCE, Answering

    if options.data is None:
        raise InvalidParameters("--statistics counts people: name their file with --data")
    site = read_site(Declaration.read(options.statistics), options.data, options.data_version)
    usual = {**usual, "attempts": ONCE.attempts}
    answering = Answering(site, _node(usual, options.set, {"norm", "identity"}))

    def update_for(
        description: SessionDescription, charges: SpentUpdates, suspended: Secret | None
    ) -> tuple[Subject, LazyUpdate]:
        plan = plan_for(site.declaration, description.protocol, description.terms)
        if description.task != options.task:
            raise InvalidParameters(f"the server asks for {description.task!r}, and this site answers {options.task!r}")
        subject = subject_of(plan, description.task, description.round_number, description.terms)
        return subject, answering.late(
            charges, description.task, description.round_number, identity, is_new=suspended is None
        )

    return answering.floors, update_for


def _values(path: Path) -> NDArray[np.float64]:
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            loaded.close()
            raise InvalidParameters(f"{path} holds several arrays; write one with numpy.save")
        return cast("NDArray[Any]", loaded).astype(np.float64, casting="same_kind")
    except OSError as error:
        raise InvalidParameters(f"{path} cannot be read ({error.strerror}); name a file of numpy.save") from None
    except (EOFError, TypeError, ValueError) as error:
        raise InvalidParameters(f"{path} holds no array of numbers ({error}); write one with numpy.save") from None


class _PluggedSession:
    """A client's session, begun by its first message."""

    def __init__(self, client: ClientId, begin: Callable[[bytes], ClientSession]) -> None:
        self.client, self._begin = client, begin
        self._session: ClientSession | None = None

    @property
    def faults(self) -> tuple[Fault, ...]:
        return () if self._session is None else self._session.faults

    def answer(self, message: bytes) -> bytes:
        if self._session is None:
            self._session = self._begin(message)
        return self._session.answer(message)

    def suspend(self) -> Secret | None:
        return None if self._session is None else self._session.suspend()

    def abort(self) -> None:
        if self._session is not None:
            self._session.abort()


def _node(usual: Mapping[str, Any], assignments: Iterable[str], others: Collection[str]) -> ClientNode:
    """Return this client with the values of ``--set`` in place of the usual ones."""
    from secagg.options import suggestion
    from secagg.platforms.client_node import RULES, ClientNode
    from secagg.session.client_policy import RULES as LIMITS
    from secagg.session.client_policy import ClientPolicy

    given = assigned(assignments, ClientNode, ClientPolicy)
    known = {*RULES, *LIMITS} - {*others, "authority", "server_keys"}
    if strange := sorted(given.keys() - known):
        raise InvalidParameters(
            f"--set {strange[0]} is not an option of a client; {suggestion(strange[0], sorted(known))}"
        )
    return ClientNode.of({**usual, **given})
