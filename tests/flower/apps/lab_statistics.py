"""The lab's app for clients, which also answers statistics."""

from __future__ import annotations

from typing import Any

from lab_app import app

from secagg.analytics import Site
from secagg.flower import SiteStatistics
from tests.harness.town_of_sites import declared, functions, people

__all__ = ["app"]


def site(context: Any) -> Site:
    """Return a node's people."""
    number = int(context.node_config["partition-id"])
    return Site(declaration=declared(), functions=functions(people(number, 20 * number)))


app.query("statistics")(SiteStatistics(site))
