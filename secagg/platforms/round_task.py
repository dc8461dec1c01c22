"""Task of a round, which both ends of a platform share, in addition to the protocol's invitation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.cohort_bits import (
    CAREFUL_ROUNDS,
    MOST_OF_A_MATRIX,
    AutoRate,
    code_noise,
    deviations,
    noisiest_matrix,
)
from secagg.compression.common import PublicStream
from secagg.compression.custom import custom_factory
from secagg.compression.model_update import ModelUpdate, encode_parameters
from secagg.compression.model_update.arrays import METRICS, Arrays, applied, model_digest, restored
from secagg.compression.model_update.summed_values import (
    PeakSum,
    part,
    peak_sum,
    range_of,
    steps_in,
    take_lengths,
    taken_told,
    value_bounds,
    whole_code,
)
from secagg.compression.model_update.weighting import LIGHTEST, Counted, is_weighted
from secagg.compression.peak import LEAST_ALIKE
from secagg.contract import Aggregate
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, Misuse, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.platforms import LOG
from secagg.platforms.held_models import HeldModels, parted
from secagg.platforms.plugs import ServerSide, plug_of
from secagg.platforms.schemes import COARSE, FINER, SchemeChoice, noise_settings, norms_in_steps
from secagg.platforms.settings import AUTO, SUMS, SecAggSettings
from secagg.platforms.terms import Terms, require_metrics
from secagg.privacy.client_noise import ClientNoise, noise_in
from secagg.privacy.guessing import said_guessable
from secagg.session.identities import Roster, load_roster
from secagg.session.registry import find
from secagg.session.roles import ServerSession, Subject

# --- The task of a round ----------------------------------------------------------------------------------------------

_SEED_BYTES: Final = 32
TRAINED: Final = "secagg-trained"
FAILED: Final = "secagg-failed"
OF_FILES: Final = "--examples"
"""Source of the number of examples of a model file, which reports no metrics."""
_NOISE_DEVIATIONS: Final = 5
_AT_BOUND: Final = 0.999
"""Share of the bound above which a mean counts as clipped."""
_LIGHT: Final = float(LIGHTEST) * 1.25
"""Mean weight below which nearly all clients have the minimum weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Result of a round, which consists only of means."""

    tensors: Mapping[str, npt.NDArray[Any]]
    told: Mapping[str, float]
    """Values that clients reported about their tensors; scales of the next round."""
    lengths: tuple[float, ...]
    """Lengths of the update and of each tensor, if clients vote for them, relative to the next round's scales."""
    length: float
    """Length of the update relative to this round's scales."""
    alike: float
    """Squared mean of the clients' lengths over their mean square, if clients vote; otherwise 1."""
    downlink_sum: PeakSum | None
    """Sum that the nodes of the next round receive, with a compressed downlink."""
    metrics: dict[str, float]
    counted: Counted
    """Number of clients in the sum, and of those that trained."""

    @property
    def contributors(self) -> int:
        return self.counted.contributors

    @property
    def training(self) -> dict[str, int]:
        """Numbers of clients in the sum that trained and that failed; lower bounds if no sum counts them."""
        trained = self.counted.trained_at_least
        if self.counted.trained is None:
            return {} if self.counted.examples is None else {"trained_at_least": trained}
        return {"trained": trained, "failed": self.contributors - trained}

    @property
    def examples(self) -> int:
        """Total of examples, at most secagg-full-weight per client; with uniform weights, of clients."""
        return self.contributors if self.counted.examples is None else self.counted.examples

    @property
    def trainings(self) -> dict[str, int]:
        """Numbers of clients that trained and that failed, if the sum counts them, for a platform's result."""
        trained = self.counted.trained
        return {} if trained is None else {TRAINED: trained, FAILED: self.contributors - trained}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """Task of a round."""

    settings: SecAggSettings
    roster: Roster | None
    terms: Terms
    sent: Arrays
    update: ModelUpdate
    held: HeldModels | None = None
    """The nodes that hold the model, with a compressed downlink."""

    def opened(
        self, population: int, invited: frozenset[ClientId], coins: Coins, resources: ExitStack
    ) -> ServerSession:
        """Start the session; ``invited`` is used if no roster names the clients."""
        update = self.update
        find(self.settings.protocol).require_segments(update.layout)
        side = ServerSide(
            settings=self.settings,
            subject=self.subject,
            population=population,
            invited=invited if self.roster is None else None,
            roster=self.roster,
            coins=coins,
            resources=resources,
            **self.limits,
        )
        return plug_of(self.settings.protocol).open(side)

    @property
    def subject(self) -> Subject:
        return self.terms.subject(self.update, model_digest(self.sent))

    @property
    def limits(self) -> dict[str, Any]:
        """Bounds of values, noise and norms of the session, as in ``ServerSide``."""
        return {
            "bounds": value_bounds(self.update),
            "noise": noise_settings(self.settings.noise, self.settings.norm, self.update),
            "max_norms": norms_in_steps(self.terms.max_norm, self.update)[0],
        }

    def say_noise(self, session: ServerSession, releases: int | None = None) -> None:
        """Log the privacy cost of the noise before updates are requested (default: for all rounds so far)."""
        if isinstance(noise := noise_in(session), ClientNoise):
            # A client may have taken part in every round so far.
            for line in noise.sentences(releases=releases or self.terms.round_number):
                LOG.info("round %d, %s", self.terms.round_number, line)
        elif self.settings.noise:
            raise Misuse("the session should have its clients' noise, but has none")

    def say_if_noise_alone(self, session: ServerSession, aggregate: Aggregate) -> None:
        """Warn if a sum is as short as its noise: with noise, no count shows that all trainings failed."""
        if not self.settings.noise or not isinstance(noise := noise_in(session), ClientNoise):
            return
        ((segment, values, variance),) = zip(noise.segments, aggregate.values, noise.variances, strict=True)
        lifted = segment.ring.lift(values).astype(np.float64)
        energy = float(lifted @ lifted) * noise.honest / aggregate.contributors / float(variance)
        if energy < segment.length + _NOISE_DEVIATIONS * np.sqrt(2 * segment.length):
            LOG.warning(
                "round %d: the sum is no longer than its noise alone, so perhaps no client trained; the clients' own "
                "logs would say so. More clients, fewer values or less noise would show the difference",
                self.terms.round_number,
            )

    def require_threshold(self, invited: int, received: int) -> None:
        """Enforce the configured threshold, even if the protocol's minimum is lower."""
        needed = invited - self.settings.tolerated_dropouts(invited)
        if self.settings.threshold and received < needed:
            raise ThresholdNotMet(
                needed=needed, present=received, what="clients", must="upload", why=" (secagg-threshold)"
            )

    def means(self, aggregate: Aggregate) -> Means:
        """Return the means of a sum.

        Raises:
            TooFewTrained: training failed at too many clients; the sum is not used.
        """
        counted = self.update.counted(aggregate)
        self._require_trained(counted)
        mean = self.update.mean(aggregate)
        trained = counted.trained_at_least / counted.contributors
        found = take_lengths(self.update, mean, self.sent, self.terms.joined, self.terms.lengths, trained=trained)
        metrics = mean.pop(METRICS, np.empty(0))
        told = taken_told(mean, self.sent)
        part(mean, self.terms.joined, self.sent)
        if (steps := steps_in(self.update, mean)) < COARSE / np.sqrt(aggregate.contributors):
            LOG.warning("the mean change is about %.2g steps, and the rest is noise; %s", steps, FINER)
        return Means(
            tensors=mean,
            told=told,
            lengths=found.known if found else (),
            length=found.middle if found else 0.0,
            alike=found.alike if found else 1.0,
            downlink_sum=peak_sum(self.update, aggregate, found.middle) if found and self.held else None,
            metrics=dict(zip(self.terms.metrics, map(float, metrics), strict=True)),
            counted=counted,
        )

    def _require_trained(self, counted: Counted) -> None:
        """Log how many clients trained, and refuse a round with fewer than the required number."""
        number, clients = self.terms.round_number, counted.contributors
        least, exactly = counted.trained_at_least, counted.trained is not None
        LOG.info("round %d, sum: %d clients, %s", number, clients, counted.sentence)
        if least < clients and exactly:
            LOG.warning(
                "round %d: training failed at %d of %d clients; their own logs say why",
                number,
                clients - least,
                clients,
            )
        if counted.is_empty or least < self.settings.minimum_trained:
            error = TooFewTrained(
                needed=self.settings.minimum_trained,
                counted=counted,
                has_model=any(is_weighted(name, scheme) for name, scheme in self.update.schemes.items()),
                numbers=(*([self.terms.weighted_by] if self.terms.full > 1 else []), *self.terms.metrics),
            )
            LOG.error("round %d failed: %s", number, error)
            raise error


