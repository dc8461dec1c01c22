"""Task of a round, in addition to the protocol's own invitation, as both ends of a platform have it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.model_update import ModelUpdate, encode_parameters
from secagg.compression.model_update.model_tensors import METRICS, Arrays, applied, model_digest, restored
from secagg.compression.model_update.summed_values import part, steps_in, take_lengths, taken_told, value_bounds
from secagg.compression.outside import outside_factory
from secagg.contract import Aggregate
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import MalformedMessage, Misuse, Reason, ThresholdNotMet
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.platforms.keys.identities import Roster, load_roster
from secagg.platforms.leaving import LOG
from secagg.platforms.plugs import ServerSide, plug_of
from secagg.platforms.schemes import COARSE, FINER, SchemeChoice, noise_settings
from secagg.platforms.settings import SecAggSettings
from secagg.privacy.client_noise import ClientNoise, noise_in
from secagg.session.registry import find
from secagg.session.roles import ServerSession, Subject

# --- Terms ------------------------------------------------------------------------------------------------------------

RECORD: Final = "secagg"
"""The name under which both ends of a platform keep the protocol's own record."""
Record = dict[str, str | bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of a session; the digest is bound to the protocol's invitation."""

    protocol: str
    is_certified: bool
    """Whether clients are known by their keys, and not as nodes."""
    weighted_by: str
    weighting: str
    weight_unit: int
    maximum_weight: int
    metrics: tuple[str, ...]
    joined: tuple[str, ...]
    """The tensors that travel as one vector, in their order."""
    lengths: tuple[float, ...]
    """Lengths of the joined tensors, known from the round before; clients report theirs relative to these."""
    round_number: int
    task: str
    parameters: bytes = field(repr=False)
    """The public parameters of every tensor's scheme, whose digest is the version of the layout."""

    @property
    def small(self) -> str:
        """All but the parameters, as text."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "parameters"})

    def subject(self, update: ModelUpdate, model_digest: bytes | None) -> Subject:
        """Return what a session under these terms is about, as either end expects it."""
        return Subject(
            task=self.task.encode(),
            round_number=self.round_number,
            layout=update.layout,
            capacity=update.capacity,
            tables=update.tables,
            terms=self.digest,
            model_digest=model_digest,
        )

    @property
    def record(self) -> Record:
        """The record that ``parsed`` reads."""
        return {"terms": self.small, "parameters": self.parameters}

    @property
    def digest(self) -> bytes:
        """The digest of all but the parameters."""
        return hashlib.sha256(bind(Label.PLATFORM_TERMS, self.small.encode())).digest()

    @classmethod
    def parsed(cls, record: object) -> Terms | None:
        """Read the terms in a record of another party, if there are any: they come with the first message.

        Raises:
            MalformedMessage: a field is missing or of another type.
        """
        if not (small := _field(record, "terms")):
            return None
        try:
            given, parameters = cast("dict[str, object]", json.loads(str(small))), _field(record, "parameters")
            for name in ("metrics", "joined", "lengths"):
                given[name] = tuple(cast("list[object]", given[name]))
            terms = cls(**given, parameters=parameters)  # type: ignore[arg-type]
            terms.task.encode()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise malformed("terms") from None
        kinds = {
            "str": str,
            "int": int,
            "bool": bool,
            "bytes": bytes,
            "tuple[str, ...]": tuple,
            "tuple[float, ...]": tuple,
        }
        if any(type(getattr(terms, item.name)) is not kinds[str(item.type)] for item in fields(cls)):
            raise malformed("terms")
        if any(type(name) is not str for name in (*terms.metrics, *terms.joined)) or terms.round_number < 0:
            raise malformed("terms")
        if any(type(length) is not float for length in terms.lengths):
            raise malformed("terms")
        return terms


def record_of(
    message: bytes, client: ClientId | None = None, terms: Terms | None = None, signature: bytes = b""
) -> Record:
    """Return the record that carries one message of the protocol.

    Args:
        client: who answers, and with a key its signature.
    """
    record: Record = {"message": message}
    if client is not None:
        record |= {"client": client.encode(), "signature": signature}
    if terms is not None:
        record |= terms.record
    return record


def message_in(record: object) -> bytes:
    """Return the protocol's message.

    Raises:
        MalformedMessage: there is none.
    """
    found = _field(record, "message")
    if not isinstance(found, bytes) or not found:
        raise malformed("message")
    return found


def client_in(record: object) -> ClientId:
    """Return which client an answer says it is of.

    Raises:
        MalformedMessage: it does not say so.
    """
    named = _field(record, "client")
    if not isinstance(named, bytes) or len(named) != CLIENT_ID_BYTES:
        raise malformed("client")
    return ClientId(int.from_bytes(named, "big"))


def signature_in(record: object) -> bytes:
    """Return the signature of who an answer says it is of; nothing where there is none."""
    found = _field(record, "signature")
    return found if isinstance(found, bytes) else b""


def record_bytes(record: object) -> int:
    """Return how many bytes of the protocol a record carries."""
    fields = cast("Mapping[str, object]", record).values() if isinstance(record, Mapping) else ()
    return sum(len(value) for value in fields if isinstance(value, bytes | str))


def _field(record: object, name: str) -> object:
    return cast("Mapping[str, object]", record).get(name) if isinstance(record, Mapping) else None


def malformed(name: str) -> MalformedMessage:
    """Describe the fault of a record that lacks something."""
    return MalformedMessage(
        f"the {RECORD} record lacks {name!r}, or it is of another type; use one version of secagg at both ends",
        reason=Reason.NOT_CANONICAL,
    )


# --- The task of a round ----------------------------------------------------------------------------------------------

_SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Result of a round: means alone."""

    tensors: Mapping[str, npt.NDArray[Any]]
    told: Mapping[str, float]
    """Values that clients reported of their tensors, as scales of the next round."""
    lengths: tuple[float, ...]
    """Lengths of the update and of each tensor, where clients vote for them."""
    metrics: dict[str, float]
    contributors: int
    total_weight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """Task of a round."""

    settings: SecAggSettings
    roster: Roster | None
    terms: Terms
    """The terms that clients are told."""
    sent: Arrays
    update: ModelUpdate

    def opened(
        self, population: int, invited: frozenset[ClientId], coins: Coins, resources: ExitStack
    ) -> ServerSession:
        """Begin the session.

        Args:
            population: how many nodes are invited.
            invited: who they are, where clients are nodes; a roster says it otherwise.
            resources: opened for the session, and closed after it.
        Raises:
            SecAggError: the session cannot be planned.
        """
        update = self.update
        find(self.settings.protocol).require_segments(update.layout)
        side = ServerSide(
            settings=self.settings,
            subject=self.terms.subject(update, model_digest(self.sent)),
            population=population,
            invited=invited if self.roster is None else None,
            roster=self.roster,
            bounds=value_bounds(update),
            noise=noise_settings(self.settings.noise, self.settings.norm, update),
            coins=coins,
            clock=lambda: datetime.now(UTC),
            resources=resources,
        )
        return plug_of(self.settings.protocol).open(side)

    def say_noise(self, session: ServerSession) -> None:
        """Say what the noise costs, before an update is asked for."""
        if isinstance(noise := noise_in(session), ClientNoise):
            # A client may have been in every round so far.
            for line in noise.sentences(releases=self.terms.round_number):
                LOG.info("round %d, %s", self.terms.round_number, line)
        elif self.settings.noise:
            raise Misuse("the session was to have its clients' noise, and has none")

    def require_threshold(self, invited: int, received: int) -> None:
        """Hold a round to the threshold that was configured, whatever the protocol's own least is.

        Raises:
            ThresholdNotMet: too few uploads were received.
        """
        needed = invited - self.settings.tolerated_dropouts(invited)
        if self.settings.threshold and received < needed:
            raise ThresholdNotMet(needed=needed, present=received, what="clients (secagg-threshold)")

    def means(self, aggregate: Aggregate) -> Means:
        """Decode a sum."""
        mean = self.update.mean(aggregate)
        lengths = take_lengths(self.update, mean, self.sent, self.terms.joined, self.terms.lengths)
        vector, told = mean.pop(METRICS), taken_told(mean, self.sent)
        part(mean, self.terms.joined, self.sent)
        # With noise it is noise.
        if vector[0] and not self.settings.noise:
            LOG.warning("%.3g of the clients' values were out of range and cut off; raise secagg-clip", vector[0])
        if (steps := steps_in(self.update, mean)) < COARSE / np.sqrt(aggregate.contributors):
            LOG.warning("the mean change is about %.2g steps, and the rest is noise; %s", steps, FINER)
        LOG.info(
            "round %d, sum: %d clients of total weight %d",
            self.terms.round_number,
            aggregate.contributors,
            aggregate.total_weight,
        )
        return Means(
            tensors=mean,
            told=told,
            lengths=lengths,
            metrics=dict(zip(self.terms.metrics, map(float, vector[1:]), strict=True)),
            contributors=aggregate.contributors,
            total_weight=aggregate.total_weight,
        )


Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(slots=True)
class Known:
    """A server's knowledge of one model from the rounds before."""

    told: Mapping[str, float] | None = None
    """Scales that clients told."""
    lengths: tuple[float, ...] = ()
    dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict[str, np.dtype[Any]])
    """As the model was sent at first."""


