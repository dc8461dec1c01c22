"""Sums and counts of many clients in one process: real cryptography, and no strangers, for tests and simulations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from html import escape
from itertools import islice
from operator import index
from typing import Any, Final, Generic, Never, TypedDict, TypeVar, Unpack, cast

import numpy as np

from secagg.compression.model_update.weighting import clamped_examples
from secagg.contract import Layout, Payload, RingSegment
from secagg.contract.layout import RowSegment, Segment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.privacy.guessing import min_entropy, mixing_clients, said_guessable
from secagg.session.registry import ChosenProtocol, ProtocolEntry, find, given_in
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from secagg.simulation.rehearsal import spread_dropouts

from .model_session import LOG, USUAL_BITS, Form, Session, planned, require_none
from .trees import leaves

_TASK: Final = b"a sum in one process"
_SHOWN: Final = 4
Value = TypeVar("Value")
Updates = Mapping[Any, Form] | Sequence[Form]
"""One update for each client, by its name or its position."""


class Arguments(TypedDict, total=False):
    """Arguments of ``aggregate``."""

    bits: int
    drop: int | Collection[Hashable]
    examples: Mapping[Any, int] | Collection[int] | None
    full: int | None
    protocol: ChosenProtocol
    only: Iterable[str]
    exclude: Iterable[str]
    corrupted: int | None
    max_norm: float | None
    max_norm_unenforced: float | None


class Summary:
    """Base of results that are a few lines in a terminal, and a table in a notebook."""

    __slots__ = ()

    def summary(self) -> Mapping[str, object]:
        """Return what is shown, by its name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n  ".join([type(self).__name__, *(f"{name}: {value}" for name, value in self.summary().items())])

    def _repr_html_(self) -> str:
        cells = ((escape(name), escape(str(value))) for name, value in self.summary().items())
        return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PrivateSum(Summary, Generic[Form]):
    """A released sum and its costs."""

    total: Form
    """The sum, in the form of the updates; where clients weigh by examples, each update counts as often as these do."""
    mean: Form
    """The mean, weighted where clients weigh by examples, in the form of the updates."""
    counted: tuple[Hashable, ...]
    """Names of the clients whose updates are in the sum."""
    left_out: Mapping[Hashable, str]
    """Names of the other clients, with the reasons."""
    examples: int | None
    """Total of the examples, as they count; None where every client weighs the same."""
    trained: int
    """Number of clients in the sum that had any examples."""
    clipped: int
    """Number of values in all updates that were NaN, which counts as 0, or beyond the clip."""
    step: float
    """Largest rounding error of one value, clipping aside."""
    bytes_sent: int
    """Mean bytes sent by one client."""
    bytes_received: int
    """Mean bytes received by one client."""
    seconds: float
    """Work of all clients and the server, one after another."""

    @property
    def failed(self) -> int:
        """Number of clients in the sum that had no examples."""
        return len(self.counted) - self.trained

    def summary(self) -> dict[str, object]:
        """Return what a terminal and a notebook show: no values, and a few names."""
        tensors = [leaf for _, leaf in leaves(self.mean)]
        gone = [f"{name} ({why})" for name, why in islice(self.left_out.items(), _SHOWN)]
        shown: dict[str, object] = {"clients": f"{len(self.counted)} of {len(self.counted) + len(self.left_out)}"}
        if more := len(self.left_out) - len(gone):
            gone.append(f"{more} more")
        if gone:
            shown["left out"] = ", ".join(gone)
        if self.examples is not None:
            shown["examples"] = f"{self.examples:,}, of {self.trained} clients that trained"
        parts = f" in {len(tensors)} tensors" if tensors[1:] else ""
        shown["mean"] = f"{sum(leaf.size for leaf in tensors):,} values{parts}"
        shown["clipped"] = f"{self.clipped:,} values; all others within {self.step:.3g}"
        return shown | {"bytes of a client": f"{self.bytes_sent:,} sent, {self.bytes_received:,} received"}