class TooFewTrained(ThresholdNotMet):
    """Too few clients in a sum trained; the same model must not be sent again."""

    def __init__(self, *, needed: int, counted: Counted, has_model: bool, numbers: Sequence[str]) -> None:
        super().__init__(needed=needed, present=counted.trained_at_least, what="clients that trained")
        due = ["returns every tensor that it was sent"] if has_model else []
        due += [f"reports {', '.join(map(repr, numbers))}"] if numbers else []
        sentence = (
            f"{'training' if has_model else 'evaluation'} failed at too many clients: of {counted.contributors} "
            f"uploads {counted.sentence}, but secagg-minimum-trained is {needed}. The model is unchanged; see the logs "
            f"of the clients, and check that the app {' and '.join(due)}"
        )
        self.args = (sentence,)


Shapes = tuple[tuple[str, tuple[int, ...]], ...]
_DTYPES: Final = dict[str, dict[Shapes, dict[str, np.dtype[Any]]]]()
"""Initial dtypes of each task's models: a later phase may have another strategy and grid."""


@dataclass(slots=True)
class Known:
    """A server's knowledge of one model from earlier rounds."""

    told: Mapping[str, float] | None = None
    """Scales that clients reported."""
    lengths: tuple[float, ...] = ()
    held: HeldModels | None = None
    trained: int = 0
    """Number of training rounds so far."""
    probed: int = 0
    """Number of training rounds when losses were last reported."""
    rate: AutoRate | None = None
    noise: float = 0.0
    """Noise of the last round's code, relative to one client's energy."""
    deviations: Mapping[str, float] = field(default_factory=dict[str, float])
    """Its deviation in each tensor."""


