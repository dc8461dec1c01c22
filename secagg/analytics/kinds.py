"""Kinds of statistics: the cells that a site sends, and the results of their sums.

Cells are integers: counts of people, and sums of steps, their squares and products. So a sum over all sites is exact
and equals the sum over all people. A site without people sends zeros. Values that are missing, not a number or out of
range are never refused, but clamped or counted separately.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise, product
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .declaration import Declaration, Statistic, Variable

Integers = npt.NDArray[np.int64]
Columns = Mapping[str, npt.NDArray[Any]]
"""Values of each variable, by person: floats with NaN for missing, or class numbers with -1 for missing."""
Result = dict[str, Any]
MISSING: Final = -1
_PAIR: Final = 2
_MOST_PARTNERS: Final = 64
_MOST_TWICE: Final = 128


@dataclass(frozen=True, slots=True)
class Group:
    """Cells of a table that share a scale."""

    length: int
    largest: int
    """Maximum magnitude of one person in one cell."""
    squared: int
    """Maximum squared distance between two people over all cells, which the noise must hide."""


class Kind(ABC):
    """One statistic of a declaration."""

    def __init__(self, statistic: Statistic, declaration: Declaration) -> None:
        self.statistic, self.least = statistic, declaration.least_count
        self.variables: list[Variable] = [declaration.variables[name] for name in statistic.of]

    @property
    @abstractmethod
    def groups(self) -> list[Group]:
        """The cells."""

    @abstractmethod
    def measure(self, columns: Columns, people: int) -> list[Integers]:
        """Return the cells of one site."""

    @abstractmethod
    def result(self, sums: Sequence[Integers]) -> Result:
        """Return the result of sums over all sites; None for a suppressed cell."""

    def own(self, columns: Columns) -> list[npt.NDArray[Any]]:
        return [columns[name] for name in self.statistic.of]

    def shown(self, count: int) -> int | None:
        return int(count) if count >= self.least else None


class Count(Kind):
    """Number of people, or of people with a value of the variable."""

    @property
    def groups(self) -> list[Group]:
        return [Group(2, 1, 2) if self.statistic.of else Group(1, 1, 1)]

    def measure(self, columns: Columns, people: int) -> list[Integers]:
        if not self.statistic.of:
            return [np.array([people])]
        found = int(np.count_nonzero(has_value(self.own(columns)[0])))
        return [np.array([found, people - found])]

    def result(self, sums: Sequence[Integers]) -> Result:
        count, missing = (int(each) for each in (*sums[0], 0)[:2])
        return {"count": None if is_below(missing, self.least) else self.shown(count)}


class Moments(Kind):
    """Sum, mean and variance of one variable, or correlations of several, over people with all values."""

    @property
    def is_correlated(self) -> bool:
        return self.statistic.kind in {"variance", "correlation"}

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return list(combinations_with_replacement(range(len(self.variables)), 2)) if self.is_correlated else []

    @property
    def groups(self) -> list[Group]:
        reach = [variable.reach for variable in self.variables]
        groups = [Group(3, 1, 3), Group(len(reach), max(reach), _spread(reach))]
        products = [reach[one] * reach[other] for one, other in self.pairs]
        return [*groups, Group(len(products), max(products), _spread(products))] if products else groups

    def measure(self, columns: Columns, people: int) -> list[Integers]:
        own = self.own(columns)
        complete = np.logical_and.reduce([has_value(column) for column in own])
        values = [column[complete] for column in own]
        pairs = list(zip(values, self.variables, strict=True))
        steps = [steps_of(column, variable) for column, variable in pairs]
        outside = np.zeros(int(complete.sum()), dtype=np.bool_)
        for column, variable in pairs:
            outside |= (column < variable.low) | (column > variable.high)
        counts = [outside.size, np.count_nonzero(outside), people - outside.size]
        cells = [np.array(counts), np.array([each.sum() for each in steps])]
        products = [steps[one] @ steps[other] for one, other in self.pairs]
        return [*cells, np.array(products)] if products else cells

    def result(self, sums: Sequence[Integers]) -> Result:
        count, clamped, missing = (int(each) for each in sums[0])
        totals = [int(each) for each in sums[1]]
        if is_below(missing, self.least) and count >= self.least:
            # An exact mean would reveal the number of people; a mean in whole steps is possible for any number.
            found: Result = {"count": None, "clamped": None, self.statistic.kind: None}
            if self.statistic.kind == "mean":
                middle, step = Fraction(self.variables[0].middle), Fraction(self.variables[0].step)
                found["mean"] = float(middle + step * round(Fraction(totals[0], count)))
            return found
        outside, _ = suppressed(np.array([clamped, count - clamped]), [range(2)], self.least)  # Each reveals the other.
        found = {"count": self.shown(count), "clamped": outside}
        if found["count"] is None or count < 1:
            return found | {self.statistic.kind: None}
        if self.statistic.kind == "correlation":
            return found | {"of": list(self.statistic.of), "correlation": self._matrix(count, totals, sums[2])}
        (variable,) = self.variables
        middle, step = Fraction(variable.middle), Fraction(variable.step)
        mean = middle + step * Fraction(totals[0], count)
        found["sum"] = float(mean * count)
        if self.statistic.kind != "sum":
            found["mean"] = float(mean)
        if self.statistic.kind == "variance":
            spread = Fraction(int(sums[2][0])) - Fraction(totals[0] ** 2, count)
            found["variance"] = float(max(Fraction(0), step**2 * spread / (count - 1))) if count > 1 else None
        return found

    def _matrix(self, count: int, totals: list[int], products: Integers) -> list[list[float | None]]:
        """Return the correlations, computed from integers; None for a constant variable."""
        spread = {
            (one, other): count * int(product) - totals[one] * totals[other]
            for (one, other), product in zip(self.pairs, products, strict=True)
        }
        places = range(len(totals))

        def of(one: int, other: int) -> float | None:
            square = spread[one, one] * spread[other, other]
            # Sums with noise may have impossible spreads.
            if spread[one, one] <= 0 or spread[other, other] <= 0:
                return None
            return max(-1.0, min(1.0, spread[min(one, other), max(one, other)] / math.sqrt(square)))

        return [[of(one, other) for other in places] for one in places]


class Histogram(Kind):
    """Number of people in each bin, below, above, and without a value. The last bin includes its upper edge."""

    @property
    def groups(self) -> list[Group]:
        return [Group(len(self.statistic.edges) + 2, 1, 2)]

    def measure(self, columns: Columns, people: int) -> list[Integers]:  # noqa: ARG002 -- the column has this length
        (column,), edges = self.own(columns), np.array(self.statistic.edges)
        places = np.searchsorted(edges, column, side="right")
        places[column == edges[-1]] -= 1
        places[~has_value(column)] = edges.size + 1
        return [np.bincount(places, minlength=edges.size + 2)]

    def result(self, sums: Sequence[Integers]) -> Result:
        (cells,) = sums
        shown = audited(cells, [], self.least)
        below, *bins, above, missing = shown
        found: Result = {"edges": list(self.statistic.edges), "counts": bins}
        found |= {"below": below, "above": above, "missing": missing}
        if self.statistic.quantiles:
            found["quantiles"] = {str(part): self._quantile(part, shown[:-1]) for part in self.statistic.quantiles}
        return found

    def _quantile(self, part: float, shown: Sequence[int | None]) -> float | None:
        """Return a quantile from the shown cells, assuming that values are uniform in each bin."""
        counts, edges = [max(0, each or 0) for each in shown], self.statistic.edges
        wanted, passed = part * sum(counts), counts[0]
        if not sum(counts):
            return None
        if wanted <= passed:
            return edges[0]
        for (low, high), count in zip(pairwise(edges), counts[1:], strict=False):
            if count and wanted <= passed + count:
                return low + (high - low) * (wanted - passed) / count
            passed += count
        return edges[-1]


class Table(Kind):
    """Number of people in each class, or in each pair of classes of two variables."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(variable.classes) for variable in self.variables)

    @property
    def groups(self) -> list[Group]:
        return [Group(math.prod(self.shape) + 1, 1, 2)]

    def measure(self, columns: Columns, people: int) -> list[Integers]:  # noqa: ARG002 -- columns have as many
        own, cells = self.own(columns), math.prod(self.shape)
        places = np.zeros(own[0].size, dtype=np.int64)
        for column, size in zip(own, self.shape, strict=True):
            places = places * size + column
        places[np.logical_or.reduce([column == MISSING for column in own])] = cells
        return [np.bincount(places, minlength=cells + 1)]

    def result(self, sums: Sequence[Integers]) -> Result:
        (cells,), places = sums, np.arange(math.prod(self.shape)).reshape(self.shape)
        # A reader may know the sum of a row or column.
        lines = [list(line) for each in (places, places.T) for line in each] if len(self.shape) > 1 else []
        *shown, missing = audited(cells, lines, self.least)
        counts: Any = shown
        if len(self.shape) > 1:
            counts = [[shown[place] for place in row] for row in places]
        return {"classes": [list(each.classes) for each in self.variables], "counts": counts, "missing": missing}