def aggregate(  # noqa: PLR0913 -- all but two have defaults
    updates: Updates[Form],
    *,
    clip: float,
    bits: int = USUAL_BITS,
    drop: int | Collection[Hashable] = 0,
    examples: Mapping[Any, int] | Collection[int] | None = None,
    full: int | None = None,
    protocol: ChosenProtocol = "pairwise",
    only: Iterable[str] = (),
    exclude: Iterable[str] = (),
    corrupted: int | None = None,
    max_norm: float | None = None,
    max_norm_unenforced: float | None = None,
    **unknown: Never,
) -> PrivateSum[Form]:
    """Add updates by a protocol, everybody in this process.

    Args:
        updates: one for each client: arrays of NumPy, torch, JAX or TensorFlow, or dictionaries and lists of them.
        clip: values beyond it are clipped.
        bits: of one value; 2 to 16.
        drop: how many clients leave before they upload, or which ones.
        examples: one number for each client, which then weighs as much as examples / full, at most 1 and at least 1/4,
            and 0 without any; by default everybody weighs the same.
        full: how many examples count fully; by default the largest number, which is no secret here.
        protocol: by its name, or its options, such as ``EnclaveOptions(minimum_cohort=5)``, or your own entry.
        only: patterns of the tensors that are summed, such as ``"*lora*"``.
        exclude: patterns of those that are not, such as ``"*num_batches_tracked"`` of batch normalization.
        corrupted: how many clients may collude with the server; by default one in ten.
        max_norm: as for ``Session.for_model``.
        max_norm_unenforced: as for ``Session.for_model``.
    Raises:
        SecAggError: nothing is released; the message says why.
    """
    require_none(unknown, aggregate, protocol)
    named = by_name(updates)
    if not named:
        raise InvalidParameters("there is no update to add; pass one for each client")
    weighing = _examples(named, examples)
    if weighing is None and full is not None:
        raise InvalidParameters("full is for clients that weigh by examples=; give those too, or leave full out")
    if weighing is not None and full is None:
        full = max(1, *weighing.values())
    session = Session.for_model(
        next(iter(named.values())),
        clients=len(named),
        clip=clip,
        bits=bits,
        protocol=protocol,
        only=only,
        exclude=exclude,
        dropped=leaving(drop, named),
        full=full,
        corrupted=corrupted,
        max_norm=max_norm,
        max_norm_unenforced=max_norm_unenforced,
    )
    if weighing is not None:
        weighing = _counting(weighing, session.full)
    coins, model = SystemCoins(), ()
    subject = session.subject(task=_TASK, round_number=1, model=model)
    making = {
        name: partial(
            session.update, update, subject=subject, coins=coins, examples=(weighing or {}).get(name, 1), name=name
        )
        for name, update in named.items()
    }
    clipped = 0
    for name, update in named.items():
        try:
            clipped += session.clipped(session.shapes.vector(update))
        except Misuse as error:
            raise Misuse(f"{error} (the update of {name!r})") from None
    if weighing is not None:
        _say_of_guessing(session, named, weighing)
    released, measured = simulated(session.entry, session.settings, subject, making, drop)
    names = dict(zip(_ids(named), named, strict=True))
    stages, counted = measured.figures[:-1], [name for client, name in names.items() if client in released.counted]
    return PrivateSum(
        total=session.total(released),
        mean=session.mean(released),
        counted=tuple(counted),
        left_out=_left_out(names, released, measured),
        examples=session.counted(released).examples,
        trained=sum(weighing is None or weighing[name] > 0 for name in counted),
        clipped=clipped,
        step=session.step,
        bytes_sent=round(sum(each.bytes_up / max(1, len(each.answered)) for each in stages)),
        bytes_received=round(sum(each.bytes_down / max(1, each.sent) for each in stages)),
        seconds=sum(each.client_seconds + each.server_seconds for each in measured.figures),
    )


def mean(updates: Updates[Form], *, clip: float, **arguments: Unpack[Arguments]) -> Form:
    """Return the mean of updates; takes what ``aggregate`` takes."""
    return aggregate(updates, clip=clip, **arguments).mean  # pyright: ignore[reportArgumentType]


def leaving(drop: int | Collection[Hashable], named: Mapping[Any, object]) -> int:
    """Return how many clients leave."""
    if isinstance(drop, Collection):
        if strangers := [name for name in drop if name not in named]:
            raise InvalidParameters(f"drop names {strangers[0]!r}, which is not a client")
        return len(set(drop))
    if isinstance(cast("object", drop), bool) or not hasattr(drop, "__index__"):
        raise InvalidParameters(f"drop is how many clients leave, as an integer, or their names; got {drop!r}")
    if not 0 <= index(drop) < len(named):
        raise InvalidParameters(f"drop is 0 to {len(named) - 1} of {len(named)} clients; got {drop}")
    return index(drop)


def simulated(
    entry: ProtocolEntry,
    settings: Any,  # noqa: ANN401 -- the protocol's own
    subject: Subject,
    making: Mapping[Any, Callable[[], LazyUpdate]],
    drop: int | Collection[Hashable],
) -> tuple[Released, Measured]:
    """Run one session in this process; ``making`` has for each client, by its name, what makes its update."""
    ids = _ids(making)
    uploading = next(stage for stage in entry.stages if stage.takes_update)
    if isinstance(drop, Collection):
        gone = frozenset(client for client, name in zip(ids, making, strict=True) if name in drop)
    else:
        gone = spread_dropouts(len(ids), index(drop), [uploading])[uploading.name]
    coins = SystemCoins()
    with closing(entry.simulate(settings, coins=coins, clock=lambda: datetime.now(UTC))) as world:
        measured = Measured(world.open(subject, frozenset(ids)), between=lambda: world.bytes_between)
        joining = (
            world.member(client).join(subject, make()) for client, make in zip(ids, making.values(), strict=True)
        )
        return run(measured, joining, {uploading.name: gone}), measured


