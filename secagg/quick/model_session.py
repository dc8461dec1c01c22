"""Plans sums of a model's updates, given the model and the number of clients.

Server and clients create equal ``Session`` objects from the same model and arguments; a client refuses a session with
other parameters.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from numbers import Real
from typing import TYPE_CHECKING, Any, Final, Generic, Never, TypeVar, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.model_update import ModelUpdate, TensorScheme
from secagg.compression.model_update.weighting import (
    COUNTS,
    UPDATE,
    Counted,
    clamped_examples,
    count_scheme,
    norms_with_counts,
    weighted,
)
from secagg.compression.scalar_quantization import LEAST_BITS, MAXIMUM_BITS, Rounding, ScalarQuantization
from secagg.contract import Aggregate, Payload
from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.options import declared, suggestion
from secagg.parameters import LEAST_COHORT, require_integer
from secagg.session.client_policy import USUAL_BITS, usual_corrupted, usual_dropped
from secagg.session.registry import ChosenProtocol, Clock, ProtocolEntry, Simulation, find, given_in, planned_settings
from secagg.session.roles import LazyUpdate, Released, ServerSession, Subject, Update

from .rows import Rows, require_floor
from .trees import Shapes, Tree, Vector, digest_of

if TYPE_CHECKING:
    from secagg.compression.fixed_point import FixedPoint

MOST_NORM_STEPS: Final = (1 << 40) - 1
MOST_EXAMPLES: Final = 1 << 30
_NOTICEABLE: Final = 0.01
_CLIPS: Final = 40
"""Number of clips that are compared, each smaller by a factor of 2^(1/4)."""
_ROOM: Final = 1.5
_BLOCK: Final = 1 << 16
"""Number of values at a time, so that temporary arrays stay in the processor's cache."""
_LAST_ROUND: Final = (1 << 64) - 1
Form = TypeVar("Form")
Model = TypeVar("Model")
"""Type of a model and of its updates."""
LOG: Final = logging.getLogger("secagg.quick")


