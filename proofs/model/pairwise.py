"""The cases of the pairwise-mask protocol: what is explored, with which defect, and what has to come out."""

from __future__ import annotations

from dataclasses import dataclass

import defects
import ideal
from schedules import Catalogue, Explorer, Report
from sessions import Setup

ONE = Catalogue()
SUBSETS = Catalogue("subsets")
KEYS = Catalogue("keys")
FOLLOWING = Catalogue(agreed=True)
ALL_SHARE = Catalogue(sharers=lambda _, __, ___: False)
ONE_OTHER_VIEW = Catalogue(sharers=lambda _, client, __: client == 4, sizes=frozenset({3}))  # noqa: PLR2004
"""One client is shown other sharers than the others are, and a certificate is about three of five."""
COMMITTEE = frozenset({0, 1})
CERTIFIED_BEFORE = Catalogue(
    sharers=lambda _, __, ___: False, lists=lambda _, client, attempt: attempt == 1 or client in COMMITTEE
)
CORRUPTED = frozenset({4})
FIVE = Setup(5, 2, 3, cohort=4)
VIEWS = Setup(5, 2, 2, cohort=3, committee=3)
TWICE = Setup(5, 2, 2, cohort=4, committee=2, attempts=2)


@dataclass(frozen=True, slots=True)
class Case:
    """One exploration."""

    name: str
    setup: Setup
    catalogue: Catalogue
    defect: str = ""
    floors: bool = True
    """Whether clients insist on safe parameters."""
    attacked: bool = False
    """Whether the server has to be found to learn too much."""

    def explore(self) -> Report:
        """Run it."""
        off = () if self.floors else defects.FLOORS_OFF
        planted = defects.DEFECTS[self.defect] if self.defect else ()
        with ideal.installed(), defects.planted(*planted, *off):
            return Explorer(self.setup, self.catalogue).explore()


def _released() -> list[Case]:
    return [
        Case("any sets, 5 clients", Setup(5, 3, 3), ONE),
        Case("any rosters and keys, 4 clients", Setup(4, 3, 3), KEYS),
        Case("any rosters and keys, 5 clients, 1 corrupted", Setup(5, 4, 4, corrupted=CORRUPTED), KEYS),
        Case("any rosters and keys, 5 clients, 2 corrupted", Setup(5, 4, 4, corrupted=frozenset({3, 4})), KEYS),
        Case("any rosters and keys, 3 clients, 2 attempts", Setup(3, 2, 2, attempts=2), KEYS),
        Case("any sets, 4 clients, 2 attempts", Setup(4, 2, 3, attempts=2), ALL_SHARE, floors=False),
        Case("any rosters, 4 clients, threshold 2", Setup(4, 2, 3), SUBSETS, floors=False),
        Case(
            "any sets, 4 clients, 1 corrupted, threshold 2",
            Setup(4, 2, 3, corrupted=frozenset({3})),
            KEYS,
            floors=False,
        ),
        Case("lists of 4 of 5, threshold 2", FIVE, ALL_SHARE, floors=False),
        Case("one other view, a committee of 3 of 5", VIEWS, ONE_OTHER_VIEW, floors=False),
        Case("a committee of 2 of 5, 2 attempts", TWICE, CERTIFIED_BEFORE, floors=False),
        Case("semi_honest, the server follows", Setup(5, 3), FOLLOWING),
        Case("semi_honest, the server follows, 1 corrupted", Setup(5, 3, corrupted=CORRUPTED), FOLLOWING),
    ]


def _attacked() -> list[Case]:
    found = [
        Case("no latch", FIVE, ALL_SHARE, "no latch"),
        Case("no consistency check", FIVE, ALL_SHARE, "no consistency check"),
        Case("list's size", FIVE, ALL_SHARE, "no check of the list's size"),
        Case("unbound list", FIVE, ALL_SHARE, "signature not bound to the list"),
        Case("views", VIEWS, ONE_OTHER_VIEW, "view of the sharers not signed"),
        Case("context", TWICE, CERTIFIED_BEFORE, "signature not bound to the context"),
        Case("keys", Setup(4, 3, 3), KEYS, "advertised keys not certified"),
        Case("spent input", Setup(5, 3, 3, attempts=2), ALL_SHARE, "input not spent"),
        Case("quorum too small", Setup(5, 2, 2, cohort=4), ALL_SHARE),
        Case("quorum too small for 1 corrupted", Setup(5, 2, 3, corrupted=CORRUPTED), ALL_SHARE),
        Case("semi_honest, the server deviates", Setup(5, 2, cohort=4), ALL_SHARE),
    ]
    return [Case(c.name, c.setup, c.catalogue, c.defect, floors=False, attacked=True) for c in found]


def cases() -> list[Case]:
    """Return every case: the library as it is, and with each defect."""
    return [*_released(), *_attacked()]
