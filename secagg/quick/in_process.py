"""Sums and counts of many clients in one process, with real cryptography; for tests and simulations."""

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
from secagg.session.client_policy import USUAL_BITS
from secagg.session.registry import ChosenProtocol, ProtocolEntry, find, given_in
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from secagg.simulation.rehearsal import spread_dropouts

from .model_session import LOG, Form, Session, planned, require_none
from .trees import leaves

_TASK: Final = b"a sum in one process"
_SHOWN: Final = 4
Value = TypeVar("Value")
Updates = Mapping[Any, Form] | Sequence[Form]
"""One update per client, by name or position."""


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
    """Base of results that print as a few lines in a terminal and as a table in a notebook."""

    __slots__ = ()

    def summary(self) -> Mapping[str, object]:
        """Return the rows to show, by name."""
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
    """The sum, in the form of the updates; with ``examples``, each update is multiplied by its number of examples."""
    mean: Form
    """The mean, in the form of the updates; with ``examples``, weighted by them."""
    counted: tuple[Hashable, ...]
    """Names of the clients whose updates are in the sum."""
    left_out: Mapping[Hashable, str]
    """Names of the other clients, with reasons."""
    examples: int | None
    """Total number of examples, each client's clamped as in its weight; None with equal weights."""
    trained: int
    """Number of clients in the sum that had any examples."""
    clipped: int
    """Number of values in all updates that were clipped, or NaN, which counts as 0."""
    step: float
    """Maximum rounding error of one value, in addition to clipping."""
    bytes_sent: int
    """Mean number of bytes sent by a client."""
    bytes_received: int
    """Mean number of bytes received by a client."""
    seconds: float
    """Computing time of all clients and the server together."""

    @property
    def failed(self) -> int:
        """Number of clients in the sum that had no examples."""
        return len(self.counted) - self.trained

    def summary(self) -> dict[str, object]:
        """Return what a terminal and a notebook show: numbers, and a few names, but no values."""
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
    """Sum updates by a protocol, with the server and all clients in this process.

    Args:
        updates: one per client: arrays of NumPy, torch, JAX or TensorFlow, or dictionaries and lists of these.
        clip: maximum absolute value; larger values are clipped.
        bits: bits of one value, 2 to 16.
        drop: number of clients that drop out before the upload, or which ones.
        examples: one number per client, whose weight is examples / full, at most 1 and at least 1/4, or 0 if it has no
            examples (default: equal weights).
        full: number of examples that count fully (default: the largest number, which is not secret here).
        protocol: a name, options such as ``EnclaveOptions(minimum_cohort=5)``, or the entry of a custom protocol.
        only: patterns of tensors to sum, such as ``"*lora*"``.
        exclude: patterns of tensors to leave out, such as ``"*num_batches_tracked"`` of batch normalization.
        corrupted: number of clients that may collude with the server (default: one in ten).
        max_norm: see ``Session.for_model``.
        max_norm_unenforced: see ``Session.for_model``.
    Raises:
        SecAggError: nothing is released; the message says why.
    """
    require_none(unknown, aggregate, protocol)
    named = by_name(updates)
    if not named:
        raise InvalidParameters("there are no updates to sum; pass one for each client")
    weighing = _examples(named, examples)
    if weighing is None and full is not None:
        raise InvalidParameters("full only applies together with examples; pass both, or leave out full")
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
    """Return the mean of updates; takes the arguments of ``aggregate``."""
    return aggregate(updates, clip=clip, **arguments).mean  # pyright: ignore[reportArgumentType]


def leaving(drop: int | Collection[Hashable], named: Mapping[Any, object]) -> int:
    """Return the number of clients that drop out."""
    if isinstance(drop, Collection):
        if strangers := [name for name in drop if name not in named]:
            raise InvalidParameters(f"drop names {strangers[0]!r}, which is not a client")
        return len(set(drop))
    if isinstance(cast("object", drop), bool) or not hasattr(drop, "__index__"):
        raise InvalidParameters(f"drop must be a number of clients, or their names; got {drop!r}")
    if not 0 <= index(drop) < len(named):
        raise InvalidParameters(f"drop must be between 0 and {len(named) - 1} for {len(named)} clients; got {drop}")
    return index(drop)


def simulated(
    entry: ProtocolEntry,
    settings: Any,  # noqa: ANN401 -- the protocol's own
    subject: Subject,
    making: Mapping[Any, Callable[[], LazyUpdate]],
    drop: int | Collection[Hashable],
) -> tuple[Released, Measured]:
    """Run one session in this process; ``making`` maps each client's name to the function that returns its update."""
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
    """Return values by their clients' names, or by their positions."""
    return cast("Mapping[Any, Value]", values) if isinstance(values, Mapping) else dict(enumerate(values))