# --- Sessions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Generic[Form]):
    """Settings for sums of one model's updates; create it with ``for_model``."""

    entry: ProtocolEntry
    settings: Any
    shapes: Shapes
    codec: ScalarQuantization
    clip: float
    like: Form = field(repr=False)
    rows: Rows | None = None
    """Rows of tensors, if rows that few clients changed are withheld."""
    weighed: ModelUpdate | None = None
    """The codec with counts of examples, if clients weigh by examples."""
    max_norm: float = math.inf
    """Norm to which honest clients scale their updates before encoding."""
    zero_points: tuple[int, ...] = ()
    """Zero points about which an enclave measures norms; empty if all are 0."""
    _said: set[str] = field(default_factory=set[str], init=False, repr=False, compare=False)

    @staticmethod
    def for_model(  # noqa: PLR0913 -- all but three have defaults
        like: Model,
        *,
        clients: int,
        clip: float,
        bits: int = USUAL_BITS,
        protocol: ChosenProtocol = "pairwise",
        only: Iterable[str] = (),
        exclude: Iterable[str] = (),
        dropped: int | None = None,
        corrupted: int | None = None,
        max_norm: float | None = None,
        max_norm_unenforced: float | None = None,
        full: int | None = None,
        all_clients: int | None = None,
        at_least: int | None = None,
        rows: Iterable[str] = (),
        **unknown: Never,
    ) -> Session[Model]:
        """Plan sums of updates that have the form of a model.

        Args:
            like: the model, or one update of it.
            clients: number of invited clients.
            clip: maximum absolute value; a client that clips more than one value in a hundred logs a warning.
            bits: bits of one value, 2 to 16. Rounding is random, so that means of values within the clip are unbiased.
            protocol: a name, options such as ``EnclaveOptions(minimum_cohort=5)``, or the entry of a custom protocol.
            only: one or more patterns of tensors to sum, such as ``"*lora*"`` (default: all).
            exclude: one or more patterns of tensors to leave out, such as ``"*num_batches_tracked"``.
            dropped: number of clients that may drop out (default: a third of up to 30 clients, 10 of up to 100, a tenth
                of more, or as many as the protocol tolerates).
            corrupted: number of clients that may collude with the server (default: one in ten, as in default policies).
            max_norm: maximum norm of an update. An enclave scales longer ones down, including those of malicious
                clients, and sees every update to do so. Other protocols refuse it.
            max_norm_unenforced: the same for any protocol, but only honest clients scale their updates.
            full: number of examples that count fully. A client's weight is examples / full, at most 1 and at least
                1/4, or 0 if it has no examples. By default weights are equal; with full=1 they are equal too, but the
                result says how many clients had any examples.
            all_clients: number of clients in all groups whose sums are added (default: one group).
            at_least: minimum number of clients that change a row, such as the embedding of a word; other rows are
                withheld and returned as zeros. Requires an enclave, and the same number at all clients.
            rows: one or more patterns of tensors with rows, which are indices of the first axis (default: tensors of at
                least two dimensions). Other tensors are released whole: name a vector with one value per word.
        Raises:
            InvalidParameters: no such session is safe, or a number is out of range; the message says what to change.
        """
        require_none(unknown, Session.for_model, protocol)
        if type(bits) is not int or not LEAST_BITS <= bits <= MAXIMUM_BITS:
            raise InvalidParameters(f"bits must be between {LEAST_BITS} and {MAXIMUM_BITS}; got {bits!r}")
        require_cohort(clients)
        if not isinstance(cast("object", clip), Real) or not 2.0**-100 <= clip <= 2.0**100:
            raise InvalidParameters(f"clip must be between 2^-100 and 2^100; got {clip!r:.40}")
        *patterns, named = ((each,) if isinstance(each, str) else tuple(each) for each in (only, exclude, rows))
        shapes, entry, settings = Shapes.of(like, *patterns), find(protocol), given_in(protocol)
        if all_clients is not None and not all_clients >= clients:
            raise InvalidParameters(f"all_clients must be at least the {clients} clients of a group; got {all_clients}")
        most = all_clients or clients
        codec = ScalarQuantization(
            shape=(shapes.length,),
            bits=bits,
            modulus_bits=bits + (most - 1).bit_length(),
            scales=(float(clip) / ((1 << (bits - 1)) - 1),),
            rounding=Rounding.STOCHASTIC,
        )
        entry.require_segments(codec.layout)
        if max_norm_unenforced is not None and not (
            isinstance(cast("object", max_norm_unenforced), Real) and 0 < max_norm_unenforced < math.inf
        ):
            raise InvalidParameters(f"max_norm_unenforced must be positive; got {max_norm_unenforced!r:.40}")
        kept, weighed, counts, zeros = None, None, None, tuple[int, ...]()
        if full is not None:
            require_integer("full", full, 1, MOST_EXAMPLES)
            counts = count_scheme(full, most, apart_from=() if max_norm is None else (codec.modulus_bits,))
            vector = TensorScheme(name=UPDATE, shape=codec.shape, scheme=codec)
            weighed = ModelUpdate(tensors=(vector, TensorScheme(name=COUNTS, shape=(counts.length,), scheme=counts)))
        if max_norm is not None:
            steps, layout = _norm_in_steps(entry, max_norm, codec), (weighed or codec).layout
            settings["max_norms"], zeros = norms_with_counts(steps, layout, counts)
        made = planned(entry, clients, dropped=dropped, corrupted=corrupted, settings=settings)
        if at_least is not None:
            if full is not None:
                raise InvalidParameters(
                    "at_least requires equal weights, because a number of examples could identify one of a row's few "
                    "clients; leave out full and examples"
                )
            require_floor(at_least, entry, clients, usual_corrupted(clients) if corrupted is None else corrupted)
            kept = Rows.of(shapes, codec.layout, named, at_least)
        elif named:
            raise InvalidParameters("rows only applies together with at_least, the minimum number of clients of a row")
        return Session(
            entry=entry,
            settings=made,
            shapes=shapes,
            codec=codec,
            clip=float(clip),
            like=like,
            rows=kept,
            weighed=weighed,
            max_norm=math.inf if max_norm_unenforced is None else float(max_norm_unenforced),
            zero_points=zeros,
        )

    @property
    def step(self) -> float:
        """Distance of neighbouring codes, the maximum rounding error of a value."""
        return self.codec.scales[0]

    def subject(self, *, task: bytes, round_number: int, model: Tree) -> Subject:
        """Return the subject of one session; server and clients each create it from their own model."""
        if not isinstance(cast("object", task), bytes):
            raise InvalidParameters(f"task must be bytes, such as b'keyboard'; got {task!r}")
        require_integer("round_number", round_number, 0, _LAST_ROUND)
        return Subject(
            task=task,
            round_number=round_number,
            layout=(self.rows or self.weighed or self.codec).layout,
            capacity=(self.weighed or self.codec).capacity,
            terms=self.shapes.digest,
            model_digest=digest_of(model),
            zero_points=self.zero_points,
        )

    def open(
        self,
        subject: Subject,
        helpers: Any,  # noqa: ANN401 -- the protocol's own
        invited: frozenset[ClientId] | None = None,
    ) -> ServerSession:
        """Begin a session at the server; ``helpers`` is ``self.entry.helpers`` with the server's keys and coins."""
        return self.entry.open_session(subject, self.settings, invited, helpers)

    def simulate(self, *, coins: Coins, clock: Clock, threads: int = 1) -> Simulation:
        """Return a simulation of the server and all clients in one process; it protects nobody."""
        return self.entry.simulate(self.settings, coins=coins, clock=clock, threads=threads)

    def update(
        self, tree: Tree, *, subject: Subject, coins: Coins, examples: int = 1, name: object = None
    ) -> LazyUpdate:
        """Return a client's update for ``member.join``, encoded when the upload needs it; its log uses ``name``."""
        digest = subject.model_digest or bytes(32)
        for _ in self.shapes.pieces(tree):  # Refuse an update of a different form now, before the server waits for it.
            pass
        return LazyUpdate(
            lambda: Update(self.encode(tree, coins, name, examples), digest), zero=lambda: self.zero(coins)
        )

    def zero(self, coins: Coins) -> Payload:
        """Return the encoding of an update of zeros without examples."""
        return self._encoded(np.zeros(self.shapes.length), coins, 0)

    def encode(self, tree: Tree, coins: Coins, name: object = None, examples: int = 1) -> Payload:
        """Encode an update, with NaN as 0, and log what clipping and rounding lose, and in which tensors."""
        vector, whose = self.shapes.vector(tree), "this update" if name is None else f"the update of {name!r}"
        self._cut(vector, whose)
        if self.weighed is not None:
            counted = clamped_examples(examples, self.full)
            if counted != examples:
                LOG.warning("%s has %d examples and counts as %d: full is %d", whose, examples, counted, self.full)
            examples = counted
        return self._encoded(vector, coins, examples)

    def _cut(self, vector: Vector, whose: str) -> None:
        """Clip the values and scale the vector to its norm, in place; log what is lost, and in which tensors."""
        if math.isnan(largest := max(float(vector.max()), -float(vector.min()))):
            missing = np.isnan(vector)
            LOG.warning("%s is NaN, which counts as 0, in %s", whose, self.shapes.holding(missing))
            vector[missing] = 0
            largest = max(float(vector.max()), -float(vector.min()))
        if 0 < largest < self.step:
            self._warn_once("no value of %s reaches one step, %.3g; lower clip or raise bits", whose, self.step)
        if largest > self.clip:
            if self.clipped(vector) > _NOTICEABLE * vector.size:
                found = self.shapes.holding(np.abs(vector) > self.clip)
                self._warn_once("%s is beyond the clip of %g in %s; raise clip", whose, self.clip, found)
            np.clip(vector, -self.clip, self.clip, out=vector)
        if self.max_norm < math.inf and (norm := float(np.linalg.norm(vector))) > self.max_norm:
            LOG.warning("%s has a norm of %.3g and was scaled down to %g", whose, norm, self.max_norm)
            vector *= self.max_norm / norm

    def _warn_once(self, sentence: str, *found: object) -> None:
        """Log a warning for the first update only; other updates of the session usually need the same change."""
        if sentence not in self._said:
            self._said.add(sentence)
            LOG.warning("%s. Other updates of this session are not reported", sentence % found)

    def _encoded(self, vector: Vector, coins: Coins, examples: int) -> Payload:
        if self.weighed is not None:
            return self.weighed.encode(weighted(self.weighed.schemes, {UPDATE: vector}, examples, coins), coins)
        payload = self.codec.encode(vector, coins)
        return payload if self.rows is None else self.rows.split(payload)

    @property
    def full(self) -> int:
        """Number of examples that count fully; 1 with equal weights."""
        return 1 if self.weighed is None else round(cast("FixedPoint", self.weighed.schemes[COUNTS]).clip)

    def counted(self, released: Released) -> Counted:
        """Return the total number of examples in a sum, and the number of clients that had any."""
        if self.weighed is None:
            return Counted(contributors=released.aggregate.contributors)
        return self.weighed.counted(released.aggregate)

    def clipped(self, vector: Vector) -> int:
        """Return the number of values that are NaN or beyond the clip."""
        blocks = (vector[start : start + _BLOCK] for start in range(0, vector.size, _BLOCK))
        return sum(int(np.count_nonzero(~(np.abs(block) <= self.clip))) for block in blocks)

    def total(self, released: Released) -> Form:
        """Return the sum of the updates, each multiplied by its examples, in the form of the model."""
        found = self._sum(released.aggregate)
        found *= self.full
        total: Form = self.shapes.tree(found, self.like)
        return total

    def mean(self, released: Released) -> Form:
        """Return the mean of the updates, weighted by examples if clients have them, in the form of the model.

        Raises:
            ThresholdNotMet: no client had any examples.
        """
        counted = self.counted(released)
        if counted.is_empty:
            raise ThresholdNotMet(needed=1, present=0, what="clients with examples")
        found = self._sum(released.aggregate)
        found /= counted.divisor(UPDATE, self.codec)
        mean: Form = self.shapes.tree(found, self.like)
        return mean

    def released_rows(self, released: Released) -> dict[str, npt.NDArray[np.bool_]]:
        """Return which rows of each tensor were released; other rows are zeros in sums and means."""
        return {} if self.rows is None else self.rows.released(released.aggregate)

    def _sum(self, aggregate: Aggregate) -> Vector:
        if self.weighed is not None:
            aggregate = self.weighed.part(aggregate, UPDATE)
        elif self.rows is not None:
            aggregate = self.rows.joined(aggregate)
        return self.codec.decode(aggregate)


