"""The enclave's release rules under a host that opens, fills, releases and gives up buffers in any order.

The library's own ``ReleaseRules`` is driven. Cryptography is ideal: an upload is signed by its client, so the host can
hand over the uploads that exist as often as it likes, and any that a corrupted client makes. Every sequence of calls up
to a length is tried; sequences that lead to the same state are continued once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any
from unittest import mock

from secagg.contract import Layout, RingSegment
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.enclave.trusted.buffer import BufferState, Entry, ReleaseRules
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration

COHORT = 2
HEAVY = 3
"""The honest client whose weight is twice that of the others."""
VERSIONS = (0, 1)
MODEL = bytes(32)
Replacement = tuple[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that a client has signed, with the weight that is sealed in it."""

    entry: Entry
    weight: int


@dataclass(frozen=True, slots=True)
class Taken:
    """An upload in a buffer: with its whole weight, and what its age counts."""

    upload: Upload
    weight: int
    age_weight: int


@dataclass(slots=True)
class Host:
    """A state: the rules, what is in the buffer, and what was released."""

    rules: ReleaseRules
    buffer: frozenset[Taken] = frozenset()
    released: tuple[frozenset[Taken], ...] = ()

    def key(self) -> object:
        """Return what tells states apart: everything that the rules remember, and everything that came out."""
        remembered = {name: value for name, value in vars(self.rules).items() if name != "_configuration"}
        return repr(sorted((name, _ordered(value)) for name, value in remembered.items())), self.buffer, self.released


@dataclass(slots=True)
class Report:
    """What came out of a case."""

    schedules: int = 0
    """States that were reached; each by at least one sequence of calls."""
    calls: int = 0
    refused: int = 0
    revealing: int = 0
    fault: str | None = None
    trace: tuple[str, ...] = ()
    defect: str = field(default="")


def uploads() -> list[Upload]:
    """Return the uploads that exist: three honest clients' for each model, and those that a corrupted one makes."""
    made = [
        Upload(Entry(ClientId(client), bytes([client, version]) * 8, version, MODEL), 1 + (client == HEAVY))
        for client in (1, 2, 3)
        for version in VERSIONS
    ]
    # The corrupted client signs what it likes, twice for the newest model, and as heavily as it may.
    made += [
        Upload(Entry(ClientId(4), bytes([4, number]) * 8, version, MODEL), 3) for number, version in ((0, 1), (1, 1))
    ]
    return made


def explore(depth: int, replacements: tuple[Replacement, ...] = ()) -> Report:
    """Try every sequence of this many calls, up to the first release that tells too much."""
    report = Report()
    with ExitStack() as stack:
        for name, instead in replacements:
            stack.enter_context(mock.patch.object(ReleaseRules, name, instead))
        start = Host(ReleaseRules(_configuration()))
        seen, frontier = {start.key()}, [(start, tuple[str, ...]())]
        for _ in range(depth):
            following = list[tuple[Host, tuple[str, ...]]]()
            for host, trace in frontier:
                for name, act in _calls():
                    after = Host(_copied(host.rules), host.buffer, host.released)
                    report.calls += 1
                    try:
                        act(after)
                    except SecAggError:
                        report.refused += 1
                    key = after.key()
                    if key in seen:
                        continue
                    seen.add(key)
                    report.revealing += len(after.released) > len(host.released)
                    found = _fault(after.released)
                    following.append((after, (*trace, name)))
                    if found is not None:
                        report.fault, report.trace, report.schedules = found, (*trace, name), len(seen)
                        return report
            frontier = following
        report.schedules = len(seen)
    return report


def _calls() -> Iterator[tuple[str, Callable[[Host], None]]]:
    for version in VERSIONS:
        yield f"open {version}", lambda host, version=version: _open(host, version)  # type: ignore[misc]
    for upload in uploads():
        name = f"take {upload.entry.client} of model {upload.entry.version}"
        yield name, lambda host, upload=upload: _take(host, upload)  # type: ignore[misc]
    yield "release", _release
    yield "give up", _give_up


def _open(host: Host, version: int) -> None:
    host.rules.open(version, MODEL)
    host.buffer = frozenset()


