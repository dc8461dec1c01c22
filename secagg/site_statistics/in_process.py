"""Statistics of several sites in one process: real cryptography, and no strangers; for tests, notebooks and trials."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from functools import partial
from typing import Any, Final, Unpack

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry, ProtocolName, find
from secagg.short.in_process import by_name, leaving, simulated
from secagg.short.model_session import CohortSettings, planned

from .data import Site, Values
from .declaration import Declaration
from .plan import Plan, Results

_TASK: Final = b"statistics in one process"


def summed(
    declaration: Declaration,
    sites: Mapping[Any, Mapping[str, Values]] | Collection[Mapping[str, Values]],
    *,
    drop: int | Collection[Hashable] = 0,
    protocol: ProtocolName | ProtocolEntry = "pairwise",
    **settings: Unpack[CohortSettings],
) -> Results:
    """Return the statistics of all sites.

    Args:
        sites: for each, the functions that give its people's values, by the names of variables.
        drop: how many sites leave before they upload, or which ones.
        protocol: by its name, or the entry of one of your own.
        settings: any setting of the protocol.
    Raises:
        InvalidParameters: too few sites or too many, or one lacks a function.
        SecAggError: nothing is released; the message says why.
    """
    plan, entry = Plan(declaration), find(protocol)
    named = {name: Site(declaration=declaration, functions=one) for name, one in by_name(sites).items()}
    gone, least = leaving(drop, named, settings), declaration.least_clients
    if not least <= len(named) - gone or len(named) > declaration.most_clients:
        raise InvalidParameters(
            f"{declaration.name!r} is for {least} to {declaration.most_clients} sites, and there are "
            f"{len(named) - gone}; change least_clients, most_clients or the sites"
        )
    chosen: dict[str, Any] = {"minimum_cohort": max(least, len(named) - gone), **settings}
    made = planned(entry, len(named), dropped=gone, settings=chosen)
    entry.require_segments(plan.update.layout)
    coins = SystemCoins()
    making = {name: partial(plan.late, site, coins) for name, site in named.items()}
    released, _ = simulated(entry, made, plan.subject(task=_TASK, round_number=1), making, drop)
    return plan.results(released.aggregate)