class Survival(Kind):
    """Events and censored people by intervals of time: the table of a Kaplan-Meier curve.

    An interval includes its end but not its start. Times count as the end of their interval, where events come before
    censored people. Times before the first edge count in the first interval; people beyond the last edge were at risk
    in all intervals.
    """

    @property
    def intervals(self) -> int:
        return len(self.statistic.edges) - 1

    @property
    def groups(self) -> list[Group]:
        return [Group(2 * self.intervals + 2, 1, 2)]

    def measure(self, columns: Columns, people: int) -> list[Integers]:  # noqa: ARG002 -- columns have as many
        (times, events), count = self.own(columns), self.intervals
        places = np.clip(np.searchsorted(np.array(self.statistic.edges), times) - 1, 0, count)
        cells = np.where(places == count, 2 * count, places + count * (events == 0))
        cells[~has_value(times) | (events == MISSING)] = 2 * count + 1
        return [np.bincount(cells, minlength=2 * count + 2)]

    def result(self, sums: Sequence[Integers]) -> Result:
        cells = [max(0, int(each)) for each in sums[0]]
        *_, beyond, missing = cells
        steps = list(zip(self.statistic.edges[1:], cells, cells[self.intervals :], strict=False))
        found: Result = {"missing": self.shown(missing), "start": self.statistic.edges[0]}
        if is_below(missing, self.least):
            # All others are at risk at the start.
            return found | {"curve": []}
        return found | {"curve": list(self._curve(steps, beyond))}

    def _curve(self, steps: list[tuple[float, int, int]], beyond: int) -> Iterator[Result]:
        """Yield the rows, merging intervals up to the minimum count; the curve ends where too few people are left.

        A row's events reach the minimum count, and its censored people are none or reach it.
        """
        rows, events, left = list[tuple[float, int, int]](), 0, 0
        for end, died, went in steps:
            events, left = events + died, left + went
            if events >= self.least and (not left or left >= self.least):
                rows.append((end, events, left))
                events = left = 0
        remaining = events + left + beyond
        while rows and 0 < remaining < self.least:
            _, died, went = rows.pop()
            remaining += died + went
        at_risk, survival, spread = remaining + sum(died + went for _, died, went in rows), 1.0, 0.0
        for end, died, went in rows:
            if at_risk > 0:
                survival *= 1 - died / at_risk
            spread = spread + died / (at_risk * (at_risk - died)) if at_risk > died else math.inf
            error = survival * math.sqrt(spread) if survival else 0.0
            counts = {"end": end, "at_risk": at_risk, "events": died, "left": went}
            yield counts | {"survival": survival, "standard_error": error}
            at_risk -= died + went


