"""The cases of the pairwise-mask protocol: what is searched, with which defect, and the expected outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ideal
from defects import DEFECTS, POLICY_OFF, planted
from paths import Catalogue
from report import Report
from schedules import Explorer
from secagg.parameters import Suite
from setups import Setup

ONE = Catalogue()
SUBSETS = Catalogue("subsets")
KEYS = Catalogue("keys")
FOLLOWING = Catalogue(agreed=True)
ALL_SHARE = Catalogue(sharers=lambda *_: False)
KEYS_ALL_SHARE = replace(KEYS, sharers=ALL_SHARE.sharers)
ONE_OTHER_VIEW = Catalogue(sharers=lambda _, client, __: client == 4, sizes=frozenset({3}))  # noqa: PLR2004
"""One client receives another set of sharers than the others, and a certificate covers three of five."""
COMMITTEE = frozenset({0, 1})
CERTIFIED_BEFORE = Catalogue(
    sharers=ALL_SHARE.sharers, lists=lambda _, client, attempt: attempt == 1 or client in COMMITTEE
)
FIVE = Setup(5, 2, 3, cohort=4)
VIEWS = Setup(5, 2, 2, cohort=3, committee=3)
OUTSIDERS = Setup(5, 3, 2, cohort=4, committee=3, corrupted=frozenset({3, 4}))
TWICE = Setup(5, 2, 2, cohort=4, committee=2, attempts=2)
SAFE_FIVE = Setup(5, 3, 3)
SIX, SEVEN = Setup(6, 4, 4, 5, corrupted=frozenset({5})), Setup(7, 5, 5, 6, corrupted=frozenset({5, 6}))
FOUR = Setup(4, 2, 3)
THREE_TWICE = Setup(3, 2, 2, attempts=2, rounds=True)
UNBOUND = "signature not bound to the context"


COVERED_BY_VIEWS = ("list not compared with the sharers", "signature not bound to the sharers")
"""Checks that the neighbours' views repeat. A case without one of them has no fault while views are verified: every
listed client signed a view, which names the sharers including itself. Without both, each fault is found.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One search."""

    name: str
    setup: Setup
    catalogue: Catalogue
    defect: str = ""
    policy: bool = True
    """Whether clients require safe parameters."""
    attacked: bool = False
    """Whether the search must find that the server learns too much."""

    def explore(self) -> Report:
        """Run it."""
        off = () if self.policy else POLICY_OFF
        with ideal.installed(), planted(*DEFECTS.get(self.defect, ()), *off):
            return Explorer(self.setup, self.catalogue).explore()


def _released() -> list[Case]:
    redundant = [
        Case(f"redundant: {name}", VIEWS, ONE_OTHER_VIEW, defect=name, policy=False) for name in COVERED_BY_VIEWS
    ]
    return [
        *redundant,
        Case("any sets, 5 clients", SAFE_FIVE, ONE),
        Case("any sets, 6 clients, 1 corrupted", SIX, ONE),
        Case("any sets, 7 clients, 2 corrupted", SEVEN, ONE),
        Case("any rosters and keys, 5 clients", SAFE_FIVE, KEYS_ALL_SHARE),
        Case("any rosters and keys, 6 clients, 1 corrupted", SIX, KEYS_ALL_SHARE),
        # Every deviation is refused at once, so only one schedule remains.
        Case("all but one refused: any rosters and keys, 3 clients, two rounds", THREE_TWICE, KEYS),
        Case("any sets, 5 clients, restarts", replace(SAFE_FIVE, restarts=True), ONE),
        Case("any sets, 5 clients, hybrid suite", replace(SAFE_FIVE, suite=Suite.HYBRID), ONE),
        Case("any sets, 4 clients, 2 attempts", replace(FOUR, attempts=2), ALL_SHARE, policy=False),
        Case("any sets, 4 clients, two rounds", replace(FOUR, attempts=2, rounds=True), ALL_SHARE, policy=False),
        Case("any rosters, 4 clients, threshold 2", FOUR, SUBSETS, policy=False),
        Case(
            "any sets, 4 clients, 1 corrupted, threshold 2", replace(FOUR, corrupted=frozenset({3})), KEYS, policy=False
        ),
        Case("lists of 4 of 5, threshold 2", FIVE, ALL_SHARE, policy=False),
        Case("lists of 4 of 5, threshold 2, restarts", replace(FIVE, restarts=True), ALL_SHARE, policy=False),
        Case("one other view, a committee of 3 of 5", VIEWS, ONE_OTHER_VIEW, policy=False),
        Case("a committee of 3 of 5, 2 corrupted outside", OUTSIDERS, ALL_SHARE, policy=False),
        Case("a committee of 2 of 5, 2 attempts", TWICE, CERTIFIED_BEFORE, policy=False),
        Case("semi_honest, the server follows", Setup(5, 3), FOLLOWING),
        Case("semi_honest, the server follows, 1 corrupted", Setup(5, 3, corrupted=frozenset({4})), FOLLOWING),
    ]


def _planted(name: str, setup: Setup, catalogue: Catalogue, defect: str | None = None, *, policy: bool = False) -> Case:
    return Case(name, setup, catalogue, name if defect is None else defect, policy=policy, attacked=True)


def _attacked() -> list[Case]:
    hybrid = replace(FIVE, suite=Suite.HYBRID)
    return [
        _planted("no latch", FIVE, ALL_SHARE),
        _planted("no consistency check", FIVE, ALL_SHARE),
        _planted("no check of the list's size", FIVE, ALL_SHARE),
        _planted("itself not looked for in the list", FIVE, ALL_SHARE),
        _planted("list not compared with the sharers, nor views", VIEWS, ONE_OTHER_VIEW),
        _planted("signature not bound to the list", FIVE, ALL_SHARE),
        _planted("signature not bound to the sharers, nor views", VIEWS, ONE_OTHER_VIEW),
        *(
            _planted(f"signature not bound to the context{of}", setup, CERTIFIED_BEFORE, defect=UNBOUND)
            for of, setup in (("", TWICE), (", two rounds", replace(TWICE, rounds=True)))
        ),
        _planted("signatures not counted", FIVE, ALL_SHARE),
        _planted("one signature counts often", FIVE, ALL_SHARE),
        _planted("signatures from outside of the committee", OUTSIDERS, ALL_SHARE),
        _planted("first signature alone verified", FIVE, ALL_SHARE),
        _planted("view of the sharers not signed", VIEWS, ONE_OTHER_VIEW),
        _planted("signs other sharers", FIVE, ALL_SHARE),
        _planted("advertised keys not certified", Setup(4, 3, 3), KEYS),
        _planted("input not spent", Setup(5, 3, 3, attempts=2), ALL_SHARE, policy=True),
        _planted("masks left out", FIVE, ALL_SHARE),
        _planted("self mask left out", FIVE, ALL_SHARE),
        _planted("both shares shown", FIVE, ALL_SHARE),
        _planted("the other share shown", FIVE, ALL_SHARE),
        _planted("seeds of all edges shown", hybrid, ALL_SHARE),
        _planted("a latch that claims nothing", replace(FIVE, restarts=True), ALL_SHARE),
        _planted("quorum too small", Setup(5, 2, 2, cohort=4), ALL_SHARE, defect=""),
        _planted("quorum too small for 1 corrupted", Setup(5, 2, 3, corrupted=frozenset({4})), ALL_SHARE, defect=""),
        _planted("semi_honest, the server deviates", Setup(5, 2, cohort=4), ALL_SHARE, defect=""),
    ]


def cases() -> list[Case]:
    """Return every case: the unchanged library, and the library with each defect."""
    return [*_released(), *_attacked()]