def clip_for(update: Tree, *, bits: int = USUAL_BITS) -> float:
    """Suggest a clip: 1.5 times the one that minimizes an update's error of clipping and rounding.

    The margin is for clients with larger changes. A clip is public and reveals the approximate size of the update, so
    use an update from public or synthetic data.

    Raises:
        InvalidParameters: the update has no finite value other than 0.
    """
    sizes = np.abs(Shapes.of(update).vector(update)).astype(np.float64)
    sizes = sizes[np.isfinite(sizes)]
    if not (largest := sizes.max(initial=0.0)):
        raise InvalidParameters("the update has no finite value except 0; train first, or pass another update")

    def error(clip: float) -> float:
        # The mean squared error of random rounding is a sixth of a squared step.
        step = clip / ((1 << (bits - 1)) - 1)
        return float(np.square(np.maximum(sizes - clip, 0)).sum()) + sizes.size * step**2 / 6

    return float(f"{_ROOM * min((largest * 2 ** (-place / 4) for place in range(_CLIPS)), key=error):.2g}")


def require_none(unknown: Mapping[str, object], call: Callable[..., object], protocol: ChosenProtocol) -> None:
    """Refuse unknown arguments, and suggest a similar one or where to pass a protocol's option."""
    known, options = [name for name in signature(call).parameters if name != "unknown"], find(protocol).settings
    for name in unknown:
        if name in declared(options):
            raise InvalidParameters(
                f"{name} is an option of the protocol: from {options.__module__.rpartition('.')[0]} import "
                f"{options.__name__}, and give protocol={options.__name__}({name}=...)"
            )
        advice = suggestion(name, [*dict.fromkeys([*known, *declared(options)])])
        if not advice.startswith("did you mean"):
            advice = f"there are {', '.join(known)}; {options.__name__} has others"
        raise InvalidParameters(f"unknown argument {name}; {advice}")