class Rounds:
    """A server's rounds, one after another: scales, dtypes, and warnings that are given once."""

    def __init__(self, settings: SecAggSettings) -> None:
        """Read what the settings name.

        Raises:
            InvalidParameters: the roster is not readable, or the scheme cannot be imported.
        """
        self.settings = settings
        self._roster: Roster | None = load_roster(Path(settings.roster)) if settings.roster else None
        if self._roster is not None and not settings.is_certified:
            LOG.warning(
                "secagg-roster certifies nobody in semi_honest mode, where every node is a client; take "
                "secagg-mode = 'active' for certified ones"
            )
            self._roster = None
        self._has_said = set[str]()
        self._seed = bytes(SystemCoins().draw(_SEED_BYTES))
        self._factory = outside_factory(settings.outside) if settings.outside else None
        self._known = dict[Shapes, Known]()
        """Knowledge of each model that is trained here: there may be several, with tensors of the same name."""

    def begun(  # noqa: PLR0913 -- what a round is about
        self, sent: Arrays, *, clients: int, task: str, number: int, weighted_by: str, is_evaluation: bool = False
    ) -> RoundTask:
        """Return the task of a round over a model that is sent to so many clients.

        Raises:
            InvalidParameters: too few clients, or a ring that is too narrow.
        """
        settings = self.settings
        # Refused here, where too few clients are told of what to do, before anything is computed for them.
        settings.tolerated_dropouts(clients)
        choice = SchemeChoice(settings, clients * settings.heaviest, self._factory, clients)
        joined = () if is_evaluation else choice.joined(sent)
        known = self._known_of(sent)
        if known.told is None and settings.is_calibrated and not is_evaluation:
            LOG.info("the first round travels in fixed point; clients tell in it how large their changes are")
        lengths = known.lengths if joined else ()
        update = (
            choice.of_metrics()
            if is_evaluation
            else choice.parameters(sent, seed=self._seed, epoch=number, told=known.told, lengths=lengths)
        )
        weights = "each client's weight" if find(settings.protocol).reveals_weights else "their total weight"
        self.say_once(
            "this server learns the sums of updates and of the metrics that are named, who takes part and when each "
            f"leaves, with one of two codes, and {weights}"
        )
        metrics = settings.evaluated_names if is_evaluation else settings.metric_names
        if not metrics:
            self.say_once(
                "no metric of training reaches this server: name those that are to be means in secagg-metrics, such as "
                "secagg-metrics = 'train_loss'"
            )
        return self._task(
            update,
            sent,
            number=number,
            task=task,
            weighted_by=weighted_by,
            metrics=metrics,
            joined=joined,
            lengths=lengths,
        )

    def asked(self, update: ModelUpdate, sent: Arrays, *, clients: int, task: str, number: int) -> RoundTask:
        """Return the task of a round that sums something else than training, such as statistics.

        Args:
            sent: in the place of a model; its digest is the session's.
        Raises:
            InvalidParameters: too few clients.
        """
        self.settings.tolerated_dropouts(clients)
        return self._task(update, sent, number=number, task=task)

    def _task(  # noqa: PLR0913 -- what a round is about
        self,
        update: ModelUpdate,
        sent: Arrays,
        *,
        number: int,
        task: str,
        weighted_by: str = "",
        metrics: tuple[str, ...] = (),
        joined: tuple[str, ...] = (),
        lengths: tuple[float, ...] = (),
    ) -> RoundTask:
        settings = self.settings
        terms = Terms(
            protocol=settings.protocol,
            is_certified=settings.is_certified,
            weighted_by=weighted_by,
            weighting=settings.weighting,
            weight_unit=settings.weight_unit,
            maximum_weight=settings.maximum_weight,
            metrics=metrics,
            joined=joined,
            lengths=lengths,
            round_number=number,
            task=task,
            parameters=encode_parameters(update),
        )
        return RoundTask(settings=settings, roster=self._roster, terms=terms, sent=sent, update=update)

    def model(self, task: RoundTask, means: Means) -> dict[str, npt.NDArray[Any]]:
        """Return the model that results from a round of training; its scales are those of the next one."""
        known = self._known_of(task.sent)
        known.told, known.lengths = means.told, means.lengths
        return applied(task.sent, means.tensors)

    def examples(self, means: Means) -> int:
        """Return how many examples were counted."""
        return means.total_weight * (self.settings.weight_unit if self.settings.weighting == "examples" else 1)

    def restored(self, sent: Arrays) -> dict[str, npt.NDArray[Any]]:
        """Return a model with the dtypes that it had at first.

        Strategies multiply every tensor by floats, so integers and booleans come back from them as floats.
        """
        dtypes = self._known_of(sent).dtypes
        return {name: restored(array, dtypes.setdefault(name, array.dtype)) for name, array in sent.items()}

    def say_once(self, sentence: str) -> None:
        """Warn, if that was not said before."""
        if sentence not in self._has_said:
            self._has_said.add(sentence)
            LOG.warning("%s", sentence)

    def _known_of(self, sent: Arrays) -> Known:
        return self._known.setdefault(tuple((name, array.shape) for name, array in sent.items()), Known())
