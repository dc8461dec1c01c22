"""The enclave's release rules under a host that opens, fills, releases and discards buffers in any order.

The search runs the library's own ``ReleaseRules`` with ideal cryptography: clients sign uploads, so the host can submit
existing uploads as often as it likes, and any upload of a corrupted client. Every sequence of calls up to a length is
tried; sequences that lead to the same state are continued once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from report import Report
from secagg.contract import Layout, RingSegment
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.trusted.buffer import Buffer, BufferState, Entry, Models, ReleaseRules
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, Noise

COHORT, LARGEST_COHORT, OLDEST = 2, 3, 1
VERSIONS = (0, 1)
MODELS = {version: bytes([version]) * 32 for version in VERSIONS}
RELABELLED = (2, MODELS[1])
"""The host's third number, for a model that it has already announced under another number."""
LAST = (3, bytes([3]) * 32)
"""No client has an update for the fourth model, and updates for the third are then one model old."""
OTHER_MODEL = bytes([9]) * 32
"""The model that the host gives to one client as the newest."""
BUDGET = 1
"""Maximum number of releases with one client, if the enclave adds noise."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The enclave's configuration."""

    with_noise: bool = False
    is_large: bool = False
    """Whether the host has a fourth model and the corrupted client a third upload."""


USUAL, LARGE, WITH_NOISE = Setting(), Setting(is_large=True), Setting(with_noise=True)


@dataclass(frozen=True, slots=True)
class Taken:
    """An upload in a buffer, and its age."""

    entry: Entry
    age: int
    """By how many models it is older than the model that the buffer updates."""


@dataclass(slots=True)
class Host:
    """A state: the rules, the buffer with its model, and the releases so far."""

    rules: ReleaseRules
    buffer: frozenset[Taken] = frozenset()
    version: int = -1
    released: tuple[frozenset[Taken], ...] = ()
    is_destroyed: bool = False

    def key(self) -> object:
        """Return what distinguishes states: everything that the rules remember, and everything that was released."""
        if self.rules.state is BufferState.DESTROYED:
            return self.rules.state
        remembered = [_frozen(value) for name, value in vars(self.rules).items() if name != "_configuration"]
        return tuple(remembered), self.buffer, self.released, self.is_destroyed


def uploads(setting: Setting) -> list[Entry]:
    """Return the existing uploads: those of three honest clients for each model, and those of a corrupted one."""
    newest = VERSIONS[-1]
    made = [_entry(client, version, MODELS[version]) for client in (1, 2, 3) for version in VERSIONS]
    # The corrupted client seals any upload, any number of times.
    sealed = ((newest, b"+"), (0, b""), (newest, b""), (0, b"-"))
    made += [_entry(4, version, MODELS[version], mark) for version, mark in sealed[: 3 + setting.is_large]]
    # What an honest client would seal a second time if the host gave its model another number, and what it would seal
    # for a model that nobody else has.
    version, digest = RELABELLED
    made += [_entry(client, version, digest) for client in (2, 3)]
    made += [_entry(2, newest, OTHER_MODEL)]
    return made


def _entry(client: int, version: int, digest: bytes, mark: bytes = b"") -> Entry:
    return Entry(ClientId(client), bytes([client, version, digest[0]]) + mark, version, digest)


def explore(setting: Setting) -> Report:
    """Try every call in every state until nothing new is reached, up to the first release that reveals too much."""
    report, calls = Report(), list(_calls(setting))
    start = Host(ReleaseRules(_configuration(setting)))
    seen, frontier = {start.key()}, [(start, tuple[str, ...]())]
    while frontier:
        following = list[tuple[Host, tuple[str, ...]]]()
        for host, trace in frontier:
            for name, act in calls:
                after = replace(host, rules=_copied(host.rules))
                report.calls += 1
                try:
                    act(after)
                except (SecAggError, IndexError, ValueError):
                    # A call that no rule refuses can still fail; then it has no effect.
                    report.refused += 1
                key = after.key()
                if key in seen:
                    continue
                seen.add(key)
                report.revealing += len(after.released) > len(host.released)
                found = _fault(after, setting)
                following.append((after, (*trace, name)))
                if found is not None:
                    report.fault, report.trace, report.schedules = found, (*trace, name), len(seen)
                    return report
        frontier = following
    report.schedules = len(seen)
    return report