def require_cohort(clients: int, corrupted: int = 0) -> None:
    """Refuse a cohort that is too small to hide a client's update."""
    if type(clients) is not int or clients < LEAST_COHORT:
        raise InvalidParameters(f"a sum of fewer than {LEAST_COHORT} clients hides nobody; got {clients!r} clients")
    if clients - corrupted < LEAST_COHORT:
        raise InvalidParameters(
            f"{corrupted} of {clients} clients may collude with the server, which then learns the other's update: "
            f"invite {LEAST_COHORT + corrupted} or more, or set corrupted={clients - LEAST_COHORT} if you trust them"
        )


def _norm_in_steps(entry: ProtocolEntry, max_norm: float, codec: ScalarQuantization) -> int:
    """Return the maximum norm in steps; refuse a protocol that cannot enforce one."""
    if "max_norms" not in declared(entry.settings):
        raise InvalidParameters(
            f"{entry.name} cannot enforce max_norm, because its servers see no individual updates: use "
            "protocol='enclave', or max_norm_unenforced, which only honest clients apply"
        )
    length, step = codec.shape[0], codec.scales[0]
    if not isinstance(cast("object", max_norm), Real) or not max_norm >= step * math.sqrt(length):
        raise InvalidParameters(
            f"max_norm must be at least {step * math.sqrt(length):.6g}, one step for each of {length} values; got "
            f"{max_norm!r:.40}: raise it, or use more bits"
        )
    return min(math.floor(max_norm / step), MOST_NORM_STEPS)


