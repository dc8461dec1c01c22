"""A client's part in a round: what its training returned as an update, and the messages that it answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, decode_parameters
from secagg.compression.model_update.summed_values import (
    METRICS,
    TENSOR,
    UPDATE,
    Arrays,
    clipped_share,
    differences,
    integer_bound,
    model_digest,
    rounded_at_random,
    steps_in,
    with_joined,
    with_told,
    with_votes,
)
from secagg.compression.outside import Factory, outside_factory
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.roles import ClientSession, LateUpdate, Member, Update
from secagg.session.sealed_state import StateDirectory

from . import LOG
from .floors import NodeSettings
from .keys import ClientIdentity
from .plugs import NodeSide, floors_of, plug_of
from .round_task import Record, Terms, record_of
from .schemes import COARSE, FINER

# --- A trained update -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    """Return value of an app's function, as its platform has it."""

    models: Sequence[Arrays]
    """One, where a model was asked for."""
    number: Callable[[str], float | int | None]
    reported: Sequence[str] = ()
    is_difference: bool = False
    """Whether the model is the difference to the one that was sent."""


@dataclass(frozen=True, slots=True)
class Training:
    """One call of an app's training or evaluation, whose result is encoded and goes nowhere else."""

    terms: Terms
    update: ModelUpdate
    charges: SpentUpdates
    sent: Arrays
    train: Callable[[], Trained]

    @property
    def model_digest(self) -> bytes:
        return model_digest(self.sent)

    @property
    def _summed(self) -> list[str]:
        """The names of the tensors that are summed; none where only metrics are."""
        alone = [name.removeprefix(TENSOR) for name in self.update.names if name.startswith(TENSOR)]
        return [*(self.terms.joined if UPDATE in self.update.names else ()), *alone]

    @property
    def late(self) -> LateUpdate:
        """The update, for a session; what training returns, or that it fails, is nothing that the server hears of."""
        return LateUpdate(self.made, self.model_digest, charge=self.charge, together=self.charges.transaction)

    def charge(self) -> None:
        model = self.model_digest
        if not self._summed:
            # A model may be trained from and evaluated.
            model = hashlib.sha256(bind(Label.PLATFORM_EVALUATION, model)).digest()
        self.charges.charge(Spent(self.terms.task.encode(), self.terms.round_number, model))

    def made(self) -> Update:
        """Train, and return the encoded update; ``LateUpdate`` sends zeros where this raises."""
        trained, summed = self.train(), self._summed
        values = self._differences(trained, summed) if summed else dict[str, npt.NDArray[Any]]()
        share = clipped_share(self.update, values)
        values = with_told(self.update, with_joined(values, self.terms.joined), self.sent)
        values = with_votes(self.update, values, self.sent, self.terms.joined, self.terms.lengths)
        values[METRICS] = np.array([share, *self._metrics(trained)], dtype=np.float64)
        if share:
            LOG.warning("%.3g of this update's values are beyond their range, and were cut off", share)
        if (steps := steps_in(self.update, values)) < COARSE:
            LOG.warning("this update's changes are about %.2g steps, and the rest is noise; %s", steps, FINER)
        coins = SystemCoins()
        payload = self.update.encode(rounded_at_random(self.update, values, coins), coins)
        return Update(payload, self.model_digest, self._weight(trained))

    def _differences(self, trained: Trained, summed: list[str]) -> dict[str, npt.NDArray[Any]]:
        if missing := [name for name in summed if name not in self.sent]:
            raise InvalidParameters(f"the model that was sent lacks {missing[:4]}, which the server wants a sum of")
        if len(trained.models) != 1:
            raise InvalidParameters(
                f"training returned {len(trained.models)} array records; return the trained model as one"
            )
        before = self.sent
        if trained.is_difference:
            before = {name: np.zeros_like(array) for name, array in self.sent.items()}
        return differences(before, trained.models[0], integer_bound(self.update, self.sent), summed)

    def _metrics(self, trained: Trained) -> list[float]:
        if unnamed := sorted({*trained.reported} - {*self.terms.metrics, self.terms.weighted_by}):
            LOG.warning(
                "%s stay at this client: the server's secagg-metrics, or secagg-evaluation-metrics, does not name them",
                ", ".join(unnamed),
            )
        reported = list[float]()
        schemes = [tensor.scheme for tensor in self.update.tensors if tensor.name == METRICS]
        bound = schemes[0].clip if isinstance(schemes[0], FixedPoint) else inf
        for name in self.terms.metrics:
            value = trained.number(name)
            if value is None:
                raise InvalidParameters(
                    f"the app reported no number {name!r}, which secagg-metrics or secagg-evaluation-metrics asks for; "
                    "report it, or change the key"
                )
            if abs(value) > bound:
                LOG.warning(
                    "the metric %r is %g here and counts as the bound of %g; the server's secagg-metric-bound can be "
                    "raised",
                    name,
                    value,
                    bound,
                )
            reported.append(float(value))
        return reported

    def _weight(self, trained: Trained) -> int:
        terms = self.terms
        if terms.weighting == "uniform":
            return 1
        examples = trained.number(terms.weighted_by)
        if examples is None or np.isnan(examples):
            LOG.warning("the app reports no number %r, and its update weighs 1", terms.weighted_by)
            return 1
        units = examples / max(1, terms.weight_unit)
        weight = round(min(max(1.0, units), terms.maximum_weight))
        if examples < 1 or units > terms.maximum_weight:
            LOG.warning(
                "%g examples are not a weight of 1 to %d; the update weighs %d", examples, terms.maximum_weight, weight
            )
        return weight