def _calls(setting: Setting) -> Iterator[tuple[str, Callable[[Host], None]]]:
    for version, digest in (*MODELS.items(), RELABELLED, LAST)[: 3 + setting.is_large]:
        yield f"open {version}", lambda host, version=version, digest=digest: _open(host, version, digest)  # type: ignore[misc]
    for upload in uploads(setting):
        name = f"take {upload.client} of model {upload.version}"
        yield name, lambda host, upload=upload: _take(host, upload)  # type: ignore[misc]
    # The host announces older models, truthfully or not; its first announcement of a number counts.
    for version, digest in (*MODELS.items(), (0, MODELS[VERSIONS[-1]]), (VERSIONS[-1], OTHER_MODEL)):
        yield f"announce {version}", lambda host, version=version, digest=digest: host.rules.announce(version, digest)  # type: ignore[misc]
    yield "release", _release
    yield "give up", _give_up
    yield "destroy", _destroy


def _open(host: Host, version: int, digest: bytes) -> None:
    host.rules.open(version, digest)
    # The sums start again; another buffer's content is lost.
    host.buffer, host.version = frozenset(), version


def _take(host: Host, upload: Entry) -> None:
    """Do what the enclave does with an upload that it could decrypt."""
    host.rules.admit(upload)
    host.rules.enter(upload)
    host.buffer |= {Taken(upload, host.version - upload.version)}


def _release(host: Host) -> None:
    host.rules.require_open()
    host.rules.require_releasable()
    host.released = (*host.released, host.buffer)
    host.rules.close()
    if host.rules.state is BufferState.CLOSED:
        host.buffer = frozenset()


def _give_up(host: Host) -> None:
    host.rules.give_up()
    host.buffer = frozenset()


def _destroy(host: Host) -> None:
    host.rules.destroy()
    host.buffer, host.is_destroyed = frozenset(), True


def _fault(host: Host, setting: Setting) -> str | None:
    if host.is_destroyed and host.rules.state is not BufferState.DESTROYED:
        return "a buffer after the keys are gone"
    for sum_ in host.released:
        found = _fault_of(sum_)
        if found is not None:
            return found
    for one, other in combinations(host.released, 2):
        if _values(one) & _values(other):
            return "one update in two sums, whose difference tells of the rest"
    often = Counter(taken.entry.client for sum_ in host.released for taken in sum_)
    if setting.with_noise and any(times > BUDGET for times in often.values()):
        return "a client in more releases than its privacy budget has"
    return None


def _fault_of(sum_: frozenset[Taken]) -> str | None:
    clients = {taken.entry.client for taken in sum_}
    models = {(taken.entry.version, taken.entry.model_digest) for taken in sum_}
    found = (
        (len(clients) < COHORT, f"a sum over {sorted(map(str, clients))} alone"),
        (len(sum_) > LARGEST_COHORT, "a sum over more than it has room for"),
        (any(not 0 <= taken.age <= OLDEST for taken in sum_), "an update that is too old, or of a model to come"),
        (len(dict(models)) < len(models), "a sum of updates of two models that have one number"),
        (len({digest for _, digest in models}) < len(models), "a sum of updates of one model under two numbers"),
    )
    return next((sentence for is_wrong, sentence in found if is_wrong), None)


def _values(sum_: frozenset[Taken]) -> set[tuple[ClientId, bytes]]:
    """Return the clients and models of the updates in a sum; a client has one update per model."""
    return {(taken.entry.client, taken.entry.model_digest) for taken in sum_}


def _configuration(setting: Setting) -> EnclaveConfiguration:
    noise = Noise(
        kind=NoiseKind.DISCRETE_GAUSSIAN, variances=(Fraction(1),), l2_bounds=(1,), releases_per_client=BUDGET
    )
    return EnclaveConfiguration(
        task=b"model",
        suite=Suite.CLASSIC,
        authority=b"a" * 32,
        layout=Layout((RingSegment(20, 1),)),
        minimum_cohort=COHORT,
        maximum_cohort=LARGEST_COHORT,
        oldest=OLDEST,
        noise=noise if setting.with_noise else None,
        expiry=1 << 31,
    )


def _copied(rules: Any) -> Any:  # noqa: ANN401 -- rules, or their memory of a buffer
    """Return a copy that shares no mutable state."""
    made = object.__new__(type(rules))
    for name in _fields(rules):
        value = getattr(rules, name)
        if isinstance(value, set | dict | list):
            value = value.copy()
        elif isinstance(value, Buffer | Models):
            value = _copied(value)
        setattr(made, name, value)
    return made


def _fields(value: Any) -> Iterable[str]:  # noqa: ANN401 -- rules, or their memory of a buffer
    return value.__slots__ if isinstance(value, Buffer | Models) else vars(value)


def _frozen(value: Any) -> object:  # noqa: ANN401 -- anything that the rules remember
    match value:
        case set() | list():
            return frozenset(value)
        case dict():
            return frozenset(value.items())
        case Buffer() | Models():
            return tuple(_frozen(getattr(value, name)) for name in _fields(value))
        case _:
            return value