def _take(host: Host, upload: Upload) -> None:
    """Do what the enclave does with an upload that opens."""
    age_weight = host.rules.staleness_weight(upload.entry)
    host.rules.require_weight(upload.weight, upload.entry.client)
    weight = upload.weight * age_weight
    host.rules.enter(upload.entry, weight, age_weight)
    host.buffer |= {Taken(upload, weight, age_weight)}


def _release(host: Host) -> None:
    try:
        _ = host.rules.buffer
        host.rules.require_releasable()
    finally:
        if host.rules.state is BufferState.CLOSED:
            host.buffer = frozenset()
    host.released = (*host.released, host.buffer)
    host.rules.close()
    if host.rules.state is BufferState.CLOSED:
        host.buffer = frozenset()


def _give_up(host: Host) -> None:
    host.rules.close()
    host.buffer = frozenset()


def _fault(released: tuple[frozenset[Taken], ...]) -> str | None:
    for sum_ in released:
        clients = {taken.upload.entry.client for taken in sum_}
        if len(clients) < COHORT:
            return f"a sum over {sorted(map(str, clients))} alone"
        total, largest = sum(taken.weight for taken in sum_), max(taken.weight for taken in sum_)
        if largest * COHORT > total:
            return "a sum in which one client outweighs the others"
        ages = [taken.age_weight for taken in sum_]
        if min(ages.count(age) for age in ages) < COHORT:
            return "a sum in which one client's age stands alone"
    for one, other in combinations(released, 2):
        if {taken.upload for taken in one} & {taken.upload for taken in other}:
            return "one upload in two sums, whose difference tells of the rest"
    return None


def _configuration() -> EnclaveConfiguration:
    return EnclaveConfiguration(
        task=b"model",
        suite=Suite.CLASSIC,
        authority=b"a" * 32,
        layout=Layout((RingSegment(20, 1),)),
        minimum_cohort=COHORT,
        maximum_cohort=3,
        maximum_weight=3,
        staleness_weights=(3, 2),
        expiry=1 << 31,
    )


def _copied(rules: ReleaseRules) -> ReleaseRules:
    """Return rules that remember the same."""
    made = copy.copy(rules)
    for name, value in vars(rules).items():
        if name != "_configuration":
            setattr(made, name, copy.deepcopy(value) if name == "_buffer" else copy.copy(value))
    return made


def _ordered(value: Any) -> str:  # noqa: ANN401 -- anything that the rules remember
    if isinstance(value, set):
        return repr(sorted(map(repr, value)))
    if hasattr(value, "__dataclass_fields__"):
        return repr([(name, _ordered(getattr(value, name))) for name in value.__dataclass_fields__])
    if isinstance(value, dict):
        return repr(sorted(map(repr, value.items())))
    return repr(value)


# --- Defects ----------------------------------------------------------------------------------------------------------

_ENTER, _CLOSE, _RELEASABLE = ReleaseRules.enter, ReleaseRules.close, ReleaseRules.require_releasable


def _forget_at_the_end(self: ReleaseRules) -> None:
    _CLOSE(self)
    self._upload_ids.clear()
    self._answered.clear()


def _forget_who(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    self.buffer.clients.clear()
    self._answered.clear()


def _count_weights_only(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    self.buffer.ages.clear()
    self.buffer.ages[1] = COHORT


def _forget_the_largest(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    self.buffer.largest_weight = 1


def _any_number(self: ReleaseRules) -> None:
    _ = self.buffer


def _stay_open(self: ReleaseRules) -> None:
    _ = self.buffer


DEFECTS: dict[str, tuple[Replacement, ...]] = {
    "enclave: uploads forgotten between buffers": (("close", _forget_at_the_end),),
    "enclave: a client counts twice": (("enter", _forget_who),),
    "enclave: ages not counted": (("enter", _count_weights_only),),
    "enclave: largest weight forgotten": (("enter", _forget_the_largest),),
    "enclave: cohort not checked": (("require_releasable", _any_number),),
    "enclave: a release leaves its buffer open": (("close", _stay_open),),
}