def by_name(values: Mapping[Any, Value] | Iterable[Value]) -> Mapping[Any, Value]:
    """Return values by the names of their clients, or by their positions."""
    return cast("Mapping[Any, Value]", values) if isinstance(values, Mapping) else dict(enumerate(values))


# --- Private ----------------------------------------------------------------------------------------------------------


def _examples(
    named: Mapping[Any, object], examples: Mapping[Any, int] | Collection[int] | None
) -> Mapping[Any, int] | None:
    if examples is None:
        return None
    given = by_name(examples)
    if given.keys() != named.keys():
        raise InvalidParameters("give one number of examples for each update, under the same names")
    if strange := [each for each in given.values() if isinstance(each, bool) or not hasattr(each, "__index__")]:
        raise InvalidParameters(f"a number of examples is an integer; got {strange[0]!r}")
    return {name: index(each) for name, each in given.items()}


def _counting(weighing: Mapping[Any, int], full: int) -> Mapping[Any, int]:
    """Return the examples as they count, and say of how many clients that is another number."""
    counting = {name: clamped_examples(given, full) for name, given in weighing.items()}
    if changed := sum(counting[name] != given for name, given in weighing.items()):
        ends = f"more than {full} examples or fewer than {clamped_examples(1, full)}"
        LOG.warning("%d of %d clients have %s, which count as these: full is %d", changed, len(weighing), ends, full)
    return counting


def _say_of_guessing(session: Session[Any], named: Mapping[Any, Any], weighing: Mapping[Any, int]) -> None:
    """Warn where a weighted sum can determine all values; here their entropy can be measured."""
    vectors = (np.clip(session.shapes.vector(update), -session.clip, session.clip) for update in named.values())
    entropy = min(min_entropy(np.rint(np.nan_to_num(vector) / session.step).astype(np.int64)) for vector in vectors)
    clients = mixing_clients(weighing.values())
    if clients and (said := said_guessable(sum_bits=session.codec.modulus_bits, clients=clients, entropy=entropy)):
        LOG.warning("%s", said)


def _ids(named: Collection[Any]) -> list[ClientId]:
    return [ClientId(number) for number in range(1, len(named) + 1)]


def _left_out(names: Mapping[ClientId, Any], released: Released, measured: Measured) -> dict[Hashable, str]:
    why = {client: str(error) for client, error in released.left_out.items()}
    for figures in measured.figures:
        for client, reason in figures.failed.items():
            why.setdefault(client, reason)
    missing = (client for client in names if client not in released.counted)
    return {names[client]: why.get(client, "left on the way") for client in missing}


# --- Federated analytics: how many clients have which value -----------------------------------------------------------

Bin = TypeVar("Bin", bound=Hashable)
_COUNTS: Final = b"counts in one process"
_MODEL: Final = bytes(32)
_END: Final = b"\0"
_BYTES: Final = 256
MOST_PREFIXES: Final = 1024


def histogram(
    values: Mapping[Any, Bin] | Sequence[Bin],
    bins: Collection[Bin],
    *,
    drop: int | Collection[Hashable] = 0,
    protocol: ChosenProtocol = "pairwise",
    corrupted: int | None = None,
    **unknown: Never,
) -> dict[Bin, int]:
    """Return how many clients have each value.

    Args:
        values: one for each client; a value in no bin is counted in none, because a refusal would reveal it.
        bins: the values that are counted.
        drop: how many clients leave before they upload, or which ones.
        protocol: by its name, or its options, such as ``EnclaveOptions(minimum_cohort=5)``, or your own entry.
        corrupted: how many clients may collude with the server; by default one in ten.
    Raises:
        InvalidParameters: there are no bins, or two of them hold one value.
        SecAggError: nothing is released; the message says why.
    """
    require_none(unknown, histogram, protocol)
    places = {value: place for place, value in enumerate(bins)}
    if not places or len(places) < len(bins):
        raise InvalidParameters("two bins hold the same value, or there is none; name each value once")
    # The last place is that of every other value, so that each client sends a one.
    chosen = {name: _place(places, value) for name, value in by_name(values).items()}
    counts = _counted(chosen, len(places) + 1, drop=drop, protocol=protocol, corrupted=corrupted)
    return dict(zip(places, counts[:-1], strict=True))