KINDS: Final[Mapping[str, type[Kind]]] = {
    "count": Count,
    "sum": Moments,
    "mean": Moments,
    "variance": Moments,
    "histogram": Histogram,
    "table": Table,
    "survival": Survival,
    "correlation": Moments,
}


def has_value(column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the people who have a value."""
    found: npt.NDArray[np.bool_] = column != MISSING if column.dtype.kind == "i" else ~np.isnan(column)
    return found


def steps_of(column: npt.NDArray[np.float64], variable: Variable) -> Integers:
    """Return each value, clamped to the range, in steps from the middle."""
    within = np.clip(column, variable.low, variable.high)
    return np.rint((within - variable.middle) / variable.step).astype(np.int64)


def suppressed(
    counts: Integers, lines: Sequence[Sequence[int]], least: int, lacking: Collection[int] = ()
) -> list[int | None]:
    """Return counts without small ones, and without others that would reveal them by a line's sum.

    Args:
        lines: places of counts whose sum a reader may know. A line with hidden counts has at least two, whose sum
        reaches the minimum count. lacking: places of people without a value; with a minimum count above 2, a zero there
        is not secret.
    """
    hidden = counts < least
    for place in lacking:
        hidden[place] = is_below(int(counts[place]), least)
    while True:
        before = int(hidden.sum())
        for line in (np.asarray(each) for each in lines):
            own, shown = line[hidden[line]], line[~hidden[line]]
            if own.size and shown.size and (own.size == 1 or counts[own].sum() < least):
                hidden[shown[np.argmin(counts[shown])]] = True
        if hidden.sum() == before:
            return [None if is_hidden else int(count) for count, is_hidden in zip(counts, hidden, strict=True)]


def is_below(lacking: int, least: int) -> bool:
    """Whether to hide the number of people without a value, and every count that would reveal it."""
    return lacking < least and (lacking != 0 or least <= _PAIR)


def audited(counts: Integers, lines: Sequence[Sequence[int]], least: int, depth: int | None = None) -> list[int | None]:
    """Return the counts that ``suppressed`` shows, or none at all; the last counts people without a value.

    A reader knows the rule and the shown counts. So each hidden count needs a witness: counts of the same number of
    people that are shown identically, but where this count differs. If one has no witness, all are hidden.

    Args:
        depth: levels at which witnesses need witnesses too, because a reader knows this rule.
    """
    if depth is None:
        depth = 2 if counts.size <= _MOST_TWICE else 1
    last = counts.size - 1
    shown = suppressed(counts, [*lines, range(last), range(counts.size)], least, {last})
    hidden = [place for place, each in enumerate(shown) if each is None]
    unknown = set(hidden)
    while unknown and depth:
        one = min(unknown)
        for other, step in product(hidden[:_MOST_PARTNERS], (*range(-least, 0), *range(1, least + 1))):
            changed = counts.copy()
            changed[[one, other]] += [step, -step]
            if one != other and changed.min() >= 0 and audited(changed, lines, least, depth - 1) == shown:
                unknown -= {one, other}
                break
        else:
            return [None] * counts.size
    return shown


def _spread(reach: Sequence[int]) -> int:
    """Return the maximum squared distance between vectors with these maximum magnitudes."""
    return sum((2 * value) ** 2 for value in reach)