# --- Private ----------------------------------------------------------------------------------------------------------


def _examples(
    named: Mapping[Any, object], examples: Mapping[Any, int] | Collection[int] | None
) -> Mapping[Any, int] | None:
    if examples is None:
        return None
    given = by_name(examples)
    if given.keys() != named.keys():
        raise InvalidParameters("examples must have one number for each update, by the same names")
    if strange := [each for each in given.values() if isinstance(each, bool) or not hasattr(each, "__index__")]:
        raise InvalidParameters(f"a number of examples must be an integer; got {strange[0]!r}")
    return {name: index(each) for name, each in given.items()}


def _counting(weighing: Mapping[Any, int], full: int) -> Mapping[Any, int]:
    """Return each client's number of examples clamped as in its weight, and log how many numbers changed."""
    counting = {name: clamped_examples(given, full) for name, given in weighing.items()}
    if changed := sum(counting[name] != given for name, given in weighing.items()):
        ends = f"more than {full} examples or fewer than {clamped_examples(1, full)}"
        LOG.warning("%d of %d clients have %s, and count as that many: full is %d", changed, len(weighing), ends, full)
    return counting


def _say_of_guessing(session: Session[Any], named: Mapping[Any, Any], weighing: Mapping[Any, int]) -> None:
    """Warn if a weighted sum may determine all values; in one process their entropy can be measured."""
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
    return {names[client]: why.get(client, "dropped out") for client in missing}


# --- Federated analytics: histograms and heavy hitters ----------------------------------------------------------------

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
    """Return the number of clients that have each value.

    Args:
        values: one value per client; a value outside all bins is not counted, because an error would reveal it.
        bins: the values to count.
        drop: number of clients that drop out before the upload, or which ones.
        protocol: a name, options such as ``EnclaveOptions(minimum_cohort=5)``, or the entry of a custom protocol.
        corrupted: number of clients that may collude with the server (default: one in ten).
    Raises:
        InvalidParameters: there are no bins, or two bins are equal.
        SecAggError: nothing is released; the message says why.
    """
    require_none(unknown, histogram, protocol)
    places = {value: place for place, value in enumerate(bins)}
    if not places or len(places) < len(bins):
        raise InvalidParameters("bins must be distinct, and there must be at least one")
    # The last place counts all other values, so that every client sends a one.
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
    """Return the strings that at least ``least`` clients have, with their counts, most frequent first.

    Each session extends the prefixes that enough clients have by one byte. An enclave withholds the counts below
    ``least``; other protocols release them to the server, although they are not returned. There is one session per byte
    of the longest heavy string, so hundreds of clients take many seconds; LightSecAgg and the enclave are faster.

    Args:
        values: one string per client. A string that is too long, contains a null character or is invalid in UTF-8 is
            not counted, because an error would reveal it.
        least: minimum number of clients of a heavy string, at least 2.
        longest: maximum length of a string in UTF-8 bytes.
        protocol: a name, options such as ``EnclaveOptions(minimum_cohort=5)``, or the entry of a custom protocol.
        corrupted: number of clients that may collude with the server (default: one in ten).
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
        raise InvalidParameters(f"longest must be at least 1 byte; got {longest!r}")
    named = by_name(values)
    # The error does not quote the client's value, which is private.
    if not all(isinstance(value, str) for value in cast("Iterable[object]", named.values())):
        raise InvalidParameters("a client's value is not a string; convert it, or use histogram")
    texts = {name: _ended(value, longest) for name, value in named.items()}
    growing, found = [b""], dict[str, int]()
    for length in range(1, longest + 2):
        if not growing:
            break
        if len(growing) > MOST_PREFIXES:
            raise InvalidParameters(f"{len(growing)} prefixes are heavy; the limit is {MOST_PREFIXES}: raise least")
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
    """Return the number of clients that chose each place, from a sum of one-hot vectors.

    Counts below ``least`` are zero if the protocol can withhold them.
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
    """Return the bin of a value, or the last place for values outside all bins or without a hash."""
    try:
        return places.get(value, len(places))
    except TypeError:
        return len(places)


def _ended(value: str, longest: int) -> bytes:
    """Return a string's bytes with an end mark; empty if the string is not counted."""
    try:
        text = value.encode()
    except UnicodeEncodeError:
        return b""
    return b"" if _END in text or len(text) > longest else text + _END
