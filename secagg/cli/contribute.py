"""``secagg contribute``: adds one update to a server's sum."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
    terms_of_model,
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

    _UpdateFor = Callable[[SessionDescription, SpentUpdates, Secret | None], "_Offer"]


@dataclass(frozen=True, slots=True)
class _Offer:
    """A client's update for a session, with its required noise and norms in the form of ``NodeSide``."""

    subject: Subject
    update: LazyUpdate
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])


_UNPLANNED: Final = {"noise", "norm", "epsilon", "delta", "identity"}
"""Settings that do not apply to this command, or that have a separate option."""


def run_contribute(options: argparse.Namespace) -> int:
    """Add one update, and return the exit status."""
    try:
        outcome = running(lambda: _contribute(options), options)
    except SystemExit:
        return stopped()
    # Use one write, so that lines of several clients in one terminal do not mix.
    sys.stdout.write(outcome.sentence + "\n")
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
    node, update_for = _offered(options, identity)
    coins, states = SystemCoins(), StateDirectory(options.state, coins=SystemCoins())
    client = ClientId(options.client) if identity is None else identity.client
    charges = node.charges(identity, states, client, is_one_folder=True)
    side = NodeSide(settings=node, client=client, certified=identity, states=states)

    def joined(description: SessionDescription, suspended: Secret | None) -> _Offer:
        node.require_protocol(description.protocol)
        modes = node.policy.modes
        if description.mode not in modes:
            advice = (
                "its clients have keys: give this client's key with --identity FILE"
                if identity is None
                else "start the server with --set roster=FILE or, if you trust it, use --set modes=semi_honest here"
            )
            raise InvalidParameters(
                f"the server's session is in {description.mode} mode, but this client only accepts "
                f"{', '.join(modes)}; " + advice
            )
        # Check this before the client claims a name, so that nobody waits for it.
        if type(clients := description.terms.get("clients")) is int and clients < node.policy.minimum_cohort:
            raise InvalidParameters(
                f"the sum has {clients} clients, but this client requires at least {node.policy.minimum_cohort}; "
                "lower --set minimum_cohort, or join another sum",
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
        offer = joined(description, suspended)

        def begin(message: bytes) -> ClientSession:
            # A plug needs the first message; the member that it makes can then store a suspended state.
            if not members:
                first = message if suspended is None else b""
                plug = plug_of(description.protocol, is_suspended=False)
                members.append(plug.member(replace(side, invitation=first, **offer.limits)))
            return members[0].join(offer.subject, offer.update, suspended)

        return _PluggedSession(client, begin)

    members: list[Member] = []
    said: list[str] = []
    own = own_credentials(options)
    return await contribute(
        options.url,
        join,
        prover=Prover(client, coins, None if identity is None else identity.signing_key),
        task=options.task,
        tls=None if own is None and options.server_cert is None else client_context(options.server_cert, own),
        states=states,
        patience=Patience(lost=options.patience),
    )


def _offered(options: argparse.Namespace, identity: ClientIdentity | None) -> tuple[ClientNode, _UpdateFor]:
    """Return this client's node, and a function that makes its update for a session description."""
    # A client with a key trusts its authority, not the server.
    usual = {"protocols": (options.protocol,), "modes": "semi_honest" if options.identity is None else "active"}
    if options.model is None and (options.base or options.examples):
        raise InvalidParameters("--base and --examples only apply with --model; add it, or leave them out")
    if options.statistics is not None:
        return _statistics(options, usual, identity)
    if options.model is not None:
        return _model(options, usual)
    values = _values(options.update)
    return _node(usual, options.set, _UNPLANNED), partial(_update_of, values, options.task)


def _update_of(
    values: NDArray[np.float64],
    task: str,
    description: SessionDescription,
    charges: SpentUpdates,
    suspended: Secret | None,
) -> _Offer:
    from secagg.crypto.entropy import SystemCoins
    from secagg.crypto.labels import Label, bind
    from secagg.session.ledger import NO_MODEL, Spent
    from secagg.session.roles import LazyUpdate, Update

    if "values" not in description.terms:
        raise InvalidParameters(
            "the server sums a model or statistics, not an array; ask its operator, and use --model or --statistics"
        )
    plan, coins = plan_of(description.protocol, description.terms), SystemCoins()
    if description.task != task or values.shape != (description.terms["values"],):
        raise InvalidParameters(
            f"the server sums {description.terms['values']} values for task {description.task!r}, but this client "
            f"has an array of shape {values.shape} for {task!r}; change --update, --task or the server"
        )
    subject = subject_of(plan, description.task, description.round_number, description.terms)

    # A server that varies a bound from sum to sum could bisect the clipped values.
    bounds = {name: repr(description.terms.get(name, 0.0)) for name in ("clip", "max_norm")}
    charges.require_kept(subject.task, bounds)

    # The file existed before any server was contacted, so its values may identify it.
    digest = hashlib.sha256(bind(Label.SPENT_VALUES, values.tobytes())).digest()
    spent, model = Spent(subject.task, subject.round_number, update=digest), subject.model_digest or NO_MODEL
    if suspended is None:
        charges.require_open(spent)  # Check before the client claims a name: nobody should wait for a refused update.

    def charge() -> None:
        charges.keep(subject.task, bounds)
        charges.charge(spent)

    late = LazyUpdate(
        lambda: Update(plan.encode(values, coins), model), model, charge=charge, together=charges.transaction
    )
    return _Offer(subject, late, {"max_norms": max_norms_in(description.protocol, description.terms)})


def _model(options: argparse.Namespace, usual: Mapping[str, Any]) -> tuple[ClientNode, _UpdateFor]:
    import numpy as np

    from secagg.compression.model_update import decode_parameters
    from secagg.compression.model_update.arrays import model_digest
    from secagg.crypto.labels import Label, bind
    from secagg.platforms.client_round import Trained, Training, bounds_of, require_told_bounds
    from secagg.platforms.model_files import read_model
    from secagg.platforms.schemes import norms_in_steps

    trained = read_model(options.model)
    sent = {name: np.zeros_like(each) for name, each in trained.items()}
    if options.base is not None:
        sent = read_model(options.base)
    if options.examples is not None and options.examples < 1:
        raise InvalidParameters(f"--examples (training examples) must be at least 1; got {options.examples}")
    node = _node(usual, options.set, {"identity"})
    content = hashlib.sha256(bind(Label.SPENT_VALUES, model_digest(trained))).digest()

    def update_for(description: SessionDescription, charges: SpentUpdates, suspended: Secret | None) -> _Offer:
        terms = terms_of_model(description)
        if description.task != options.task:
            raise InvalidParameters(
                f"the server sums {description.task!r}, but this client only accepts {options.task!r}; change --task"
            )
        if description.terms["model"] != model_digest(sent).hex():
            raise InvalidParameters(
                "the server's model differs from --base; use the file that its operator gave to all clients"
                if options.base is not None
                else "the server sums changes of a model: set --base to the model before training. Without --base "
                "the file itself is summed, which requires a server's --model with the same tensors, all zeros"
            )
        if (noise := description.terms["noise"]) != [node.noise, node.norm]:
            raise InvalidParameters(
                f"the server plans noise and norm {noise}, but this client requires {[node.noise, node.norm]}; if "
                "you agreed on the server's values, set --set noise=... --set norm=...",
                reason=Reason.BELOW_FLOOR,
            )
        if terms.metrics:
            raise InvalidParameters("the server requests metrics, which this command cannot send; use another server")
        if terms.full > 1 and options.examples is None:
            raise InvalidParameters(
                f"the server weights clients by examples, {terms.full} of which count fully; set --examples N"
            )
        node.require_adapter(terms.adapter)
        update = decode_parameters(terms.parameters)
        require_told_bounds(terms, update)
        training = Training(
            terms=terms,
            update=update,
            charges=charges,
            sent=sent,
            train=lambda: Trained(models=[trained], number=lambda _: options.examples),
            content=content,
        )
        training.require_form(trained)
        charges.require_kept(terms.task.encode(), bounds_of(terms, update))
        if suspended is None:
            charges.require_open(training.spent)
        limits = {
            "noise": node.noise_for(terms.protocol, update),
            "max_norms": norms_in_steps(terms.max_norm, update)[0],
        }
        return _Offer(terms.subject(update, training.model_digest), training.late, limits)

    return node, update_for


def _statistics(
    options: argparse.Namespace, usual: Mapping[str, Any], identity: ClientIdentity | None
) -> tuple[ClientNode, _UpdateFor]:
    from secagg.analytics import Declaration, read_site
    from secagg.analytics.on_platforms import ONCE, Answering

    if options.data is None:
        raise InvalidParameters("--statistics needs the people's data; set --data")
    site = read_site(Declaration.read(options.statistics), options.data, options.data_version)
    usual = {**usual, "attempts": ONCE.attempts}
    answering = Answering(site, _node(usual, options.set, {"norm", "identity"}))

    def update_for(description: SessionDescription, charges: SpentUpdates, suspended: Secret | None) -> _Offer:
        plan = plan_for(site.declaration, description.protocol, description.terms)
        if description.task != options.task:
            raise InvalidParameters(f"the server sums {description.task!r}, but this site answers {options.task!r}")
        subject = subject_of(plan, description.task, description.round_number, description.terms)
        late = answering.late(charges, description.task, description.round_number, identity, is_new=suspended is None)
        return _Offer(subject, late)

    return answering.node, update_for


def _values(path: Path) -> NDArray[np.float64]:
    import numpy as np

    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            loaded.close()
            raise InvalidParameters(f"{path} contains several arrays; use --model, or write one with numpy.save")
        return cast("NDArray[Any]", loaded).astype(np.float64, casting="same_kind")
    except OSError as error:
        raise InvalidParameters(f"cannot read {path} ({error.strerror}); use a file written by numpy.save") from None
    except (EOFError, TypeError, ValueError) as error:
        raise InvalidParameters(f"{path} is not an array of numbers ({error}); write one with numpy.save") from None


class _PluggedSession:
    """A client's session, which its first message starts."""

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
    """Return this client's node; values of ``--set`` replace the defaults."""
    from secagg.options import suggestion
    from secagg.platforms.client_node import RULES, ClientNode
    from secagg.session.client_policy import RULES as LIMITS
    from secagg.session.client_policy import ClientPolicy

    given = assigned(assignments, ClientNode, ClientPolicy)
    known = {*RULES, *LIMITS} - {*others, "authority", "server_keys"}
    if strange := sorted(given.keys() - known):
        raise InvalidParameters(f"--set {strange[0]} is not a client setting; {suggestion(strange[0], sorted(known))}")
    return ClientNode.of({**usual, **given})
