"""Declaration of statistics: the questions, their variables, and the minimum numbers of people and sites.

Server and sites each have the file. A site only answers its own copy, so it never trusts a server's ranges, steps, bins
or classes. The terms of every session include the declaration's digest.

    name = "outcomes"
    least_count = 5
    variables.age = {low = 0, high = 120, step = 0.5}
    variables.sex = {classes = ["f", "m"]}
    statistics.ages = {kind = "histogram", of = ["age"], edges = [0, 20, 40, 60, 80]}
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, require_integer
from secagg.privacy.client_noise import USUAL_DELTA
from secagg.privacy.kinds import LEAST_DELTA

_MOST_STEPS: Final = 1 << 24
_MOST_CELLS: Final = 1 << 16
_MOST_AUDITED: Final = 1 << 10
_MOST_SITES: Final = 1 << 20
_MOST_PEOPLE: Final = 1 << 32
_EVENTS: Final = 2
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An attribute of each person: a number in a range, or a class."""

    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    """Numbers are rounded to steps from the middle of the range."""
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.classes:
            if len(set(self.classes)) < len(self.classes) or (self.low, self.high, self.step) != (0.0, 0.0, 0.0):
                raise InvalidParameters("a variable needs either distinct classes, or low, high and step")
            return
        if not (_are_finite(self.low, self.high, self.step) and self.low < self.high and self.step > 0):
            raise InvalidParameters("a variable needs low below high and a step above 0, or classes")
        if self.reach > _MOST_STEPS:
            raise InvalidParameters(f"a range may have at most {2 * _MOST_STEPS:,} steps; use a coarser step")

    @property
    def middle(self) -> float:
        """The value that is encoded as 0 steps."""
        return (self.low + self.high) / 2

    @property
    def reach(self) -> int:
        """Number of steps from the middle of the range to its ends."""
        return max(1, math.ceil((self.high - self.low) / 2 / self.step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One statistic."""

    kind: str
    """``count``, ``sum``, ``mean``, ``variance``, ``histogram``, ``table``, ``survival`` or ``correlation``."""
    of: tuple[str, ...] = ()
    """Its variables; for ``survival`` a time, and classes with the event last."""
    edges: tuple[float, ...] = ()
    """Edges of a histogram's bins, or the start of a survival curve and the ends of its intervals."""
    quantiles: tuple[float, ...] = ()
    """Quantiles of a histogram, each above 0 and below 1."""


_VARIABLES: Final[Mapping[str, range]] = {
    "count": range(2),
    "sum": range(1, 2),
    "mean": range(1, 2),
    "variance": range(1, 2),
    "histogram": range(1, 2),
    "table": range(1, 3),
    "survival": range(2, 3),
    "correlation": range(2, 65),
}
"""Number of variables of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Statistics of one session."""

    name: str
    variables: Mapping[str, Variable] = field(default_factory=dict[str, Variable])
    statistics: Mapping[str, Statistic]
    least_clients: int = 3
    """Minimum number of sites in a sum; each site refuses sessions that could release the sum of fewer."""
    least_count: int = 5
    """Minimum count of a shown cell; smaller ones are shown as "fewer than 5". The server's process has all counts."""
    least_people: int = 0
    """A site with fewer people counts as empty."""
    most_people: int = 100_000
    """Maximum number of people of one site; the rest are ignored."""
    most_clients: int = 100
    """Maximum number of sites in one sum; sets the width of rings."""
    epsilon: float | None = None
    """Epsilon of one sum for one person; sites add the noise for it. None for no noise."""
    delta: float = USUAL_DELTA
    corrupted: int = 1
    """Number of sites whose noise does not count, because they may collude with the server."""

    def __post_init__(self) -> None:
        if not self.name or not self.statistics:
            raise InvalidParameters("a declaration needs a name and at least one statistic")
        require_integer("least_clients", self.least_clients, LEAST_COHORT, _MOST_SITES)
        require_integer("most_clients", self.most_clients, self.least_clients, _MOST_SITES)
        require_integer("most_people", self.most_people, 1, _MOST_PEOPLE)
        require_integer("least_people", self.least_people, 0, self.most_people)
        require_integer("least_count", self.least_count, 0, _MOST_PEOPLE)
        require_integer("corrupted", self.corrupted, 0, self.least_clients - 1)
        # This form refuses NaN too.
        if self.epsilon is not None and not (0 < self.epsilon < math.inf and LEAST_DELTA <= self.delta < 1):
            raise InvalidParameters("epsilon must be above 0, and delta in [2^-50, 1); leave out both for no noise")
        for name, statistic in self.statistics.items():
            if (fault := next(self._faults(statistic), None)) is not None:
                raise InvalidParameters(f"statistic {name!r} {fault}")
        if self.has_hidden_cells and (fault := next(self._told_by_others(), None)) is not None:
            raise InvalidParameters(f"{fault}; leave one out, set least_count = 0, or set an epsilon")

    @property
    def has_hidden_cells(self) -> bool:
        """Whether only suppression hides small counts, without noise."""
        return self.least_count > 1 and self.epsilon is None

    def _told_by_others(self) -> Iterator[str]:
        """Yield groups of statistics that may together reveal a count that each hides.

        Statistics without a common variable do not constrain each other's cells. Bins, classes and sums of one variable
        do, so a variable is in only one such statistic.
        """
        uses = {name: list[str]() for name in self.variables}
        counted = {each for statistic in self.statistics.values() if statistic.kind == "count" for each in statistic.of}
        for name, statistic in self.statistics.items():
            for each in statistic.of if statistic.kind != "count" else ():
                uses[each].append(name)
            if len(statistic.of) > 1 and counted & {*statistic.of}:
                yield f"another statistic's count may reveal how many people have no {name!r}, which may be hidden"
            cells = math.prod(1 + len(self.variables[each].classes) for each in statistic.of)
            if max(cells, len(statistic.edges)) > _MOST_AUDITED:
                yield f"{name!r} has more than {_MOST_AUDITED:,} cells, too many to check what the shown ones reveal"
        for each, names in uses.items():
            if len(names) > 1:
                yield (f"statistics {', '.join(map(repr, names))} of {each!r} may reveal a count that each hides")

    def _faults(self, statistic: Statistic) -> Iterator[str]:
        """Yield a statistic's faults in order; each check assumes that earlier ones passed."""
        kind, of, edges = statistic.kind, statistic.of, statistic.edges
        if (counts := _VARIABLES.get(kind)) is None:
            yield f"has the unknown kind {kind!r}; known: {', '.join(_VARIABLES)}"
        elif len(of) not in counts or len(set(of)) < len(of):
            yield f"needs {counts.start} to {counts.stop - 1} distinct variables; got {', '.join(of) or 'none'}"
        if unknown := [name for name in of if name not in self.variables]:
            yield f"uses {unknown[0]!r}, which is not a declared variable"
        numbers = {"table": 0, "survival": 1}.get(kind, len(of))
        is_number = [not self.variables[name].classes for name in of]
        if kind != "count" and is_number != [place < numbers for place in range(len(of))]:
            yield f"needs {numbers} numeric variables followed by classes; change {', '.join(of)}"
        if kind == "survival" and len(self.variables[of[1]].classes) != _EVENTS:
            yield 'needs two classes with the event second, such as ["alive", "dead"]'
        has_edges = kind in {"histogram", "survival"}
        if edges and not has_edges:
            yield "cannot have edges; remove them"
        if has_edges and not (len(edges) > 1 and _are_finite(*edges) and all(a < b for a, b in pairwise(edges))):
            yield "needs at least two edges in increasing order"
        if statistic.quantiles and not (kind == "histogram" and all(0 < part < 1 for part in statistic.quantiles)):
            yield "can have quantiles only as a histogram, each above 0 and below 1; remove them"
        cells = max(len(edges), math.prod(1 + len(self.variables[name].classes) for name in of))
        if cells > _MOST_CELLS:
            yield f"has {cells:,} cells; the limit is {_MOST_CELLS:,}"

    @property
    def digest(self) -> bytes:
        """Digest of the declaration; the same at server and sites."""
        # 1 and 1.0 are equal, from a file or a program.
        text = json.dumps(asdict(Declaration.of(asdict(self))), sort_keys=True)
        return hashlib.sha256(bind(Label.STATISTICS, text.encode())).digest()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Declaration:
        """Return the declaration in a file's table."""
        try:
            parts = {
                name: {key: made(kind, each) for key, each in dict(given.get(name, {})).items()}
                for name, kind in (("variables", Variable), ("statistics", Statistic))
            }
            return made(cls, {**given, **parts})
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidParameters(f"this is not a declaration of statistics: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Declaration:
        """Read a declaration in TOML."""
        try:
            return cls.of(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InvalidParameters(f"cannot read {path} as TOML ({error})") from None


def made(kind: type[Made], given: Any) -> Made:  # noqa: ANN401 -- a table of a file
    """Make a dataclass from a table; a ``TypeError`` or ``ValueError`` names a value of the wrong type."""
    kinds = {each.name: str(each.type) for each in fields(cast("Any", kind))}
    read = dict[str, Any]()
    for name, value in dict(given).items():
        match kinds.get(name, ""):
            case "":
                raise TypeError(f"{name} is not a field of {kind.__name__}; its fields are {', '.join(kinds)}")
            case "float | None" if value is None:
                read[name] = None
            case "float" | "float | None":
                read[name] = _number(name, value)
            case "tuple[float, ...]":
                read[name] = tuple(_number(name, each) for each in value)
            case "tuple[str, ...]":
                read[name] = tuple(value) if not isinstance(value, str) else (value,)
                if any(type(each) is not str for each in read[name]):
                    raise TypeError(f"{name} must be strings; got {value!r}")
            case "str" if type(value) is not str:
                raise TypeError(f"{name} must be a string; got {value!r}")
            case _:
                read[name] = value
    return kind(**read)


def _number(name: str, value: object) -> float:
    if type(value) not in {int, float}:
        raise TypeError(f"{name} must be a number; got {value!r}")
    return float(cast("float", value))


def _are_finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))
