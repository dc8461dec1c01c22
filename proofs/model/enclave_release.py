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
from math import gcd
from typing import Any
from unittest import mock

from secagg.contract import Layout, RingSegment
from secagg.errors import PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.enclave.trusted.buffer import BufferState, Entry, ReleaseRules
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration

COHORT = 2
HEAVY = (2, 3)
"""The honest clients whose weight is twice that of the other one."""
VERSIONS = (0, 1)
MODELS = {version: bytes([version]) * 32 for version in VERSIONS}
RELABELLED = (2, MODELS[1])
"""The host's third number, for a model that it has announced under another."""
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
        Upload(Entry(ClientId(client), bytes([client, version]) * 8, version, MODELS[version]), 1 + (client in HEAVY))
        for client in (1, 2, 3)
        for version in VERSIONS
    ]
    # The corrupted client signs what it likes, twice for the newest model and once for the old one; it weighs the most.
    made += [
        Upload(Entry(ClientId(4), bytes([4, number]) * 8, version, MODELS[version]), 3)
        for number, version in ((0, 1), (1, 1), (2, 0))
    ]
    # What an honest client would seal a second time, if the host could give its model another number.
    version, digest = RELABELLED
    made += [Upload(Entry(ClientId(client), bytes([client, version]) * 8, version, digest), 2) for client in HEAVY]
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
    for version, digest in (*MODELS.items(), RELABELLED):
        yield f"open {version}", lambda host, version=version, digest=digest: _open(host, version, digest)  # type: ignore[misc]
    for upload in uploads():
        name = f"take {upload.entry.client} of model {upload.entry.version}"
        yield name, lambda host, upload=upload: _take(host, upload)  # type: ignore[misc]
    yield "release", _release
    yield "give up", _give_up


def _open(host: Host, version: int, digest: bytes) -> None:
    host.rules.open(version, digest)
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
        host.rules.require_open()
        host.rules.require_releasable()
    finally:
        if host.rules.state is BufferState.CLOSED:
            host.buffer = frozenset()
    host.released = (*host.released, host.buffer)
    host.rules.close()
    if host.rules.state is BufferState.CLOSED:
        host.buffer = frozenset()


def _give_up(host: Host) -> None:
    host.rules.give_up()
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
        weights = [taken.weight // gcd(*(taken.weight for taken in sum_)) for taken in sum_]
        if any(sum(weight % modulus != 0 for weight in weights) == 1 for modulus in range(2, max(weights) + 1)):
            return "a sum whose remainder is one client's"
    for one, other in combinations(released, 2):
        if _values(one) & _values(other):
            return "one update in two sums, whose difference tells of the rest"
    return None


def _values(sum_: frozenset[Taken]) -> set[tuple[ClientId, bytes]]:
    """Return whose updates of which models are in a sum; of one model a client has one update."""
    return {(taken.upload.entry.client, taken.upload.entry.model_digest) for taken in sum_}


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

_OPEN, _ENTER, _CLOSE = ReleaseRules.open, ReleaseRules.enter, ReleaseRules.close


def _forget_at_the_end(self: ReleaseRules) -> None:
    _CLOSE(self)
    self._upload_ids.clear()
    self._answered.clear()


def _forget_versions(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    self._versions.clear()


def _forget_who(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    self.require_open().clients.clear()
    self._answered.clear()


def _count_weights_only(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    self.require_open().ages.clear()
    self.require_open().ages[1] = COHORT


def _forget_the_largest(self: ReleaseRules, entry: Entry, weight: int, age_weight: int) -> None:
    _ENTER(self, entry, weight, age_weight)
    weights = self.require_open().weights
    weights[1] = weights.total()
    for larger in [weight for weight in weights if weight > 1]:
        del weights[larger]


def _any_number(self: ReleaseRules) -> None:
    self.require_open()


def _any_arithmetic(self: ReleaseRules) -> None:
    buffer = self.require_open()
    if buffer.contributors < COHORT or min(buffer.ages.values()) < COHORT:
        raise ThresholdNotMet(needed=COHORT, present=0, what="uploads")
    if max(buffer.weights) * COHORT > buffer.total_weight:
        self.close()
        raise PeerMisbehaved("one client weighs too much", reason=Reason.WEIGHTS_UNEVEN)


def _forget_digests(self: ReleaseRules, version: int, model_digest: bytes) -> None:
    _OPEN(self, version, model_digest)
    self._versions.clear()


def _stay_open(self: ReleaseRules) -> None:
    self.require_open()


DEFECTS: dict[str, tuple[Replacement, ...]] = {
    "enclave: uploads forgotten between buffers": (("close", _forget_at_the_end),),
    "enclave: a client counts twice": (("enter", _forget_who),),
    "enclave: ages not counted": (("enter", _count_weights_only),),
    "enclave: largest weight forgotten": (("enter", _forget_the_largest),),
    "enclave: common factors not looked for": (("require_releasable", _any_arithmetic),),
    "enclave: a model under two numbers": (("open", _forget_digests), ("enter", _forget_versions)),
    "enclave: cohort not checked": (("require_releasable", _any_number),),
    "enclave: a release leaves its buffer open": (("close", _stay_open),),
}
