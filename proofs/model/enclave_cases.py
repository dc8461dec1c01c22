"""The cases of the enclave's release rules: unchanged, with each check removed, and with lost records."""

from __future__ import annotations

from dataclasses import dataclass

from defects import Replacement, altered, planted
from enclave_release import LARGE, USUAL, WITH_NOISE, Setting, explore
from report import Report
from secagg.protocols.enclave.trusted.buffer import Entry, Models, ReleaseRules


@dataclass(frozen=True, slots=True)
class Case:
    """A search, with planted defects."""

    name: str
    defects: tuple[Replacement, ...] = ()
    attacked: bool = False
    setting: Setting = USUAL

    def explore(self) -> Report:
        """Run it."""
        with planted(*self.defects):
            return explore(self.setting)


def cases() -> tuple[Case, ...]:
    """Return every case: the unchanged rules, then each check removed, then lost records."""
    shipped = (
        Case("enclave: as released"),
        Case("enclave: as released, 4 models", setting=LARGE),
        Case("enclave: as released, with noise", setting=WITH_NOISE),
    )
    made = list[Case]()
    for name in CHECKS:
        setting, covers = SETTINGS.get(name, USUAL), COVERED.get(name, ())
        if name in COVERED:
            made.append(Case(f"enclave: redundant: {name}", _without(name), setting=setting))
        nor = "".join(f", nor {cover}" for cover in covers)
        if covers or name not in COVERED:
            without = _without(name, *covers)
            made.append(Case(f"enclave: not checked: {name}{nor}", without, attacked=True, setting=setting))
    lost = (Case(f"enclave: {name}", defects, attacked=True, setting=LARGE) for name, defects in LOST.items())
    return *shipped, *made, *lost


# --- Checks -----------------------------------------------------------------------------------------------------------

CHECKS: dict[str, tuple[type, str, str, str]] = {
    "the keys are there": (ReleaseRules, "open", "self.state is not BufferState.CLOSED", "self._buffer is not None"),
    "no buffer is open": (
        ReleaseRules,
        "open",
        "self.state is not BufferState.CLOSED",
        "self.state is BufferState.DESTROYED",
    ),
    "versions grow": (Models, "open", "version <= self.newest", "False"),
    "a model has one number": (Models, "_announce", "(known := self.numbers.get(digest, version)) != version", "False"),
    "a number has one announcement": (Models, "_announce", "self.digests.get(version, digest) != digest", "False"),
    "an announcement is of what counts": (Models, "announce", "self._require_counted(version, _HOST)", "pass"),
    "an upload is taken once": (ReleaseRules, "admit", "(entry.client, entry.upload_id) in self._upload_ids", "False"),
    "a model has one upload of a client": (
        ReleaseRules,
        "admit",
        "(entry.client, entry.version) in self._answered",
        "False",
    ),
    "a client is once in a buffer": (ReleaseRules, "admit", "entry.client in buffer.clients", "False"),
    "an update's age counts": (Models, "admit", "self._require_counted(version, culprits)", "pass"),
    "a number has one model": (Models, "admit", "self.digests.get(version) != digest", "False"),
    "a model of an upload has one number": (Models, "admit", "self.numbers.get(digest, version) != version", "False"),
    "a client's budget": (
        ReleaseRules,
        "admit",
        "bool(releases) and self._participations[entry.client] >= releases",
        "False",
    ),
    "a buffer has room": (ReleaseRules, "admit", "buffer.contributors >= configuration.maximum_cohort", "False"),
    "enough clients": (ReleaseRules, "require_releasable", "buffer.contributors < least", "False"),
}
"""Every check of the rules, by what it ensures: its function, its source text, and the replacement that removes it."""
SETTINGS = {
    "a client's budget": WITH_NOISE,
    "a model of an upload has one number": LARGE,
    "a model has one upload of a client": LARGE,
}
"""Settings for checks that the usual setting does not reach."""
COVERED: dict[str, tuple[str, ...]] = {
    # Another buffer replaces the first, whose sums are never released.
    "no buffer is open": (),
    "an announcement is of what counts": (),
    # A client has one upload for each number of a model, and an upload names its number.
    "an upload is taken once": ("a model has one upload of a client",),
}
"""Redundant checks, and what covers each: without the check no fault is found, without both one is."""


def _without(*names: str) -> tuple[Replacement, ...]:
    """Remove checks, possibly several in one function."""
    changes = dict[tuple[type, str], list[tuple[str, str]]]()
    for name in names:
        owner, function, old, new = CHECKS[name]
        changes.setdefault((owner, function), []).append((old, new))
    return tuple(altered(*place, *pairs) for place, pairs in changes.items())


# --- Lost records -----------------------------------------------------------------------------------------------------

_OPEN, _ENTER, _CLOSE = ReleaseRules.open, ReleaseRules.enter, ReleaseRules.close


def _forget_at_the_end(self: ReleaseRules) -> None:
    _CLOSE(self)
    self._upload_ids.clear()
    self._answered.clear()


def _forget_versions(self: ReleaseRules, entry: Entry) -> None:
    _ENTER(self, entry)
    self._models.numbers.clear()


def _forget_who(self: ReleaseRules, entry: Entry) -> None:
    _ENTER(self, entry)
    self.require_open().clients.clear()
    self._answered.clear()


def _forget_digests(self: ReleaseRules, version: int, model_digest: bytes) -> None:
    _OPEN(self, version, model_digest)
    self._models.numbers.clear()


def _stay_open(self: ReleaseRules) -> None:
    self.require_open()


LOST: dict[str, tuple[Replacement, ...]] = {
    "uploads forgotten between buffers": ((ReleaseRules, "close", _forget_at_the_end),),
    "a client counts twice": ((ReleaseRules, "enter", _forget_who),),
    "a model under two numbers": ((ReleaseRules, "open", _forget_digests), (ReleaseRules, "enter", _forget_versions)),
    "a release leaves its buffer open": ((ReleaseRules, "close", _stay_open),),
}
"""Functions that forget what they must remember."""