def planned(
    entry: ProtocolEntry,
    clients: int,
    *,
    settings: Mapping[str, Any],
    dropped: int | None = None,
    corrupted: int | None = None,
) -> Any:  # noqa: ANN401 -- the protocol's own
    """Return a protocol's settings for a cohort.

    Args:
        settings: settings by name, which replace those planned from the cohort.
    Raises:
        InvalidParameters: the protocol has no such setting or no such session of this number of clients, or noise is
            set, which the quick interface does not plan.
    """
    if settings.get("noise_multiplier") is not None:
        raise InvalidParameters(
            "the quick interface cannot add noise, because its rings have no room for it. Open a session of the "
            "protocol with a codec that has room, as `secagg round --noise` and training do"
        )
    corrupted = usual_corrupted(clients) if corrupted is None else corrupted
    require_cohort(clients, corrupted)
    facts = {"population": clients, "corrupted": corrupted, "maximum_cohort": clients}
    late = int(settings.get("late", 0))
    most = usual_dropped(clients) if dropped is None else dropped

    def planned_for(leaving: int) -> Any:  # noqa: ANN401 -- the protocol's own, or None
        told = facts | {"dropped": leaving, "minimum_cohort": max(LEAST_COHORT, clients - leaving - late)}
        made = planned_settings(entry, told, settings)
        return made if entry.takes(made, clients) and (getattr(made, "minimum_cohort", None) or 0) <= clients else None

    if (made := planned_for(most)) is not None:
        return made
    tolerated = bisect_left(range(most), x=True, key=lambda leaving: planned_for(leaving) is None) - 1
    if dropped is None and (made := planned_for(max(0, tolerated))) is not None:
        return made
    who = f"{clients} clients with {corrupted} corrupted"
    if tolerated < 0:
        raise InvalidParameters(
            f"{entry.name} has no session of {who}; invite more clients, or lower your requirements"
        )
    can = f"at most {tolerated + late}" if tolerated + late else "no"
    raise InvalidParameters(
        f"{who} tolerate {can} dropouts; you asked for {most + late}. Plan for fewer, or invite more clients"
    )