def heavy_hitters(
    values: Mapping[Any, str] | Sequence[str],
    *,
    least: int,
    longest: int = 64,
    protocol: ChosenProtocol = "pairwise",
    corrupted: int | None = None,
    **unknown: Never,
) -> dict[str, int]:
    """Return the strings that at least so many clients have, with how many do, the most frequent first.

    Prefixes grow by one byte a session, and only those that enough clients have grow further. An enclave withholds the
    counts below ``least``; from other protocols the decoder gets them, so that more is released than is returned. Each
    byte of the longest heavy string takes a session, so hundreds of clients take many seconds; LightSecAgg or an
    enclave are faster.

    Args:
        values: one string for each client. One that is too long, that holds a null character or that UTF-8 cannot
            hold counts as none, because a refusal would tell of it.
        least: how many clients make a string heavy; at least 2.
        longest: how many bytes of UTF-8 a string that counts has at most; there is at most one session for each.
        protocol: by its name, or its options, such as ``EnclaveOptions(minimum_cohort=5)``, or your own entry.
        corrupted: how many clients may collude with the server; by default one in ten.
    Raises:
        InvalidParameters: too many prefixes are heavy, or a number is out of range.
        SecAggError: nothing is released; the message says why.
    """
    require_none(unknown, heavy_hitters, protocol)
    if type(least) is not int or least < LEAST_COHORT:
        raise InvalidParameters(
            f"least must be at least {LEAST_COHORT}: one client's value is not a heavy hitter; got {least!r}"
        )
    if type(longest) is not int or longest < 1:
        raise InvalidParameters(f"longest is a number of bytes, 1 or more; got {longest!r}")
    named = by_name(values)
    # No error quotes a client's value, because nobody is to see it.
    if not all(isinstance(value, str) for value in cast("Iterable[object]", named.values())):
        raise InvalidParameters("a client has something else than a string; turn it into one, or take a histogram")
    texts = {name: _ended(value, longest) for name, value in named.items()}
    growing, found = [b""], dict[str, int]()
    for length in range(1, longest + 2):
        if not growing:
            break
        if len(growing) > MOST_PREFIXES:
            raise InvalidParameters(f"{len(growing)} prefixes are heavy, and {MOST_PREFIXES} may be; raise least")
        starts = {prefix: row for row, prefix in enumerate(growing)}
        other = _BYTES * len(starts)

        places = {
            name: other if row is None else _BYTES * row + text[length - 1]
            for name, text in texts.items()
            for row in [starts.get(text[: length - 1]) if len(text) >= length else None]
        }
        counts = _counted(places, other + 1, drop=0, protocol=protocol, corrupted=corrupted, least=least)
        heavy = {
            growing[place // _BYTES] + bytes([place % _BYTES]): count
            for place, count in enumerate(counts[:-1])
            if count >= least
        }
        found |= {prefix[:-1].decode(): n for prefix, n in heavy.items() if prefix.endswith(_END)}
        growing = [prefix for prefix in heavy if not prefix.endswith(_END)]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _counted(  # noqa: PLR0913 -- all but two by name
    chosen: Mapping[Any, int],
    places: int,
    *,
    drop: int | Collection[Hashable],
    protocol: ChosenProtocol,
    corrupted: int | None,
    least: int = 0,
) -> list[int]:
    """Return how many clients have each place, by a sum of vectors that are zero but for a one.

    Counts below ``least`` are zeros where the protocol can withhold them.
    """
    clients, entry = len(chosen), find(protocol)
    made = planned(entry, clients, settings=given_in(protocol), dropped=leaving(drop, chosen), corrupted=corrupted)
    segments: tuple[Segment, ...] = (RingSegment(clients.bit_length(), places),)
    if least and RowSegment in entry.segments:
        segments = (*segments, RowSegment(places, least=least))
    layout = Layout(segments)
    subject = Subject(task=_COUNTS, round_number=1, layout=layout, capacity=clients, model_digest=_MODEL)
    entry.require_segments(layout)

    def update_of(place: int) -> LazyUpdate:
        ones = tuple(segment.ring.zeros(places) for segment in segments)
        for one in ones:
            one[place] = 1
        return LazyUpdate(lambda: Update(Payload(layout, ones), _MODEL))

    making = {name: partial(update_of, place) for name, place in chosen.items()}
    released, _ = simulated(entry, made, subject, making, drop)
    return [int(count) for count in np.asarray(released.aggregate.values[0]).astype(np.uint64)]


def _place(places: Mapping[Bin, int], value: Bin) -> int:
    """Return the bin of a value, or the last place, which is for values in no bin and for values without a hash."""
    try:
        return places.get(value, len(places))
    except TypeError:
        return len(places)


def _ended(value: str, longest: int) -> bytes:
    """Return a string's bytes with their end; none at all, which is not a string's, where it does not count."""
    try:
        text = value.encode()
    except UnicodeEncodeError:
        return b""
    return b"" if _END in text or len(text) > longest else text + _END
