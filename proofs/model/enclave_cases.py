"""The cases of the enclave's release rules: as they are, each check taken out by itself, and records that are lost."""

from __future__ import annotations

from dataclasses import dataclass

from defects import Replacement, altered, planted
from enclave_release import ALIKE, COHORT, LARGE, USUAL, WITH_NOISE, Setting, explore
from report import Report
from secagg.protocols.enclave.trusted.buffer import Entry, ReleaseRules


@dataclass(frozen=True, slots=True)
class Case:
    """A search, and what is planted."""

    name: str
    defects: tuple[Replacement, ...] = ()
    attacked: bool = False
    setting: Setting = USUAL

    def explore(self) -> Report:
        """Run it."""
        with planted(*self.defects):
            return explore(self.setting)


def cases() -> tuple[Case, ...]:
    """Return every case: the rules as they are, then without each check, then with what is lost."""
    shipped = (
        Case("enclave: as released"),
        Case("enclave: as released, 4 models", setting=LARGE),
        Case("enclave: as released, with noise", setting=WITH_NOISE),
        Case("enclave: as released, ages that count alike", setting=ALIKE),
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

CHECKS: dict[str, tuple[str, str, str]] = {
    "the keys are there": ("open", "self.state is not BufferState.CLOSED", "self._buffer is not None"),
    "no buffer is open": ("open", "self.state is not BufferState.CLOSED", "self.state is BufferState.DESTROYED"),
    "versions grow": ("open", "version <= self._last_version", "False"),
    "a model has one number": ("_announce", "(known := self._versions.get(model_digest, version)) != version", "False"),
    "a number has one announcement": (
        "_announce",
        "self._models.get(version, model_digest) != model_digest",
        "False",
    ),
    "an announcement is of what counts": (
        "announce",
        "not 0 <= newest - version < len(self._configuration.staleness_weights)",
        "False",
    ),
    "an upload is taken once": ("staleness_weight", "(entry.client, entry.upload_id) in self._upload_ids", "False"),
    "a model has one upload of a client": (
        "staleness_weight",
        "(entry.client, entry.version) in self._answered",
        "False",
    ),
    "a client is once in a buffer": ("staleness_weight", "entry.client in buffer.clients", "False"),
    "an update's age counts": ("staleness_weight", "not 0 <= age < len(table)", "False"),
    "a number has one model": (
        "staleness_weight",
        "self._models.get(entry.version) != entry.model_digest",
        "False",
    ),
    "a model of an upload has one number": (
        "staleness_weight",
        "self._versions.get(entry.model_digest, entry.version) != entry.version",
        "False",
    ),
    "a client's budget": (
        "staleness_weight",
        "bool(releases) and self._participations[entry.client] >= releases",
        "False",
    ),
    "a buffer has room": ("staleness_weight", "buffer.contributors >= configuration.maximum_cohort", "False"),
    "a weight is in range": ("require_weight", "not 1 <= weight <= self._configuration.maximum_weight", "False"),
    "enough clients": ("require_releasable", "buffer.contributors < least", "False"),
    "enough of each age": (
        "require_releasable",
        "self._configuration.noise is None and (fewest := min(buffer.ages.values())) < least",
        "False",
    ),
    "nobody outweighs": ("require_releasable", "max(buffer.weights) * least > buffer.total_weight", "False"),
    "no common factor": (
        "require_releasable",
        "self._configuration.noise is None and single_somebody_out(buffer.weights, least)",
        "False",
    ),
}
"""Every check of the rules, by what it makes sure of: its function, its words, and what stands there without it."""
SETTINGS = {
    "a client's budget": WITH_NOISE,
    "enough clients": WITH_NOISE,
    "a client is once in a buffer": ALIKE,
    "a model of an upload has one number": LARGE,
    "a model has one upload of a client": LARGE,
}
"""Where a check is looked for elsewhere than in the usual setting."""
COVERED: dict[str, tuple[str, ...]] = {
    # Another buffer takes the place of the first, whose sums are never released.
    "no buffer is open": (),
    # Only models that count are announced, and those that are older count nothing in a table that ends.
    "an update's age counts": ("an announcement is of what counts",),
    "an announcement is of what counts": (),
    # A client has one upload for each number of a model, and an upload names its number.
    "an upload is taken once": ("a model has one upload of a client",),
    # Of fewer clients than the cohort one weighs more than its part.
    "enough clients": ("nobody outweighs",),
}
"""Checks that are redundant, and what covers each: without the one nothing is found, without both something is."""


def _without(*names: str) -> tuple[Replacement, ...]:
    """Take checks out, several of one function as well."""
    changes = dict[str, list[tuple[str, str]]]()
    for name in names:
        function, old, new = CHECKS[name]
        changes.setdefault(function, []).append((old, new))
    return tuple(altered(ReleaseRules, function, *pairs) for function, pairs in changes.items())


# --- What is lost -----------------------------------------------------------------------------------------------------

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


def _forget_digests(self: ReleaseRules, version: int, model_digest: bytes) -> None:
    _OPEN(self, version, model_digest)
    self._versions.clear()


def _stay_open(self: ReleaseRules) -> None:
    self.require_open()


LOST: dict[str, tuple[Replacement, ...]] = {
    "uploads forgotten between buffers": ((ReleaseRules, "close", _forget_at_the_end),),
    "a client counts twice": ((ReleaseRules, "enter", _forget_who),),
    "ages not counted": ((ReleaseRules, "enter", _count_weights_only),),
    "largest weight forgotten": ((ReleaseRules, "enter", _forget_the_largest),),
    "a model under two numbers": ((ReleaseRules, "open", _forget_digests), (ReleaseRules, "enter", _forget_versions)),
    "a release leaves its buffer open": ((ReleaseRules, "close", _stay_open),),
}
"""Functions that forget what they have to remember."""
