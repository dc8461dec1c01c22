"""Everything that a platform decides about sums of one model's updates, from the model and the cohort.

Server and clients make the same ``Session`` from the same model and the same numbers, so they need to agree on nothing
else; a client refuses a session about anything that differs.
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
from secagg.parameters import LEAST_COHORT, require_integer, usual_corrupted, usual_dropped
from secagg.session.registry import (
    ChosenProtocol,
    Clock,
    ProtocolEntry,
    Simulation,
    find,
    given_in,
    planned_settings,
)
from secagg.session.roles import LazyUpdate, Released, ServerSession, Subject, Update

from .rows import Rows, require_floor
from .trees import Shapes, Tree, Vector, digest_of

if TYPE_CHECKING:
    from secagg.compression.fixed_point import FixedPoint

MOST_NORM_STEPS: Final = (1 << 40) - 1
USUAL_BITS: Final = 16
MOST_EXAMPLES: Final = 1 << 30
_NOTICEABLE: Final = 0.01
_CLIPS: Final = 40
"""Number of clips that are compared, each a quarter of a power of two below the one before."""
_ROOM: Final = 1.5
_BLOCK: Final = 1 << 16
"""Number of values whose intermediate ones stay in the processor's cache."""
_LAST_ROUND: Final = (1 << 64) - 1
Form = TypeVar("Form")
Model = TypeVar("Model")
"""Type of a model and of its updates."""
LOG: Final = logging.getLogger("secagg.quick")


