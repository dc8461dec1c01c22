"""Federated analytics: how many clients have which value, in one process; nobody's value is seen by itself."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack, cast

import numpy as np

from secagg.contract import Layout, Payload, RingSegment
from secagg.contract.layout import RowSegment, Segment
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT
from secagg.session.registry import ProtocolEntry, ProtocolName, find
from secagg.session.roles import LateUpdate, Subject, Update

from .in_process import by_name, leaving, simulated
from .model_session import CohortSettings, planned

Value = TypeVar("Value", bound=Hashable)
_TASK: Final = b"counts in one process"
_MODEL: Final = bytes(32)
_END: Final = b"\0"
_BYTES: Final = 256
MOST_PREFIXES: Final = 1024


def histogram(
    values: Mapping[Any, Value] | Sequence[Value],
    bins: Collection[Value],
    *,
    drop: int | Collection[Hashable] = 0,
    protocol: ProtocolName | ProtocolEntry = "pairwise",
    **settings: Unpack[CohortSettings],
) -> dict[Value, int]:
    """Return how many clients have each value.

    Args:
        values: one for each client; a value in no bin is counted in none, because a refusal would reveal it.
        bins: the values that are counted.
        drop: how many clients leave before they upload, or which ones.
        protocol: by its name, or the entry of one of your own.
        settings: any setting of the protocol.
    Raises:
        InvalidParameters: there are no bins, or two of them hold one value.
        SecAggError: nothing is released; the message says why.
    """
    places = {value: place for place, value in enumerate(bins)}
    if not places or len(places) < len(bins):
        raise InvalidParameters("two bins hold the same value, or there is none; name each value once")
    # The last place is that of every other value, so that each client sends a one.
    chosen = {name: _place(places, value) for name, value in by_name(values).items()}
    counts = _counted(chosen, len(places) + 1, drop=drop, protocol=protocol, settings=settings)
    return dict(zip(places, counts[:-1], strict=True))


def heavy_hitters(
    values: Mapping[Any, str] | Sequence[str],
    *,
    least: int,
    longest: int = 64,
    protocol: ProtocolName | ProtocolEntry = "pairwise",
    **settings: Unpack[CohortSettings],
) -> dict[str, int]:
    """Return the strings that at least so many clients have, with how many do, the most frequent first.

    Prefixes grow by one byte a session, and only those that enough clients have grow further. An enclave withholds the
    counts below ``least``; from other protocols the decoder gets them, so that more is released than is returned. Each
    byte of the longest heavy string takes a session, so hundreds of clients take many seconds; coded masks or an
    enclave are faster.

    Args:
        values: one string for each client. One that is too long, that holds a null character or that UTF-8 cannot
            hold counts as none, because a refusal would tell of it.
        least: how many clients make a string heavy; at least 2.
        longest: how many bytes of UTF-8 a string that counts has at most; there is at most one session for each.
        protocol: by its name, or the entry of one of your own.
        settings: any setting of the protocol.
    Raises:
        InvalidParameters: too many prefixes are heavy, or a number is out of range.
        SecAggError: nothing is released; the message says why.
    """
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
        counts = _counted(places, other + 1, drop=0, protocol=protocol, settings=settings, least=least)
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
    protocol: ProtocolName | ProtocolEntry,
    settings: Mapping[str, Any],
    least: int = 0,
) -> list[int]:
    """Return how many clients have each place, by a sum of vectors that are zero but for a one.

    Counts below ``least`` are zeros where the protocol can withhold them.
    """
    clients, entry = len(chosen), find(protocol)
    made = planned(entry, clients, dropped=leaving(drop, chosen, settings), settings=settings)
    segments: tuple[Segment, ...] = (RingSegment(clients.bit_length(), places),)
    if least and RowSegment in entry.segments:
        segments = (*segments, RowSegment(places, least=least))
    layout = Layout(segments)
    subject = Subject(task=_TASK, round_number=1, layout=layout, capacity=clients, model_digest=_MODEL)
    entry.require_segments(layout)

    def update_of(place: int) -> LateUpdate:
        ones = tuple(segment.ring.zeros(places) for segment in segments)
        for one in ones:
            one[place] = 1
        return LateUpdate(lambda: Update(Payload(layout, ones), _MODEL))

    making = {name: partial(update_of, place) for name, place in chosen.items()}
    released, _ = simulated(entry, made, subject, making, drop)
    return [int(count) for count in np.asarray(released.aggregate.values[0]).astype(np.uint64)]


def _place(places: Mapping[Value, int], value: Value) -> int:
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
