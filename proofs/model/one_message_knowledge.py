"""What holders' answers reveal about the secrets of uploads, and thereby about inputs: linear algebra over the shares.

The field and the points are the library's. For every upload the server has the shares of colluding holders; it knows
its own uploads completely, and has the answers of honest holders. This determines certain combinations of the shared
secrets; a known combination of secrets reveals the same combination of inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from one_message_cast import Cast, Name, Names
from secagg.protocols.one_message.parameters import FIELD
from secagg.protocols.one_message.sharing import holder_point, slot_points

HONEST_COHORT = 2
"""Minimum number of honest inputs in a sum; no combination may depend on fewer."""
Row = tuple[int, ...]
Combination = Mapping[tuple[Name, int], int]
"""A coefficient for each slot of some uploads."""


class Knowledge:
    """What the server knows in the end, and whether this is allowed."""

    def __init__(self, cast: Cast) -> None:
        """Choose the uploads and the points."""
        self.cast, self.lying = cast, cast.setting.lying
        parameters = cast.agreement.parameters
        self._threshold, self._slots = parameters.threshold, slot_points(parameters.packing)
        self._own = {name for name in cast.sent if name.is_forged or name.client in cast.setting.bad_clients}
        self._enough = max(1, parameters.threshold + 1 - parameters.packing - self.lying)
        self._judged = dict[tuple[tuple[int, frozenset[Names]], ...], tuple[bool, str | None]]()
        self._learnt = dict[tuple[tuple[int, Names], ...], list[Combination]]()

    def judge(self, answers: Mapping[int, frozenset[Names]]) -> tuple[bool, str | None]:
        """Return whether a sum was computed, and any fault, from the answers of each honest holder."""
        key = tuple((position, frozenset(names - self._own for names in lists)) for position, lists in answers.items())
        if key not in self._judged:
            self._judged[key] = self._judge(key)
        return self._judged[key]

    def _judge(self, answers: Iterable[tuple[int, frozenset[Names]]]) -> tuple[bool, str | None]:
        given = [(position, names) for position, lists in answers for names in sorted(lists, key=sorted) if names]
        learnt = [row for part in _parts(given) for row in self._learned(part)]
        if not learnt:
            return False, None
        few = self._about_few(learnt)
        return True, self._fault(given, learnt) if few is None else f"a combination of the inputs of {few} alone"

    def _fault(self, given: Sequence[tuple[int, Names]], learnt: Sequence[Combination]) -> str | None:
        """Return the fault in what was learned, given the lists that enough holders answered."""
        counts = dict[Names, int]()
        for _, names in given:
            counts[names] = counts.get(names, 0) + 1
        lists = [names for names, count in counts.items() if count >= self._enough]
        allowed = [{(name, slot): 1 for name in names} for names in lists for slot in range(len(self._slots))]
        columns = sorted({place for row in (*learnt, *allowed) for place in row})
        if _rank(_matrix(allowed, columns)) < _rank(_matrix((*allowed, *learnt), columns)):
            return "something else than the sums over lists that enough holders answered"
        if any(one & other for one, other in combinations(lists, 2)):
            return "two sums with an upload in common, and so their difference"
        if any(len({name.place for name in names}) > 1 for names in lists):
            return "a sum over uploads for two rounds or models"
        return None

    def _learned(self, given: tuple[tuple[int, Names], ...]) -> list[Combination]:
        """Return a basis of the combinations of secrets that answers determine; coins have T coefficients each."""
        if given not in self._learnt:
            names = sorted({name for _, added in given for name in added})
            seen = [self._row(added, names, holder_point(position)) for position, added in given]
            seen += [
                self._row({name}, names, holder_point(position)) for position in range(self.lying) for name in names
            ]
            places = [(name, slot) for name in names for slot in range(len(self._slots))]
            secrets = [self._row({name}, names, self._slots[slot]) for name, slot in places]
            # A combination that is zero in the left columns is a combination of secrets that equals observed values.
            rows = [(*row, *([0] * len(secrets))) for row in seen]
            rows += [(*row, *(int(at == number) for at in range(len(secrets)))) for number, row in enumerate(secrets)]
            width = len(names) * self._threshold
            basis = [row[width:] for row in _reduced(rows) if not any(row[:width]) and any(row[width:])]
            self._learnt[given] = [
                {place: value for place, value in zip(places, row, strict=True) if value} for row in basis
            ]
        return self._learnt[given]

    def _row(self, added: Iterable[Name], names: Sequence[Name], point: int) -> Row:
        powers = [pow(point, exponent, FIELD) for exponent in range(self._threshold)]
        zeros = [0] * self._threshold
        chosen = frozenset(added)
        return tuple(value for name in names for value in (powers if name in chosen else zeros))

    def _about_few(self, learnt: Sequence[Combination]) -> str | None:
        """Return the clients whose inputs appear alone in some combination."""
        columns = sorted({place for row in learnt for place in row})
        everything = _rank(_matrix(learnt, columns))
        inputs = sorted({name for name, _ in columns})
        for size in range(1, HONEST_COHORT):
            for few in combinations(inputs, size):
                outside = [place for place in columns if place[0] not in few]
                if _rank(_matrix(learnt, outside)) < everything:
                    return " ".join(map(str, few))
        return None


def _parts(given: Sequence[tuple[int, Names]]) -> Iterator[tuple[tuple[int, Names], ...]]:
    """Partition answers so that those with a common upload stay together; no two parts share coins."""
    left = list(given)
    while left:
        part, names = [left.pop(0)], set[Name]()
        while True:
            names |= {name for _, added in part for name in added}
            near = [one for one in left if one[1] & names]
            if not near:
                break
            part += near
            left = [one for one in left if one not in near]
        yield tuple(sorted(part, key=lambda one: (one[0], sorted(one[1]))))


def _matrix(rows: Iterable[Combination], columns: Sequence[tuple[Name, int]]) -> list[Row]:
    return [tuple(row.get(column, 0) for column in columns) for row in rows]


def _rank(rows: Sequence[Row]) -> int:
    return sum(any(row) for row in _reduced(rows))


def _reduced(rows: Sequence[Row]) -> list[Row]:
    """Return rows in echelon form."""
    rest, done = [list(row) for row in rows], 0
    for column in range(len(rest[0]) if rest else 0):
        pivot = next((at for at in range(done, len(rest)) if rest[at][column]), None)
        if pivot is None:
            continue
        rest[done], rest[pivot] = rest[pivot], rest[done]
        inverse = pow(rest[done][column], -1, FIELD)
        for at in range(done + 1, len(rest)):
            if factor := rest[at][column] * inverse % FIELD:
                rest[at] = [(value - factor * other) % FIELD for value, other in zip(rest[at], rest[done], strict=True)]
        done += 1
    return [tuple(row) for row in rest]
