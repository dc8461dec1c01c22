"""A site's data: functions that return people's values, and the version of the data.

Functions are registered by variable name and called once, when the update is taken. If one raises, all its values are
missing; unreadable values are missing too. The server learns about neither.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.custom import custom_factory
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters

from .declaration import Declaration, Variable
from .kinds import MISSING, Columns, has_value

Values = Callable[[], Iterable[Any]]
"""Returns one value per person, in the same order for every variable."""
LOG: Final = logging.getLogger("secagg.statistics")
_PYTHON: Final = ".py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One site and its data."""

    declaration: Declaration
    functions: Mapping[str, Values]
    version: str = "1"
    """Version of the data; the owner changes it with the data, and must not compute it from them. A site answers a
    declaration once per version, or up to ``attempts`` times if the policy says so."""

    def __post_init__(self) -> None:
        if missing := [name for name in self.declaration.variables if name not in self.functions]:
            raise InvalidParameters(
                f"the declaration uses {missing[0]!r}, for which no function is registered; add one"
            )

    @property
    def spent(self) -> bytes:
        """Digest of the declaration and the data's version, for the ledger; does not cover values."""
        bound = bind(Label.STATISTICS_SPENT, self.declaration.digest, self.version.encode("utf-8", "surrogateescape"))
        return hashlib.sha256(bound).digest()

    def columns(self) -> tuple[Columns, int]:
        """Return all values and the number of people; with too few people, return no values."""
        declared = self.declaration
        raw = {name: _called(name, self.functions[name], declared.most_people) for name in declared.variables}
        people = max(map(len, raw.values()), default=0)
        if people < declared.least_people:
            raw, people = {name: list[Any]() for name in raw}, 0
        found = {name: _column(declared.variables[name], values, people) for name, values in raw.items()}
        for name, column in found.items():
            if lacking := people - int(np.count_nonzero(has_value(column))):
                LOG.warning("%d of %d people have no readable value of %r", lacking, people, name)
        return found, people


def read_site(declaration: Declaration, data: str, version: str) -> Site:
    """Return a site from a CSV file with a column for each variable, or from functions in a Python file.

    Args:
        data: ``visits.csv``, or ``site.py:FUNCTIONS``: a mapping from names to functions, or a function that returns
        it.
    """
    if _PYTHON in data:
        named: Any = custom_factory(data)
        return Site(declaration=declaration, functions=named(), version=version)
    path = Path(data)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            names = next(csv.reader(file), list[str]())
    except (OSError, ValueError) as error:
        raise InvalidParameters(f"{path} cannot be read as CSV ({error})") from None
    return Site(
        declaration=declaration, functions={name: partial(_cells, path, name) for name in names}, version=version
    )


def _cells(path: Path, name: str) -> list[str]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return [row.get(name) or "" for row in csv.DictReader(file)]


def _called(name: str, function: Values, most: int) -> list[Any]:
    try:
        values = list(islice(function(), most + 1))
    except Exception:
        # The server must not learn about errors in a site's function.
        LOG.exception("the function of %r failed: all its values are missing", name)
        return []
    if len(values) > most:
        LOG.warning("%r has more than %d people, the declaration's most_people; the rest are ignored", name, most)
    return values[:most]


def _column(variable: Variable, values: list[Any], people: int) -> npt.NDArray[Any]:
    if not variable.classes:
        numbers = np.full(people, np.nan)
        numbers[: len(values)] = [_number(value) for value in values]
        return numbers
    places = {name: place for place, name in enumerate(variable.classes)}
    codes = np.full(people, MISSING, dtype=np.int64)
    codes[: len(values)] = [places.get(_name(value), MISSING) for value in values]
    return codes


def _number(value: Any) -> float:  # noqa: ANN401 -- any value in a site's data
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception:  # noqa: BLE001 -- unreadable values are missing
        return math.nan


def _name(value: Any) -> str:  # noqa: ANN401 -- any value in a site's data
    try:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return str(value).strip()
    except Exception:  # noqa: BLE001 -- as above
        return ""