# --- Sessions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Generic[Form]):
    """Settings under which the updates of one model are summed; make it with ``for_model``."""

    entry: ProtocolEntry
    settings: Any
    shapes: Shapes
    codec: ScalarQuantization
    clip: float
    like: Form = field(repr=False)
    rows: Rows | None = None
    """Rows that are withheld where few clients touched them."""
    weighed: ModelUpdate | None = None
    """The codec with counts of examples, where clients weigh by these."""
    max_norm: float = math.inf
    """Norm to which honest clients scale their updates before they are encoded."""
    zero_points: tuple[int, ...] = ()
    """Middles of what an enclave bounds, where one is not 0."""
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
            clients: how many are invited.
            clip: values beyond it are clipped; a client that clips more than one value in a hundred says so in its log.
            bits: of one value, 2 to 16. Rounding is random, so that means of values within the clip are unbiased.
            protocol: by its name; or by its options, such as ``EnclaveOptions(minimum_cohort=5)``; or your own entry.
            only: patterns, or one, of the tensors that are summed, such as ``"*lora*"``; by default every one.
            exclude: patterns, or one, of those that are not, such as ``"*num_batches_tracked"``.
            dropped: how many may leave on the way; by default one in three of up to 30 clients, 10 of up to 100, one in
                ten of more, or as many as the protocol tolerates.
            corrupted: how many may work with the server; by default one in ten, which default policies assume too.
            max_norm: longest update that counts as it is; an enclave scales longer ones down, also those of malicious
                clients, and sees every update to do so. Other protocols refuse it.
            max_norm_unenforced: the same with any protocol, and only honest clients scale their updates down.
            full: how many examples count fully, where clients weigh by their examples: as much as examples / full, at
                most 1 and at least 1/4, and 0 without any. By default every client weighs the same; with full=1 as
                well, and the result says how many clients had any examples.
            all_clients: how many are invited in all groups whose sums are added; by default there is one group.
            at_least: withholds rows, such as embeddings of words, that fewer clients changed: they come back as zeros.
                Takes an enclave; clients who say another number refuse each other's sessions.
            rows: patterns, or one, of the tensors that have rows, which are the indices of their first axis; by default
                those of two or more dimensions. Others are released whole: name a vector with a value for each word.
        Raises:
            InvalidParameters: no such session is safe, or a number is out of range; the message says what to change.
        """
        require_none(unknown, Session.for_model, protocol)
        if type(bits) is not int or not LEAST_BITS <= bits <= MAXIMUM_BITS:
            raise InvalidParameters(f"bits is in {LEAST_BITS}..{MAXIMUM_BITS}; got {bits!r}")
        require_cohort(clients)
        if not isinstance(cast("object", clip), Real) or not 2.0**-100 <= clip <= 2.0**100:
            raise InvalidParameters(f"clip is a positive number in 2^-100..2^100; got {clip!r:.40}")
        *patterns, named = ((each,) if isinstance(each, str) else tuple(each) for each in (only, exclude, rows))
        shapes, entry, settings = Shapes.of(like, *patterns), find(protocol), given_in(protocol)
        if all_clients is not None and not all_clients >= clients:
            raise InvalidParameters(f"{clients} clients are a group of {clients} or more; got {all_clients} in all")
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
            raise InvalidParameters(f"max_norm_unenforced is a positive number; got {max_norm_unenforced!r:.40}")
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
                    "with at_least every client weighs the same: among the few of a row a number of examples tells one "
                    "apart; leave out full and examples"
                )
            require_floor(at_least, entry, clients, usual_corrupted(clients) if corrupted is None else corrupted)
            kept = Rows.of(shapes, codec.layout, named, at_least)
        elif named:
            raise InvalidParameters("rows are for at_least, how many clients a row needs to be released; give both")
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
        """The distance of two neighbouring codes: no value's error is larger."""
        return self.codec.scales[0]

    def subject(self, *, task: bytes, round_number: int, model: Tree) -> Subject:
        """Return what one session is about; each side makes its own from the model that it holds."""
        if not isinstance(cast("object", task), bytes):
            raise InvalidParameters(f"a task is bytes, such as b'keyboard'; got {task!r}")
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
        """Return everybody in one process, for tests and experiments; that protects nobody."""
        return self.entry.simulate(self.settings, coins=coins, clock=clock, threads=threads)

    def update(
        self, tree: Tree, *, subject: Subject, coins: Coins, examples: int = 1, name: object = None
    ) -> LazyUpdate:
        """Return a client's update for ``member.join``, encoded when the upload needs it; ``name`` is for its log."""
        digest = subject.model_digest or bytes(32)
        for _ in self.shapes.pieces(tree):  # An update of another form is refused here, before the server awaits it.
            pass
        return LazyUpdate(
            lambda: Update(self.encode(tree, coins, name, examples), digest), zero=lambda: self.zero(coins)
        )

    def zero(self, coins: Coins) -> Payload:
        """Return the encoding of an update of zeros without any examples."""
        return self._encoded(np.zeros(self.shapes.length), coins, 0)

    def encode(self, tree: Tree, coins: Coins, name: object = None, examples: int = 1) -> Payload:
        """Encode an update, NaN as 0, and log what clipping or rounding takes from it, and where."""
        vector, whose = self.shapes.vector(tree), "this update" if name is None else f"the update of {name!r}"
        self._cut(vector, whose)
        if self.weighed is not None:
            counted = clamped_examples(examples, self.full)
            if counted != examples:
                LOG.warning("%s has %d examples, which count as %d: full is %d", whose, examples, counted, self.full)
            examples = counted
        return self._encoded(vector, coins, examples)

    def _cut(self, vector: Vector, whose: str) -> None:
        """Cut values to the clip and the vector to its norm, in place, and log what is lost, and where."""
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
            LOG.warning("%s has a norm of %.3g, and is scaled down to %g", whose, norm, self.max_norm)
            vector *= self.max_norm / norm

    def _warn_once(self, sentence: str, *found: object) -> None:
        """Warn of the first update that needs another clip; others of the same session need it too."""
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
        """Number of examples that count fully; 1 where clients weigh the same."""
        return 1 if self.weighed is None else round(cast("FixedPoint", self.weighed.schemes[COUNTS]).clip)

    def counted(self, released: Released) -> Counted:
        """Return the total of examples in a sum, and how many clients had any."""
        if self.weighed is None:
            return Counted(contributors=released.aggregate.contributors)
        return self.weighed.counted(released.aggregate)

    def clipped(self, vector: Vector) -> int:
        """Return how many values are NaN or beyond the clip."""
        blocks = (vector[start : start + _BLOCK] for start in range(0, vector.size, _BLOCK))
        return sum(int(np.count_nonzero(~(np.abs(block) <= self.clip))) for block in blocks)

    def total(self, released: Released) -> Form:
        """Return the sum of the updates, each as often as its examples count, in the form of the model."""
        found = self._sum(released.aggregate)
        found *= self.full
        total: Form = self.shapes.tree(found, self.like)
        return total

    def mean(self, released: Released) -> Form:
        """Return the mean of the updates, weighted where clients weigh by examples, in the form of the model.

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
        """Return, for each tensor with rows, which of them were released; the others are zeros in sums and means."""
        return {} if self.rows is None else self.rows.released(released.aggregate)

    def _sum(self, aggregate: Aggregate) -> Vector:
        if self.weighed is not None:
            aggregate = self.weighed.part(aggregate, UPDATE)
        elif self.rows is not None:
            aggregate = self.rows.joined(aggregate)
        return self.codec.decode(aggregate)


def clip_for(update: Tree, *, bits: int = USUAL_BITS) -> float:
    """Propose a clip: what leaves an update the least error of clipping and rounding together, and half as much again.

    Others' changes may be larger than this update's. A clip is public and says about how large the update is that it
    was found from, so take one of public or made-up data.

    Raises:
        InvalidParameters: nothing in it is finite and not 0.
    """
    sizes = np.abs(Shapes.of(update).vector(update)).astype(np.float64)
    sizes = sizes[np.isfinite(sizes)]
    if not (largest := sizes.max(initial=0.0)):
        raise InvalidParameters("an update that changes nothing has no clip; train first, or name another one")

    def error(clip: float) -> float:
        # A value that is rounded at random is off by a sixth of a squared step on average.
        step = clip / ((1 << (bits - 1)) - 1)
        return float(np.square(np.maximum(sizes - clip, 0)).sum()) + sizes.size * step**2 / 6

    return float(f"{_ROOM * min((largest * 2 ** (-place / 4) for place in range(_CLIPS)), key=error):.2g}")


def require_none(unknown: Mapping[str, object], call: Callable[..., object], protocol: ChosenProtocol) -> None:
    """Refuse arguments that a call does not have, and say what may be meant, or where an option is given."""
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
        raise InvalidParameters(f"there is no argument {name}; {advice}")


def require_cohort(clients: int, corrupted: int = 0) -> None:
    """Refuse a cohort that no sum hides."""
    if type(clients) is not int or clients < LEAST_COHORT:
        raise InvalidParameters(f"a sum of fewer than {LEAST_COHORT} clients hides nobody; got {clients!r} clients")
    if clients - corrupted < LEAST_COHORT:
        raise InvalidParameters(
            f"of {clients} clients {corrupted} may work with the server, which then sees what the other one sent: "
            f"invite {LEAST_COHORT + corrupted} or more, or say corrupted={clients - LEAST_COHORT} if you trust them"
        )


def _norm_in_steps(entry: ProtocolEntry, max_norm: float, codec: ScalarQuantization) -> int:
    """Return the norm of an update in steps, where the protocol enforces one."""
    if "max_norms" not in declared(entry.settings):
        raise InvalidParameters(
            f"nobody enforces max_norm with {entry.name}, whose servers see no update alone: take protocol='enclave', "
            "or max_norm_unenforced, to which only honest clients scale"
        )
    length, step = codec.shape[0], codec.scales[0]
    if not isinstance(cast("object", max_norm), Real) or not max_norm >= step * math.sqrt(length):
        raise InvalidParameters(
            f"max_norm is a number of at least {step * math.sqrt(length):.6g}, a step for each of {length} values; got "
            f"{max_norm!r:.40}; take more bits, or a larger one"
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
        settings: any of them by name, in place of what follows from the cohort.
    Raises:
        InvalidParameters: the protocol has no such setting, no session of so many clients has it, or there is to be
            noise, whose bounds are in a codec's steps.
    """
    if settings.get("noise_multiplier") is not None:
        raise InvalidParameters(
            "the quick interface plans no noise: its rings have no room for any. Open a session of the protocol with "
            "a codec whose ring has, as `secagg round --noise` and training do"
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
        raise InvalidParameters(f"{entry.name} has no session of {who}; invite more clients, or ask for less")
    can = f"at most {tolerated + late}" if tolerated + late else "no"
    raise InvalidParameters(
        f"{who} tolerate {can} dropouts; you asked for {most + late}. Plan for fewer, or invite more clients"
    )
