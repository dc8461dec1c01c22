"""A client of one message under a server that offers it whatever it likes, and a process that ends at any writing.

The library's own ``Client`` is asked, with its ledger: for two sums of one round, for another round, in this epoch and
in the next one, with an update of a new model or of the one that it had, which has one attempt. Its process ends at
each point at which something is stored.
What must not come out: two uploads of one update, two uploads for one round, an upload for an epoch that is over.
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
"""Which of the client's writings its process does not outlive, and whether that is on the disk."""


class Offered(NamedTuple):
    """What a client is asked for."""

    epoch: int
    above: int
    """By how much its cohort is above the least: two offers of one round differ."""
    round_number: int


OFFERED = (
    Offered(1, 0, 0),
    Offered(1, 1, 0),
    Offered(1, 0, 1),
    Offered(2, 0, 0),
    Offered(2, 0, 2),
)


class Uploaded(NamedTuple):
    """An upload that left its client; of several, in the order in which they did first."""

    offered: Offered
    update: str
    message: bytes


Said = tuple[Uploaded, ...]
World = tuple[bytes, Said]


def explore() -> Report:
    """Ask for everything, until nothing new comes, or something that must not."""
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
    """A client, whatever it has stored."""

    def __init__(self, casts: Mapping[int, Cast], report: Report) -> None:
        self._casts, self._report, self._made_of = casts, report, dict[bytes, str]()
        self._offers = {
            (one, update): casts[one.epoch].offer(one.round_number, model=_model_of(update), above=one.above).encode()
            for one, update in product(OFFERED, UPDATES)
        }

    def after(self, world: World) -> Iterator[tuple[str, World]]:
        """Return what can come next; the process ends after each writing, or before the first."""
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
        """Ask a client that has stored a record; return what is stored and said then, and how often it wrote."""
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
        # The same bytes once more are nothing new, whatever was asked.
        is_known = any(one.message == reply for one in said)
        said = said if is_known else (*said, Uploaded(offered, of, reply))
        return (records[-1], said), len(records) - 1
