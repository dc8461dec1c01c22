"""The cases of two servers: unchanged, without each check, and with functions that forget."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ideal
import server_defects as forgetful
from defects import Replacement, nothing, planted
from indexing_cast import PATCHES, REFUTED, Place
from report import Report
from secagg.protocols.two_servers import server_messages
from secagg.protocols.two_servers.offers import RoundRules
from secagg.protocols.two_servers.release import Release
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.upload import Upload
from secagg.session.certificates import Authority
from secagg.session.ledger import SpentUpdates
from server_defects import CHECKS, without
from server_searches import (
    batches,
    corrupted_0,
    corrupted_1,
    crowded,
    names,
    network,
    refusing,
    small,
    two_layouts,
    two_rounds,
)
from two_servers import Search


@dataclass(frozen=True, slots=True)
class Case:
    """A search, with planted defects."""

    name: str
    make: Callable[[], Search]
    defects: tuple[Replacement, ...] = ()
    attacked: bool = False

    def explore(self) -> Report:
        """Run it, with ideal cryptography."""
        REFUTED.clear()
        logging.disable(logging.WARNING)
        with ideal.installed():
            with planted(*PATCHES):
                search = self.make()
            with planted(*PATCHES, *self.defects):
                return search.explore()


def cases() -> tuple[Case, ...]:
    """Return every case: the unchanged servers, then each defect."""
    shipped = [
        Case("two servers: server 1 corrupted", corrupted_1),
        Case("two servers: server 0 corrupted", corrupted_0),
        Case("two servers: uploads in others' names", names),
        Case("two servers: both honest, 4 uploads", network),
        Case("two servers: both honest, batches", batches),
        Case("two servers: two rounds, one layout", two_rounds),
        Case("two servers: two layouts, one round", two_layouts),
        Case("two servers: more uploads than room", crowded),
        Case("two servers: 3 uploads", small),
        Case("two servers: two uploads refused", refusing),
    ]
    made = list[Case]()
    for name in CHECKS:
        search, covers = SEARCHED.get(name, small), COVERED.get(name, ())
        if name in COVERED:
            made.append(Case(f"two servers: redundant: {name}", search, without(name)))
        nor = "".join(f", nor {cover}" for cover in covers)
        if covers or name not in COVERED:
            defects = without(name, *covers)
            made.append(Case(f"two servers: not checked: {name}{nor}", search, defects, attacked=True))
    return (*shipped, *made, *(_defective(*defect) for defect in DEFECTS))


def _defective(name: str, make: Callable[[], Search], defects: tuple[Replacement, ...] = ()) -> Case:
    return Case(f"two servers: {name}", make, defects, attacked=True)


SEARCHED: dict[str, Callable[[], Search]] = {
    "a client has one upload": names,
    "the round has room": crowded,
    "one list is signed": corrupted_0,
    "enough uploads": corrupted_0,
    "one commitment is heard": corrupted_0,
    "few uploads are rejected": refusing,
    "an upload is asked about once": corrupted_1,
}
"""Searches for checks that the smallest search does not reach."""
COVERED: dict[str, tuple[str, ...]] = {
    # No late message may cause a decision; without all of these checks there is "no latch on the list".
    "an upload comes while the round collects": (),
    "the rules collect": (),
    "one list is signed": (),
    "the rules list while they collect": (),
    # A late decision is refused before it is added, and would also be refused afterwards.
    "uploads move while the rules collect": ("a decision comes in its turn",),
    # The check of unit vectors itself decides nothing before messages were exchanged.
    "an upload that was asked about is decided": (),
    "an upload is added that was asked about": (),
    # The digest of a list covers its entries, whatever their number.
    "lists are of one length": (),
    # There is no share before an agreement.
    "a share follows an agreement": (),
}
"""Redundant checks, and what covers each: without the check no fault is found, without both one is."""
DEFECTS: tuple[tuple[Any, ...], ...] = (
    (
        "no latch on the list",
        corrupted_1,
        (
            (RoundRules, "require", forgetful.still_collecting),
            (IndexingServer, "_require_turn", forgetful.still_its_turn),
            (IndexingServer, "close", forgetful.close_again),
        ),
    ),
    ("signature of the list not checked", network, ((server_messages, "verify_signature", nothing),)),
    ("lists not compared", corrupted_1, ((Release, "require_same_list", nothing),)),
    ("released before both have signed", network, ((IndexingServer, "open", forgetful.open_early),)),
    ("cohort not checked", corrupted_1, ((RoundRules, "list_to_sign", forgetful.everybody),)),
    ("a client counts twice", names, ((RoundRules, "require_new", forgetful.another_of_the_client),)),
    ("an upload added twice", network, ((IndexingServer, "_take", forgetful.take_again),)),
    ("authority of the client not checked", names, ((Authority, "verify", nothing),)),
    ("signature of the client not checked", names, ((Upload, "verify", nothing),)),
    ("check of unit vectors not heeded", network, ((IndexingServer, "_decide", forgetful.take_anyway),)),
    ("asked twice", corrupted_1, ((IndexingServer, "_say", forgetful.ask_again),)),
    ("the root survives, server 0", corrupted_1, ((Place, "root_of", forgetful.one_root),)),
    ("the root survives, server 1", corrupted_0, ((Place, "root_of", forgetful.one_root),)),
    ("uploads not in the ledger, two rounds", two_rounds, ((SpentUpdates, "charge", nothing),)),
    ("uploads not in the ledger, two layouts", two_layouts, ((SpentUpdates, "charge", nothing),)),
)
