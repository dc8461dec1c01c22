"""A client's side of a round: its trained update, and its answers to messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import hypot, inf, isnan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from secagg.compression.custom import Factory, custom_factory
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import CalibrationSource, ModelUpdate, decode_parameters
from secagg.compression.model_update.arrays import METRICS, TENSOR, Arrays, differences, is_integer, model_digest
from secagg.compression.model_update.summed_values import (
    LENGTHS,
    TOLD,
    UPDATE,
    clipped_share,
    fixed_point,
    integer_bound,
    rounded_at_random,
    steps_in,
    with_joined,
    with_told,
    with_votes,
)
from secagg.compression.model_update.weighting import (
    COUNTS,
    clamped_examples,
    inmost,
    rounded_examples,
    warn_once,
    weighted,
)
from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.session.durable import create
from secagg.session.identities import ClientIdentity
from secagg.session.ledger import NO_UPDATE, Spent, SpentUpdates
from secagg.session.roles import ClientSession, LazyUpdate, Member, Update
from secagg.session.sealed_state import StateDirectory

from . import LOG
from .client_node import ClientNode
from .plugs import NodeSide, plug_of
from .schemes import COARSE, FINER, norms_in_steps
from .terms import NEWEST_FORM, Record, Terms, record_of, require_metrics

_NARROW = 2.0**-8
"""Twice the largest rounding error of bfloat16, relative to a value."""

# --- A trained update -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trained:
    """Return value of an app's function, in the platform's form."""

    models: Sequence[Arrays]
    """One model, if a model was requested."""
    number: Callable[[str], float | int | None]
    reported: Sequence[str] = ()
    is_difference: bool = False
    """Whether the model is the difference from the one that was sent."""


@dataclass(frozen=True, slots=True)
class Training:
    """One call of an app's training or evaluation; only its encoded result is sent."""

    terms: Terms
    update: ModelUpdate
    charges: SpentUpdates
    sent: Arrays
    train: Callable[[], Trained]
    content: bytes = NO_UPDATE
    """Digest of the update, if it existed before the session, as a file does."""

    @property
    def model_digest(self) -> bytes:
        return model_digest(self.sent)

    @property
    def _summed(self) -> list[str]:
        """Names of the tensors that are summed; none if only metrics are."""
        alone = [name.removeprefix(TENSOR) for name in self.update.names if name.startswith(TENSOR)]
        return [*(self.terms.joined if UPDATE in self.update.names else ()), *alone]

    @property
    def late(self) -> LazyUpdate:
        """The update of a session; the server learns neither training's result nor its failure."""
        return LazyUpdate(
            self.made, self.model_digest, charge=self.charge, together=self.charges.transaction, zero=self.zero
        )

    @property
    def spent(self) -> Spent:
        model = self.model_digest
        if not self._summed:
            # A model may be both trained and evaluated.
            model = hashlib.sha256(bind(Label.PLATFORM_EVALUATION, model)).digest()
        return Spent(self.terms.task.encode(), self.terms.round_number, model, self.content)

    def charge(self) -> None:
        # No earlier than this: otherwise an offer that this client refuses would lock it out of the task.
        self.charges.keep(self.terms.task.encode(), bounds_of(self.terms, self.update))
        self.charges.charge(self.spent)

    def require_form(self, trained: Arrays) -> None:
        """Refuse a model of other names or shapes early; this check does not depend on its values."""
        self._differences(Trained(models=[trained], number=lambda _: None), self._summed)

    def made(self) -> Update:
        """Train, and return the encoded update; ``LazyUpdate`` sends ``zero`` where this raises."""
        trained, summed = self.train(), self._summed
        values = self._differences(trained, summed) if summed else dict[str, npt.NDArray[Any]]()
        if self.terms.adapter and summed and (lost := self._lost(trained, {*summed})):
            sentence = f"training changed {lost[0]}, which this round does not sum, so its change is lost"
            warn_once(LOG, f"{sentence}; train what AdapterPlan.train_only returns, or use the method fedit")
        self._require_finite(values)
        if share := clipped_share(self.update, values):
            sentence = f"{100 * share:.3g} % of this update's values exceeded their range and were clipped"
            is_told = self.update.source is CalibrationSource.PREVIOUS_AGGREGATE
            advice = (
                "the next round's range follows this one's" if is_told else "the server's secagg-clip can be raised"
            )
            warn_once(LOG, f"{sentence}; {advice}")
        if (steps := steps_in(self.update, values)) < COARSE:
            warn_once(LOG, f"this update's changes are about {steps:.1g} steps, and the rest is noise; {FINER}")
        self._shorten(values)
        if metrics := self._metrics(trained):
            values[METRICS] = np.array(metrics, dtype=np.float64)
        return Update(self._encoded(values, self._examples(trained)), self.model_digest)

    def zero(self) -> Payload:
        """Return an encoded update of zeros with weight 0, for a failed training."""
        told = {METRICS, LENGTHS, COUNTS, *TOLD}
        shapes = {tensor.name: tensor.shape for tensor in self.update.tensors if tensor.name not in told}
        if shapes.pop(UPDATE, None):
            shapes |= {TENSOR + name: self.sent[name].shape for name in self.terms.joined}
        values = dict[str, npt.NDArray[Any]]()
        values |= {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        if self.terms.metrics:
            values[METRICS] = np.zeros(len(self.terms.metrics))
        return self._encoded(values, 0)

    def _encoded(self, values: dict[str, npt.NDArray[Any]], examples: int) -> Payload:
        """Encode changes, metrics and other parts of the update; clears the changes."""
        told = with_told(self.update, with_joined(values, self.terms.joined), self.sent)
        told = with_votes(self.update, told, self.sent, self.terms.joined, self.terms.lengths)
        values.clear()
        coins = SystemCoins()
        told = weighted(self.update.schemes, told, examples, coins)
        return self.update.encode(told, coins, partial(rounded_at_random, coins))

    def _shorten(self, values: dict[str, npt.NDArray[Any]]) -> None:
        """Scale changes down to the unenforced norm; before rounding, because nothing is clipped afterwards."""
        if not (bound := self.terms.max_norm_unenforced):
            return
        fixed = {tensor.name: fixed_point(tensor) for tensor in self.update.tensors}
        names = [TENSOR + name for name in self._summed if not is_integer(self.sent[name])]
        limits = {name: one.clip for name, one in fixed.items() if name in names and one is not None}
        cut = {
            name: np.clip(np.nan_to_num(values[name]).astype(np.float64), -clip, clip) for name, clip in limits.items()
        }
        norm = hypot(*(float(np.linalg.norm(change)) for change in cut.values()))
        if norm > bound:
            LOG.warning("this update's norm is %.3g and was scaled down to secagg-max-norm-unenforced, %g", norm, bound)
            values |= {name: change * (bound / norm) for name, change in cut.items()}

    def _differences(self, trained: Trained, summed: list[str]) -> dict[str, npt.NDArray[Any]]:
        if missing := [name for name in summed if name not in self.sent]:
            raise InvalidParameters(f"the received model lacks {missing[:4]}, which the server wants to sum")
        if len(trained.models) != 1:
            raise InvalidParameters(
                f"training returned {len(trained.models)} array records; return the trained model as one"
            )
        before = self.sent
        if trained.is_difference:
            before = {name: np.zeros_like(array) for name, array in self.sent.items()}
        return differences(before, trained.models[0], integer_bound(self.update, self.sent), summed)

    def _lost(self, trained: Trained, summed: set[str]) -> list[str]:
        """Return the names of tensors that training changed and that are not summed; 16-bit models round all others."""
        found, sent = trained.models[0], self.sent
        old = {name: sent[name] * (not trained.is_difference) for name in sent.keys() & found.keys() - summed}
        return sorted(
            name
            for name, before in old.items()
            if found[name].shape == before.shape and not np.allclose(found[name], before, rtol=_NARROW, atol=_NARROW**3)
        )

    def _require_finite(self, values: Arrays) -> None:
        """Refuse an update whose only changes are NaN, as after divergence."""
        # Integer counters still change.
        floats = {name: values[TENSOR + name] for name in self._summed if not is_integer(self.sent[name])}
        if not (missing := [name for name, array in floats.items() if np.isnan(array).any()]):
            return
        if not any((np.isfinite(array) & (array != 0)).any() for array in floats.values()):
            raise InvalidParameters("all values that training changed are NaN: it diverged")
        LOG.warning(
            "training left NaN in %s, which counts as no change; look for a loss that diverged", ", ".join(missing[:4])
        )

    def _metrics(self, trained: Trained) -> list[float]:
        if unnamed := sorted({*trained.reported} - {*self.terms.metrics, self.terms.weighted_by}):
            LOG.warning(
                "%s stay at this client: the server's secagg-metrics, or secagg-evaluation-metrics, does not name them",
                ", ".join(unnamed),
            )
        reported = list[float]()
        scheme: object = self.update.schemes.get(METRICS)
        bound = scheme.clip if isinstance(scheme, FixedPoint) else inf
        for name in self.terms.metrics:
            value = trained.number(name)
            if value is None:
                raise InvalidParameters(
                    f"the app did not report a number {name!r}, which secagg-metrics or secagg-evaluation-metrics "
                    "names; report it, or change the setting"
                )
            if isnan(value):
                raise InvalidParameters(
                    f"the app reported {name!r} as NaN, which no mean can include; look for a training that diverged, "
                    "or report a number"
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

    def _examples(self, trained: Trained) -> int:
        """Return the number of counted examples: 1 with uniform weights, and 0 for an update without weight."""
        terms = self.terms
        if terms.full == 1:
            return 1
        reported = trained.number(terms.weighted_by) or 0
        counted = clamped_examples(float(reported), terms.full)
        if not counted:
            LOG.error(
                "the app reports %r examples as %r, so its update weighs 0: report how many it trained on, or set "
                "secagg-weighting = 'uniform' at the server",
                reported,
                terms.weighted_by,
            )
        elif counted != reported:
            sentence = f"{reported:g} examples count as {counted}, because secagg-full-weight is {terms.full}"
            warn_once(LOG, f"{sentence}; the server can change that")
        return rounded_examples(counted, terms.full, self.charges.word_for(reported, SystemCoins())) if counted else 0


# --- A client's round -------------------------------------------------------------------------------------------------


def begun_app(options: Mapping[str, Any], scheme: str | None) -> tuple[ClientNode, dict[str, Factory]]:
    """Return the node of an app's options, and the app's custom scheme."""
    return ClientNode.of(options), {} if scheme is None else {scheme: custom_factory(scheme)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a platform: the policy of its app, tightened by its operator, and its folder of permanent state."""

    settings: ClientNode
    config: Mapping[str, Any]
    client: ClientId
    """The client, if clients have no keys."""
    run: str
    """The platform's name of its run."""
    states: StateDirectory
    custom: Mapping[str, Factory]
    judge: object | None = None
    task_file: Path | None = None
    """If runs may share a name, the file that stores this run's only task, which its server names."""

    def begun(self, terms: Terms) -> NodeRound:
        """Check the terms of a session, and refuse terms below the policy or of another run."""
        if terms.task != (known := self._task(terms.task)):
            raise InvalidParameters(
                f"the server names task {terms.task!r}, but this run is {known!r}", reason=Reason.BELOW_FLOOR
            )
        self.settings.require_protocol(terms.protocol)
        self.settings.require_keys_used(is_certified=terms.is_certified)
        self.settings.require_adapter(terms.adapter)
        update = decode_parameters(terms.parameters, custom=self.custom)
        require_told_bounds(terms, update)
        require_metrics(terms)
        identity = self.settings.load_identity(self.config) if terms.is_certified else None
        charges = self.settings.charges(identity, self.states, self.client)
        charges.require_kept(terms.task.encode(), bounds_of(terms, update))
        return NodeRound(node=self, terms=terms, update=update, identity=identity, charges=charges)

    def _task(self, named: str) -> str:
        """Return the task of this run: each task has separate limits, so one run's server may not name several."""
        if self.task_file is None or not named.startswith(f"{self.run} "):
            return self.run
        with suppress(FileExistsError):
            create(self.task_file, named.encode())
        return self.task_file.read_text(encoding="utf-8")


def require_told_bounds(terms: Terms, update: ModelUpdate) -> None:
    """Refuse counts and metrics whose clipping bound differs from the terms: a server could vary the bound."""
    schemes: Mapping[str, object] = update.schemes
    for name in (METRICS, COUNTS, *TOLD):
        if name in schemes and not isinstance(schemes[name], FixedPoint):
            raise InvalidParameters(f"{name} is not in fixed point, whose clip is its bound", reason=Reason.BELOW_FLOOR)
    counts = schemes.get(COUNTS)
    if isinstance(counts, FixedPoint) and counts.clip != terms.full:
        raise InvalidParameters(
            f"the server says that {terms.full} examples count fully, but clips them at {counts.clip:g}",
            reason=Reason.BELOW_FLOOR,
        )


def bounds_of(terms: Terms, update: ModelUpdate) -> dict[str, str]:
    """Return the bounds that clip and weigh updates, which stay constant within a task."""
    clips = dict[str, set[float]]()
    for name, scheme in update.schemes.items():
        # A server names tensors, and some apps train tensors of any name.
        is_tensor = name == UPDATE or name.startswith(TENSOR)
        if name != COUNTS and isinstance(one := inmost(scheme), FixedPoint):
            kind = "floats" if one.fraction_bits else "integers"
            clips.setdefault(f"the clip of {f'tensors of {kind}' if is_tensor else name}", set()).add(one.clip)
    found = {what: ", ".join(map(repr, sorted(some))) for what, some in clips.items()}
    # Evaluation weighs all clients equally, and belongs to the same task.
    norms = {"secagg-max-norm": terms.max_norm, "secagg-max-norm-unenforced": terms.max_norm_unenforced}
    if any(name == UPDATE or name.startswith(TENSOR) for name in update.names):
        found |= {name: repr(norm) for name, norm in norms.items()}
    return found | ({"the number of examples that count fully": f"{terms.full}"} if terms.full > 1 else {})


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
        """Return the client; the invitation is empty if a session is resumed."""
        node = self.node
        side = NodeSide(
            settings=node.settings,
            client=node.client if self.identity is None else self.identity.client,
            certified=self.identity,
            states=node.states,
            invitation=invitation,
            judge=node.judge,
            noise=node.settings.noise_for(self.terms.protocol, self.update),
            max_norms=norms_in_steps(self.terms.max_norm, self.update)[0],
        )
        return plug_of(self.terms.protocol).member(side)

    def answer(self, session: ClientSession, message: bytes) -> Record:
        """Return the record that answers a message; a client with a key signs it, so that no other party can answer."""
        answer = session.answer(message)
        for fault in session.faults:
            LOG.warning("%s: %s", session.client, fault)
        LOG.debug("%s: answered a message of round %d", session.client, self.terms.round_number)
        key = None if self.identity is None else self.identity.signing_key
        signature = b"" if key is None else key.sign(Label.PLATFORM_ANSWER, self.terms.digest, NEWEST_FORM, answer)
        return record_of(answer, session.client, signature=signature)