# --- A client's round -------------------------------------------------------------------------------------------------


def begun_app(floors: Mapping[str, Any], scheme: str | None) -> tuple[NodeSettings, dict[str, Factory]]:
    """Return the floors of an app, and the scheme from outside that it brings."""
    known = [item.name for item in fields(NodeSettings)]
    if unknown := [name for name in floors if name not in known]:
        raise InvalidParameters(f"{unknown[0]} is not a floor of a client; there are {', '.join(known)}")
    given: dict[str, Any] = {
        name: tuple(cast("Iterable[object]", value)) if isinstance(value, list) else value
        for name, value in floors.items()
    }
    settings = NodeSettings(**given)
    floors_of(settings)
    return settings, {} if scheme is None else {scheme: outside_factory(scheme)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a platform: the floors of its app, raised by its operator, and where it keeps what must last."""

    settings: NodeSettings
    config: Mapping[str, Any]
    client: ClientId
    """The client where clients have no keys."""
    run: str
    """The platform's name of its run; a server may say more, such as the number of its own process."""
    states: StateDirectory
    outside: Mapping[str, Factory]
    judge: object | None = None

    def begun(self, terms: Terms) -> NodeRound:
        """Look at the terms of a session, and refuse those below a floor or of another run."""
        if not f"{terms.task} ".startswith(f"{self.run} "):
            raise InvalidParameters(
                f"the server says {terms.task!r}, and this is {self.run!r}", reason=Reason.BELOW_FLOOR
            )
        self.settings.require_protocol(terms.protocol)
        update = decode_parameters(terms.parameters, outside=self.outside)
        identity = self.settings.load_identity(self.config) if terms.is_certified else None
        charges = self.settings.charges(identity, self.states, self.client)
        charges.keep(terms.task.encode(), bounds_of(terms, update))
        return NodeRound(node=self, terms=terms, update=update, identity=identity, charges=charges)


def bounds_of(terms: Terms, update: ModelUpdate) -> dict[str, str]:
    """Return the bounds by which updates are cut and weighed, which stay the same in all of a task."""
    clips = {each.name: each.scheme.clip for each in update.tensors if isinstance(each.scheme, FixedPoint)}
    return {
        **{f"the clip of {name}": repr(clip) for name, clip in clips.items()},
        "the number of examples that count fully": f"{terms.maximum_weight * max(1, terms.weight_unit)}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRound:
    """A node in one session."""

    node: Node
    terms: Terms
    update: ModelUpdate
    identity: ClientIdentity | None
    charges: SpentUpdates

    def require_open(self) -> None:
        self.charges.require_open(Spent(self.terms.task.encode(), self.terms.round_number))

    def member(self, invitation: bytes) -> Member:
        """Return the client; the invitation is empty where a session is resumed."""
        node = self.node
        side = NodeSide(
            settings=node.settings,
            client=node.client if self.identity is None else self.identity.client,
            certified=self.identity,
            states=node.states,
            invitation=invitation,
            judge=node.judge,
            noise=node.settings.noise_for(self.terms.protocol, self.update),
        )
        return plug_of(self.terms.protocol).member(side)

    def answer(self, session: ClientSession, message: bytes) -> Record:
        """Return the record that answers a message; a client with a key signs it, so that no other counts."""
        answer = session.answer(message)
        for fault in session.faults:
            LOG.warning("%s: %s", session.client, fault)
        LOG.debug("%s: answered a message of round %d", session.client, self.terms.round_number)
        key = None if self.identity is None else self.identity.signing_key
        signature = b"" if key is None else key.sign(Label.PLATFORM_ANSWER, self.terms.digest, answer)
        return record_of(answer, session.client, signature=signature)
