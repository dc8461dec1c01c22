"""A client of one message under a server that sends any offers, and a process that may end at any write.

The library's own ``Client`` and its ledger are asked for two sums of one round, for another round, in this epoch and in
the next, with an update for a new model or for the same one, which has one attempt. Its process ends at each write.
There must not be two uploads of one update, two uploads for one round, or an upload for an epoch that has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, product
from typing import NamedTuple

from one_message_cast import Cast, Setting
from report import Report, steps_to
from secagg.errors import SecAggError
from secagg.protocols.one_message.client import ClientRecord

CLIENT = 1
UPDATES = "uv"
MOST_UPLOADS = 3
End = tuple[int, str]
"""The write that the client's process does not survive, and whether it reached the disk."""


class Offered(NamedTuple):
    """A request to a client."""

    epoch: int
    above: int
    """By how much the cohort exceeds the minimum; it makes two offers of one round differ."""
    round_number: int


OFFERED = (Offered(1, 0, 0), Offered(1, 1, 0), Offered(1, 0, 1), Offered(2, 0, 0), Offered(2, 0, 2))


class Uploaded(NamedTuple):
    """An upload of a client, in the order of first appearance."""

    offered: Offered
    update: str
    message: bytes


Said = tuple[Uploaded, ...]
World = tuple[bytes, Said]


def explore() -> Report:
    """Ask for everything until nothing new appears, or a fault does."""
    report = Report()
    search = _Search({number: Cast(Setting(3, 0), number) for number in (1, 2)}, report)
    start: World = (b"", ())
    came_from: dict[World, tuple[World, str] | None] = {start: None}
    frontier = [start]
    while frontier:
        world = frontier.pop(0)
        for title, after in search.after(world):
            if after in came_from:
                continue
            came_from[after] = world, title
            report.revealing += bool(after[1])
            fault = _fault(after[1])
            if fault is not None or len(after[1]) > MOST_UPLOADS:
                report.fault = fault or "a client uploaded more often than it should"
                report.trace, report.schedules = steps_to(came_from, after), len(came_from)
                return report
            frontier.append(after)
    report.schedules = len(came_from)
    return report


def _fault(said: Iterable[Uploaded]) -> str | None:
    for one, other in combinations(said, 2):
        if one.update == other.update:
            return "one update in two uploads"
        if one.offered.round_number == other.offered.round_number:
            return "two uploads for one round"
        if one.offered.epoch > other.offered.epoch:
            return "an upload for an older epoch than the newest that was seen"
    return None


def _model_of(update: str) -> bytes:
    return hashlib.sha256(update.encode()).digest()


class _Search:
    """A client, with any stored record."""

    def __init__(self, casts: Mapping[int, Cast], report: Report) -> None:
        self._casts, self._report, self._made_of = casts, report, dict[bytes, str]()
        self._offers = {
            (one, update): casts[one.epoch].offer(one.round_number, model=_model_of(update), above=one.above).encode()
            for one, update in product(OFFERED, UPDATES)
        }

    def after(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what can happen next; the process ends after each write, or before the first."""
        for offered, update in product(OFFERED, UPDATES):
            title = f"update {update} for epoch {offered.epoch}, round {offered.round_number}"
            title += f", a cohort of {offered.above} more"
            after, writings = self._asked(world, offered, update, None)
            yield title, after
            for writing in range(writings):
                for when in ("before", "after"):
                    end = f", and ends {when} writing {writing + 1}"
                    yield title + end, self._asked(world, offered, update, (writing, when))[0]

    def _asked(self, world: World, offered: Offered, update: str, ends: End | None) -> tuple[World, int]:
        """Ask a client with a stored record; return the new record, its answer, and the number of writes."""
        stored, said = world
        records, cast = [stored], self._casts[offered.epoch]
        self._report.calls += 1

        def store(record: bytes) -> None:
            if ends == (len(records) - 1, "before"):
                raise OSError
            records.append(record)
            kept = ClientRecord.decode(record).upload
            if kept:
                self._made_of.setdefault(kept, update)
            if ends == (len(records) - 2, "after"):
                raise OSError

        coins = hashlib.sha256(repr((stored, said, offered, update)).encode()).hexdigest()
        client = cast.client(CLIENT, stored or None, store, coins)
        try:
            model = _model_of(update)
            reply = client.join(
                cast.subject(offered.round_number, model=model), cast.update(CLIENT, update, model)
            ).answer(self._offers[offered, update])
        except SecAggError:
            self._report.refused += 1
            return (records[-1], said), len(records) - 1
        except OSError:
            return (records[-1], said), len(records) - 1
        of = self._made_of.setdefault(reply, update)
        # The same bytes again are not new, whatever was asked.
        is_known = any(one.message == reply for one in said)
        said = said if is_known else (*said, Uploaded(offered, of, reply))
        return (records[-1], said), len(records) - 1