class Rounds:
    """A server's consecutive rounds: scales, dtypes, and warnings that are logged only once."""

    def __init__(self, settings: SecAggSettings) -> None:
        self.settings = settings
        self._roster: Roster | None = load_roster(Path(settings.roster)) if settings.roster else None
        if self._roster is not None and not settings.is_certified:
            LOG.warning(
                "secagg-roster has no effect in semi_honest mode, where every node is a client; use secagg-mode = "
                "'active' for certified clients"
            )
            self._roster = None
        self._has_said = set[str]()
        self._seed = bytes(SystemCoins().draw(_SEED_BYTES))
        self._factory = custom_factory(settings.custom) if settings.custom else None
        self._number = 0
        self._turn = 0
        self._known = dict[tuple[int, Shapes], Known]()
        """Knowledge of each part of each trained model: several may have tensors of the same name."""

    def _current_roster(self) -> Roster | None:
        """Read the roster again: an authority signs it daily, and clients refuse an old head."""
        if self._roster is not None:
            try:
                self._roster = load_roster(Path(self.settings.roster or ""), self._roster)
            except InvalidParameters as error:
                LOG.warning("using the previous round's roster: %s", str(error))
        return self._roster

    def begun(  # noqa: PLR0913 -- what a round is about
        self,
        sent: Arrays,
        *,
        clients: int,
        task: str,
        number: int,
        weighted_by: str,
        is_evaluation: bool = False,
        turn: int = 0,
    ) -> RoundTask:
        """Return the task of a round over a model that is sent to ``clients`` clients.

        Args:
            turn: the platform's number of the round, starting at 0.
        """
        settings = self.settings
        # Refuse too few clients here, before computing anything for them; the error says what to do.
        settings.tolerated_dropouts(clients)
        self._number = number
        if not is_evaluation:
            self._turn = turn % settings.turns
        known = self.known_of(sent)
        noise: float | None = None
        if settings.rate == AUTO:
            known.rate = AutoRate(clients, settings.harm, known.rate.slope if known.rate else None)
            noise = known.rate.noise(known.trained)
        choice = SchemeChoice(settings, clients, self._factory, noise, self._turn)
        joined = choice.joined(sent)
        if known.told is None and settings.is_calibrated and not is_evaluation:
            LOG.info("the first round uses fixed point; in it, clients report how large their changes are")
        lengths = () if is_evaluation else known.lengths
        update = (
            choice.of_metrics()
            if is_evaluation
            else choice.parameters(sent, seed=self._seed, epoch=number, told=known.told, lengths=lengths)
        )
        self.say_once(
            "this server learns the sums of updates and of the named metrics, the total of examples or the number of "
            "clients that trained, which clients take part, and when each leaves: before its training or later"
        )
        self._say_of_guessing(update, clients)
        metrics = settings.evaluated_names if is_evaluation else settings.metric_names
        if not metrics and weighted_by != OF_FILES:
            self.say_once(
                "no training metric reaches this server: list the ones to average in secagg-metrics, by the names that "
                "clients return"
            )
        terms = self._terms(update, number, task)
        full = 1 if is_evaluation else settings.full
        terms = replace(terms, weighted_by=weighted_by, full=full, metrics=metrics, joined=joined, lengths=lengths)
        require_metrics(terms)
        if not is_evaluation:
            terms = replace(terms, max_norm=settings.max_norm, max_norm_unenforced=settings.max_norm_unenforced)
        return RoundTask(
            settings=settings, roster=self._current_roster(), terms=terms, sent=sent, update=update, held=known.held
        )

    def _say_of_guessing(self, update: ModelUpdate, clients: int) -> None:
        """Warn if a weighted sum can determine all values, which have at most the bits of their codes."""
        # Among weights in this range with the same total, these two mix values least.
        mixing = clients * 4 * float(LIGHTEST) / (1 + float(LIGHTEST)) ** 2
        weighted = self.settings.full > 1
        for tensor in update.tensors:
            if weighted and is_weighted(tensor.name, tensor.scheme) and (ends := range_of(tensor)):
                bits = float(np.log2(ends[1] - ends[0] + 1))
                ring = tensor.scheme.layout.require_rings()[0].ring
                if said := said_guessable(sum_bits=ring.modulus_bits, clients=mixing, entropy=bits):
                    self.say_once(said, "guessing")

    def asked(self, update: ModelUpdate, sent: Arrays, *, clients: int, task: str, number: int) -> RoundTask:
        """Return the task of a round that sums something other than training, with ``sent`` instead of a model."""
        self.settings.tolerated_dropouts(clients)
        terms = self._terms(update, number, task)
        return RoundTask(settings=self.settings, roster=self._current_roster(), terms=terms, sent=sent, update=update)

    def _terms(self, update: ModelUpdate, number: int, task: str) -> Terms:
        settings = self.settings
        return Terms(
            protocol=settings.protocol,
            is_certified=settings.is_certified,
            adapter=settings.adapter,
            weighted_by="",
            full=1,
            max_norm=0.0,
            max_norm_unenforced=0.0,
            metrics=(),
            joined=(),
            lengths=(),
            round_number=number,
            task=task,
            parameters=encode_parameters(update),
        )

    def model(self, task: RoundTask, means: Means) -> dict[str, npt.NDArray[Any]]:
        """Return the model after a round of training; store its scales for the next round."""
        known, joined, counted = self.known_of(task.sent), task.terms.joined, means.counted
        mean_weight = (counted.examples or 0) / counted.full / counted.contributors
        if counted.full > 1 and mean_weight < _LIGHT:
            self.say_once(
                f"clients weigh {mean_weight:.2g} on average, and the minimum is {float(LIGHTEST):.2g}: nearly all "
                f"have few examples, or failed to train; lower secagg-full-weight from {counted.full} to about the "
                "largest number of examples",
                "light",
            )
        known.told, known.lengths, known.trained = means.told, means.lengths, known.trained + 1
        model = applied(task.sent, means.tensors)
        if known.held is not None and means.downlink_sum is not None:
            values = known.held.move(task.terms.round_number, means.downlink_sum)
            model |= parted(values, {name: (model[name].shape, model[name].dtype) for name in joined})
        if means.lengths:
            code = whole_code(task.update)
            known.noise = code_noise(code, means.contributors)
            known.deviations = dict(zip(joined, deviations(code, means.contributors, means.length), strict=True))
            self._say_of_code(known, means.alike, model)
        return model

    def _say_of_code(self, known: Known, alike: float, model: Arrays) -> None:
        """Warn if the mean of a peak code is biased, or its noise is large for the model and its harm not probed."""
        if alike < LEAST_ALIKE:
            self.say_once(
                f"clients' updates differ in length: the squared mean is {alike:.2f} of the mean square. The peak "
                "code decodes all updates with one length, so short ones count for too much: let clients make similar "
                "numbers of steps, or use another secagg-compression",
                "alike",
            )
        is_found = known.rate is not None and (known.rate.slope is not None or known.trained <= CAREFUL_ROUNDS)
        name, share = noisiest_matrix(model, known.deviations)
        if share > MOST_OF_A_MATRIX and not is_found:
            self.say_once(
                f"a round's noise is {share:.2g} of the squared length of {name}, and models with more than "
                f"{MOST_OF_A_MATRIX} lost accuracy: raise secagg-cohort-bits, or set secagg-rate = 'auto' and evaluate",
                "noise",
            )

    def probe(self, sent: Arrays, means: Means, evaluated: Callable[[Arrays], Means]) -> None:
        """Request clients' losses on noised models, if the rate is automatic and a probe is needed.

        The noise resembles that of the last code: public signs times its deviation, once added and once subtracted.
        """
        known = self.known_of(sent)
        if known.rate is None or known.probed == known.trained or not AutoRate.is_probed(known.trained):
            return
        known.probed, found = known.trained, [means]
        noise = {name: self._signs(name, sent[name]) * deviation for name, deviation in known.deviations.items()}
        for sign in (1, -1):
            moved = {name: (sent[name] + sign * values).astype(sent[name].dtype) for name, values in noise.items()}
            found.append(evaluated({**sent, **moved}))
        if len({(each.contributors, each.counted.trained) for each in found}) > 1:
            self.say_once("clients left between the losses that set the rate, so the rate is unchanged")
            return
        first, added, taken = (each.metrics[self.settings.evaluated_names[0]] for each in found)
        known.rate = known.rate.after((first, added, taken), known.noise)

    def _signs(self, name: str, like: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        stream = PublicStream(seed=self._seed, round_number=self._number, tensor_name=name, shape=(like.size,))
        drawn = np.frombuffer(stream.read(Label.PROBE_SIGNS, -(-like.size // 8)), dtype=np.uint8)
        return 1 - 2 * np.unpackbits(drawn, count=like.size).reshape(like.shape).astype(np.float64)

    def with_dtypes(self, sent: Arrays, task: str) -> dict[str, npt.NDArray[Any]]:
        """Return a model whose integers and booleans have the dtypes of the task's first such model.

        Strategies multiply every tensor by floats, so integers and booleans return as floats.
        """
        dtypes = _DTYPES.setdefault(task, {}).setdefault(_shapes_of(sent), {})
        return {name: restored(array, dtypes.setdefault(name, array.dtype)) for name, array in sent.items()}

    def restored(self, sent: Arrays, task: str = "") -> dict[str, npt.NDArray[Any]]:
        """Return a model with its initial dtypes, and in whole steps if nodes hold it."""
        known, model = self.known_of(sent), self.with_dtypes(sent, task)
        if self.settings.down == SUMS:
            known.held = known.held or HeldModels(self._seed)
            names = SchemeChoice(self.settings, 1).joined(model)
            model, is_changed = known.held.hold(model, names, self._number + 1)
            if is_changed:
                self.say_once(
                    "this round's model is not the one that the previous round produced, so every node receives it "
                    "whole; secagg-down = 'sums' is for strategies that leave the mean unchanged, such as FedAvg"
                )
        return model

    def say_of_bounds(self, means: Means) -> None:
        """Warn about metrics whose mean is at the bound to which clients' values are clipped."""
        bound = self.settings.metric_bound
        if found := [name for name, mean in means.metrics.items() if abs(mean) >= bound * _AT_BOUND]:
            LOG.warning(
                "the mean of %s is at the bound of %g, which clips values; raise secagg-metric-bound",
                ", ".join(found),
                bound,
            )

    def say_once(self, sentence: str, about: str = "") -> None:
        """Warn once per subject (default: the sentence itself)."""
        if (about or sentence) not in self._has_said:
            self._has_said.add(about or sentence)
            LOG.warning("%s", sentence)

    def known_of(self, sent: Arrays) -> Known:
        return self._known.setdefault((self._turn, _shapes_of(sent)), Known())


def _shapes_of(sent: Arrays) -> Shapes:
    return tuple((name, array.shape) for name, array in sent.items())
